"""The actors of a world: what they do around the cores that ship, as the real shells do it.

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

*A hostile client* keeps to no rule: garbage, conflicts, late duplicates, holes.  It has a session
of its own, and may do with it what it likes; nobody else may suffer, and the guarantees hold for
it, too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

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
from ...core.closing import ClosingStage
from ...core.errors import ErrorInfo
from ...core.executions import Execution
from ...core.journal import Closed as ClosedGeneration
from ...core.journal import Completed, Record
from ...core.key_records import KeyAct, KeyName, input_digest
from ...core.limits import PROTOCOL_VERSION
from ...core.messages import encode_record
from ...core.rested import left_at_rest
from ...core.restored import remains_of
from ...core.router import Router
from ...core.router_effects import (
    Closed,
    Flush,
    Kill,
    Load,
    Lost,
    Report,
    RouterEffect,
    Save,
    Spawn,
    TellStats,
    ToClient,
    ToWorker,
)
from ...core.router_inputs import (
    AtRest,
    ClientMessage,
    CloseAsked,
    Exited,
    Flushed,
    HeartbeatFelt,
    Loaded,
    PoolOpened,
    Restored,
    Resume,
    Saved,
    Spawned,
    Tick,
    WorkerMessage,
)
from ...core.terms import Body, RequestId, Status, Verdict
from ...core.worker import WorkerCore
from ...core.worker_effects import CancelRun, Exit, Park, Run, ToRouter, WorkerEffect
from ...core.worker_inputs import (
    BeatDue,
    EnvironmentReady,
    OutcomeMade,
    OutcomeParked,
    RouterMessage,
    SetUpFailed,
    WorkerInput,
)
from ...retrylab.world import Process
from .bounds import at_a_bound, audit, crowded, greedy
from .coverage import count_key_pairs, count_pairs
from .judges import key_of
from .junk import KINDS, spoilt
from .network import Frames, Link, Outgoing, SimProcess, said_in
from .plan import Ask, Fault

if TYPE_CHECKING:
    from .simulator import World


# -- the disk ----------------------------------------------------------------------------

Group: TypeAlias = tuple[Record, ...]

LUCK = (0.0, 0.5, 0.9, 1.0)
"""How likely a row is whole after a crash; drawn for each crash."""


class Disk:
    """One journal, of one server after the other."""

    def __init__(self, rng: Random) -> None:
        self.records: list[Record] = []
        """Those that are safe."""
        self.writes = 0
        """Groups that were ever written."""
        self._written: list[Group] = []
        """Since the last sync, the oldest first."""
        self._rng = rng

    @property
    def dirty(self) -> int:
        """How many groups are written and not safe."""
        return len(self._written)

    def write(self, group: Group) -> None:
        """One more group."""
        self.writes += 1
        self._written.append(group)

    def sync(self, groups: int) -> list[Record]:
        """So many groups are safe from now on, the oldest first: their records."""
        synced = [record for group in self._written[:groups] for record in group]
        del self._written[:groups]
        self.records += synced
        return synced

    def crash(self) -> list[Record]:
        """The records written since the last sync that can be taken over."""
        luck = self._rng.choice(LUCK)
        whole = 0
        for group in self._written:
            rows = [self._rng.random() < luck for _ in group]
            if not all(rows):
                break
            whole += 1
        kept = self.sync(whole)
        self._written.clear()
        return kept


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
        left.opened.number: left_at_rest(left)
        for left in remains.generations.values() if left.frames is not None
    }  # fmt: skip
    resting = {number for number, each in packed.items() if each is not None}
    kept: list[Record] = [each for each in records if getattr(each, "number", None) not in resting]
    if remains.next_number:
        kept.insert(0, ClosedGeneration(remains.next_number - 1))
    return kept, [each for each in packed.values() if each is not None]


class SimJournal:
    """Writes what its router says, syncs it, and says how much is safe."""

    def __init__(self, server: SimServer, disk: Disk) -> None:
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
        world.faults[Fault.JOURNAL] += 1
        self._disk.write(save.records)
        self._upto.append(save.upto)
        world.happened("wrote", self._server.name, "", save.records)
        if self._disk.writes == world.plan.crash_at_write or world.strikes(
            Fault.CRASH_AT_WRITE, CRASHES, self._rng
        ):
            world.end_server(self._server, "killed", self._rng.uniform(0.01, 1.0))
        elif not self._syncing:
            self._begin()

    def load(self, load: Load) -> None:
        """An outcome is read, some time later; a server that dies meanwhile never has it."""
        self._world.happened("reads", self._server.name, "", load.number)
        for_s = self._rng.uniform(*READ_S)
        if self._world.strikes(Fault.SLOW_DISK, SLOW, self._rng):
            for_s += self._rng.uniform(0.3, 3.0)
        self._events.after(for_s, self._loaded, load.number)

    def _loaded(self, number: int) -> None:
        if not self._server.alive:
            return
        frames: tuple[Body, ...] = ()
        if self._world.strikes(Fault.DAMAGED_READ, DAMAGED, self._damage):
            self._world.happened("damaged", self._server.name, "", number)
            self._server.post(self._server.loaded, number, frames, "its checksum is wrong")
            return
        for record in self._disk.records:
            if isinstance(record, Completed) and record.number == number:
                frames = record.frames
            elif isinstance(record, ClosedGeneration) and record.number == number:
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
        if world.strikes(Fault.SLOW_DISK, SLOW, self._rng):
            for_s += self._rng.uniform(0.3, 3.0)
        self._events.after(for_s, self._synced, self._disk.dirty)

    def _synced(self, groups: int) -> None:
        server = self._server
        if not server.alive:
            return
        upto = self._upto[groups - 1]
        del self._upto[:groups]
        self._world.happened("synced", server.name, "", self._disk.sync(groups))
        self._syncing = False
        if self._disk.dirty:
            self._begin()
        server.post(server.saved, upto)


# -- workers -----------------------------------------------------------------------------

INSTANT_S = 1e-7
"""Moments that are no further apart are one."""

TOGETHER_S = 0.1
"""In worlds where messages are grouped, executions end at multiples of this."""


class Running(NamedTuple):
    """An execution, as its worker has it."""

    key: str
    request: RequestId


class SimWorker(SimProcess):
    """One worker process: heartbeat, worker core, and the environment's code."""

    def __init__(self, world: World, server: SimServer, spawn: Spawn) -> None:
        name = f"{server.name}/{spawn.worker.decode()}"
        super().__init__(world, name)
        self.server = server
        world.happened("is", name, "", {"server": server.name})
        self.id = spawn.worker
        self.slot = spawn.slot
        self.core = WorkerCore(
            spawn.incarnation, header_bytes=1 << 20,
            announce_bytes=world.plan.server.announce_bytes,
            most_held_bytes=world.plan.server.worker_held_bytes,
        )  # fmt: skip
        self.link: Link | None = None
        self._outgoing = Outgoing(world.network, grouped=world.grouped)
        self._running: dict[int, Running] = {}
        self._ignoring: set[int] = set()
        self._huge: set[int] = set()
        self._reported: list[Running] = []
        self._blocked_s: float | None = None
        self.set_up_s: float | None = None
        """When its environment was set up."""
        self.junk = ""
        """Way in which its messages are spoilt; empty if they are not."""
        world.worker_by_incarnation[spawn.incarnation] = self
        world.network.worker_named[spawn.worker] = self
        self._connect()
        self._heartbeat()
        self._set_up()

    def _set_up(self) -> None:
        delay_s = self.rng.uniform(0.05, 0.6)
        if self.world.strikes(Fault.SLOW_START, 0.3, self.rng):
            return
        if self.world.strikes(Fault.KILL_EARLY, 0.3, self.rng):
            self.events.after(delay_s, self.die, "killed before its hello")
        elif self.world.strikes(Fault.SET_UP_FAILS, 0.2, self.rng):
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
        self._beat()

    def _beat(self) -> None:
        if not self.alive:
            return
        if not self.held:
            self._state()
        self.events.after(1.0, self._beat)

    def _state(self) -> None:
        if not self.junk and self.world.strikes(Fault.JUNK, 0.2, self.rng):
            self.junk = self.rng.choice(sorted(KINDS))
            self.events.note(self.name, f"sends {self.junk} from now on")
            self.world.happened("is", self.name, "", {"junk": self.junk})
        if not self.core.acknowledged:
            rerun = self.world.declares_rerun(self.rng)
            self._take(EnvironmentReady(1, "simulated", rerun))
        self._take(BeatDue({}))
        while self.world.strikes(Fault.CONFUSED_WORKER, 0.6, self.rng):
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
        if "stopped" not in self._holds:
            lag_s = 0.0 if self._blocked_s is None else self.events.now_s - self._blocked_s
            self.server.post(self.server.heartbeat, self.id, lag_s)
        self.events.after(self.world.plan.server.heartbeat_s, self._heartbeat)

    # -- its link -------------------------------------------------------------

    def _connect(self) -> None:
        if not self.alive:
            return
        self.link = self.world.network.connect(self, self.id, worker=True)
        if self.link is None:
            self.events.after(self.rng.uniform(0.05, 0.3), self._connect)

    def cut_off(self) -> None:
        """The connection is gone: another is made, perhaps to another server."""
        self.link = None
        self.events.after(self.rng.uniform(0.01, 0.3), self._connect)

    def take_in(self, frames: Frames) -> None:
        """A message has arrived."""
        self.post(self._message, frames)

    def _message(self, frames: Frames) -> None:
        effects = self.core.take(RouterMessage(frames))
        if frames[0] == self.core.incarnation and len(frames) == 2:
            for message, _ in said_in(frames, 1):
                self.world.happened("arrived", self.name, "", message)
        self._do(effects)

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
                case Run():
                    self._run(effect)
                case CancelRun():
                    self._cancel(effect.number)
                case Park():
                    copy = memoryview(bytes(effect.payload))
                    delay_s = self.rng.uniform(0.0, 0.5)
                    parked = OutcomeParked(effect.number, copy)
                    self.events.after(delay_s, self.post, self._take, parked)
                case Exit():
                    self.events.after(0.1, self.die, "retired")
        if self.world.grouped:  # what ends in the same instant is said together
            self.events.after(INSTANT_S, self.post, self._leave)

    def _leave(self) -> None:
        self._outgoing.leave(up=True)

    def _send(self, frames: Frames) -> None:
        if frames:
            self.world.network.send(self.link, frames, up=True)

    def _run(self, run: Run) -> None:
        key, behaviour, duration, _ = bytes(run.body).decode().split("|", 3)
        if self.set_up_s is None:
            self.world.breaks("G5", f"{key} starts before its environment is set up")
        self.events.note(self.name, f"runs {key} ({behaviour}) as {run.number}")
        self.world.happened("began", self.name, key, run.request, run.number)
        self._running[run.number] = Running(key, run.request)
        duration_s = float(duration)
        if self.world.grouped:  # some end together
            now_s = self.events.now_s
            duration_s = math.ceil((now_s + duration_s) / TOGETHER_S) * TOGETHER_S - now_s
        if behaviour == "block":
            self.world.faults[Fault.BLOCK_LOOP] += 1
            self._blocked_s = self.events.now_s
            self.hold("blocked")
            self.events.after(duration_s, self._unblock, run.number)
        elif behaviour == "hang":
            self.world.faults[Fault.HANG] += 1
        elif behaviour == "kill" or (behaviour == "kill-sometimes" and self.rng.random() < 0.6):
            self.world.faults[Fault.POISON] += 1
            self.events.after(duration_s, self._killed_by, run.number)
        else:
            if behaviour == "ignore":
                self._ignoring.add(run.number)
            elif behaviour == "huge":
                self.world.faults[Fault.HUGE] += 1
                self._huge.add(run.number)
            failed = behaviour == "raise"
            self.events.after(duration_s, self.post, self._ends, run.number, failed)
            if behaviour == "last-words":
                self.world.faults[Fault.KILL_AFTER_OUTCOME] += 1
                self.events.after(duration_s + 1e-6, self.die, "killed after an outcome")

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
        self.world.happened("stops", self.name, execution.key, number)
        self.events.note(self.name, f"{execution.key} is cancelled")
        if number in self._ignoring:
            self.world.faults[Fault.IGNORE_CANCEL] += 1
            return
        delay_s = self.rng.uniform(0.0, 0.1)
        self.events.after(delay_s, self.post, self._report, number, Status.CANCELLED)

    def _ends(self, number: int, failed: bool) -> None:
        self._report(number, Status.ERROR if failed else Status.RESULT)

    def _report(self, number: int, status: Status) -> None:
        execution = self._running.pop(number, None)
        if execution is None:
            return
        payload = f"{execution.key} by {self.name} as {number}".encode()
        if number in self._huge:
            payload += bytes(self.world.plan.message_bytes)
        if status is not Status.RESULT:
            code = "rollout-failed" if status is Status.ERROR else "cancelled"
            payload = error_records.encode(
                ErrorInfo(code, Verdict.RAN_AND_FAILED, payload.decode())
            )
        self.events.note(self.name, f"{execution.key} ends: {status.name}")
        self._reported.append(execution)
        self.world.happened("ended", self.name, execution.key, number, status, payload)
        self._take(OutcomeMade(number, status, payload, 0.0))

    def die(self, how: str) -> None:
        """The process is dead; its server reaps it a moment later."""
        if not self.alive:
            return
        super().die(how)
        self.world.network.close(self.link)
        if self.server.alive:
            late = self.world.strikes(Fault.SLOW_DEATH, 0.4, self.rng)
            delay_s = self.rng.uniform(1.0, 3.0) if late else self.rng.uniform(0.0, 0.1)
            self.events.after(delay_s, self.server.post, self.server.reaped, self.id, how)


