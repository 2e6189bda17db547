"""What a worker does for the code of one rollout."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ..carrier import WorkCarrier
from .apart import ApartCall, ApartReply
from .made import RolloutMaker
from .permits import Claimed, GiveBack
from .resources import ResourceOpener


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerServices:
    """The services of a worker for one attempt of a rollout.

    Each is work for the worker's trio loop, which the carrier has done from wherever the code runs.
    """

    carrier: WorkCarrier
    apart: Callable[[ApartCall], Awaitable[ApartReply]]
    """Runs a call in another process.  Raises ``ApartError``."""
    save: Callable[[Mapping[str, Any]], Awaitable[object]]
    """Saves a record, and returns once that is safe.  Raises ``SaveRefused``."""
    claim: Callable[[Claimed], Awaitable[GiveBack]]
    """Waits for a permit."""
    made: RolloutMaker
    resources: Callable[[], ResourceOpener]
    """The opener of the rollout's resources; in any thread, and not work for the loop."""
