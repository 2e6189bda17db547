"""A client, a router and a worker of the pure core, joined in memory, and what each of
them executes.

Time and ids are arguments, so the same inputs always give the same counts.  While the
counter is on, a trace function counts the bytecodes of each machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, final

from trio_envserve.core.client import ClientCore
from trio_envserve.core.client_effects import Answer, ClientEffect, ToServer
from trio_envserve.core.client_inputs import (
    CallKey,
    CallSubmitted,
    ClientInput,
    ClientTick,
    Connected,
    OutcomeReceived,
    ServerMessage,
)
from trio_envserve.core.key_records import KeyAct, KeyName
from trio_envserve.core.limits import ServerLimits, WireLimits
from trio_envserve.core.messages import ToSay, in_batches
from trio_envserve.core.router import Router
from trio_envserve.core.router_effects import RouterEffect, Spawn, ToClient, ToWorker
from trio_envserve.core.router_inputs import (
    ClientMessage,
    PoolOpened,
    Resume,
    RouterInput,
    Spawned,
    WorkerMessage,
)
from trio_envserve.core.terms import DIGEST_BYTES, ID_BYTES, SentBody, Status
from trio_envserve.core.worker import WorkerCore
from trio_envserve.core.worker_effects import Run, ToRouter, WorkerEffect, frames_to_router
from trio_envserve.core.worker_inputs import (
    EnvironmentReady,
    OutcomeMade,
    RouterMessage,
    WorkerInput,
)

BATCH = 16
"""Requests that travel together: what a busy socket hands out at once, about."""

STEP_S = 0.006
MACHINES = ("router", "client", "worker")
_ROUTE = b"c" + bytes(16)
_BODY = bytes(300)
_OUTCOME = bytes(260)


@final
class Counter:
    """Counts bytecodes by machine, while it is on."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(MACHINES, 0)
        self.on = False

    @contextmanager
    def count(self, machine: str) -> Iterator[None]:
        """All bytecodes that are executed in functions called in this block."""
        if not self.on:
            yield
            return
        seen = 0

        def opcode(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal seen
            if event == "opcode":
                seen += 1
            return opcode

        def call(frame: FrameType, event: str, argument: Any) -> Any:
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
            return opcode

        before = sys.gettrace()
        sys.settrace(call)
        try:
            yield
        finally:
            sys.settrace(before)
            self.counts[machine] += seen


@final
class Joined:
    """The three machines, and what is on its way between them."""

    def __init__(self, counter: Counter, *, keyed: bool = False) -> None:
        self.keyed = keyed
        """Whether each request has a key of its own."""
        self.now_s = 1.0
        self.counter = counter
        self.inputs: list[RouterInput] = []
        """Everything that went into the router, to be replayed."""
        self.router = new_router()
        self.client = ClientCore(name="counted", new_id=_Ids(), now_s=self.now_s)
        self._calls = 0
        self._running: list[int] = []
        self._asked: list[ClientEffect] = []
        """The client's effects that nobody has carried out yet."""
        self._answers: list[Answer] = []
        self._said: list[RouterEffect] = []
        """The same of the router."""
        self._tell(PoolOpened, ())
        (spawn,) = [e for e in self._said if isinstance(e, Spawn)]
        self._worker_id = spawn.worker
        self.inputs.append(Spawned(spawn.worker, 1))
        self.router.take(self.inputs[-1])
        header_bytes = WireLimits().header_bytes
        self.worker = WorkerCore(spawn.incarnation, header_bytes=header_bytes)
        self._report(self._work(EnvironmentReady, 1, "counted", False))
        self._ask(Connected)
        self._move()

    def keep_in_flight(self, count: int) -> None:
        """Submit until so many are under way."""
        for _ in range(count):
            self._submit()
        self._move()

    def turn(self) -> None:
        """A batch of executions ends, is answered, received, and replaced."""
        done, self._running = self._running[:BATCH], self._running[BATCH:]
        effects: list[WorkerEffect] = []
        for number in done:
            effects += self._work(OutcomeMade, number, Status.RESULT, _OUTCOME, 0.001)
        self._report(effects)
        self._move()
        if self.router.behind:  # it has answered as many as it may at once
            self._tell(Resume)
            self._move()
        answers, self._answers = self._answers, []
        assert len(answers) == len(done)
        self.now_s += STEP_S
        for answer in answers:
            self._ask(OutcomeReceived, answer.call)
            self._submit()
        self._ask(ClientTick)
        self._move()

    def _submit(self) -> None:
        number, key = self._calls, None
        if self.keyed:
            name = KeyName(b"default", b"row %d" % number)
            key = CallKey(KeyAct.ASK, name, number.to_bytes(DIGEST_BYTES, "big"))
        self._ask(partial(CallSubmitted, key=key), number, _BODY)
        self._calls += 1

    def _move(self) -> None:
        """Carry messages until nothing is under way."""
        while True:
            effects, self._asked = self._asked, []
            self._answers += [effect for effect in effects if isinstance(effect, Answer)]
            sent = [effect for effect in effects if isinstance(effect, ToServer)]
            for frames in self._batches("client", sent):
                self._tell(ClientMessage, _ROUTE, frames)
            said, self._said = self._said, []
            if not said and not sent:
                return
            self._deliver(said)

    def _deliver(self, said: list[Any]) -> None:
        """Deliver the router's messages, as the server's shell sends them."""
        to_worker = [effect for effect in said if isinstance(effect, ToWorker)]
        for frames in self._batches("router", [effect[2:] for effect in to_worker]):
            runs = self._work(RouterMessage, (to_worker[0].incarnation, *frames))
            self._running += [run.number for run in runs if isinstance(run, Run)]
            self._report(runs)
        to_client = [effect[1:] for effect in said if isinstance(effect, ToClient)]
        for frames in self._batches("router", to_client):
            self._ask(ServerMessage, frames)

    def _report(self, effects: Sequence[Any]) -> None:
        """Deliver the worker's messages to the router."""
        with self.counter.count("worker"):
            said = list(frames_to_router([e for e in effects if isinstance(e, ToRouter)]))
        for frames in said:
            self._tell(WorkerMessage, (self._worker_id, *frames))

    def _batches(self, machine: str, said: Sequence[ToSay]) -> list[tuple[SentBody, ...]]:
        with self.counter.count(machine):
            return list(in_batches(said))

    def _ask(self, kind: Callable[..., ClientInput], *what: Any) -> None:
        with self.counter.count("client"):  # to make the input is a part of it
            self._asked += self.client.take(kind(*what, self.now_s))

    def _work(self, kind: Callable[..., WorkerInput], *what: Any) -> list[WorkerEffect]:
        with self.counter.count("worker"):
            return self.worker.take(kind(*what))

    def _tell(self, kind: Callable[..., RouterInput], *what: Any) -> None:
        with self.counter.count("router"):
            given = kind(*what, self.now_s)
            self._said += self.router.take(given)
        self.inputs.append(given)


class _Ids:
    """Ids that are all different, and the same in every run."""

    def __init__(self) -> None:
        self._last = 0

    def __call__(self) -> bytes:
        self._last += 1
        return self._last.to_bytes(ID_BYTES, "big")


def new_router() -> Router:
    """A router as the server makes it, with one worker."""
    return Router(
        epoch=bytes(ID_BYTES),
        slots=1,
        now_s=1.0,
        new_id=_Ids(),
        limits=ServerLimits(),
        heartbeats=False,
    )
