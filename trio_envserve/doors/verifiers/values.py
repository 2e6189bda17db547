"""A run as an environment gets it, and what the environment's result must hold.

Theory of operation
-------------------
The input of a run is ``{"wire": "verifiers-0.4", "run": bytes}``: the message as the client
packed it.  The environment returns, in the ``state`` of its result, ``deltas`` and ``reply``,
packed, and ``traces``, the ids of the traces that the deltas are of.  The adapter
``verifiers:TASKSET`` does; another environment has nothing that such a client could read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ...client import Outcome as Ended
from ...core.errors import DidNotRun
from .records import Outcome

COLUMNS: Final = ("reply", "deltas", "traces")

_OTHER: Final = (
    "the environment does not answer runs of verifiers; serve verifiers:TASKSET (it ran and failed)"
)


def input_of(wire: str, payload: bytes) -> dict[str, Any]:
    """The environment's input."""
    return {"wire": wire, "run": payload}


def outcome_of(ended: Ended, *, most_bytes: int) -> Outcome:
    """The client's outcome: never an exception, whatever the environment has returned."""
    error = ended.error
    if error is not None:
        text = f"{error} [{error.code}] (fault: {error.fault.value})"
        return Outcome(error=text, ran=not isinstance(error, DidNotRun))
    state = ended.value.get("state") if isinstance(ended.value, Mapping) else None
    reply, deltas, traces = (state or {}).get("reply"), *_lists(state)  # trimmed: a mapping
    good = (
        isinstance(reply, bytes)
        and all(isinstance(each, bytes) for each in deltas)
        and all(isinstance(each, str) for each in traces)
    )
    if not good:
        return Outcome(error=_OTHER)
    assert isinstance(reply, bytes)
    largest = max(map(len, (reply, *deltas)))
    if largest > most_bytes:
        why = (
            f"a part of the outcome has {largest} bytes, and a frame at most {most_bytes} "
            "(serve --verifiers-limit frame_bytes=NUMBER)"
        )
        return Outcome(error=f"{why} (it ran and failed)")
    return Outcome(reply, deltas, traces)


def _lists(state: Any) -> tuple[list[Any], list[Any]]:
    """The deltas and the traces; None where there is no list."""
    deltas, traces = (state or {}).get("deltas"), (state or {}).get("traces")
    if isinstance(deltas, list) and isinstance(traces, list):
        return deltas, traces
    return [None], [None]
