"""libzmq with heartbeats, in front of a server: the peer of a client that is held.

``python -m tests.attack.relay '{"address": ...}'``

A plain pyzmq ROUTER that drops who does not answer its heartbeats, and a plain DEALER to
the server.  For one client: what comes from the server goes to whoever spoke last.  It
prints one line, ``{"event": "relaying", "address": ...}``, and stops when its standard
input ends.
"""

from __future__ import annotations

import os
import sys

import zmq

from trio_envserve.lab.orders import given_options, say

HEARTBEAT_MS = 1000
TIMEOUT_MS = 3000


def main() -> int:
    """Relay until the end of standard input."""
    options = given_options("tests.attack")
    context = zmq.Context()
    front, back = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    for socket in (front, back):
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.SNDHWM, 0)
        socket.set(zmq.RCVHWM, 0)
    beat(front)
    port = front.bind_to_random_port("tcp://127.0.0.1")
    back.connect(options["address"])
    say("relaying", address=f"tcp://127.0.0.1:{port}")
    _relay(front, back)
    context.destroy(linger=0)
    return 0


def beat(socket: zmq.Socket[bytes]) -> None:
    """Have libzmq look for peers that do not answer, and drop them."""
    socket.set(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.set(zmq.HEARTBEAT_TIMEOUT, TIMEOUT_MS)
    socket.set(zmq.HEARTBEAT_TTL, TIMEOUT_MS)


def _relay(front: zmq.Socket[bytes], back: zmq.Socket[bytes]) -> None:
    client = b""
    poller = zmq.Poller()
    for source in (front, back, sys.stdin.fileno()):
        poller.register(source, zmq.POLLIN)
    while True:
        ready = dict(poller.poll())
        if sys.stdin.fileno() in ready and not os.read(sys.stdin.fileno(), 1024):
            return
        if front in ready:
            client, *frames = front.recv_multipart()
            back.send_multipart(frames)
        if back in ready:
            front.send_multipart([client, *back.recv_multipart()])


if __name__ == "__main__":
    raise SystemExit(main())
