"""A world and its actors: what they do around the cores that ship, as the real shells do it.

A server process is a router, its tick, the workers that it starts and the thread that writes its
journal.  A worker process is a heartbeat, a worker core, and environment code, which does what the
body of its request says, as ``key|behaviour|duration|padding`` (see :mod:`.plan`).  A client
process is a client core, its connection, and the callers in it.  Each hands in what arrives, keeps
time, carries out effects in order, and says what happens, as events, for :mod:`.judges`.

*The disk* with the journal outlives servers.  What a server writes at once is a group: one
transaction.  Between two syncs the groups are written and not safe.  A crash leaves of their rows
any that it likes, in any order, and torn.  Each row has a checksum, and who opens the journal takes
over what comes before the first row that is missing or damaged, of a group all or nothing; it syncs
that before it is given to a router.  So after a crash there is a prefix of what was written, and
all that was safe is in it.

*Hosts* are on machines of their own, with clocks of their own.  What the shells of a host, its
guard and the hosts of a server do stands here once more, without sockets: beats and hellos, the
order of a deadline and the workers that start for it, the record of a server for its successors,
and what is said before that is written.  The kernel is played as well: a guard's timer is of the
clock, the signal and the kind that :mod:`trio_envserve.worker.guard` names.

*A hostile client* keeps to no rule: garbage, conflicts, late duplicates, holes.  It has a session
of its own, and may do with it what it likes; nobody else may suffer, and the guarantees hold for
it, too.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

from ...core import error_records, messages
from ...core.archive import packed_of
from ...core.client import (
    Answer,
    CallKey,
    CallsCancelled,
    CallSubmitted,
    ClientClosed,
    ClientCore,
    ClientEffect,
    ClientInput,
    ClientTick,
    Connected,
    Disconnected,
    Fail,
    OutcomeReceived,
    Reconnect,
    ServerMessage,
    Terms,
    ToServer,
)
from ...core.closing import ClosingStage
from ...core.errors import ErrorInfo, ProtocolError
from ...core.executions import Execution
from ...core.heartbeat import Heartbeat
from ...core.host import (
    FromHost,
    Host,
    HostEffect,
    NewGuard,
    Serve,
    SetDeadline,
    TellWorker,
)
from ...core.host_messages import HostAnswer, HostBeat
from ...core.journal import Closed, Completed, Record, remains_of
from ...core.key_records import KeyAct, input_digest
from ...core.lease import EpochWait
from ...core.limits import PROTOCOL_VERSION, WireLimits
from ...core.messages import Clean, encode_record
from ...core.router import Router
from ...core.router_effects import (
    ClosingOver,
    Flush,
    Kill,
    Load,
    Lost,
    RecordHosts,
    Report,
    RouterEffect,
    Save,
    Spawn,
    TellStats,
    ToClient,
    ToHost,
    ToWorker,
)
from ...core.router_inputs import (
    AtRest,
    ClientMessage,
    CloseAsked,
    Exited,
    Flushed,
    HeartbeatReceived,
    HostMessage,
    HostsBefore,
    HostsDead,
    HostsRecorded,
    HostsTick,
    Loaded,
    PoolOpened,
    Restored,
    Resume,
    RouterInput,
    Saved,
    Spawned,
    Tick,
    TurnOver,
    WorkerBack,
    WorkerMessage,
)
from ...core.scope import ResourceState, Stated
from ...core.terms import (
    Body,
    Epoch,
    Incarnation,
    Membership,
    RequestId,
    Route,
    Status,
    Verdict,
)
from ...core.worker import (
    BeatDue,
    BeginRun,
    CancelRun,
    ClaimMade,
    ClaimOver,
    Cleaned,
    EnvironmentReady,
    Exit,
    GoOn,
    OutcomeMade,
    OutcomeParked,
    Park,
    ResourceTold,
    ResourceWanted,
    RouterMessage,
    SaveEnded,
    SaveMade,
    SetUpFailed,
    ToRouter,
    WorkerCore,
    WorkerEffect,
    WorkerInput,
)
from ...core.worker_range import WorkerRange
from ...retrylab.judges import Event, Violation
from ...retrylab.world import BaseWorld, Events, Rates, VirtualProcess
from .. import parts
from ..parts import GuardTimer, wanted
from .bounds import at_a_bound, audit, begun, crowded, greedy, unanswered, unfinished
from .coverage import (
    IMPOSSIBLE,
    Pair,
    count_pairs,
    name_of,
)
from .graces import key_of
from .judges import Judges
from .junk import KINDS, spoilt
from .network import (
    CLIENT,
    HOST,
    WORKER,
    Carrier,
    Frames,
    SimulatedLink,
    SimulatedNetwork,
    TurnMessages,
    is_kind,
    of_host,
    said_in,
)
from .plan import (
    FaultKind,
    HostPlan,
    PlannedAsk,
    PlannedClaim,
    SimulationPlan,
    plan_of,
)

# -- the disk ----------------------------------------------------------------------------

LUCK = (0.0, 0.5, 0.9, 1.0)
"""How likely a row is whole after a crash; drawn for each crash."""


class SimulatedDisk(parts.JournalDisk):
    """One of which a crash leaves what it likes."""

    def __init__(self, rng: Random) -> None:
        super().__init__()
        self.writes = 0
        """Groups that were ever written."""
        self._rng = rng

    def write(self, group: parts.Group) -> None:
        """One more group."""
        self.writes += 1
        super().write(group)

    def crash(self) -> list[Record]:
        """The records written since the last sync that can be taken over."""
        luck = self._rng.choice(LUCK)
        whole = 0
        for group in self.written:
            rows = [self._rng.random() < luck for _ in group]
            if not all(rows):
                break
            whole += 1
        return self.fall(whole)


# -- the journal of a server -------------------------------------------------------------

GROUP_S = 0.005
"""For so long at most it waits for more before it syncs."""

CRASHES = 0.04
"""How often a server is killed as it writes."""

SLOW = 0.08
"""How often a sync takes long."""

DAMAGED = 0.2
"""How often an outcome cannot be read, in harsh runs: the next time perhaps it can."""

READ_S = (0.0, 0.05)
"""How long it takes to read an outcome; as long as a slow sync, where that is drawn."""


def given(records: Sequence[Record]) -> tuple[list[Record], list[bytes]]:
    """The input of a server that starts with these records: the records, and the keys at rest."""
    remains = remains_of(records)
    packed = {
        left.opened.number: packed_of(left)
        for left in remains.generations.values() if left.frames is not None
    }  # fmt: skip
    resting = {number for number, each in packed.items() if each is not None}
    kept: list[Record] = [each for each in records if getattr(each, "number", None) not in resting]
    if remains.next_number:
        kept.insert(0, Closed(remains.next_number - 1))
    return kept, [each for each in packed.values() if each is not None]


class SimJournal:
    """Writes what its router says, syncs it, and says how much is safe."""

    def __init__(self, server: SimServer, disk: SimulatedDisk) -> None:
        self._server = server
        self._world = server.world
        self._events = server.events
        self._disk = disk
        self._rng = server.world.luck_of(f"journal of {server.name}")
        self._damage = server.world.luck_of(f"damage of {server.name}")
        self._upto: list[int] = []
        """The router's number after each group that is written and not safe."""
        self._syncing = False

    def save(self, save: Save) -> None:
        """A group is written; perhaps the server dies of it."""
        world = self._world
        if not self._server.alive:  # it has closed, and this was in its last turn
            return
        world.faults[FaultKind.JOURNAL] += 1
        self._disk.write(save.records)
        self._upto.append(save.upto)
        world.happened("wrote", self._server.name, "", save.records)
        if self._disk.writes == world.plan.crash_at_write or world.strikes(
            FaultKind.CRASH_AT_WRITE, CRASHES, self._rng
        ):
            world.end_server(self._server, "killed", self._rng.uniform(0.01, 1.0))
        elif not self._syncing:
            self._begin()

    def load(self, load: Load) -> None:
        """An outcome is read, some time later; a server that dies meanwhile never has it."""
        self._world.happened("reads", self._server.name, "", load.number)
        for_s = self._rng.uniform(*READ_S)
        if self._world.strikes(FaultKind.SLOW_DISK, SLOW, self._rng):
            for_s += self._rng.uniform(0.3, 3.0)
        self._events.after(for_s, self._loaded, load.number)

    def _loaded(self, number: int) -> None:
        if not self._server.alive:
            return
        self._world.happened("loaded", self._server.name, "", number)
        frames: tuple[Body, ...] = ()
        if self._world.strikes(FaultKind.DAMAGED_READ, DAMAGED, self._damage):
            self._world.happened("damaged", self._server.name, "", number)
            self._server.post(self._server.loaded, number, frames, "its checksum is wrong")
            return
        for record in self._disk.records:
            if isinstance(record, Completed) and record.number == number:
                frames = record.frames
            elif isinstance(record, Closed) and record.number == number:
                frames = ()
        self._server.post(self._server.loaded, number, frames)

    def _begin(self) -> None:
        self._syncing = True
        self._events.after(self._rng.uniform(0.0, GROUP_S), self._sync)

    def _sync(self) -> None:
        world = self._world
        if not self._server.alive:
            return
        for_s = self._rng.uniform(*world.plan.sync_s)
        if world.strikes(FaultKind.SLOW_DISK, SLOW, self._rng):
            for_s += self._rng.uniform(0.3, 3.0)
        self._events.after(for_s, self._synced, len(self._disk.written))

    def _synced(self, groups: int) -> None:
        server = self._server
        if not server.alive:
            return
        upto = self._upto[groups - 1]
        del self._upto[:groups]
        self._world.happened("synced", server.name, "", self._disk.sync(groups))
        self._syncing = False
        if self._disk.written:
            self._begin()
        server.post(server.saved, upto)


# -- processes ---------------------------------------------------------------------------


STILL = frozenset({"stopped", "asleep"})
"""Reasons why a process is held in which no code of it runs."""


