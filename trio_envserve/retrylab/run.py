"""The engine ``run``: one seed of a system on a virtual network and clock, and judged.

An :class:`ActorProcess` is one life of an actor in the :class:`ActorWorld`, which has all
of them, their disks, callers and connections.  :func:`sweep` runs a seed again and again,
with a crash at another act each time.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from random import Random
from typing import Any

from .judges import Event, Kind, Violation
from .life import CRASH, BaseLife, judged, made_judges
from .plan import Plan, Strike, draw
from .system import FAULT, Ask, BrokenSystem, Clock, Envelope, Fault, Stored, System
from .target import BaseRun
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
    VirtualProcess,
)

HEARS_S = 0.001
"""Time in seconds until an actor is told that a connection is gone."""

TRUE = Clock()


class ActorProcess(VirtualProcess, BaseLife):
    """One life of an actor."""

    def __init__(self, world: ActorWorld, name: str, life: int) -> None:
        VirtualProcess.__init__(self, world.events, name, world.luck_of(f"{name}/{life}"))
        BaseLife.__init__(self, world.system, world.disks[name])
        self.world = world
        self.clock = world.plan.clocks.get(name, TRUE)
        self._timers: dict[str, int] = {}
        self._timers_started = 0
        self._killed_by: Strike | None = None

    # -- its life ---------------------------------------------------------------

    def call(self, handler: str, *args: Any) -> None:
        """Call a handler, and count it."""
        method = getattr(self.actor, handler)
        self.world.calls[getattr(method, "__func__", method)] += 1
        super().call(handler, *args)

    def kill(self, strike: Strike) -> None:
        """Kill the actor, or take its power: now, or before an act."""
        self._killed_by = strike
        if strike.act:
            self.dies_before = self.acts + strike.act
        else:
            self.die("killed")

    def spare(self) -> None:
        """Call off a death that was to come before an act."""
        self.dies_before = 0

    def die(self, how: str) -> None:
        """End the process, with its callers; another is started after a pause."""
        strike = self._killed_by
        if not self.alive or strike is None:
            return
        loses = strike.fault is Fault.POWER
        super().die(how.replace("killed", "power lost") if loses else how)
        if loses:
            luck = self.world.luck_of(f"{self.name}/{strike.at_s}/power")
            self.stored.lose(strike.survives(luck))
        self.world.died(self, strike.for_s)

    def crashed(self, what: str, why: str = "") -> None:
        """Report that the actor has raised: the run is over."""
        self.world.crashed(what, why)

    def note(self, what: str) -> None:
        """Note an event in the trace."""
        self.events.note(self.name, what)

    # -- events of the actor -------------------------------------------------------

    def take_in(self, sender: str, message: Any) -> None:
        """Pass on a message that has arrived."""
        self.post(self.call, "on_message", sender, message)

    def ask(self, request: str, what: Any) -> None:
        """Pass on what a caller asks."""
        self.note(f"asks {request}: {short(what)}")
        self.world.write(Event(self.events.now_s, "asked", self.name, request, what))
        self.post(self.call, "on_ask", request, what)

    def cut_off(self, peer: str) -> None:
        """Tell the actor that a connection is gone."""
        self.events.after(HEARS_S, self.post, self.call, "on_cut", peer)

    def _run_off(self, timer: str, number: int) -> None:
        if self._timers.get(timer) == number:
            del self._timers[timer]
            self.note(f"timer {timer}")
            self.call("on_timer", timer)

    # -- its actions ----------------------------------------------------------------

    def now_s(self) -> float:
        """Time of its clock in seconds."""
        return self.clock.shows_s(self.events.now_s)

    def luck(self) -> Random:
        """Random source of this life."""
        return self.rng

    def transmit(self, to: str, message: Any) -> None:
        """Put a message on its way."""
        self.world.network.transmit(self, to, message)

    def pass_on(self, to: str, what: Any) -> None:
        """Put a notice on its way."""
        self.events.after(HEARS_S, self.world.notice, self.name, to, what)

    def set_timer(self, timer: str, delay_s: float) -> None:
        """Set a timer, in seconds of the actor's clock."""
        self._timers_started += 1
        self._timers[timer] = self._timers_started
        takes_s = self.clock.takes_s(delay_s)
        self.events.after(takes_s, self.post, self._run_off, timer, self._timers_started)

    def stop_timer(self, timer: str) -> None:
        """See :meth:`.Actor.stop_timer`."""
        self._timers.pop(timer, None)

    def happened(self, kind: Kind, request: str, what: Any) -> None:
        """Add an event to the history; ValueError if no caller has asked for this request."""
        if request and request not in self.world.asked:
            raise ValueError(f"nobody has asked for {request!r}")
        self.note(self.in_words(kind, request, what))
        self.world.write(Event(self.events.now_s, kind, self.name, request, what))


