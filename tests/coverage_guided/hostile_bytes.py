"""Hostile bytes, sought by coverage: a program for libFuzzer, by way of atheris.

    python tests/coverage_guided/hostile_bytes.py [CORPUS] -max_total_time=60

The first byte of an input chooses who takes the rest: the decoder of headers, that of
bodies, a router as a client's or a worker's message, a client, a worker.  Decoders may
refuse by their own errors and no other; whoever takes messages must not raise at all.
After a mark (MARK) the next frame begins.  Without a corpus the search begins with the
test vectors of the protocol.

libFuzzer keeps an input that fails as a file ``crash-...``; given that file as an
argument, the program runs it alone.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["trio_envserve"]):
    from trio_envserve.core import messages, values
    from trio_envserve.core.client import (
        CallSubmitted,
        ClientClosed,
        ClientCore,
        ClientTick,
        Connected,
        ServerMessage,
    )
    from trio_envserve.core.errors import ProtocolError
    from trio_envserve.core.router import Router
    from trio_envserve.core.router_effects import Spawn
    from trio_envserve.core.router_inputs import ClientMessage, PoolOpened, Tick, WorkerMessage
    from trio_envserve.core.terms import COST_HEADER
    from trio_envserve.core.worker import BeatDue, EnvironmentReady, RouterMessage, WorkerCore
    from trio_envserve.lab.conformance.cases import VECTORS

MARK = b"\xff\xfe\xff"
ID = bytes(range(0x30, 0x40))
"""The one id of these worlds, which the vectors have as a nonce."""


def header(data: bytes) -> None:
    """What decodes is a message, and encodes to the same message again."""
    try:
        message = messages.decode(data, most_bytes=1 << 16)
    except ProtocolError:
        return
    again = messages.decode(messages.encode(message), most_bytes=1 << 17)
    assert repr(again) == repr(message)  # nan is not itself


def body(data: bytes) -> None:
    """Any bytes are a value or refused, in one call and in pieces, and may be looked at."""
    for pause in (None, lambda: None):
        with contextlib.suppress(values.DecodingError):
            values.decode(data, arrays="numpy", pause=pause)
    said = COST_HEADER + b"\x19\3\xe8" + data
    with contextlib.suppress(values.DecodingError, values.TooMuchWork):
        values.decode(said, arrays="numpy", at_once=True)


def batched(data: bytes) -> None:
    """Any two frames are malformed, or messages that come back the same in batches again."""
    first, _, second = data.partition(MARK)
    try:
        said = messages.read((first, second), most_bytes=1 << 16)
    except ProtocolError:
        return
    again = [row for f in messages.in_batches(said) for row in messages.read(f, most_bytes=1 << 17)]
    assert repr(again) == repr([(message, bytes(body or b"")) for message, body in said])


def _router() -> tuple[Router, bytes]:
    """A router with a session of id ID and one worker of incarnation ID."""
    router = Router(epoch=ID, slots=1, now_s=0.0, new_id=lambda: ID)
    effects = router.take(PoolOpened((), 0.0))
    (worker,) = [each.worker for each in effects if isinstance(each, Spawn)]
    hello = messages.encode(messages.Hello(2, ID, 1, "fuzz", 1 << 20, bytes(16)))
    router.take(ClientMessage(b"route", (hello,), 0.1))
    ready = messages.encode(messages.WorkerHello(2, 1, "fuzz", False, 256))
    router.take(WorkerMessage((worker, ID, ready), 0.2))
    return router, worker


def from_client(data: bytes) -> None:
    """Each frame a message with the next one, if it is a request, as its body."""
    router, _ = _router()
    frames = data.split(MARK)
    for index, frame in enumerate(frames):
        router.take(ClientMessage(b"route", (frame,), 1.0 + index))
        router.take(ClientMessage(b"route", tuple(frames[index : index + 2]), 1.0 + index))
    router.take(Tick(1000.0))


def from_worker(data: bytes) -> None:
    """After a request was dispatched: the frames after id and incarnation."""
    router, worker = _router()
    request = messages.Request(ID, 0, bytes(8), None, 1, None)
    router.take(ClientMessage(b"route", (messages.encode(request), b"body"), 0.5))
    frames = data.split(MARK)
    for count in range(1, 4):
        router.take(WorkerMessage((worker, ID, *frames[:count]), 1.0))
        router.take(WorkerMessage((worker, ID, b"route", ID + bytes(8), *frames[:count]), 1.0))
    router.take(Tick(1000.0))


def client(data: bytes) -> None:
    """After two calls were submitted and the session granted."""
    core = ClientCore(name="fuzz", new_id=lambda: ID, now_s=0.0)
    for call in range(2):
        core.take(CallSubmitted(call, b"body", 0.1))
    core.take(Connected(0.2))
    welcome = messages.encode(messages.Welcome(2, ID, ID, ID, 64, 1 << 20, {}))
    core.take(ServerMessage((welcome,), 0.3))
    frames = data.split(MARK)
    for index in range(len(frames)):
        core.take(ServerMessage(frames[index : index + 1], 0.4 + index))
        core.take(ServerMessage(frames[index : index + 2], 0.4 + index))
    core.take(ClientTick(1000.0))
    core.take(ClientClosed(1001.0))


def worker(data: bytes) -> None:
    """Any message of the router, and of one that claims to be."""
    core = WorkerCore(ID)
    core.take(EnvironmentReady(1, "fuzz", rerun=False))
    frames = data.split(MARK)
    for index in range(len(frames)):
        core.take(RouterMessage((ID, *frames[index : index + 1])))
        core.take(RouterMessage((ID, *frames[index : index + 2])))
    core.take(BeatDue({}))


TARGETS: tuple[Callable[[bytes], None], ...] = (
    header, body, from_client, from_worker, client, worker, batched,
)  # fmt: skip


def one(data: bytes) -> None:
    """What libFuzzer calls."""
    if data:
        TARGETS[data[0] % len(TARGETS)](data[1:])


def seeds() -> list[bytes]:
    """The test vectors, for every target that they may be meant for."""
    vectors = VECTORS
    bodies = [bytes.fromhex(each["bytes"]) for each in vectors["values"]]
    frames = [[bytes.fromhex(f) for f in each["frames"]] for each in vectors["messages"]]
    frames += [[bytes.fromhex(each["header"])] for each in vectors["malformed"]]
    frames += [
        [bytes.fromhex(f) for f in each["frames"]]
        for each in (*vectors["batches"], *vectors["no_batches"])
    ]
    found = [bytes([TARGETS.index(body)]) + each for each in bodies]
    for number, target in enumerate(TARGETS):
        if target is not body:
            found += [bytes([number]) + MARK.join(each) for each in frames]
    return found


def main() -> None:
    arguments = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        if not any(not argument.startswith("-") for argument in arguments):
            for number, seed in enumerate(seeds()):
                Path(folder, f"{number:04}").write_bytes(seed)
            arguments.append(folder)
        atheris.Setup([sys.argv[0], *arguments], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
