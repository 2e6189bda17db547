"""Outcomes that the router itself gives, when no worker can.

Each is built from what is known of the request at that moment, and says which
of the three is true: it did not run, it ran and failed, it may have run (G9).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from . import error_records, messages
from .errors import ErrorInfo
from .executions import Worker
from .requests import OUTCOME_BYTES, RetainedOutcome
from .terms import ID_BYTES, RequestId, Status, Verdict, gist, quick

REASON_CHARS = 600
"""Most characters of the reason why an environment is broken, in a message; the traceback
beside it has more."""

_outcome = quick(messages.Outcome)


class Asker(Protocol):
    """Whatever is given an outcome: a work, or a ticket, which has no execution of its own."""

    @property
    def id(self) -> RequestId:
        """The id under which it is told."""

    @property
    def execution(self) -> Any:
        """The execution that would have brought its outcome."""

    @property
    def executions(self) -> int:
        """Number of executions that were dispatched for it."""


def _kept(entry: Asker, info: ErrorInfo, status: Status) -> RetainedOutcome:
    outcome = messages.Outcome(
        entry.id.session, entry.id.sequence, status, info.worker, None, info.executions
    )
    return RetainedOutcome.made(outcome, error_records.encode(info))


def _worker_of(entry: Asker) -> str:
    return "" if entry.execution is None else entry.execution.worker.name


def _is_held(entry: Asker) -> bool:
    """Whether it has run, and its worker waits for room for the outcome."""
    return entry.execution is not None and entry.execution.size_bytes is not None


def _doing(entry: Asker) -> str:
    """The worker's work on the request, in words."""
    if _is_held(entry):
        return "with the outcome of the request, which had run"
    return "while it ran the request"


def deadline(entry: Asker) -> RetainedOutcome:
    """The request's deadline has passed."""
    if _is_held(entry):
        text = (
            "it has run, and the deadline passed before there was room for its outcome of "
            f"{entry.execution.size_bytes} bytes"
        )
        code, verdict = "deadline", Verdict.RAN_AND_FAILED
    elif entry.execution is not None and entry.execution.body is None:
        text = "the deadline passed while it ran; it is being stopped"
        code, verdict = "deadline", Verdict.RAN_AND_FAILED
    elif entry.execution is not None:  # the worker has not said yet that it arrived
        text = "the deadline passed after the request was dispatched; it is being stopped"
        code, verdict = "no-answer", Verdict.MAY_HAVE_RUN
    elif entry.executions:
        text = "the deadline passed while it waited for a further execution; its worker had died"
        code, verdict = "worker-lost", Verdict.MAY_HAVE_RUN
    else:
        text = "the deadline passed while it waited for a worker"
        code, verdict = "never-started", Verdict.DID_NOT_RUN
    return _error(entry, code, verdict, text, Status.ERROR)


def too_old(server_s: float | None) -> Callable[[Any], RetainedOutcome]:
    """Its execution has lasted for longer than the call, or the server, lets it."""

    def outcome(entry: Any) -> RetainedOutcome:
        most_s, whose = server_s, "this server lets an execution last (execution_s)"
        if entry.execution_s is not None and (most_s is None or entry.execution_s < most_s):
            most_s, whose = entry.execution_s, "the call lets an execution last (its execution_s)"
        limit = f"the {most_s:g} s that {whose}"
        if entry.execution.body is None:
            text = f"{limit} passed while it ran; it is being stopped"
            return _error(entry, "execution-limit", Verdict.RAN_AND_FAILED, text, Status.ERROR)
        text = f"{limit} passed after the request was dispatched; it is being stopped"
        return _error(entry, "no-answer", Verdict.MAY_HAVE_RUN, text, Status.ERROR)

    return outcome


def stopping(entry: Asker) -> RetainedOutcome:
    """The server stops, and the request is not running."""
    if entry.executions:
        text = "its worker died, and the server stops before it could run again"
        return _error(entry, "worker-lost", Verdict.MAY_HAVE_RUN, text, Status.ERROR)
    text = "the server stops; ask again when one is back"
    return _error(entry, "stopping", Verdict.DID_NOT_RUN, text, Status.ERROR)


def broken(why: str, traceback: str) -> Callable[[Any], RetainedOutcome]:
    """The environment is broken, and the request is not running.  ``why``: the exception's
    type and message, which may have several lines."""
    reason = gist(why, REASON_CHARS)

    def outcome(entry: Asker) -> RetainedOutcome:
        code, verdict = "environment-broken", Verdict.DID_NOT_RUN
        text = f"the environment cannot be set up: {reason}"
        if entry.executions:
            text = f"its worker died, and {text}"
            code, verdict = "worker-lost", Verdict.MAY_HAVE_RUN
        info = ErrorInfo(
            code=code, verdict=verdict, message=text, traceback=traceback,
            executions=entry.executions,
        )  # fmt: skip
        return _kept(entry, info, Status.ERROR)

    return outcome


def stopped(entry: Asker) -> RetainedOutcome:
    """The server stops, and the request is still running."""
    text = "the server stopped while it ran"
    if _is_held(entry):
        text = "it has run, and the server stopped before there was room for its outcome"
    return _error(entry, "cancelled", Verdict.MAY_HAVE_RUN, text, Status.CANCELLED)


