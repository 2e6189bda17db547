"""Outcomes that the router itself gives because no worker can.

Each is made from what the router knows of the request at that moment, and has the verdict that is
true by then: it did not run, it ran and failed, or it may have run (G9).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from . import error_records, messages
from .errors import ErrorInfo
from .executions import Worker
from .requests import OUTCOME_BYTES, RetainedOutcome
from .terms import ID_BYTES, RequestId, Status, Verdict, gist, weight

REASON_CHARS = 600
"""Most characters of the exception of a broken environment in a message; the traceback beside it
has more."""


class Asker(Protocol):
    """The receiver of an outcome: a work, or a ticket, which has no execution of its own."""

    @property
    def id(self) -> RequestId:
        """Id of the request that the outcome answers."""

    @property
    def execution(self) -> Any:
        """Execution that was to bring the outcome; None if there is none."""

    @property
    def executions(self) -> int:
        """Number of executions that were dispatched for it."""


def _kept(asker: Asker, info: ErrorInfo, status: Status) -> RetainedOutcome:
    outcome = messages.Outcome(
        asker.id.session, asker.id.sequence, status, info.worker, None, info.executions
    )
    return RetainedOutcome.made(outcome, error_records.encode(info))


def _worker_of(asker: Asker) -> str:
    return "" if asker.execution is None else asker.execution.worker.name


def _is_held(asker: Asker) -> bool:
    """Whether its code has ended and its worker still holds the outcome."""
    return asker.execution is not None and asker.execution.size_bytes is not None


def _doing(asker: Asker) -> str:
    """The activity of the worker when it died, in words."""
    if _is_held(asker):
        return "with the outcome of the request, which had run"
    return "while it ran the request"


def _held(asker: Asker) -> str:
    """Who holds the interpreter of the worker, if somebody does, to follow another text."""
    held = asker.execution.worker.held
    return held and f"; its worker cannot do that now: {held}"


def deadline(asker: Asker) -> RetainedOutcome:
    """The outcome of a request whose deadline has passed."""
    if _is_held(asker):
        text = (
            "it has run, and the deadline passed before the server had memory for its outcome of "
            f"{asker.execution.size_bytes} bytes"
        )
        code, verdict = "deadline", Verdict.RAN_AND_FAILED
    elif asker.execution is not None and asker.execution.has_arrived:
        text = f"the deadline passed while it ran; it is being stopped{_held(asker)}"
        code, verdict = "deadline", Verdict.RAN_AND_FAILED
    elif asker.execution is not None:  # the worker has not confirmed the dispatch yet
        text = "the deadline passed after the request was dispatched; it is being stopped"
        text += _held(asker)
        code, verdict = "no-answer", Verdict.MAY_HAVE_RUN
    elif asker.executions:
        text = "the deadline passed while it waited for a further execution; its worker had died"
        code, verdict = "worker-lost", Verdict.MAY_HAVE_RUN
    else:
        text = "the deadline passed while it waited for a worker"
        code, verdict = "never-started", Verdict.DID_NOT_RUN
    return _error(asker, code, verdict, text, Status.ERROR)


def too_old(server_s: float | None) -> Callable[[Any], RetainedOutcome]:
    """The outcome of a request whose execution has lasted longer than the call or the server
    allows.  ``server_s``: the server's limit ``execution_s``."""

    def outcome(asker: Any) -> RetainedOutcome:
        most_s, whose = server_s, "this server lets an execution last (execution_s)"
        if asker.execution_s is not None and (most_s is None or asker.execution_s < most_s):
            most_s, whose = asker.execution_s, "the call lets an execution last (its execution_s)"
            if asker.grace_s is not None:
                whose = f"{whose[:-1]}, and {asker.grace_s:g} s of them its grace_s)"
        limit = f"the {most_s:g} s that {whose}"
        if asker.execution.has_arrived:
            text = f"{limit} passed while it ran; it is being stopped{_held(asker)}"
            return _error(asker, "execution-limit", Verdict.RAN_AND_FAILED, text, Status.ERROR)
        text = f"{limit} passed after the request was dispatched; it is being stopped"
        text += _held(asker)
        return _error(asker, "no-answer", Verdict.MAY_HAVE_RUN, text, Status.ERROR)

    return outcome


