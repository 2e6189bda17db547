"""Simulated servers, recorded from outside, and what the tests need of a tape."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from trio_envserve.core.limits import ServerLimits, WireLimits
from trio_envserve.core.router import Router
from trio_envserve.lab.simulation import actor_server
from trio_envserve.server.recording import Tape
from trio_envserve.server.recording.tape import NewFile

KEY = b"k" * 32
ABOUT: dict[str, Any] = {
    "recording": b"r" * 16, "time": 0.0, "version": "0", "environment": "e", "address": "a",
}  # fmt: skip


def tape_of(
    *, epoch: bytes = b"e" * 16, slots: int = 1, now_s: float = 0.0,
    new_id: Callable[[], bytes], limits: ServerLimits | None = None,
    wire: WireLimits | None = None, bodies: bool = False, pulses: bool = True,
) -> Tape:  # fmt: skip
    """A tape before a new router."""

    def make(*, new_id: Callable[[], bytes]) -> Router:
        return Router(
            epoch=epoch, slots=slots, now_s=now_s, new_id=new_id, limits=limits, wire=wire,
            pulses=pulses,
        )  # fmt: skip

    return Tape(
        make, new_id=new_id, key=KEY, now_s=now_s, slots=slots, pulses=pulses, bodies=bodies,
        about=ABOUT,
    )  # fmt: skip


def files_of(tape: Tape) -> list[bytes]:
    """All that is on a tape, file by file, the oldest first."""
    assert not tape.failed
    files = [b""]
    for part in tape.drain():
        if isinstance(part, NewFile):
            files.append(b"")
        else:
            files[-1] += part
    return files


def write(files: list[bytes], path: Path) -> Path:
    """As a server leaves them behind: the newest at ``path``."""
    for number, data in enumerate(reversed(files)):
        path.with_name(f"{path.name}.{number}" if number else path.name).write_bytes(data)
    return path


class TapedRouter:
    """A router and its tape in one, for shells that know only a router."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tape if name in vars(Tape) else self.tape.router, name)


@contextmanager
def recorded_simulations(file_bytes: int = 2**40) -> Iterator[list[Tape]]:
    """While it lasts, every server of a simulation is recorded."""
    tapes: list[Tape] = []

    def make(*, limits: ServerLimits, **options: Any) -> Any:
        limits = dataclasses.replace(limits, record_file_bytes=file_bytes)
        tapes.append(tape_of(limits=limits, **options))
        return TapedRouter(tapes[-1])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(actor_server, "Router", make)
        yield tapes
