"""The table of everything broken on purpose, and which check finds it by which guarantee.

A *row* is one thing that is broken: a registered mutant (its name alone), or a patch that puts a
known failure back (``patch: ...``).  (Generated mutations of the core are tried by
:mod:`tests.mutation`.)  A *cell* is one check of a row: ``by`` is the guarantee that it broke,
``test`` if an assertion of a test saw it, ``clock`` if the check did not end, or empty if nothing
was found; ``tried`` counts runs (of ``explore``: states), ``seconds`` processor time.  A cell that
was not tried says why under ``untried``.

``python -m tests.oracles ledger`` tries the cells that ``tests/ledger.json`` lacks, a row at a
time, and writes the file after each row; so it may be stopped at any time and started again.
``--rows`` and ``--checks`` choose, ``--again`` tries chosen cells that are there, too.
``--compare OLD NEW`` says which rows lost their last finder or changed their guarantee.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fnmatch
import itertools
import json
import os
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tests.regressions.run import (
    PATCHES,
    apply,
    became_of,
    make_base,
    read_patch,
    run_tests,
)

if TYPE_CHECKING:
    from trio_envserve.lab.simulation.target import Protocol

STORED = Path(__file__).parent.parent / "ledger.json"
ROOT = Path(__file__).parent.parent.parent

Cell: TypeAlias = dict[str, Any]
Cells: TypeAlias = dict[str, Cell]
Ledger: TypeAlias = dict[str, Cells]

CELL_S = 600.0
"""Processor time after which a check is taken for one that never ends."""
MEMORY_BYTES = 6 << 30
CORE = "trio_envserve/core/"


# -- rows ---------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Row:
    """One thing that is broken on purpose."""

    name: str
    family: str
    """``simulator`` or ``leases`` for registered mutants; otherwise the word before the colon."""
    guarantees: tuple[str, ...] = ()
    """The guarantees by which it may be found; any if none is named."""
    tests: tuple[str, ...] = ()
    """The tests that must see it, by their path below ``tests``."""
    patch: Path | None = None

    def caught_by(self, guarantee: str) -> bool:
        """Whether a violation of this guarantee counts."""
        return not self.guarantees or guarantee in self.guarantees


SEEN_BY = {
    "an-outcome-overtakes-the-end-of-a-resource": (
        "core/test_scope_links.py::test_g13_outcome_that_overtakes_the_end_of_a_resource_is_seen",
    )
}
"""By mutant: the tests that are named for it."""


def registered_rows() -> Iterator[Row]:
    """The mutants of the simulator, those of hosts as a family of their own."""
    from tests.core.test_router_grouping_mutants import HISTORIES
    from trio_envserve.lab.mutants import LEASES, MUTANTS

    law = "core/test_router_grouping_mutants.py::test_the_law_catches[{}]"
    for mutant in MUTANTS:
        tests = (
            (law.format(mutant.name),) if mutant.name in HISTORIES else SEEN_BY.get(mutant.name, ())
        )
        family = "leases" if mutant in LEASES.mutants else "simulator"
        yield Row(mutant.name, family, mutant.guarantees, tests)


def patch_rows() -> Iterator[Row]:
    """The known failures."""
    for path in sorted(PATCHES.glob("*.patch")):
        yield Row(f"patch: {path.stem}", "patch", tests=read_patch(path).tests, patch=path)


def all_rows(pattern: str = "*") -> list[Row]:
    """The rows whose names match a pattern, in the order of the file."""
    rows = (*registered_rows(), *patch_rows())
    return [row for row in rows if fnmatch.fnmatchcase(row.name, pattern)]


# -- breaking -----------------------------------------------------------------


def broken(row: Row) -> AbstractContextManager[Any]:
    """While the block lasts, this process runs what is broken.  A patch is applied already: to
    the copy in which this process runs."""
    if row.family in ("simulator", "leases"):
        from trio_envserve.lab.mutants import find

        return find(row.name).applied()
    return contextlib.nullcontext()


# -- checks -------------------------------------------------------------------


class DidNotEndError(BaseException):
    """The time of a check is over; nothing that is checked catches it."""


Found: TypeAlias = tuple[str, int, dict[str, Any]]
"""The guarantee (empty if nothing was found), how much was tried, and further words."""


def _first(row: Row, guarantees: Iterable[str]) -> str:
    """The first guarantee that counts; empty if none does."""
    return next(filter(row.caught_by, guarantees), "")


FUZZ_RUNS = {"simulator": 1_200, "leases": 1_200, "patch": 120}
"""Most seeds of the simulator that are run for rows of a family."""


def fuzz(row: Row) -> Found:
    """The seed that has shown it last, and then seeds of the simulator as ``fuzz`` draws them; of
    mutants those that could show them."""
    from trio_envserve.lab.simulation.target import Protocol

    target = Protocol(mutant=row.name if row.family in REGISTERED else "")
    known = (seed for name, seed in seeds_that_show().items() if name == row.name)
    return _fuzzed(row, target, known)


def hosts(row: Row) -> Found:
    """The same with hosts."""
    from trio_envserve.lab.simulation.target import Protocol

    return _fuzzed(row, Protocol(hosts=True))


def _fuzzed(row: Row, target: Protocol, first: Iterable[int] = ()) -> Found:
    runs = 0
    for seed in itertools.chain(first, target.seeds(0)):
        runs += 1
        violations = target.run(seed).violations
        if by := _first(row, (each.guarantee for each in violations)):
            return by, runs, {"seed": seed}
        if runs >= FUZZ_RUNS[row.family]:
            break
    return "", runs, {}


SWEEP_SEEDS, SWEEP_WRITES = 12, 6
"""Number of seeds with keys, and most writes of each at which the server is killed."""


def every_write(row: Row) -> Found:
    """A crash at some of the writes of the first seeds with keys."""
    from trio_envserve.lab.simulation.target import crashes, keyed_seeds

    runs = 0
    for seed in keyed_seeds(SWEEP_SEEDS):
        for run in crashes(seed, most=SWEEP_WRITES):
            runs += 1
            if by := _first(row, (each.guarantee for each in run.violations)):
                return by, runs, {"seed": seed}
    return "", runs, {}


LARGEST = 2_000
"""States of the largest configuration that is explored for rows of which nobody has said in
which configuration they show."""


def explore(row: Row) -> Found:
    """The configurations that are said to show a mutant; for others all small ones."""
    from trio_envserve.lab.exploration.configurations import ALL, showing
    from trio_envserve.lab.exploration.search import explore as explored

    chosen = [showing(row.name)[0]] if row.family in REGISTERED else list(ALL)
    states = 0
    for configuration in chosen:
        most = None if row.family in REGISTERED else LARGEST
        search = explored(configuration, most_states=most)
        states += search.states
        if by := _first(row, [each.guarantee for each in search.violations]):
            return by, states, {"where": configuration.name}
    return "", states, {}


def conformance(row: Row) -> Found:
    """The case of the suite that is named for a mutant, against a real server or worker."""
    from tests.conformance.caught import CAUGHT

    case = (
        "test_mutants.py::test_a_served_mutant_does_not_conform"
        if row.name in CAUGHT
        else "test_workers.py::test_a_mutant_of_the_worker_does_not_conform"
    )
    passed, _ = _pytest([f"tests/conformance/{case}"], keyword=row.name)
    return "case" if passed else "", 1, {}


def test(row: Row) -> Found:
    """The tests that are named for a row: they pass if they see what is broken."""
    passed, count = _pytest([f"tests/{each}" for each in row.tests])
    return "test" if passed else "", count, {}


def _pytest(tests: Sequence[str], keyword: str = "") -> tuple[bool, int]:
    """Whether all of these pass, and how many there are; in a process of its own."""
    chosen = ["-m", "slow or not slow", "-p", "no:cacheprovider", "-p", "no:randomly", "-q"]
    if keyword:
        chosen += ["-k", keyword]
    command = [sys.executable, "-m", "pytest", *chosen, *tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    passed = re.search(r"(\d+) passed", done.stdout)
    return done.returncode == 0 and passed is not None, int(passed[1]) if passed else 0


CHECKS: dict[str, Callable[[Row], Found]] = {
    "fuzz": fuzz,
    "test": test,
    "every_write": every_write,
    "hosts": hosts,
    "explore": explore,
    "conformance": conformance,
}
"""Every check, the cheap ones first."""

REGISTERED = ("simulator", "leases")


def untried(row: Row, check: str) -> str:
    """The reason why a check is never tried on a row; empty if it is."""
    if row.patch is not None and check != "test" and CORE not in row.patch.read_text("utf-8"):
        return "no core is broken"
    match check:
        case "test" if not row.tests:
            return "no test is named for it"
        case "conformance":
            from tests.conformance.caught import CAUGHT, WORKERS_CAUGHT

            return "" if row.name in CAUGHT | WORKERS_CAUGHT else "no case is named for it"
        case "explore" if row.family in REGISTERED:
            from trio_envserve.lab.exploration.configurations import showing

            return "" if showing(row.name) else "no configuration is said to show it"
        case "fuzz" if row.family in REGISTERED:
            from trio_envserve.lab.mutants import NOT_BY_CHANCE

            return NOT_BY_CHANCE.get(row.name, "")
        case "every_write" if row.family == "leases":
            return "no host is simulated there"
        case "hosts" if row.family == "leases":
            return "fuzz has hosts for it"
        case "hosts" if row.family == "simulator":
            return "no host is broken"
    return ""


# -- one row in a process of its own ------------------------------------------


def run_cells(row: Row, checks: Sequence[str]) -> None:
    """Try some checks of a row in this process; prints a line of JSON for each."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGPROF, _did_not_end)
    for check in checks:
        began_s = _processor_s()
        signal.setitimer(signal.ITIMER_PROF, CELL_S)
        try:
            # What is named for a row breaks it by itself.
            around = contextlib.nullcontext() if check in BY_THEMSELVES else broken(row)
            with around:
                by, tried, more = CHECKS[check](row)
        except DidNotEndError:
            by, tried, more = "clock", 0, {}
        except Exception as error:  # whatever a broken core raises where nothing is judged
            by, tried, more = "CRASH", 0, {"says": repr(error)[:80]}
        signal.setitimer(signal.ITIMER_PROF, 0)
        seconds = round(_processor_s() - began_s, 2)
        print(json.dumps({check: {"by": by, "tried": tried, "seconds": seconds, **more}}))
        sys.stdout.flush()


