"""Raw sockets attack a server, its doors and a client: ``python -m tests.attack``.

Runs a :class:`~.run.Siege`, prints each phase and each problem on standard error, and the
judge's figures as one JSON object on the last line of standard output.  Exit codes: 0, all
findings are good; 1, a finding is bad, or a program could not be started; 2, wrong usage;
128 plus the number of a signal that has interrupted it, with the figures so far.
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

from .attacks import NAMES, finding_of, what_of
from .judge import FINDINGS
from .plan import HELD
from .run import VICTIM, Siege, SiegeOptions
from .testbed import Testbed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the siege that the arguments name, and return the exit code."""
    given = _parser().parse_args(arguments)
    if given.attacks:
        for name in NAMES:
            print(f"{name:24} {finding_of(name):4} {what_of(name)}")
        for name in HELD:
            print(f"{name:24}      a blocked loop")
        return 0
    with tempfile.TemporaryDirectory(prefix="trio-envserve-attack-") as scratch:
        try:
            siege = Siege(
                SiegeOptions(
                    directory=Path(given.keep or scratch),
                    seconds=given.seconds if given.minutes is None else 60 * given.minutes,
                    seed=given.seed, only=given.only, unjudged=given.unjudged,
                    transport=given.transport, remote_host=given.remote_host,
                    server_command=shlex.split(given.server_command) or VICTIM,
                )
            )  # fmt: skip
            interrupted = trio.run(_run, siege)
        except ConfigError as error:
            _say(f"error: {error}")
            return 2
        except EnvServeError as error:
            _say(f"error: {error}")
            return 1
        figures = siege.figures()
    for problem in figures["problems"]:
        _say(f"FAILED: {problem}")
    code = 128 + interrupted if interrupted else int(not figures["ok"])
    print(json.dumps({**figures, "exit": code}))
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", allow_abbrev=False)
    add = parser.add_argument
    add("--seconds", type=float, default=30.0, help="duration of the attacks, 10 s or more")
    add("--minutes", type=float, help="the duration in minutes")
    add("--seed", type=int, default=0, help="decides which attacks meet, and their bytes")
    add("--only", action="append", default=[], choices=(*NAMES, *HELD), metavar="ATTACK",
        help="run this attack or scenario only; repeatable")  # fmt: skip
    add("--unjudged", action="append", default=[], choices=tuple(FINDINGS),
        help="show the figures of a finding without judging it; repeatable")  # fmt: skip
    add("--transport", choices=("zmtp", "libzmq"), help="transport of servers and clients")
    add("--remote-host", action="store_true", help="workers run on a host that has joined")
    add("--keep", metavar="DIR", help="a folder for the logs, which has none yet")
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
                        _say(f"interrupted in the phase: {siege.testbed.phase}")
                        nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            nursery.start_soon(_show_progress, siege.testbed)
            await siege.run()
            nursery.cancel_scope.cancel()
    return number


async def _show_progress(testbed: Testbed) -> None:
    """A line for each phase and each failure."""
    phase, told = "", 0
    while True:
        while testbed.phase == phase and len(testbed.faults) == told:  # noqa: ASYNC110  # plain state
            await trio.sleep(0.1)
        for text in testbed.faults[told:]:
            _say(text)
        phase, told = testbed.phase, len(testbed.faults)
        _say(phase)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
