"""What one request costs the pure machines, counted instead of timed.

Theory of operation
-------------------
Seconds on a shared machine are noise; counts are not.  A client, a router and
a worker of the pure core are joined in memory, with time and ids as arguments,
and while a steady number of requests is in flight, the Python instructions that
each machine executes for a request are counted (bytecodes, by a trace function).
The same inputs always give the same counts, on one minor version of Python.

Bytecodes do not see what C code does (the CBOR codec, dictionaries).  Where
valgrind is installed, the router's machine instructions are counted, too: its
recorded inputs are replayed by a process under callgrind, once few and once
many of them, and the difference is what the further ones cost.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, final

from ...core.client import ClientCore
from ...core.client_effects import Answer, ClientEffect, ToServer
from ...core.client_inputs import (
    CallKey,
    CallSubmitted,
    ClientInput,
    ClientTick,
    Connected,
    OutcomeReceived,
    ServerMessage,
)
from ...core.key_records import KeyAct, KeyName
from ...core.limits import ServerLimits, WireLimits
from ...core.router import Router
from ...core.router_effects import RouterEffect, Spawn, ToClient, ToWorker
from ...core.router_inputs import (
    ClientMessage,
    PoolOpened,
    Resume,
    RouterInput,
    Spawned,
    WorkerMessage,
)
from ...core.terms import DIGEST_BYTES, ID_BYTES, Status
from ...core.worker import WorkerCore
from ...core.worker_effects import Run, ToRouter, WorkerEffect
from ...core.worker_inputs import EnvironmentReady, OutcomeMade, RouterMessage, WorkerInput

EXPECTED = Path(__file__).with_name("counted.json")
"""The counts that hold, and by how much they may grow."""

BATCH = 16
"""Requests that travel together: what a busy socket hands out at once, about."""

SAMPLE = 320
"""Requests whose bytecodes are counted."""

LONG_SAMPLE = 640
"""Requests whose machine instructions are counted: enough for collections of garbage
to be a part of each."""

STEP_S = 0.006
MACHINES = ("router", "client", "worker")
_ROUTE = b"c" + bytes(16)
_BODY = bytes(300)
_OUTCOME = bytes(260)


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

    def __init__(self, counter: Counter, *, keyed: bool = False) -> None:
        self.keyed = keyed
        """Whether each request has a key of its own."""
        self.now_s = 1.0
        self.counter = counter
        self.inputs: list[RouterInput] = []
        """Everything that went into the router, to be replayed."""
        self.router = new_router()
        self.client = ClientCore(name="counted", new_id=_Ids(), now_s=self.now_s)
        self._calls = 0
        self._running: list[int] = []
        self._asked: list[ClientEffect] = []
        """What the client said, and nobody has carried out yet."""
        self._answers: list[Answer] = []
        self._said: list[RouterEffect] = []
        """The same of the router."""
        self._tell(PoolOpened, ())
        (spawn,) = [e for e in self._said if isinstance(e, Spawn)]
        self._worker_id = spawn.worker
        self.inputs.append(Spawned(spawn.worker, 1))
        self.router.take(self.inputs[-1])
        header_bytes = WireLimits().header_bytes
        self.worker = WorkerCore(spawn.incarnation, header_bytes=header_bytes)
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
        while True:
            effects, self._asked = self._asked, []
            self._answers += [effect for effect in effects if isinstance(effect, Answer)]
            sent = [effect for effect in effects if isinstance(effect, ToServer)]
            for effect in sent:
                self._tell(ClientMessage, _ROUTE, effect.frames)
            said, self._said = self._said, []
            if not said and not sent:
                return
            self._deliver(said)

    def _deliver(self, said: list[Any]) -> None:
        """What the router said, to whom it is for."""
        for effect in said:
            if isinstance(effect, ToWorker):
                runs = self._work(RouterMessage, effect.frames)
                self._running += [run.number for run in runs if isinstance(run, Run)]
                self._report(runs)
            elif isinstance(effect, ToClient):
                self._ask(ServerMessage, effect.frames)

    def _report(self, effects: Sequence[Any]) -> None:
        """What the worker says, to the router."""
        for effect in effects:
            if isinstance(effect, ToRouter):
                self._tell(WorkerMessage, (self._worker_id, *effect.frames))

    def _ask(self, kind: Callable[..., ClientInput], *what: Any) -> None:
        with self.counter.count("client"):  # to make the input is a part of it
            self._asked += self.client.take(kind(*what, self.now_s))

    def _work(self, kind: Callable[..., WorkerInput], *what: Any) -> list[WorkerEffect]:
        with self.counter.count("worker"):
            return self.worker.take(kind(*what))

    def _tell(self, kind: Callable[..., RouterInput], *what: Any) -> None:
        with self.counter.count("router"):
            given = kind(*what, self.now_s)
            self._said += self.router.take(given)
        self.inputs.append(given)


class _Ids:
    """Ids that are all different, and the same in every run."""

    def __init__(self) -> None:
        self._last = 0

    def __call__(self) -> bytes:
        self._last += 1
        return self._last.to_bytes(ID_BYTES, "big")


def new_router() -> Router:
    """A router as the server makes it, with one worker."""
    return Router(
        epoch=bytes(ID_BYTES),
        slots=1,
        now_s=1.0,
        new_id=_Ids(),
        limits=ServerLimits(),
        heartbeats=False,
    )


def bytecodes(in_flight: int = 64, *, done: int = 0, keyed: bool = False) -> dict[str, float]:
    """Bytecodes for each request, by machine, with so many in flight and so many
    done before in the session."""
    counter = Counter()
    machines = Joined(counter, keyed=keyed)
    machines.keep_in_flight(in_flight)
    for _ in range(max(4, done // BATCH)):
        machines.turn()
    machines.inputs.clear()
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
    return {name: count / SAMPLE for name, count in counter.counts.items()}


# -- machine instructions -----------------------------------------------------


def instructions(in_flight: int = 64) -> float | None:
    """The router's machine instructions for each request, under callgrind; None
    where that is not installed or does not work."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        return None
    machines = Joined(Counter())
    machines.keep_in_flight(in_flight)
    for _ in range(SAMPLE // BATCH):
        machines.turn()  # until the interpreter has specialized what is run often
    few = len(machines.inputs)
    for _ in range(LONG_SAMPLE // BATCH):
        machines.turn()
    with tempfile.TemporaryDirectory(prefix="trio-envserve-bench-") as folder:
        inputs = Path(folder) / "inputs"
        inputs.write_bytes(pickle.dumps(machines.inputs))
        less = _callgrind(valgrind, inputs, few)
        more = _callgrind(valgrind, inputs, len(machines.inputs))
    return None if less is None or more is None else (more - less) / LONG_SAMPLE


def _callgrind(valgrind: str, inputs: Path, count: int) -> int | None:
    command = [
        valgrind, "--tool=callgrind", f"--callgrind-out-file={inputs}.out",
        sys.executable, "-m", "trio_envserve.lab.bench.counted", str(inputs), str(count),
    ]  # fmt: skip
    environ = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, capture_output=True, env=environ, check=False)
    if done.returncode:
        return None
    for line in Path(f"{inputs}.out").read_text().splitlines():
        if line.startswith(("summary:", "totals:")):
            return int(line.split()[1])
    return None


def replay(inputs: Path, count: int) -> Router:
    """Give the first ``count`` recorded inputs to a new router; returns it."""
    recorded = pickle.loads(inputs.read_bytes())  # made by this very module, a moment ago
    router = new_router()  # which draws the same ids again
    gc.collect()
    gc.freeze()  # the recording itself is no part of a server
    for given in recorded[:count]:
        router.take(type(given)(*given))  # to make the input is a part of it
    return router


# -- expectations -------------------------------------------------------------


def platform_key() -> str:
    """What machine instructions depend on, apart from this project."""
    import importlib.metadata

    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{python} {platform.machine()}, cbor2 {importlib.metadata.version('cbor2')}"


def counted(*, with_instructions: bool = True) -> dict[str, Any]:
    """All counts for each request, what was expected, and what is too much."""
    expected = json.loads(EXPECTED.read_text())
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    found = bytecodes()
    record: dict[str, Any] = {
        "python": version,
        "bytecodes": found,
        "bytecodes_1000_in_flight": bytecodes(1000),
        "bytecodes_10000_in_flight": bytecodes(10_000),
        "bytecodes_after_20000": bytecodes(done=20_000),
        "bytecodes_keyed": bytecodes(keyed=True),
        "bytecodes_keyed_after_20000": bytecodes(done=20_000, keyed=True),
        "instructions": instructions() if with_instructions else None,
        "instructions_of": platform_key(),
        "tolerance": expected["tolerance"],
        "expected": expected["bytecodes"].get(version),
        "expected_keyed": expected["bytecodes_keyed"].get(version),
        "expected_instructions": expected["instructions"].get(platform_key()),
    }
    record["problems"] = problems(record)
    return record


def problems(record: dict[str, Any]) -> list[str]:
    """What costs more than it may."""
    most = 1 + record["tolerance"]
    found = []
    for counts, wanted, kind in (
        ("bytecodes", "expected", "request"),
        ("bytecodes_keyed", "expected_keyed", "keyed request"),
    ):
        for machine, expected in (record[wanted] or {}).items():
            if record[counts][machine] > most * expected:
                found.append(
                    f"the {machine} executes {record[counts][machine]:.0f} bytecodes for a "
                    f"{kind}, {expected:.0f} expected"
                )
    for name, what, other, beside in (
        # Past the worker's capacity, a request waits: with 64 in flight none does.
        ("bytecodes_10000_in_flight", "with 10,000 in flight", "bytecodes_1000_in_flight",
         "with 1,000"),
        ("bytecodes_after_20000", "after 20,000 requests", "bytecodes", "before"),
        ("bytecodes_keyed_after_20000", "after 20,000 with keys", "bytecodes_keyed", "before"),
    ):  # fmt: skip
        for machine in MACHINES:
            got, few = record[name][machine], record[other][machine]
            if got > most * few:
                found.append(
                    f"the {machine} executes {got:.0f} bytecodes for a request {what}, "
                    f"{few:.0f} {beside}"
                )
    expected, executed = record["expected_instructions"], record["instructions"]
    if expected and executed and executed > most * expected:
        found.append(
            f"the router executes {executed:.0f} instructions for a request, "
            f"{expected:.0f} expected"
        )
    return found


def accept(record: dict[str, Any]) -> None:
    """Make these counts the expected ones."""
    expected = json.loads(EXPECTED.read_text())
    for counts in ("bytecodes", "bytecodes_keyed"):
        rounded = {name: round(count, 1) for name, count in record[counts].items()}
        expected[counts][record["python"]] = rounded
    if record["instructions"]:
        expected["instructions"][record["instructions_of"]] = round(record["instructions"])
    EXPECTED.write_text(json.dumps(expected, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    replay(Path(sys.argv[1]), int(sys.argv[2]))
