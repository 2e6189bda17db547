"""The verb ``soak``: real processes under real faults for minutes.

Runs :class:`~trio_envserve.lab.soak.run.Soak`, shows its progress, and explains the
judge's figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import trio

from ..lab.soak.run import MINUTES_LEAST, SERVER_PROGRAM, Progress, Soak, SoakOptions
from .common import Result, Stop, exit_codes, run_verb, say
from .judged import folder, judged_options, run_judged
from .render import PLAIN_EVERY_S, Table

_EPILOG = exit_codes(
    "nothing ran twice, nothing was lost, nothing is left over",
    "something ran twice, was lost, or is left over",
    "the server could not be started",
    so_far="figures",
)

_ROWS = (
    ("asked", "calls that the clients made"),
    ("answered", "calls that ended with a result or an error"),
    ("started", "rollouts that ran, by the environment's log"),
    ("started_twice", "second runs without consent"),
    ("rerun_with_consent", "second runs with consent, after a proven death"),
    ("lost", "calls of living clients that never ended"),
    ("withdrawn", "calls that their caller cancelled"),
    ("owed_nothing", "calls whose client was killed"),
    ("did_not_run", "true errors with this verdict"),
    ("ran_and_failed", "true errors with this verdict (a limit passed)"),
    ("may_have_run", "true errors with this verdict (a process was killed)"),
    ("untrue_errors", "untrue errors"),
    ("left_running", "executions that nobody waits for, still running at rest"),
    ("seconds", "the duration"),
)


@click.command(epilog=_EPILOG)
@click.option(
    "--minutes", type=click.FloatRange(min=MINUTES_LEAST), default=1.0, show_default=True,
    help="How long the faults go on; warm-up and measurement add a minute or two.",
)  # fmt: skip
@judged_options("what goes wrong, and when")
def soak(
    minutes: float, seed: int, remote_host: bool, keep: Path | None,
    server_command: Sequence[str], as_json: bool,
) -> int:  # fmt: skip
    """Kill, stop and cut real processes for minutes, and judge what happens.

    A server, its workers and several clients are processes. Between clients and
    server a proxy cuts, stalls, half-opens and throttles connections; a killer
    kills, stops and continues processes. Then a separate program judges the logs on
    disk: nothing may have run twice, nothing may be lost, every error must be true.
    There must be as many processes, descriptors, threads and files as before, and
    memory must not grow.

    \b
    Examples:
      trio-envserve soak
      trio-envserve soak --minutes 10 --json
      trio-envserve soak --seed 7 --keep logs
      python -m trio_envserve.lab.soak.judge logs
    """  # noqa: D301  # click wants the character itself

    async def main(stop: Stop) -> Result:
        with folder(keep, "soak") as directory:
            soak = Soak(
                SoakOptions(
                    directory=directory, minutes=minutes, seed=seed, remote_host=remote_host,
                    server_command=server_command or SERVER_PROGRAM,
                )
            )  # fmt: skip
            progress = soak.progress
            return await run_judged(
                soak, partial(_show_progress, progress), stop, phase=lambda: progress.phase,
                tables=tables, keep=keep, as_json=as_json, said=progress.said,
            )  # fmt: skip

    return run_verb(main, as_json=as_json)


# -- figures ------------------------------------------------------------------


def tables(figures: dict[str, Any]) -> list[Table]:
    """The figures for people."""
    how = "passed" if figures["ok"] else "FAILED"
    rows = [(f"{name.replace('_', ' ')}: {text}", str(figures.get(name))) for name, text in _ROWS]
    for group in ("kills", "stops", "cuts"):
        rows.append((group, _pairs(figures.get(group, {}))))
    growth = figures.get("growth_kib_per_10000", {})
    rows.append(("growth in KiB for 10,000 requests", _pairs(growth)))
    found = [Table(f"soak {how}, judged from its logs", (), rows)]
    held = [
        (kind, *(_held(record.get(when)) for when in ("begin", "most", "end")))
        for kind, record in figures.get("samples", {}).items()
    ]
    if held:
        title = "processes / descriptors / threads / resident MiB of the largest"
        found.append(Table(title, ("", "begin", "most", "end"), held))
    return found


def _pairs(record: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in record.items())


def _held(record: dict[str, int] | None) -> str:
    if not record:
        return "-"
    counts = [str(record[name]) for name in ("processes", "descriptors", "threads")]
    return " / ".join([*counts, str(record["rss_kib"] // 1024)])


# -- progress -----------------------------------------------------------------


async def _show_progress(progress: Progress) -> None:
    """A line now and then, and one for each phase."""
    phase = ""
    while True:
        with trio.move_on_after(PLAIN_EVERY_S):
            while progress.phase == phase:  # noqa: ASYNC110  # plain state, to be looked at
                await trio.sleep(0.1)
        phase = progress.phase
        say(_line(progress))


def _line(progress: Progress) -> str:
    held = progress.held
    memory = ", ".join(
        f"{kind} {held[kind]['rss_kib'] // 1024} MiB"
        for kind in ("server", "client", "worker") if kind in held
    )  # fmt: skip
    parts = [f"{progress.phase}: {progress.ended} of {progress.asked} calls ended"]
    if progress.faults_due:
        parts.append(
            f"{progress.faults} of {progress.faults_due} faults in {progress.seconds:.0f} s"
        )
    return "; ".join([*parts, *([memory] if memory else [])])