class ActorLink(BaseLink):
    """A connection between two actors."""

    def __init__(self, name: str, dialer: ActorProcess, listener: ActorProcess) -> None:
        super().__init__(name, dialer.rng)
        self.dialer = dialer
        self.listener = listener


class ActorNetwork(BaseNetwork[ActorLink, Envelope]):
    """Network with a connection for each two actors that talk, made by the first message."""

    def __init__(self, world: ActorWorld) -> None:
        super().__init__(world.events, world.plan.rates)
        self._world = world
        self._links: dict[str, ActorLink] = {}
        self._sent: Counter[bytes] = Counter()
        """Number of times that each message was sent."""
        self._none_until_s: dict[str, float] = {}
        """By name of a connection: time until which there can be none."""

    def transmit(self, sender: ActorProcess, to: str, message: Any) -> None:
        """Send a message, over a new connection if there is none; lost if there can be none."""
        envelope, name = Envelope(sender.name, to, message), _pair(sender.name, to)
        envelope = envelope._replace(text=envelope.to_bytes())
        link = self._links.get(name) or self._connect(name, sender, self._world.processes[to])
        if link is None:
            self.events.note_message(name, LOST[True], envelope)
        else:
            link.rng = self._luck_of(envelope)
            self.send(link, envelope, up=sender is link.dialer)

    def strikes(self, rate: float, rng: Random) -> bool:
        """Whether a fault of this rate strikes; draws in any case: see :meth:`_luck_of`."""
        return rng.random() < rate and not self.calm

    def _luck_of(self, envelope: Envelope) -> Random:
        """Random source of one message, so that its luck stays as it is when others, or a
        kind of fault, are left out of the schedule."""
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
        """Cut a connection; there is no other for ``for_s``."""
        self._none_until_s[link.name] = self.events.now_s + for_s
        self.cut(link)

    def divide(self, side: Collection[str], for_s: float) -> None:
        """Let nothing pass between these actors and the others for ``for_s``."""
        for one in sorted(side):
            for other in sorted(self._world.processes.keys() - side):
                name, until_s = _pair(one, other), self.events.now_s + for_s
                self._none_until_s[name] = max(until_s, self._none_until_s.get(name, 0.0))
                if name in self._links:
                    self.silence(self._links[name], for_s)

    def rejoin(self) -> None:
        """End half-open connections and partitions; all actors can connect again."""
        self._none_until_s.clear()
        for link in list(self._links.values()):
            if link.half_open:
                self.cut(link)

    def ended(self, link: ActorLink, *, cut: bool) -> None:
        """Tell both ends that their connection is gone, if they are alive."""
        if self._links.get(link.name) is not link:
            return  # ended before; there may be another one
        del self._links[link.name]
        link.half_open = False
        link.dialer.cut_off(link.listener.name)
        link.listener.cut_off(link.dialer.name)

    def deliver(self, link: ActorLink, envelope: Envelope, *, up: bool, stray: bool) -> None:
        """Deliver to the process at the end; a stray to the actor's present process."""
        way = STRAY if stray else ARRIVED
        receiver = link.listener if up else link.dialer
        if stray:
            receiver = self._world.processes[envelope.to]
        if not receiver.alive or link.half_open:
            self.events.note_message(link.name, LOST[up], envelope)
            return
        self.events.note_message(link.name, way[up], envelope)
        if envelope.to_bytes() != envelope.text:
            self._world.crashed(f"{receiver.name} gets a message that was changed on its way")
            return
        receiver.take_in(envelope.sender, envelope.message)


def _pair(one: str, other: str) -> str:
    return "-".join(sorted((one, other)))