class SimProcess(VirtualProcess):
    """A process of a server, a host or a worker: its stops and its death are events."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world.events, name, world.luck_of(name))
        self.world = world

    @property
    def stands_still(self) -> bool:
        """Whether no code of it runs: it is stopped, or its machine sleeps."""
        return bool(self._holds) and not STILL.isdisjoint(self._holds)

    def hold(self, why: str) -> None:
        """Hold the process until this reason is released."""
        stood_still = self.stands_still
        super().hold(why)
        if self.stands_still and not stood_still:
            self.world.happened("is", self.name, "", {"stopped_s": self.events.now_s})

    def release(self, why: str) -> None:
        """Let the process move again, unless another reason holds it."""
        now_s, since_s, facts = self.events.now_s, self._holds.get(why), {}
        if why in STILL and not STILL & self._holds.keys() - {why}:
            facts = {"stopped_s": None, "continued_s": now_s}
        if since_s is not None and len(self._holds) == 1:
            held_s = self.held_s + (now_s - since_s)
            facts |= {"held_s": held_s, "held_times": self.held_times + 1}
        if facts and self.alive:
            self.world.happened("is", self.name, "", facts)
        super().release(why)

    def die(self, how: str) -> None:
        """End the process."""
        if self.alive:
            super().die(how)
            self.world.happened("is", self.name, "", {"died_s": self.died_s})


# -- workers -----------------------------------------------------------------------------

INSTANT_S = 1e-7
"""Moments that are no further apart are one."""

SAVE_S = 0.05
"""How often environment code that has nothing else to do looks whether its state is safe."""

TOGETHER_S = 0.1
"""In worlds where messages are grouped, executions end at multiples of this."""


class SimulatedState(NamedTuple):
    """A state of environment code: the execution that began it all, and a number that grows."""

    origin: str
    number: int

    def next(self) -> SimulatedState:
        """The state after this one."""
        return self._replace(number=self.number + 1)

    def encoded(self) -> bytes:
        """As it is saved, before its padding."""
        return f"{self.origin} {self.number} ".encode()

    @classmethod
    def of(cls, saved: bytes) -> SimulatedState:
        """The state that was saved so."""
        origin, number, _ = saved.decode().split(" ")
        return cls(origin, int(number))


class RunningExecution(NamedTuple):
    """An execution, as its worker has it."""

    key: str
    request: RequestId


@dataclasses.dataclass(slots=True)
class SimClaim:
    """A claim of environment code that has not ended."""

    run: BeginRun
    planned: PlannedClaim
    is_held: bool = False


@dataclasses.dataclass(slots=True)
class SimResource:
    """A resource of environment code whose end was not stated."""

    run: BeginRun
    name: str = ""
    here: bool = False
    """Whether it is of its machine."""
    is_ending: bool = False

    @property
    def is_idle(self) -> bool:
        """Whether code may forget it: it has a name, and no destroy of it runs."""
        return bool(self.name) and not self.is_ending


class SimWorker(SimProcess):
    """One worker process: heartbeat, worker core, and the environment's code."""

    def __init__(
        self, world: World, server: SimServer, spawn: Spawn, carrier: Carrier | None = None
    ) -> None:  # fmt: skip
        first = server, f"{server.name}/{spawn.worker.decode()}"
        _, name = world.spawned.get(spawn.incarnation, first)  # that of whose idea it was
        super().__init__(world, name)
        self.server = server
        self._carrier = carrier or world.network
        world.happened("is", name, "", {"server": server.name, **self._place()})
        self.id = spawn.worker
        self.slot = spawn.slot
        self.core = WorkerCore(spawn.incarnation, limits=world.plan.server)
        self._luck = world.luck_of(f"saves of {name}")
        if self._luck.random() < 0.5:  # its router is to refuse what is too large
            self.core.save_bytes = 1 << 30
        self._states: dict[int, SimulatedState] = {}
        """The last state of each running execution."""
        self._saving: set[int] = set()
        """Executions that wait for the answer to a save."""
        self.link: SimulatedLink | None = None
        self._outgoing = TurnMessages(self._carrier, grouped=world.grouped)
        self._running: dict[int, RunningExecution] = {}
        self._ignoring: set[int] = set()
        self._huge: set[int] = set()
        self._unclaimed: dict[int, list[PlannedClaim]] = {}
        """The permits that each execution is still to claim before it does anything else."""
        self._claims: dict[int, SimClaim] = {}
        self._fate = world.luck_of(f"resources of {name}")
        self._places = itertools.count()
        self._resources: dict[int, SimResource] = {}
        self._unwanted: dict[int, int] = {}
        """Number of resources that each execution is still to want."""
        self._closing: dict[int, Status] = {}
        """Executions that end once their resources have, and how."""
        self._reported: list[RunningExecution] = []
        self._blocked_s: float | None = None
        self.set_up_s: float | None = None
        """When its environment was set up."""
        self.junk = ""
        """Way in which its messages are spoilt; empty if they are not."""
        world.worker_by_incarnation[spawn.incarnation] = self
        self._connect()
        self._heartbeat()
        self._set_up()

    def _place(self) -> dict[str, Any]:
        """Facts about where it runs, for judges."""
        return {}

    def _set_up(self) -> None:
        delay_s = self.rng.uniform(0.05, 0.6)
        if self.world.strikes(FaultKind.SLOW_START, 0.3, self.rng):
            return
        if self.world.strikes(FaultKind.KILL_EARLY, 0.3, self.rng):
            self.events.after(delay_s, self.die, "killed before its hello")
        elif self.world.strikes(FaultKind.SET_UP_FAILS, 0.2, self.rng):
            self.events.after(delay_s, self.post, self._broken)
        else:
            self.events.after(delay_s, self.post, self._hello)

    def _broken(self) -> None:
        info = ErrorInfo("set-up", Verdict.DID_NOT_RUN, "no such data set", traceback="...")
        self._take(SetUpFailed(info))
        self.events.after(0.05, self.die, "set-up failed")

    def _hello(self) -> None:
        self.set_up_s = self.events.now_s
        self.world.happened("is", self.name, "", {"set_up_s": self.set_up_s})
        self._take(EnvironmentReady(1, "simulated", self.world.declares_rerun(self.rng)))
        self._beat()

    def _beat(self) -> None:
        if not self.alive:
            return
        if not self.held:
            self._state()
        self.events.after(1.0, self._beat)

    def _state(self) -> None:
        if not self.junk and self.world.strikes(FaultKind.JUNK, 0.2, self.rng):
            self.junk = self.rng.choice(sorted(KINDS))
            self.events.note(self.name, f"sends {self.junk} from now on")
            self.world.happened("is", self.name, "", {"junk": self.junk})
        self._take(BeatDue({}))
        while self.world.strikes(FaultKind.CONFUSED_WORKER, 0.6, self.rng):
            self.core.sent += 1  # it takes it for its own
            self._leave()
            self._send(self._confused())

    def _confused(self) -> Frames:
        """The outcome of a dispatch that there never was: for a request that it has
        reported before, one that somebody else may run, or none at all."""
        known = [execution.request for execution in self._reported]
        request = self.rng.choice(known) if known else RequestId(self.world.new_id(), 0)
        near = request.sequence + self.rng.randint(1, 6)
        sequence = self.rng.choice((request.sequence, near, near, 1 << 40))
        number = (1 << 40) + self.rng.randrange(1000)
        header = messages.encode(
            messages.WorkerOutcome(request.session, sequence, number, Status.RESULT, 0.0)
        )
        return (self.core.incarnation, b"nobody", header, b"made up")

    def woke(self, late_s: float) -> None:
        """A beat is overdue."""
        if self.set_up_s is not None:
            self._state()

    def _heartbeat(self) -> None:
        """The heartbeat thread: runs while the loop is blocked, not while stopped."""
        if not self.alive:
            return
        if not self.stands_still:
            lag_s = 0.0 if self._blocked_s is None else self.events.now_s - self._blocked_s
            self._feel(lag_s)
        self.events.after(self.world.plan.server.heartbeat_s, self._heartbeat)

    def _feel(self, lag_s: float) -> None:
        """Give a sign of life to whoever has started it."""
        self.server.post(self.server.heartbeat, self.id, lag_s)

    # -- its link -------------------------------------------------------------

    def _connect(self) -> None:
        self.link = self.server.links[WORKER][self.id] = SimulatedLink(
            self.id, self, self.server, WORKER
        )

    def cut_off(self) -> None:
        """The stream has ended: this process or its server is dead, or kills it for that."""
        if self.server.alive:
            self.events.after(self.rng.uniform(0.01, 0.3), self.die, "its link is broken")

    def take_in(self, frames: Frames) -> None:
        """A message has arrived."""
        self.post(self._message, frames)

    def _message(self, frames: Frames) -> None:
        self._take(RouterMessage(frames))

    # -- effects and environment code -----------------------------------------

    def _take(self, given: WorkerInput) -> None:
        self._do(self.core.take(given))

    def _do(self, effects: list[WorkerEffect]) -> None:
        for effect in effects:
            match effect:
                case ToRouter(incarnation, message, body, client):
                    if self.junk:
                        self._send(spoilt(effect.frames, self.junk, self.rng))
                        continue
                    before = (incarnation,) if body is None else (incarnation, client.encode())
                    self._outgoing.say(self.link, (message, body), before, up=True)
                case BeginRun():
                    self._run(effect)
                case CancelRun():
                    self._cancel(effect.number)
                case SaveEnded(number):
                    self._saving.discard(number)
                    if number in self._running:
                        self._save_later(number)
                case Park():
                    copy = memoryview(bytes(effect.payload))
                    delay_s = self.rng.uniform(0.0, 0.5)
                    parked = OutcomeParked(effect.number, copy)
                    self.events.after(delay_s, self.post, self._take, parked)
                case GoOn(claim, after_s):
                    self.events.after(after_s or 0.0, self.post, self._went_on, claim)
                case Stated():
                    self._stated(effect)
                case Clean():
                    self._clean(effect)
                case Exit():
                    self.events.after(0.1, self.die, "retired")
        if self.world.grouped:  # what ends in the same instant is said together
            self.events.after(INSTANT_S, self.post, self._leave)

    def _leave(self) -> None:
        self._outgoing.leave(up=True)

    def _send(self, frames: Frames) -> None:
        if frames:
            self._carrier.send(self.link, frames, up=True)

    def _run(self, run: BeginRun) -> None:
        key, behaviour, _, _ = bytes(run.body).decode().split("|", 3)
        if self.set_up_s is None:
            self.world.breaks("G5", f"{key} starts before its environment is set up")
        self.events.note(self.name, f"runs {key} ({behaviour}) as {run.number}")
        self.world.happened("began", self.name, key, run.request, run.number)
        self._running[run.number] = RunningExecution(key, run.request)
        if run.late_s is not None:
            self.events.after(run.late_s, self.post, self._late, run.number)
        if self.world.plan.has(FaultKind.SAVES):
            self._restore(run)
        permits = self.world.plan.permits
        if permits is not None:
            self._unclaimed[run.number] = permits.claims_of(key)[::-1]
        self._claim(run)

    # -- permits --------------------------------------------------------------

    def _claim(self, run: BeginRun) -> None:
        """Claim the next permit of an execution; with all of them its code goes on."""
        execution = self._running.get(run.number)
        if execution is None:
            return
        if not self._unclaimed.get(run.number):
            self._want(run)
            return
        planned = self._unclaimed[run.number].pop()
        claim = self.world.claimed
        self.world.claimed += 1
        self._claims[claim] = SimClaim(run, planned)
        self.world.faults[FaultKind.PERMITS] += 1
        self.world.happened(
            "claims", self.name, execution.key, run.number, claim, planned.name, planned.most,
            planned.per_s,
        )  # fmt: skip
        self._take(ClaimMade(run.number, claim, planned.name, planned.most, planned.per_s))

    # -- resources ------------------------------------------------------------

    def _want(self, run: BeginRun) -> None:
        """Want the next resource of an execution; with all of them its code goes on."""
        if run.number not in self._running or run.number in self._closing:
            return
        left = 0
        if self.world.plan.has(FaultKind.RESOURCES):
            left = self._unwanted.setdefault(run.number, self._fate.choice((0, 1, 1, 2)))
        if not left:
            self._act(run)
            return
        self._unwanted[run.number] -= 1
        place = next(self._places)
        self._resources[place] = SimResource(run)
        self.world.faults[FaultKind.RESOURCES] += 1
        here = self._resources[place].here = bool(place % 2)
        self._take(ResourceWanted(run.number, place, "sandbox", "module:destroy", here))

    def _stated(self, news: Stated) -> None:
        """Code is told the name of a resource, or that its handle is safe."""
        each = self._resources.get(news.resource)
        if each is None:
            return
        number = each.run.number
        if news.refused:
            del self._resources[news.resource]
            self._want(each.run)
            self._closed(number)
        elif each.name:
            self._want(each.run)
        elif number in self._closing:
            del self._resources[news.resource]
            self._take(ResourceTold(news.resource, ResourceState.GONE))
            self._closed(number)
        else:
            each.name = news.name
            self.world.happened("makes", self.name, "", number, news.name, each.here)
            self.events.after(self._fate.uniform(0.0, 0.3), self.post, self._made, news.resource)

    def _made(self, place: int) -> None:
        each = self._resources.get(place)
        if each is None or each.run.number in self._closing:
            return
        if self._fate.random() < 0.1:  # it could not be created, perhaps
            self._destroy(place)
            self._want(each.run)
        else:
            self._take(ResourceTold(place, ResourceState.CREATED, b"handle"))

    def _destroy(self, place: int) -> None:
        """Begin to destroy a resource, if that has a name, and is not being destroyed."""
        each = self._resources[place]
        if each.name and not each.is_ending:
            each.is_ending = True
            self.world.happened("destroys", self.name, "", each.name)
            self.events.after(self._fate.uniform(0.0, 0.3), self.post, self._destroyed, place)

    def _destroyed(self, place: int) -> None:
        each, works = self._resources.pop(place), self._fate.random() < 0.8
        self.world.happened("destroyed", self.name, "", each.name, works)
        state = ResourceState.GONE if works else ResourceState.LEFT
        self._take(ResourceTold(place, state, b"", "" if works else "no luck"))
        self._closed(each.run.number)

    def _closes(self, number: int, status: Status) -> bool:
        """Whether an execution first ends its resources; a few forget them."""
        mine = [place for place, each in self._resources.items() if each.run.number == number]
        if mine and number not in self._closing:
            if self._fate.random() < 0.15 and all(self._resources[p].is_idle for p in mine):
                for place in mine:
                    del self._resources[place]
                return False
            self._closing[number] = status
            for place in mine:
                self._destroy(place)
        return bool(mine)

    def _closed(self, number: int) -> None:
        """Go on with the end of an execution, if none of its resources is left."""
        if any(each.run.number == number for each in self._resources.values()):
            return
        if number in self._closing:
            self._report(number, self._closing.pop(number))

    def _clean(self, clean: Clean) -> None:
        """Destroy a resource for the router: that may fail, hang, or kill the worker."""
        self.world.happened("destroys", self.name, "", clean.name)
        luck, delay_s = self._fate.random(), self._fate.uniform(0.0, 0.6)
        if luck < 0.05:
            self.events.after(delay_s, self.die, "killed by a destroy")
        elif luck > 0.03 + 0.05:
            self.events.after(delay_s, self.post, self._cleaned, clean)

    def _cleaned(self, clean: Clean) -> None:
        works = self._fate.random() < 0.8
        self.world.happened("destroyed", self.name, "", clean.name, works)
        self._take(Cleaned(clean.name, clean.turn, "" if works else "no luck"))

    def _went_on(self, number: int) -> None:
        """The code of a granted claim goes on."""
        claim = self._claims.get(number)
        if claim is None or claim.is_held:
            return
        if claim.planned.per_s is None:
            claim.is_held = True
            self.world.happened("holds", self.name, "", number)
        else:
            del self._claims[number]
        self._claim(claim.run)

    def _give_back(self, number: int) -> None:
        """The block of a claim ends."""
        if self._claims.pop(number, None) is not None:
            self.world.happened("gives-back", self.name, "", number)
            self._take(ClaimOver(number))

    def _end_claims(self, number: int) -> None:
        """The code of an execution is over, and so are its claims, but for those that it leaks."""
        self._unclaimed.pop(number, None)
        for claim, each in list(self._claims.items()):
            if each.run.number == number:
                if each.planned.leaks:
                    del self._claims[claim]
                else:
                    self._give_back(claim)

    # -- what it does -----------------------------------------------------------

    def _act(self, run: BeginRun) -> None:
        _, behaviour, duration, _ = bytes(run.body).decode().split("|", 3)
        duration_s = float(duration)
        for claim, each in self._claims.items():
            if each.run is run and each.planned.part < 1.0:
                part_s = duration_s * each.planned.part
                self.events.after(part_s, self.post, self._give_back, claim)
        if self.world.grouped:  # some end together
            now_s = self.events.now_s
            duration_s = math.ceil((now_s + duration_s) / TOGETHER_S) * TOGETHER_S - now_s
        if behaviour == "block":
            self.world.faults[FaultKind.BLOCK_LOOP] += 1
            self._blocked_s = self.events.now_s
            self.hold("blocked")
            self.events.after(duration_s, self._unblock, run.number)
        elif behaviour == "hang":
            self.world.faults[FaultKind.HANG] += 1
        elif behaviour == "kill" or (behaviour == "kill-sometimes" and self.rng.random() < 0.6):
            self.world.faults[FaultKind.POISON] += 1
            self.events.after(duration_s, self._killed_by, run.number)
        else:
            if behaviour == "ignore":
                self._ignoring.add(run.number)
            elif behaviour == "huge":
                self.world.faults[FaultKind.HUGE] += 1
                self._huge.add(run.number)
            failed = behaviour == "raise"
            self.events.after(duration_s, self.post, self._ends, run.number, failed)
            if behaviour == "last-words":
                self.world.faults[FaultKind.KILL_AFTER_OUTCOME] += 1
                self.events.after(duration_s + 1e-6, self.die, "killed after an outcome")

    def _late(self, number: int) -> None:
        """A rollout is told that it is late, and soon gives what it has."""
        execution = self._running.get(number)
        if execution is None:
            return
        self.world.faults[FaultKind.GRACE] += 1
        self.world.happened("late", self.name, execution.key, number)
        self.events.note(self.name, f"{execution.key} is late")
        if number not in self._ignoring:
            self.events.after(self.rng.uniform(0.0, 0.2), self.post, self._ends, number, False)

    def _restore(self, run: BeginRun) -> None:
        """Go on from the state of an earlier execution, and save others from now on."""
        state = SimulatedState(f"{self.name}/{run.number}", 0)
        if run.saved is not None:
            state = SimulatedState.of(bytes(run.saved))
        self._states[run.number] = state
        self._save_later(run.number)

    def _save_later(self, number: int) -> None:
        self.events.after(self._luck.uniform(0.0, 0.2), self.post, self._save, number)

    def _save(self, number: int) -> None:
        if number not in self._running:
            return
        state = self._states[number] = self._states[number].next()
        padding = b"." * self._luck.choice((0, 0, 10, 80))
        self.world.faults[FaultKind.SAVES] += 1
        self._saving.add(number)
        self._take(SaveMade(number, state.encoded() + padding))

    def _unblock(self, number: int) -> None:
        self._blocked_s = None
        self.release("blocked")
        self.post(self._ends, number, False)

    def _killed_by(self, number: int) -> None:
        if number in self._running:
            self.die("killed by a rollout")

    def _cancel(self, number: int) -> None:
        execution = self._running.get(number)
        if execution is None:
            return
        self.events.note(self.name, f"{execution.key} is cancelled")
        if number in self._ignoring:
            self.world.faults[FaultKind.IGNORE_CANCEL] += 1
            return
        delay_s = self.rng.uniform(0.0, 0.1)
        self.events.after(delay_s, self.post, self._report, number, Status.CANCELLED)

    def _ends(self, number: int, failed: bool) -> None:
        if number in self._saving:  # it waits, and then it ends
            self.events.after(SAVE_S, self.post, self._ends, number, failed)
        else:
            self._report(number, Status.ERROR if failed else Status.RESULT)

    def _report(self, number: int, status: Status) -> None:
        if number in self._running and self._closes(number, status):
            return
        execution = self._running.pop(number, None)
        if execution is None:
            return
        self._saving.discard(number)
        payload = f"{execution.key} by {self.name} as {number}".encode()
        if number in self._huge:
            payload += bytes(self.world.plan.message_bytes)
        if status is not Status.RESULT:
            code = "rollout-failed" if status is Status.ERROR else "cancelled"
            payload = error_records.encode(
                ErrorInfo(code, Verdict.RAN_AND_FAILED, payload.decode())
            )
        self._end_claims(number)
        self.events.note(self.name, f"{execution.key} ends: {status.name}")
        self._reported.append(execution)
        self.world.happened("ended", self.name, execution.key, number, status, payload)
        self._take(OutcomeMade(number, status, payload, 0.0))

    def die(self, how: str) -> None:
        """The process is dead; whoever has started it reaps it a moment later."""
        if self.alive:
            super().die(how)
            self._end(how)

    def _end(self, how: str) -> None:
        self.world.network.close(self.link)
        if self.server.alive:
            self.events.after(self._reaped_s(), self.server.post, self.server.reaped, self.id, how)

    def _reaped_s(self) -> float:
        """How long it takes until it is reaped."""
        late = self.world.strikes(FaultKind.SLOW_DEATH, 0.4, self.rng)
        return self.rng.uniform(1.0, 3.0) if late else self.rng.uniform(0.0, 0.1)


