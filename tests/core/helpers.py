"""Builders for the tests of the core: records, and whole systems with no network.

:class:`Joined` joins a Router, a ClientCore and WorkerCores by function calls; :class:`Pair`
derives from it.  Nothing moves but in
:meth:`Joined.settle`, and no time passes but in :meth:`Pair.advance`, so a test decides what
is lost, late or doubled.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Self, TypeVar

from trio_envserve.core import error_records, messages
from trio_envserve.core.account import Account
from trio_envserve.core.client import (
    Answer,
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
    PassDelta,
    PassNote,
    ServerMessage,
    Terms,
    ToServer,
)
from trio_envserve.core.closing import ClosingStage
from trio_envserve.core.errors import ErrorInfo
from trio_envserve.core.executions import Duty, Execution, Worker
from trio_envserve.core.journal import Record
from trio_envserve.core.key_records import KeyName
from trio_envserve.core.limits import CAPACITY, ClientLimits, KeyLimits, ServerLimits, WireLimits
from trio_envserve.core.ranges import Ranges
from trio_envserve.core.requests import RetainedOutcome
from trio_envserve.core.router import Router
from trio_envserve.core.router_effects import (
    AskWorker,
    ClosingOver,
    Flush,
    Kill,
    Lost,
    Report,
    RouterEffect,
    Spawn,
    TellStats,
    ToClient,
    ToWorker,
)
from trio_envserve.core.router_inputs import (
    ClientMessage,
    CloseAsked,
    Exited,
    HeartbeatReceived,
    PoolOpened,
    Restored,
    Resume,
    RouterInput,
    Spawned,
    Tick,
    WorkerBack,
    WorkerMessage,
)
from trio_envserve.core.scope import ResourceState, Stated
from trio_envserve.core.sessions import Session
from trio_envserve.core.terms import (
    BYTE_COST,
    COST_HEADER,
    Body,
    SentBody,
    Status,
    Verdict,
    whole,
)
from trio_envserve.core.values import written_head
from trio_envserve.core.work import Work
from trio_envserve.core.worker import (
    BeatDue,
    BeginRun,
    CancelRun,
    ClaimMade,
    ClaimOver,
    Cleaned,
    DeltaMade,
    EnvironmentReady,
    Exit,
    GoOn,
    NoteMade,
    OutcomeMade,
    ResourceTold,
    ResourceWanted,
    RouterMessage,
    SaveEnded,
    SaveMade,
    ToRouter,
    WorkerCore,
    WorkerEffect,
)
from trio_envserve.core.worker_range import WorkerRange

M = TypeVar("M", bound=messages.Message)

CLIENT = b"client"
"""The route of a pair's own ClientCore; what is sent to others is mail."""

STRANGER = b"stranger"
FIRST, OTHER, REPLACEMENT = b"w0-1", b"w1-1", b"w0-2"
"""The first worker, that of the other slot, and who takes the first one's place."""

QUICK = {"silence_report_s": 2.0, "silence_kill_s": 5.0}
"""Limits of a server that waits for no silent worker."""
HEADER_BYTES = WireLimits().header_bytes
NAME = KeyName(b"default", b"key")
START_S = 1000.0


class Ids:
    """A source of ids that are as good as random: all different, and replayable."""

    def __init__(self, first: int = 1) -> None:
        self.last = first - 1

    def __call__(self) -> bytes:
        self.last += 1
        return identifier(self.last)


def identifier(number: int) -> bytes:
    """An id of the right length."""
    return number.to_bytes(16, "big")


def named(number: int) -> KeyName:
    """The name of one of many keys."""
    return KeyName(b"default", b"%d" % number)


def body_of_weight(weight: int) -> bytes:
    """A short body whose header says that its value costs so much."""
    return COST_HEADER + written_head(0, BYTE_COST * weight) + b"\x01"


def error_body(code: str = "rollout-failed", message: str = "why") -> bytes:
    """The payload of an outcome that says that a rollout ran and failed."""
    return error_records.encode(ErrorInfo(code, Verdict.RAN_AND_FAILED, message))


