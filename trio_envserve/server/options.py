"""The options of a server, for type checkers: a wrong one is found before it is started."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from ..core.limits import KeyLimits, ServerLimits, WireLimits
from ..core.worker_range import WorkerRange
from ..net import Network, Transport
from .curve import ServerCurve


class ServerOptions(TypedDict, total=False):
    """The options of a server; see :func:`.open_server`."""

    args: Mapping[str, Any] | None
    bind: str
    workers: int | WorkerRange
    worker_command: str | Sequence[str] | None
    worker_python: str | os.PathLike[str] | None
    limits: ServerLimits | None
    wire: WireLimits | None
    keys: KeyLimits | None
    network: Network | None
    transport: Transport
    worker_environ: Sequence[Mapping[str, str]]
    worker_logging: Mapping[str, Any] | None
    worker_otlp: Mapping[str, Any] | None
    record: str | os.PathLike[str] | None
    record_bodies: bool
    journal: str | os.PathLike[str] | None
    curve: ServerCurve | None
    hosts_bind: str | None
    fence_s: float | None
    needs: Mapping[str, float] | None