def for_key(work: RetainedOutcome, entry: Asker, most_bytes: int) -> RetainedOutcome:
    """The outcome of the work of a key, for one that waits for it and whose client takes
    so many bytes."""
    payload, shared = work.payload, work.shared
    if len(payload) > most_bytes:
        return too_large(entry, len(payload), most_bytes, work.outcome.executions)
    mine = _outcome(entry.id + work.outcome[2:])  # the same, but for its id
    if shared is None:
        return RetainedOutcome.made(mine, payload)
    return RetainedOutcome(mine, payload, OUTCOME_BYTES, shared)


def said(entry: Asker, record: dict[str, Any]) -> RetainedOutcome:
    """The answer to a command by key."""
    outcome = messages.Outcome(entry.id.session, entry.id.sequence, Status.RESULT, "", None, 0)
    return RetainedOutcome.made(outcome, messages.encode_record(record))


def key_cancelled(entry: Asker, *, started: bool) -> RetainedOutcome:
    """The work of its key was cancelled, or forgotten, by name."""
    text = "the work of its key was cancelled by name"
    verdict = Verdict.MAY_HAVE_RUN if started else Verdict.DID_NOT_RUN
    code = "cancelled" if started else "never-started"
    return _error(entry, code, verdict, text, Status.CANCELLED)


def key_deadline(entry: Asker) -> RetainedOutcome:
    """The deadline of a request passes while it waits for the work of its key."""
    text = (
        "the deadline passed while it waited for the work of its key, which may go on: "
        "ask for it again"
    )
    return _error(entry, "no-answer", Verdict.MAY_HAVE_RUN, text, Status.ERROR)


def lost(
    worker: Worker, why: str, *, declared_rerun: bool, of_key: bool = False
) -> Callable[[Any], RetainedOutcome]:
    """The worker is proven dead and no further execution is allowed.  ``of_key``: it is the work
    of a key, whose executions are those of all servers with its journal."""
    of = "of its key" if of_key else "in this session"

    def outcome(entry: Any) -> RetainedOutcome:
        info = ErrorInfo(
            code="worker-lost",
            verdict=Verdict.MAY_HAVE_RUN,
            message=(
                f"the worker died {_doing(entry)} ({why}); executions {of}: "
                f"{entry.executions} of {entry.allowance} granted"
                + (
                    ""
                    if (declared_rerun if entry.rerun is None else entry.rerun)
                    else ", none further without rerun=True"
                )
            ),
            worker=worker.name,
            incarnation=worker.incarnation.hex(),
            executions=entry.executions,
        )
        return _kept(entry, info, Status.ERROR)

    return outcome


def not_durable(why: str) -> Callable[[Any], RetainedOutcome]:
    """The outcome where that of a key could not be saved, and never will be."""

    def outcome(entry: Asker) -> RetainedOutcome:
        text = f"the journal has failed, and what became of it is not safe: {why}"
        return _error(entry, "not-durable", Verdict.MAY_HAVE_RUN, text, Status.ERROR)

    return outcome


def unreadable(why: str, executions: int) -> Callable[[Any], RetainedOutcome]:
    """The outcome of a key that has run is in the journal, and could not be read."""

    def outcome(entry: Asker) -> RetainedOutcome:
        text = f"it has run, and its outcome cannot be read from the journal: {why}"
        verdict = Verdict.MAY_HAVE_RUN
        return _error(entry, "not-durable", verdict, text, Status.ERROR, executions)

    return outcome


def lost_before(executions: int) -> RetainedOutcome:
    """Outcome of a key that may have run before the server was started anew, and may not run
    again.  ``executions``: number of known ones, 0 where nothing is known."""
    known = f"; executions: {executions}" if executions else ""
    text = f"the server was lost when it may have run{known}"
    info = ErrorInfo("worker-lost", Verdict.MAY_HAVE_RUN, text, executions=executions)
    outcome = messages.Outcome(bytes(ID_BYTES), 0, Status.ERROR, "", None, executions)
    return RetainedOutcome.made(outcome, error_records.encode(info))


def lost_with_server(entry: Asker) -> RetainedOutcome:
    """It has run on a worker that lives, and what came of it was lost with the server before."""
    return lost_before(entry.executions)


def fitting(kept: RetainedOutcome, entry: Asker, most_bytes: int) -> RetainedOutcome:
    """The outcome, or, if its client could not receive it, an error that says so."""
    size_bytes = len(kept.payload)
    return kept if size_bytes <= most_bytes else too_large(entry, size_bytes, most_bytes)


def too_large(
    entry: Asker, size_bytes: int, most_bytes: int, executions: int = 0
) -> RetainedOutcome:
    """The request has run, and its client could not receive the outcome.  ``executions``: those
    of the work of its key."""
    text = (
        f"the outcome has {size_bytes} bytes, and the client takes {most_bytes} "
        "(WireLimits.message_bytes of the client; 32 MiB at most with CURVE)"
    )
    verdict = Verdict.RAN_AND_FAILED
    return _error(entry, "outcome-too-large", verdict, text, Status.ERROR, executions)


def _error(
    entry: Asker, code: str, verdict: Verdict, text: str, status: Status, of_key: int = 0
) -> RetainedOutcome:
    """``of_key``: executions of the work of the request's key, as none is the request's own."""
    info = ErrorInfo(
        code=code, verdict=verdict, message=text, worker=_worker_of(entry),
        executions=entry.executions or of_key,
    )  # fmt: skip
    return _kept(entry, info, status)
