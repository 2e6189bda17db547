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

An event is ``[at_s, kind, actor, request, arguments]``, as the world gives it to its judge; of
the arguments those that are no plain data are tagged (:func:`to_plain`).  Two kinds are no judge's
to see: ``breaks`` is what others than judges have found, bounds of a router and exceptions, and
``rest`` the end of the run.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import zlib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import cbor2

from trio_envserve.core import journal, messages
from trio_envserve.core.errors import ErrorInfo
from trio_envserve.core.key_records import KeyAct
from trio_envserve.core.terms import RequestId, Status, Verdict
from trio_envserve.lab.mutants import MUTANTS, Patches
from trio_envserve.lab.simulation.actors import World
from trio_envserve.lab.simulation.judges import SimulationJudge
from trio_envserve.lab.simulation.plan import KeyUse
from trio_envserve.lab.simulation.target import Protocol

Event: TypeAlias = list[Any]
Trace: TypeAlias = dict[str, Any]

RUNS_A_FILE = 1_000
MUTANT_EACH = 5
"""Of so many runs one is of a mutant."""
SEEDS_APART = 1_000
"""The further runs of a mutant begin to look for a seed so far from each other."""


# -- arguments ----------------------------------------------------------------


def to_plain(value: Any) -> Any:
    """An argument as plain data: a value of a class as a list that begins with its tag."""
    match value:
        case RequestId():
            return ["request", *value]
        case Status():
            return ["status", int(value)]
        case ErrorInfo():
            return ["error", value.code, value.verdict.value, value.message]
        case KeyUse():
            return ["use", value.act.name, value.namespace, value.word, value.tag]
        case memoryview():
            return bytes(value)
        case list():
            return ["list", *map(to_plain, value)]
        case tuple() if type(value) in messages.KINDS:
            message: Any = value
            return ["message", messages.encode(message)]
        case tuple() if type(value) in journal.KINDS:
            record: Any = value
            return ["record", type(value).__name__, *journal.plain_of(record)[1:]]
        case tuple():
            return ["list", *map(to_plain, value)]
        case _:
            return value


def from_plain(plain: Any) -> Any:
    """The inverse of :func:`to_plain`; of sequences the kind is not kept."""
    if not isinstance(plain, list):
        return plain
    match plain:
        case ["request", session, sequence]:
            return RequestId(session, sequence)
        case ["status", number]:
            return Status(number)
        case ["error", code, verdict, text]:
            return ErrorInfo(code, Verdict(verdict), text)
        case ["use", act, *more]:
            return KeyUse(KeyAct[act], *more)
        case ["message", header]:
            return messages.decode(header, most_bytes=1 << 20)
        case ["record", name, *fields]:
            kinds = [kind.__name__ for kind in journal.KINDS]
            return journal.record_of([kinds.index(name), *fields])
        case [_, *items]:
            return [from_plain(each) for each in items]
        case _:
            raise ValueError(f"{plain!r} has no tag")


# -- recording ----------------------------------------------------------------


@contextlib.contextmanager
def recording() -> Iterator[list[Event]]:
    """While the block lasts, the events of simulated worlds are recorded."""
    patches, events = Patches(), list[Event]()

    @patches.around(World, "happened")
    def happened(before: Any, world: Any, kind: str, who: str, key: str = "", *what: Any) -> None:
        events.append([world.events.now_s, kind, who, key, [*map(to_plain, what)]])
        before(world, kind, who, key, *what)

    @patches.around(World, "breaks")
    def breaks(before: Any, world: Any, guarantee: str, text: str) -> None:
        events.append([world.events.now_s, "breaks", "", "", [guarantee, text]])
        before(world, guarantee, text)

    @patches.around(SimulationJudge, "rest")
    def rest(before: Any, judge: Any, at_s: float) -> Any:
        events.append([at_s, "rest", "", "", []])
        return before(judge, at_s)

    try:
        yield events
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
    target = Protocol(mutant=of.mutant)
    with recording() as events, target.applied():
        ran = target.run(of.seed)
    violations = [[each.guarantee, each.at_s, each.text, each.key] for each in ran.violations]
    return {
        "run": of.number, "seed": of.seed, "harsh": ran.plan.harsh, "mutant": of.mutant,
        **ran.plan.to_data(), "events": events,
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
