"""Errors that end a call, and errors found at a boundary.

Theory of operation
-------------------
A call that gets no result must know which of three things is true: *it did
not run*, *it ran and failed*, *it may have run* (G9).  The three are three
base classes, so that ``except DidNotRun:`` around a retry is correct by
construction; every concrete class derives from exactly one of them and says
what to do next in its message.

Errors travel as :class:`ErrorInfo`, a plain record.  ``code`` picks the class
on the client (:func:`error_from_info`): its own, or :class:`RolloutFailed` for the
codes of what a rollout raised.  An unknown code becomes the base class
of its verdict, so that an older client still tells the truth.  The answers for
programs (fault, mask, again) are those of the code's row in :mod:`.endings`.
"""

from __future__ import annotations

import dataclasses
import re
from typing import ClassVar

from .endings import ENDINGS, RAISED, Ending, Fault, ending_of
from .stack_frames import is_authors
from .terms import Verdict


@dataclasses.dataclass(frozen=True, slots=True)
class ErrorInfo:
    """The record of a failure, as it travels from worker or router."""

    code: str
    """Stable name of the error, for programs."""
    verdict: Verdict
    """Whether it ran."""
    message: str
    """Description for people."""
    type: str = ""
    """The class of the exception, if one was raised."""
    traceback: str = ""
    """The exception's traceback."""
    worker: str = ""
    """The worker that ran it: slot and life."""
    incarnation: str = ""
    """The process of that worker."""
    duration_s: float | None = None
    """Duration of the execution in seconds; None if it never began."""
    executions: int = 0
    """Number of executions that were started."""
    retry_after_s: float | None = None
    """Seconds for which something that the environment needs will be down, where it said so
    (``EnvironmentUnavailable``)."""


class EnvServeError(Exception):
    """Base class of every error this package raises on purpose."""


class ConfigError(EnvServeError, ValueError):
    """An argument, an option or a file is wrong; nothing was started."""


class ProtocolError(EnvServeError):
    """A message that the protocol document does not allow."""


class ServerNotReady(EnvServeError):
    """The server was not ready in time.  The message says why, as far as known."""


class ServerStartError(EnvServeError):
    """A server could not be opened.  The message says what to do."""


class ServerNotClosed(EnvServeError):
    """A server has closed, but something of it still runs: environment code that ignores
    its cancellation, or a process that cannot be killed.  The message says what, and where."""


class EnvironmentUnavailable(EnvServeError):
    """Raised by an environment whose rollout cannot go on because something that it needs is
    down: a sandbox service, a database, a browser.  It says "not me, the infrastructure".

    The rollout has failed (``environment-unavailable``), is left out of the gradient, and
    counts for ``pause_after_errors``.

    Args:
        why: Name of the service that is down, for people.
        retry_after_s: How long it will be down, in seconds, as far as is known; part of the
            message.
    """

    code = "environment-unavailable"

    def __init__(self, why: str, retry_after_s: float | None = None) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        why = super().__str__()
        again_s = self.retry_after_s
        return why if again_s is None else f"{why} (try again after {again_s:g} s)"


class CallError(EnvServeError):
    """Base of the errors that end a call.  ``verdict`` says what is known."""

    verdict: ClassVar[Verdict]
    code: str = ""
    """A stable name of how it ended: ``core/endings.py`` has the table."""

    def __init__(self, message: str, info: ErrorInfo | None = None) -> None:
        super().__init__(message)
        self.info = info
        """The record that came over the wire, or None if the client decided."""
        if info is not None and info.code and info.verdict is self.verdict:
            self.code = info.code

    @property
    def ending(self) -> Ending:
        """The row of its code."""
        return ending_of(self.code, self.verdict)

    @property
    def fault(self) -> Fault:
        """The party that it is put down to."""
        return self.ending.fault

    @property
    def mask(self) -> bool:
        """Whether to leave the rollout out of the gradient."""
        return self.ending.mask

    @property
    def again(self) -> bool:
        """Whether asking again can end otherwise.  ``verdict`` says whether that might be a
        second run."""
        return self.ending.again

    @property
    def retry_after_s(self) -> float | None:
        """Seconds to wait before asking again, where the environment said so
        (``EnvironmentUnavailable``)."""
        return None if self.info is None else self.info.retry_after_s

    def __str__(self) -> str:
        return f"{super().__str__()} ({self.verdict.value})"


