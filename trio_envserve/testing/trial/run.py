"""A trial: server, clients, asks and faults around one network, and what they come to.

Theory of operation
-------------------
:func:`run_trial` draws the times of the asks and the faults.  Then it starts a trio
run of its own, with a clock that jumps whenever all tasks sleep and a scheduler that
draws from the seed.  One task runs the server, and starts it again when it has ended.
Each ask is a task that waits for its moment, and each fault is a task.  Faults change
the network, and a filter on it loses messages and reads the others.

A "crashed" server still ends in order, because it runs in this process; but it is cut
off first, so nobody gets its last messages.  A "killed" worker is a cancelled task, for
the same reason.

A fault is any ``async def fault(trial)``, yours too.  Each is called at a random moment
and returns when it is over; several may be on at once.  A fault draws from
``trial.rng``, so that the seed decides.  The report shows what it returns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Literal, TypeAlias, final

import trio
from trio.testing import MockClock

from ...client import Client, Outcome
from ...client.driver import Driver
from ...client.opening import connect
from ...core.client import ClientCore
from ...core.errors import CallError, ConfigError, ProtocolError, ServerNotClosed
from ...core.limit_rules import check_together
from ...core.limits import ClientLimits, ServerLimits, WireLimits
from ...core.messages import Outcome as OutcomeMessage
from ...core.messages import read
from ...core.terms import ID_BYTES, whole
from ...envs.loading import LoadedEnvironment
from ...net import MemoryNetwork, Message, Network, unwrap_single
from ...retrylab import BrokenSystem
from ...retrylab.trial import scheduler, seeded
from ...server import Server
from ...server.opening import open_setup
from ...server.options import ServerOptions
from ...server.setup import Setup
from ..retransmit import RetransmittingNetwork
from .environment import load_for_trial, recorded
from .history import AskRecord, History, Life, TrialReport
from .judges import JUDGES, Judge

ADDRESS = "memory:trial"

LATENCIES_S = (0.0, 0.001, 0.05)
"""Latencies without faults; a trial draws one."""

COUNTED = ("sent", "lost", "coalesced", "replayed", "reruns")

RETRANSMIT_S = (0.05, 1.0, 30.0)
"""When a client that retransmits sends a request again."""


@final
class Trial:
    """A running trial, as its faults see it.  Made by :func:`run_trial`."""

    def __init__(
        self, seed: int, environment: str | object, args: dict[str, Any],
        loaded: LoadedEnvironment, limits: ServerLimits, client_limits: ClientLimits,
    ) -> None:  # fmt: skip
        self.seed = seed
        self.rng = random.Random(f"faults {seed}")
        """Faults draw from it, so that the seed decides."""
        self.network = MemoryNetwork()
        """Joins clients and server.  Its filter is the trial's own."""
        self.address = ADDRESS
        patience_s = min(limits.lease_s, client_limits.recovery_s)
        self.history = History(rerun=loaded.rerun, patience_s=patience_s)
        """The events so far."""
        self.server: Server | None = None
        """The server that runs now; None while there is none."""
        self._environment = environment
        self._args = args
        self._loaded: LoadedEnvironment | None = loaded
        self._limits = limits
        self._client_limits = client_limits
        self._ids = random.Random(f"ids {seed}")
        self._losses = random.Random(f"losses {seed}")
        self._trace = hashlib.blake2b(digest_size=16)
        self._counts: Counter[str] = Counter()
        self._shares: list[float] = []
        self._slow: list[float] = []
        self._apart = 0
        self._callers: dict[int, trio.CancelScope] = {}
        self._clients: dict[str, Client] = {}
        self._impatient = RetransmittingNetwork(self.network, pauses_s=RETRANSMIT_S)
        self._restarting = trio.Lock()
        self._stop = trio.Event()
        self._up = trio.Event()
        self._drain_s = 0.0
        self._down_s = 0.0

    # -- for faults --------------------------------------------------------------

    def cut(self) -> int:
        """Cut all connections; returns how many.  The clients reconnect at once."""
        return self.network.cut()

    async def partition(self, for_s: float) -> None:
        """Let no message pass between clients and server for so long; tell neither."""
        began_s = trio.current_time()
        self._part()
        try:
            await trio.sleep(for_s)
        finally:
            self._unite()
            apart_s = trio.current_time() - began_s
            self.history.longest_apart_s = max(self.history.longest_apart_s, apart_s)

    async def lose(self, share: float, for_s: float) -> None:
        """Lose this share of all messages, in both directions, for so long."""
        self._shares.append(share)
        try:
            await trio.sleep(for_s)
        finally:
            self._shares.remove(share)

    async def slow(self, latency_s: float, for_s: float) -> None:
        """Delay messages by so much more, for so long."""
        self.network.latency_s += latency_s
        try:
            await trio.sleep(for_s)
        finally:
            self.network.latency_s -= latency_s

    async def restart_server(
        self, *, down_s: float = 1.0, drain_s: float = 0.0, crash: bool = False
    ) -> None:
        """End the server, and start another after ``down_s``; returns when it is bound.

        ``drain_s``: let work finish for so long first.  ``crash``: nobody gets the
        server's last messages.
        """
        async with self._restarting:
            self._drain_s, self._down_s = drain_s, down_s
            self._up = trio.Event()
            if crash:
                self._part()
            try:
                self._stop.set()
                await self._up.wait()
            finally:
                if crash:
                    self._unite()

    def kill_workers(self) -> int:
        """End the workers and their executions; returns how many workers.  The server
        notices, and replaces them."""
        if self.server is None:
            return 0
        lives = list(self.server._router.pool.lives)
        for worker in lives:
            self.server._workers.kill(worker)
        if lives:
            self.history.kills_s.append(trio.current_time())
        return len(lives)

    def cancel_ask(self, number: int | None = None) -> int | None:
        """Cancel the caller of an ask, or of a drawn one; None if none is pending."""
        pending = sorted(self._callers)
        if number is None and pending:
            number = self.rng.choice(pending)
        if number not in self._callers:
            return None
        record = self.history.asks[number]
        if record.cancelled_s is None:
            record.cancelled_s = trio.current_time()
            self._tell(number, "its caller is cancelled")
        self._callers[number].cancel()
        return number

    # -- what happens ------------------------------------------------------------

    async def _main(
        self, moments_s: Sequence[float], strikes: Sequence[tuple[float, Fault]], limit_s: float
    ) -> None:
        """All of it.  ``moments_s``: when each of the history's asks is made."""
        names = sorted({record.client for record in self.history.asks})
        draw = random.Random(f"system {self.seed}")
        self.network.latency_s = draw.choice(LATENCIES_S)
        self.network.filter = self._filter
        with unwrap_single():
            async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
                await nursery.start(self._serve)
                for name in names:
                    network: Network = self.network if draw.random() < 0.5 else self._impatient
                    self._clients[name] = await stack.enter_async_context(
                        connect(self._client(name), network)
                    )
                with trio.move_on_at(limit_s), unwrap_single():
                    async with trio.open_nursery() as busy:
                        for record, at_s in zip(self.history.asks, moments_s, strict=True):
                            busy.start_soon(self._ask, record, at_s)
                        for at_s, fault in strikes:
                            busy.start_soon(self._strike, fault, at_s)
                with trio.move_on_after(limit_s):
                    await self._settle()
                self.history.ended_s = trio.current_time()
                nursery.cancel_scope.cancel()
        assert self.server is None

    def _client(self, name: str) -> Client:
        core = ClientCore(
            name=name, new_id=self._new_id, now_s=trio.current_time(), limits=self._client_limits
        )
        return Client(Driver(core, ADDRESS), "auto", core.wire)

    async def _ask(self, record: AskRecord, at_s: float) -> None:
        await trio.sleep_until(at_s)
        number, given = record.number, record.input
        if record.kind == "group":
            envelope: Any = [[number, member] for member in given]
        else:
            envelope = [number, given]
        record.asked_s = trio.current_time()
        self._tell(number, f"{record.client} asks")
        try:
            with trio.CancelScope() as scope:
                self._callers[number] = scope
                outcome = await self._clients[record.client].outcome(
                    envelope, kind=record.kind, **record.options
                )
                record.cancelled_s = None  # it was answered in the same instant
                self._answered(record, outcome)
            record.ended_s = trio.current_time()
        finally:
            del self._callers[number]

    def _answered(self, record: AskRecord, whole: Outcome) -> None:
        """Open the envelopes that the caller got."""
        members = [whole]
        if record.kind == "group" and whole.ok:
            try:
                members = Outcome.members(whole)
            except CallError as problem:
                record.foreign.append(f"an outcome that is not a group's: {problem}")
        for member in members:
            if member.ok:
                member = dataclasses.replace(member, value=self._opened(record, member.value))
            record.members.append(member)
        record.outcome = record.members[0]
        if record.kind == "group":
            record.outcome = dataclasses.replace(whole, value=None)
        error = whole.error
        self._tell(record.number, f"answered: {type(error).__name__ if error else 'a value'}")

    def _opened(self, record: AskRecord, envelope: Any) -> Any:
        try:
            ask, execution, value = envelope["ask"], envelope["execution"], envelope["value"]
        except (KeyError, TypeError):
            record.foreign.append(f"a value that no execution returned: {envelope!r}")
            return envelope
        if ask != record.number:
            record.foreign.append(f"the value of ask {ask} (execution {execution})")
        else:
            record.came_from.append(execution)
        return value

    async def _strike(self, fault: Fault, at_s: float) -> None:
        await trio.sleep_until(at_s)
        name = getattr(fault, "__name__", type(fault).__name__)
        self._tell(None, f"{name} begins")
        self.history.faults[name] += 1
        said = await fault(self)
        self._tell(None, f"{name} {said}" if said else f"{name} is over")

    async def _serve(self, *, task_status: trio.TaskStatus[None]) -> None:  # noqa: ASYNC128  # _live does
        """Run the server, one life after the other."""
        while True:
            self._stop = trio.Event()
            try:
                await self._live(task_status)
            except* ServerNotClosed:  # what still runs is judged by its own log
                self._tell(None, "the server has closed, and something of it still runs")
            await trio.sleep(self._down_s)

    async def _live(self, task_status: trio.TaskStatus[None]) -> None:
        """One life of the server."""
        setup = Setup(
            options=ServerOptions(self._make, bind=ADDRESS, workers=0, network=self.network),
            name="trial", limits=self._limits, new_id=self._new_id,
        )  # fmt: skip
        async with open_setup(setup) as server:
            self.history.lives.append(Life(trio.current_time(), None))
            if len(self.history.lives) == 1:
                await server.wait_ready()
                task_status.started()
            self._tell(None, f"life {len(self.history.lives) - 1} of the server")
            self.server = server
            self._up.set()
            try:
                await self._stop.wait()
                self.history.lives[-1] = Life(self.history.lives[-1].began_s, trio.current_time())
                self._tell(None, "the server is stopped")
                if self._drain_s:
                    await server.drain(self._drain_s)
            finally:
                self.server = None
                self._count(server)

    def _make(self) -> Any:
        """The environment of a new worker: a new one if a class or factory makes it."""
        loaded, self._loaded = self._loaded, None
        loaded = loaded or load_for_trial(self._environment, self._args)
        return recorded(loaded, self.history)

    async def _settle(self) -> None:
        """Wait until nothing runs and the server holds nothing."""
        while True:
            if self.server is not None:
                stats = self.server.stats()
                self.history.left = {
                    "running": stats.running, "waiting": stats.waiting, "kept": stats.kept,
                }  # fmt: skip
                running = any(each.ended_s is None for each in self.history.executions)
                if not running and not any(self.history.left.values()):
                    return
            await trio.sleep(1)

    # -- the network ---------------------------------------------------------------

    def _part(self) -> None:
        self._apart += 1
        self.network.partition(ADDRESS)

    def _unite(self) -> None:
        self._apart -= 1
        if not self._apart:
            self.network.heal(ADDRESS)

    def _filter(self, direction: str, route: bytes, frames: Message) -> bool:
        """Reads along, and loses what is to be lost."""
        header = bytes(frames[0])
        self._note(direction.encode(), header)
        self._counts["sent"] += 1
        if direction == "to_dealer":
            with contextlib.suppress(ProtocolError):  # not for us to judge; its reader will
                for message, body in read([*map(whole, frames)], most_bytes=len(header)):
                    if isinstance(message, OutcomeMessage):
                        self.history.sent(message, bytes(body or b""))
        if any(self._losses.random() < share for share in self._shares):
            self._counts["lost"] += 1
            return False
        return True

    def _new_id(self) -> bytes:
        return self._ids.randbytes(ID_BYTES)

    # -- what is told ----------------------------------------------------------------

    def _tell(self, ask: int | None, text: str) -> None:
        self.history.tell(trio.current_time(), ask, text)
        self._note(b"event", text.encode())

    def _note(self, kind: bytes, data: bytes) -> None:
        self._trace.update(b"%r %b %d %b\n" % (trio.current_time(), kind, len(data), data))

    def _count(self, server: Server) -> None:
        cache = server.stats().cache
        for name in ("coalesced", "replayed", "reruns"):
            self._counts[name] += getattr(cache, name)

    def _tally(self) -> dict[str, int]:
        """See :attr:`.history.TrialReport.counts`."""
        history = self.history
        return {
            "asks": len(history.asks),
            "answered": sum(ask.answered for ask in history.asks),
            "cancelled": sum(ask.cancelled_s is not None for ask in history.asks),
            "executions": len(history.executions),
            "lives": len(history.lives),
            "retransmitted": self._impatient.retransmitted,
            **{name: self._counts[name] for name in COUNTED},
        }


