"""The verb ``siege``: raw sockets attack a server and a client.

Runs :class:`~trio_envserve.lab.siege.run.Siege`, shows its progress, and explains the
judge's findings.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import trio

from ..lab.siege.attacks import NAMES, finding_of, what_of
from ..lab.siege.judge import FINDINGS
from ..lab.siege.plan import HELD, LONG_S, SECONDS_LEAST
from ..lab.siege.run import VICTIM, Siege, SiegeOptions
from ..lab.siege.testbed import Testbed
from .common import Result, Stop, exit_codes, put, run_verb, say
from .judged import folder, judged_options, run_judged
from .render import PLAIN_EVERY_S, Table, show_tables

_EPILOG = exit_codes(
    "all findings are good",
    "a finding is bad",
    "a program of the siege could not be started",
    so_far="findings",
)


@click.command(epilog=_EPILOG)
@click.option(
    "--seconds", type=click.FloatRange(min=SECONDS_LEAST), default=30.0, show_default=True,
    help="How long the attacks go on; the start and the blocked loops come on top.",
)  # fmt: skip
@click.option(
    "--minutes", type=click.FloatRange(min=SECONDS_LEAST / 60), help="The same in minutes."
)
@click.option(
    "--only", multiple=True, type=click.Choice((*NAMES, *HELD)), metavar="ATTACK",
    help="Run only this attack or scenario. Repeatable.",
)  # fmt: skip
@click.option(
    "--unjudged", multiple=True, type=click.Choice(tuple(FINDINGS)), metavar="FINDING",
    help="Do not judge this, only show its figures (a rate depends on the machine). Repeatable.",
)  # fmt: skip
@click.option(
    "--transport", type=click.Choice(("zmtp", "libzmq")),
    help="What speaks ZMTP in servers and clients.",
)  # fmt: skip
@click.option("--attacks", "listed", is_flag=True, help="List the attacks, and run none.")
@judged_options("who attacks when, and how")
def siege(
    seconds: float, minutes: float | None, seed: int, only: tuple[str, ...],
    unjudged: tuple[str, ...],
    transport: str | None, remote_host: bool, keep: Path | None, listed: bool,
    server_command: Sequence[str], as_json: bool,
) -> int:  # fmt: skip
    """Attack a server and a client with raw sockets, and judge whether they hold.

    A server, a client and a raw attacker are processes. The attacker sends random
    and hostile bytes, messages without an end, thousands of connections and hellos,
    and never reads; a hostile server attacks a client in the same way. Meanwhile an
    honest client asks for rollouts. Then a separate program judges the logs on disk: no
    process may end, no loop may be held up, memory must stay within the limits, and the
    honest client must keep its rate and get right answers.

    \b
    Examples:
      trio-envserve siege
      trio-envserve siege --minutes 120 --json
      trio-envserve siege --only empty-frames --seed 7 --keep logs
      python -m trio_envserve.lab.siege.judge logs
    """  # noqa: D301  # click wants the character itself
    if listed:
        show_tables([attacks_table()], put)
        return 0

    async def main(stop: Stop) -> Result:
        with folder(keep, "siege") as directory:
            siege = Siege(
                SiegeOptions(
                    directory=directory, seconds=seconds if minutes is None else 60 * minutes,
                    seed=seed, only=only, unjudged=unjudged, transport=transport,
                    server_command=server_command or VICTIM, remote_host=remote_host,
                )
            )  # fmt: skip
            testbed = siege.testbed
            return await run_judged(
                siege, partial(_show_progress, testbed), stop, phase=lambda: testbed.phase,
                tables=tables, keep=keep, as_json=as_json,
            )  # fmt: skip

    return run_verb(main, as_json=as_json)


async def _show_progress(testbed: Testbed) -> None:
    """A line now and then, and one for each phase and each failure."""
    phase, told = "", 0
    while True:
        with trio.move_on_after(PLAIN_EVERY_S):
            while testbed.phase == phase and len(testbed.faults) == told:  # noqa: ASYNC110  # plain state
                await trio.sleep(0.1)
        for text in testbed.faults[told:]:
            say(text)
        phase, told = testbed.phase, len(testbed.faults)
        say(phase)


# -- figures ------------------------------------------------------------------


def attacks_table() -> Table:
    """All attacks."""
    rows = [(name, finding_of(name), what_of(name)) for name in NAMES]
    rows += [(name, "", f"a blocked loop; for a minute in a siege of {LONG_S:g} s or more")
             for name in HELD]  # fmt: skip
    return Table("attacks", ("name", "finding", "what it does"), rows)


def tables(figures: dict[str, Any]) -> list[Table]:
    """The findings for people."""
    words = {True: "good", False: "BAD", None: "not tried"}
    rows = [
        (f"{name}: {_first_line(FINDINGS[name].__doc__)}", words[finding["ok"]])
        for name, finding in figures["findings"].items()
    ]
    title = f"siege {'passed' if figures['ok'] else 'FAILED'}, judged from its logs"
    found = [Table(title, (), rows or [("no findings", "")])]
    findings = figures["findings"]
    measured = [
        ("longest turn of a loop (ms)", who, f"{1000 * record['turn_s']:.0f}")
        for who, record in _figures(findings, "turns").get("longest", {}).items()
    ]
    measured += [
        ("memory grew by (MiB)", who,
         f"{record['grown_kib'] // 1024} of {record['allowed_kib'] // 1024}")
        for who, record in _figures(findings, "memory").items()
    ]  # fmt: skip
    rate = _figures(findings, "rate")
    measured += [
        ("answers a second", name, f"{rate[name]:g}") for name in ("besieged", "quiet", "kept")
        if name in rate
    ]  # fmt: skip
    measured += [
        ("blocked loop: right answers, connections", name,
         f"{record['right']} of {record['calls']}, {record['connections']}")
        for name, record in _figures(findings, "held").items()
    ]  # fmt: skip
    if measured:
        found.append(Table("figures", ("", "of", "value"), measured))
    return found


def _figures(findings: dict[str, Any], name: str) -> dict[str, Any]:
    figures: dict[str, Any] = findings.get(name, {}).get("figures", {})
    return figures


def _first_line(text: str | None) -> str:
    return (text or "").strip().splitlines()[0].rstrip(".")
