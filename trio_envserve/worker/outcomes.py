"""The outcomes of executions, made from the value or the error of the environment's code.

Theory of operation
-------------------
The body of a dispatch is decoded, the environment runs, and its value is encoded.  Each step may
fail, and then the outcome is an error that names the step.  Cancellation is no outcome here: a
cancelled scope ends these methods, and the shell, which owns the scope, calls
:meth:`OutcomeMaker.cancelled`.

A large body is decoded in a thread, and a large value is encoded in one (:mod:`.long_values`).

A value that does not fit into a message is cut, its screenshots first: see
:mod:`~trio_envserve.envs.cutting`.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, NamedTuple, TypeAlias, final

import trio

from .. import foreign
from ..core import error_records, values
from ..core.errors import ConfigError, ErrorInfo
from ..core.limits import KIB, WireLimits
from ..core.terms import Body, Incarnation, SentBody, Status, Verdict, pieces_of, weight
from ..envs.cutting import smaller
from ..envs.request import RolloutRequest
from ..redaction import found_in
from ..turns import Threads
from .failures import (
    EnvironmentFailure,
    code_of,
    describe_exception,
    described_cause,
    failure_record,
    log,
    retry_after_of,
)
from .long_values import worked
from .runners import ExecutionContext, Runner

Outcome: TypeAlias = tuple[Status, SentBody]


@final
class Returned(NamedTuple):
    """The value of an execution."""

    value: Any
    of_group: bool
    """Whether it is the records of a group's members."""


