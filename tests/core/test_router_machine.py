"""A router between clients and workers that do anything allowed, in any order.

The machine is all clients and all worker processes.  It keeps its own record of who
asked, what runs where, who died and what was told, and judges what the router sends.
What the router holds is only looked at for its bounds, by the simulator's audit.
"""

from collections import defaultdict

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trio_envserve.core import messages
from trio_envserve.core.key_records import KeyAct
from trio_envserve.core.limits import ServerLimits
from trio_envserve.core.ranges import Ranges
from trio_envserve.core.router import Router
from trio_envserve.core.router_effects import Kill, Lost, Spawn, ToClient, ToWorker
from trio_envserve.core.router_inputs import (
    ClientMessage,
    Exited,
    PoolOpened,
    RouterInput,
    Spawned,
    Tick,
    WorkerMessage,
)
from trio_envserve.core.terms import Body, Status
from trio_envserve.lab.simulation.bounds import audit, unfinished

LIMITS = ServerLimits(
    lease_s=30.0, kept_outcomes=4, window=4, queue=5, worker_capacity=2, retry_delay_s=0.2,
    restart_pause_s=0.1, restart_pause_max_s=0.2, max_executions=3,
)  # fmt: skip
CLIENTS = (b"a", b"b")
KEY = b"key"
"""The key for whose work both clients ask, without consent.  Its name is the input, too."""
Id = tuple[bytes, int]


class RouterMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.made = 0
        self.router = Router(
            epoch=b"e" * 16, slots=2, now_s=0.0, new_id=self.new_id, limits=LIMITS, heartbeats=False
        )
        self.incarnation: dict[bytes, bytes] = {}
        """Of each worker process that lives, by its id."""
        self.ready: set[bytes] = set()
        self.killed: set[bytes] = set()
        self.lost: set[bytes] = set()
        self.runs: dict[tuple[bytes, int], Id] = {}
        """What each dispatch number of each worker runs, until it has ended."""
        self.starts: dict[Id, list[bytes]] = defaultdict(list)
        self.asked: dict[Id, tuple[bool, int]] = {}
        """Consent and allowance of what was transmitted."""
        self.generations: set[Id] = set()
        """Those of the key that were dispatched, by their account and number."""
        self.finished: set[Id] = set()
        self.outcomes: dict[Id, tuple[Body, ...]] = {}
        self.sessions: dict[bytes, bytes] = {}
        self.probe: dict[bytes, int] = defaultdict(int)
        self.most_live = 0
        self.give(PoolOpened((), 0.0))
        for client in CLIENTS:
            self.hello(client)
        for worker in sorted(self.incarnation):
            self.make_ready(worker)

    def new_id(self) -> bytes:
        self.made += 1
        return b"%016d" % self.made

    # -- what the router does -------------------------------------------------------

    def give(self, given: RouterInput) -> None:
        for effect in self.router.take(given):
            match effect:
                case Spawn(worker=worker, incarnation=incarnation):
                    assert worker not in self.incarnation, "an id is used twice"
                    self.incarnation[worker] = incarnation
                case Kill(worker=worker):
                    self.killed.add(worker)
                case Lost(worker=worker):
                    assert worker not in self.incarnation, "declared lost without proof (G1)"
                    self.lost.add(worker)
                case ToClient(route=route, frames=frames):
                    self.to_client(route, frames)
                case ToWorker(worker=worker, frames=frames):
                    self.to_worker(worker, frames)

    def to_client(self, route: bytes, frames: tuple[Body, ...]) -> None:
        message = messages.decode(frames[0], most_bytes=1 << 16)
        match message:
            case messages.Welcome():
                assert self.sessions.setdefault(route, message.session) == message.session
            case messages.Outcome():
                id = (message.session, message.sequence)
                assert self.outcomes.setdefault(id, frames) == frames, "two outcomes (G3)"
                assert id not in self.finished, "answers what is finished"
            case messages.Cancelled(started=False):
                assert not self.starts[message.session, message.sequence], "it did start (G9)"
            case messages.Synced():
                for sequence in Ranges.from_flat(message.missing):
                    assert not self.starts[message.session, sequence], "has forgotten a run (G4)"

    def to_worker(self, worker: bytes, frames: tuple[Body, ...]) -> None:
        message = messages.decode(frames[1], most_bytes=1 << 16)
        if not isinstance(message, messages.Dispatch):
            return
        if (worker, message.number) in self.runs:
            return  # a repair: what the worker has it does not run again
        id = (message.session, message.sequence)
        if frames[2] == KEY:
            assert not self.generations & {*self.runs.values()}, "two of a key run (G1)"
            self.generations.add(id)
        consent, allowance = (False, 1) if id in self.generations else self.asked[id]
        assert id not in self.finished, "dispatched after it was finished (G7)"
        assert id not in self.outcomes, "dispatched after its outcome (G2)"
        assert id not in self.runs.values(), "dispatched while it runs (G1)"
        if self.starts[id]:
            assert consent, "again without consent (G2)"
            assert self.starts[id][-1] in self.lost, "again before its worker is proven dead (G1)"
        assert len(self.starts[id]) < allowance, "more often than allowed (G2)"
        self.starts[id].append(worker)
        self.runs[worker, message.number] = id
        self.most_live = max(self.most_live, len(self.runs))

    # -- clients ----------------------------------------------------------------------

    def say(self, client: bytes, message: messages.Message, *body: bytes) -> None:
        self.give(ClientMessage(client, (messages.encode(message), *body), self.now_s))

    @rule(client=st.sampled_from(CLIENTS))
    def hello(self, client):
        self.say(client, messages.Hello(2, client * 16, 1, "machine", 1 << 20, bytes(16)))

    @rule(
        client=st.sampled_from(CLIENTS),
        sequence=st.integers(0, 7),
        limit_s=st.sampled_from((None, None, 2.0)),
    )
    def request(self, client, sequence, limit_s):
        """The same sequence always has the same options: an honest client's."""
        session = self.sessions[client]
        consent, allowance = sequence % 2 == 0, 1 + sequence % 3
        self.asked[session, sequence] = (consent, allowance)
        request = messages.Request(session, sequence, b"d" * 16, consent, allowance, limit_s)
        self.say(client, request, b"body")

    def say_of_key(self, client: bytes, sequence: int, act: int | None) -> None:
        session = self.sessions[client]
        self.asked[session, sequence] = (False, 1)
        request = messages.Request(
            session, sequence, b"d" * 32, False, 1, None, namespace=b"n", key=KEY, act=act
        )
        self.say(client, request, KEY if act is None else b"")

    @rule(client=st.sampled_from(CLIENTS), sequence=st.integers(8, 11))
    def request_by_key(self, client, sequence):
        self.say_of_key(client, sequence, None)

    @rule(client=st.sampled_from(CLIENTS), sequence=st.integers(12, 13))
    def cancel_by_key(self, client, sequence):
        self.say_of_key(client, sequence, KeyAct.CANCEL)

    @rule(client=st.sampled_from(CLIENTS), sequence=st.integers(14, 15))
    def forget_by_key(self, client, sequence):
        self.say_of_key(client, sequence, KeyAct.FORGET)

    @rule(client=st.sampled_from(CLIENTS), sequence=st.integers(0, 15))
    def finish(self, client, sequence):
        session = self.sessions[client]
        self.finished.add((session, sequence))
        self.say(client, messages.Finish(session, [sequence, sequence + 1]))

    @rule(client=st.sampled_from(CLIENTS), sequence=st.integers(0, 15))
    def cancel(self, client, sequence):
        session = self.sessions[client]
        self.finished.add((session, sequence))
        self.say(client, messages.Cancel(session, sequence))

    @rule(client=st.sampled_from(CLIENTS), connection=st.integers(1, 3), answered=st.booleans())
    def sync(self, client, connection, answered):
        session = self.sessions[client]
        self.probe[session] += answered
        known = [n for n in range(16) if (session, n) in self.asked]
        pending = Ranges(n for n in known if (session, n) not in self.finished)
        end = max(known, default=-1) + 1
        for sequence in set(range(end)) - set(pending):
            self.finished.add((session, sequence))
        if len(pending) > LIMITS.window:
            return  # an honest client has no more
        self.say(
            client,
            messages.Sync(session, b"e" * 16, connection, self.probe[session], end, pending.flat()),
        )

    # -- workers ------------------------------------------------------------------------

    def from_worker(self, worker: bytes, message: messages.Message) -> None:
        frames = (worker, self.incarnation[worker], messages.encode(message))
        self.give(WorkerMessage(frames, self.now_s))

    @rule(data=st.data())
    @precondition(lambda self: set(self.incarnation) - self.ready)
    def worker_is_ready(self, data):
        self.make_ready(data.draw(st.sampled_from(sorted(set(self.incarnation) - self.ready))))

    def make_ready(self, worker: bytes) -> None:
        self.ready.add(worker)
        self.give(Spawned(worker, 1000 + len(self.ready)))
        self.from_worker(worker, messages.WorkerHello(2, 1, "machine", False, 256))

    @rule(data=st.data(), status=st.sampled_from(Status), times=st.integers(1, 2))
    @precondition(lambda self: self.runs)
    def execution_ends(self, data, status, times):
        worker, number = data.draw(st.sampled_from(sorted(self.runs)))
        session, sequence = self.runs.pop((worker, number))
        outcome = messages.WorkerOutcome(session, sequence, number, status, 0.1)
        payload = b"result of %d" % number
        header = messages.encode(outcome)
        for _ in range(times):
            frames = (worker, self.incarnation[worker], b"client", header, payload)
            self.give(WorkerMessage(frames, self.now_s))

    def reap(self, worker: bytes) -> None:
        del self.incarnation[worker]
        self.ready.discard(worker)
        for key in [key for key in self.runs if key[0] == worker]:
            del self.runs[key]
        self.give(Exited(worker, self.now_s, "killed by signal 9"))

    @rule(data=st.data())
    @precondition(lambda self: self.incarnation)
    def worker_dies(self, data):
        self.reap(data.draw(st.sampled_from(sorted(self.incarnation))))

    @rule()
    @precondition(lambda self: self.killed & set(self.incarnation))
    def killed_ones_are_reaped(self):
        for worker in sorted(self.killed & set(self.incarnation)):
            self.reap(worker)

    @rule(step_s=st.sampled_from((0.1, 0.5, 2.5)))
    def time_passes(self, step_s):
        self.now_s += step_s
        self.give(Tick(self.now_s))

    # -- always -----------------------------------------------------------------------------

    @invariant()
    def is_within_its_bounds(self):
        assert audit(self.router, self.most_live) == []

    def teardown(self):
        """All clients say goodbye, all that runs ends: nothing is left."""
        for client, session in self.sessions.items():
            self.say(client, messages.Goodbye(session))
        for worker in sorted(self.incarnation):
            self.reap(worker)
        self.now_s += 1.0
        self.give(Tick(self.now_s))
        assert unfinished(self.router) == []


TestRouter = RouterMachine.TestCase