class ActorWorld(BaseWorld[Strike]):
    """World of a run: actors, their disks, callers and connections."""

    network: ActorNetwork
    process: type[ActorProcess]
    """Class of the lives."""

    def __init__(self, system: System, seed: int, plan: Plan, events: Events[Envelope]) -> None:
        super().__init__(events)
        self.system = system
        self.seed = seed
        self.plan = plan
        self.rng = self.luck_of("world")
        self.network = ActorNetwork(self)
        self.disks = {name: Stored() for name in system.actors}
        self.processes: dict[str, ActorProcess] = {}
        self.faults: Counter[Fault] = Counter()
        self.happened: list[Event] = []
        self.asked: set[str] = set()
        self.crashes: list[Violation] = []
        self.calls: Counter[Any] = Counter()
        """Number of calls of each handler, by its function."""
        self._lives: Counter[str] = Counter()
        self._untold: dict[str, str] = {}
        """Requests whose callers wait, and the actor of each."""
        self._waiting = {name: list[Ask]() for name in system.actors}
        """Asks that wait until their actor starts again."""
        self._to_ask = len(plan.asks)
        self._busy_until_s = 0.0

    def begin(self) -> None:
        """Make all actors, and schedule the faults, their start and the asks."""
        for name in self.system.actors:
            self._make(name)
        self.schedule(((strike.at_s, strike) for strike in self.plan.strikes), self.plan.busy_s)
        for process in self.processes.values():
            self.events.after(0.0, process.post, process.start)
        for ask in self.plan.asks:
            self.events.after(ask.at_s, self._ask, ask)

    def luck_of(self, name: str) -> Random:
        """Random source of this name, the same in each run of the seed."""
        return Random(f"{self.seed}/{name}")

    # -- actors -------------------------------------------------------------------

    def notice(self, sender: str, to: str, what: Any) -> None:
        """Pass on a notice to the present process of an actor."""
        process = self.processes[to]
        if process.alive:
            process.note(f"notices of {sender}: {short(what)}")
            process.post(process.call, "on_notice", sender, what)

    def _make(self, name: str) -> ActorProcess:
        self._lives[name] += 1
        self.processes[name] = self.process(self, name, self._lives[name])
        return self.processes[name]

    def _start_again(self, name: str) -> None:
        self._make(name).start()
        waiting, self._waiting[name] = self._waiting[name], []
        for ask in waiting:
            self._ask(ask)

    def died(self, process: ActorProcess, pause_s: float) -> None:
        """Note a death, close its connections, and start the actor again after a pause."""
        self.write(Event(self.events.now_s, "died", process.name, "", None))
        for link in self.network.of(process):
            self.network.close(link)
        self.events.after(pause_s, self._start_again, process.name)

    def crashed(self, what: str, why: str = "") -> None:
        """Note that an actor has raised: the run is over."""
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

    def write(self, event: Event) -> None:
        """Add an event to the history."""
        self.happened.append(event)
        self._busy_until_s = event.at_s + self.system.quiet_s
        match event.kind:
            case "asked":
                self._untold[event.request] = event.actor
            case "told":
                self._untold.pop(event.request, None)
            case "died":
                gone = [r for r, actor in self._untold.items() if actor == event.actor]
                for request in gone:
                    del self._untold[request]

    # -- faults -------------------------------------------------------------------

    def struck(self, strike: Strike) -> bool:
        """Let a fault strike now; False if there is nothing to strike."""
        process, fault = self.processes[strike.actor], strike.fault
        if fault is Fault.PARTITION:
            side = {strike.actor, *strike.others}
            self.faults[fault] += 1
            self.events.note(FAULT, f"{fault.value}: {', '.join(sorted(side))}")
            self.network.divide(side, strike.for_s)
            return True
        links = self.network.of(process)
        if not process.alive or process.held or (fault in _OF_LINKS and not links):
            return False
        self.faults[fault] += 1
        if fault in (Fault.KILL, Fault.POWER):
            process.kill(strike)
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
                self.network.silence(link, strike.for_s)
        return True

    def _go_on(self, process: ActorProcess) -> None:
        if process.held and process.alive:
            self.events.note(process.name, "goes on")
            process.release("stopped")

    def release(self) -> None:
        """End all faults."""
        self._busy_until_s = max(self._busy_until_s, self.events.now_s + self.system.quiet_s)
        for process in list(self.processes.values()):
            process.spare()
            self._go_on(process)
        self.network.rejoin()

    def times(self) -> dict[str, int]:
        """Number of times that each kind of fault struck, by its name for people."""
        network = self.network
        times = self.faults + Counter(
            {
                Fault.LOSE: network.lost,
                Fault.DUPLICATE: network.duplicated,
                Fault.REORDER: network.mangled,
                Fault.DRIFT: len(self.plan.clocks),
            }
        )
        return {fault.value: times[fault] for fault in Fault if times[fault]}

    # -- its end ------------------------------------------------------------------

    def left(self) -> list[str]:
        """Reasons why the run is not at rest."""
        if not self.network.calm or self.events.now_s < self._busy_until_s:
            return ["things happen"]
        left = [f"{request} was never told" for request in self._untold]
        return left + ["somebody will ask"] * bool(self._to_ask)

    def run(self) -> None:
        """Run until everything is at rest, or should be, or an actor raises."""
        self.begin()
        self.to_rest(self.system.patience_s, lambda: bool(self.crashes))
        self.ask_what_is_there()

    def ask_what_is_there(self) -> None:
        """Call ``on_rest`` of the actors that are alive, unless one has raised."""
        if not self.crashes and self.events.count < MOST_EVENTS:
            for process in self.processes.values():
                if process.alive:
                    process.rest()


