"""What a siege does when its programs do not start or do not answer; here they are none."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.attack import run
from tests.attack.plan import Round, Stage
from trio_envserve.core.errors import ServerStartError


class Program:
    """One that answers, or takes too long."""

    pid = 1

    def __init__(self, what: str = "it", hangs: bool = False) -> None:
        self.what = what
        self.hangs = hangs
        self.closed = False
        self.process: Any = self

    def poll(self) -> int | None:
        return 0 if self.closed else None

    async def ask(self, order: Any, limit_s: float) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        if self.hangs:
            raise ServerStartError(f"{self.what} said nothing for {limit_s:g} s")
        return {"answered": 1}

    async def kill(self) -> None:
        await trio.lowlevel.checkpoint()

    def last_words(self) -> str:
        if self.closed:
            raise ValueError("seek of closed file")
        return "words"


class Bed:
    """A testbed of such programs: some servers do not start, and clients may hang."""

    directory = Path("nowhere")
    seed = 0

    def __init__(self, starts: list[bool], hangs: bool = False) -> None:
        self.starts = starts
        self.hangs = hangs
        self.blamed: list[tuple[list[str], str, str]] = []
        self.events = self

    def write(self, *_: Any, **__: Any) -> None:
        """An event, which nobody reads."""

    def look(self, *_: Any) -> None:
        """Nothing to see."""

    @asynccontextmanager
    async def program(self, *_: Any) -> AsyncIterator[tuple[Any, Any]]:
        yield Program(), {}

    @asynccontextmanager
    async def server(self, *_: Any, **__: Any) -> AsyncIterator[tuple[Any, Any]]:
        if not self.starts.pop(0):
            raise ServerStartError("the server said nothing for 60 s")
        yield Program(), {"front": "tcp://127.0.0.1:1"}

    @asynccontextmanager
    async def client(self, *_: Any, **__: Any) -> AsyncIterator[Program]:
        client = Program("the client", self.hangs)
        yield client
        client.closed = True

    async def blame(
        self, victims: Mapping[str, Program], suspect: str, number: int, why: str
    ) -> None:
        words = victims[suspect].last_words()
        self.blamed.append((list(victims), words, why))
        await trio.lowlevel.checkpoint()


STAGE = Stage("client", 1.0)
ROUND = Round(0, "client", ("server-silence",), 1.0, 0.0)


def scene(kind: Any, bed: Bed) -> Any:
    return kind(bed, STAGE, hosted=False)


async def test_a_server_that_did_not_start_was_blamed_on_a_client_that_had_ended():
    """It was said to have ended, or the siege broke off: its log was closed."""
    bed = Bed(starts=[True, True, False])
    rounds = scene(run._OnClient, bed)
    await rounds.fight(ROUND)
    with pytest.raises(ServerStartError, match="the server said nothing"):
        await rounds.fight(ROUND)
    assert not bed.blamed


async def test_a_client_that_hangs_is_lost_and_written_down():
    bed = Bed(starts=[True, True], hangs=True)
    with pytest.raises(run._VictimLost):
        await scene(run._OnClient, bed).fight(ROUND)
    assert bed.blamed == [(["client"], "words", "the client said nothing for 60 s")]


async def test_attacker_and_client_that_both_took_too_long_ended_the_siege():
    """Two errors at once were a group, which nobody caught."""
    asked: list[Any] = [(Program(what, hangs=True), {}) for what in ("the attacker", "the client")]
    with pytest.raises(ServerStartError, match="said nothing for 5 s"):
        await run._ask_both(*asked, limit_s=5.0)
    answering: list[Any] = [(Program(), {}), (Program(), {})]
    assert await run._ask_both(*answering, limit_s=5.0) == [{"answered": 1}] * 2
