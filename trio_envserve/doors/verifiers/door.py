"""The shell of the door: it moves messages, keeps time, and makes the calls.

Theory of operation
-------------------
:class:`~.runs.Runs` decides.  Three tasks give it inputs: the receiver, the clock, and one
that hears of connections; and so does each run, which is an ordinary call of the client, in a
task of its own.  Cancelling that task cancels the work.  The call has no key: the table tells
runs by their ids, and the server forgets an outcome as soon as the door has it.

The input of a run is ``{"wire": "verifiers-0.4", "run": bytes}``: the message as the client
packed it.  The environment returns, in the ``state`` of its result, ``deltas`` and ``reply``,
packed, and ``traces``, the ids of the traces that the deltas are of.  The adapter
``verifiers:TASKSET`` does; another environment has nothing that such a client could read.

The clock counts only while the loop was awake, so a loop that was held ends no lease.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Final, final

import trio

from ...client import Client, Outcome
from ...client.options import checked
from ...client.shell import follow
from ...core.clock import AwakeClock
from ...core.health import Health
from ...core.limits import MIB
from ...net import Frame, RouterSocket
from ..limits import VerifiersLimits
from . import wire
from .runs import Deliver, Effect, RunOutcome, Runs, Send, StartRun, StopRun, StreamDelta
from .sending import Sending

_log = logging.getLogger("trio_envserve.verifiers")

COLUMNS: Final = ("reply", "deltas", "traces")
"""Columns of the state that are asked for."""

TICK_S: Final = 0.25

TURN_BYTES: Final = 4 * MIB
"""Most bytes of messages that are taken in before others have their turn."""

LAST_WORDS_S: Final = 1.0

_OTHER: Final = (
    "the environment does not answer runs of verifiers; serve verifiers:TASKSET (it ran and failed)"
)


@final
class Door:
    """One door while it is open."""

    def __init__(self, client: Client, limits: VerifiersLimits, *, redeliver: bool) -> None:
        self.client = client
        self._limits = limits
        self._runs = Runs(limits, redeliver=redeliver)
        self._news: deque[tuple[bytes, str | None]] = deque()
        """Connections that were opened or lost, and not taken in yet."""
        self._received = trio.Event()
        self._scopes: dict[bytes, trio.CancelScope] = {}
        """Scopes of the calls of runs that have not ended, by name."""
        self._clock = AwakeClock(2 * TICK_S, trio.current_time())
        self._complained = 0

    def on_peer(self, route: bytes, origin: str | None) -> None:
        """A connection was opened, or is lost."""
        self._news.append((route, origin))
        self._received.set()

    async def serve(self, router: RouterSocket, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve until cancelled.  Then whoever waits is told."""
        self._router = router
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._sending = Sending(nursery, router, self._runs.find, self._delivered)
                nursery.start_soon(self._hear)
                nursery.start_soon(self._keep_time)
                task_status.started()
                await self._receive()
        finally:
            # Bookkeeping first: the tasks of the runs have ended, nobody answers any more.
            for effect in self._runs.close():
                if isinstance(effect, Send):
                    router.send_nowait(effect.route, effect.message)
            with trio.move_on_after(LAST_WORDS_S, shield=True):
                await router.flush()

    # -- inputs ---------------------------------------------------------------

    async def _receive(self) -> None:
        while True:
            batch = await self._router.receive()
            self._take_news()
            ready = self.client.health().health is Health.HEALTHY
            size = 0
            for route, *frames in batch:
                self._do(self._runs.received(bytes(route), frames, self._now_s(), ready=ready))
                size += sum(map(len, frames))
                if size > TURN_BYTES:  # each run was hashed, and many may come in one batch
                    size = 0
                    await trio.lowlevel.checkpoint()

    async def _hear(self) -> None:
        while True:
            await self._received.wait()
            self._received = trio.Event()
            self._take_news()

    def _take_news(self) -> None:
        while self._news:
            route, origin = self._news.popleft()
            if origin is not None:
                self._sending.opened(route)
                self._do(self._runs.opened(route, origin))
            else:
                self._sending.lost(route)
                self._do(self._runs.closed(route, self._now_s()))

    async def _keep_time(self) -> None:
        while True:
            await trio.sleep(TICK_S)
            self._do(self._runs.tick(self._now_s()))
            odd = self._runs.not_understood + self._sending.dropped
            if odd > self._complained:
                _log.warning("%d messages were not understood, or had no room", odd)
                self._complained = 2 * odd  # a flood is no flood of lines

    def _now_s(self) -> float:
        return self._clock.read(trio.current_time())

    def _delivered(self, route: bytes, name: bytes) -> None:
        self._do(self._runs.delivered(route, name, self._now_s()))

    # -- effects --------------------------------------------------------------

    def _do(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(route, message):
                    self._sending.say(route, message)
                case StreamDelta(route, name, message):
                    if not self._sending.stream(route, message):
                        self._runs.missed(route, name)
                case Deliver():
                    self._sending.deliver(effect)
                case StartRun():
                    scope = self._scopes[effect.name] = trio.CancelScope()
                    self._nursery.start_soon(self._run, effect, scope)
                case StopRun(name):
                    self._scopes.pop(name).cancel()

    async def _run(self, start: StartRun, scope: trio.CancelScope) -> None:
        """Make the call of a run, and say what it has come to."""
        with scope:
            outcome = await self._call(start)
            if not scope.cancel_called:
                del self._scopes[start.name]
                self._do(self._runs.ended(start.name, outcome, self._now_s()))

    async def _call(self, start: StartRun) -> RunOutcome:
        try:
            asked = checked({"wire": wire.NAME, "run": start.payload}, state_columns=COLUMNS)
            ended = await follow(self.client, asked, partial(self._send_delta, start.name))
            return outcome_of(ended, most_bytes=self._limits.frame_bytes)
        except Exception:
            # A mistake of the door ends one run, and its client is told so.
            _log.exception("the door for verifiers made a mistake")
            return RunOutcome(error="the door made a mistake (it may have run)")

    def _send_delta(self, name: bytes, number: int, delta: Frame) -> None:
        self._do(self._runs.delta(name, number, delta))


def outcome_of(ended: Outcome, *, most_bytes: int) -> RunOutcome:
    """The client's outcome: never an exception, whatever the environment has returned."""
    error = ended.error
    if error is not None:
        return RunOutcome(error=f"{error} [{error.code}] (fault: {error.fault.value})")
    match ended.value:
        case {"state": {"reply": bytes(reply), "deltas": list(deltas), "traces": list(traces)}} if (
            all(isinstance(each, bytes) for each in deltas)
            and all(isinstance(each, str) for each in traces)
        ):
            pass
        case _:
            return RunOutcome(error=_OTHER)
    largest = max(map(len, (reply, *deltas)))
    if largest > most_bytes:
        why = (
            f"a part of the outcome has {largest} bytes, and a frame at most {most_bytes} "
            "(serve --verifiers-limit frame_bytes=NUMBER)"
        )
        return RunOutcome(error=f"{why} (it ran and failed)")
    return RunOutcome(reply, deltas, traces)