def kept(payload: bytes = b"outcome") -> RetainedOutcome:
    """An outcome of as many bytes as its payload."""
    outcome = messages.Outcome(identifier(1), 0, Status.RESULT, "w0-1", 1.0, 1)
    return RetainedOutcome(outcome, payload, len(payload))


def account_of(number: int = 1) -> Account:
    """The account of a session that no router knows."""
    return Account(id=identifier(number), name=f"client {number}")


def work_of(session: int = 1, sequence: int = 0, **fields: Any) -> Work:
    """A waiting work that no router knows."""
    account = account_of(session)
    fields = {"rerun": None, "allowance": 1, "body": b"x", **fields}
    return Work(
        account, sequence, None, b"d" * 16, body_bytes=1,
        traceparent=None, execution_s=None, grace_s=None, **fields,
    )  # fmt: skip


def worker_of(
    name: bytes = b"w0-1", capacity: int = 2, incarnation: bytes = identifier(7)
) -> Worker:  # fmt: skip
    """A worker that said hello."""
    return Worker(name, incarnation, capacity)


def duty_of(worker: Worker) -> Duty:
    """Its duty now, which a type checker takes for what it was before."""
    return worker.duty


def execution_on(worker: Worker, account: Account, sequence: int = 0) -> Execution:
    """A live execution that no router knows."""
    work = work_of(sequence=sequence)
    work.account = account
    return worker.start(account, work, 0.0)


def limit_keys(pair: Pair, **limits: Any) -> None:
    """The keys of its server have these limits from now on."""
    works = pair.router.works
    works.keys = works.accounts.keys = works.gate._keys = KeyLimits(**limits)


