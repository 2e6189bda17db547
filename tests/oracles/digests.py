"""Hashes of seeded runs and sizes of explored systems: equal as long as code only moves.

``digests.json`` holds, for blocks of 100 seeds, one hash over the digests of all runs, the first
four hexadecimal digits of each digest and the number of events of each run; so the first run that
differs is found without a second list.  The hash decides; the digits say where.  Of each mutant
it holds a hash over what judges find in a run that shows it, the one of the ledger: so a change of
a judge is seen there.  Of each explored configuration it holds the numbers of states and
transitions, and the depth.

``python -m tests.oracles digests --check`` compares, without ``--check`` the file is written.
``--only PART`` (``simulator``, ``hosted``, ``mutants``, ``explored`` or the name of a
configuration) takes a part of either; what is not chosen stays as it is in the file.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from tests.oracles import ledger
from trio_envserve.lab.exploration.configurations import ALL, configuration
from trio_envserve.lab.exploration.search import explore
from trio_envserve.lab.mutants import MUTANTS
from trio_envserve.lab.simulation.plan import is_harsh
from trio_envserve.lab.simulation.simulator import run
from trio_envserve.lab.simulation.target import Protocol

STORED = Path(__file__).with_name("digests.json")
BLOCK = 100
"""Number of seeds of a block."""
DIGITS = 4
"""Number of hexadecimal digits of a digest that are kept of each run."""
SEEDS = {"simulator": 1_500, "hosted": 100}
"""Number of seeds of the simulator that are run, from 0 on: without hosts, and with them."""

SEEDS_OF_MUTANTS = ledger.seeds_that_show()

Stored = dict[str, Any]


class Ran(NamedTuple):
    """What is kept of one run."""

    digest: str
    events: int


def simulated(seed: int) -> Ran:
    """One seed of the simulator, as ``fuzz`` draws it."""
    ran = run(seed, harsh=is_harsh(seed))
    return Ran(ran.digest, ran.events)


def hosted(seed: int) -> Ran:
    """One seed of the simulator with hosts, as ``fuzz --hosts`` draws it."""
    ran = Protocol(hosts=True).run(seed)
    return Ran(ran.digest, ran.events)


WORLDS: dict[str, Callable[[int], Ran]] = {"simulator": simulated, "hosted": hosted}


def block_of(ran: Sequence[Ran]) -> Stored:
    """The stored form of consecutive runs."""
    return {
        "hash": blake2b("".join(each.digest for each in ran).encode(), digest_size=16).hexdigest(),
        "digits": "".join(each.digest[:DIGITS] for each in ran),
        "events": [each.events for each in ran],
    }


def of_mutant(name: str) -> Stored:
    """A run of a mutant, which shows it if any is known to, and what judges find there.

    Of a crash only its place counts: its text has paths and line numbers.
    """
    target, seed = Protocol(mutant=name), SEEDS_OF_MUTANTS.get(name, 0)
    with target.applied():
        ran = target.run(seed)
    found = [
        (each.guarantee, each.at_s, each.key, "" if each.guarantee == "CRASH" else each.text)
        for each in ran.violations
    ]
    return {
        "seed": seed, "events": ran.events,
        "found": blake2b(json.dumps(found).encode(), digest_size=16).hexdigest(),
        "violated": sorted({each.guarantee for each in ran.violations}),
    }  # fmt: skip


def explored(name: str) -> Stored:
    """The sizes of one configuration, explored to its end."""
    figures = explore(configuration(name))
    return {
        "states": figures.states, "transitions": figures.transitions, "depth": figures.depth,
        "violated": sorted({each.guarantee for each in figures.violations}),
        "seconds": round(figures.seconds),
    }  # fmt: skip


# -- comparison ---------------------------------------------------------------


def first_that_differs(first: int, stored: Stored, found: Stored) -> str:
    """The first seed of those found that differs from a stored block, in words; empty if none
    does."""
    pairs = zip(stored["events"], found["events"], strict=False)
    for at, (before, now) in enumerate(pairs):
        digits = slice(at * DIGITS, (at + 1) * DIGITS)
        if before != now or stored["digits"][digits] != found["digits"][digits]:
            return f"seed {first + at} is the first that differs: {before} events, now {now}"
    return ""


def block_difference(first: int, stored: Stored, found: Stored) -> str:
    """The first seed of a block that differs, in words; empty if none does."""
    if stored["hash"] == found["hash"]:
        return ""
    hidden = f"a seed from {first} to {first + len(found['events']) - 1} differs"
    return first_that_differs(first, stored, found) or hidden


def sizes_difference(stored: Stored, found: Stored) -> str:
    """The sizes that differ, in words; empty if none does.  Seconds may differ."""
    return ", ".join(
        f"{name} {stored[name]}, now {found[name]}"
        for name in found
        if name != "seconds" and stored[name] != found[name]
    )


class Difference(NamedTuple):
    """The comparison of one block, or of one configuration."""

    what: str
    text: str
    """The difference in words; empty if there is none."""


def read() -> Stored:
    """The file; parts that it lacks are empty."""
    stored: Stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    return {part: stored.get(part, {}) for part in (*WORLDS, "mutants", "explored")}


def write(stored: Stored) -> None:
    """Write the file with a line for each block and each configuration."""
    parts = []
    for part, rows in stored.items():
        lines = (f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
        parts.append(f'"{part}": {{\n' + ",\n".join(lines) + "\n}")
    STORED.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def blocks(world: str, count: int, pool: ProcessPoolExecutor) -> Iterator[tuple[int, Stored]]:
    """The first seed of each block, and the block."""
    ran = pool.map(WORLDS[world], range(count), chunksize=10)
    for first in range(0, count, BLOCK):
        yield first, block_of([next(ran) for _ in range(BLOCK)])


def configurations(only: Sequence[str]) -> list[str]:
    """The names of those that are chosen."""
    return [each.name for each in ALL if not only or "explored" in only or each.name in only]


def compared(only: Sequence[str], jobs: int, found: Stored) -> Iterator[Difference]:
    """Compare what is chosen with the file, and put what was found in its place in ``found``."""
    stored = read()
    with ProcessPoolExecutor(jobs) as pool:
        for world, count in SEEDS.items():
            if only and world not in only:
                continue
            for first, block in blocks(world, count, pool):
                found[world][str(first)] = block
                before = stored[world].get(str(first))
                text = block_difference(first, before, block) if before else "not stored"
                yield Difference(f"{world}, seeds {first} to {first + BLOCK - 1}", text)
        shown = [each.name for each in MUTANTS if not only or "mutants" in only]
        for name, ran in zip(shown, pool.map(of_mutant, shown), strict=True):
            found["mutants"][name] = ran
            before = stored["mutants"].get(name)
            text = sizes_difference(before, ran) if before else "not stored"
            yield Difference(f"mutant {name}", text)
        names = configurations(only)
        for name, sizes in zip(names, pool.map(explored, names), strict=True):
            found["explored"][name] = sizes
            before = stored["explored"].get(name)
            text = sizes_difference(before, sizes) if before else "not stored"
            yield Difference(f"configuration {name}", text)


# -- the command --------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "--check", action="store_true", help="compare, write nothing; 1 if anything differs"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="PART",
        help="simulator, hosted, mutants, explored, or a configuration; may be repeated; default: "
        "all",
    )  # fmt: skip
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")


def main(given: argparse.Namespace) -> int:
    """The exit code: whether anything differs that should not."""
    names = {*WORLDS, "mutants", "explored", *(each.name for each in ALL)}
    if unknown := set(given.only) - names:
        raise SystemExit(f"there is no {', '.join(sorted(unknown))}")
    found = read()
    differ = told = 0
    for each in compared(given.only, given.jobs, found):
        told += 1
        differ += bool(each.text)
        print(f"{each.what}: {each.text or 'as stored'}", flush=True)
        if not given.check:
            write(found)
    print(f"{told} blocks and configurations, {differ} differ from {STORED.name}")
    return int(given.check and differ > 0)
