"""Stored traces: all that the judges of the simulator see, as plain data, with what they found.

``python -m tests.oracles traces --runs N --out DIR`` writes files of 1,000 runs; of five runs one
is of a mutant, by turns.  Files that are there stay, so it may be stopped and goes on.  The same
commit makes the same traces again; they are kept outside of the repository.

A file is a sequence of CBOR byte strings, one for each run: the zlib form of a CBOR map of

``run``, ``seed``, ``harsh``, ``mutant``
    number of the run, its seed, whether its links are harsh, and the name of the mutant or ``""``
``plan``
    the plan as :mod:`trio_envserve.lab.simulation.plan` writes it
``events``
    ``[at_s, name, *arguments]``, in order, as below
``violations``
    ``[guarantee, at_s, text, key]`` of each that the judges of that commit found

Events carry the calls that the world makes to its judge, by the names of :data:`EVENTS`:
processes by their names, messages as they are encoded on the wire, executions by their number in
the trace (from 0).  Two kinds tell what a judge sees of processes without a call: ``is`` gives a
process and those of its facts that have changed (:func:`facts_of`), ``stops`` the execution whose
worker has cancelled it.  ``violation`` is what others than judges have found: bounds of a router,
and exceptions.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import cbor2

from trio_envserve.core import journal, messages
from trio_envserve.core.errors import ErrorInfo
from trio_envserve.core.key_records import KeyAct
from trio_envserve.core.terms import RequestId, Status, Verdict
from trio_envserve.lab.mutants import MUTANTS, Patches
from trio_envserve.lab.simulation import simulator
from trio_envserve.lab.simulation.actor_server import SimServer
from trio_envserve.lab.simulation.actor_worker import SimWorker
from trio_envserve.lab.simulation.judge import Judge
from trio_envserve.lab.simulation.judge_records import Call, Execution
from trio_envserve.lab.simulation.plan import KeyUse, Plan, is_harsh
from trio_envserve.lab.simulation.target import Protocol
from trio_envserve.retrylab.world import Process

Event: TypeAlias = list[Any]
Trace: TypeAlias = dict[str, Any]

RUNS_A_FILE = 1_000
MUTANT_EACH = 5
"""Of so many runs one is of a mutant."""
SEEDS_APART = 1_000
"""The further runs of a mutant begin to look for a seed so far from each other."""


# -- arguments ----------------------------------------------------------------


def call_to_plain(call: Call) -> dict[str, Any]:
    """A call as it is when it is asked."""
    use = call.use
    return {
        "key": call.key, "client": call.client, "consent": call.consent, "most": call.most,
        "limit_s": call.limit_s, "asked_s": call.asked_s, "input": call.input,
        "use": use and [use.act.name, use.namespace, use.word, use.tag],
    }  # fmt: skip


def call_from_plain(plain: dict[str, Any]) -> Call:
    """The call again."""
    use = plain["use"]
    return Call(**{**plain, "use": use and KeyUse(KeyAct[use[0]], *use[1:])})


def records_to_plain(records: Sequence[journal.Record]) -> list[Any]:
    """Records of a journal: the name of each kind, and its fields."""
    return [[type(each).__name__, *journal.plain_of(each)[1:]] for each in records]


def records_from_plain(plain: list[Any]) -> list[journal.Record]:
    """The records again."""
    kinds = [kind.__name__ for kind in journal.KINDS]
    return [journal.record_of([kinds.index(name), *fields]) for name, *fields in plain]


class Kind(NamedTuple):
    """A kind of argument: to plain data and back."""

    to_plain: Callable[[Any], Any]
    from_plain: Callable[[Any], Any]


PLAIN = Kind(lambda value: value, lambda plain: plain)
LINES = Kind(list, list)
MESSAGE = Kind(messages.encode, partial(messages.decode, most_bytes=1 << 20))
BODY = Kind(lambda body: None if body is None else bytes(body), lambda plain: plain)
REQUEST = Kind(list, lambda plain: RequestId(*plain))
STATUS = Kind(int, Status)
ERROR = Kind(
    lambda info: [info.code, info.verdict.value, info.message],
    lambda plain: ErrorInfo(plain[0], Verdict(plain[1]), plain[2]),
)
CALL = Kind(call_to_plain, call_from_plain)
RECORDS = Kind(records_to_plain, records_from_plain)
PROCESS = Kind(lambda process: process.name, lambda plain: plain)
EXECUTION = Kind(lambda execution: execution, lambda plain: plain)
"""These two are translated further by the recorder, and by whoever replays."""

EVENTS: dict[str, tuple[Kind, ...]] = {
    # Callers.
    "asked": (CALL,),
    "cancelled": (PLAIN,),
    "received": (PLAIN,),
    "answered": (PLAIN, STATUS, PLAIN),
    "failed": (PLAIN, ERROR),
    # The environment's log.
    "started": (PLAIN, PROCESS, PROCESS, REQUEST, PLAIN),
    "ended": (EXECUTION, STATUS, PLAIN),
    # The wires.
    "server_heard": (PROCESS, PLAIN, MESSAGE, BODY),
    "server_has_dealt": (),
    "server_told_client": (PROCESS, PLAIN, MESSAGE, BODY),
    "server_told_nobody": (MESSAGE, BODY),
    "client_heard": (PROCESS, MESSAGE),
    "statement_sent": (PROCESS, MESSAGE, BODY),
    "worker_heard": (PROCESS, MESSAGE),
    "outcome_arrived": (PROCESS, MESSAGE),
    # What servers do.
    "spawned": (PROCESS,),
    "kill_sent": (PROCESS, PROCESS, PLAIN),
    "declared_lost": (PROCESS,),
    "pool_seen": (PROCESS,),
    "closing_began": (PROCESS,),
    "closing_seen": (PROCESS,),
    "closed": (PROCESS,),
    "keys.work.dealt": (PROCESS,),
    # Disks.
    "journal.written": (PROCESS, RECORDS),
    "journal.saved": (RECORDS,),
    "journal.crashed": (PROCESS, RECORDS),
    "journal.read": (PROCESS, PLAIN),
    "journal.damaged": (PLAIN,),
    # What is noted without a method: workers that leave, servers that are broken for good,
    # clients that are gone, and which call a request is.
    "leaving.add": (PROCESS,),
    "broken.add": (PROCESS,),
    "gone_clients": (PLAIN,),
    "keys.calls": (REQUEST, PLAIN),
    # The end.
    "violation": (PLAIN, PLAIN, PLAIN),
    "end": (LINES,),
}
"""The kinds of arguments of each event, by the name of what is called."""


# -- processes ----------------------------------------------------------------


def facts_of(process: Process) -> dict[str, Any]:
    """What a judge may look at: when a process died, how long and how often it was held up, when
    it was last continued, and since when it is stopped; of a worker further when it was set up,
    whether it was reaped and whether it speaks junk; of a server whether it has the lock, and
    the names of its workers."""
    facts: dict[str, Any] = {
        "died_s": process.died_s,
        "held_s": process.held_s,
        "held_times": process.held_times,
        "continued_s": process._continued_s if process._continued_s > -math.inf else None,
        "stopped_s": process._holds.get("stopped"),
    }
    if isinstance(process, SimWorker):
        facts |= {
            "server": process.server.name, "slot": process.slot, "set_up_s": process.set_up_s,
            "reaped": process.reaped, "junk": bool(process.junk),
        }  # fmt: skip
    elif isinstance(process, SimServer):
        facts |= {
            "locked": process.locked,
            "workers": [each.name for each in process.workers.values()],
        }
    return facts


# -- recording ----------------------------------------------------------------


class Recorder:
    """The events of one run."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.events: list[Event] = []
        self._clock = clock
        self._inside = False
        self._known: dict[Process, dict[str, Any]] = {}
        self._executions: dict[Execution, int] = {}
        self._uncancelled: list[Execution] = []

    def wrap(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """What is called in the place of a judge's method: of nested calls the first is noted."""
        kinds = EVENTS[name]

        def called(*args: Any) -> Any:
            if self._inside:
                return call(*args)
            self.note(name, kinds, args)
            self._inside = True
            try:
                made = call(*args)
            finally:
                self._inside = False
            if isinstance(made, Execution):
                self._executions[made] = len(self._executions)
                self._uncancelled.append(made)
            return made

        return called

    def note(self, name: str, kinds: Sequence[Kind], args: Sequence[Any]) -> None:
        """One event, after all that has changed before it."""
        at_s = self._clock()
        for kind, arg in zip(kinds, args, strict=False):
            if kind is PROCESS:
                self._known.setdefault(arg, {})
        self._look(at_s)
        plain = [
            self._executions[arg] if kind is EXECUTION else kind.to_plain(arg)
            for kind, arg in zip(kinds, args, strict=False)
        ]
        self.events.append([at_s, name, *plain])

    def _look(self, at_s: float) -> None:
        """Note what has changed of the processes and executions."""
        for server in [each for each in self._known if isinstance(each, SimServer)]:
            if len(self._known[server].get("workers", ())) != len(server.workers):
                for worker in server.workers.values():
                    self._known.setdefault(worker, {})
        for process, known in self._known.items():
            if not isinstance(process, SimServer | SimWorker):
                continue  # of a client only the name is looked at
            if known.get("reaped") and known.get("died_s") is not None:
                continue  # nothing of it can change any more
            facts = facts_of(process)
            if facts != known:
                changed = {name: each for name, each in facts.items() if known.get(name) != each}
                self._known[process] = facts
                self.events.append([at_s, "is", process.name, changed])
        for execution in [each for each in self._uncancelled if each.cancelled]:
            self._uncancelled.remove(execution)
            self.events.append([at_s, "stops", self._executions[execution]])


class NotedSet(set[Any]):
    """A set of which each addition is an event."""

    def __init__(self, add: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        super().__init__()
        self.add = add(super().add)  # type: ignore[method-assign]  # noted, too


class NotedDict(dict[Any, Any]):
    """A dict of which each assignment is an event."""

    def __init__(self, noted: Callable[..., object]) -> None:
        super().__init__()
        self._noted = noted

    def __setitem__(self, name: Any, value: Any) -> None:
        self._noted(name, value)
        super().__setitem__(name, value)

    def setdefault(self, name: Any, default: Any = None) -> Any:
        """As ever; an event if there was nothing."""
        if name not in self:
            self[name] = default
        return self[name]


class RecordedJudge(Judge):
    """Today's judge, with a recorder of what it sees."""

    made: RecordedJudge
    """The one that was made last."""

    def __init__(
        self, clock: Callable[[], float], note: Callable[[str, str], None], plan: Plan
    ) -> None:
        super().__init__(clock, note, plan)
        RecordedJudge.made = self
        self.recorder = recorder = Recorder(clock)
        for name in EVENTS:
            if name in ("gone_clients", "keys.calls"):
                continue
            *way, last = name.split(".")
            if last == "add":
                setattr(self, way[0], NotedSet(partial(recorder.wrap, name)))
                continue
            part: Any = self
            for each in way:
                part = getattr(part, each)
            setattr(part, last, recorder.wrap(name, getattr(part, last)))
        gone = recorder.wrap("gone_clients", lambda name: None)
        self.gone_clients = NotedDict(lambda name, at_s: gone(name))
        self.keys.calls = NotedDict(recorder.wrap("keys.calls", lambda request, key: None))


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """While the block lasts, simulated worlds have recorded judges."""
    patches = Patches()
    patches.attribute(simulator, "Judge", RecordedJudge)
    try:
        yield
    finally:
        patches.undo()


class Drawn(NamedTuple):
    """One run to record."""

    number: int
    seed: int
    mutant: str


def drawn(number: int) -> Drawn:
    """The run of this number: seeds in order, and mutants by turns."""
    fives, rest = divmod(number, MUTANT_EACH)
    if rest != MUTANT_EACH - 1:
        return Drawn(number, fives * (MUTANT_EACH - 1) + rest, "")
    turn, index = divmod(fives, len(MUTANTS))
    mutant = MUTANTS[index]
    return Drawn(number, next(Protocol(mutant=mutant.name).seeds(turn * SEEDS_APART)), mutant.name)


def record(of: Drawn) -> Trace:
    """Run it, and return its trace."""
    harsh = is_harsh(of.seed)
    mutant = next((each for each in MUTANTS if each.name == of.mutant), None)
    with recording(), mutant.applied() if mutant else contextlib.nullcontext():
        ran = simulator.run(of.seed, harsh=harsh)
    recorder = RecordedJudge.made.recorder
    violations = [[each.guarantee, each.at_s, each.text, each.key] for each in ran.violations]
    return {
        "run": of.number, "seed": of.seed, "harsh": harsh, "mutant": of.mutant,
        **ran.plan.to_data(), "events": recorder.events,
        "violations": violations,
    }  # fmt: skip


# -- files --------------------------------------------------------------------


def path_of(directory: Path, first: int) -> Path:
    """The file of the runs from this number on."""
    return directory / f"{first:06}.traces"


def write_file(directory: Path, first: int, count: int) -> tuple[int, int]:
    """Write the traces of some runs; returns how many have violations, and the size in bytes."""
    path = path_of(directory, first)
    part = path.with_suffix(".part")
    broken = 0
    with part.open("wb") as file:
        for number in range(first, first + count):
            trace = record(drawn(number))
            broken += bool(trace["violations"])
            cbor2.dump(zlib.compress(cbor2.dumps(trace), 9), file)
    part.rename(path)
    return broken, path.stat().st_size


def read_file(path: Path) -> Iterator[Trace]:
    """The traces in a file."""
    with path.open("rb") as file:
        while file.peek(1):
            yield cbor2.loads(zlib.decompress(cbor2.load(file)))


def read_directory(directory: Path) -> Iterator[Trace]:
    """The traces in all files of a directory."""
    for path in sorted(directory.glob("*.traces")):
        yield from read_file(path)


# -- the command --------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("--runs", type=int, required=True, help="how many, from run 0 on")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")


def main(given: argparse.Namespace) -> int:
    """The exit code: 0."""
    given.out.mkdir(parents=True, exist_ok=True)
    size = min(RUNS_A_FILE, -(-given.runs // given.jobs))
    firsts = [
        first for first in range(0, given.runs, size) if not path_of(given.out, first).exists()
    ]
    counts = [min(size, given.runs - first) for first in firsts]
    with ProcessPoolExecutor(given.jobs) as pool:
        written = pool.map(write_file, itertools.repeat(given.out), firsts, counts)
        for first, count, (broken, bytes_) in zip(firsts, counts, written, strict=True):
            print(
                f"runs {first} to {first + count - 1}: {broken} with a violation, "
                f"{bytes_ / 1e6:.1f} MB",
                flush=True,
            )
    return 0