def stopping(asker: Asker) -> RetainedOutcome:
    """The outcome of a request that does not run when the server stops."""
    if asker.executions:
        text = "its worker died, and the server stops before it could run again"
        return _error(asker, "worker-lost", Verdict.MAY_HAVE_RUN, text, Status.ERROR)
    text = "the server stops; ask again when one is back"
    return _error(asker, "stopping", Verdict.DID_NOT_RUN, text, Status.ERROR)


def broken(why: str, traceback: str) -> Callable[[Any], RetainedOutcome]:
    """The outcome of a request that does not run when the environment is broken.  ``why``: the
    exception's type and message, which may have several lines."""
    reason = gist(why, REASON_CHARS)

    def outcome(asker: Asker) -> RetainedOutcome:
        code, verdict = "environment-broken", Verdict.DID_NOT_RUN
        text = f"the environment cannot be set up: {reason}"
        if asker.executions:
            text = f"its worker died, and {text}"
            code, verdict = "worker-lost", Verdict.MAY_HAVE_RUN
        info = ErrorInfo(
            code=code, verdict=verdict, message=text, traceback=traceback,
            executions=asker.executions,
        )  # fmt: skip
        return _kept(asker, info, Status.ERROR)

    return outcome


def stopped(asker: Asker) -> RetainedOutcome:
    """The outcome of a request that still runs when the server stops."""
    text = "the server stopped while it ran"
    if _is_held(asker):
        text = "it has run, and the server stopped before it had memory for its outcome"
    return _error(asker, "server-stopped", Verdict.MAY_HAVE_RUN, text, Status.CANCELLED)


def for_key(work: RetainedOutcome, asker: Asker, most_bytes: int) -> RetainedOutcome:
    """The outcome of the work of a key for one of its tickets, whose client takes messages of
    ``most_bytes``."""
    payload, shared = work.payload, work.shared
    size_bytes = weight(payload)
    if size_bytes > most_bytes:
        return too_large(asker, size_bytes, most_bytes, work.outcome.executions)
    session, sequence = asker.id
    mine = work.outcome._replace(session=session, sequence=sequence)
    if shared is None:
        return RetainedOutcome.made(mine, payload)
    return RetainedOutcome(mine, payload, OUTCOME_BYTES, shared)


def of_record(record: dict[str, Any]) -> Callable[[Any], RetainedOutcome]:
    """The outcome of a command by key: a record."""

    def outcome(asker: Asker) -> RetainedOutcome:
        header = messages.Outcome(asker.id.session, asker.id.sequence, Status.RESULT, "", None, 0)
        return RetainedOutcome.made(header, messages.encode_record(record))

    return outcome


def key_cancelled(*, started: bool) -> Callable[[Any], RetainedOutcome]:
    """The outcome of a request with a key whose work was cancelled or forgotten by name.
    ``started``: whether it may have run."""

    def outcome(asker: Asker) -> RetainedOutcome:
        text = "the work of its key was cancelled by name"
        verdict = Verdict.MAY_HAVE_RUN if started else Verdict.DID_NOT_RUN
        code = "cancelled" if started else "never-started"
        return _error(asker, code, verdict, text, Status.CANCELLED)

    return outcome


def key_deadline(asker: Asker) -> RetainedOutcome:
    """The outcome of a request whose deadline passed while it waited for the work of its key."""
    text = (
        "the deadline passed while it waited for the work of its key, which may go on: "
        "ask for it again"
    )
    return _error(asker, "no-answer", Verdict.MAY_HAVE_RUN, text, Status.ERROR)