class Joined:
    """A router, its workers and one client, joined without a network; who derives from it
    says what becomes of their effects."""

    options: ClassVar[dict[str, Any]] = {}
    """Options of its routers, besides those of each pair."""

    def __init__(
        self, *, workers: int | WorkerRange, rerun: bool, heartbeats: bool,
        server: dict[str, Any] | None, client: dict[str, Any] | None,
        wire: dict[str, Any] | None = None, auto_hello: bool = True,
    ) -> None:  # fmt: skip
        self.now_s = START_S
        self.rerun = rerun
        self.ids = Ids()
        self.server_limits = ServerLimits(**(server or {}))
        self.wire = WireLimits(**(wire or {}))
        self.slots = workers
        self.heartbeats = heartbeats
        self.auto_hello = auto_hello
        """Whether new processes come as far as to say hello."""
        self.router = self.new_router()
        self._said: list[RouterEffect] = []
        self.client = ClientCore(
            name="test", new_id=self.ids, now_s=self.now_s,
            limits=ClientLimits(**(client or {})), wire=self.wire,
        )  # fmt: skip
        self.client_effects: list[ClientEffect] = []
        self.calls = 0
        """How many were submitted."""
        self.workers: dict[bytes, WorkerCore] = {}
        """Processes that live, by worker id."""
        self.spawns: list[Spawn] = []
        self.lose: Callable[[messages.Message], bool] = lambda message: False
        """A fault of the network: messages for which it is true get lost."""

    def new_router(self) -> Router:
        """A router of a new epoch."""
        return Router(
            epoch=self.ids(), slots=self.slots, now_s=self.now_s, new_id=self.ids,
            limits=self.server_limits, wire=self.wire, heartbeats=self.heartbeats, **self.options,
        )  # fmt: skip

    def restart(self, *, proven: bool) -> None:
        """Another server at the same address; the old one is proven dead, or not."""
        dead = (self.router.epoch,) if proven else ()
        self.router = self.new_router()
        self._said.clear()
        self.workers.clear()
        self.give(PoolOpened(dead, self.now_s))
        self.settle()

    # -- what moves -----------------------------------------------------------

    def give(self, *inputs: RouterInput) -> None:
        """Inputs to the router.  What comes of them is carried out by :meth:`settle`."""
        for given in inputs:
            self._said += self.router.take(given)

    def said(self) -> list[RouterEffect]:
        """What came of them since the last call."""
        while self.router.behind:
            self.give(Resume(self.now_s))
        said, self._said = self._said, []
        return said

    def give_client(self, *inputs: ClientInput) -> None:
        """Inputs to the client.  What comes of them is carried out by :meth:`settle`, too."""
        for given in inputs:
            self.client_effects += self.client.take(given)

    def client_said(self) -> list[ClientEffect]:
        """What came of them since the last call."""
        said, self.client_effects = self.client_effects, []
        return said

    def new_call(self) -> int:
        """The number of another call."""
        self.calls += 1
        return self.calls - 1

    def router_takes(self, *inputs: RouterInput) -> None:
        """Inputs to the router, and all that comes of them."""
        self.give(*inputs)
        self.settle()

    def client_takes(self, *inputs: ClientInput) -> None:
        """Inputs to the client, and all that comes of them."""
        self.give_client(*inputs)
        self.settle()

    def settle(self) -> None:
        """Carry out effects until there are none."""
        while effects := [*self.said(), *self.client_said()]:
            for effect in effects:
                self._carry_out(effect)

    def _carry_out(self, effect: Any) -> None:
        raise NotImplementedError

    def work(self, worker: bytes, effects: Sequence[WorkerEffect]) -> None:
        """Carry out what a worker's core says."""
        raise NotImplementedError

    def _spawn(self, spawn: Spawn) -> None:
        core = WorkerCore(spawn.incarnation)
        self.workers[spawn.worker] = core
        self.spawns.append(spawn)
        self.give(Spawned(spawn.worker, 1000 + len(self.spawns)))
        if self.auto_hello:
            capacity = self.server_limits.worker_capacity or CAPACITY
            ready = EnvironmentReady(1, "env", self.rerun, capacity)
            self.work(spawn.worker, core.take(ready))

    # -- what happens ---------------------------------------------------------

    def beat(self) -> None:
        """Each worker states what it holds."""
        for worker, core in list(self.workers.items()):
            self.work(worker, core.take(BeatDue({})))
        self.settle()

    @contextlib.contextmanager
    def losing(self, *kinds: type) -> Iterator[None]:
        """Messages of these kinds get lost meanwhile."""
        self.lose = lambda message: isinstance(message, kinds)
        yield
        self.lose = lambda message: False

    def open_pool(self) -> None:
        """No worker of an earlier server lives: some may be started."""
        self.router_takes(PoolOpened((), self.now_s))

    def close(
        self, stage: ClosingStage = ClosingStage.DRAINING, drain_s: float | None = None
    ) -> None:
        """The server is to close, from this stage on."""
        self.router_takes(CloseAsked(self.now_s, stage, drain_s))

    def connect(self) -> None:
        self.client_takes(Connected(self.now_s))

    def disconnect(self) -> None:
        self.client_takes(Disconnected(self.now_s, "cut"))

    def close_client(self) -> None:
        self.client_takes(ClientClosed(self.now_s))

    def hear(self, message: messages.Message, *body: bytes) -> None:
        """The client hears a message, true or not."""
        self.client_takes(ServerMessage((messages.encode(message), *body), self.now_s))

    def submit(self, body: bytes = b"body", **how: Any) -> int:
        """A call, sent as far as it goes."""
        number = self.new_call()
        self.client_takes(CallSubmitted(number, body, self.now_s, Terms(**how)))
        return number

    def submit_many(self, count: int, body: bytes = b"body", **how: Any) -> None:
        for _ in range(count):
            self.submit(body, **how)

    def cancel(self, *calls: int) -> None:
        """Their callers give up."""
        self.client_takes(CallsCancelled(calls, self.now_s))