# -- clients -----------------------------------------------------------------------------


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


# -- servers -----------------------------------------------------------------------------


class SimServer(SimProcess):
    """One life of a server: a router, its tick, and the worker processes it starts."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, f"server{number}")
        self.epoch = world.new_id()
        self.client_links: dict[bytes, Link] = {}
        self.worker_links: dict[bytes, Link] = {}
        self.workers: dict[bytes, SimWorker] = {}
        self.locked = False
        self.peak_live = 0
        """The most executions at once since what is kept was last below its bounds."""
        self._catching_up = False
        self._outgoing = Outgoing(world.network, grouped=world.grouped)
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
        )  # fmt: skip
        self._journal = None if world.disk is None else SimJournal(self, world.disk)
        count_pairs(self.router.cache, world.pairs)
        count_key_pairs(self.router.keys, world.key_pairs)
        self.events.note(self.name, "starts")
        if world.disk is not None:
            records, at_rest = given(world.disk.records)
            self._carry_out(self.router.take(Restored(records, self.events.now_s)))
            self._carry_out(self.router.take(AtRest(at_rest, self.events.now_s)))
        self._clock()

    # -- what comes in ----------------------------------------------------------

    def take_in(self, link: Link, frames: Frames) -> None:
        """A message has arrived."""
        self.post(self._from_worker if link.worker else self._from_client, link, frames)

    def _from_client(self, link: Link, frames: Frames) -> None:
        effects = self.router.take(ClientMessage(link.route, frames, self.events.now_s))
        for message, body in said_in(frames):
            self.world.happened("heard", self.name, "", link.peer.name, message, body)
        self._carry_out(effects)
        self.world.happened("dealt", self.name)

    def _from_worker(self, link: Link, frames: Frames) -> None:
        speaker = link.peer
        if isinstance(speaker, SimWorker) and speaker.junk and speaker.server is not self:
            return  # the stream of a process is no other's, whatever it says of its name
        worker = self.world.worker_by_incarnation.get(bytes(frames[0]))
        if worker is not None and worker.server is self and len(frames) == 4:
            for message, _ in said_in(frames, 2):
                self.world.happened("reported", worker.name, "", message)
        given = WorkerMessage((link.route, *frames), self.events.now_s)
        self._carry_out(self.router.take(given))

    def heartbeat(self, worker: bytes, lag_s: float) -> None:
        """A sign of life, through the worker's own pipe."""
        given = HeartbeatFelt(worker, self.events.now_s, lag_s, 1 << 20, "somewhere")
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
        if not self.locked and self.world.all_dead_but(self):
            self.locked = True
            self.world.happened("is", self.name, "", {"locked": True})
            effects += self.router.take(PoolOpened(self.world.dead_epochs(self), now_s))
        effects += self.router.take(Tick(now_s))
        self._carry_out(effects)
        self._count_bounds()
        self.world.happened("ticked", self.name)
        self._ticks += 1
        if self._ticks % 4 == 0:
            for wrong in audit(self.router, self.peak_live):
                self.world.breaks("G8", wrong)
        if not at_a_bound(self.router):
            self.peak_live = self.router.workforce.live_count()

    def _count_bounds(self) -> None:
        """Count the waits that tiny bounds, or workers that still start, have caused."""
        cache, plan = self.router.cache, self.world.plan
        if self.router.pool.spreads(self.router.awake_s):
            self.world.faults[Fault.SPREAD] += bool(cache.queued_count)
        refused = cache.counters.refused_for_now
        if plan.has(Fault.TINY_BOUNDS):
            paused = cache.queued_count and not cache.may_dispatch()
            self.world.faults[Fault.TINY_BOUNDS] += refused - self._refused + bool(paused)
        if plan.has(Fault.SHORT_LEASE):
            self.world.faults[Fault.SHORT_LEASE] += self._lapsed
        self._refused, self._lapsed = refused, 0

    def stop(self) -> None:
        """SIGTERM: close, with a drain or without; perhaps another signal hurries it."""
        stage = self.rng.choice([ClosingStage.DRAINING] * 3 + [ClosingStage.CANCELLING])
        self._close(stage)
        if self.rng.random() < 0.3:
            hurry = ClosingStage.KILLING
            self.events.after(self.rng.uniform(0.0, 2.0), self.post, self._close, hurry)

    def _close(self, stage: ClosingStage) -> None:
        self.world.happened("closing", self.name)
        self._carry_out(self.router.take(CloseAsked(self.events.now_s, stage)))

    def _flush(self) -> None:
        self._carry_out(self.router.take(Flushed(self.events.now_s)))

    # -- effects --------------------------------------------------------------

    def _carry_out(self, effects: list[RouterEffect]) -> None:
        world = self.world
        started = self._started()
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
                    world.happened("commanded", self.workers[name].name, "", message, body)
                    link = self.worker_links.get(name)
                    self._outgoing.say(link, (message, body), (incarnation,), up=False)
                case Spawn():
                    self._spawn(effect)
                case Kill():
                    worker = self.workers[effect.worker]
                    world.happened("kills", self.name, "", worker.name, effect.why)
                    world.events.after(self.rng.uniform(0.0, 0.05), worker.die, effect.why)
                case Lost():
                    self.events.note(self.name, f"takes {effect.worker.decode()} for dead")
                    world.happened("lost", self.workers[effect.worker].name)
                case Save():
                    assert self._journal is not None
                    self._journal.save(effect)
                case Load():
                    assert self._journal is not None
                    self._journal.load(effect)
                case Flush() if self.rng.random() < 0.8:  # else a peer takes nothing
                    world.events.after(self.rng.uniform(0.0, 0.05), self.post, self._flush)
                case Closed():
                    world.happened("closed", self.name)
                    world.end_server(self, "closed", self.rng.uniform(0.0, 2.0))
                case Report():
                    self._lapsed += effect.text.endswith("lease ended")
                    if effect.text == self.router.dispatcher.elastic.why:
                        world.faults[Fault.ELASTIC] += 1
                    if effect.text.startswith("dispatching is paused"):
                        world.faults[Fault.PAUSES] += 1
                    self.events.note(self.name, effect.text)
        self._turns -= 1
        self._outgoing.leave(up=False)
        if not self._turns:
            world.happened("turned", self.name)
        self.peak_live = max(self.peak_live, self.router.workforce.live_count())
        if self.router.behind and not self._catching_up:
            self._catching_up = True
            self.events.after(0.0, self.post, self._catch_up)

    def _catch_up(self) -> None:
        self._catching_up = False
        self._carry_out(self.router.take(Resume(self.events.now_s)))

    def _tell_client(self, effect: ToClient) -> None:
        world, link = self.world, self.client_links.get(effect.route)
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
                started += [worker.live[number] for number in range(before, worker.next_number)]
                numbers[worker.id] = worker.next_number
        return started

    def _spawn(self, spawn: Spawn) -> None:
        worker = SimWorker(self.world, self, spawn)
        self.workers[spawn.worker] = worker
        self.world.happened("spawned", self.name, "", worker.name, spawn.slot)
        if self.world.strikes(Fault.NO_SPAWN, 0.2, self.rng):
            worker.die("it could not be started")
        else:
            self.router.take(Spawned(spawn.worker, len(self.workers)))