# -- faults --------------------------------------------------------------------------------

Fault: TypeAlias = Callable[[Trial], Awaitable[object]]
"""A fault: any async callable that takes the trial."""


async def cut(trial: Trial) -> object:
    """All connections are cut; the clients reconnect at once."""
    return f"{trial.cut()} connections"


async def partition(trial: Trial) -> object:
    """No message passes between client and server for up to 20 s; neither is told."""
    for_s = trial.rng.uniform(0.5, 20)
    await trial.partition(for_s)
    return f"for {for_s:.1f} s"


async def loss(trial: Trial) -> object:
    """For up to 20 s some of the messages, in either direction, are lost."""
    share, for_s = trial.rng.uniform(0.05, 0.6), trial.rng.uniform(1, 20)
    await trial.lose(share, for_s)
    return f"of {share:.0%} for {for_s:.1f} s"


async def latency(trial: Trial) -> object:
    """For up to 20 s messages take up to 3 s longer."""
    latency_s, for_s = trial.rng.uniform(0.1, 3), trial.rng.uniform(1, 20)
    await trial.slow(latency_s, for_s)
    return f"of {latency_s:.1f} s for {for_s:.1f} s"


async def restart_server(trial: Trial) -> object:
    """The server is stopped in order, and started again up to 10 s later."""
    drain_s = trial.rng.choice([0.0, 0.0, 5.0])
    await trial.restart_server(down_s=trial.rng.uniform(0, 10), drain_s=drain_s)
    return f"after a drain of {drain_s:g} s" if drain_s else "without a drain"


