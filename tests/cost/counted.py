"""The cost of one request in the pure machines, counted instead of timed.

Theory of operation
-------------------
Seconds on a shared machine are noise; counts are not.  A client, a router and a worker of the
pure core are joined in memory, with time and ids as arguments, and while a steady number of
requests is in flight, the Python instructions that each machine executes for a request are
counted (bytecodes, by a trace function).  The same inputs always give the same counts, on one
minor version of Python.
They do not see what C code does (the CBOR codec, dictionaries).
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias, final

from tests.core.helpers import Joined
from trio_envserve.core.client import (
    Answer,
    CallKey,
    CallSubmitted,
    ClientInput,
    ClientTick,
    Connected,
    OutcomeReceived,
    ServerMessage,
    Terms,
    ToServer,
)
from trio_envserve.core.key_records import KeyAct, KeyName
from trio_envserve.core.messages import ToSay, in_batches
from trio_envserve.core.router_effects import Spawn, ToClient, ToWorker
from trio_envserve.core.router_inputs import ClientMessage, PoolOpened, RouterInput, WorkerMessage
from trio_envserve.core.terms import DIGEST_BYTES, Status
from trio_envserve.core.worker import (
    BeginRun,
    OutcomeMade,
    RouterMessage,
    ToRouter,
    WorkerEffect,
    WorkerInput,
    frames_to_router,
)

EXPECTED = Path(__file__).with_name("counted.json")
"""The counts that hold, and by how much they may grow."""
SAMPLE = 320
"""Requests whose bytecodes are counted."""
BATCH = 16
"""Requests that travel together: about what a busy socket hands out at once."""
STEP_S = 0.006
MACHINES = ("router", "client", "worker")
_ROUTE = b"c" + bytes(16)
_BODY, _OUTCOME = bytes(300), bytes(260)

COUNTS: dict[str, dict[str, Any]] = {
    "bytecodes": {},
    "bytecodes_1000_in_flight": {"in_flight": 1000},
    "bytecodes_10000_in_flight": {"in_flight": 10_000},
    "bytecodes_after_20000": {"done": 20_000},
    "bytecodes_keyed": {"keyed": True},
    "bytecodes_keyed_after_20000": {"done": 20_000, "keyed": True},
}
"""All that is counted, with the arguments of :func:`bytecodes`."""


# -- the machines, joined -----------------------------------------------------------------


@final
class Machines(Joined):
    """A router, a worker and a client.  What one has for another at one moment goes in batches,
    as the shells send it."""

    def __init__(self, *, keyed: bool = False) -> None:
        """``keyed``: whether each request has a key of its own."""
        self.counts = dict.fromkeys(MACHINES, 0)
        """Bytecodes so far, while ``counting``."""
        self.counting = False
        self._keyed = keyed
        self._running: list[int] = []
        self._answers: list[Answer] = []
        super().__init__(workers=1, rerun=False, heartbeats=False, server=None, client=None)
        self.give(PoolOpened((), self.now_s))
        self.give_client(Connected(self.now_s))
        self.settle()

    def keep_in_flight(self, count: int) -> None:
        for _ in range(count):
            self._submit()
        self.settle()

    def turn(self) -> None:
        """A batch of executions ends, is answered, received, and replaced."""
        (worker,) = self.workers
        done, self._running = self._running[:BATCH], self._running[BATCH:]
        outcomes = [OutcomeMade(number, Status.RESULT, _OUTCOME, 0.001) for number in done]
        self.work(worker, self._take(worker, *outcomes))
        self.settle()
        answers, self._answers = self._answers, []
        assert len(answers) == len(done)
        self.now_s += STEP_S
        for answer in answers:
            self.give_client(OutcomeReceived(answer.call, self.now_s))
            self._submit()
        self.give_client(ClientTick(self.now_s))
        self.settle()

    def _submit(self) -> None:
        number, key = self.new_call(), None
        if self._keyed:
            name = KeyName(b"default", b"row %d" % number)
            key = CallKey(KeyAct.ASK, name, number.to_bytes(DIGEST_BYTES, "big"))
        self.give_client(CallSubmitted(number, _BODY, self.now_s, Terms(key=key)))

    def settle(self) -> None:
        """Carry messages until nothing is under way."""
        while effects := [*self.client_said(), *self.said()]:
            self._answers += [effect for effect in effects if isinstance(effect, Answer)]
            for spawn in effects:
                if isinstance(spawn, Spawn):
                    self._spawn(spawn)
            sent = [effect for effect in effects if isinstance(effect, ToServer)]
            for frames in self._batches("client", sent):
                self.give(ClientMessage(_ROUTE, frames, self.now_s))
            to_worker = [effect for effect in effects if isinstance(effect, ToWorker)]
            for frames in self._batches("router", [effect[2:] for effect in to_worker]):
                worker, incarnation, *_ = to_worker[0]
                self.work(worker, self._take(worker, RouterMessage((incarnation, *frames))))
            to_client = [effect[1:] for effect in effects if isinstance(effect, ToClient)]
            for frames in self._batches("router", to_client):
                self.give_client(ServerMessage(frames, self.now_s))

    def give(self, *inputs: RouterInput) -> None:
        with self._count("router"):
            super().give(*inputs)

    def give_client(self, *inputs: ClientInput) -> None:
        with self._count("client"):
            super().give_client(*inputs)

    def _take(self, worker: bytes, *inputs: WorkerInput) -> list[WorkerEffect]:
        with self._count("worker"):
            return [effect for each in inputs for effect in self.workers[worker].take(each)]

    def work(self, worker: bytes, effects: Sequence[WorkerEffect]) -> None:
        """Deliver the worker's messages to the router."""
        self._running += [effect.number for effect in effects if isinstance(effect, BeginRun)]
        with self._count("worker"):
            said: list[Any] = list(
                frames_to_router([e for e in effects if isinstance(e, ToRouter)])
            )
        for frames in said:
            self.give(WorkerMessage((worker, *frames), self.now_s))

    def _batches(self, machine: str, said: Sequence[ToSay]) -> list[tuple[Any, ...]]:
        with self._count(machine):
            return list(in_batches(said))

    @contextmanager
    def _count(self, machine: str) -> Iterator[None]:
        """Count the bytecodes that are executed in functions called in this block."""
        if not self.counting:
            yield
            return
        seen = 0

        def opcode(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal seen
            if event == "opcode":
                seen += 1
            return opcode

        def call(frame: FrameType, event: str, argument: Any) -> Any:
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
            return opcode

        before = sys.gettrace()
        sys.settrace(call)
        try:
            yield
        finally:
            sys.settrace(before)
            self.counts[machine] += seen


# -- counts -------------------------------------------------------------------------------


def bytecodes(in_flight: int = 64, *, done: int = 0, keyed: bool = False) -> dict[str, float]:
    """Bytecodes for each request, by machine, with so many in flight and so many done before in
    the session."""
    machines = Machines(keyed=keyed)
    machines.keep_in_flight(in_flight)
    for _ in range(max(4, done // BATCH)):
        machines.turn()
    machines.counting = True
    collects = gc.isenabled()
    gc.disable()  # what others have it call is no cost of a request, and comes at any time
    try:
        machines.turn()  # since 3.12 a function is prepared when it is first traced
        machines.counts = dict.fromkeys(MACHINES, 0)
        for _ in range(SAMPLE // BATCH):
            machines.turn()
    finally:
        if collects:
            gc.enable()
    return {name: total / SAMPLE for name, total in machines.counts.items()}


# -- expectations -------------------------------------------------------------------------

Counts: TypeAlias = "dict[str, dict[str, float]]"
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
BOUNDS = (
    ("bytecodes", "", "request"),
    ("bytecodes_keyed", "", "keyed request"),
    # Past the worker's capacity, a request waits: with 64 in flight none does.
    ("bytecodes_10000_in_flight", "bytecodes_1000_in_flight", "request with 10,000 in flight"),
    ("bytecodes_after_20000", "bytecodes", "request after 20,000 requests"),
    ("bytecodes_keyed_after_20000", "bytecodes_keyed", "request after 20,000 with keys"),
)
"""What is bounded, by which count (none: what is expected), and in words."""


def counted(*, grown: bool = True) -> Counts:
    """All counts for each request; ``grown``: with those of much in flight and long sessions,
    which take most of the time."""
    return {
        name: bytecodes(**arguments)
        for name, arguments in COUNTS.items()
        if grown or not arguments.keys() - {"keyed"}
    }


def expected() -> Counts:
    """The counts that hold on this Python; those that are not known are not there."""
    known = json.loads(EXPECTED.read_text())
    names = ("bytecodes", "bytecodes_keyed")
    return {name: known[name][PYTHON] for name in names if PYTHON in known[name]}


def problems(counts: Counts) -> list[str]:
    """What costs more than it may."""
    most = 1 + json.loads(EXPECTED.read_text())["tolerance"]
    wanted, found = expected(), []
    for name, other, what in BOUNDS:
        few = counts.get(other, {}) if other else wanted.get(name, {})
        for machine, got in counts.get(name, {}).items():
            if machine in few and got > most * few[machine]:
                beside = f"{few[machine]:.0f} {other or 'are expected'}"
                found.append(f"the {machine} executes {got:.0f} bytecodes for a {what}; {beside}")
    return found


def accept(counts: Counts) -> None:
    known = json.loads(EXPECTED.read_text())
    for name in ("bytecodes", "bytecodes_keyed"):
        known[name][PYTHON] = {who: round(total, 1) for who, total in counts[name].items()}
    EXPECTED.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")


def table(counts: Counts) -> str:
    """The counts for people."""
    rows: list[tuple[str, ...]] = [("", *MACHINES)]
    named = {**counts, **{f"expected {name}": count for name, count in expected().items()}}
    rows += [(name, *(f"{count[m]:.0f}" for m in MACHINES)) for name, count in named.items()]
    return "\n".join(f"{row[0]:28}" + "".join(f"{cell:>9}" for cell in row[1:]) for row in rows)