class DidNotRun(CallError):
    """The environment never saw the request: asking again is safe."""

    verdict = Verdict.DID_NOT_RUN


class RanAndFailed(CallError):
    """The environment ran the request, and it failed."""

    verdict = Verdict.RAN_AND_FAILED


class MayHaveRun(CallError):
    """The request may have run, in part or whole; its outcome is lost.

    Asking again may run it twice.  Whether that is acceptable only the caller
    can know: give ``rerun=True`` to let the server decide it for you.
    """

    verdict = Verdict.MAY_HAVE_RUN


class NotEncodable(DidNotRun, ValueError):
    """The input holds something that has no encoding; ``path`` says where."""

    code = "not-encodable"

    def __init__(self, message: str, path: str = "", info: ErrorInfo | None = None) -> None:
        super().__init__(message, info)
        self.path = path


class TooLarge(DidNotRun):
    """The encoded request exceeds the message size agreed with the server."""

    code = "too-large"


class Conflict(DidNotRun):
    """The id was already used for a request with another payload (G6)."""

    code = "conflict"


class KeyConflict(DidNotRun):
    """Under this key another input was asked, or the same with another consent (``rerun``).
    That work goes on; this input did not run.  Take another key, or forget this one."""

    code = "key-conflict"


class RequestRefused(DidNotRun):
    """The server refused the request for good; the message says why."""

    code = "refused"


class NeverStarted(DidNotRun):
    """The caller's limit passed, or its key was cancelled, before the request was
    dispatched; it never will be."""

    code = "never-started"


class ServerUnreachable(DidNotRun):
    """No server was found within the limit, and nothing was transmitted."""

    code = "server-unreachable"


class EnvironmentBroken(DidNotRun, ServerStartError, ServerNotReady):
    """No worker can set the environment up: its name is wrong, importing it fails, or it
    raises.  ``info``, if there is one, has the traceback; so has the server's log.

    Fix the environment; the server goes on trying to start workers.
    """

    code = "environment-broken"

    def __str__(self) -> str:
        # Often a traceback follows, to whose last line nothing belongs.
        first, newline, rest = str(self.args[0]).partition("\n")
        colon = ":" if newline and first.endswith(":") else ""
        return f"{first.removesuffix(colon)} ({self.verdict.value}){colon}{newline}{rest}"


class RolloutFailed(RanAndFailed):
    """The environment raised.  ``info`` has type, message and traceback.

    ``code`` tells apart what it raised: ``rollout-failed``, ``model-unavailable``,
    ``environment-unavailable`` and so on.
    """

    code = "rollout-failed"


class DeadlineExceeded(RanAndFailed):
    """The execution was stopped at its deadline."""

    code = "deadline"


class ExecutionLimit(DeadlineExceeded):
    """The execution lasted for longer than ``execution_s``, of the call or of the server, or
    worked for longer than the call's ``working_s``, and was stopped.  The message says which
    limit it was."""

    code = "execution-limit"


class OutcomeNotEncodable(RanAndFailed):
    """The environment returned something that has no encoding."""

    code = "outcome-not-encodable"


class OutcomeNotDecodable(RanAndFailed):
    """The outcome arrived but could not be decoded; ``raw`` has its bytes.

    It counts as received: the server may have forgotten it.
    """

    code = "outcome-not-decodable"

    def __init__(self, message: str, raw: bytes = b"", info: ErrorInfo | None = None) -> None:
        super().__init__(message, info)
        self.raw = raw


class OutcomeTooLarge(RanAndFailed):
    """The encoded outcome exceeds the message size of the server."""

    code = "outcome-too-large"


