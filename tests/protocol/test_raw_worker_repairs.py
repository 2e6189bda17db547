"""The raw worker on a link that loses: the pure router behind a stream.

The test is the shell here: it moves the router's bytes, keeps its time, and throws
chosen messages away.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cbor2
import pytest
import trio

from trio_envserve.core import messages
from trio_envserve.core.heartbeat import Heartbeat
from trio_envserve.core.limits import ServerLimits, WireLimits
from trio_envserve.core.router import Router
from trio_envserve.core.router_effects import Spawn, ToClient, ToWorker
from trio_envserve.core.router_inputs import (
    ClientMessage,
    CloseAsked,
    Exited,
    HeartbeatFelt,
    PoolOpened,
    RouterInput,
    Spawned,
    Tick,
    WorkerMessage,
)
from trio_envserve.host.workers import ProcessWorkers
from trio_envserve.net import Frame

PROGRAM = Path(__file__).parent / "raw_worker.py"
MOST = 1 << 20
WAIT_S = 60.0
LIMITS = ServerLimits(tick_s=0.05, beat_s=0.2)


class Shell:
    """Moves messages between the router and one raw worker, but for those in ``lose``."""

    def __init__(self, nursery: trio.Nursery) -> None:
        numbers = iter(range(1, 1000))
        self.router = Router(
            epoch=b"e" * 16, slots=1, now_s=trio.current_time(), heartbeats=True,
            new_id=lambda: next(numbers).to_bytes(16, "big"), limits=LIMITS,
        )  # fmt: skip
        self.workers = ProcessWorkers(
            None, {}, LIMITS, WireLimits(), (), "nowhere", [], {}, [sys.executable, str(PROGRAM)]
        )
        self.nursery = nursery
        self.lose: list[type] = []
        self.heard: list[Any] = []
        """Messages of the worker that arrived."""
        self.answers: list[list[bytes]] = []
        self.ends: list[str] = []
        """How the worker's process ended."""
        self.give(PoolOpened((), trio.current_time()))

    async def until(self, condition: Callable[[], object]) -> None:
        with trio.move_on_after(WAIT_S):
            while not condition():
                self.give(Tick(trio.current_time()))
                await trio.sleep(0.01)
            return
        raise AssertionError("it never came to that")

    async def live(self, spawn: Spawn) -> None:
        def started(pid: int) -> None:
            self.give(Spawned(spawn.worker, pid))

        def felt(heartbeat: Heartbeat) -> None:
            self.give(HeartbeatFelt(spawn.worker, trio.current_time(), *heartbeat[:3]))

        self.ends.append(await self.workers.live(spawn, started, self.take, felt))
        self.give(Exited(spawn.worker, trio.current_time(), self.ends[-1]))

    def take(self, batch: list[list[Frame]]) -> None:
        for frames in batch:
            header = frames[-2 if len(frames) == 5 else -1]
            message = messages.decode(header, most_bytes=MOST)
            if not self.is_lost(message):
                self.heard.append(message)
                self.give(WorkerMessage(frames, trio.current_time()))

    def give(self, given: RouterInput) -> None:
        for effect in self.router.take(given):
            if isinstance(effect, Spawn):
                self.nursery.start_soon(self.live, effect)
            elif isinstance(effect, ToWorker):
                message = messages.decode(effect.frames[1], most_bytes=MOST)
                if not self.is_lost(message):
                    self.workers.send_many_nowait(effect.worker, [effect.frames])
            elif isinstance(effect, ToClient):
                self.answers.append([bytes(frame) for frame in effect.frames])

    def is_lost(self, message: Any) -> bool:
        if type(message) not in self.lose:
            return False
        self.lose.remove(type(message))
        return True

    def say(self, message: Any, *body: bytes) -> None:
        self.give(ClientMessage(b"route", (messages.encode(message), *body), trio.current_time()))

    def outcomes(self) -> dict[int, tuple[int, Any]]:
        found = {}
        for header, *body in self.answers:
            message = messages.decode(header, most_bytes=MOST)
            if isinstance(message, messages.Outcome):
                found[message.sequence] = (message.status, cbor2.loads(body[0]))
        return found

    def heard_of(self, cls: type) -> list[Any]:
        return [each for each in self.heard if isinstance(each, cls)]


@pytest.mark.real
async def test_a_raw_worker_repairs_what_is_lost_on_its_link():
    body = cbor2.dumps({"input": "once"})
    async with trio.open_nursery() as nursery:
        shell = Shell(nursery)
        # Its first hello is lost, and so is the answer to the second.
        shell.lose = [messages.WorkerHello, messages.Statement]
        await shell.until(shell.router.pool.ready_count)
        shell.say(messages.Hello(1, b"n" * 16, 1, "test", MOST))
        session = next(iter(shell.router.cache.sessions))

        shell.lose = [messages.Dispatch, messages.WorkerOutcome]
        shell.say(messages.Request(session, 0, b"d" * 16, None, 1, None), body)
        await shell.until(shell.outcomes)
        assert shell.outcomes() == {0: (0, {"echo": "once", "number": 0})}
        assert shell.heard_of(messages.Missing)
        assert shell.lose == []

        # Cancelled before its dispatch arrived, which never does.
        shell.lose = [messages.Dispatch, messages.Stop]
        shell.say(messages.Request(session, 1, b"d" * 16, None, 1, None), body)
        shell.say(messages.Finish(session, [0, 2]))
        await shell.until(lambda: not shell.router.workforce.live_count())
        declined = shell.heard_of(messages.Declined)
        # Once for each statement that came before its answer.
        assert declined
        assert all(each == messages.Declined([1, 2]) for each in declined)

        # Cancelled by a message that arrives without its dispatch.
        shell.lose = [messages.Dispatch]
        shell.say(messages.Request(session, 2, b"d" * 16, None, 1, None), body)
        shell.say(messages.Finish(session, [2, 3]))
        await shell.until(lambda: not shell.router.workforce.live_count())
        assert 2 not in shell.outcomes()

        assert shell.router.malformed == 0
        shell.give(CloseAsked(trio.current_time()))
        await shell.until(lambda: shell.ends)
        assert shell.ends == ["it exited with status 0"]