ActorWorld.process = ActorProcess

_OF_LINKS = frozenset({Fault.CUT, Fault.HALF_OPEN})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run(BaseRun[Any]):
    """The result of a run of a system.  ``told`` has the numbers of requests whose callers were
    told, and of those whose callers were not."""

    history: tuple[Event, ...]
    """Events that the judges saw."""
    acts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Number of acts (sends, writes, syncs) of each actor's last life."""

    def describe(self, message: Envelope) -> str:
        """Message of the trace in words."""
        return f"{message.sender} to {message.to}: {plain(message.message)}"


def run(system: System, seed: int, *, plan: Plan | None = None, trace: bool = False) -> Run:
    """Simulate one seed, or another plan with a seed's luck.

    An actor that raises is a violation, ``CRASH``.  BrokenSystem if a judge raises,
    or the run does not end.

    Args:
        system: The system.
        seed: The seed.
        plan: Another plan than that of the seed.
        trace: Whether to keep the trace.
    """
    plan = plan or draw(system, seed)
    engines = [make.engine for make in system.actors.values() if hasattr(make, "engine")]
    if engines:  # a system of programs: see the file trial
        one: Run = engines[0](system, seed, plan, trace=trace)
        return one
    world = ActorWorld(system, seed, plan, Events(Envelope.to_bytes, trace=trace))
    world.run()
    return ran(world)


def ran(world: ActorWorld) -> Run:
    """Result of a run that is over.  BrokenSystem if it never ended."""
    system, seed, plan = world.system, world.seed, world.plan
    if world.events.count >= MOST_EVENTS:
        raise BrokenSystem(_endless(world))
    history = tuple(world.happened)
    violations = tuple(world.crashes or _judged(system, history, world.events.now_s, seed))
    return Run(
        seed=seed,
        plan=plan,
        history=history,
        violations=violations,
        events=world.events.count,
        virtual_s=world.events.now_s,
        faults=world.times(),
        told=told_of(history),
        digest=world.events.digest(),
        trace=tuple(world.events.trace or ()),
        acts={name: process.acts for name, process in world.processes.items()},
    )


def told_of(history: Iterable[Event]) -> dict[str, int]:
    """Numbers of requests whose callers were told, and of those whose callers were not."""
    asked, told = (
        {event.request for event in history if event.kind == kind} for kind in ("asked", "told")
    )
    return {"told": len(told), "not told": len(asked - told)}


def _judged(system: System, history: Iterable[Event], end_s: float, seed: int) -> list[Violation]:
    """Violations that the judges find in a history."""
    judges, where = made_judges(system), f"seed {seed}"
    found = [v for event in history for v in judged(judges, event, where)]
    return found + judged(judges, float(end_s), where)


def _endless(world: ActorWorld) -> str:
    """Message about a run without an end: its handlers that were called most often."""
    lines = [
        f"seed {world.seed} never ends: {world.events.count:,} events in "
        f"{world.events.now_s:.3f} virtual seconds. Called most often:",
    ]
    for handler, times in world.calls.most_common(3):
        code = getattr(handler, "__code__", None)  # a partial has none
        where = f'File "{code.co_filename}", line {code.co_firstlineno}, in ' if code else ""
        lines.append(f"  {where}{getattr(handler, '__qualname__', handler)}: {times:,} times")
    return "\n".join(lines)


def sweep(system: System, seed: int = 0, *, most: int | None = None) -> Iterator[Run]:
    """Run a seed without faults, and then once for each act of an actor that may be killed:
    with a crash right before it.

    With ``Fault.POWER`` among the system's faults unsynced writes are lost as well: all of
    them, or all but the last.

    Args:
        system: The system.
        seed: The seed that its asks are drawn from.
        most: Most crashes, evenly spread; None: all.
    """
    plan = draw(system, seed).calm()
    whole = run(system, seed, plan=plan)
    yield whole
    plan = dataclasses.replace(plan, busy_s=whole.virtual_s)  # acts of its end are struck, too
    ways = [(fault, loses) for fault, loses in _WAYS if fault in system.faults]
    crashes = [
        Strike(0.0, fault, actor, 0.0, act, loses=loses)
        for actor in system.actors
        if actor not in system.never_killed
        for act in range(1, whole.acts[actor] + 1)
        for fault, loses in ways
    ]
    step = 1 if most is None else max(1, -(-len(crashes) // most))
    for crash in crashes[::step]:
        yield run(system, seed, plan=dataclasses.replace(plan, strikes=(crash,)))


_WAYS = ((Fault.KILL, ""), (Fault.POWER, "all"), (Fault.POWER, "all but the last"))
