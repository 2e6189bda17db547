"""Environments: what their authors see, how they are loaded, what is built in.

``interface`` is for authors, ``request`` is the body of a request, ``loading``
finds environments by name, ``recorder`` is the log by which runs are judged.
``arithmetic`` and ``reasoning_gym`` are imported only when they are loaded.
"""

from __future__ import annotations

from .interface import Backend, Environment, Rollout, RolloutCancelled, trim_state
from .loading import DEFAULT_ENVIRONMENT, LoadedEnvironment, load
from .recorder import RunLog, read_run_log
from .request import RolloutRequest

__all__ = [
    "DEFAULT_ENVIRONMENT",
    "Backend",
    "Environment",
    "LoadedEnvironment",
    "Rollout",
    "RolloutCancelled",
    "RolloutRequest",
    "RunLog",
    "load",
    "read_run_log",
    "trim_state",
]