class Pair(Joined):
    """A router, its workers, and a client, joined without a network.

    Unless ``ready`` no worker is started yet; without ``hello`` they start, and say nothing.
    With ``beats`` workers give signs of life as time passes.
    """

    def __init__(
        self, *, workers: int | WorkerRange = 1, rerun: bool = False, ready: bool = True,
        hello: bool = True, welcomed: bool = True, heartbeats: bool = False, beats: bool = False,
        server: dict[str, Any] | None = None, client: dict[str, Any] | None = None,
        wire: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            workers=workers, rerun=rerun, heartbeats=heartbeats or beats, server=server,
            client=client, wire=wire, auto_hello=ready and hello,
        )  # fmt: skip
        self.beats = beats
        self.silent: set[bytes] = set()
        """Workers whose processes are stopped: no sign of life, if they ``beats``."""
        self.blocked_s: dict[bytes, float] = {}
        """Workers whose event loops are blocked, and since when."""
        self.route = CLIENT
        """Where the client's present connection is reached."""
        self.runs: list[tuple[bytes, BeginRun]] = []
        self.cancels: list[tuple[bytes, int]] = []
        self.saves: list[tuple[bytes, SaveEnded]] = []
        """How the saves of executions have ended."""
        self.stated: list[tuple[bytes, Stated]] = []
        """What the code of resources was told."""
        self.cleanings: list[tuple[bytes, messages.Clean]] = []
        """Cleanings that have begun, with their workers."""
        self.exits: list[bytes] = []
        self.granted: list[tuple[bytes, int]] = []
        """Claims whose code goes on, with their workers."""
        self.answers: list[Answer | Fail] = []
        self.says: list[PassDelta] = []
        self.notes: list[PassNote] = []
        self.reports: list[Report] = []
        self.kills: list[Kill] = []
        self.lost: list[Lost] = []
        self.flushes = 0
        self.closed: ClosingOver | None = None
        self.mail: list[tuple[bytes, messages.Message]] = []
        """What the router sent to routes that are not the client's."""
        self.sent: list[messages.Message] = []
        """What the client sent, lost or not."""
        self.told: list[messages.Message] = []
        """What the router sent to the client, lost or not."""
        self.batched = False
        """Whether what is said in one turn to one peer shares batches, as from the shells."""
        self._waiting: dict[tuple[str, bytes, tuple[bytes, ...]], list[messages.MessageRow]] = {}
        if ready:
            self.open_pool()
        if welcomed:
            self.connect()

    @classmethod
    def asked(cls, **how: Any) -> Self:
        """A pair whose client has asked once."""
        pair = cls(**how)
        pair.submit()
        return pair

    @classmethod
    def with_stranger(cls, **how: Any) -> tuple[Self, bytes]:
        """A pair, and the session of another client."""
        pair = cls(**how)
        return pair, pair.stranger()

    def _carry_out(self, effect: Any) -> None:
        match effect:
            case ToClient(route):
                self._to_client(route, effect)
            case ToServer(message):
                self.sent.append(message)
                self._send(("server", CLIENT, ()), *effect)
            case ToWorker(worker, incarnation, message, body):
                self._send(("worker", worker, (incarnation,)), message, body)
            case Answer() | Fail():
                self.answers.append(effect)
            case PassDelta():
                self.says.append(effect)
            case PassNote():
                self.notes.append(effect)
            case Report():
                self.reports.append(effect)
            case Kill():
                self.kills.append(effect)
            case Lost():
                self.lost.append(effect)
            case Spawn():
                self._spawn(effect)
            case Flush():
                self.flushes += 1
            case ClosingOver():
                self.closed = effect
            case _:
                raise AssertionError(effect)

    def _to_client(self, route: bytes, effect: ToClient) -> None:
        if route != self.route:
            self.mail.append((route, effect.message))
            return
        self.told.append(effect.message)
        self._send(("client", CLIENT, ()), effect.message, effect.body)

    def settle(self) -> None:
        """Carry out effects until there are none."""
        while (effects := [*self.said(), *self.client_said()]) or self._waiting:
            for effect in effects:
                self._carry_out(effect)
            self.leave()

    def _send(
        self, to: tuple[str, bytes, tuple[bytes, ...]], message: messages.Message,
        body: SentBody | None = None,
    ) -> None:  # fmt: skip
        if not self.lose(message):
            came = None if body is None else whole(body)
            self._waiting.setdefault(to, []).append((message, came))
            if not self.batched:
                self.leave()

    def leave(self) -> None:
        """What waits for company is on its way."""
        waiting, self._waiting = self._waiting, {}
        for (kind, peer, before), said in waiting.items():
            for frames in messages.in_batches(said):
                self._arrive(kind, peer, (*before, *frames))

    def _arrive(self, kind: str, peer: bytes, frames: Sequence[Body]) -> None:
        match kind:
            case "client":
                self.give_client(ServerMessage(frames, self.now_s))
            case "server":
                self.give(ClientMessage(self.route, frames, self.now_s))
            case "router":
                self.give(WorkerMessage((peer, *frames), self.now_s))
            case _:
                if peer in self.workers:
                    self.work(peer, self.workers[peer].take(RouterMessage(frames)))

    def work(self, worker: bytes, effects: Sequence[WorkerEffect]) -> None:
        """Carry out what a worker's core says."""
        for effect in effects:
            match effect:
                case BeginRun():
                    self.runs.append((worker, effect))
                case GoOn(claim):
                    self.granted.append((worker, claim))
                case CancelRun(number):
                    self.cancels.append((worker, number))
                case SaveEnded():
                    self.saves.append((worker, effect))
                case Stated():
                    self.stated.append((worker, effect))
                case messages.Clean():
                    self.cleanings.append((worker, effect))
                case Exit():
                    self.exits.append(worker)
                case ToRouter(incarnation, message, body, client):
                    before = (incarnation,) if body is None else (incarnation, client.encode())
                    self._send(("router", worker, before), message, body)

    # -- what happens ---------------------------------------------------------

    def from_worker(
        self, message: messages.Message, *extra: bytes, worker: bytes = b"w0-1",
        incarnation: bytes | None = None,
    ) -> None:  # fmt: skip
        """A message under a worker's name, by default of its present life."""
        life = self.workers[worker].incarnation if incarnation is None else incarnation
        header = messages.encode(message)
        frames = (b"c", header, *extra) if extra else (header,)
        self.router_takes(WorkerMessage((worker, life, *frames), self.now_s))

    def advance(self, seconds: float, *, step_s: float = 0.5) -> None:
        """Time passes, in steps; both sides tick and everything settles."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s = min(end_s, self.now_s + step_s)
            for worker in self.workers.keys() - self.silent if self.beats else ():
                self._beats(worker)
            self.give(Tick(self.now_s))
            self.give_client(ClientTick(self.now_s))
            self.settle()

    def _beats(self, worker: bytes) -> None:
        """A sign of life, and a beat of its loop unless that is blocked."""
        lag_s = self.now_s - self.blocked_s.get(worker, self.now_s)
        self.give(HeartbeatReceived(worker, self.now_s, lag_s, 0, "environment.py, line 1"))
        if self.workers[worker]._hello and not lag_s:
            self.work(worker, self.workers[worker].take(BeatDue({})))

    def say(self, *pieces: bytes, run: tuple[bytes, BeginRun] | None = None) -> None:
        """An execution says deltas, by default the newest."""
        worker, what = run or self.runs[-1]
        for piece in pieces:
            self.work(worker, self.workers[worker].take(DeltaMade(what.number, piece)))
        self.settle()

    def note(self, note: bytes, run: tuple[bytes, BeginRun] | None = None) -> None:
        """An execution notes how far it is, by default the newest."""
        worker, what = run or self.runs[-1]
        self.work(worker, self.workers[worker].take(NoteMade(what.number, note)))

    def claim(
        self, claim: int, run: tuple[bytes, BeginRun] | None = None, name: str = "a",
        most: int = 1, per_s: float | None = None,
    ) -> None:  # fmt: skip
        """An execution claims a permit, by default the newest."""
        worker, what = run or self.runs[-1]
        made = ClaimMade(what.number, claim, name, 0 if per_s else most, per_s)
        self.work(worker, self.workers[worker].take(made))
        self.settle()

    def give_back(self, claim: int, worker: bytes = b"w0-1") -> None:
        """A claim ends."""
        self.work(worker, self.workers[worker].take(ClaimOver(claim)))
        self.settle()

    def save(self, state: bytes, run: tuple[bytes, BeginRun] | None = None) -> None:
        """An execution saves a state, by default the newest."""
        worker, what = run or self.runs[-1]
        self.work(worker, self.workers[worker].take(SaveMade(what.number, state)))
        self.settle()

    def want(
        self, resource: int, run: tuple[bytes, BeginRun] | None = None, *, here: bool = False
    ) -> str:
        """The name of a resource that an execution wants to create, by default the newest; empty if
        it gets none, or none yet."""
        worker, what = run or self.runs[-1]
        told = len(self.stated)
        wanted = ResourceWanted(what.number, resource, "sandbox", "module:destroy", here)
        self.work(worker, self.workers[worker].take(wanted))
        self.settle()
        return self.stated[-1][1].name if len(self.stated) > told else ""

    def resource_is(
        self, resource: int, state: ResourceState, worker: bytes = b"w0-1", **more: Any
    ) -> None:  # fmt: skip
        """The code of a resource says what it has done."""
        self.work(worker, self.workers[worker].take(ResourceTold(resource, state, **more)))
        self.settle()

    def clean(self, why: str = "") -> None:
        """The newest cleaning ends."""
        worker, begun = self.cleanings[-1]
        self.work(worker, self.workers[worker].take(Cleaned(begun.name, begun.turn, why)))
        self.settle()

    def end(
        self, run: tuple[bytes, BeginRun] | None = None, payload: bytes = b"outcome",
        status: Status = Status.RESULT,
    ) -> None:  # fmt: skip
        """An execution ends, by default the newest."""
        worker, what = run or self.runs[-1]
        made = OutcomeMade(what.number, status, payload, 1.0)
        self.work(worker, self.workers[worker].take(made))
        self.settle()

    def die(self, worker: bytes | None = None, how: str = "killed by a test") -> None:
        """A worker's process dies, and is reaped and declared lost."""
        worker = self.runs[-1][0] if worker is None else worker
        del self.workers[worker]
        self.give(Exited(worker, self.now_s, how))
        self.advance(0.5, step_s=0.1)

    def end_what_runs(self, payload: bytes | None = None) -> None:
        """All that runs ends, and what is started because of that, too."""
        while running := [run for run in self.runs if self._runs(*run)]:
            own = b"outcome of " + bytes(running[0][1].body)
            self.end(running[0], own if payload is None else payload)

    def _runs(self, worker: bytes, run: BeginRun) -> bool:
        return worker in self.workers and run.number in self.workers[worker].running

    def receive(self, *numbers: int) -> None:
        """Callers have their outcomes in hands, and the server is told."""
        self.give_client(*(OutcomeReceived(number, self.now_s) for number in numbers))
        self.advance(0.03)

    def reconnect(self, route: bytes) -> None:
        """The client's connection was cut, and is there again under another identity."""
        self.disconnect()
        self.route = route
        self.connect()

    def question(self, message: messages.Message, route: bytes = STRANGER) -> list[RouterEffect]:
        """What is done about a question, in a turn of its own."""
        self.now_s += 0.001
        self.give(ClientMessage(route, (messages.encode(message),), self.now_s))
        return [each for each in self.said() if isinstance(each, ToClient | AskWorker | TellStats)]

    def answers_to(self, message: messages.Message, *bodies: bytes) -> list[messages.Message]:
        """What the client is sent because of a message over its connection: a duplicate, or a
        forgery."""
        before = len(self.told)
        self.tell(message, *bodies, route=self.route)
        return self.told[before:]

    def tell(self, message: messages.Message, *bodies: bytes, route: bytes = CLIENT) -> None:
        """A message to the router from whoever has this route."""
        self.router_takes(ClientMessage(route, (messages.encode(message), *bodies), self.now_s))

    def stranger(self, number: int = 900, caller: bytes = identifier(77)) -> bytes:
        """The session of another client, which speaks bytes and never syncs."""
        hello = messages.Hello(2, identifier(number), 1, "other", 1 << 20, caller)
        self.tell(hello, route=STRANGER)
        welcome = self.heard()
        assert isinstance(welcome, messages.Welcome)
        return welcome.session

    def ask(
        self, session: bytes, sequence: int = 0, body: bytes = b"b", *, rerun: bool | None = None,
        allowance: int = 1, deadline_s: float | None = None, digest: bytes = identifier(901),
    ) -> None:  # fmt: skip
        """A request of such a client."""
        request = messages.Request(session, sequence, digest, rerun, allowance, deadline_s)
        self.tell(request, body, route=STRANGER)

    def take_over(
        self, running: Sequence[int], *, next: int = 1, records: Sequence[Record] = (),
        settles: bool = True,
    ) -> None:  # fmt: skip
        """Another router takes the first worker over, of which it hears which dispatches run,
        and what the next one is; it has these records of the one before."""
        hello = messages.encode(messages.WorkerHello(2, 1, "env", False, 256))
        incarnation = self.workers[FIRST].incarnation
        self.router = self.new_router()
        self.give(Restored(records, self.now_s) if records else Tick(self.now_s))
        self.router.starting, self.router.works.earlier_lives = "", False
        self.router._worker_back(
            WorkerBack(FIRST, 0, incarnation, 1, False, hello, next, running, self.now_s)
        )
        if settles:
            self.router_takes(Tick(self.now_s))

    def draining(self) -> bool:
        """Whether the server that closes still lets run what runs, after a tick."""
        self.give(Tick(self.now_s))
        self.settle()
        return self.router.closing.stage is ClosingStage.DRAINING

    # -- what is seen ---------------------------------------------------------

    def heard(self) -> Any:
        """What the stranger was told last."""
        return self.mail[-1][1]

    def mailed(self, kind: type[M]) -> list[M]:
        """All messages of this kind to strangers."""
        return [message for _, message in self.mail if isinstance(message, kind)]

    def verdict(self) -> tuple[str, Verdict]:
        """The code and the verdict of the newest call that ended, and must have failed."""
        return self.failure().code, self.failure().verdict

    @property
    def session(self) -> Session[Any]:
        """The server's side of the client's session."""
        assert self.client.sessions.current is not None
        return self.router.sessions.known[self.client.sessions.current.id]

    def last(self) -> Answer | Fail:
        """How the newest call that ended did end."""
        return self.answers[-1]

    @property
    def endings(self) -> dict[int, Answer | Fail]:
        """How calls ended, each once."""
        assert len({each.call for each in self.answers}) == len(self.answers), "one ended twice"
        return {each.call: each for each in self.answers}

    def sent_of(self, kind: type[M]) -> list[M]:
        """All messages of this kind that the client has sent."""
        return [message for message in self.sent if isinstance(message, kind)]

    def result(self, call: int) -> bytes:
        """The result of a call, which must have one."""
        ended = self.endings.get(call)
        assert isinstance(ended, Answer), f"call {call} has no outcome: {ended}"
        assert ended.status is Status.RESULT, error_records.decode(ended.body)
        return bytes(ended.body)

    def failure(self, call: int | None = None) -> Any:
        """The record of a call that must have failed, by default of the newest that ended."""
        assert self.answers, "no call has ended"
        ended = self.answers[-1] if call is None else self.endings.get(call)
        assert ended is not None, f"call {call} still waits"
        return ended.info if isinstance(ended, Fail) else error_records.decode(ended.body)


def kinds(sent: Sequence[object]) -> list[str]:
    """The names of the kinds of messages, or of effects."""
    return [type(each).__name__ for each in sent]


ALL = [0, 2**62]
"""A span of all sequences that there can be."""


def limited(self: Ranges) -> Iterator[int]:
    """A walk that ends, and says so."""
    for start, stop in self.spans():
        for number in range(start, stop):
            assert number < 1000, "it walks through all of them"
            yield number


def decoded(frames: Sequence[Body]) -> messages.Message:
    """The message of some frames."""
    return messages.decode(frames[0], most_bytes=HEADER_BYTES)
