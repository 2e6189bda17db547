"""The output of ``eval --run NAME``, and its questions to a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.errors import ConfigError, KeyConflict
from ..core.limits import MIB
from ..core.status import ServerStats
from ..evals.records import run_digest
from ..evals.run import Plan, check_name
from .common import say

_OWN_LIMITS = {
    # It is time in which servers had the journal; an evaluation may take days.
    "retention_s": 30 * 86_400.0,
    # Nobody else asks eval's own server.
    "namespace_share": 1.0,
    "generations": 1_000_000,
    "retained_bytes": 1024 * MIB,
}
"""At a bound new keys wait until the retention of others has ended; so these are wide."""


def check_options(run_name: str | None, address: str, journal: str | None) -> None:
    """Raises ConfigError for options that do not go together."""
    if run_name is not None:
        check_name(run_name)
    if journal is not None and run_name is None:
        raise ConfigError("--journal keeps what is asked under keys: give --run NAME, too")
    if run_name is not None and not address and journal is None:
        raise ConfigError(
            "eval's own server forgets --run when it ends: give --journal DIR, or the --address "
            "of a server that has a journal"
        )


def wide_limits(given: Mapping[str, Any], run_name: str | None) -> dict[str, Any]:
    """Limits of eval's own server, by name."""
    return dict(given) if run_name is None else {**_OWN_LIMITS, **given}


def caller_of(run_name: str, asked: Mapping[str, Any]) -> str:
    """The caller's name: the same evaluation started again takes its old place among the waiting.
    One that asks something else under this name by mistake must not."""
    return f"eval {run_name} {run_digest(**asked)}" if run_name else ""


def check_server(run_name: str, plan: Plan, stats: ServerStats) -> None:
    """Say what a server cannot keep of an evaluation.  What it can do it does all the same."""
    if stats.journal:
        say(f"the server's journal saves nothing for now: {stats.journal}")
    elif not stats.durable:
        say(
            f"the server has no journal: when it ends, what it knows of the run {run_name!r} ends, "
            "and what is asked again runs again (serve --journal DIR)"
        )
    requests = len(plan.inputs) if plan.grouped else plan.rollouts
    most = stats.bounds.get("keys")
    if most is not None and requests > most:
        say(
            f"the server keeps {most:,.0f} keys at most, and this run has {requests:,}: the last "
            "ones wait until the retention of others ends (serve --limit generations=N)"
        )


def conflict_text(run_name: str, conflict: KeyConflict) -> str:
    """Why an evaluation stopped."""
    return (
        f"under the name {run_name!r} the server knows another evaluation (another input, model, "
        "argument or option, such as --rerun): give what it was begun with, or another --run "
        f"({conflict})"
    )
