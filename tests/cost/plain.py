"""The plain loop: client, forwarding router and echo worker, without any logic.

``python -m tests.cost.plain router``, ``worker ADDRESS`` and ``client ADDRESS``

Three synchronous pyzmq programs: a message is an identity (on the router's way), a header of
fixed size with the number of the request and the size of the wanted answer, and the payload.
Nothing is decoded, remembered or decided; large frames are passed on uncopied.  The router's
first line of output has its two addresses; router and worker end with their standard input.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from typing import Any

import zmq

from tests.cost.load import Tally, answer, asked
from trio_envserve.net.interface import COPY_THRESHOLD_BYTES

_HEADER = struct.Struct(">QQ24x")
"""About as many bytes as a header of the protocol has."""

_BATCH = 256
_HANG_MS = 20_000
"""An answer that takes longer does not come: then the router is gone."""

_NOBLOCK = int(zmq.NOBLOCK)
_MORE = int(zmq.SNDMORE)


def _open(kind: int) -> Any:
    # Any: pyzmq's types of synchronous sockets promise less than they do.
    socket: Any = zmq.Context.instance().socket(kind)
    socket.copy_threshold = COPY_THRESHOLD_BYTES
    for option in (zmq.SNDHWM, zmq.RCVHWM, zmq.LINGER):
        socket.set(option, 0)
    return socket


def _forward(source: Any, target: Any) -> None:
    """Pass on what is there, up to a budget."""
    try:
        for _ in range(_BATCH):
            target.send_multipart(source.recv_multipart(_NOBLOCK, False), 0, False)
    except zmq.Again:
        pass


def router() -> None:
    """Forward between the front and the back, in turn to each worker."""
    front, back = _open(zmq.ROUTER), _open(zmq.DEALER)
    front.bind("tcp://127.0.0.1:0")
    back.bind("tcp://127.0.0.1:0")
    answer({"front": front.last_endpoint.decode(), "back": back.last_endpoint.decode()})
    poller = zmq.Poller()
    for one in (front, back, sys.stdin.fileno()):
        poller.register(one, zmq.POLLIN)
    while True:
        ready = dict(poller.poll())
        if front in ready:
            _forward(front, back)
        if back in ready:
            _forward(back, front)
        if sys.stdin.fileno() in ready:
            return


def worker(address: str) -> None:
    """Answer each message with as many bytes as it asks for."""
    socket = _open(zmq.DEALER)
    socket.connect(address)
    recv, send = socket.recv, socket.send
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    poller.register(sys.stdin.fileno(), zmq.POLLIN)
    payloads: dict[int, bytes] = {}
    answer({"ready": True})
    while sys.stdin.fileno() not in dict(poller.poll()):
        try:
            for _ in range(_BATCH):
                identity = recv(_NOBLOCK)
                header = recv()
                recv(0, False)
                _, wanted = _HEADER.unpack(header)
                payload = payloads.get(wanted)
                if payload is None:
                    payload = payloads[wanted] = bytes(wanted)
                send(identity, _MORE)
                send(header, _MORE)
                send(payload, 0, wanted < COPY_THRESHOLD_BYTES)
        except zmq.Again:
            pass


def client(address: str) -> None:
    """Carry out loads, at a fixed number of requests in flight."""
    sockets: list[Any] = []
    poller = zmq.Poller()
    answer({"ready": True})
    for load in asked():
        while len(sockets) < load["clients"]:
            socket = _open(zmq.DEALER)
            socket.set(zmq.RCVTIMEO, _HANG_MS)
            socket.connect(address)
            poller.register(socket, zmq.POLLIN)
            sockets.append(socket)
        answer(_carry_out(load, sockets[: load["clients"]], poller))


def _carry_out(load: dict[str, Any], sockets: list[Any], poller: zmq.Poller) -> dict[str, Any]:
    tally = Tally(load)
    payload, wanted = bytes(load["request_bytes"]), int(load["response"])
    copied = len(payload) < COPY_THRESHOLD_BYTES
    began: dict[int, float] = {}

    def send(socket: Any) -> None:
        call, began[call] = tally.begin()
        socket.send(_HEADER.pack(call, wanted), _MORE)
        socket.send(payload, 0, copied)

    for index in range(load["in_flight"]):
        send(sockets[index % len(sockets)])
    only = sockets[0] if len(sockets) == 1 else None
    while began:
        for socket in [only] if only else [one for one, _ in poller.poll()]:
            call, _ = _HEADER.unpack(socket.recv())
            tally.end(began.pop(call), len(socket.recv(0, False)) == wanted)
            if tally.more():
                send(socket)
    return tally.figures()


if __name__ == "__main__":
    programs: dict[str, Callable[..., None]] = {
        "router": router, "worker": worker, "client": client,
    }  # fmt: skip
    programs[sys.argv[1]](*sys.argv[2:])
    zmq.Context.instance().destroy(linger=0)