class WorkerLost(MayHaveRun):
    """The worker process died while it ran the request, and no further
    execution was allowed."""

    code = "worker-lost"


class InterpreterHeld(WorkerLost):
    """The code of this very request held the interpreter of its worker until that was killed for
    its silence; the message says where.  Leave it out of a second round, or change what it
    calls: a function that may hang is to be called apart (``rollout.apart``)."""

    code = "interpreter-held"


class ServerLost(MayHaveRun):
    """The server, or its memory of the session, is gone."""

    code = "server-lost"


class UnknownKey(MayHaveRun):
    """Nothing is known under the key: what was asked earlier is no longer retained, was
    cancelled or forgotten, or its server has ended.  Asking again runs it again."""

    code = "unknown-key"


class NotDurable(MayHaveRun):
    """The server's journal has failed for good, and what became of the request is not safe.
    Ask the next server under the same key."""

    code = "not-durable"


class NoAnswer(MayHaveRun):
    """The caller's limit passed and the server did not say what happened; or the work of
    its key may go on: ask for it again."""

    code = "no-answer"


class Abandoned(MayHaveRun):
    """The client was closed while the request was under way."""

    code = "abandoned"


class ExecutionCancelled(MayHaveRun):
    """The request was cancelled on the server's side: the work of its key was cancelled or
    forgotten by name."""

    code = "cancelled"


_BASES: dict[Verdict, type[CallError]] = {
    Verdict.DID_NOT_RUN: DidNotRun,
    Verdict.RAN_AND_FAILED: RanAndFailed,
    Verdict.MAY_HAVE_RUN: MayHaveRun,
}

_CLASSES: dict[tuple[str, Verdict], type[CallError]] = {
    (code, ENDINGS[code].verdict): RolloutFailed for code in RAISED
}
_CLASSES |= {
    (cls.code, cls.verdict): cls
    for cls in (
        NotEncodable,
        TooLarge,
        Conflict,
        KeyConflict,
        RequestRefused,
        NeverStarted,
        ServerUnreachable,
        EnvironmentBroken,
        RolloutFailed,
        DeadlineExceeded,
        ExecutionLimit,
        OutcomeNotEncodable,
        OutcomeTooLarge,
        WorkerLost,
        InterpreterHeld,
        ServerLost,
        UnknownKey,
        NotDurable,
        NoAnswer,
        Abandoned,
        ExecutionCancelled,
    )
}


def error_from_info(info: ErrorInfo) -> CallError:
    """The exception for a record: the class of its code, or, for a code that
    this version does not know, the base class of its verdict."""
    cls = _CLASSES.get((info.code, info.verdict), _BASES[info.verdict])
    where = f" [worker {info.worker}]" if info.worker else ""
    what = f"{short_type(info.type)}: {info.message}" if info.type else info.message
    error = cls(f"{what}{_raised_at(info)}{where}", info=info)
    if info.traceback:
        error.add_note(f"In the environment:\n{info.traceback.rstrip()}")
    return error


def short_type(name: str) -> str:
    """The type of an exception for people: one of this package without its module."""
    return name.rpartition(".")[2] if name.startswith("trio_envserve.") else name


def _raised_at(info: ErrorInfo) -> str:
    """The author's line at which the environment raised, as far as the traceback says and the
    message does not."""
    found = _LINE.findall(info.traceback) if info.code in RAISED else ()
    if not found or 'File "' in info.message:
        return ""
    authors = [each for each in found if is_authors(each[0])]
    # The author's code may be installed, and so may the libraries that it calls.
    near = [each for each in authors if "/site-packages/" not in each[0]]
    file, number, function = (near or authors or found)[-1]
    return f" at {file.rpartition('/')[2]}:{number}" + (f" in {function}" if function else "")


_LINE = re.compile(r'^ *File "([^"\n]+)", line (\d+)(?:, in (\S+))?', re.MULTILINE)
