"""The verb ``explore``: every interleaving of a small system.

:mod:`trio_envserve.lab.exploration` explores; here are the options, the progress, and
the output.
"""

from __future__ import annotations

import contextlib
from typing import Any

import click
import trio

from ..core.key_records import GenerationState
from ..core.key_table import KeyInput
from ..lab.exploration.configurations import (
    ALL,
    AnyConfiguration,
    any_configuration,
    showing,
)
from ..lab.exploration.mutants import find
from ..lab.exploration.search import Figures, Search
from ..lab.exploration.story import tell
from ..lab.simulation.coverage import name_of
from .common import Result, Stop, exit_codes, put, run_verb, say
from .options import json_option
from .render import PLAIN_EVERY_S, Table, show_tables

FAILED = 1
"""Exit code when a guarantee broke, or the mutant was not caught."""

_EPILOG = exit_codes(
    "all states were visited and no guarantee broke; with --mutant: it was caught",
    "a guarantee broke; with --mutant: it was not caught",
    so_far="figures",
)

_ROWS = (
    ("states", "distinct states; exchanged clients and workers count once"),
    ("transitions", "actions that were tried, each in each state where it can happen"),
    ("depth", "actions from the first state to the farthest ones"),
    ("quiet_states", "states in which nothing more happens by itself, each run to its rest"),
    ("exhausted", "whether every state was visited"),
    ("transitions_per_second", "transitions a second"),
    ("peak_mib", "most memory used, in MiB"),
    ("seconds", "seconds"),
)


@click.command(epilog=_EPILOG)
@click.option(
    "--config", "name", metavar="NAME",
    help="The configuration; see --list.  [default: ci; for a mutant, the smallest that shows it]",
)  # fmt: skip
@click.option(
    "--mutant", metavar="NAME",
    help="Break the core on purpose, and see that it is caught; see fuzz; of leases, too.",
)  # fmt: skip
@click.option("--list", "listing", is_flag=True, help="Show all configurations, and explore none.")
@json_option
def explore(name: str | None, mutant: str | None, listing: bool, as_json: bool) -> int:
    """Try every interleaving in a small system and look for a broken guarantee.

    The system is the pure code that ships: a server with its restarts, workers, and
    clients; in the configurations of keys, a server, a worker, and callers that are
    played; in those of hosts, the leases of two hosts and their router. Messages keep
    their order on each link, and each kind of fault comes as often as the configuration
    says. States that differ only in names, clock readings and counters count as one. The
    search is breadth first, so it prints a shortest way to break a guarantee.

    \b
    Examples:
      trio-envserve explore
      trio-envserve explore --list
      trio-envserve explore --config restart
      trio-envserve explore --config keys
      trio-envserve explore --config hosts
      trio-envserve explore --mutant acknowledged-on-arrival
    """  # noqa: D301  # click wants the character itself
    chosen = _chosen(name, mutant)
    if listing:
        return _list(as_json=as_json)

    async def main(stop: Stop) -> Result:
        broken = find(mutant).applied() if mutant else contextlib.nullcontext()
        with broken:
            return await _explore(chosen, mutant, stop, as_json=as_json)

    return run_verb(main, as_json=as_json)


def _chosen(name: str | None, mutant: str | None) -> AnyConfiguration:
    """The chosen configuration.  Raises UsageError if there is none."""
    try:
        if mutant:
            find(mutant)
        if name is not None:
            return any_configuration(name)
    except KeyError as error:
        raise click.UsageError(error.args[0]) from None
    if not mutant:
        return any_configuration("ci")
    shown_in = showing(mutant)
    if not shown_in:
        text = f"no configuration is known to show {mutant}: choose one with --config"
        raise click.UsageError(text)
    return shown_in[0]


async def _explore(
    chosen: AnyConfiguration, mutant: str | None, stop: Stop, *, as_json: bool
) -> Result:
    say(f"exploring {chosen.name}: {chosen.describe()}" + (f"; mutant {mutant}" if mutant else ""))
    search = Search(chosen)
    next_s = trio.current_time() + PLAIN_EVERY_S
    for figures in search.run():
        await trio.lowlevel.checkpoint()
        if stop.asked.is_set():
            break
        if trio.current_time() >= next_s:
            next_s = trio.current_time() + PLAIN_EVERY_S
            _say_progress(figures)
    figures = search.figures
    record = {**figures.record(), "mutant": mutant or ""}
    found = figures.found
    if stop.asked.is_set() and not (figures.exhausted or found):
        say(f"interrupted after {figures.states} states, {figures.frontier} not visited yet")
        return Result(stop.interrupted_code, {**record, "interrupted": True, "path": []})
    path = tell(search.world, found) if found else []
    if not as_json:
        if path:
            put("\n".join(path))
        show_tables([_table(figures, record), *_pairs(figures)], put)
    elif path:
        say("the shortest way to it:\n" + "\n".join(path))
    if mutant:
        caught = f"caught by {', '.join(record['violated'])}" if found else "NOT CAUGHT"
        say(f"{mutant}: {caught}, after {figures.states} states")
    failed = (found is None) if mutant else (found is not None)
    return Result(FAILED if failed else 0, {**record, "path": path})


def _say_progress(figures: Figures) -> None:
    rate = round(figures.transitions / max(figures.seconds, 1e-9))
    say(
        f"{figures.states} states, {figures.frontier} not visited yet, depth {figures.depth}, "
        f"{rate} transitions/s"
    )


def _table(figures: Figures, record: dict[str, Any]) -> Table:
    how = "found a violation" if figures.found else "passed"
    rows = [(text, str(record[key])) for key, text in _ROWS]
    return Table(f"explore {how} ({figures.configuration.name})", (), rows)


def _pairs(figures: Figures) -> list[Table]:
    """Where there are keys: inputs down, states across; ``-`` is what cannot occur."""
    if not figures.key_pairs:
        return []
    pairs = figures.key_pairs
    rows = [
        (input.value, *(str(pairs.get(name_of((state, input)), "-")) for state in GenerationState))
        for input in KeyInput
    ]
    title = "in how many states each input came to a generation of the key"
    return [Table(title, ("input", *(state.value for state in GenerationState)), rows)]


def _list(*, as_json: bool) -> int:
    async def main(stop: Stop) -> Result:
        if not as_json:
            rows = [(each.name, each.describe()) for each in ALL]
            show_tables([Table("configurations", (), rows)], put)
        record = {each.name: each.record() for each in ALL}
        return Result(0, {"configurations": record})

    return run_verb(main, as_json=as_json)
