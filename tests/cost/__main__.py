"""What this project costs: ``python -m tests.cost``.

Without a word it measures (:mod:`tests.cost.run`): this project, a plain loop and a peer, side
by side.  ``--counted`` counts what a request costs the pure machines
(:mod:`tests.cost.counted`).  The exit code is 1 if something ran twice or was lost or never
ended, and with ``--counted`` if it costs more than expected; a target that was not reached is no
failure.
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

from tests.cost.cases import CASES, chosen
from tests.cost.counted import accept, counted, expected, problems, table
from tests.cost.report import markdown, targets
from tests.cost.run import Bench, Options


def main(words: Sequence[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.cost", description=__doc__)
    add = parser.add_argument
    add("--case", action="append", default=[], help="only cases that match, e.g. 'inflight-*'")
    add("--rounds", type=int, default=5, help="how often each side runs each load (5)")
    add("--peer-python", default="", help="a Python that has verifiers 0.4, uvloop and httpx")
    add("--out", type=Path, help="write the record to this file, as JSON")
    add("--from", dest="made", type=Path, help="measure nothing: show the record in this file")
    add("--list", action="store_true", help="list the cases, and their targets")
    add("--counted", action="store_true", help="count the instructions of a request")
    add("--accept", action="store_true", help="with --counted: make the counts the expected ones")
    given = parser.parse_args(words)
    cases = chosen(given.case)
    if not cases:
        parser.error(f"no case matches {' or '.join(given.case)}; see --list")
    code = 0
    if given.list:
        print("\n".join(f"{case.name:20} {case.title}" for case in CASES), targets(), sep="\n\n")
    elif given.counted:
        code = _count(accepting=given.accept)
    elif given.made:
        print(markdown(json.loads(given.made.read_text())))
    else:
        options = Options(cases, given.rounds, peer_python=given.peer_python)
        record, code = trio.run(_measured, options)
        print(markdown(record))
        if given.out:
            given.out.write_text(json.dumps(record, indent=2) + "\n")
    return code


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def _measured(options: Options) -> tuple[dict[str, Any], int]:
    """A run's record and exit code; after SIGINT or SIGTERM, the record so far."""
    running = Bench(options, _say)
    interrupted = 0

    async def watch(task_status: trio.TaskStatus[None]) -> None:
        nonlocal interrupted
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for number in signals:
                interrupted = 128 + number
                _say("interrupted; the figures so far")
                nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        await nursery.start(watch)
        await running.run()
        nursery.cancel_scope.cancel()
    record = running.record()
    if not record["judged"]["ok"]:
        _say(f"FAILED: the environment's log says {record['judged']}")
    return record, interrupted or int(not record["judged"]["ok"] or bool(record["failed"]))


def _count(*, accepting: bool) -> int:
    counts = counted()
    if accepting:
        accept(counts)
    print(table(counts))
    if not expected():
        _say("there are no expected counts for this Python yet: see --accept")
    found = problems(counts)
    for problem in found:
        _say(f"FAILED: {problem}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
