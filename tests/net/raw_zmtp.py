"""A peer that says what it wants: ZMTP on a plain socket, for tests of bounds."""

from __future__ import annotations

import socket
import threading

from trio_envserve.lab.conformance import wire
from trio_envserve.net.address import parse_address

GREETING = wire.greeting()
ready = wire.ready


def connect(address: str) -> socket.socket:
    """A blocking connection on which nothing was said."""
    parsed = parse_address(address)
    if parsed.scheme == "ipc":
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(parsed.path)
    else:
        sock = socket.create_connection((parsed.host, parsed.port))
    sock.settimeout(60)
    return sock


def shake(address: str, socket_type: bytes = b"DEALER", identity: bytes = b"") -> socket.socket:
    """A connection after its handshake.  Blocks: call it in a thread."""
    sock = connect(address)
    sock.sendall(GREETING + ready(socket_type, identity))
    got = b""
    while len(got) < 66 or len(got) < 66 + got[65]:
        data = sock.recv(4096)
        assert data, "the other side hung up during the handshake"
        got += data
    return sock


def until_closed(sock: socket.socket) -> bytes:
    """What comes until the other side closes."""
    got = b""
    try:
        while data := sock.recv(65536):
            got += data
    except ConnectionError:
        pass
    return got


def flood(sock: socket.socket, data: bytes, most_bytes: int, stop: threading.Event) -> int:
    """Send the same again and again, until that is much, or it is stopped, or the other
    side closes; how many bytes were taken."""
    sent = 0
    sock.settimeout(0.05)
    try:
        while sent < most_bytes and not stop.is_set():
            try:
                sent += sock.send(data)
            except TimeoutError:
                pass
    except ConnectionError:
        pass
    return sent
