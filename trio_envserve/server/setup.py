"""The options of :func:`.open_server`, checked."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..core.lease import LeaseTerms
from ..core.limits import KeyLimits, ServerLimits, WireLimits
from ..core.terms import ID_BYTES
from ..core.worker_range import WorkerRange
from ..net import DEFAULT_TRANSPORT, Network, Transport
from .curve import ServerCurve


def _random_id() -> bytes:
    return os.urandom(ID_BYTES)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """All that :func:`.open_setup` needs.  The options are those of :func:`.open_server`."""

    environment: str | object | None
    name: str
    """The environment's name, for logs and recordings."""
    args: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    bind: str
    workers: int | WorkerRange
    command: Sequence[str] = ()
    """The words of ``worker_command``."""
    python: str | None = None
    """The program of ``worker_python``."""
    limits: ServerLimits
    wire: WireLimits = dataclasses.field(default_factory=WireLimits)
    keys: KeyLimits = dataclasses.field(default_factory=KeyLimits)
    network: Network | None = None
    transport: Transport = DEFAULT_TRANSPORT
    worker_environ: Sequence[Mapping[str, str]] = ()
    worker_logging: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    worker_otlp: dict[str, Any] | None = None
    record: str | os.PathLike[str] | None = None
    record_bodies: bool = False
    journal: str | os.PathLike[str] | None = None
    curve: ServerCurve | None = None
    hosts_bind: str | None = None
    lease: LeaseTerms = dataclasses.field(default_factory=LeaseTerms)
    needs: Mapping[str, float] = dataclasses.field(default_factory=dict)
    new_id: Callable[[], bytes] = _random_id
    """Makes the ids of sessions, workers and the epoch.  Who knows a session's id can
    use the session; a trial draws them from its seed."""
