"""The result of one rollout: from an outcome, as a record, and from a record.

Theory of operation
-------------------
A file of results has a record for each rollout.  Its fields are declared once, by
:class:`RolloutResult` and :class:`RolloutFailure`: name, meaning, how a value is read that
anybody may have written, and the type in a table.  Writing, reading, tables and the page on
evaluations follow.  ``reward``, ``metrics`` and ``usage`` are read from the value by this module,
so that no reader has to guess.

A rollout has the name (``index``, ``repeat``).  If a file has several records of one name,
the last one counts.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, get_type_hints

from .. import foreign
from ..client import Outcome
from ..core.endings import Ending, Fault, ending_of
from ..core.errors import short_type
from ..core.terms import Verdict
from ..envs.rewards import REWARD, number_of, numbers_of, scores_of
from ..json_values import base64_text, jsonable, restored
from .plain import headline

Name: TypeAlias = tuple[int, int]
"""The index of the input, and the number of the repeat."""

FAULTS = tuple(fault.value for fault in Fault)
"""The parties that errors are put down to."""

_VERDICTS = {verdict.value: verdict for verdict in Verdict}

_USAGE_WORDS = {
    "calls": "model calls", "failed": "model calls that failed", "retries": "model retries",
    "waited_s": "seconds of waiting for the model",
}  # fmt: skip

_COUNTS = frozenset({*_USAGE_WORDS, "prompt_tokens", "completion_tokens"})
"""Counts of a further model's usage."""

_UNREAD: Final = object()
"""A value that is none of its field's, which counts as if it were not there."""


class Kind(NamedTuple):
    """The reader of a record's field, and the field's type in a table."""

    read: Callable[[Any], Any]
    """Reads a value that anybody may have written; ``_UNREAD`` for none of its field's."""
    arrow: str
    """``int64``, ``float64``, ``string``, ``numbers`` or ``failure``."""


def _text(value: Any) -> str:
    return sys.intern(str(value or ""))


def _whole(value: Any) -> Any:
    is_whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63
    return value if is_whole else _UNREAD


def _seconds(value: Any) -> Any:
    number = number_of(value)
    return number if number is not None and math.isfinite(number) else _UNREAD


def _number(value: Any) -> float | None:
    return number_of(restored(value))


def _numbers(value: Any) -> Any:
    return (numbers_of(restored(value)) or {}) if isinstance(value, Mapping) else _UNREAD


def _failure_from(error: Any) -> RolloutFailure | None:
    if error is None:
        return None
    if not isinstance(error, Mapping):
        return RolloutFailure("error", message=str(error))
    return RolloutFailure(**{kept: str(error.get(name) or "") for name, kept in FAILURE.items()})


Whole: TypeAlias = Annotated[int, Kind(_whole, "int64")]
Text: TypeAlias = Annotated[str, Kind(_text, "string")]
Number: TypeAlias = Annotated["float | None", Kind(_number, "float64")]
Seconds: TypeAlias = Annotated["float | None", Kind(_seconds, "float64")]
Numbers: TypeAlias = Annotated[Mapping[str, float], Kind(_numbers, "numbers")]


@dataclasses.dataclass(frozen=True, slots=True)
class RolloutFailure:
    """The error of a rollout."""

    kind: str
    """The class of the error, such as ``RolloutFailed``."""
    verdict: str = ""
    type: str = ""
    """The type of the environment's exception."""
    message: str = ""
    traceback: str = ""
    code: str = ""
    """Code of its ending; empty in files of earlier versions."""

    @property
    def fault(self) -> str:
        """The party that it is put down to: one of :data:`FAULTS`."""
        return self._ending.fault.value

    @property
    def mask(self) -> bool:
        """Whether it is left out of the gradient."""
        return self._ending.mask

    def to_record(self, *, traceback: bool = True) -> dict[str, str]:
        """The error as it stands in a record, or without its traceback in a summary."""
        told = {name: str(getattr(self, kept)) for name, kept in FAILURE.items()}
        if not traceback:
            del told["traceback"]
        return {**told, "fault": self.fault}

    @property
    def _ending(self) -> Ending:
        return ending_of(self.code, _VERDICTS.get(self.verdict, Verdict.MAY_HAVE_RUN))


def failure_line(error: Mapping[str, str]) -> str:
    """What a recorded error says first, on one line."""
    return headline(f"{short_type(error['type']) or error['class']}: {error['message'].strip()}")


