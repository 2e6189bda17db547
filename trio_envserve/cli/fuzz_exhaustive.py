"""``fuzz --exhaustive``: every order of what can happen in a small system, ours or another's.

Theory of operation
-------------------
Ours is a configuration of :mod:`trio_envserve.lab.exploration`, searched here; a system of
somebody's own is searched by :mod:`trio_envserve.retrylab` in a process of its own, for its code
is not ours.  Either way there are lines of progress, then the shortest way to a violation if
there is one, and the figures.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import trio

from ..core.errors import ConfigError
from ..lab.exploration.configurations import Configuration, configuration, showing
from ..lab.exploration.search import Search
from ..lab.mutants import find
from ..retrylab import campaign
from .common import Result, Stop, put, say
from .fuzz_report import pairs_table
from .render import Table, progress, show_tables

FAILED = 1
"""Exit code when a guarantee broke; of mutants, when one was not caught."""

_ROWS = {
    "asked": "requests; Bounds(seed=...) of the system draws others",
    "states": "distinct states; names and what else makes no difference count once",
    "transitions": "transitions from one state to another",
    "depth": "transitions from the first state to the farthest ones",
    "exhausted": "whether every state was visited",
    "peak_mib": "most memory used, in MiB",
    "seconds": "seconds",
}


def _progress(figures: Callable[[], Mapping[str, Any]]) -> AbstractAsyncContextManager[None]:
    """While the block lasts: how far the search is.  Nobody knows how much is left."""
    text = "{states:,} states, {transitions:,} transitions, {depth} deep"
    return progress(lambda: text.format(**figures()), lambda: 0.0)


def chosen(name: str, mutant: str) -> Configuration:
    """The configuration of this name; without one ``small``, or the smallest that shows the
    mutant.  ConfigError if there is none."""
    try:
        if mutant:
            find(mutant)
        if name or not mutant:
            return configuration(name or "small")
    except KeyError as error:
        raise ConfigError(error.args[0]) from None
    shown_in = showing(mutant)
    if not shown_in:
        text = f"no configuration is known to show {mutant}: choose one with --config"
        raise ConfigError(text)
    return shown_in[0]


async def own(configuration: Configuration, mutant: str, stop: Stop, *, as_json: bool) -> Result:
    """Search a configuration of the code that ships, with a mutant or without."""
    name = configuration.name
    say(f"{name}: every order; {configuration.describe()}" + f"; mutant {mutant}" * bool(mutant))
    path = list[str]()
    with find(mutant).applied() if mutant else contextlib.nullcontext():
        search = Search(configuration)
        with trio.CancelScope() as searching:
            stop.on_first = searching.cancel
            async with _progress(search.record):
                for _ in search.run():
                    await trio.lowlevel.checkpoint()
        path = search.tell()
    record = {**search.record(), "mutant": mutant, "failures": []}
    if searching.cancelled_caught and not path:
        return _interrupted(name, record, stop, as_json=as_json)
    if path:
        record["failures"] = [{"guarantees": record["violated"], "path": path}]
    pairs = pairs_table(record["pairs"], "in how many states")
    _show(name, record, "\n".join(path), as_json=as_json, more=[pairs])
    if mutant:
        caught = f"caught by {', '.join(record['violated'])}" if path else "NOT CAUGHT"
        say(f"{mutant}: {caught}, after {record['states']:,} states")
    return Result(FAILED if bool(path) != bool(mutant) else 0, record)


async def protocol(spec: str, stop: Stop, *, as_json: bool, save: str | None) -> Result:
    """Search a system of somebody's own, within its bounds."""
    say(f"{spec}: every order")
    record: dict[str, Any] = {"protocol": spec, "failures": []}
    record |= {"states": 0, "transitions": 0, "depth": 0, "exhausted": False}
    failure = None

    def explored(result: dict[str, Any]) -> None:
        record.update(result.get("explored", {}))

    with trio.CancelScope() as searching:
        stop.on_first = searching.cancel
        async with _progress(lambda: record):
            failure = (await campaign.ask("explore", spec, explored, save=save))["failure"]
    if searching.cancelled_caught:
        return _interrupted(spec, record, stop, as_json=as_json)
    text = failure.pop("text") if failure else ""
    record["failures"] = [failure] if failure else []
    _show(spec, record, text, as_json=as_json)
    return Result(FAILED if failure else 0, record)


def _interrupted(name: str, record: dict[str, Any], stop: Stop, *, as_json: bool) -> Result:
    say("interrupted; not every state was visited")
    _show(name, record, "", as_json=as_json)
    return Result(stop.interrupted_code, {**record, "interrupted": True})


def _show(
    name: str, record: Mapping[str, Any], failure: str, *, as_json: bool,
    more: Sequence[Table] = (),
) -> None:  # fmt: skip
    if as_json:
        return
    if failure:
        put(f"{failure}\n")
    rows = [(text, str(record[key])) for key, text in _ROWS.items() if key in record]
    how = "found a violation" if failure else "passed" if record.get("exhausted") else "stopped"
    show_tables([Table(f"every order {how} ({name})", (), rows), *more], put)
