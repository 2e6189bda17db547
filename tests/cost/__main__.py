"""What this project costs: ``python -m tests.cost``.

Theory of operation
-------------------
Without a word it measures (:mod:`tests.cost.run`): this project, a plain loop, and peers, side
by side.  ``--counted`` counts what a request costs the pure machines
(:mod:`tests.cost.counted`), ``--profile`` shows where the time goes, ``--from`` shows a record
that was made before.  The exit code is 1 if something ran twice or was lost or never ended, and
with ``--counted`` if it costs more than expected; a target that was not reached is no failure.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio

from tests.cost.cases import BOTH_PEERS, CASES, OURS, Case, chosen
from tests.cost.chart import svg
from tests.cost.counted import accept, counted
from tests.cost.profile import Line, profile
from tests.cost.report import about, load_rows, mark_rows, markdown, special_rows, target_rows
from tests.cost.run import QUICK, Bench, Options
from trio_envserve.cli.render import Table, tables_text

PROFILED = ("inflight-64", "inflight-1000")
"""Cases to profile if none is chosen."""

FORMS = {
    ".json": lambda record: json.dumps(record, indent=2) + "\n",
    ".svg": svg,
    ".md": markdown,
}


def main(words: Sequence[str]) -> int:
    """The exit code."""
    parser, options = parsed(words)
    if options.list:
        print(tables_text(_list()))
        return 0
    cases = chosen(options.case or (PROFILED if options.profile else ()))
    if not cases:
        parser.error(f"no case matches {' or '.join(options.case)}; see --list")
    for out in options.out:
        if out.suffix not in FORMS:
            parser.error(f"--out {out}: a name that ends in {', '.join(FORMS)} expected")
    if options.counted:
        return _count(accepting=options.accept, outs=options.out)
    if options.profile:
        for case in cases:
            if case.load:
                found = trio.run(profile, case.load_of(OURS))
                print(tables_text([_hot(f"{who}, {case.name}", found[who]) for who in found]))
        return 0
    code = 0
    if options.made:
        record = json.loads(options.made.read_text())
    else:
        record, code = trio.run(_measured, _options(options, cases))
    print(tables_text(tables(record)))
    for out in options.out:
        out.write_text(FORMS[out.suffix](record))
    return code


def parsed(words: Sequence[str]) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m tests.cost", description=__doc__)
    add = parser.add_argument
    add("--case", action="append", default=[], help="only cases that match, e.g. 'inflight-*'")
    add("--rounds", type=int, help="how often each contender runs each load (5; 1 if quick)")
    add("--out", action="append", default=[], type=Path, help="write the record: .json, .svg, .md")
    add("--from", dest="made", type=Path, help="measure nothing: show the record in this file")
    add("--list", action="store_true", help="list the cases, and their targets")
    add("--quick", action="store_true", help="only see that everything runs")
    add("--counted", action="store_true", help="count the instructions of a request")
    add("--accept", action="store_true", help="with --counted: make the counts the expected ones")
    add("--profile", action="store_true", help="show where the time goes")
    add("--peer-python", action="append", default=[], metavar="PEER=PYTHON",
        help="a Python that has this peer installed")  # fmt: skip
    add("--no-peer", action="store_true", help="leave the peers out")
    options = parser.parse_args(words)
    for given in options.peer_python:
        if given.partition("=")[0] not in BOTH_PEERS:
            parser.error(f"--peer-python {given}: only {' and '.join(BOTH_PEERS)}")
    return parser, options


def _options(given: argparse.Namespace, cases: Sequence[Case]) -> Options:
    base = QUICK if given.quick else Options()
    pythons = dict(each.split("=", 1) for each in given.peer_python)
    return base._replace(
        cases=cases, rounds=given.rounds or base.rounds, peers=not given.no_peer,
        peer_pythons=pythons,
    )  # fmt: skip


def say(text: str) -> None:
    """A line for people, on standard error."""
    print(text, file=sys.stderr, flush=True)


async def _measured(options: Options) -> tuple[dict[str, Any], int]:
    """A run's record and exit code; after SIGINT or SIGTERM, the record so far."""
    running = Bench(options, say)
    interrupted = 0

    async def watch(scope: trio.CancelScope, task_status: trio.TaskStatus[None]) -> None:
        nonlocal interrupted
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for number in signals:
                interrupted = 128 + number
                say("interrupted; the figures so far")
                scope.cancel()

    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: watch(nursery.cancel_scope, task_status))
        await running.run()
        nursery.cancel_scope.cancel()
    record = running.record()
    if not record["judged"]["ok"]:
        say(f"FAILED: the environment's log says {record['judged']}")
    return record, interrupted or int(not record["judged"]["ok"] or bool(record["failed"]))


def _count(*, accepting: bool, outs: Sequence[Path]) -> int:
    record = counted()
    if accepting:
        accept(record)
    for out in outs:
        out.write_text(json.dumps(record, indent=2) + "\n")
    print(tables_text([_counts(record)]))
    if record["instructions"] is None:
        say("machine instructions were not counted: valgrind is not installed, or does not work")
    if record["expected"] is None:
        say(f"there are no expected counts for Python {record['python']} yet: see --accept")
    for problem in record["problems"]:
        say(f"FAILED: {problem}")
    return int(bool(record["problems"]) and not accepting)


def _hot(title: str, some: list[Line]) -> Table:
    rows = [
        (line.function, f"{line.own_us:.1f}", f"{line.with_callees_us:.1f}", f"{line.calls:.2f}")
        for line in some
    ]
    return Table(f"{title}: for one request", ("", "own µs", "with callees", "calls"), rows)


def _list() -> list[Table]:
    rows = [
        (case.name, case.title, ", ".join(case.contenders if case.load else (OURS,)))
        for case in CASES
    ]
    columns, *wanted = target_rows()
    return [
        Table("cases", ("name", "what", "who"), rows, left=(0, 1, 2)),
        Table("targets for ours", columns, wanted, left=(0, 1)),
    ]


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
