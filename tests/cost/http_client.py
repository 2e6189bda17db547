"""The benchmark's caller by HTTP: a program of its own.

``python -m tests.cost.http_client``

Each connection asks, and asks again when it is answered.  It is asyncio with a protocol of
a few lines, since what it takes is taken from both servers alike: the less, the more the
ratio says.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

from tests.cost.driver import Tally, answer, asked


def main() -> None:
    """Carry out loads until standard input ends."""
    answer({"ready": True})
    for load in asked():
        answer(asyncio.run(carry_out(load)))


async def carry_out(load: dict[str, Any]) -> dict[str, Any]:
    """One load, to its last answer.  Its connections are made before its time begins."""
    loop = asyncio.get_running_loop()
    place = urlsplit(load["url"])
    done = loop.create_future()
    peers: list[_Peer] = []
    for _ in range(load["clients"]):
        _, peer = await loop.create_connection(
            lambda: _Peer(load, done), place.hostname, place.port
        )
        peers.append(peer)
    tally = Tally(load)
    left = len(peers)

    def ended() -> None:
        nonlocal left
        left -= 1
        if not left and not done.done():
            done.set_result(None)

    for peer in peers:
        peer.begin(tally, ended)
    await done
    return tally.figures()


class _Peer(asyncio.Protocol):
    """One connection."""

    def __init__(self, load: dict[str, Any], done: asyncio.Future[None]) -> None:
        self._response = load["response"]
        self._done = done
        self._buffer = b""
        self._call, self._began_s = 0, 0.0
        self._over = False
        place = urlsplit(load["url"])
        self._head = (
            f"POST /v1/rollouts HTTP/1.1\r\nHost: {place.netloc}\r\n"
            "Content-Type: application/json\r\nContent-Length: "
        ).encode()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def begin(self, tally: Tally, ended: Any) -> None:
        """Ask from now on."""
        self._tally, self._ended = tally, ended
        self._ask()

    def _ask(self) -> None:
        self._call, self._began_s = self._tally.begin()
        body = json.dumps({"input": {"call": self._call, "response": self._response}}).encode()
        self._transport.write(self._head + b"%d\r\n\r\n" % len(body) + body)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, blank, rest = self._buffer.partition(b"\r\n\r\n")
        if not blank:
            return
        size = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(rest) < size:
            return
        self._buffer = rest[size:]
        got = json.loads(rest[:size])
        wrong = not head.startswith(b"HTTP/1.1 200") or got["value"]["call"] != self._call
        self._tally.wrong += wrong
        self._tally.end(self._began_s)
        if self._tally.more():
            self._ask()
        else:
            self._over = True
            self._transport.close()
            self._ended()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._over and not self._done.done():
            self._done.set_exception(error or ConnectionError("the server closed a connection"))


if __name__ == "__main__":
    main()