# -- clients -----------------------------------------------------------------------------


class SimClient(VirtualProcess):
    """One client process: core, connection, and the callers in it."""

    def __init__(
        self, world: World, index: int, asks: tuple[PlannedAsk, ...], *, life: int = 1
    ) -> None:
        name = f"c{index}" if life == 1 else f"c{index}.{life}"
        super().__init__(world.events, name, world.luck_of(name))
        self.world = world
        self.life = life
        self.core = ClientCore(
            name=self.name, new_id=world.new_id, now_s=self.events.now_s,
            limits=world.plan.client, wire=world.wire, caller=b"caller of keys %d" % index,
        )  # fmt: skip
        self.link: SimulatedLink | None = None
        self._outgoing = TurnMessages(world.network, grouped=world.grouped)
        self.route = world.network.new_route()
        self.away_s = 0.0
        """How long the next reconnecting takes."""
        self._keys: dict[int, str] = {}
        """The ask of each call, by its number: calls are counted from 0."""
        self._numbers: dict[str, int] = {}
        self._tick_at_s = float("inf")
        self._asks: dict[str, PlannedAsk] = {}
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

    def _ask(self, ask: PlannedAsk) -> None:
        now_s, world = self.events.now_s, self.world
        if self.core.closed:
            return
        self._asks[ask.key] = self._unasked.pop(ask.key)
        if len(ask.body) > world.plan.message_bytes:
            world.faults[FaultKind.HUGE] += 1
        may_rerun = world.may_declare_rerun() if ask.rerun is None else ask.rerun
        world.happened(
            "asked", self.name, ask.key, may_rerun, ask.max_executions, ask.limit_s, ask.use
        )  # fmt: skip
        number = len(self._keys)
        terms = Terms(
            ask.rerun, ask.max_executions, ask.limit_s, _key(ask), execution_s=ask.execution_s,
            grace_s=ask.grace_s,
        )  # fmt: skip
        if ask.grace_s is not None:
            of = key_of(ask.body)
            world.happened("grace", self.name, ask.key, of, ask.execution_s, ask.grace_s)
        effects = self.core.take(CallSubmitted(number, ask.body, now_s, terms))
        if ask.use is not None:
            world.faults[FaultKind.KEYS] += 1
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

    def _again(self) -> Iterator[PlannedAsk]:
        """The asks of its next life for keys whose outcomes this one did not get."""
        for name in self._numbers:
            ask = self._asks[name]
            if ask.use is None or ask.use.act is not KeyAct.ASK:
                continue
            if self.rng.random() < 0.6:
                after_s = self.rng.choice((ask.cancel_after_s, self.rng.uniform(0.0, 1.5)))
                yield dataclasses.replace(ask, key=name + "'", at_s=0.0, cancel_after_s=after_s)

    # -- its connection -------------------------------------------------------

    def _connect(self) -> None:
        if not self.alive:
            return
        if not self.held:
            if self.world.plan.has(FaultKind.NEW_ROUTE) and self.core.pings.connections:
                self.world.faults[FaultKind.NEW_ROUTE] += 1
                self.route = self.world.network.new_route()
            self.link = self.world.network.connect(self, self.route, CLIENT)
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
            self.world.happened("arrived", self.name, self._call_of(message), message)

    def _call_of(self, message: messages.Message) -> str:
        """The call that an outcome is of; empty if it is of none that the client has."""
        if isinstance(message, messages.Outcome):
            for number, call in self.core.calls.live.items():
                its = call.session is not None and call.session.id == message.session
                if its and call.sequence == message.sequence:
                    return self._keys[number]
        return ""

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

    def _received(self, number: int) -> None:
        if self._numbers.pop(self._keys[number], None) is not None:
            self.world.happened("received", self.name, self._keys[number])
            self._take(OutcomeReceived(number, self.events.now_s))


