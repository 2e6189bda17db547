"""Raw sockets attack a server, its doors and a client: ``python -m tests.attack``.

Runs a :class:`~.run.Siege`, which prints each phase on standard error; then each problem, and as
one JSON object the judge's figures.  Exit codes: 0, all findings are good; 1, a finding is bad, or
a program could not be started; 2, wrong usage; 128 plus the number of a signal that has
interrupted it, with the figures so far.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import trio

from trio_envserve.core.errors import ConfigError, EnvServeError
from trio_envserve.net import unwrap_single

from .attacks import ATTACKS, HELD
from .judge import FINDINGS, judge
from .run import EVENTS, VICTIM, Siege, SiegeOptions


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the siege that the arguments name, and return the exit code."""
    given = _parser().parse_args(arguments)
    if given.attacks:
        for name in (*ATTACKS, *HELD):
            row = ATTACKS.get(name) or HELD[name]
            print(f"{name:24} {row.about:10} {row.what}")
        return 0
    with tempfile.TemporaryDirectory(prefix="trio-envserve-attack-") as scratch:
        folder = Path(given.keep or scratch)
        try:
            siege = Siege(
                SiegeOptions(
                    folder=folder, seed=given.seed, only=given.only, transport=given.transport,
                    seconds=given.seconds if given.minutes is None else 60 * given.minutes,
                    server_command=shlex.split(given.server_command) or VICTIM,
                    remote_host=given.remote_host,
                )
            )  # fmt: skip
            interrupted = trio.run(_run, siege)
        except EnvServeError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2 if isinstance(error, ConfigError) else 1
        figures = judge(folder / EVENTS, given.unjudged)
    for problem in figures["problems"]:
        print(f"FAILED: {problem}", file=sys.stderr)
    code = 128 + interrupted if interrupted else int(not figures["ok"])
    print(json.dumps({**figures, "exit": code}))
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", allow_abbrev=False)
    add = parser.add_argument
    add("--seconds", type=float, default=30.0, help="duration of the attacks, 10 s or more")
    add("--minutes", type=float, help="the duration in minutes")
    add("--seed", type=int, default=0, help="decides which attacks meet, and their bytes")
    add("--only", action="append", default=[], choices=(*ATTACKS, *HELD), metavar="ATTACK",
        help="run this attack or scenario only; repeatable")  # fmt: skip
    add("--unjudged", action="append", default=[], choices=tuple(FINDINGS),
        help="leave out the problems of a finding; repeatable")  # fmt: skip
    add("--transport", choices=("zmtp", "libzmq"), default="zmtp", help="of servers and clients")
    add("--remote-host", action="store_true", help="workers run on a host that has joined")
    add("--keep", metavar="DIR", help="a folder for the log, which has none yet")
    add("--attacks", action="store_true", help="list the attacks, and run none")
    add("--server-command", default="", help=argparse.SUPPRESS)
    return parser


async def _run(siege: Siege) -> int:
    """The whole siege; returns the signal that has interrupted it, or 0."""
    number = 0
    with unwrap_single():
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                nonlocal number
                with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                    async for each in signals:
                        number = each
                        print(f"interrupted in the phase: {siege.phase}", file=sys.stderr)
                        nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            await siege.run()
            nursery.cancel_scope.cancel()
    return number


if __name__ == "__main__":
    raise SystemExit(main())
