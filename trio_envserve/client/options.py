"""The options of a call, for type checkers: they find a wrong option before the call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict


class CallOptions(TypedDict, total=False):
    """What every call takes besides its input; see :meth:`.Client.run_rollout`."""

    model: str
    """``"oracle"``, ``"random"``, or an endpoint that the server knows."""
    model_name: str
    sampling_args: Mapping[str, Any] | None
    max_retries: int
    """How often the worker repeats a rollout that failed, inside the one execution."""
    state_columns: Sequence[str]
    """Which columns of the state to send back."""
    rerun: bool | None
    """Consent to a further execution after the worker's proven death; None: as the
    environment declares."""
    max_executions: int | None
    timeout_s: float | None
    """How long the caller waits, and how long the server may run it; None: as long as
    the caller's cancel scope allows."""
