"""The verb ``replay``: runs a recorded server again, step by step."""

from __future__ import annotations

import dataclasses
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from typing import Any

import trio

from ..core.errors import ConfigError
from ..core.queries import KeyPages
from ..core.router import Router
from ..core.sessions import Session
from ..core.status import KeyPage, KnownKey, ServerStats
from ..core.terms import short
from ..core.work import Ticket, WorkState
from ..lab.recording import Player, RecordedArrow, RequestName, RequestWatch, sequence_text
from ..options import argument, option
from ..pages.tables import Table, records_table
from .common import AT_ONCE, OK, Result, StopRequest
from .render import progress, say
from .status import status_tables
from .verbs import VerbOptions, verb

TURN_INPUTS = 512
"""Number of inputs that are replayed before signals have a turn."""
MOST_SHOWN = 20
"""Most sessions, and most keys, in a table for people; ``--json`` has all."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replay(VerbOptions):
    """The options of ``replay``."""

    file: str = argument("A recording.")
    at: float | None = option(
        None, "Stop so many seconds after the server began.", metavar="SECONDS", least=0,
        common=True,
    )  # fmt: skip
    step: int | None = option(None, "Stop after the Nth input.", least=0, common=True)
    request: str | None = option(
        None, "Show the way of one request. SESSION is its id as in logs, or the first digits.",
        metavar="SESSION/SEQ", common=True,
    )  # fmt: skip


@verb(Replay, {AT_ONCE: "the code does something else than was recorded"})
async def replay(asked: Replay, stop: StopRequest) -> Result:
    """Replay the recording FILE (of serve --record) through this version's code.

    The command says whether this code does what the recorded server did, or at which step
    it differs, and shows the state at the end, or at the chosen moment.

    Examples:
      trio-envserve replay incident.rec
      trio-envserve replay incident.rec --at 61.5
      trio-envserve replay incident.rec --request 1f2e3d4c/7
      trio-envserve replay incident.rec --json | jq .state.per_session

    Exit code 1: this code did something else.
    """
    if asked.at is not None and asked.step is not None:
        raise ConfigError("give --at or --step, not both")
    watch = None if asked.request is None else RequestWatch(RequestName.parse(asked.request))
    player = Player(asked.file)

    def played(code: int, events: list[RecordedArrow] | None) -> Result:
        summary = _summary(player, events)
        shown = [sequence_text(events, watch.name)] if watch is not None and events else []
        if not asked.as_json:
            _tell(player)
        return Result(code, summary, [*shown, *_tables(player, summary)])

    stop.so_far = lambda: played(stop.interrupted_code, None)
    await _play(player, watch, asked.step, asked.at)
    code = AT_ONCE if player.identical is False else OK
    return played(code, None if watch is None else watch.events())


async def _play(
    player: Player, watch: RequestWatch | None, until_step: int | None, until_s: float | None
) -> None:
    async with progress(lambda: f"replayed {player.step} inputs, up to {player.at_s:.1f} s"):
        for moment in player.moments(until_step=until_step, until_s=until_s):
            if watch is not None:
                watch.see(moment)
            if player.step % TURN_INPUTS == 0:
                await trio.lowlevel.checkpoint()


def _tell(player: Player) -> None:
    """Explain the result, on standard error."""
    if player.stopped:
        say(f"the recording ends before the server did: {player.stopped}")
    if player.raised is not None:
        say(f"the router raised at step {player.step}:")
        say("".join(traceback.format_exception(player.raised)).rstrip())
    if player.difference is not None:
        version = player.about["version"]
        say(f"this code differs from version {version}, which was recorded: {player.difference}")


# -- the result -----------------------------------------------------------------


def _summary(player: Player, events: list[RecordedArrow] | None) -> dict[str, Any]:
    about, difference, raised = player.about, player.difference, player.raised
    began = time.gmtime(about["time"])
    summary: dict[str, Any] = {
        "file": player.path,
        "recorded": {
            **{name: about[name] for name in ("version", "environment", "address", "slots")},
            "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", began),
        },
        "epoch": about["epoch"].hex(),
        "step": player.step,
        "seconds": player.at_s,
        "ended": player.ended,
        "stopped": player.stopped or None,
        "checks": player.checks,
        "checked": player.checked,
        "identical": player.identical,
        "difference": None if difference is None else difference._asdict(),
        "raised": None if raised is None else f"{type(raised).__name__}: {raised}",
        "state": state_of(player.router),
    }
    if events is not None:
        summary["request"] = [event._asdict() for event in events]
    return summary


def state_of(router: Router) -> dict[str, Any]:
    """The statistics of a router, and each of its sessions and keys."""
    sessions = [_session(router, each) for each in router.sessions.known.values()]
    keys = [dataclasses.asdict(each) for each in _keys(router)]
    return {**router.stats(), "per_session": sessions, "per_key": keys}


def _keys(router: Router) -> Iterator[KnownKey]:
    """Keys of a router, as its clients would be told of them."""
    pages, first, turn_s = KeyPages(router.works), 0, 0.0
    while True:
        page = KeyPage.of(pages.page(b"", first, router.awake_s, turn_s))
        yield from page.keys
        if page.next is None:
            return
        first, turn_s = page.next, turn_s + 1.0  # else the turn's budget would end it


def _session(router: Router, session: Session[Ticket]) -> dict[str, Any]:
    """Record of one session, with the number of its tickets in each state."""
    states = Counter(ticket.standing for ticket in session.tickets.values())
    return {
        "session": short(session.id),
        "name": session.name,
        "ended": session.ended,
        "waiting": states[WorkState.WAITING.value],
        "running": states[WorkState.RUNNING.value],
        "completed": states[WorkState.COMPLETED.value],
        "finished": len(session.finished),
        "kept_bytes": session.account.kept_bytes,
        "silent_s": round(router.awake_s - session.seen_at, 3),
    }


# -- for people -----------------------------------------------------------------


def _tables(player: Player, summary: dict[str, Any]) -> list[Table]:
    recorded, checks = summary["recorded"], player.checks
    compared = {
        True: f"yes ({checks} checks, up to step {player.checked})",
        False: "no",
        None: "not checked: the recording has no checks up to here",
    }[player.identical]
    rows = [
        ("recorded", f"{recorded['began']}, version {recorded['version']}"),
        ("server", f"{recorded['environment']} at {recorded['address']}"),
        ("epoch", summary["epoch"][:8]),
        ("at step", str(player.step)),
        ("at seconds", f"{player.at_s:.6f}"),
        ("identical", compared),
        ("ended", "in order" if player.ended else player.stopped or "not by this step"),
    ]
    state = summary["state"]
    stats = ServerStats.of(state).to_record() | {
        name: recorded[name] for name in ("address", "environment")
    }
    sessions = sorted(
        state["per_session"], key=lambda s: s["waiting"] + s["running"] + s["completed"],
        reverse=True,
    )  # fmt: skip
    keys = _some("keys", state["per_key"], _KEY_COLUMNS, left=["key", "namespace", "state"])
    return [
        Table(f"replay of {player.path}", (), rows),
        *status_tables(stats),
        _some("sessions", sessions, _SESSION_COLUMNS, left=["session"]),
        *([keys] if state["per_key"] else []),
    ]


_SESSION_COLUMNS = ("session", "name", "waiting", "running", "completed", "finished", "silent_s")
_KEY_COLUMNS = ("key", "namespace", "state", "generation", "waiters", "executions", "size_bytes")


def _some(
    what: str, records: list[dict[str, Any]], columns: tuple[str, ...], left: list[str]
) -> Table:
    """Table of the first records; its title has the number of all."""
    some = f", of which {MOST_SHOWN} are shown" if len(records) > MOST_SHOWN else ""
    title = f"{what} ({len(records)}{some})"
    return records_table(title, records[:MOST_SHOWN], columns, left=left)
