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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, final

from trio_envserve.core.client import ClientCore
from trio_envserve.core.client_effects import Answer, ClientEffect, ToServer
from trio_envserve.core.client_inputs import (
    CallKey,
    CallSubmitted,
    ClientInput,
    ClientTick,
    Connected,
    OutcomeReceived,
    ServerMessage,
)
from trio_envserve.core.key_records import KeyAct, KeyName
from trio_envserve.core.limits import ServerLimits, WireLimits
from trio_envserve.core.messages import ToSay, in_batches
from trio_envserve.core.router import Router
from trio_envserve.core.router_effects import RouterEffect, Spawn, ToClient, ToWorker
from trio_envserve.core.router_inputs import (
    ClientMessage,
    PoolOpened,
    Resume,
    RouterInput,
    Spawned,
    WorkerMessage,
)
from trio_envserve.core.terms import DIGEST_BYTES, ID_BYTES, SentBody, Status
from trio_envserve.core.worker import WorkerCore
from trio_envserve.core.worker_effects import Run, ToRouter, WorkerEffect, frames_to_router
from trio_envserve.core.worker_inputs import (
    EnvironmentReady,
    OutcomeMade,
    RouterMessage,
    WorkerInput,
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
class Counter:
    """Counts bytecodes by machine, while it is on."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(MACHINES, 0)
        self.on = False

    @contextmanager
    def count(self, machine: str) -> Iterator[None]:
        """All bytecodes that are executed in functions called in this block."""
        if not self.on:
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


@final
class Joined:
    """The three machines, and what is on its way between them."""

    def __init__(self, counter: Counter | None = None, *, keyed: bool = False) -> None:
        self.keyed = keyed
        """Whether each request has a key of its own."""
        self.now_s = 1.0
        self.counter = counter or Counter()
        self.router = Router(
            epoch=bytes(ID_BYTES), slots=1, now_s=1.0, new_id=_new_ids(), limits=ServerLimits(),
            heartbeats=False,
        )  # fmt: skip
        self.client = ClientCore(name="counted", new_id=_new_ids(), now_s=self.now_s)
        self._calls = 0
        self._running: list[int] = []
        self._asked: list[ClientEffect] = []
        """The client's effects that nobody has carried out yet."""
        self._answers: list[Answer] = []
        self._said: list[RouterEffect] = []
        """The same of the router."""
        self._tell(PoolOpened, ())
        (spawn,) = [e for e in self._said if isinstance(e, Spawn)]
        self._worker_id = spawn.worker
        self.router.take(Spawned(spawn.worker, 1))
        self.worker = WorkerCore(spawn.incarnation, header_bytes=WireLimits().header_bytes)
        self._report(self._work(EnvironmentReady, 1, "counted", False))
        self._ask(Connected)
        self._move()

    def keep_in_flight(self, count: int) -> None:
        """Submit until so many are under way."""
        for _ in range(count):
            self._submit()
        self._move()

    def turn(self) -> None:
        """A batch of executions ends, is answered, received, and replaced."""
        done, self._running = self._running[:BATCH], self._running[BATCH:]
        effects: list[WorkerEffect] = []
        for number in done:
            effects += self._work(OutcomeMade, number, Status.RESULT, _OUTCOME, 0.001)
        self._report(effects)
        self._move()
        if self.router.behind:  # it has answered as many as it may at once
            self._tell(Resume)
            self._move()
        answers, self._answers = self._answers, []
        assert len(answers) == len(done)
        self.now_s += STEP_S
        for answer in answers:
            self._ask(OutcomeReceived, answer.call)
            self._submit()
        self._ask(ClientTick)
        self._move()

    def _submit(self) -> None:
        number, key = self._calls, None
        if self.keyed:
            name = KeyName(b"default", b"row %d" % number)
            key = CallKey(KeyAct.ASK, name, number.to_bytes(DIGEST_BYTES, "big"))
        self._ask(partial(CallSubmitted, key=key), number, _BODY)
        self._calls += 1

    def _move(self) -> None:
        """Carry messages until nothing is under way."""
        while self._asked or self._said:
            effects, self._asked = self._asked, []
            self._answers += [effect for effect in effects if isinstance(effect, Answer)]
            sent = [effect for effect in effects if isinstance(effect, ToServer)]
            for frames in self._batches("client", sent):
                self._tell(ClientMessage, _ROUTE, frames)
            said, self._said = self._said, []
            to_worker = [effect for effect in said if isinstance(effect, ToWorker)]
            for frames in self._batches("router", [effect[2:] for effect in to_worker]):
                runs = self._work(RouterMessage, (to_worker[0].incarnation, *frames))
                self._running += [run.number for run in runs if isinstance(run, Run)]
                self._report(runs)
            to_client = [effect[1:] for effect in said if isinstance(effect, ToClient)]
            for frames in self._batches("router", to_client):
                self._ask(ServerMessage, frames)

    def _report(self, effects: Sequence[WorkerEffect]) -> None:
        """Deliver the worker's messages to the router."""
        with self.counter.count("worker"):
            said = list(frames_to_router([e for e in effects if isinstance(e, ToRouter)]))
        for frames in said:
            self._tell(WorkerMessage, (self._worker_id, *frames))

    def _batches(self, machine: str, said: Sequence[ToSay]) -> list[tuple[SentBody, ...]]:
        with self.counter.count(machine):
            return list(in_batches(said))

    # To make an input is a part of its cost.

    def _ask(self, kind: Callable[..., ClientInput], *what: Any) -> None:
        with self.counter.count("client"):
            self._asked += self.client.take(kind(*what, self.now_s))

    def _work(self, kind: Callable[..., WorkerInput], *what: Any) -> list[WorkerEffect]:
        with self.counter.count("worker"):
            return self.worker.take(kind(*what))

    def _tell(self, kind: Callable[..., RouterInput], *what: Any) -> None:
        with self.counter.count("router"):
            self._said += self.router.take(kind(*what, self.now_s))


def _new_ids() -> Callable[[], bytes]:
    """Ids that are all different, and the same in every run."""
    return map(partial(int.to_bytes, length=ID_BYTES, byteorder="big"), count(1)).__next__


# -- counts -------------------------------------------------------------------------------


def bytecodes(in_flight: int = 64, *, done: int = 0, keyed: bool = False) -> dict[str, float]:
    """Bytecodes for each request, by machine, with so many in flight and so many done before in
    the session."""
    counter = Counter()
    machines = Joined(counter, keyed=keyed)
    machines.keep_in_flight(in_flight)
    for _ in range(max(4, done // BATCH)):
        machines.turn()
    counter.on = True
    collects = gc.isenabled()
    gc.disable()  # what others have it call is no cost of a request, and comes at any time
    try:
        machines.turn()  # since 3.12 a function is prepared when it is first traced
        counter.counts = dict.fromkeys(MACHINES, 0)
        for _ in range(SAMPLE // BATCH):
            machines.turn()
    finally:
        if collects:
            gc.enable()
    return {name: total / SAMPLE for name, total in counter.counts.items()}


# -- expectations -------------------------------------------------------------------------


def counted(*, grown: bool = True) -> dict[str, Any]:
    """All counts for each request, what was expected, and what is too much.  ``grown``: with
    those of much in flight and long sessions, which take most of the time."""
    expected = json.loads(EXPECTED.read_text())
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    record: dict[str, Any] = {
        "python": version,
        **{
            name: bytecodes(**arguments)
            for name, arguments in COUNTS.items()
            if grown or not arguments.keys() - {"keyed"}
        },
        "tolerance": expected["tolerance"],
        "expected": expected["bytecodes"].get(version),
        "expected_keyed": expected["bytecodes_keyed"].get(version),
    }
    record["problems"] = problems(record)
    return record


def problems(record: dict[str, Any]) -> list[str]:
    """The costs that are higher than they may be."""
    rows = [
        (f"the {machine} executes {{:.0f}} bytecodes for a {what}, {{:.0f}} {beside}",
         record[name][machine], (record[other] or {}).get(machine))
        for name, other, what, beside in (
            ("bytecodes", "expected", "request", "expected"),
            ("bytecodes_keyed", "expected_keyed", "keyed request", "expected"),
            # Past the worker's capacity, a request waits: with 64 in flight none does.
            ("bytecodes_10000_in_flight", "bytecodes_1000_in_flight",
             "request with 10,000 in flight", "with 1,000"),
            ("bytecodes_after_20000", "bytecodes", "request after 20,000 requests", "before"),
            ("bytecodes_keyed_after_20000", "bytecodes_keyed",
             "request after 20,000 with keys", "before"),
        )
        if name in record
        for machine in MACHINES
    ]  # fmt: skip
    most = 1 + record["tolerance"]
    return [text.format(got, few) for text, got, few in rows if got and few and got > most * few]


def accept(record: dict[str, Any]) -> None:
    """Make these counts the expected ones."""
    expected = json.loads(EXPECTED.read_text())
    for counts in ("bytecodes", "bytecodes_keyed"):
        rounded = {name: round(total, 1) for name, total in record[counts].items()}
        expected[counts][record["python"]] = rounded
    EXPECTED.write_text(json.dumps(expected, indent=2, sort_keys=True) + "\n")


def table(record: dict[str, Any]) -> str:
    """The counts for people."""
    rows: list[tuple[str, ...]] = [("", *MACHINES)]
    for name in (*COUNTS, "expected", "expected_keyed"):
        counts = record.get(name) or {}
        rows.append((name, *(f"{counts[m]:.0f}" if m in counts else "-" for m in MACHINES)))
    return "\n".join(f"{row[0]:28}" + "".join(f"{cell:>9}" for cell in row[1:]) for row in rows)