def _key(ask: PlannedAsk) -> CallKey | None:
    """The key of this call, if it names one."""
    if ask.use is None:
        return None
    return CallKey(ask.use.act, ask.use.name, input_digest(ask.body, ask.rerun), ask.use.tag)


# -- servers -----------------------------------------------------------------------------


class SimServer(SimProcess):
    """One life of a server: a router, its tick, and the worker processes it starts."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, f"server{number}")
        self.epoch = world.new_id()
        world.happened("is", self.name, "", {"epoch": self.epoch})
        self.links: dict[str, dict[bytes, SimulatedLink]] = {CLIENT: {}, WORKER: {}, HOST: {}}
        self.workers: dict[bytes, SimWorker] = {}
        """Those of its own machine."""
        self.names: dict[bytes, str] = {}
        """How events name each worker, those of hosts too."""
        self.locked = False
        self.slept_s = 0.0
        """Time in which its machine has slept, and its clock stood still, in seconds."""
        self.peak_live = 0
        """The most that has begun at once since what is kept was last below its bounds."""
        self._catching_up = False
        self._closing = False
        self._outgoing = TurnMessages(world.network, grouped=world.grouped)
        self._turns = 0
        """Inputs of which it carries out the effects: a process that it spawns says at once
        that it lives."""
        self._ticks = self._refused = self._lapsed = 0
        self._numbers: dict[bytes, int] = {}
        """How many executions each worker has been given."""
        self.router = Router(
            epoch=self.epoch, slots=world.plan.slots, now_s=self.events.now_s,
            new_id=world.new_id, limits=world.plan.server, wire=world.wire,
            keys=world.plan.keys, journaled=world.disk is not None,
            resting=world.disk is not None,
            lease=None if world.plan.hosts is None else world.plan.hosts.terms(number),
        )  # fmt: skip
        self._journal = None if world.disk is None else SimJournal(self, world.disk)
        self.hosts = None if world.plan.hosts is None else SimServerHosts(self, world.plan.hosts)
        self._takers = {
            CLIENT: self._from_client, WORKER: self._from_worker, HOST: self._from_host,
        }  # fmt: skip
        world.happened("begins", self.name)
        count_pairs(self.router.works, world.pairs)
        self.events.note(self.name, "starts")
        if world.disk is not None:
            records, at_rest = given(world.disk.records)
            self._carry_out(self.router.take(Restored(records, self.events.now_s)))
            self._carry_out(self.router.take(AtRest(at_rest, self.events.now_s)))
        self._clock()

    # -- what comes in ----------------------------------------------------------

    def take_in(self, link: SimulatedLink, frames: Frames) -> None:
        """A message has arrived."""
        self.post(self._takers[link.kind], link, frames)

    def _from_client(self, link: SimulatedLink, frames: Frames) -> None:
        effects = self.router.take(ClientMessage(link.route, frames, self.events.now_s))
        for message, body in said_in(frames):
            self.world.happened("heard", self.name, "", link.peer.name, message, body)
        self._carry_out(effects)

    def _from_worker(self, link: SimulatedLink, frames: Frames) -> None:
        self.tell_reported(frames)
        given = WorkerMessage((link.route, *frames), self.events.now_s)
        self._carry_out(self.router.take(given))

    def tell_reported(self, frames: Frames) -> None:
        """Say what a worker of its own reports."""
        worker = self.world.worker_by_incarnation.get(bytes(frames[0]))
        if worker is not None and worker.server is self:
            said = said_in(frames, 2 if len(frames) == 4 else 1)
            for message, body in said:
                self.world.happened("reported", worker.name, "", message, body)
            if not said:
                self.world.happened("reported", worker.name, "", None, None)

    def _from_host(self, link: SimulatedLink, frames: Frames) -> None:
        assert self.hosts is not None
        self.hosts.message(link.route, frames)

    def _take(self, given: RouterInput) -> list[RouterEffect]:
        """Give the router an input by which time passes, or all before it are known dead."""
        self.world.happened("passes", self.name, "", not isinstance(given, Resume))
        return self.router.take(given)

    def give(self, given: RouterInput) -> None:
        """Give the router an input, and say what follows for the workers of hosts."""
        effects = self.router.take(given)
        for each in self.router.followed:
            match each:
                case WorkerMessage():
                    self.tell_reported(each.frames[1:])
                case Exited():
                    self.world.happened("reaped", self.names[each.worker])
                case HostsDead():
                    self.world.happened("declares", self.name, "", sorted(each.dead_epochs))
                    self.world.happened("passes", self.name, "", True)
                case WorkerBack():
                    self._took_back(each)
                case _:
                    pass
        self._carry_out(effects)

    def _took_back(self, back: WorkerBack) -> None:
        """A worker of an earlier server is this one's."""
        _, name = self.world.spawned[back.incarnation]
        known = self.router.workforce.workers.get(back.worker)
        self.names[back.worker] = name
        # What came back is not started now.
        self._numbers[back.worker] = back.next if known is None else known.next_number
        self.world.spawned[back.incarnation] = self, name
        worker = self.world.worker_by_incarnation.get(back.incarnation)
        if worker is not None:
            worker.server = self
        hello = messages.decode(back.hello, most_bytes=1 << 20) if back.hello else None
        declared = hello.rerun if isinstance(hello, messages.WorkerHello) else None
        facts = back.incarnation, bool(back.hello), declared
        self.world.happened("back", name, "", self.name, *facts)
        life = self.router.pool.lives[back.worker]
        if life.leaving:  # its host was told so as it came back
            self.world.happened("kills", self.name, "", name, life.why)
        elif back.is_to_end:
            self.world.happened("is", name, "", {"displaced": True})
        self.world.happened("spawned", self.name, "", name, back.slot, back.incarnation)

    def heartbeat(self, worker: bytes, lag_s: float) -> None:
        """A sign of life, through the worker's own pipe."""
        given = HeartbeatReceived(worker, self.events.now_s, lag_s, 1 << 20, "somewhere")
        self._carry_out(self.router.take(given))

    def reaped(self, worker: bytes, how: str) -> None:
        """A worker's process has ended."""
        self.world.happened("reaped", self.workers[worker].name)
        self._carry_out(self.router.take(Exited(worker, self.events.now_s, how)))

    def saved(self, upto: int) -> None:
        """So many records of its journal are safe."""
        self._carry_out(self.router.take(Saved(upto, self.events.now_s)))

    def loaded(self, number: int, frames: Frames, why: str = "") -> None:
        """An outcome was read from its journal; none: it is not there any more, or this is
        why it cannot be read."""
        why = why or ("" if frames else "its rows are not there")
        self._carry_out(self.router.take(Loaded(number, frames, why, self.events.now_s)))

    # -- time -----------------------------------------------------------------

    def _clock(self) -> None:
        if not self.alive:
            return
        if not self.held:
            self._tick()
        if self.alive:
            self.events.after(self.world.plan.server.tick_s, self._clock)

    def woke(self, late_s: float) -> None:
        """Tick at once, after the input."""
        self._tick()

    def _tick(self) -> None:
        now_s = self.events.now_s
        effects: list[RouterEffect] = []
        may_open = not self.locked and self.world.all_dead_but(self)
        if may_open and (self.hosts is None or self.hosts.are_accounted_for()):
            effects += self._open()
        elif self.hosts is not None and self.locked:
            self.hosts.tick()
        effects += self._take(Tick(now_s))
        self._carry_out(effects)
        self._count_bounds()
        self.world.happened("ticked", self.name)
        self._ticks += 1
        has_begun = begun(self.router)
        self.peak_live = max(self.peak_live, has_begun)
        if self._ticks % 4 == 0:
            for wrong in audit(self.router, self.peak_live):
                self.world.breaks("G8", wrong)
        if not at_a_bound(self.router):
            self.peak_live = has_begun

    def _open(self) -> list[RouterEffect]:
        """Nothing of earlier servers lives on this machine: workers may start."""
        now_s, dead = self.events.now_s, self.world.dead_epochs(self)
        self.locked = True
        self.world.happened("is", self.name, "", {"locked": True})
        effects = self._take(PoolOpened(dead, now_s))
        self.world.happened("declares", self.name, "", sorted(self.router.dead_epochs))
        if self.hosts is not None:
            self.hosts.opened()
        return effects

    def _count_bounds(self) -> None:
        """Count the waits that tiny bounds, or workers that still start, have caused."""
        router, plan = self.router, self.world.plan
        if router.pool.spreads(router.awake_s):
            self.world.faults[FaultKind.SPREAD] += bool(len(router.queue))
        refused = router.works.counters.refused_for_now
        if plan.has(FaultKind.TINY_BOUNDS):
            paused = len(router.queue) and at_a_bound(router)
            self.world.faults[FaultKind.TINY_BOUNDS] += refused - self._refused + bool(paused)
        if plan.has(FaultKind.SHORT_LEASE):
            self.world.faults[FaultKind.SHORT_LEASE] += self._lapsed
        self._refused, self._lapsed = refused, 0

    def stop(self) -> None:
        """SIGTERM: close, with a drain or without; perhaps another signal hurries it."""
        stage = self.rng.choice([ClosingStage.DRAINING] * 3 + [ClosingStage.CANCELLING])
        self._close(stage)
        if self.rng.random() < 0.3:
            hurry = ClosingStage.KILLING
            self.events.after(self.rng.uniform(0.0, 2.0), self.post, self._close, hurry)

    def _close(self, stage: ClosingStage) -> None:
        self._closing = True
        self.world.happened("closing", self.name)
        self._carry_out(self.router.take(CloseAsked(self.events.now_s, stage)))

    def _flush(self) -> None:
        self._carry_out(self.router.take(Flushed(self.events.now_s)))

    # -- effects --------------------------------------------------------------

    def _carry_out(self, effects: list[RouterEffect]) -> None:
        world = self.world
        if effects or self._turns or self.hosts is not None:
            self._do(effects)
        if not self.router.behind:
            if not self._turns:
                world.happened("turned", self.name)
        elif not self._catching_up:
            self._catching_up = True
            self.events.after(0.0, self.post, self._catch_up)

    def _do(self, effects: list[RouterEffect]) -> None:
        world = self.world
        started = self._started()
        hosts = self.router.hosts
        if started:
            for wrong in greedy(self.router, started) + crowded(self.router, started):
                world.breaks("G8", wrong)
        if self.router.pool.is_broken_for_good():
            world.happened("broken", self.name)
        self._turns += 1
        for effect in effects:
            match effect:
                case ToClient():
                    self._tell_client(effect)
                case TellStats():
                    self._tell_client(effect.told(encode_record(effect.stats)))
                case ToWorker(name, incarnation, message, body):
                    world.happened("commanded", self.names[name], "", incarnation, message, body)
                    if hosts is not None and hosts.host_of(name) is not None:
                        continue
                    link = self.links[WORKER].get(name)
                    self._outgoing.say(link, (message, body), (incarnation,), up=False)
                case Spawn():
                    self._spawn(effect)
                case Kill():
                    killed = self.names[effect.worker]
                    world.happened("kills", self.name, "", killed, effect.why)
                    if (worker := self.workers.get(effect.worker)) is not None:
                        world.events.after(self.rng.uniform(0.0, 0.05), worker.die, effect.why)
                case Lost():
                    self.events.note(self.name, f"takes {effect.worker.decode()} for dead")
                    world.happened("lost", self.names[effect.worker])
                case Save():
                    assert self._journal is not None
                    self._journal.save(effect)
                case Load():
                    assert self._journal is not None
                    self._journal.load(effect)
                case ToHost():
                    assert self.hosts is not None
                    self.hosts.tell(effect)
                case RecordHosts(waits):
                    world.epoch_records = waits
                    self._carry_out(self.router.take(HostsRecorded("")))
                case Flush() if self.rng.random() < 0.8:  # else a peer takes nothing
                    world.events.after(self.rng.uniform(0.0, 0.05), self.post, self._flush)
                case ClosingOver():
                    world.happened("closed", self.name)
                    if self.hosts is not None and not effect.left:
                        self.hosts.closed()
                    world.end_server(self, "closed", self.rng.uniform(0.0, 2.0))
                case Report():
                    self._lapsed += effect.text.endswith("lease ended")
                    if effect.text == self.router.elastic.why:
                        world.faults[FaultKind.ELASTIC] += 1
                    if effect.text.startswith("dispatching is paused"):
                        world.faults[FaultKind.PAUSES] += 1
                    self.events.note(self.name, effect.text)
        self._turns -= 1
        self._outgoing.leave(up=False)
        if hosts is not None and hosts.is_due and not self._turns:
            self._do(self.router.take(TurnOver()))
        if started or hosts is not None:  # else no more live than before
            self.peak_live = max(self.peak_live, self.router.workforce.live_count())

    def _catch_up(self) -> None:
        self._catching_up = False
        self._carry_out(self._take(Resume(self.events.now_s)))

    def _tell_client(self, effect: ToClient) -> None:
        world, link = self.world, self.links[CLIENT].get(effect.route)
        if link is None:
            world.happened("missed", self.name, "", effect.message, effect.body)
        else:
            world.happened("said", self.name, "", link.peer.name, effect.message, effect.body)
        self._outgoing.say(link, (effect.message, effect.body), (), up=False)

    def _started(self) -> list[Execution]:
        """Executions that were not there the last time."""
        started, numbers = [], self._numbers
        for worker in self.router.workforce.workers.values():
            before = numbers.get(worker.id, 0)
            if before != worker.next_number:
                numbers_ = range(before, worker.next_number)  # of another server's some are over
                started += [worker.live[number] for number in numbers_ if number in worker.live]
                numbers[worker.id] = worker.next_number
        return started

    def _spawn(self, spawn: Spawn) -> None:
        name = self.names[spawn.worker] = f"{self.name}/{spawn.worker.decode()}"
        if self._closing:
            self.world.breaks("G8", f"{self.name} closes, and starts {name}")
        if self.router.pool.lives[spawn.worker].host:
            self.world.spawned[spawn.incarnation] = self, name
            # No process yet: its host may never start it.
            self.world.happened("is", name, "", {"server": self.name, "died_s": self.events.now_s})
            self.world.happened("spawned", self.name, "", name, spawn.slot, spawn.incarnation)
            return
        worker = SimWorker(self.world, self, spawn)
        self.workers[spawn.worker] = worker
        self.world.happened("spawned", self.name, "", name, spawn.slot, spawn.incarnation)
        if self.world.strikes(FaultKind.NO_SPAWN, 0.2, self.rng):
            worker.die("it could not be started")
        else:
            self.router.take(Spawned(spawn.worker, len(self.workers)))


