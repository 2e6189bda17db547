"""A whole system of the pure machines, with no network, for one test to drive.

A Router, its WorkerCores and one ClientCore, joined by function calls.  Messages
move only in :meth:`System.settle`, time passes only in :meth:`System.advance`,
processes end only in :meth:`System.reap`, and environment code ends only in
:meth:`System.end`: a test decides what is lost, late, doubled or dead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from tests.core.helpers import Joined
from trio_envserve.core import error_records, messages
from trio_envserve.core.client_effects import Answer, Fail, ToServer
from trio_envserve.core.client_inputs import (
    ClientTick,
    Connected,
    Disconnected,
    OutcomeReceived,
    ServerMessage,
)
from trio_envserve.core.messages import Message
from trio_envserve.core.router_effects import Kill, Lost, Report, Spawn, ToClient, ToWorker
from trio_envserve.core.router_inputs import (
    ClientMessage,
    Exited,
    HeartbeatFelt,
    PoolOpened,
    Tick,
    WorkerMessage,
)
from trio_envserve.core.terms import Body, Status
from trio_envserve.core.worker_effects import CancelRun, Run, ToRouter, WorkerEffect
from trio_envserve.core.worker_inputs import BeatDue, OutcomeMade, RouterMessage

QUICK = {"silence_report_s": 2.0, "silence_kill_s": 5.0}
"""Limits of a server that waits for no silent worker."""
FIRST, OTHER, REPLACEMENT = b"w0-1", b"w1-1", b"w0-2"
"""The first worker, that of the other slot, and who takes the first one's place."""


class Start(NamedTuple):
    """Environment code was started: what only a log of its own could say."""

    worker: bytes
    number: int
    body: bytes


