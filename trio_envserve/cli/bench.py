"""The verb ``bench``: this project, a plain socket loop and two peers, side by side.

Runs :class:`~trio_envserve.lab.bench.run.Bench`, or counts what a request costs the
pure machines (:mod:`~trio_envserve.lab.bench.counted`), and writes the record in the
chosen formats.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import trio

from ..core.errors import ConfigError
from ..lab.bench.cases import BOTH_PEERS, CASES, OURS, Case, chosen
from ..lab.bench.chart import svg
from ..lab.bench.counted import accept, counted
from ..lab.bench.profile import Line, profile
from ..lab.bench.report import (
    about,
    load_rows,
    mark_rows,
    markdown,
    special_rows,
    target_rows,
)
from ..lab.bench.run import QUICK, Bench, Options
from .common import OK, Result, Stop, emit, exit_codes, put, run_verb, say
from .options import json_option, pairs
from .render import Table, show_tables

PROFILED = ("inflight-64", "inflight-1000")
"""Cases to profile if none is chosen."""

FAILED = 1
"""Exit code when something ran twice or was lost, or a count is too large."""

_EPILOG = exit_codes(
    "measured; nothing ran twice, nothing was lost (a missed target is no failure)",
    "something ran twice, was lost, or never ended; with --counted: it costs more than\n"
    "     expected",
    "a contender could not be started",
    so_far="figures",
)


@click.command(epilog=_EPILOG)
@click.option(
    "--case", "patterns", multiple=True, metavar="PATTERN",
    help="Only the cases whose name matches, e.g. 'inflight-*'. Repeatable.",
)  # fmt: skip
@click.option(
    "--rounds", type=click.IntRange(min=1), metavar="N", show_default="5; 1 if quick",
    help="How often each contender runs each load, in turn.",
)  # fmt: skip
@click.option(
    "--out", "outs", multiple=True, type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write the record to FILE: .json, .svg (a chart), .md or .txt (tables). Repeatable.",
)  # fmt: skip
@click.option(
    "--from", "made", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
    help="Measure nothing: show the record in FILE (.json), and write it to --out.",
)  # fmt: skip
@click.option("--list", "listing", is_flag=True, help="List the cases, and their targets.")
@click.option("--quick", is_flag=True, help="Only see that everything runs; the figures are noise.")
@click.option(
    "--counted", "counting", is_flag=True,
    help="Count the instructions of a request: the same on any machine, however busy.",
)  # fmt: skip
@click.option(
    "--accept", "accepting", is_flag=True,
    help="With --counted: make these counts the expected ones.",
)  # fmt: skip
@click.option(
    "--profile", "profiling", is_flag=True,
    help="Show where server, worker and client spend their time (--case; default: inflight-64 "
    "and inflight-1000).",
)  # fmt: skip
@click.option(
    "--peer-python", "pythons", multiple=True, metavar="PEER=PYTHON",
    help="A Python that has this peer installed, e.g. peer-0.4=/opt/venv/bin/python. "
    "Repeatable. Default: one in the cache folder, made when it is first needed.",
)  # fmt: skip
@click.option("--no-peer", is_flag=True, help="Leave the peers out.")
@json_option
def bench(
    patterns: tuple[str, ...], rounds: int | None, outs: tuple[Path, ...], made: Path | None,
    listing: bool, quick: bool, counting: bool, accepting: bool, profiling: bool,
    pythons: tuple[str, ...], no_peer: bool, as_json: bool,
) -> int:  # fmt: skip
    """Compare throughput, latency, memory and recovery with other servers.

    \b
    Compared are:
      ours      serve with default settings and all guarantees, and its client
      bare      our sockets and tasks, without the protocol
      plain     three synchronous ZeroMQ programs without any logic
      frames    the same, its router tuned: the limit where a message is a message
      peer-0.4  verifiers 0.4, the newest environment server of another project
      peer-0.3  verifiers 0.3, its predecessor

    All answer at once, so the way there and back is measured. They run in turn,
    round by round; a machine's speed drifts, so look at the ratios of each round.
    Each target says how ours should compare with whom, and whether it was reached.
    Meanwhile our environment counts its starts: if anything ran twice or was lost,
    that is an error.

    A full run takes some 20 minutes. The first one makes a virtual environment for
    each peer (about 100 packages each) in the cache folder. On a machine that does
    other work the figures say little, but --counted does: it counts instructions.

    \b
    Examples:
      trio-envserve bench --list
      trio-envserve bench --out bench.json
      trio-envserve bench --from bench.json --out bench.svg --out bench.md
      trio-envserve bench --case 'inflight-*' --rounds 3 --no-peer
      trio-envserve bench --quick --no-peer
      trio-envserve bench --counted
      trio-envserve bench --profile --case response-1mb
    """  # noqa: D301  # click wants the character itself
    if accepting and not counting:
        raise click.UsageError("--accept needs --counted")
    if listing:
        return _list(as_json)
    if made is not None:
        return run_verb(lambda stop: _show(made, outs=outs, as_json=as_json), as_json=as_json)
    if counting:
        return run_verb(lambda stop: _count(stop, accepting=accepting, outs=outs, as_json=as_json),
                        as_json=as_json)  # fmt: skip

    if profiling:
        cases = [case for case in chosen(patterns or PROFILED) if case.load]
        return run_verb(lambda stop: _profile(stop, cases, as_json=as_json), as_json=as_json)

    async def main(stop: Stop) -> Result:
        _check_outs(outs)
        cases = chosen(patterns)
        if not cases:
            raise ConfigError(f"no case matches {' or '.join(patterns)}; see --list")
        base = QUICK if quick else Options()
        options = base._replace(
            cases=cases, rounds=rounds or base.rounds, peers=not no_peer,
            peer_pythons=_pythons(pythons),
        )  # fmt: skip
        return await _run(options, stop, outs=outs, as_json=as_json)

    return run_verb(main, as_json=as_json)


async def _run(options: Options, stop: Stop, *, outs: tuple[Path, ...], as_json: bool) -> Result:
    running = Bench(options, say)
    with trio.CancelScope() as working:
        stop.on_first = working.cancel
        await running.run()
    record = running.record()
    _write(record, outs)
    if not as_json:
        show_tables(tables(record), put)
    if working.cancelled_caught:
        say("interrupted; the figures so far")
        return Result(stop.interrupted_code, record)
    if not record["judged"]["ok"]:
        say(f"FAILED: the environment's log says {record['judged']}")
        return Result(FAILED, record)
    return Result(FAILED if record["failed"] else OK, record)


async def _show(made: Path, *, outs: tuple[Path, ...], as_json: bool) -> Result:
    """A record that was made before."""
    _check_outs(outs)
    record = _read(made)
    _write(record, outs)
    if not as_json:
        show_tables(tables(record), put)
    return Result(OK, record)


def _read(made: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(made.read_text())
        tables(record)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"--from {made}: no record of the benchmark: {error!r}") from error
    return record


def _pythons(given: tuple[str, ...]) -> dict[str, str]:
    """By peer.  ConfigError if there is no such peer."""
    found = pairs("--peer-python", given)
    for name in found:
        if name not in BOTH_PEERS:
            raise ConfigError(f"--peer-python: no peer {name!r}, only {' and '.join(BOTH_PEERS)}")
    return {name: str(python) for name, python in found.items()}


async def _count(
    stop: Stop, *, accepting: bool, outs: tuple[Path, ...], as_json: bool
) -> Result:  # fmt: skip
    with trio.CancelScope() as working:
        stop.on_first = working.cancel
        record = await trio.to_thread.run_sync(counted, abandon_on_cancel=True)
    if working.cancelled_caught:
        stop.left_behind = True
        return Result(stop.interrupted_code, {})
    if accepting:
        accept(record)
    for out in outs:
        out.write_text(json.dumps(record, indent=2) + "\n")
    if not as_json:
        show_tables([_counts(record)], put)
    if record["instructions"] is None:
        say("machine instructions were not counted: valgrind is not installed, or does not work")
    if record["expected"] is None:
        say(f"there are no expected counts for Python {record['python']} yet: see --accept")
    for problem in record["problems"]:
        say(f"FAILED: {problem}")
    return Result(FAILED if record["problems"] and not accepting else OK, record)


async def _profile(stop: Stop, cases: list[Case], *, as_json: bool) -> Result:
    found: dict[str, dict[str, list[Line]]] = {}
    with trio.CancelScope() as working:
        stop.on_first = working.cancel
        for case in cases:
            say(f"profiling: {case.title}")
            found[case.name] = await profile(case.load_of(OURS))
    if not as_json:
        for name, programs in found.items():
            show_tables([_hot(f"{who}, {name}", programs[who]) for who in programs], put)
    record = {"profiles": {n: {who: [x._asdict() for x in some] for who, some in by.items()}
                           for n, by in found.items()}}  # fmt: skip
    return Result(stop.interrupted_code if working.cancelled_caught else OK, record)


def _hot(title: str, some: list[Line]) -> Table:
    rows = [
        (line.function, f"{line.own_us:.1f}", f"{line.with_callees_us:.1f}", f"{line.calls:.2f}")
        for line in some
    ]
    return Table(f"{title}: for one request", ("", "own µs", "with callees", "calls"), rows)


def _list(as_json: bool) -> int:
    if as_json:
        emit({"cases": {case.name: case.title for case in CASES}, "exit": OK})
        return OK
    rows = [
        (case.name, case.title, ", ".join(case.contenders if case.load else (OURS,)))
        for case in CASES
    ]
    columns, *wanted = target_rows()
    show_tables(
        [
            Table("cases", ("name", "what", "who"), rows, left=(0, 1, 2)),
            Table("targets for ours", columns, wanted, left=(0, 1)),
        ],
        put,
    )
    return OK


_FORMS = {
    ".json": lambda record: json.dumps(record, indent=2) + "\n",
    ".svg": svg,
    ".md": markdown,
    ".txt": markdown,
}


def _check_outs(outs: tuple[Path, ...]) -> None:
    for out in outs:
        if out.suffix not in _FORMS:
            raise ConfigError(f"--out {out}: a name that ends in {', '.join(_FORMS)} expected")
        if not out.parent.is_dir():
            raise ConfigError(f"--out {out}: there is no folder {out.parent}")


def _write(record: dict[str, Any], outs: tuple[Path, ...]) -> None:
    for out in outs:
        out.write_text(_FORMS[out.suffix](record))
        say(f"wrote {out}")


def tables(record: dict[str, Any]) -> list[Table]:
    """The record for people."""
    found = []
    for title, rows, left in (
        ("loads: median (min-max)", load_rows(record), (0, 1)),
        ("special cases", special_rows(record), (0, 1)),
        ("targets: ratios of the same round, or plain figures", mark_rows(record), (0, 1, 2)),
    ):
        if len(rows) > 1:
            found.append(Table(title, rows[0], rows[1:], left=left))
    found.append(Table("this run", (), [(about(record),)]))
    return found


def _counts(record: dict[str, Any]) -> Table:
    expected = record["expected"] or {}
    rows = [
        (
            f"{machine}: bytecodes", f"{record['bytecodes'][machine]:.0f}",
            f"{record['bytecodes_1000_in_flight'][machine]:.0f}",
            f"{record['bytecodes_10000_in_flight'][machine]:.0f}",
            f"{record['bytecodes_after_20000'][machine]:.0f}",
            f"{expected[machine]:.0f}" if machine in expected else "-",
        )
        for machine in record["bytecodes"]
    ]  # fmt: skip
    keyed = record["expected_keyed"] or {}
    for machine, count in record["bytecodes_keyed"].items():
        later = f"{record['bytecodes_keyed_after_20000'][machine]:.0f}"
        wanted = f"{keyed[machine]:.0f}" if machine in keyed else "-"
        rows.append((f"{machine}, with a key", f"{count:.0f}", "", "", later, wanted))
    got, known = record["instructions"], record["expected_instructions"]
    if got:
        wanted = f"{known:.0f}" if known else "-"
        rows.append(("router: instructions", f"{got:.0f}", "", "", "", wanted))
    columns = (
        "",
        "64 in flight",
        "1,000 in flight",
        "10,000 in flight",
        "after 20,000",
        "expected",
    )
    return Table("one request, counted", columns, rows)