# -- hosts -------------------------------------------------------------------------------

PIPE_S = 1e-4
"""How long a message takes between a host and a worker of its."""

BEAT_S, LEAST_BEAT_S = 1.0, 0.05
"""The longest and the shortest pause between two beats: a tenth of the lease."""

HELLO_S = 2.0
"""A server that has not answered a hello by then is asked again."""

FOR_GOOD_S = 1e6
"""A fault that does not end within the run."""

PAST_MOST = 16
"""Number of memberships that the lock of a machine proves dead, the newest."""


class SimServerHosts:
    """What a server's shell does for its hosts.  Leases are counted on a clock that drifts; all
    else of a server is not, so that the bounds of other guarantees need no slack."""

    def __init__(self, server: SimServer, plan: HostPlan) -> None:
        self._server = server
        self._world = server.world
        self._rate = plan.rates[-1]
        self._early: list[tuple[Route, Frames]] = []
        """Messages of hosts that came before the first one can be welcomed."""
        assert server.router.hosts is not None
        self._hosts = server.router.hosts
        self._is_locked = False
        """Whether nothing of earlier servers lives on this machine."""

    def clock_s(self) -> float:
        """The clock of its leases."""
        return 50.0 + self._rate * (self._world.events.now_s - self._server.slept_s)

    def are_accounted_for(self) -> bool:
        """Whether this server may begin.  With a journal it may: hosts of earlier ones come
        back to it with what runs.  Else all of them must have ended, or said so."""
        if not self._is_locked:
            self._is_locked = True
            self._server.give(HostsBefore(self._world.epoch_records, self.clock_s()))
        if self._world.disk is not None:
            return True
        self._catch_up()
        return self._hosts.leases.earlier.have_ended(self.clock_s())

    def opened(self) -> None:
        """Hosts are welcome from now on."""
        self._world.events.after(0.0, self._server.post, self._catch_up)

    def _catch_up(self) -> None:
        early, self._early = self._early, []
        for route, frames in early:
            self.message(route, frames)

    def closed(self) -> None:
        """The server has closed, and all workers of its hosts have ended."""
        if self._hosts.is_open:
            self._world.epoch_records = self._hosts.leases.earlier.waits

    def message(self, route: Route, frames: Frames) -> None:
        """A message of a host has arrived."""
        waits = self._world.disk is not None or not self._is_locked
        if waits and not self._hosts.is_open:
            self._early.append((route, frames))
            return
        malformed = self._server.router.malformed
        now_s, message = self._world.events.now_s, [bytes(each) for each in frames]
        self._server.give(HostMessage(route, message, now_s, self.clock_s()))
        if self._server.router.malformed > malformed and not self._server.router.followed:
            self._world.happened("malformed", self._server.name, "", "a message of a host")

    def tick(self) -> None:
        """Let time pass for hosts, and have those that are set aside looked after."""
        self._server.give(HostsTick(self._world.events.now_s, self.clock_s()))
        for host in self._hosts.hosts.values():
            if host.set_aside and not host.leaving and not host.broken:
                self._world.look_after(host.name, host.holding.membership)

    def tell(self, effect: ToHost) -> None:
        """Send a message to a host."""
        link = self._server.links[HOST].get(effect.route)
        self._world.network.send(link, effect.frames, up=False)