BY_THEMSELVES = ("test", "conformance")


def _did_not_end(number: int, frame: object) -> None:
    raise DidNotEndError


def _processor_s() -> float:
    """Processor time of this process and of those that it has waited for."""
    mine, others = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return mine.ru_utime + mine.ru_stime + others.ru_utime + others.ru_stime


def tried(row: Row, checks: Sequence[str], base: Path) -> Cells:
    """The cells of a row, tried in a process of its own; of a patch, in a copy of the tree in
    ``base``."""
    if row.patch is None:
        return _in_process(row, checks, ROOT)
    with tempfile.TemporaryDirectory(prefix="ledger-") as name:
        directory = Path(name).resolve() / "copy"
        subprocess.run(["cp", "-r", base, directory], check=True)
        patch = read_patch(row.patch)
        if trouble := apply(patch, directory):
            return {check: {"untried": trouble} for check in checks}
        cells: Cells = {}
        if "test" in checks:
            before_s = time.monotonic()
            ended = run_tests(directory, patch.tests)
            hows = [became_of(ended, test) for test in patch.tests]
            seconds = round(time.monotonic() - before_s, 2)  # most of these tests wait
            by = "" if {*hows} - {"red"} else "test"
            cells["test"] = {"by": by, "tried": len(hows), "seconds": seconds}
            if not by:
                cells["test"]["says"] = "; ".join(hows)[:80]
        others = [check for check in checks if check != "test"]
        return cells | (_in_process(row, others, directory) if others else {})


