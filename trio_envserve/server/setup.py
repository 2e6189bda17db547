"""The options of :func:`.open_server`, checked."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence

from ..core.lease import LeaseTerms
from ..core.limits import KeyLimits, ServerLimits, WireLimits
from ..core.terms import ID_BYTES
from .options import ServerOptions


def _random_id() -> bytes:
    return os.urandom(ID_BYTES)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The options of a server, checked: all that :func:`.open_setup` needs."""

    options: ServerOptions
    name: str
    """The environment's name, for logs and recordings."""
    command: Sequence[str] = ()
    """The words of ``worker_command``."""
    python: str | None = None
    """The program of ``worker_python``."""
    limits: ServerLimits = dataclasses.field(default_factory=ServerLimits)
    wire: WireLimits = dataclasses.field(default_factory=WireLimits)
    keys: KeyLimits = dataclasses.field(default_factory=KeyLimits)
    lease: LeaseTerms = dataclasses.field(default_factory=LeaseTerms)
    new_id: Callable[[], bytes] = _random_id
    """Makes the ids of sessions, workers and the epoch.  A session's id is the right to use the
    session; a trial draws the ids from its seed."""
