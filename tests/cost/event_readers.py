"""The viewers of a server by HTTP: a program of its own.

``python -m tests.cost.event_readers URL READING STUCK SCRAPE_S``

So many connections to ``/v1/events`` read all that comes, so many others read nothing, and
``/metrics`` is asked for every ``SCRAPE_S`` seconds (0: never).  It says once that each that
reads has had some events, by when the others are stuck, and ends with its standard input.
"""

from __future__ import annotations

import selectors
import socket
import sys
import time
from urllib.parse import urlsplit

from tests.cost.driver import answer

RECEIVE_BYTES = 4096
"""The kernel's buffer for viewers who read nothing: small, so that they are stuck soon."""
CHUNK = 1 << 16
EVENTS = 5
"""So many fill what the kernel keeps."""


def main() -> None:
    """Look until standard input ends."""
    url, reading, stuck, scrape_s = sys.argv[1], *map(float, sys.argv[2:5])
    _look(url, int(reading), int(stuck), scrape_s)


def _look(url: str, reading: int, stuck: int, scrape_s: float) -> None:
    place = urlsplit(url)
    address = place.hostname or "", place.port or 80
    idle = [_connected(address, "/v1/events", RECEIVE_BYTES) for _ in range(stuck)]
    waiting = {_connected(address, "/v1/events"): EVENTS for _ in range(reading)}
    with selectors.DefaultSelector() as selector:
        for each in waiting:
            selector.register(each, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        scraped_s = time.monotonic()
        if not waiting:
            answer({"ready": True})
        while True:
            for key, _ in selector.select(scrape_s or None):
                if not isinstance(key.fileobj, socket.socket):
                    return  # the end: nothing else is ever said there
                found = key.fileobj.recv(CHUNK)
                if not found:
                    raise ConnectionError("the server has closed the connection of a reader")
                if b"data: " in found and key.fileobj in waiting:
                    waiting[key.fileobj] -= 1
                    if not waiting[key.fileobj]:
                        del waiting[key.fileobj]
                    if not waiting:
                        answer({"ready": True, "stuck": len(idle)})
            if scrape_s and time.monotonic() - scraped_s >= scrape_s:
                scraped_s = time.monotonic()
                _scrape(address)


def _scrape(address: tuple[str, int]) -> None:
    with _connected(address, "/metrics") as connection:
        found = b""
        while chunk := connection.recv(CHUNK):
            found += chunk
    if not found.startswith(b"HTTP/1.1 200"):
        raise ConnectionError(f"a scrape was answered with {found[:200]!r}")


def _connected(
    address: tuple[str, int], target: str, receive_bytes: int | None = None
) -> socket.socket:
    connection = socket.socket()
    if receive_bytes is not None:  # before it is connected, or the window is larger already
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.connect(address)
    head = f"GET {target} HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\nConnection: close\r\n\r\n"
    connection.sendall(head.encode())
    return connection


if __name__ == "__main__":
    main()
