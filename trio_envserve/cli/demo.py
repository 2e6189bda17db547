"""The verb ``demo``: the main job, under faults.

Runs :func:`~trio_envserve.lab.demo.run.run_demo`, shows its progress, and explains
the judge's figures.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import tempfile
from pathlib import Path
from typing import Any

import trio

from ..lab.demo.judge import (
    BUSY_KILLED,
    CUT_BEFORE_RECEIPT,
    RECEIVED_AFTER_CUT,
    REPLAYED,
    SENT_AGAIN_RUNNING,
)
from ..lab.demo.run import ROLLOUTS_LEAST, WORKERS_MOST, DemoOptions, DemoProgress, run_demo
from ..options import option
from ..pages.tables import Table
from .common import AT_ONCE, NOT_STARTED, OK, CommandError, Result, StopRequest
from .render import progress, say
from .verbs import VerbOptions, verb

_CODES = {
    OK: "nothing ran twice, nothing was lost, and every fault did happen",
    AT_ONCE: "something ran twice or was lost, or a fault did not happen",
    NOT_STARTED: "the server could not be started",
}

_ROWS = (
    ("asked", "rollouts the callers asked for, each once"),
    ("result", "calls that ended with the right result"),
    ("began", "runs of rollouts, by the environment's log"),
    ("began again", "second runs, with consent and after a proven death"),
    ("connections cut", "connections that the proxy cut"),
    (f"network {CUT_BEFORE_RECEIPT}", "cuts with an outcome on its way to a caller"),
    (RECEIVED_AFTER_CUT, "outcomes withheld by such a cut, received later"),
    (BUSY_KILLED, "workers killed with 20 executions or more"),
    ("server kill", "times the server was killed, and started again at its address"),
    ("host kill", "times the remote host was killed, and another one joined"),
    (REPLAYED, "outcomes sent again: received by callers or withheld by a cut"),
    (SENT_AGAIN_RUNNING, "requests sent again while they ran"),
    ("seconds", "the duration"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Demo(VerbOptions):
    """The options of ``demo``."""

    rollouts: int = option(
        1000, f"How many rollouts to ask for, {ROLLOUTS_LEAST} or more.", least=ROLLOUTS_LEAST,
        common=True,
    )  # fmt: skip
    workers: int = option(2, "Worker processes.", least=2, most=WORKERS_MOST, common=True)
    seconds_limit: float = option(
        60.0, "End the demo after so many seconds. Calls without an answer are lost.", least=1,
        common=True,
    )  # fmt: skip
    seed: int = option(0, "Decides what goes wrong in which order.", common=True)
    remote_host: bool = option(
        False, "Let the workers be those of a host. It has joined, on this machine: see join.",
        common=True,
    )  # fmt: skip
    keep: Path | None = option(
        None, "Keep the logs, in a folder that has none yet.", metavar="DIR", make=Path, common=True
    )


@verb(Demo, _CODES)
async def demo(asked: Demo, stop: StopRequest) -> Result:
    """Run 1,000 rollouts while connections are cut and processes are killed.

    The demo serves an environment in processes of its own and asks for
    rollouts through a proxy that cuts connections, also between an outcome and its
    receipt. It kills workers with at least 20 live executions, and once the server.
    Then judges read the log that environment, callers and killer have written.

    Examples:
      trio-envserve demo
      trio-envserve demo --seed 7 --keep logs
      python -m trio_envserve.lab.demo.judge logs
    """
    told = DemoProgress(asked.rollouts)

    def interrupted() -> Result:
        say(f"interrupted after {told.answered} of {told.rollouts} rollouts")
        summary = {"ok": False, "asked": told.asked, "answered": told.answered}
        return Result(stop.interrupted_code, summary)

    stop.so_far = interrupted
    # The demo cuts connections, so the clients' warnings about them are not shown.
    logging.getLogger("trio_envserve").addHandler(logging.NullHandler())
    try:
        kept = asked.keep and contextlib.nullcontext(asked.keep)
        logs = kept or tempfile.TemporaryDirectory(prefix="trio-envserve-demo-")
    except OSError as error:
        raise CommandError(
            f"no folder for the logs: {error}; set TMPDIR to one that this user can write, or give "
            "--keep DIR", NOT_STARTED,
        ) from None  # fmt: skip
    with logs as folder:
        options = DemoOptions(
            directory=Path(folder), rollouts=asked.rollouts, seed=asked.seed,
            workers=asked.workers, seconds_limit=asked.seconds_limit,
            remote_host=asked.remote_host,
        )  # fmt: skip
        async with (
            progress(lambda: _count(told), lambda: told.answered / told.rollouts),
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(_tell_events, told)
            figures = await run_demo(options, told)
            nursery.cancel_scope.cancel()
    if asked.keep is not None:
        say(f"the logs are in {asked.keep}")
    for problem in figures["problems"]:
        say(f"FAILED: {problem}")
    return Result(OK if figures["ok"] else AT_ONCE, figures, [_table(options, figures)])


def _table(options: DemoOptions, figures: dict[str, Any]) -> Table:
    how = "passed" if figures["ok"] else "FAILED"
    rows = [
        (f"{name}: {text}", str(figures.get(name, 0))) for name, text in _ROWS
        if name != "host kill" or options.remote_host
    ]  # fmt: skip
    twice = sum(problem.startswith(("G1 ", "G2 ")) for problem in figures["problems"])
    rows.insert(4, ("second runs without consent, or before a proven death", str(twice)))
    return Table(f"demo {how} (seed {options.seed}), judged from its logs", (), rows)


async def _tell_events(told: DemoProgress) -> None:
    """A line for each event."""
    seen = 0
    while True:
        for text in told.lines[seen:]:
            say(f"{_count(told)}: {text}")
        seen = len(told.lines)
        await trio.sleep(0.1)


def _count(told: DemoProgress) -> str:
    return f"{told.answered}/{told.rollouts}"