FAILURE: Mapping[str, str] = {
    "class": "kind", "code": "code", "verdict": "verdict", "type": "type", "message": "message",
    "traceback": "traceback",
}  # fmt: skip
"""Fields of an error in a record, with the attributes of :class:`RolloutFailure`.  A record also
has the error's ``fault``, which is worked out from code and verdict and not read."""


@dataclasses.dataclass(frozen=True, slots=True)
class RolloutResult:
    """The counted part of a rollout.  It has neither input nor value."""

    index: Whole
    """Number of the input, from 0."""
    repeat: Whole = 0
    """Number of the repeat, from 0."""
    reward: Number = None
    """The reward as it is counted; none without one that is a number.  It may be infinite or
    NaN."""
    bad_reward: Text = ""
    """The type of a reward that is no number."""
    metrics: Numbers = dataclasses.field(default_factory=dict)
    """Named numbers, as they are counted."""
    usage: Numbers = dataclasses.field(default_factory=dict)
    """Model calls and their tokens, as they are counted."""
    failure: Annotated[RolloutFailure | None, Kind(_failure_from, "failure")] = None
    """Error of the rollout, or null: ``class``, ``code``, ``verdict``, ``fault``, ``type``,
    ``message``, ``traceback``."""
    worker: Text = ""
    """The worker that ran it."""
    duration_s: Seconds = None
    """Duration of the environment's code, in seconds."""
    took_s: Annotated[float, Kind(_seconds, "float64")] = 0.0
    """Time for which the caller waited, in seconds."""
    executions: Whole = 0
    """Number of executions."""
    ended_s: Seconds = None
    """Time at which the caller had the outcome, in seconds since 1970."""
    environment: Text = ""
    """The environment, by its name."""
    model: Text = ""
    """The endpoint of the model that was asked."""
    run: Text = ""
    """A digest of everything that decides what rollouts are asked."""
    again: Whole = 0
    """With `--run`, number of outcomes of this rollout that came before this one: errors after
    which it was to run again."""
    rescored_from: Number = None
    """The reward before `rescore` scored the rollout anew, if it had one."""
    rescored_of: Text = ""
    """A digest of the stored result from which `rescore` made this one; empty in one that `eval`
    made."""

    @property
    def name(self) -> Name:
        """Name of the rollout among those of its evaluation."""
        return self.index, self.repeat

    @property
    def score(self) -> float | None:
        """The reward if it is finite: what enters a mean."""
        return self.reward if self.reward is not None and math.isfinite(self.reward) else None

    @property
    def did_not_run(self) -> bool:
        """Whether the environment never saw it."""
        return self.failure is not None and self.failure.verdict == Verdict.DID_NOT_RUN.value

    def short(self, message_chars: int | None = None) -> RolloutResult:
        """The result without the traceback of its failure, for keeping many."""
        if self.failure is None:
            return self
        message = self.failure.message[:message_chars]
        failure = dataclasses.replace(self.failure, message=message, traceback="")
        return dataclasses.replace(self, failure=failure)


FIELDS: Mapping[str, tuple[str, Kind]] = {
    "error" if name == "failure" else name: (name, hint.__metadata__[0])
    for name, hint in get_type_hints(RolloutResult, include_extras=True).items()
}
"""The fields of a record but ``input`` and ``value``, by name: each with its attribute of
:class:`RolloutResult`."""


# -- from an outcome -------------------------------------------------------------


def result_of(index: int, repeat: int, outcome: Outcome, **about: Any) -> RolloutResult:
    """The figures of an outcome that are counted; ``about`` are those fields of a result that
    the outcome does not have."""
    return RolloutResult(
        index=index, repeat=repeat, failure=_failure(outcome), worker=outcome.worker,
        duration_s=outcome.duration_s, took_s=outcome.took_s, executions=outcome.executions,
        **_figures(outcome.value), **about,
    )  # fmt: skip


def rescored_result(
    stored: RolloutResult, outcome: Outcome, *, run: str, rescored_of: str
) -> RolloutResult:
    """A stored result with what came of scoring it anew.  Its worker and times are those of the
    rollout."""
    return dataclasses.replace(
        stored, failure=_failure(outcome), rescored_from=stored.reward, run=run,
        rescored_of=rescored_of, **_figures(outcome.value),
    )  # fmt: skip


def _figures(value: Any) -> dict[str, Any]:
    """Those fields of a result that are read from its value."""
    reward, bad, metrics = counted_scores(value)
    return {"reward": reward, "bad_reward": bad, "metrics": metrics, "usage": usage_of(value)}


