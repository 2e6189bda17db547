"""The options of a call, for type checkers: a wrong one is found before it is made."""

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
    """Whether it may be executed again after its worker is proven dead; None: as the
    environment declares."""
    max_executions: int | None
    timeout_s: float | None
    """How long to wait, and how long the server may run it; None: as long as the
    caller's cancel scope allows."""