async def crash_server(trial: Trial) -> object:
    """The server ends without a last message, and is started again up to 10 s later."""
    await trial.restart_server(down_s=trial.rng.uniform(0, 10), crash=True)
    return ""


async def kill_worker(trial: Trial) -> object:
    """The worker and its executions end; the server replaces it."""
    return f"{trial.kill_workers()} workers"


async def cancel_ask(trial: Trial) -> object:
    """The caller of one of the pending asks is cancelled."""
    number = trial.cancel_ask()
    return "of none: nothing was pending" if number is None else f"of ask {number}"


FAULTS: Sequence[Fault] = (
    cut, partition, loss, latency, restart_server, crash_server, kill_worker, cancel_ask,
)  # fmt: skip
"""The default faults of :func:`run_trial`."""


# -- from arguments to a report ------------------------------------------------------------

CLIENT_LIMITS = ClientLimits(start_s=120.0, recovery_s=120.0)
"""Calls give up a lost server sooner than by default: nobody can prove its end here,
and a trial would mostly wait."""


@final
class Ask:
    """One thing to ask for: an input, with options of the call.

    ``kind="group"``: ``input`` is a list, scored together.  ``options``: those of
    :meth:`trio_envserve.Client.outcome`, such as ``model``, ``rerun``, ``timeout_s``.
    """

    def __init__(
        self, input: Any, *, kind: Literal["rollout", "group"] = "rollout", **options: Any
    ) -> None:
        self.input = input
        self.kind: Literal["rollout", "group"] = kind
        self.options = options