def _in_process(row: Row, checks: Sequence[str], directory: Path) -> Cells:
    environ = {**os.environ, "PYTHONPATH": str(directory), "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "tests.oracles.ledger", row.name, *checks]
    done = subprocess.run(
        command, cwd=directory, env=environ, capture_output=True, text=True, check=False
    )
    cells: Cells = {}
    for line in done.stdout.splitlines():
        cells |= json.loads(line)
    for check in checks:
        if check not in cells:  # it could not be imported, or took all memory
            says = done.stderr.strip().rpartition("\n")[2][:80]
            cells[check] = {"by": "CRASH", "tried": 0, "seconds": 0.0, "says": says}
    return cells


# -- the file -----------------------------------------------------------------


def read(path: Path = STORED) -> Ledger:
    """The rows of a file; none if there is none."""
    rows: Ledger = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return rows


def seeds_that_show() -> dict[str, int]:
    """By row: the seed of the simulator that has shown it last."""
    return {
        name: cells["fuzz"]["seed"] for name, cells in read().items()
        if "seed" in cells.get("fuzz", {})
    }  # fmt: skip


def write(ledger: Ledger) -> None:
    """Write the file, a line for each row."""
    lines = (f"{json.dumps(name)}: {json.dumps(ledger[name])}" for name in sorted(ledger))
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


def finders(cells: Cells) -> dict[str, str]:
    """By check: the guarantee by which it found what is broken."""
    return {check: cell["by"] for check, cell in cells.items() if cell.get("by")}


def fill(rows: Sequence[Row], checks: Sequence[str], jobs: int, *, again: bool) -> None:
    """Try what the file lacks."""
    ledger = read()
    left: list[tuple[Row, list[str]]] = []
    for row in rows:
        cells = ledger.setdefault(row.name, {})
        wanted = []
        for check in checks:
            cell = cells.get(check, {})
            if reason := untried(row, check):
                cells[check] = {"untried": reason}
            elif again or not cell or "untried" in cell:
                wanted.append(check)
        if wanted:
            left.append((row, wanted))
    write(ledger)
    with tempfile.TemporaryDirectory(prefix="ledger-") as name, ThreadPoolExecutor(jobs) as pool:
        base = Path(name).resolve() / "base"
        if any(row.patch for row, _ in left):
            make_base(base)
        running = {pool.submit(tried, row, wanted, base): row for row, wanted in left if wanted}
        try:
            for done, future in enumerate(as_completed(running), 1):
                row, cells = running[future], future.result()
                ledger[row.name] |= cells
                write(ledger)
                found = ", ".join(f"{check} {by}" for check, by in finders(cells).items())
                print(f"{done}/{len(running)} {row.name}: {found or 'NOT FOUND'}", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


# -- comparison ---------------------------------------------------------------


def compare(old: Ledger, new: Ledger) -> tuple[list[str], list[str]]:
    """The losses of a newer ledger, and remarks on it, in words."""
    lost, remarks = [], []
    for name, cells in old.items():
        before, now = finders(cells), finders(new.get(name, {}))
        if not before:
            continue
        if not now:
            why = "lost its last finder" if name in new else "is gone"
            lost.append(f"{name}: {why}; it was found by {_told(before)}")
        elif _named(before) and _named(now) and not _named(before) & _named(now):
            lost.append(f"{name}: was found by {_told(before)}, and now by {_told(now)}")
    for what, ledger in (("before", old), ("now", new)):
        found = {name: cells for name, cells in ledger.items() if finders(cells)}
        quickest = [
            min(cell["seconds"] for cell in cells.values() if cell.get("by"))
            for cells in found.values()
        ]
        median_s = statistics.median(quickest) if quickest else 0.0
        remarks.append(
            f"{what}: {len(ledger)} rows, {len(found)} found; median {median_s:.2f} s by the "
            "quickest check"
        )
        for check in sorted({check for cells in ledger.values() for check in cells}):
            its = [cells[check] for cells in ledger.values() if cells.get(check, {}).get("by")]
            rows = sum("by" in cells.get(check, {}) for cells in ledger.values())
            seconds = statistics.median(cell["seconds"] for cell in its) if its else 0.0
            remarks.append(
                f"  {check}: found {len(its)} of {rows} tried, median {seconds:.2f} s to find"
            )
    return lost, remarks


def _named(found: dict[str, str]) -> set[str]:
    """The guarantees among what found a row: a test or a clock names none."""
    return {by for by in found.values() if re.fullmatch(r"G\d+", by)}


def _told(found: dict[str, str]) -> str:
    return ", ".join(f"{check} ({by})" for check, by in found.items())


# -- the command --------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "--rows", default="*", metavar="PATTERN", help="names of rows, as a shell matches them"
    )
    parser.add_argument(
        "--checks", nargs="+", default=[*CHECKS], choices=[*CHECKS], help="default: all"
    )
    parser.add_argument("--again", action="store_true", help="try chosen cells that are there, too")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument(
        "--compare", nargs=2, type=Path, metavar=("OLD", "NEW"),
        help="compare two files; 1 if a row lost its last finder or changed its guarantee",
    )  # fmt: skip


def main(given: argparse.Namespace) -> int:
    """The exit code: of a comparison, whether anything was lost."""
    if given.compare:
        lost, remarks = compare(*map(read, given.compare))
        print("\n".join([*lost, *remarks, f"{len(lost)} rows lost something"]))
        return int(bool(lost))
    os.nice(10)
    fill(all_rows(given.rows), given.checks, given.jobs, again=given.again)
    return 0


def _main_of_process(name: str, checks: Sequence[str]) -> None:
    """Try checks of one row: what the command starts."""
    (row,) = [each for each in all_rows() if each.name == name]
    run_cells(row, checks)


if __name__ == "__main__":
    _main_of_process(sys.argv[1], sys.argv[2:])
