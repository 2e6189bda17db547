"""The simulated client process: core, connection, and the callers in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ...core import error_records, messages
from ...core.client import ClientCore
from ...core.client_effects import Answer, ClientEffect, Fail, Reconnect, ToServer
from ...core.client_inputs import (
    CallKey,
    CallsCancelled,
    CallSubmitted,
    ClientClosed,
    ClientInput,
    ClientTick,
    Connected,
    Disconnected,
    OutcomeReceived,
    ServerMessage,
)
from ...core.errors import ErrorInfo
from ...core.key_records import KeyAct, KeyName, input_digest
from ...core.router_effects import Report
from ...core.terms import RequestId, Status
from ...retrylab.world import Process
from .judges import key_of
from .network import Frames, Link, Outgoing, said_in
from .plan import Ask, Fault

if TYPE_CHECKING:
    from .simulator import World


class SimClient(Process):
    """One client process: core, connection, and the callers in it."""

    def __init__(self, world: World, index: int, asks: tuple[Ask, ...], *, life: int = 1) -> None:
        name = f"c{index}" if life == 1 else f"c{index}.{life}"
        super().__init__(world.events, name, world.luck_of(name))
        self.world = world
        self.life = life
        self.core = ClientCore(
            name=self.name, new_id=world.new_id, now_s=self.events.now_s,
            limits=world.plan.client, wire=world.wire, caller=b"caller of keys %d" % index,
        )  # fmt: skip
        self.link: Link | None = None
        self._outgoing = Outgoing(world.network, grouped=world.grouped)
        self.route = world.network.new_route()
        self.away_s = 0.0
        """How long the next reconnecting takes."""
        self._keys: dict[int, str] = {}
        """The ask of each call, by its number: calls are counted from 0."""
        self._numbers: dict[str, int] = {}
        self._tick_at_s = float("inf")
        self._asks: dict[str, Ask] = {}
        """The asks so far, by their names."""
        self._unasked = {ask.key: ask for ask in asks}
        for ask in asks:
            self.events.after(max(0.0, ask.at_s - self.events.now_s), self.post, self._ask, ask)
        self._connect()
        self._arm()

    # -- callers --------------------------------------------------------------

    def has_more(self) -> bool:
        """Whether some callers have not asked yet; if it is dead, another client's will."""
        return bool(self._unasked)

    def _ask(self, ask: Ask) -> None:
        now_s, world = self.events.now_s, self.world
        if self.core.closed:
            return
        self._asks[ask.key] = self._unasked.pop(ask.key)
        if len(ask.body) > world.plan.message_bytes:
            world.faults[Fault.HUGE] += 1
        may_rerun = world.may_declare_rerun() if ask.rerun is None else ask.rerun
        world.happened(
            "asked", self.name, ask.key, may_rerun, ask.max_executions, ask.limit_s, ask.use,
            key_of(ask.body),
        )  # fmt: skip
        number = len(self._keys)
        asked = CallSubmitted(
            number, ask.body, now_s, ask.rerun, ask.max_executions, ask.limit_s, _key(ask)
        )  # fmt: skip
        effects = self.core.take(asked)
        if ask.use is not None:
            world.faults[Fault.KEYS] += 1
            self.events.note(self.name, f"{ask.key}: {ask.use.act.name} of {ask.use.label}")
        consent = {None: "rerun as declared", True: "rerun", False: "no rerun"}[ask.rerun]
        self.events.note(self.name, f"asks {ask.key}: {consent}, {ask.max_executions} at most")
        self._keys[number] = ask.key
        self._numbers[ask.key] = number
        if ask.cancel_after_s is not None:
            self.events.after(ask.cancel_after_s, self.post, self.cancel, ask.key)
        self._carry_out(effects)

    def cancel(self, key: str) -> None:
        """The caller of this call gives up, if it still waits."""
        self._cancel((key,))

    def cancel_all(self) -> None:
        """Every caller gives up, in one turn."""
        self._cancel(tuple(self._numbers))

    def _cancel(self, keys: Iterable[str]) -> None:
        cancelled = [key for key in keys if key in self._numbers]
        for key in cancelled:
            self.events.note(self.name, f"cancels {key}")
            self.world.happened("withdrawn", self.name, key)
        numbers = [self._numbers.pop(key) for key in cancelled]
        if numbers:
            self._take(CallsCancelled(numbers, self.events.now_s))

    def close(self) -> None:
        """The client is closed in order; the process ends soon after."""
        if not self.core.closed:
            self.world.happened("gone", self.name)
            self._take(ClientClosed(self.events.now_s))
            self.events.after(0.2, self.die, "closed")

    def die(self, how: str) -> None:
        """The process is dead; nobody is told."""
        if self.alive:
            super().die(how)
            self.world.happened("gone", self.name)
            self.world.network.close(self.link)
            rest = (*self._unasked.values(), *self._again())
            self.events.after(self.rng.uniform(0.05, 1.0), self.world.come_back, self, rest)

    def _again(self) -> Iterator[Ask]:
        """The asks of its next life for keys whose outcomes this one did not get."""
        for name in self._numbers:
            ask = self._asks[name]
            if ask.use is None or ask.use.act is not KeyAct.ASK:
                continue
            act = self.rng.choice((KeyAct.ASK, KeyAct.ASK, KeyAct.WITHDRAW, None))
            if act is not None:
                use = dataclasses.replace(ask.use, act=act)
                body = ask.body if act is KeyAct.ASK else b""
                after_s = self.rng.choice((ask.cancel_after_s, self.rng.uniform(0.0, 1.5)))
                yield dataclasses.replace(
                    ask, key=name + "'", at_s=0.0, body=body, use=use, cancel_after_s=after_s
                )

    # -- its connection -------------------------------------------------------

    def _connect(self) -> None:
        if not self.alive:
            return
        if not self.held:
            if self.world.plan.has(Fault.NEW_ROUTE) and self.core.pings.connections:
                self.world.faults[Fault.NEW_ROUTE] += 1
                self.route = self.world.network.new_route()
            self.link = self.world.network.connect(self, self.route, worker=False)
        if self.link is None:
            self.events.after(self.rng.uniform(0.05, 0.4), self._connect)
        else:
            self._take(Connected(self.events.now_s))

    def cut_off(self) -> None:
        """The connection is gone."""
        self.link = None
        self.post(self._lose)
        self.events.after(self.away_s + self.rng.uniform(0.01, 0.2), self._connect)
        self.away_s = 0.0

    def _lose(self) -> None:
        self._take(Disconnected(self.events.now_s, "connection lost"))

    def take_in(self, frames: Frames) -> None:
        """A message has arrived."""
        self.post(self._message, frames)

    def _message(self, frames: Frames) -> None:
        self._take(ServerMessage(frames, self.events.now_s))
        for message, _ in said_in(frames):
            self.world.happened("arrived", self.name, "", message)

    # -- time -----------------------------------------------------------------

    def _arm(self) -> None:
        at_s = max(self.core.wake_at_s(), self.events.now_s + 1e-4)
        if at_s < self._tick_at_s:
            self._tick_at_s = at_s
            self.events.after(at_s - self.events.now_s, self._due, at_s)

    def _due(self, at_s: float) -> None:
        if at_s != self._tick_at_s or not self.alive:
            return  # a later, or an earlier one, has taken its place
        self._tick_at_s = float("inf")
        if self.held:
            return  # waking up ticks
        self._take(ClientTick(self.events.now_s))

    def woke(self, late_s: float) -> None:
        """Tick at once, after the input."""
        self._take(ClientTick(self.events.now_s, late_s))

    # -- effects --------------------------------------------------------------

    def _take(self, given: ClientInput) -> None:
        self._carry_out(self.core.take(given))

    def _carry_out(self, effects: list[ClientEffect]) -> None:
        for effect in effects:
            self._effect(effect)
        self._outgoing.leave(up=True)
        if self.alive:
            self._arm()

    def _effect(self, effect: ClientEffect) -> None:
        world = self.world
        match effect:
            case ToServer():
                self._name(effect.message)
                self._outgoing.say(self.link, effect, (), up=True)
            case Answer():
                body, status = bytes(effect.body), effect.status
                info = None if status is Status.RESULT else error_records.decode(body)
                self._tell(self._keys[effect.call], status, body, info)
                self.events.after(
                    self.rng.choice((0.0, 0.001, 0.1)), self.post, self._received, effect.call
                )
            case Fail():
                key = self._keys[effect.call]
                self._numbers.pop(key, None)
                self._tell(key, None, b"", effect.info)
            case Reconnect():
                self.events.after(0.0, world.network.cut, self.link)
            case Report():
                self.events.note(self.name, effect.text)
            case _:
                pass

    def _tell(
        self, key: str, status: Status | None, body: bytes, info: ErrorInfo | None
    ) -> None:  # fmt: skip
        """A caller is told its outcome, or why it has none."""
        what = "fail" if status is None else status.name.lower()
        if info is not None:
            what += f" {info.code}"
        verdict = None if info is None else info.verdict.value
        self.events.note(self.name, f"{key} is told: {what} ({verdict})")
        self.world.happened("told", self.name, key, status, body, info)

    def _name(self, message: messages.Message) -> None:
        """Say which call this request is: with a key nothing on the wire says so."""
        if not self.world.plan.has(Fault.KEYS) or type(message) not in messages.BATCHED:
            return
        for number, call in self.core.calls.live.items():
            asks = number in self._keys and call.key is not None
            if call.request is message and asks and call.session is not None:
                request = RequestId(call.session.id, call.sequence)
                self.world.happened("names", self.name, self._keys[number], request)
                return
        if isinstance(message, messages.KeyedRequest):
            # The core withdraws by itself, for a call that is over.
            name = KeyName(message.namespace, message.key)
            over = (
                key for key, ask in self._asks.items()
                if ask.use is not None and ask.use.name == name and ask.use.act is KeyAct.ASK
                and key not in self._numbers
            )  # fmt: skip
            request = RequestId(message.session, message.sequence)
            self.world.happened("names", self.name, next(over), request)

    def _received(self, number: int) -> None:
        if self._numbers.pop(self._keys[number], None) is not None:
            self.world.happened("received", self.name, self._keys[number])
            self._take(OutcomeReceived(number, self.events.now_s))


def _key(ask: Ask) -> CallKey | None:
    """The key of this call, if it names one."""
    if ask.use is None:
        return None
    return CallKey(ask.use.act, ask.use.name, input_digest(ask.body, ask.rerun), ask.use.tag)