class System(Joined):
    """One server with its workers, and one client that is connected to it."""

    def __init__(
        self, *, workers: int = 1, rerun: bool = False, heartbeats: bool = False,
        server: dict[str, Any] | None = None, client: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            workers=workers, rerun=rerun, heartbeats=heartbeats, server=server, client=client
        )
        self.silent: set[bytes] = set()
        """Workers whose processes are stopped: no sign of life."""
        self.blocked_s: dict[bytes, float] = {}
        """Workers whose event loops are blocked, and since when."""
        self.route = b"route 1"
        """Where the client's present connection is reached."""
        self.starts: list[Start] = []
        self.cancels: list[tuple[bytes, int]] = []
        self.kills: list[bytes] = []
        self.reports: list[str] = []
        self.ended: dict[int, Answer | Fail] = {}
        """How calls ended, as their callers were told."""
        self.asked: list[tuple[Body, ...]] = []
        """The frames of every request that the client sent."""
        self.to_client: list[Message] = []
        """All that the router sent to any client, lost or not."""
        self.outcomes: list[tuple[Body, ...]] = []
        """The frames of every outcome among them."""
        self.to_server: list[Message] = []
        """All that the client sent, lost or not."""
        self.to_workers: list[tuple[Body, ...]] = []
        """The frames that the router sent to any worker, lost or not."""
        self.from_workers: list[tuple[Body, ...]] = []
        """The frames that any worker sent, lost or not."""
        self.give(PoolOpened((), self.now_s))
        self.give_client(Connected(self.now_s))
        self.settle()

    # -- what moves -----------------------------------------------------------

    def _carry_out(self, effect: Any) -> None:
        match effect:
            case ToClient(route, message):
                self.to_client.append(message)
                if is_outcome(message):
                    self.outcomes.append(effect.frames)
                if route == self.route and not self.lose(message):
                    self.give_client(ServerMessage(effect.frames, self.now_s))
            case ToServer(message):
                self.to_server.append(message)
                if isinstance(message, messages.Request):
                    self.asked.append(effect.frames)
                if not self.lose(message):
                    self.give(ClientMessage(self.route, effect.frames, self.now_s))
            case ToWorker(worker, _, message):
                self.to_workers.append(effect.frames)
                if worker in self.workers and not self.lose(message):
                    self.work(worker, self.workers[worker].take(RouterMessage(effect.frames)))
            case Answer() | Fail():
                assert effect.call not in self.ended, "a call ended twice"
                self.ended[effect.call] = effect
            case Spawn():
                self._spawn(effect)
            case Kill():
                self.kills.append(effect.worker)
            case Report():
                self.reports.append(effect.text)
            case Lost():
                pass  # the router has already taken it in
            case _:
                raise AssertionError(effect)

    def work(self, worker: bytes, effects: Sequence[WorkerEffect]) -> None:
        """Carry out what a worker's core says."""
        for effect in effects:
            match effect:
                case Run():
                    self.starts.append(Start(worker, effect.number, bytes(effect.body)))
                case CancelRun(number):
                    self.cancels.append((worker, number))
                case ToRouter(_, message):
                    frames = (worker, *effect.frames)
                    self.from_workers.append(frames)
                    if not self.lose(message):
                        self.give(WorkerMessage(frames, self.now_s))

    # -- what happens ---------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Time passes.  Every worker gives signs of life, but for the silent ones, and beats
        if its loop is not blocked."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s = min(end_s, self.now_s + 0.25)
            if self.heartbeats:
                for worker in self.workers.keys() - self.silent:
                    lag_s = self.now_s - self.blocked_s.get(worker, self.now_s)
                    self.give(HeartbeatFelt(worker, self.now_s, lag_s, 0, "environment.py, line 1"))
                    if self.now_s % 1.0 == 0.0 and self.workers[worker].acknowledged and not lag_s:
                        self.work(worker, self.workers[worker].take(BeatDue({})))
            self.give(Tick(self.now_s))
            self.give_client(ClientTick(self.now_s))
            self.settle()

    def received(self, *calls: int) -> None:
        """Their callers have the outcomes in hands, and the server is told of it."""
        for call in calls:
            self.give_client(OutcomeReceived(call, self.now_s))
        self.advance(0.25)

    def end(
        self, start: Start | None = None, payload: bytes = b"outcome",
        status: Status = Status.RESULT,
    ) -> None:  # fmt: skip
        """Environment code ends, by default what was started last."""
        start = start or self.starts[-1]
        made = OutcomeMade(start.number, status, payload, 1.0)
        self.work(start.worker, self.workers[start.worker].take(made))
        self.settle()

    def end_all(self, payload: Callable[[Start], bytes]) -> None:
        """All environment code ends, and what is started because of that, too."""
        while running := [s for s in self.starts if s.number in self._running(s.worker)]:
            self.end(running[0], payload=payload(running[0]))

    def _running(self, worker: bytes) -> Collection[int]:
        return self.workers[worker].running if worker in self.workers else ()

    def reap(self, worker: bytes) -> None:
        """A worker's process has ended, whatever ended it."""
        del self.workers[worker]
        self.give(Exited(worker, self.now_s, "it was ended by SIGKILL"))
        self.advance(0.5)

    def restart_server(self, *, proven: bool = True) -> None:
        """The server, and its workers with it, is dead; another one is in its place,
        and knows that or does not.  The client's connection does not notice."""
        self.restart(proven=proven)

    def reconnect(self, route: bytes) -> None:
        """The client's connection was cut, and is there again under another identity."""
        self.give_client(Disconnected(self.now_s, "cut"))
        self.settle()
        self.route = route
        self.give_client(Connected(self.now_s))
        self.settle()

    def tell(self, *frames: Body) -> list[Message]:
        """A message to the router from the client's own connection (a duplicate,
        a forgery); what the router sends to clients because of it."""
        before = len(self.to_client)
        self.give(ClientMessage(self.route, frames, self.now_s))
        self.settle()
        return self.to_client[before:]

    # -- what is seen ---------------------------------------------------------

    @property
    def spawned(self) -> list[bytes]:
        """The workers that were started, dead or not."""
        return [spawn.worker for spawn in self.spawns]

    def result(self, call: int) -> bytes:
        """The result of a call, which must have one."""
        ended = self.ended.get(call)
        assert isinstance(ended, Answer), f"call {call} has no outcome: {ended}"
        assert ended.status is Status.RESULT, error_records.decode(ended.body)
        return bytes(ended.body)

    def failure(self, call: int) -> Any:
        """The error record of a call, which must have ended with one."""
        ended = self.ended.get(call)
        assert ended is not None, f"call {call} still waits"
        return ended.info if isinstance(ended, Fail) else error_records.decode(ended.body)


def is_outcome(message: Message) -> bool:
    """Whether it is an outcome on its way to a client."""
    return isinstance(message, messages.Outcome)
