"""The engine ``run``: one seed of a system on a virtual network and clock, and judged.

An :class:`ActorProcess` is one life of an actor: it calls its handlers, and does what they
ask for.  The :class:`ActorWorld` has all of them, their disks, callers and connections.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from random import Random
from typing import Any

from . import author
from .author import raised
from .judges import Violation
from .plan import Plan, Strike, draw
from .system import (
    FAULT,
    Actor,
    Ask,
    BrokenSystem,
    Disk,
    Entry,
    Envelope,
    Fault,
    History,
    System,
    unknown,
)
from .values import plain, short
from .world import (
    ARRIVED,
    LOST,
    MOST_EVENTS,
    STRAY,
    BaseLink,
    BaseNetwork,
    BaseWorld,
    Events,
    Process,
    Record,
)

HEARS_S = 0.001
"""How soon an actor hears that a connection is gone."""


class _Killed(BaseException):
    """Ends a handler whose process is dead; no ``except Exception`` stops it."""


class ActorProcess(Process):
    """One life of an actor."""

    def __init__(self, world: ActorWorld, name: str, life: int) -> None:
        super().__init__(world.events, name, world.luck_of(f"{name}/{life}"))
        self.world = world
        self.disk = Disk(world.disks[name], self._before_write)
        self._actor: Actor | None = None
        self._timers: dict[str, int] = {}
        self._timers_started = 0
        self._act = 0
        """How often this handler has sent or written."""
        self._dies_before = 0
        """It is killed before this act of a handler; 0: it is not to be."""
        self._pause_s = 0.0

    # -- its life ---------------------------------------------------------------

    def start(self) -> None:
        """Make the actor."""
        self.events.note(self.name, "starts")
        ended = author.call(self.world.system.actors[self.name])
        if ended.error is not None:
            self.world.crashed(f"{self.name} could not be made", raised(ended.error))
        elif not isinstance(ended.value, Actor):
            self.world.crashed(f"{self.name} is made as {ended.value!r}, which is not an Actor")
        elif ended.value._process is not None:
            self.world.crashed(f"{self.name} is made as an object that was an actor before")
        else:
            self._actor = ended.value
            self._actor._process = self
            self.call("on_start")

    def call(self, handler: str, *args: Any) -> None:
        """Call a handler."""
        self._act = 0
        method = getattr(self._actor, handler)
        self.world.calls[getattr(method, "__func__", method)] += 1
        ended = author.call(method, *args)
        where = f"{self.name}.{handler}({', '.join(map(repr, args))})"
        if not self.alive:
            return  # whatever a dead process does on its way out of its code, nobody sees
        if ended.error is not None:
            self.world.crashed(f"{where} raised", raised(ended.error))
        elif ended.value is not None:
            if hasattr(ended.value, "close"):
                ended.value.close()  # a coroutine would complain that nobody awaits it
            what = type(ended.value).__name__
            self.world.crashed(f"{where} returned a {what}; a handler is a function of no result")

    def kill(self, act: int, pause_s: float) -> None:
        """SIGKILL: now, or before this act of a handler."""
        self._pause_s = pause_s
        if act:
            self._dies_before = act
        else:
            self.die("killed")

    def spare(self) -> None:
        """It is not to be killed any more."""
        self._dies_before = 0

    def die(self, how: str) -> None:
        """The process is dead, and all who wait in it; another is started after a pause."""
        if self.alive:
            super().die(how)
            self.world.died(self, self._pause_s)

    # -- what happens to it -------------------------------------------------------

    def take_in(self, sender: str, message: Any) -> None:
        """A message has arrived."""
        self.post(self.call, "on_message", sender, message)

    def ask(self, request: str, what: Any) -> None:
        """A caller asks."""
        self.events.note(self.name, f"asks {request}: {short(what)}")
        self.world.write(Entry(self.events.now_s, "asked", self.name, request, what))
        self.post(self.call, "on_ask", request, what)

    def cut_off(self, peer: str) -> None:
        """A connection is gone."""
        self.events.after(HEARS_S, self.post, self.call, "on_cut", peer)

    def _run_off(self, timer: str, number: int) -> None:
        if self._timers.get(timer) == number:
            del self._timers[timer]
            self.events.note(self.name, f"timer {timer}")
            self.call("on_timer", timer)

    # -- what it does ---------------------------------------------------------------

    def _before_act(self, what: str) -> None:
        """Something is about to be done that outlives the process: unless it is killed
        first."""
        self._act += 1
        if self._act == self._dies_before:
            self.die(f"killed before it {what}")
        if not self.alive:
            raise _Killed

    def _before_write(self, what: str) -> None:
        self._before_act(what)
        self.events.note(self.name, what)

    def send(self, to: str, message: Any) -> None:
        """See :meth:`.Actor.send`."""
        if to not in self.world.system.actors:
            raise ValueError(unknown(to, self.world.system.actors))
        if to == self.name:
            raise ValueError(f"{to} sends to itself")
        plain(message)
        self._before_act(f"sends to {to}")
        self.world.network.transmit(self, to, message)

    def start_timer(self, timer: str, delay_s: float) -> None:
        """See :meth:`.Actor.start_timer`."""
        if not delay_s >= 0.0:
            raise ValueError(f"a timer of {delay_s!r} s")
        self._timers_started += 1
        self._timers[timer] = self._timers_started
        self.events.after(delay_s, self.post, self._run_off, timer, self._timers_started)

    def stop_timer(self, timer: str) -> None:
        """See :meth:`.Actor.stop_timer`."""
        self._timers.pop(timer, None)

    def did(self, request: str, what: Any) -> None:
        """See :meth:`.Actor.did`."""
        self._write(Entry(self.events.now_s, "did", self.name, request, what))

    def tell(self, request: str, answer: Any) -> None:
        """See :meth:`.Actor.tell`."""
        self._write(Entry(self.events.now_s, "told", self.name, request, answer))

    def _write(self, entry: Entry) -> None:
        if entry.request not in self.world.asked:
            raise ValueError(f"nobody has asked for {entry.request!r}")
        plain(entry.what)
        if not self.alive:
            raise _Killed
        verb = "is told" if entry.kind == "told" else "does"
        self.events.note(self.name, f"{verb} {entry.request}: {short(entry.what)}")
        self.world.write(entry)


CRASH = "CRASH"
"""The guarantee that is broken when an actor raises."""


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

    def __init__(self, system: System, seed: int, plan: Plan, *, trace: bool) -> None:
        super().__init__(Events(Envelope.to_bytes, trace=trace))
        self.system = system
        self.seed = seed
        self.plan = plan
        self.rng = self.luck_of("world")
        self.network = ActorNetwork(self)
        self.disks: dict[str, dict[str, Any]] = {name: {} for name in system.actors}
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
        self._waiting = {name: list[Ask]() for name in system.actors}
        """Asks for actors that are dead."""
        self._to_ask = len(plan.asks)
        self._busy_until_s = 0.0
        for name in system.actors:
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
        self._busy_until_s = entry.at_s + self.system.quiet_s
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
            self.to_rest(self.system.patience_s, lambda: bool(self.crashes))


_OF_LINKS = frozenset({Fault.CUT, Fault.HALF_OPEN})


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """The result of a seed."""

    seed: int
    """The seed."""
    plan: Plan
    """What was drawn from it."""
    history: History
    """What happened."""
    violations: tuple[Violation, ...]
    """What the judge found."""
    events: int
    """How many events there were."""
    virtual_s: float
    """How long it took on the virtual clock."""
    faults: dict[str, int]
    """How often each kind struck."""
    told: dict[str, int]
    """How many of the callers were told something, and how many were not."""
    digest: str
    """The hash of the trace, recorded or not: the same for the same seed."""
    trace: tuple[Record[Envelope], ...] = ()
    """Every event, if that was asked for."""

    def breaks(self, guarantee: str) -> bool:
        """Whether this guarantee was broken.

        Args:
            guarantee: Its name.
        """
        return any(violation.guarantee == guarantee for violation in self.violations)

    @property
    def log(self) -> tuple[str, ...]:
        """The trace as lines for people."""
        return tuple(record.text(_said) for record in self.trace)


def run(system: System, seed: int, *, plan: Plan | None = None, trace: bool = False) -> Run:
    """Simulate one seed, or another plan with a seed's luck.

    An actor that raises is a violation, ``CRASH``.  BrokenSystem if the judge raises,
    or the run does not end.

    Args:
        system: The system.
        seed: The seed.
        plan: Another plan than that of the seed.
        trace: Whether to keep every event.
    """
    plan = plan or draw(system, seed)
    world = ActorWorld(system, seed, plan, trace=trace)
    world.run()
    if world.events.count >= MOST_EVENTS:
        raise BrokenSystem(_endless(world))
    history = History(tuple(world.entries), world.events.now_s)
    violations = tuple(world.crashes or _judged(system, history, seed))
    asked, told = len(world.asked), len({e.request for e in history.entries if e.kind == "told"})
    return Run(
        seed=seed,
        plan=plan,
        history=history,
        violations=violations,
        events=world.events.count,
        virtual_s=world.events.now_s,
        faults=world.times(),
        told={"told": told, "not told": asked - told},
        digest=world.events.digest(),
        trace=tuple(world.events.trace or ()),
    )


def _said(envelope: Envelope) -> str:
    return f"{envelope.sender} to {envelope.to}: {plain(envelope.message)}"


def _judged(system: System, history: History, seed: int) -> list[Violation]:
    """The violations that the judge found; BrokenSystem if it returns something else."""
    ended = author.call(lambda: list(system.judge(history)))
    if ended.error is not None:
        raise BrokenSystem(f"the judge raised (seed {seed}):\n{raised(ended.error)}")
    found: list[Any] = ended.value
    for violation in found:
        if not isinstance(violation, Violation):
            raise BrokenSystem(f"a judge gives values of the class Violation, not {violation!r}")
    return found


def _endless(world: ActorWorld) -> str:
    """The function that a run without an end calls again and again."""
    lines = [
        f"seed {world.seed} never ends: {world.events.count:,} events in "
        f"{world.events.now_s:.3f} virtual seconds. Called most often:",
    ]
    for handler, times in world.calls.most_common(3):
        code = getattr(handler, "__code__", None)  # a partial has none
        place = f'File "{code.co_filename}", line {code.co_firstlineno}, in ' if code else ""
        lines.append(f"  {place}{getattr(handler, '__qualname__', handler)}: {times:,} times")
    return "\n".join(lines)
