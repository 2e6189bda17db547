"""The raw worker on a link that loses: the pure router behind a plain ROUTER socket.

The test is the shell here, without trio: it moves the router's bytes, starts its
process, keeps its time, and throws chosen messages away.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cbor2
import pytest
import zmq

from trio_envserve.core import messages
from trio_envserve.core.limits import ServerLimits
from trio_envserve.core.router import Router, ToClient
from trio_envserve.core.slots import Spawn
from trio_envserve.core.workforce import ToWorker

PROGRAM = Path(__file__).parent / "raw_worker.py"
MOST = 1 << 20
WAIT_S = 60.0


class Shell:
    """Moves messages between the router and one raw worker, but for those in ``lose``."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        numbers = iter(range(1, 1000))
        self.socket = socket
        self.router = Router(
            epoch=b"e" * 16, slots=1, now_s=time.monotonic(), pulses=False,
            new_id=lambda: next(numbers).to_bytes(16, "big"), limits=ServerLimits(tick_s=0.05),
        )  # fmt: skip
        self.lose: list[type] = []
        self.heard: list[Any] = []
        """Messages of the worker that arrived."""
        self.answers: list[list[bytes]] = []
        self.process: subprocess.Popen[bytes] | None = None
        self.router.open_pool((), time.monotonic())

    def until(self, condition: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline_s, "it never came to that"
            self.turn()

    def turn(self) -> None:
        self.carry_out()
        if self.socket.poll(20):
            frames = self.socket.recv_multipart()
            message = messages.decode(frames[-2 if len(frames) == 5 else -1], most_bytes=MOST)
            if not self.is_lost(message):
                self.heard.append(message)
                self.router.worker_message(frames, time.monotonic())
        self.router.tick(time.monotonic())
        self.carry_out()

    def carry_out(self) -> None:
        for effect in self.router.take():
            if isinstance(effect, Spawn):
                self.process = subprocess.Popen(
                    [
                        sys.executable, str(PROGRAM), self.socket.get_string(zmq.LAST_ENDPOINT),
                        effect.worker.decode(), effect.incarnation.hex(),
                    ]
                )  # fmt: skip
                self.router.spawned(effect.worker, self.process.pid)
            elif isinstance(effect, ToWorker):
                message = messages.decode(effect.frames[1], most_bytes=MOST)
                if not self.is_lost(message):
                    self.socket.send_multipart([effect.worker, *effect.frames])
            elif isinstance(effect, ToClient):
                self.answers.append([bytes(frame) for frame in effect.frames])

    def is_lost(self, message: Any) -> bool:
        if type(message) not in self.lose:
            return False
        self.lose.remove(type(message))
        return True

    def say(self, message: Any, *body: bytes) -> None:
        self.router.client_message(b"route", (messages.encode(message), *body), time.monotonic())

    def outcomes(self) -> dict[int, tuple[int, Any]]:
        found = {}
        for header, *body in self.answers:
            message = messages.decode(header, most_bytes=MOST)
            if isinstance(message, messages.Outcome):
                found[message.sequence] = (message.status, cbor2.loads(body[0]))
        return found

    def heard_of(self, cls: type) -> list[Any]:
        return [each for each in self.heard if isinstance(each, cls)]


@contextmanager
def open_shell() -> Iterator[Shell]:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.set(zmq.LINGER, 0)
        socket.bind("tcp://127.0.0.1:*")
        shell = Shell(socket)
        try:
            yield shell
        finally:
            if shell.process is not None:
                shell.process.kill()
                shell.process.wait()


@pytest.mark.real
def test_a_raw_worker_repairs_what_is_lost_on_its_link():
    body = cbor2.dumps({"input": "once"})
    with open_shell() as shell:
        # Its first hello is lost, and so is the answer to the second.
        shell.lose = [messages.WorkerHello, messages.State]
        shell.until(shell.router.pool.ready_count)
        shell.say(messages.Hello(1, b"n" * 16, 1, "test", MOST))
        session = next(iter(shell.router.cache.sessions))

        shell.lose = [messages.Dispatch, messages.WorkerOutcome]
        shell.say(messages.Request(session, 0, b"d" * 16, None, 1, None), body)
        shell.until(shell.outcomes)
        assert shell.outcomes() == {0: (0, {"echo": "once", "number": 0})}
        assert shell.heard_of(messages.Missing)
        assert shell.lose == []

        # Cancelled before its dispatch arrived, which never does.
        shell.lose = [messages.Dispatch, messages.Stop]
        shell.say(messages.Request(session, 1, b"d" * 16, None, 1, None), body)
        shell.say(messages.Finish(session, [0, 2]))
        shell.until(lambda: not shell.router.force.live_count())
        assert shell.heard_of(messages.Declined) == [messages.Declined([1, 2])]

        # Cancelled by a message that arrives without its dispatch.
        shell.lose = [messages.Dispatch]
        shell.say(messages.Request(session, 2, b"d" * 16, None, 1, None), body)
        shell.say(messages.Finish(session, [2, 3]))
        shell.until(lambda: not shell.router.force.live_count())
        assert 2 not in shell.outcomes()

        assert shell.router.malformed == 0
        shell.router.close(time.monotonic())
        assert shell.process is not None
        shell.until(lambda: shell.process is not None and shell.process.poll() is not None)
        assert shell.process.returncode == 0
