"""One step of two hosts and their router: an action, and all that follows from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ..hosts.judge import Judge
from .actions import SERVER, WORKER, Action, BaseJudge, BaseStep, Kind
from .hosted_stages import CLOCKS, TICK_S, HostInfo, WorkerInfo
from .hosted_state import HostsState, Message

if TYPE_CHECKING:
    from .hosted_world import HostsWorld

KINDS: Final[Mapping[str, Kind]] = {
    "begin": Kind(WORKER, "h{0}: a process of the host starts"),
    "turn": Kind(WORKER, "h{0} has its turn", "turns"),
    "idle_turn": Kind(WORKER, "h{0} has its turn"),
    "up": Kind(WORKER, "router <- h{0}: {up}"),
    "down": Kind(WORKER, "h{0} <- router: {down}"),
    "late": Kind(WORKER, "late, {late}"),
    "fire": Kind(WORKER, "h{0}: the guard kills all workers"),
    "end": Kind(WORKER, "h{0}: execution {1} ends"),
    "lose": Kind(WORKER, "a message is lost, of h{0}, {1}", "losses"),
    "stray": Kind(WORKER, "a message is left behind, of h{0}, {1}", "strays"),
    "copy": Kind(WORKER, "a copy of a message is left behind, of h{0}, {1}", "strays"),
    "leave": Kind(WORKER, "a copy of a message is left behind, of h{0}, {1}"),
    "cut": Kind(WORKER, "h{0} is cut off, {1}", "cuts"),
    "heal": Kind(WORKER, "h{0} is cut off no more, {1}"),
    "crash": Kind(WORKER, "h{0}: the host's process is killed", "crashes"),
    "reconnect": Kind(WORKER, "h{0} says hello over another connection", "reconnects"),
    "sleep": Kind(WORKER, "h{0} sleeps", "sleeps"),
    "wake": Kind(WORKER, "h{0} wakes"),
    "stop": Kind(WORKER, "h{0}: the guard is stopped", "stops"),
    "resume": Kind(WORKER, "h{0}: the guard goes on"),
    "rule": Kind(SERVER, "the router has its turn"),
    "fall": Kind(SERVER, "the router is killed", "falls"),
    "replace": Kind(SERVER, "another router begins"),
    "tick": Kind(SERVER, "the time passes", "ticks"),
    "idle_tick": Kind(SERVER, "the time passes"),
}


class Seen:
    """All machines, as their judge sees them."""

    def __init__(self, now_s: float, infos: list[HostInfo]) -> None:
        self.now_s = now_s
        self._of = [each.workers for each in infos]

    def workers(self) -> Iterator[WorkerInfo]:
        """All that live."""
        for its in self._of:
            yield from its

    def of(self, h: int) -> tuple[WorkerInfo, ...]:
        """Those of one machine."""
        return self._of[h]


class HostsStep(BaseStep[HostsState]):
    """A method for each action."""

    KINDS: ClassVar = KINDS

    def __init__(self, world: HostsWorld, state: HostsState) -> None:
        super().__init__(world.configuration, state.left)
        self.world = world
        self.judge = BaseJudge()
        self._tick_count, self._router, hosts, _, self._past = state
        self._hosts = list(hosts)

    def state(self) -> HostsState:
        """The state after it."""
        return HostsState(self._tick_count, self._router, tuple(self._hosts), self.left, self._past)

    @property
    def _now_s(self) -> float:
        return self._tick_count * TICK_S

    # -- machines -----------------------------------------------------------------

    def _server(self, *given: Any) -> None:
        """The router's machine steps."""
        self._router, effects = self.world.routers.step(self._router, (self._now_s, *given))
        self._effects(effects, -1)

    def _host(self, h: int, *given: Any) -> None:
        part = self._hosts[h]
        after, effects = self.world.machines.step(part.stage, (self._now_s, *given))
        self._hosts[h] = part._replace(stage=after)
        self._effects(effects, h)

    def _effects(self, effects: tuple[tuple[Any, ...], ...], h: int) -> None:
        said = []
        for name, *rest in effects:
            match name:
                case "up":
                    self._send(h, "up", rest[0])
                case "down":
                    to, message = rest
                    self._send(to, "down", (self._info(to).process, *message))
                case "crash":
                    self.judge.violation("CRASH", rest[0])
                case _:
                    said.append((name, rest))
        if said:
            self._judge(said, h)

    def _info(self, h: int) -> HostInfo:
        info: HostInfo = self.world.machines.info[self._hosts[h].stage]
        return info

    def _judge(self, said: list[tuple[str, list[Any]]], h: int) -> None:
        seen = Seen(self._now_s, [self._info(each) for each in range(len(self._hosts))])
        judge = Judge(seen, self._past)
        for name, rest in said:
            if name == "started":
                judge.started(next(w for w in seen.of(h) if w.number == rest[0]))
            elif name == "woke":
                judge.woke(seen.of(h))
            else:
                getattr(judge, name)(*rest)
        for each in judge.violations:
            self.judge.violation(each.guarantee, each.text)
        self._past = judge.past()

    # -- messages -----------------------------------------------------------------

    def _send(self, h: int, way: str, message: Message) -> None:
        part = self._hosts[h]
        if way not in part.cut:
            self._hosts[h] = part.with_link(way, (*part.link(way), message))

    def _first(self, h: int, way: str, *, keep: bool = False) -> Message:
        part = self._hosts[h]
        first, *rest = part.link(way)
        if not keep:
            self._hosts[h] = part.with_link(way, tuple(rest))
        return first

    def _arrive(self, h: int, way: str, message: Message) -> None:
        if way == "up":
            self._server("receive", h, self.world.names[h], *message)
        else:
            self._host(h, "receive", *message)

    def _up(self, h: int) -> None:
        self._arrive(h, "up", self._first(h, "up"))

    def _down(self, h: int) -> None:
        self._arrive(h, "down", self._first(h, "down"))

    def _late(self, h: int, index: int) -> None:
        part = self._hosts[h]
        late = list(part.late)
        way, message = late.pop(index)
        self._hosts[h] = part._replace(late=tuple(late))
        self._arrive(h, way, message)

    def _lose(self, h: int, way: str) -> None:
        self._first(h, way)

    def _stray(self, h: int, way: str) -> None:
        self._put_by(h, way, self._first(h, way))

    def _copy(self, h: int, way: str) -> None:
        self._leave(h, way)

    def _leave(self, h: int, way: str) -> None:
        self._put_by(h, way, self._first(h, way, keep=True))

    def _put_by(self, h: int, way: str, message: Message) -> None:
        part = self._hosts[h]
        self._hosts[h] = part._replace(late=(*part.late, (way, message)))

    def _cut(self, h: int, way: str) -> None:
        part = self._hosts[h]
        self._hosts[h] = part._replace(cut=(*part.cut, way))

    def _heal(self, h: int, way: str) -> None:
        part = self._hosts[h]
        self._hosts[h] = part._replace(cut=tuple(each for each in part.cut if each != way))

    # -- hosts --------------------------------------------------------------------

    def take(self, action: Action) -> None:
        """Let it happen."""
        name, *where = action
        if name in _OF_MACHINES:
            spends = self.KINDS[name].spends
            if spends:
                self._spend(spends)
            self._host(where[0], _OF_MACHINES[name], *where[1:])
        else:
            super().take(action)

    # -- the router and the time --------------------------------------------------

    def _rule(self, choices: tuple[int, ...]) -> None:
        self._server("turn", choices)

    def _fall(self) -> None:
        self._server("fall")

    def _replace(self) -> None:
        self._server("replace")

    def _tick(self, clocks: int) -> None:
        self._pass(clocks)

    def _idle_tick(self, clocks: int) -> None:
        self._pass(clocks)

    def _pass(self, clocks: int) -> None:
        """The time passes.  Guards whose time has come kill before, as they have promised;
        timers come first."""
        hosts = range(len(self._hosts))
        then_s = self._now_s + TICK_S
        for h in hosts:
            dead_by_s = self._info(h).dead_by_s
            if dead_by_s is not None and dead_by_s <= then_s:
                self._host(h, "fire")
        if not self._tick_count:
            self._server("clocks", CLOCKS[clocks])
            for h in hosts:
                self._host(h, "clocks", CLOCKS[clocks])
        self._tick_count += 1
        for h in hosts:
            self._host(h, "timer")


_OF_MACHINES = {
    "begin": "begin", "turn": "turn", "idle_turn": "turn", "fire": "fire", "end": "end",
    "reconnect": "reconnect", "crash": "crash", "sleep": "sleep", "wake": "wake",
    "stop": "stop", "resume": "resume",
}  # fmt: skip
"""The actions that are only an input of a machine, and which."""
