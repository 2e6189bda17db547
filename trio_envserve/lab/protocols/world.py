"""A run: the actors of a protocol on a virtual network and clock."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any, NamedTuple

from ..kit.events import Events
from ..kit.network import ARRIVED, LOST, STRAY, BaseLink, BaseNetwork
from ..kit.violation import Violation
from ..kit.world import BaseWorld
from .interface import FAULT, Ask, Entry, Fault, Protocol
from .plain import plain
from .plan import Plan, Strike
from .process import ActorProcess

CRASH = "CRASH"
"""The guarantee that is broken when an actor raises."""


class Envelope(NamedTuple):
    """A message on its way."""

    sender: str
    to: str
    message: Any

    def to_bytes(self) -> bytes:
        """For the digest."""
        return f"{self.sender} {self.to} {plain(self.message)}".encode()


class ActorLink(BaseLink):
    """A connection between two actors."""

    def __init__(self, name: str, dialer: ActorProcess, listener: ActorProcess) -> None:
        super().__init__(name, dialer.rng)
        self.dialer = dialer
        self.listener = listener


class ActorNetwork(BaseNetwork[ActorLink, Envelope]):
    """A connection for each two actors that talk, made by the first message."""

    def __init__(self, world: ActorWorld) -> None:
        super().__init__(world.events, world.plan.rates)
        self._world = world
        self._links: dict[str, ActorLink] = {}
        self._sent: Counter[bytes] = Counter()
        """How often each message was sent."""
        self._none_until_s: dict[str, float] = {}

    def transmit(self, sender: ActorProcess, to: str, message: Any) -> None:
        """Send, over a new connection if there is none; lost if there can be none."""
        envelope, name = Envelope(sender.name, to, message), _pair(sender.name, to)
        link = self._links.get(name) or self._connect(name, sender, self._world.processes[to])
        if link is None:
            self.events.note_message(name, LOST[True], envelope)
        else:
            link.rng = self._luck_of(envelope)
            self.send(link, envelope, up=sender is link.dialer)

    def strikes(self, rate: float, rng: Random) -> bool:
        """Draws also where it never does: see :meth:`_luck_of`."""
        return rng.random() < rate and not self.calm

    def _luck_of(self, envelope: Envelope) -> Random:
        """A source for each message: so it has the same luck when others, or a kind of
        fault, are left out of the schedule."""
        text = envelope.to_bytes()
        self._sent[text] += 1
        return self._world.luck_of(f"{text!r}/{self._sent[text]}")

    def _connect(self, name: str, dialer: ActorProcess, listener: ActorProcess) -> ActorLink | None:
        if not listener.alive or self.events.now_s < self._none_until_s.get(name, 0.0):
            return None
        self._links[name] = ActorLink(name, dialer, listener)
        return self._links[name]

    def of(self, process: ActorProcess) -> list[ActorLink]:
        """The connections of an actor."""
        links = (self._links[name] for name in sorted(self._links))
        return [link for link in links if process in (link.dialer, link.listener)]

    def part(self, link: ActorLink, for_s: float) -> None:
        """Cut it; there is no other for so long."""
        self._none_until_s[link.name] = self.events.now_s + for_s
        self.cut(link)

    def rejoin(self) -> None:
        """End the half-open connections; everybody can connect again."""
        self._none_until_s.clear()
        for link in list(self._links.values()):
            if link.half_open:
                self.cut(link)

    def ended(self, link: ActorLink, *, cut: bool) -> None:
        """Both ends hear of it, if they are alive."""
        if self._links.get(link.name) is not link:
            return  # it had ended before, and there may be another one
        del self._links[link.name]
        link.dialer.cut_off(link.listener.name)
        link.listener.cut_off(link.dialer.name)

    def deliver(self, link: ActorLink, envelope: Envelope, *, up: bool, stray: bool) -> None:
        """To the process at the end; a stray to whoever lives under the name now."""
        way = STRAY if stray else ARRIVED
        receiver = link.listener if up else link.dialer
        if stray:
            receiver = self._world.processes[envelope.to]
        if not receiver.alive:
            self.events.note_message(link.name, LOST[up], envelope)
            return
        self.events.note_message(link.name, way[up], envelope)
        receiver.take_in(envelope.sender, envelope.message)


def _pair(one: str, other: str) -> str:
    return "-".join(sorted((one, other)))


class ActorWorld(BaseWorld[Strike]):
    """Everything that there is in a run."""

    network: ActorNetwork

    def __init__(self, protocol: Protocol, seed: int, plan: Plan, *, trace: bool) -> None:
        super().__init__(Events(Envelope.to_bytes, trace=trace))
        self.protocol = protocol
        self.seed = seed
        self.plan = plan
        self.rng = self.luck_of("world")
        self.network = ActorNetwork(self)
        self.disks: dict[str, dict[str, Any]] = {name: {} for name in protocol.actors}
        self.processes: dict[str, ActorProcess] = {}
        self.faults: Counter[Fault] = Counter()
        self.entries: list[Entry] = []
        self.asked: set[str] = set()
        self.crashes: list[Violation] = []
        self.calls: Counter[Any] = Counter()
        """How often each handler was called, by its function."""
        self._lives: Counter[str] = Counter()
        self._untold: dict[str, str] = {}
        """Requests whose callers wait, and in which process."""
        self._waiting = {name: list[Ask]() for name in protocol.actors}
        """Asks for actors that are dead."""
        self._to_ask = len(plan.asks)
        self._busy_until_s = 0.0
        for name in protocol.actors:
            self._make(name)
        for process in list(self.processes.values()):
            process.start()
        for ask in plan.asks:
            self.events.after(ask.at_s, self._ask, ask)
        self.schedule(((strike.at_s, strike) for strike in plan.strikes), plan.busy_s)

    def luck_of(self, name: str) -> Random:
        """A source of its own for each who draws."""
        return Random(f"{self.seed}/{name}")

    # -- actors -------------------------------------------------------------------

    def _make(self, name: str) -> ActorProcess:
        self._lives[name] += 1
        self.processes[name] = ActorProcess(self, name, self._lives[name])
        return self.processes[name]

    def _start_again(self, name: str) -> None:
        self._make(name).start()
        waiting, self._waiting[name] = self._waiting[name], []
        for ask in waiting:
            self._ask(ask)

    def died(self, process: ActorProcess, pause_s: float) -> None:
        """The callers in it are gone, and so are its connections."""
        self.write(Entry(self.events.now_s, "died", process.name, "", None))
        for link in self.network.of(process):
            self.network.close(link)
        self.events.after(pause_s, self._start_again, process.name)

    def crashed(self, what: str, why: str = "") -> None:
        """An actor has raised: the run is over."""
        self.events.note("CRASH", what)
        self.crashes.append(Violation(CRASH, self.events.now_s, f"{what}\n{why}".rstrip()))

    # -- callers ------------------------------------------------------------------

    def _ask(self, ask: Ask) -> None:
        process = self.processes[ask.actor]
        if process.alive:
            self._to_ask -= 1
            self.asked.add(ask.request)
            process.ask(ask.request, ask.what)
        else:
            self._waiting[ask.actor].append(ask)

    def write(self, entry: Entry) -> None:
        """Into the history."""
        self.entries.append(entry)
        self._busy_until_s = entry.at_s + self.protocol.quiet_s
        match entry.kind:
            case "asked":
                self._untold[entry.request] = entry.actor
            case "told":
                self._untold.pop(entry.request, None)
            case "died":
                gone = [r for r, actor in self._untold.items() if actor == entry.actor]
                for request in gone:
                    del self._untold[request]

    # -- faults -------------------------------------------------------------------

    def struck(self, strike: Strike) -> bool:
        """Whether it found somebody."""
        process, fault = self.processes[strike.actor], strike.fault
        links = self.network.of(process)
        if not process.alive or process.held or (fault in _OF_LINKS and not links):
            return False
        self.faults[fault] += 1
        if fault is Fault.KILL:
            process.kill(strike.act, strike.for_s)
        elif fault is Fault.STOP:
            self.events.note(process.name, "is stopped")
            process.hold("stopped")
            self.events.after(strike.for_s, self._go_on, process)
        else:
            link = self.rng.choice(links)
            self.events.note(FAULT, f"{fault.value}: {link.name}")
            if fault is Fault.CUT:
                self.network.part(link, strike.for_s)
            else:
                link.half_open = True
                self.events.after(strike.for_s, self.network.cut, link)
        return True

    def _go_on(self, process: ActorProcess) -> None:
        if process.held and process.alive:
            self.events.note(process.name, "goes on")
            process.release("stopped")

    def release(self) -> None:
        """Nothing strikes any more."""
        for process in list(self.processes.values()):
            process.spare()
            self._go_on(process)
        self.network.rejoin()

    def times(self) -> dict[str, int]:
        """How often each kind of fault struck, by what people call it."""
        network = self.network
        times = self.faults + Counter(
            {
                Fault.LOSE: network.lost,
                Fault.DUPLICATE: network.duplicated,
                Fault.REORDER: network.mangled,
            }
        )
        return {fault.value: times[fault] for fault in Fault if times[fault]}

    # -- its end ------------------------------------------------------------------

    def left(self) -> list[str]:
        """The parts that have not come to rest."""
        if not self.network.calm or self.events.now_s < self._busy_until_s:
            return ["things happen"]
        left = [f"{request} was never told" for request in self._untold]
        return left + ["somebody will ask"] * bool(self._to_ask)

    def run(self) -> None:
        """Until everything is at rest, or should be, or an actor raises."""
        if not self.crashes:
            self.to_rest(self.protocol.patience_s, lambda: bool(self.crashes))


_OF_LINKS = frozenset({Fault.CUT, Fault.HALF_OPEN})