class SimulatedMachine:
    """A machine with one host at a time: its clock, its guard, and what runs there.

    While it sleeps no code runs and no timer fires, and the clock goes on; as it wakes, the
    timers that are due come first.  Its lock is held by a host, its guard and all workers: so
    the next host begins when they are dead, and knows that the memberships before are over."""

    def __init__(self, world: World, index: int, plan: HostPlan) -> None:
        count = len(plan.workers)
        self.world = world
        self.name = f"h{index % count}"
        """The id of its host, which a second machine may have, too."""
        self.label = self.name + "'" * (index // count)
        self.workers = plan.workers[index % count]
        self.varies = plan.varies
        self.rate = plan.rates[index]
        self.late_s = plan.late_s
        self.cuts = [0, 0]
        """Number of faults that let nothing pass to its host, and from it."""
        self.rng = world.luck_of(f"machine {self.label}")
        self.past: list[Membership] = []
        self.host: SimHost | None = None
        self.guard: SimGuard | None = None
        self.is_wanted = False
        """Whether a host is to run here."""
        self.lives = 0
        self._sleeps = 0
        self._asleep_since_s = 0.0
        self._slept_s = 0.0
        world.happened("is", self.label, "", {"rate": self.rate, "guard_s": plan.guard_s})

    # -- time -----------------------------------------------------------------

    @property
    def asleep(self) -> bool:
        """Whether it sleeps."""
        return self._sleeps > 0

    def _stood_s(self) -> float:
        """For how long the clock of guards stood still."""
        if not GuardTimer.stands_still():
            return 0.0
        asleep_s = self.world.events.now_s - self._asleep_since_s if self.asleep else 0.0
        return self._slept_s + asleep_s

    def clock_s(self) -> float:
        """The clock of beats and of the timers of guards."""
        return 1000.0 + self.rate * (self.world.events.now_s - self._stood_s())

    def until_s(self, clock_s: float) -> float:
        """How long it takes until this clock says so, if it does not stand still."""
        return max(0.0, (clock_s - self.clock_s()) / self.rate)

    def processes(self) -> list[SimProcess]:
        """What lives here."""
        guard_ = self.guard
        workers = [] if guard_ is None else [each for each in guard_.workers.values() if each.alive]
        return [each for each in (self.host, guard_, *workers) if each is not None and each.alive]

    def sleep(self) -> None:
        """Nothing moves from now on."""
        self._sleeps += 1
        if self._sleeps == 1:
            self._asleep_since_s = self.world.events.now_s
            for each in self.processes():
                each.hold("asleep")
                self.world.happened("is", each.name, "", {"asleep": True})

    def wake(self) -> None:
        """Timers first, then what runs."""
        self._sleeps = max(0, self._sleeps - 1)
        if self.asleep:
            return
        self._slept_s += self.world.events.now_s - self._asleep_since_s
        if self.guard is not None:
            self.guard.look()
        for each in self.processes():
            self.world.happened("woke", each.name)
        for each in self.processes():
            each.release("asleep")

    # -- its host -------------------------------------------------------------

    def start(self) -> None:
        """A host is to run here from now on."""
        self.is_wanted = True
        self._start()

    def _start(self) -> None:
        if not self.is_wanted or (self.host is not None and self.host.alive):
            return
        if self.asleep or self.processes():  # the lock is held
            self.world.events.after(0.1, self._start)
            return
        self.lives += 1
        self.host = SimHost(self)

    def new_guard(self) -> SimGuard:
        """A guard that was told no deadline yet."""
        self.guard = SimGuard(self)
        return self.guard

    def kill(self, for_s: float) -> None:
        """The process of its host is killed, and another one is started later."""
        if self.host is not None and self.host.alive:
            self.host.die("killed")
        self.world.events.after(for_s, self._start)

    def keeper_sees(self) -> None:
        """The keeper, which is no host's and no guard's, sees that the host is dead."""
        if self.guard is None or not self.guard.alive or self.host is None or self.host.alive:
            return
        if self.guard.stands_still:  # then so does the keeper
            self.world.events.after(0.1, self.keeper_sees)
        else:
            self.guard.die("its host has ended")


class SimGuard(SimProcess):
    """The guard of a host: the parent of its workers.  The kernel kills it at its deadline,
    stopped or not, as late as may be; its death is that of all workers."""

    def __init__(self, machine: SimulatedMachine) -> None:
        self.machine = machine
        super().__init__(machine.world, f"{machine.label}.guard{next(machine.world.counter)}")
        self.workers: dict[bytes, HostedWorker] = {}
        """Those that are not reaped."""
        self.wanted: set[bytes] = set()
        """Those that it has not yet heard that it is to start."""
        self._timer = GuardTimer()

    def tell(self, deadline_s: float) -> None:
        """The host says by when everything of it must be dead."""
        self.post(self._told, self._timer.said(deadline_s, self.machine.clock_s()))

    def _told(self, said_s: float) -> None:
        if self._timer.told(said_s, self.machine.clock_s()):
            self._arm()

    def _arm(self) -> None:
        deadline_s = self._timer.deadline_s
        assert deadline_s is not None
        self.events.after(self.machine.until_s(deadline_s), self._fires, deadline_s)

    def _fires(self, deadline_s: float) -> None:
        if not self.alive or self.machine.asleep or deadline_s != self._timer.deadline_s:
            return  # as it wakes it looks
        if self._timer.is_due:
            return
        if self._timer.look(self.machine.clock_s() + 1e-9):
            late_s = self.rng.choice((0.0, 1.0)) * self.machine.late_s
            self.events.after(late_s, self._fire)
        else:
            self._arm()  # the clock has stood still

    def _fire(self) -> None:
        if not self.machine.asleep:
            self._signal()

    def _signal(self) -> None:
        if self._timer.kills():
            self.die("its deadline has come")
        else:  # it has to run for that
            self.post(self.die, "it has seen its deadline")

    def look(self) -> None:
        """The machine wakes: is its timer due?"""
        if not self.alive or self._timer.deadline_s is None:
            return
        if self._timer.look(self.machine.clock_s()):
            self._signal()
        else:
            self._arm()

    def start(self, host: SimHost, effect: Spawn) -> None:
        """Start a worker, unless no deadline was said."""
        self.wanted.discard(effect.worker)
        if not self._timer.may_start() or not host.alive:
            host.post(host.ended, effect.worker, "no guard starts it")
            return
        server, _ = self.world.spawned[effect.incarnation]
        worker = self.workers[effect.worker] = HostedWorker(self, host, server, effect)
        host.post(host.started, effect.worker, 1 + len(self.workers))
        if self.world.strikes(FaultKind.NO_SPAWN, 0.2, self.rng):
            worker.die("it could not be started")

    def kill(self, worker: bytes, why: str) -> None:
        """Kill a worker."""
        if worker in self.workers:
            self.workers[worker].die(why)

    def reap(self, worker: bytes, how: str) -> None:
        """A worker has ended."""
        if self.workers.pop(worker, None) is not None:
            host = self.machine.host
            if host is not None and host.guard is self:
                host.post(host.ended, worker, how)

    def die(self, how: str) -> None:
        """It is dead, and so are all workers."""
        if not self.alive:
            return
        super().die(how)
        for worker in self.workers.values():
            worker.die("its guard has ended")
        host = self.machine.host
        if host is not None:
            self.events.after(self.rng.uniform(PIPE_S, 0.05), host.post, host.guard_ended, self)


class HostedWorker(SimWorker):
    """A worker on a host: all that it says goes through a pipe to that."""

    def __init__(self, guard_: SimGuard, host: SimHost, server: SimServer, spawn: Spawn) -> None:
        self._guard = guard_
        self._host = host
        super().__init__(guard_.world, server, spawn, self)

    def _place(self) -> dict[str, Any]:
        return {"machine": self._guard.machine.label, "died_s": None}

    def _connect(self) -> None:
        self.link = SimulatedLink(self.id, self, self.server, WORKER)

    def send(self, link: SimulatedLink | None, message: Frames, *, up: bool) -> None:
        """Say it to its host."""
        frames = [bytes(each) for each in message]
        self.events.after(PIPE_S, self._host.post, self._host.worker_message, self.id, frames)

    def _feel(self, lag_s: float) -> None:
        self._host.post(self._host.worker_heartbeat, self.id, lag_s)

    def _end(self, how: str) -> None:
        delay_s = max(self._reaped_s(), 2 * PIPE_S)  # what it has said comes first
        self.events.after(delay_s, self._guard.post, self._guard.reap, self.id, how)


class SimHost(SimProcess):
    """One life of the process of a host, around the pure part that ships."""

    def __init__(self, machine: SimulatedMachine) -> None:
        self.machine = machine
        super().__init__(machine.world, f"{machine.label}.{machine.lives}")
        workers = machine.workers
        many = WorkerRange(1, workers) if machine.varies and workers > 1 else workers
        self.core = Host(
            machine.name, many, self._new_membership, past=machine.past[-PAST_MOST:],
            wire=machine.world.wire,
        )  # fmt: skip
        self.link: SimulatedLink | None = None
        self._asked_s = self.events.now_s
        self.guard = machine.new_guard()
        self.events.note(self.name, "starts")
        self._connect()
        self._turn()

    def _new_membership(self) -> Membership:
        membership = self.world.new_id()
        self.machine.past.append(membership)
        return membership

    # -- its connection -------------------------------------------------------

    def _connect(self) -> None:
        if not self.alive:
            return
        network = self.world.network
        if not self.held and not any(self.machine.cuts):
            self.link = network.connect(self, network.new_route(), HOST)
        if self.link is None:
            self.events.after(self.rng.uniform(0.05, 0.3), self._connect)
        else:
            self.link.cuts = self.machine.cuts
            self.core.connect()
            self._carry_out()

    def cut_off(self) -> None:
        """The connection is gone."""
        self.link = None
        self.post(self._lose)
        self.events.after(self.rng.uniform(0.01, 0.3), self._connect)

    def _lose(self) -> None:
        self.core.disconnect()
        self._carry_out()

    def take_in(self, frames: Frames) -> None:
        """A message has arrived."""
        self.post(self._message, frames)

    def _message(self, frames: Frames) -> None:
        for message in of_host(frames) if is_kind(frames, HostAnswer) else ():
            if isinstance(message, HostAnswer):
                lease = self.core.lease
                self.world.happened(
                    "answered",
                    self.machine.label,
                    "",
                    message.membership,
                    message.beat,
                    lease.fence_s,
                )
        try:
            self.core.message([bytes(each) for each in frames], self.machine.clock_s())
        except ProtocolError as error:
            self.world.happened("malformed", self.name, "", str(error))
        self._carry_out()

    # -- time -----------------------------------------------------------------

    def _turn(self) -> None:
        if not self.alive:
            return
        if not self.held:
            self._beat()
        tenth_s = (self.core.lease.fence_s or 1.0) / 10
        pause_s = min(BEAT_S, max(tenth_s, LEAST_BEAT_S))
        self.events.after(pause_s / self.machine.rate, self._turn)

    def woke(self, late_s: float) -> None:
        """A beat is overdue."""
        self._beat()

    def _beat(self) -> None:
        now_s = self.events.now_s
        self.core.beat(self.machine.clock_s(), {})
        if self.core.is_joined:
            self._asked_s = now_s
        elif now_s >= self._asked_s + HELLO_S and self.link is not None:
            self._asked_s = now_s
            self.core.connect()
        self._carry_out()

    # -- its workers ----------------------------------------------------------

    def worker_message(self, worker: bytes, frames: Frames) -> None:
        """A message of a worker."""
        if worker in self.core.workers:
            self.core.worker_message(worker, frames)
            self._carry_out()

    def worker_heartbeat(self, worker: bytes, lag_s: float) -> None:
        """A sign of life of a worker."""
        if worker in self.core.workers:
            self.core.worker_heartbeat(worker, Heartbeat(lag_s, 1 << 20, "somewhere"))
            self._carry_out()

    def started(self, worker: bytes, pid: int) -> None:
        """The process of a worker was started."""
        self.core.spawned(worker, pid)
        self._carry_out()

    def ended(self, worker: bytes, how: str) -> None:
        """A worker was reaped, or could not be started."""
        if worker in self.core.workers:
            self.core.exited(worker, how)
            self._carry_out()

    def guard_ended(self, guard_: SimGuard) -> None:
        """A guard is dead, and with it all workers that it had."""
        workers, guard_.workers = [*guard_.workers, *sorted(guard_.wanted)], {}
        for worker in workers:
            self.ended(worker, "its guard has ended")
        if guard_ is self.guard:
            self._new_guard()
            deadline_s = self.core.lease.deadline_s
            if deadline_s is not None and self.core.lease.holds(self.machine.clock_s()):
                self.guard.tell(deadline_s)

    def _new_guard(self) -> None:
        before = self.guard
        self.guard = self.machine.new_guard()
        before.post(before.die, "its host has hung up")

    # -- effects --------------------------------------------------------------

    def _carry_out(self) -> None:
        for effect in wanted(self.core):
            self._effect(effect)

    def _effect(self, effect: HostEffect) -> None:
        match effect:
            case FromHost(frames):
                for message in of_host(frames) if is_kind(frames, HostBeat) else ():
                    if isinstance(message, HostBeat):
                        self.world.happened(
                            "beat", self.machine.label, "", message.membership, message.beat
                        )
                self.world.network.send(self.link, frames, up=True)
            case Spawn():
                self.guard.wanted.add(effect.worker)
                self.guard.post(self.guard.start, self, effect)
            case TellWorker(worker, frames):
                self.events.after(PIPE_S, self._tell, worker, frames)
            case Kill(worker, why):
                self.guard.post(self.guard.kill, worker, why)
            case SetDeadline(deadline_s):
                self.guard.tell(deadline_s)
            case NewGuard():
                self._new_guard()
            case Report(_, text):
                self.events.note(self.name, text)
            case Serve():
                pass

    def _tell(self, worker: bytes, frames: Frames) -> None:
        if (told := self.guard.workers.get(worker)) is not None:
            told.take_in(frames)

    def die(self, how: str) -> None:
        """The process is dead: its keeper sees that, and kills the guard."""
        if self.alive:
            super().die(how)
            self.world.network.close(self.link)
            self.events.after(self.rng.uniform(0.0, 0.1), self.machine.keeper_sees)


# -- a hostile client --------------------------------------------------------------------


class HostileClient(VirtualProcess):
    """Sends a random message, about ten times a second."""

    def __init__(self, world: World) -> None:
        super().__init__(world.events, "hostile", world.luck_of("hostile"))
        self.world = world
        self.link: SimulatedLink | None = None
        self.session = b""
        self._sent: list[tuple[bytes, bytes]] = []
        self._count = 0
        self._act()

    def cut_off(self) -> None:
        """The connection is gone."""
        self.link = None

    def take_in(self, frames: Frames) -> None:
        """A message has arrived."""
        message, _ = said_in(frames)[0]
        if isinstance(message, messages.Welcome):
            self.session = message.session
            self._sent.clear()
        elif isinstance(message, messages.Unknown) and message.session == self.session:
            self.session = b""

    def _act(self) -> None:
        if self.world.network.calm or not self.alive:
            return
        network = self.world.network
        if self.link is None:
            self.link = network.connect(self, network.new_route(), CLIENT)
        for frames in self._thoughts():
            network.send(self.link, frames, up=True)
        self.events.after(self.rng.uniform(0.02, 0.2), self._act)

    def _thoughts(self) -> list[tuple[Body, ...]]:
        rng = self.rng
        if not self.session:
            nonce = self.world.new_id()
            version = PROTOCOL_VERSION + (rng.random() < 0.1)
            hello = messages.Hello(version, nonce, 1, "x" * 100, 1 << 20, nonce)
            return [(messages.encode(hello),)]
        self.world.faults[FaultKind.HOSTILE] += 1
        sequence = rng.randint(0, 60)
        match rng.randint(0, 12):
            case 0 | 1 | 2:
                return self._request(sequence)
            case 3:
                return [rng.choice(self._sent)] if self._sent else []
            case 4:
                finish = messages.Finish(self.session, [sequence, sequence + rng.randint(1, 9)])
                return [(messages.encode(finish),), *self._request(sequence)]
            case 5:
                cancel = messages.encode(messages.Cancel(self.session, sequence))
                return [(cancel,), *self._request(sequence)]
            case 6:
                start = rng.randint(0, 1 << 30)
                cancels = (messages.Cancel(self.session, start + 2 * n) for n in range(30))
                return [(messages.encode(cancel),) for cancel in cancels]
            case 7:
                garbage = bytearray(messages.encode(messages.Cancel(self.session, sequence)))
                garbage[rng.randrange(len(garbage))] ^= 1 << rng.randrange(8)
                return [(bytes(garbage),), (rng.randbytes(rng.randint(0, 20)),), ()]
            case 8:
                holes = [n for n in range(0, 2 * rng.randint(1, 90), 2) for n in (n, n + 1)]
                sync = messages.Sync(
                    self.session, self.world.new_id(), 1, 0, rng.randint(0, 200), holes
                )
                return [(messages.encode(sync),)]
            case 9:
                whose = self.world.new_id()  # it cannot know anybody's
                finish = messages.Finish(whose, [0, 1 << 20])
                return [(messages.encode(finish),), (messages.encode(messages.Goodbye(whose)),)]
            case 10:
                return [self._hello(self.world.new_id()) for _ in range(8)]
            case 11:
                nonce = self.world.new_id()
                goodbye = messages.encode(messages.Goodbye(nonce))
                return [self._hello(nonce), (goodbye,), self._hello(nonce)]
            case _:
                start = rng.randint(0, 1 << 30)
                return [*self._request(start), (messages.encode(
                    messages.Cancel(self.session, start)),)]  # fmt: skip

    def _hello(self, nonce: bytes) -> tuple[Body, ...]:
        hello = messages.Hello(PROTOCOL_VERSION, nonce, 1, "hostile", 1 << 20, nonce)
        return (messages.encode(hello),)

    def _request(self, sequence: int) -> list[tuple[Body, ...]]:
        """A request of its own body: a conflict if the sequence was used."""
        self._count += 1
        body = f"h:{self._count}|return|0.05|".encode()
        header = messages.encode(
            messages.Request(self.session, sequence, self.world.new_id(), False, 1, None)
        )
        self._sent.append((header, body))
        return [(header, body)]


# -- the world ---------------------------------------------------------------------------


RESOURCES_S = 120.0
"""Virtual time in which all tries to destroy a resource come to an end, hanging ones included."""

CALM_S = 45.0
"""Virtual time after the last fault in which everything must come to rest, the
work itself not counted: longer than a lease and than a client waits for a server."""


class World(BaseWorld[FaultKind]):
    """Everything that there is in a run; its plan is the seed's, or the one given."""

    network: SimulatedNetwork

    def __init__(
        self, seed: int, *, harsh: bool = False, trace: bool = False,
        plan: SimulationPlan | None = None,
    ) -> None:  # fmt: skip
        super().__init__(Events(b"".join, trace=trace))
        self.plan = plan or plan_of(seed, harsh=harsh)
        self.seed = seed * 2 + self.plan.harsh
        self.rng = self.luck_of("world")
        self.wire = WireLimits(message_bytes=self.plan.message_bytes)
        self.faults: Counter[FaultKind] = Counter()
        self.pairs: Counter[Pair] = Counter()
        self._judges = Judges(self.plan)
        self.judge = self._judges.guarantees
        self.violations: list[Violation] = []
        rates = Rates(self.plan.delay_s, self.plan.loss, self.plan.mangle)
        self.network = SimulatedNetwork(self.events, rates)
        self.grouped = self.luck_of("grouped").random() < 0.5
        """Whether what is ready in one turn for one peer travels together."""
        self.worker_by_incarnation: dict[Incarnation, SimWorker] = {}
        self.spawned: dict[Incarnation, tuple[SimServer, str]] = {}
        """Of each worker that a host was to start: whose it is, and how events name it."""
        self.epoch_records: tuple[EpochWait, ...] = ()
        """The records of servers with hosts for their successors."""
        self.counter = itertools.count(1)
        self._looked_after: set[Membership] = set()
        self.claimed = 0
        """Number of claims that were ever made; each has a number of its own."""
        self.servers: list[SimServer] = []
        self.disk = (
            SimulatedDisk(self.luck_of("disk")) if self.plan.has(FaultKind.JOURNAL) else None
        )
        self.start_server()
        hosts = self.plan.hosts
        count = 0 if hosts is None else len(hosts.workers)
        self.machines = [] if hosts is None else [
            SimulatedMachine(self, index, hosts) for index in range(2 * count)
        ]  # fmt: skip
        for machine in self.machines[:count]:
            machine.start()
            self.faults[FaultKind.HOSTS] += 1
        self.faults[FaultKind.NO_LEASE] += hosts is not None and not hosts.proves
        self.clients = [SimClient(self, index, asks) for index, asks in enumerate(self.plan.asks)]
        if self.plan.has(FaultKind.HOSTILE):
            HostileClient(self)
        self.schedule(self.plan.moments, self.plan.busy_s)

    def luck_of(self, name: str) -> Random:
        """A source of its own for each who draws: see :class:`.world.VirtualProcess`."""
        return Random(f"{self.seed}/{name}")

    def new_id(self) -> bytes:
        """128 bits that are random in the world."""
        return self.rng.randbytes(16)

    # -- what is judged -------------------------------------------------------

    def happened(self, kind: str, who: str, key: str = "", *what: Any) -> None:
        """Give an event to the judge."""
        for violation in self._judges.see(Event(self.events.now_s, kind, who, key, what)):
            self._broke(violation)

    def breaks(self, guarantee: str, text: str) -> None:
        """A bound does not hold, or a core does what it cannot."""
        self._broke(Violation(guarantee, self.events.now_s, text))

    def _broke(self, violation: Violation) -> None:
        self.violations.append(violation)
        self.events.note("VIOLATION", violation)

    # -- the environment ------------------------------------------------------

    def declares_rerun(self, rng: Random) -> bool:
        """The environment's word on reruns in a worker that starts now."""
        return self.plan.declares_rerun != self.strikes(FaultKind.FLIP_RERUN, 0.5, rng)

    def may_declare_rerun(self) -> bool:
        """Whether a call that leaves it to the environment may run again."""
        return self.plan.declares_rerun or self.plan.has(FaultKind.FLIP_RERUN)

    # -- servers --------------------------------------------------------------

    @property
    def server(self) -> SimServer:
        """The newest server, dead or alive."""
        return self.servers[-1]

    def start_server(self) -> None:
        """A new life at the same address; it listens at once."""
        server = SimServer(self, len(self.servers))
        self.servers.append(server)
        self.network.server = server

    def end_server(self, server: SimServer, how: str, pause_s: float) -> None:
        """The server's process is dead: so are its links, soon its workers, and
        after a pause there is a new one."""
        if not server.alive:
            return
        server.die(how)
        if self.disk is not None:
            self.disk.crash()
            self.happened("fell", server.name, "", self.disk.records)
        links = [link for of_kind in server.links.values() for link in of_kind.values()]
        for link in links:
            self.network.cut(link)
        for worker in server.workers.values():
            if worker.alive:
                linger_s = self.rng.uniform(0.0, self.plan.linger_s)
                self.events.after(linger_s, worker.die, "its server is dead")
        self.events.after(pause_s, self.start_server)

    def all_dead_but(self, server: SimServer) -> bool:
        """Whether this server gets the lock: every earlier process is dead."""
        return not any(
            earlier.alive or any(worker.alive for worker in earlier.workers.values())
            for earlier in self.servers
            if earlier is not server
        )

    def dead_epochs(self, server: SimServer) -> frozenset[Epoch]:
        """The epochs before this server's."""
        return frozenset(s.epoch for s in self.servers if s is not server)

    # -- clients --------------------------------------------------------------

    def come_back(self, client: SimClient, asks: tuple[PlannedAsk, ...]) -> None:
        """A client's process has ended, and another one asks for the rest."""
        index = self.clients.index(client)
        again = SimClient(self, index, asks, life=client.life + 1)
        self.clients[index] = again

    # -- faults ---------------------------------------------------------------

    def strikes(self, fault: FaultKind, chance: float, rng: Random) -> bool:
        """Whether a fault of this kind happens here and now to who asks, by its luck."""
        if not self.plan.has(fault) or self.network.calm or rng.random() >= chance:
            return False
        self.faults[fault] += 1
        return True

    def struck(self, fault: FaultKind) -> bool:
        """A fault that happens at a moment, to whoever is there."""
        rng = self.rng
        if fault.of == "host":
            return self._struck_host(fault)
        client = rng.choice(self.clients)
        whom = self._whom(fault, client)
        if whom is None:
            return False
        self.faults[fault] += 1
        self.events.note("fault", f"{fault.value}: {whom.name}")
        match fault:
            case FaultKind.CUT_CLIENT:
                self.network.cut(client.link)
            case FaultKind.CUT_LONG:
                client.away_s = rng.uniform(1.0, 8.0)
                self.network.cut(client.link)
            case FaultKind.HALF_OPEN if client.link is not None:
                self.network.silence(client.link, rng.uniform(1.0, 4.0))
            case FaultKind.CUT_WORKER if isinstance(whom, SimWorker):
                self.network.cut(whom.link)
            case FaultKind.KILL_WORKER:
                whom.die("killed")
            case FaultKind.STOP_WORKER:
                self._stop(whom, rng.uniform(0.5, 4.0))
            case FaultKind.KILL_SERVER:
                self.end_server(self.server, "killed", rng.uniform(0.3, 3.0))
            case FaultKind.RESTART_FAST:
                self.end_server(self.server, "killed", rng.uniform(0.001, 0.05))
            case FaultKind.STOP_SERVER:
                for_s = rng.uniform(0.5, 9.0)
                self._stop(whom, for_s)
                if self.plan.hosts is not None and rng.random() < 0.3:  # its machine sleeps
                    self.server.slept_s += for_s
            case FaultKind.DRAIN_SERVER:
                self.server.post(self.server.stop)
            case FaultKind.KILL_CLIENT:
                client.die("killed")
            case FaultKind.CLOSE_CLIENT:
                client.post(client.close)
            case FaultKind.STOP_CLIENT:
                self._stop(whom, rng.uniform(0.5, 8.0))
            case FaultKind.SUSPEND:
                for_s = rng.uniform(1.0, 9.0)
                for process in (*self.clients, *self.servers, *workers_of(self.servers)):
                    self._stop(process, for_s + rng.uniform(0.0, 0.05))
            case FaultKind.CANCEL_STORM:
                client.post(client.cancel_all)
            case _:
                pass
        return True

    def _struck_host(self, fault: FaultKind) -> bool:
        """A fault of a host, which lasts for part of a lease or for some of them."""
        rng, hosts = self.rng, self.plan.hosts
        assert hosts is not None
        fence_s = hosts.terms(len(self.servers) - 1).fence_s if hosts.proves else 10.0
        for_s = rng.choice((0.2, 0.5, 1.0, 1.5, 2.5)) * fence_s * rng.uniform(0.8, 1.2)
        machine = rng.choice([each for each in self.machines if each.is_wanted])
        host, guard_ = machine.host, machine.guard
        if host is None or guard_ is None or not host.alive or machine.asleep:
            return False
        self.faults[fault] += 1
        self.events.note("fault", f"{fault.value}: {machine.label}")
        match fault:
            case FaultKind.CUT_HOST:
                self._cut(machine, (True, False), for_s)
            case FaultKind.CUT_HOST_UP:
                self._cut(machine, (True,), for_s)
            case FaultKind.CUT_HOST_DOWN:
                if hosts.proves and machine is self.machines[0] and rng.random() < 0.3:
                    for_s = FOR_GOOD_S  # of one host, so that the others can do all that there is
                self._cut(machine, (False,), for_s)
            case FaultKind.RECONNECT_HOST:
                self.network.cut(host.link)
            case FaultKind.SLEEP_HOST:
                machine.sleep()
                self.events.after(for_s, machine.wake)
            case FaultKind.STOP_HOST:
                self._stop(host, for_s)
            case FaultKind.STOP_GUARD:
                self._stop(guard_, for_s)
            case FaultKind.STOP_MACHINE:
                for process in machine.processes():
                    self._stop(process, for_s)
            case FaultKind.KILL_HOST:
                machine.kill(for_s * 0.2)
            case FaultKind.COPY_HOST:
                at = self.machines.index(machine)
                self.machines[at % len(hosts.workers) + len(hosts.workers)].start()
        return True

    def _cut(self, machine: SimulatedMachine, ways: Iterable[bool], for_s: float) -> None:
        """Nothing passes these ways; afterwards the connection is perhaps a new one."""

        def end(way: bool) -> None:
            machine.cuts[way] -= 1
            if machine.host is not None and self.rng.random() < 0.5:
                self.network.cut(machine.host.link)

        for way in ways:
            machine.cuts[way] += 1
            self.events.after(for_s, end, way)

    def look_after(self, host: str, membership: Membership) -> None:
        """Somebody sees that a host is set aside, and starts it anew."""
        for machine in self.machines:
            if machine.name == host and membership not in self._looked_after:
                self._looked_after.add(membership)
                self.events.after(1.0, machine.kill, 0.1)

    def _whom(self, fault: FaultKind, client: SimClient) -> VirtualProcess | None:
        """Whom it can strike now: somebody alive, and connected where that is cut."""
        whom: VirtualProcess = client
        match fault.of:
            case "connection" if client.link is None:
                return None
            case "worker" | "link":
                workers = list(self.server.workers.values())
                workers += hosted_by(self.machines) if fault.of == "worker" else []
                workers = [w for w in workers if w.alive and (w.link or fault.of == "worker")]
                if not workers:
                    return None
                whom = self.rng.choice(workers)
            case "server":
                whom = self.server
        return whom if whom.alive else None

    def _stop(self, whom: VirtualProcess, for_s: float) -> None:
        """SIGSTOP, and SIGCONT later."""
        whom.hold("stopped")
        self.events.after(for_s, whom.release, "stopped")

    def release(self) -> None:
        """No more faults: what is stopped continues, what is half open is cut."""
        for process in (*self.clients, *self.servers, *workers_of(self.servers)):
            process.release("stopped")
        for machine in self.machines:
            while machine.asleep:
                machine.wake()
            for each in machine.processes():
                each.release("stopped")
            if machine.label != machine.name:  # of two with one name one is to end
                machine.is_wanted = False
                machine.kill(0.0)
        for client in self.clients:
            if client.link is not None and client.link.half_open:
                self.network.cut(client.link)

    # -- the run --------------------------------------------------------------

    def away(self) -> list[str]:
        """Hosts that can reach their server, and are not welcome there."""
        return [
            f"host {machine.label} has not joined"
            for machine in self.machines
            if machine.is_wanted and not any(machine.cuts)
            if machine.host is None or not machine.host.core.lease.deadline_s
        ]

    def left(self) -> list[str]:
        """The parts that have not come to rest."""
        if not self.network.calm:
            return ["faults go on"]
        if not self.server.alive or not self.server.locked:
            return ["no server runs"]
        left = unfinished(self.server.router)
        for client in self.clients:
            if client.alive:
                left += unanswered(client.name, client.core)
            if client.has_more():
                left.append(f"client {client.name} has more to ask")
        left += self.away()
        if any(self.judge.live()):
            left.append("environment code still runs")
        return left

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Until everything is at rest, or should be; or until this says so."""
        work_s = sum(ask.duration_s for asks in self.plan.asks for ask in asks)
        hosts_s = 0.0 if self.plan.hosts is None else 4 * self.plan.hosts.longest_s
        permits_s = 0.0 if self.plan.permits is None else CALM_S
        if self.plan.has(FaultKind.RESOURCES):
            permits_s += RESOURCES_S
        if not self.to_rest(CALM_S + work_s + hosts_s + permits_s, until):
            return
        if self.plan.has(FaultKind.RESOURCES) and self.server.alive:
            stuck = frozenset(each.name for each in self.server.router.resources.stuck)
            self.happened("stuck", self.server.name, "", stuck)
        left = self.left()
        for violation in self._judges.rest(self.events.now_s):
            self._broke(violation)
        away = self.away()
        for holdup in left:
            self.breaks("G9" if holdup in away else "G8", holdup)
        for pair in IMPOSSIBLE.keys() & self.pairs.keys():
            self.breaks("CRASH", f"{name_of(pair)}: {IMPOSSIBLE[pair]}, and it was")

    def times(self) -> dict[str, int]:
        """How often each kind of fault struck, by what people call it."""
        times = self.faults + Counter(
            {FaultKind.LOSE: self.network.lost, FaultKind.MANGLE: self.network.mangled}
        )
        return {fault.value: times[fault] for fault in FaultKind if times[fault]}


def hosted_by(machines: Iterable[SimulatedMachine]) -> list[SimWorker]:
    """The workers of hosts that are not reaped."""
    return [each for m in machines if m.guard is not None for each in m.guard.workers.values()]


def workers_of(servers: list[SimServer]) -> list[SimWorker]:
    """Every worker that these have ever started."""
    return [worker for server in servers for worker in server.workers.values()]
