"""The outcome of a call: a value or an error, and where and how long it ran."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..core.endings import RAISED
from ..core.errors import (
    CallError,
    ErrorInfo,
    MayHaveRun,
    NotEncodable,
    RolloutFailed,
    error_from_info,
)
from ..core.messages import is_seconds
from ..core.terms import Verdict
from ..core.values import EncodingError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one call, or of one member of a group."""

    value: Any = None
    """The environment's result; None if there is an error."""
    error: CallError | None = None
    """Why there is no value, and whether it ran."""
    worker: str = ""
    """The worker that ran it; empty if that is not known."""
    duration_s: float | None = None
    """Duration of the execution on the worker, in seconds."""
    executions: int = 0
    """Number of executions by the answering server, and by earlier servers with its journal; more
    than one only by consent.  Of a call without a key, and without a journal,
    servers that were lost before may have started others."""
    took_s: float = 0.0
    """Wait of the caller, in seconds."""

    @property
    def ok(self) -> bool:
        """Whether there is a value."""
        return self.error is None

    def unwrap(self) -> Any:
        """The value, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value

    @classmethod
    def failed(cls, error: CallError, *, took_s: float = 0.0) -> Outcome:
        """An outcome that the client itself decided."""
        return cls(error=error, took_s=took_s)

    @classmethod
    def members(cls, whole: Outcome) -> list[Outcome]:
        """The members of a group's outcome.  Raises the group's own error if there is
        one, and MayHaveRun if the value is not a group's."""
        records = whole.unwrap()
        try:
            return [cls._member(whole, record) for record in records]
        except (KeyError, TypeError) as problem:
            raise MayHaveRun(f"the outcome is not that of a group: {problem!r}") from None

    @classmethod
    def _member(cls, whole: Outcome, record: dict[str, Any]) -> Outcome:
        if record["ok"]:
            return dataclasses.replace(whole, value=record["value"])
        failure = record["error"]
        code, again_s = failure.get("code"), failure.get("retry_after_s")
        info = ErrorInfo(
            code=code if code in RAISED else RolloutFailed.code,
            verdict=Verdict.RAN_AND_FAILED, message=failure["message"],
            type=failure["type"], traceback=failure["traceback"], worker=whole.worker,
            retry_after_s=again_s if is_seconds(again_s) else None,
        )  # fmt: skip
        return dataclasses.replace(whole, value=None, error=error_from_info(info))


def not_encodable(error: EncodingError) -> NotEncodable:
    """The error of a call whose input has no encoding."""
    return NotEncodable(str(error), path=error.path)
