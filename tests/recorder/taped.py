"""Simulated servers, recorded from outside, and what the tests need of a tape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from trio_envserve.core.limits import KeyLimits, ServerLimits, WireLimits
from trio_envserve.core.router import Router
from trio_envserve.core.worker_range import WorkerRange
from trio_envserve.lab.simulation import actors
from trio_envserve.server.recording import Tape

ABOUT: dict[str, Any] = {"time": 0.0, "version": "0", "environment": "e", "address": "a"}


def tape_of(
    *, epoch: bytes = b"e" * 16, slots: int | WorkerRange = 1, now_s: float = 0.0,
    new_id: Callable[[], bytes], limits: ServerLimits | None = None,
    wire: WireLimits | None = None, keys: KeyLimits | None = None, bodies: bool = False,
    heartbeats: bool = True, **more: Any,
) -> Tape:  # fmt: skip
    """A tape before a new router."""

    def make(*, new_id: Callable[[], bytes]) -> Router:
        return Router(
            epoch=epoch, slots=slots, now_s=now_s, new_id=new_id, limits=limits, wire=wire,
            keys=keys, heartbeats=heartbeats, **more,
        )  # fmt: skip

    return Tape(
        make,
        new_id=new_id,
        now_s=now_s,
        slots=slots,
        heartbeats=heartbeats,
        bodies=bodies,
        about=ABOUT,
    )


def written(tape: Tape, path: Path) -> Path:
    """The file of a server that has ended."""
    tape.stop()
    path.write_bytes(tape.drain())
    return path


class TapedRouter:
    """A router and its tape in one, for shells that know only a router."""

    def __init__(self, tape: Tape) -> None:
        self.take = tape.take
        self._router = tape.router

    def __getattr__(self, name: str) -> Any:
        return getattr(self._router, name)


@contextmanager
def recorded_simulations() -> Iterator[list[Tape]]:
    """While it lasts, every server of a simulation is recorded."""
    tapes: list[Tape] = []

    def make(**options: Any) -> Any:
        tapes.append(tape_of(**options))
        return TapedRouter(tapes[-1])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(actors, "Router", make)
        yield tapes