@final
class OutcomeMaker:
    """Makes the outcomes of one incarnation's executions.  ``began_s`` is the begin of one."""

    def __init__(
        self, runner: Runner, *, worker: str, incarnation: Incarnation, wire: WireLimits
    ) -> None:
        self._runner = runner
        self._worker = worker
        self._incarnation = incarnation
        self._wire = wire
        self._threads = Threads()
        self._named: set[str] = set()
        """Names of secrets that were found in results, and reported."""

    async def decoded(self, body: Body) -> foreign.CodeResult:
        """The decoded request."""
        return await worked(self._threads, partial(foreign.call, self._request, body))

    async def run(
        self, request: str, asked: foreign.CodeResult, began_s: float, context: ExecutionContext
    ) -> Outcome | Returned:
        """Run the environment; returns its value, or an error with the reason."""
        if asked.error is not None:
            return self._error("refused", asked.error, began_s, Verdict.DID_NOT_RUN)
        try:
            value = await self._runner.run(asked.value, request_id=request, context=context)
        except ConfigError as error:
            return self._error("refused", error, began_s, Verdict.DID_NOT_RUN)
        except EnvironmentFailure as failure:
            log(logging.INFO, "request %s failed: %s", request, failure, about=failure.exception)
            return self._error(code_of(failure), failure, began_s, Verdict.RAN_AND_FAILED)
        return Returned(value, of_group=asked.value.kind == "group")

    async def of(self, returned: Returned, began_s: float) -> Outcome:
        """The result, or an error if the value cannot be sent."""
        encoded = await worked(self._threads, partial(self._fitting, *returned))
        return self._result(encoded, began_s)

    def cancelled(self, began_s: float) -> Outcome:
        """The outcome of an execution that was cancelled after its code had begun."""
        info = ErrorInfo(
            code="cancelled",
            verdict=Verdict.MAY_HAVE_RUN,
            duration_s=trio.current_time() - began_s,
            message="the execution was cancelled",
            worker=self._worker,
            incarnation=self._incarnation.hex(),
        )
        return Status.CANCELLED, error_records.encode(info)

    def overworked(self, began_s: float, working_s: float, waited_s: float) -> Outcome:
        """The outcome of an execution that was ended since it worked for longer than it may."""
        waited = f" (it has waited for the model's endpoint for {waited_s:.1f} s besides)"
        info = ErrorInfo(
            code="execution-limit",
            verdict=Verdict.RAN_AND_FAILED,
            duration_s=trio.current_time() - began_s,
            message=f"the {working_s:g} s that the call lets an execution work (its working_s) "
            f"passed while it ran{waited if waited_s >= 0.05 else ''}; it was stopped",
            worker=self._worker,
            incarnation=self._incarnation.hex(),
        )
        return Status.ERROR, error_records.encode(info)

    def _request(self, body: Body, **how: Any) -> RolloutRequest:
        return RolloutRequest.from_body(
            values.decode(body, root="request", limits=self._wire, **how)
        )

    def _encode(self, value: Any, root: str = "result", **how: Any) -> foreign.CodeResult:
        return foreign.call(values.encode_to_send, value, root=root, limits=self._wire, **how)

    def _encodable(self, records: list[Any], **how: Any) -> list[Any]:
        """The records of a group, with an error in the place of each that has no encoding."""
        found = []
        for number, record in enumerate(records):
            error = self._encode(record, f"result[{number}]", **how).error
            if error is not None and not _is_for_later(error):
                failure = EnvironmentFailure(_not_encodable(error), attempts=1, during="group")
                record = {"ok": False, "error": failure_record(failure)}
            found.append(record)
        return found

    def _fitting(self, value: Any, of_group: bool, **how: Any) -> foreign.CodeResult:
        """The encoding of a value, from which parts are cut until it fits into a message."""
        encoded = self._encode(value, **how)
        if encoded.error is not None and not _is_for_later(encoded.error) and of_group:
            if "at_once" in how:  # each member may take as long as a value may
                return foreign.CodeResult(error=values.TooMuchWork())
            value = self._encodable(value, **how)  # one member costs the others nothing
            encoded = self._encode(value, **how)
        most_bytes = self._wire.message_bytes
        if encoded.error is not None or weight(encoded.value) <= most_bytes:
            return encoded
        for less in smaller(value, weight(encoded.value), most_bytes, self._limit()):
            cut = self._encode(less, **how)
            if cut.error is not None:
                return cut
            if weight(cut.value) <= most_bytes:
                log(logging.WARNING, "a result of %d bytes was cut", weight(encoded.value))
                return cut
        return encoded

    def _limit(self) -> str:
        """The bound on a result, and how to raise it."""
        return (
            f"a message has at most {self._wire.message_bytes} (WireLimits.message_bytes of "
            "server and client; 32 MiB at most with CURVE)"
        )

    def _result(self, encoded: foreign.CodeResult, began_s: float) -> Outcome:
        if encoded.error is not None:
            told = _not_encodable(encoded.error)
            return self._error("outcome-not-encodable", told, began_s, Verdict.RAN_AND_FAILED)
        payload: SentBody = encoded.value
        for name in found_in(pieces_of(payload)):
            if name not in self._named:
                self._named.add(name)
                log(logging.WARNING, "a result holds the value of $%s, and is not changed", name)
        if weight(payload) > self._wire.message_bytes:
            text = f"the outcome has {weight(payload)} bytes, and {self._limit()}. Return less"
            return self._error(
                "outcome-too-large", ConfigError(text), began_s, Verdict.RAN_AND_FAILED
            )
        return Status.RESULT, payload

    def _error(self, code: str, error: BaseException, began_s: float, verdict: Verdict) -> Outcome:
        duration_s = trio.current_time() - began_s
        info = described(error, code, self._worker, verdict, self._incarnation, duration_s)
        # However long its texts are, the record must fit into a frame.
        most_bytes = min(128 * KIB, self._wire.message_bytes // 8)
        return Status.ERROR, error_records.encode(info, most_bytes=most_bytes)


def _is_for_later(error: BaseException) -> bool:
    """Whether a value may have an encoding elsewhere: in a thread, or in its own."""
    kinds = (values.TooMuchWork, values.NotHere)
    return any(foreign.is_exception(error, kind) for kind in kinds)


def _not_encodable(error: BaseException) -> BaseException:
    """The error of encoding a value, in words: the value's code may raise anything."""
    if isinstance(error, values.EncodingError):
        return error
    about = describe_exception(error)
    text = f"result: encoding it raised {about.type}: {about.message}"
    told = values.EncodingError(text, "result", about.type)
    told.__cause__ = error
    return told


def described(
    error: BaseException, code: str, worker: str, verdict: Verdict = Verdict.DID_NOT_RUN,
    incarnation: Incarnation = b"", duration_s: float | None = None,
) -> ErrorInfo:  # fmt: skip
    """The record of a failure, as it is sent."""
    about = describe_exception(error)
    if isinstance(error, ConfigError):  # our own message, which says what to do
        cause = described_cause(error)
        about = about._replace(traceback=f"{cause}\n{about.message}" if cause else "")
    return ErrorInfo(
        code=code, verdict=verdict, message=about.message, type=about.type,
        traceback=about.traceback, worker=worker, incarnation=incarnation.hex(),
        duration_s=duration_s, retry_after_s=retry_after_of(error),
    )  # fmt: skip
