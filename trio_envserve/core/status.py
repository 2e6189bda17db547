"""The status record of a server, typed.

On the wire it is a map of plain data (:meth:`.Router.status`), to which later versions
may add keys.  Here it has names and types, for the programs that ask a server.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from .closing import ClosingStage
from .health import ServerStatus


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClosingRecord:
    """How far a server is that is stopping, and what it waits for."""

    stage: ClosingStage
    running: int
    """Executions that have not ended."""
    outcomes: int
    """Outcomes that clients who are still there have not fetched."""
    workers: int
    """Workers that are not proven dead."""
    left_s: float
    """Seconds until the next stage at the latest."""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> ClosingRecord:
        """The record for the one on the wire."""
        return cls(
            stage=ClosingStage(record["stage"]), running=record["running"],
            outcomes=record["outcomes"], workers=record["workers"], left_s=record["left_s"],
        )  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StatusRecord:
    """What a server says of itself; see :meth:`.Server.status`."""

    status: ServerStatus
    reason: str
    """Why it is not ready, for people; empty if it is."""
    ready: int
    """How many workers are ready."""
    workers: int
    """How many workers there are to be."""
    environment: str
    """The environment's own name; empty until a worker has said it."""
    rerun: bool
    """Whether the environment consents to further executions."""
    closing: ClosingRecord | None = None
    """How far closing is; None until it begins."""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> StatusRecord:
        """The record for the one on the wire."""
        closing = record.get("closing")
        return cls(
            status=ServerStatus(record["status"]), reason=record["reason"],
            ready=record["ready"], workers=record["workers"],
            environment=record["environment"], rerun=record["rerun"],
            closing=None if closing is None else ClosingRecord.of(closing),
        )  # fmt: skip
