"""NeMo Gym's ``POST /run``: what a row says, and what is answered for it.

Theory of operation
-------------------
A row of that library names its rollout by ``_ng_rollout_id``, or by ``_ng_task_index``
and ``_ng_rollout_index``, each with ``_ng_attempt_index`` where it was tried before.  NeMo
RL numbers the rows of a step with ``_rowidx``, and others send a row once for each rollout
of a group, with nothing that tells them apart.  The digest of the whole body is part of the
key in each case, so an id that is used again for another row is another rollout, and the
text before the digest is there for people.

The answer is the row, and over it what the environment returned.  It has a ``reward`` that
is a number, and a ``response`` as OpenAI's Responses API has it.  Fields that this door knows
and does not heed are named in ``not_heeded``.

**Failures.**  That library ends its collection at the first answer with an error's status, so
a row that failed may be answered as a row, too (:class:`Failures`): with
``_ng_failure_class``, by which the library keeps it apart from its results, and ``mask_sample``,
which stands in ``instance_config``, too, where NeMo RL looks for it.  Its ``reward`` is null: a
number would be learnt from.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ...core.endings import ENDINGS
from ...envs.responses import not_heeded, response_of_messages, sampling_args_of
from .problems import Problem

NAMESPACE: Final = "nemo-gym"

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""The ids that the library accepts."""

_SHOWN: Final = 128
"""Characters of an id that are shown in a key."""

_HEEDED: Final = ("_ng_rollout_id", "_ng_task_index", "_ng_rollout_index", "_ng_attempt_index")
"""Fields of the library that mean something here."""


class Failures(enum.Enum):
    """The answer to a row that failed."""

    PROBLEMS = "problems"
    """A problem with the status of an error, as everywhere."""
    ROWS = "rows"
    """A row with the status 200."""


class Told(enum.Enum):
    """The fields by which a row is told from others."""

    ID = enum.auto()
    """An id, which names one rollout for good."""
    NUMBER = enum.auto()
    """A number, which another step may use again."""
    NOTHING = enum.auto()
    """Rows with the same text are rollouts of their own."""


class Row(NamedTuple):
    """A row that is in order."""

    fields: Mapping[str, Any]
    told_by: Told
    label: str
    """For people."""

    @property
    def sampling_args(self) -> dict[str, Any]:
        """The row's sampling arguments for the model."""
        return sampling_args_of(self._params)

    @property
    def not_heeded(self) -> list[str]:
        """The names of fields that nobody but the environment heeds."""
        own = [
            name for name, value in self.fields.items()
            if name.startswith("_ng_") and name not in _HEEDED and value is not None
        ]  # fmt: skip
        asked = [f"responses_create_params.{name}" for name in not_heeded(self._params)]
        return [*own, *asked]

    @property
    def _params(self) -> Mapping[str, Any]:
        asked = self.fields.get("responses_create_params")
        return asked if isinstance(asked, dict) else {}


def row_of(body: object) -> Row:
    """The row in a body.  Problem if it is none."""
    if not isinstance(body, dict):
        raise Problem("bad-request", "the body is a row: a mapping of fields")
    id, attempt = body.get("_ng_rollout_id"), body.get("_ng_attempt_index")
    if id is not None and not (isinstance(id, str) and _ID.fullmatch(id)):
        raise Problem(
            "bad-request", "_ng_rollout_id is text of letters, digits, dots, dashes and "
            "underscores, which begins with a letter or digit",
        )  # fmt: skip
    again = f"-a{attempt}" if _is_number(attempt) and attempt else ""
    if id is not None:
        return Row(body, Told.ID, f"{id[:_SHOWN]}{again}")
    task, rollout = body.get("_ng_task_index"), body.get("_ng_rollout_index")
    if rollout is not None:
        known = _is_number(task) and _is_number(rollout)
        return Row(body, Told.NUMBER, f"{task}-{rollout}{again}" if known else "row")
    if (number := body.get("_rowidx")) is not None:
        return Row(body, Told.NUMBER, f"row-{number}" if _is_number(number) else "row")
    return Row(body, Told.NOTHING, "row")


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63


def answer_of(row: Row, result: object) -> dict[str, Any]:
    """The answer to a row.  Problem if the environment's result will not do."""
    reward = _number(result.get("reward")) if isinstance(result, dict) else None
    if reward is None:
        raise Problem("no-reward", "the result of the environment has no reward that is a number")
    assert isinstance(result, dict)
    response = result.get("response")
    if response is None:
        response = response_of_messages(result.get("completion"))
    return {**row.fields, **result, "response": response, "reward": reward, **_said(row, result)}


def failure_of(row: Row, problem: Problem) -> dict[str, Any]:
    """The answer to a row that failed, as a row."""
    code = problem.record["code"]
    config = row.fields.get("instance_config")
    terminal = code in ENDINGS and not ENDINGS[code].again
    return {
        **row.fields, "response": response_of_messages(()), "reward": None,
        "_ng_failure_class": code, "_ng_failure_terminal": terminal, "mask_sample": True,
        "instance_config": {**(config if isinstance(config, dict) else {}), "mask_sample": True},
        "problem": problem.record, **_said(row, {}),
    }  # fmt: skip


def _said(row: Row, result: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that nobody heeded: neither this door nor, where it says so, the environment."""
    own = result.get("not_heeded")
    names = [name for name in own if isinstance(name, str)] if isinstance(own, list) else []
    found = sorted({*row.not_heeded, *(name for name in names if not name.startswith("_ng_"))})
    return {"not_heeded": found} if found else {}


def _number(value: object) -> float | None:
    try:
        number = float(value)  # type: ignore[arg-type]  # whatever it is: numpy's, too
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and not isinstance(value, str) else None