def lost(
    worker: Worker, why: str, *, declared_rerun: bool, of_key: bool = False,
    is_holder: bool = False,
) -> Callable[[Any], RetainedOutcome]:  # fmt: skip
    """The outcome of a request whose worker is proven dead and that may not run again.
    ``of_key``: whether it is the work of a key, whose executions by all servers with its journal
    count.  ``is_holder``: whether its code held the worker's interpreter."""
    of = "of its key" if of_key else "in this session"

    def outcome(asker: Any) -> RetainedOutcome:
        info = ErrorInfo(
            code="interpreter-held" if is_holder else "worker-lost",
            verdict=Verdict.MAY_HAVE_RUN,
            message=(
                f"the worker died {_doing(asker)} ({why}); executions {of}: "
                f"{asker.executions} of {asker.allowance} granted"
                + (
                    ""
                    if (declared_rerun if asker.rerun is None else asker.rerun)
                    else ", none further without rerun=True"
                )
                + _saved(asker.saves)
            ),
            worker=worker.name,
            incarnation=worker.incarnation.hex(),
            executions=asker.executions,
        )
        return _kept(asker, info, Status.ERROR)

    return outcome


def not_durable(why: str) -> Callable[[Any], RetainedOutcome]:
    """The outcome of a key whose true outcome could not be saved."""

    def outcome(asker: Asker) -> RetainedOutcome:
        text = f"it may have run, but the journal failed before its outcome was safe: {why}"
        return _error(asker, "not-durable", Verdict.MAY_HAVE_RUN, text, Status.ERROR)

    return outcome


def unreadable(why: str, executions: int) -> Callable[[Any], RetainedOutcome]:
    """The outcome of a key whose true outcome is in the journal and could not be read."""

    def outcome(asker: Asker) -> RetainedOutcome:
        text = f"it has run, and its outcome cannot be read from the journal: {why}"
        verdict = Verdict.MAY_HAVE_RUN
        return _error(asker, "not-durable", verdict, text, Status.ERROR, executions)

    return outcome


def _saved(saves: int) -> str:
    """The number of states that executions had saved, as the end of a message."""
    return f"; states saved before: {saves}" if saves else ""


def lost_before(executions: int, saves: int = 0) -> RetainedOutcome:
    """The outcome of a key that may have run under an earlier server and may not run again.
    ``executions``: number of its known executions; 0 if none is known.  ``saves``: number of
    states that they had saved."""
    known = f"; executions: {executions}" if executions else ""
    text = f"it may have run on a server that was lost{known}{_saved(saves)}"
    info = ErrorInfo("worker-lost", Verdict.MAY_HAVE_RUN, text, executions=executions)
    outcome = messages.Outcome(bytes(ID_BYTES), 0, Status.ERROR, "", None, executions)
    return RetainedOutcome.made(outcome, error_records.encode(info))


def lost_with_server(asker: Asker) -> RetainedOutcome:
    """The outcome of a work that ran on a surviving worker, and whose true outcome was lost with
    the earlier server."""
    return lost_before(asker.executions)


def fitting(kept: RetainedOutcome, asker: Asker, most_bytes: int) -> RetainedOutcome:
    """An outcome as its client can receive it: unchanged, or the error that it is too large."""
    size_bytes = kept.size_bytes - OUTCOME_BYTES
    return kept if size_bytes <= most_bytes else too_large(asker, size_bytes, most_bytes)


def too_large(
    asker: Asker, size_bytes: int, most_bytes: int, executions: int = 0
) -> RetainedOutcome:
    """The outcome of a request that has run, and whose true outcome its client could not receive.
    ``executions``: number of executions of the work of its key."""
    text = (
        f"the outcome has {size_bytes} bytes, and the client takes {most_bytes} "
        "(WireLimits.message_bytes of the client; 32 MiB at most with CURVE)"
    )
    verdict = Verdict.RAN_AND_FAILED
    return _error(asker, "outcome-too-large", verdict, text, Status.ERROR, executions)


def _error(
    asker: Asker, code: str, verdict: Verdict, text: str, status: Status, of_key: int = 0
) -> RetainedOutcome:
    """An outcome with an error.  ``of_key``: number of executions of the work of its key, for a
    ticket, which has none of its own."""
    info = ErrorInfo(
        code=code, verdict=verdict, message=text, worker=_worker_of(asker),
        executions=asker.executions or of_key,
    )  # fmt: skip
    return _kept(asker, info, status)