def run_trial(
    environment: str | object, asks: Iterable[Any], *,
    args: Mapping[str, Any] | None = None, seed: int = 0,
    faults: Sequence[Fault] = FAULTS, judges: Sequence[Judge] = JUDGES,
    moments: int = 8, over_s: float = 60.0, clients: int = 2,
    limits: ServerLimits | None = None, client_limits: ClientLimits = CLIENT_LIMITS,
    settle_s: float = 900.0,
) -> TrialReport:  # fmt: skip
    """Ask ``environment`` for rollouts under faults, and judge what happens.

    ``environment``, ``args``: as for :func:`~trio_envserve.open_server` with
    ``workers=0``.  ``asks``: inputs, or :class:`Ask` for an input with options.  They
    are made at random moments within ``over_s`` virtual seconds by ``clients``
    clients, some of which send everything again.  At ``moments`` random moments one
    of ``faults`` strikes; add your own as ``(*FAULTS, mine)``, and your own judge
    as ``(*JUDGES, mine)``.  ``faults=()`` is a trial without faults.

    When the faults are over, calls have ``settle_s`` virtual seconds to end.
    ``limits`` are the server's, ``client_limits`` the clients'.  (An hour of rollouts
    is some 100,000 steps of its clocks, and takes seconds.)

    This is a plain function with a loop and a clock of its own, so call it from a
    synchronous test.  Raises ConfigError for wrong arguments, for an environment on
    asyncio, inside a trio run, and with a version of trio whose order of tasks it
    cannot decide; ServerStartError if the environment cannot be set up; and whatever a
    fault or a judge raises.
    """
    if trio.lowlevel.in_trio_run():
        raise ConfigError(
            "run_trial() has a loop of its own: call it from a plain function, not from a coroutine"
        )
    if clients < 1 or moments < 0 or over_s < 0:
        raise ConfigError("clients must be at least 1; moments and over_s must not be negative")
    server_limits = limits or ServerLimits()
    for each in (server_limits, client_limits):
        check_together(each, WireLimits())
    loaded = load_for_trial(environment, args or {})
    trial = Trial(seed, environment, dict(args or {}), loaded, server_limits, client_limits)
    draw = random.Random(f"trial {seed}")
    for number, given in enumerate(asks):
        ask = given if isinstance(given, Ask) else Ask(given)
        client = f"client-{draw.randrange(clients)}"
        record = AskRecord(number, ask.input, ask.kind, dict(ask.options), client)
        trial.history.asks.append(record)
    asked_s = [draw.uniform(0, over_s) for _ in trial.history.asks]
    strikes_s = sorted(draw.uniform(0, over_s) for _ in range(moments if faults else 0))
    strikes = [(at_s, draw.choice(faults)) for at_s in strikes_s]
    clock = MockClock(autojump_threshold=0)
    try:
        order = scheduler()
    except BrokenSystem as error:
        raise ConfigError(str(error)) from None
    with seeded(seed, order):
        trio.run(trial._main, asked_s, strikes, over_s + settle_s, clock=clock)
    return TrialReport(
        seed=seed,
        problems=tuple(text for judge in judges for text in judge(trial.history)),
        history=trial.history,
        trace=trial._trace.hexdigest(),
        counts=trial._tally(),
        faults=dict(trial.history.faults),
        virtual_s=trial.history.ended_s,
    )