def counted_scores(value: Any) -> tuple[float | None, str, dict[str, float]]:
    """Reward and metrics in a result, by the convention ``{"reward": number, ...}``; and
    the type of a reward that is no number, or the empty string.

    ``reward`` may be named numbers: each of them is a metric then.  So are the numbers in
    ``metrics`` and in ``rewards``.
    """
    if not isinstance(value, Mapping):
        return None, "", {}
    metrics: dict[str, float] = {}
    for group in ("metrics", "rewards"):
        inner = value.get(group)
        if isinstance(inner, Mapping):
            named = {str(name): number_of(item) for name, item in inner.items()}
            metrics |= {name: number for name, number in named.items() if number is not None}
    given = value.get(REWARD)
    scores = scores_of(given)
    if scores is None:
        return None, "" if given is None else type(given).__name__, metrics
    return scores[REWARD], "", {**scores.get("rewards", {}), **metrics}


def usage_of(value: Any) -> dict[str, float]:
    """The tokens and model calls of a result: the numbers in its ``usage``."""
    usage = value.get("usage") if isinstance(value, Mapping) else None
    if not isinstance(usage, Mapping):
        return {}
    numbers = {str(name): number_of(item) for name, item in usage.items()}
    found = {name: each for name, each in numbers.items() if each is not None and each >= 0}
    found |= _usage_of_roles(usage.get("roles"))
    return {name: number for name, number in found.items() if math.isfinite(number)}


def _usage_of_roles(roles: Any) -> dict[str, float]:
    """The counts of further models, under names such as ``judge.calls``."""
    if not isinstance(roles, Mapping):
        return {}
    return {
        f"{role}.{name}": number
        for role, usage in roles.items()
        for name, number in (numbers_of(usage) or {}).items()
        if name in _COUNTS and number >= 0
    }


def usage_words(name: str) -> str:
    """The name of a count of usage, for people."""
    role, dot, count = name.rpartition(".")
    if dot and count in _COUNTS:
        return f"{role}: {usage_words(count)}"
    return _USAGE_WORDS.get(name, name.replace("_", " "))


def _failure(outcome: Outcome) -> RolloutFailure | None:
    error = outcome.error
    if error is None:
        return None
    kind, info = type(error).__name__, error.info
    raised = info.type if info else ""
    return RolloutFailure(
        kind=kind, verdict=error.verdict.value, type=raised,
        message=info.message if info else str(error), traceback=info.traceback if info else "",
        code=error.code,
    )  # fmt: skip


# -- as a record, and back -------------------------------------------------------


def record_of(result: RolloutResult, input: Any, value: Any) -> dict[str, Any]:
    """The record of a rollout; its input and value are not JSON yet."""
    record = {name: _written(getattr(result, kept)) for name, (kept, _) in FIELDS.items()}
    for name in ("bad_reward", "rescored_from", "rescored_of"):
        if not record[name] and record[name] != 0:
            del record[name]
    if not record["again"]:
        del record["again"]
    return {**record, "input": input, "value": value}


def _written(value: Any) -> Any:
    if isinstance(value, RolloutFailure):
        return value.to_record()
    return dict(value) if isinstance(value, Mapping) else value


def result_from(record: Mapping[str, Any]) -> RolloutResult:
    """The figures of a record that are counted.  ValueError if it is not the record of a rollout.

    Records of other programs, with ``index`` and ``value`` alone, are taken, too.
    """
    found = _figures(record.get("value"))
    if "reward" in record:
        found["bad_reward"] = ""  # unless the record says another; NaN in its value is an object
    for name, (kept, kind) in FIELDS.items():
        read = kind.read(record[name]) if name in record else _UNREAD
        if read is not _UNREAD:
            found[kept] = read
        elif name == "index" or (name == "repeat" and name in record):
            raise ValueError("it has no index")
    return RolloutResult(**found)


def stored_digest(record: Mapping[str, Any]) -> str:
    """Stands for the result in a record: its value, error and reward."""
    return digest({name: record.get(name) for name in ("value", "error", "reward")}, is_json=True)


def digest(value: Any, *, is_json: bool = False) -> str:
    """16 hex digits for a value, by what stands in a record for it."""

    def text() -> str:
        # Arrays of a table are bytes, and those of JSON lines text: both have one digest.
        return json.dumps(
            value if is_json else jsonable(value), sort_keys=True, default=base64_text
        )

    ended = foreign.call(text)
    found = "" if ended.error is not None else str(ended.value)  # it cannot be written
    return hashlib.blake2b(found.encode(), digest_size=8).hexdigest()