# -- a hostile client --------------------------------------------------------------------


class HostileClient(Process):
    """Sends a random message, about ten times a second."""

    def __init__(self, world: World) -> None:
        super().__init__(world.events, "hostile", world.luck_of("hostile"))
        self.world = world
        self.link: Link | None = None
        self.session = b""
        self._sent: list[tuple[bytes, bytes]] = []
        self._count = 0
        self._act()

    def cut_off(self) -> None:
        """The connection is gone."""
        self.link = None

    def take_in(self, frames: Frames) -> None:
        """A message has arrived."""
        message, _ = messages.read(frames, most_bytes=1 << 20)[0]
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
            self.link = network.connect(self, network.new_route(), worker=False)
        for frames in self._thoughts():
            network.send(self.link, frames, up=True)
        self.events.after(self.rng.uniform(0.02, 0.2), self._act)

    def _thoughts(self) -> list[tuple[Body, ...]]:
        rng = self.rng
        if not self.session:
            nonce = self.world.new_id()
            version = PROTOCOL_VERSION + (rng.random() < 0.1)
            hello = messages.Hello(version, nonce, 1, "x" * 100, 1 << 20)
            return [(messages.encode(hello),)]
        self.world.faults[Fault.HOSTILE] += 1
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
        hello = messages.Hello(PROTOCOL_VERSION, nonce, 1, "hostile", 1 << 20)
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
