"""A trial of an environment: the real server and client, under faults.

::

    def test_it_survives() -> None:
        run_trial(Maze(), range(30), seed=7).check()

Theory of operation
-------------------
:func:`run_trial` runs a server with your environment and some clients, the shells that ship,
on a network in memory and the virtual clock of :mod:`~trio_envserve.retrylab`; hours pass in
milliseconds.  At random moments the clients ask, and at random moments one of the faults
strikes.  Then the faults end, and everything must come to an end: all calls answered, all
executions over, nothing left on the server.  What happens are events of retrylab
(:class:`Trial`), and what must hold is said by its judges.

One task runs the server, and starts it again when it has ended.  Each ask is a task that waits
for its moment, and so is each fault.  Faults change the network, and a filter on it loses
messages and reads the others.  A "crashed" server still ends in order, because it runs in this
process; but it is cut off first, so nobody gets its last messages.  A "killed" worker is a
cancelled task, for the same reason.

A fault is any ``async def fault(trial)``, yours too.  Each is called at a random moment and
returns when it is over; several may be on at once.  A fault draws from ``trial.rng``, so that
the seed decides.  The story shows what it returns.

The seed decides all random choices, including the order in which tasks run, so a trial that
fails fails again.  (The module ``random`` is seeded for your environment, too; threads, other
clocks and other sources are not.)

*The environment.*  Each input travels in an envelope with the name of its request, and each
value comes back in an envelope with the name of its execution, so the judges can tell whose
value a caller got.  The environment sees neither (:class:`RecordedEnvironment`).  Code of a trio
environment runs as it is.  Code that would run in a thread is called on the loop: it takes no
virtual time, and nothing happens meanwhile.  Code on an asyncio loop has a clock of its own, and
is refused.  Code that ignores its cancel again and again would never let the clock move:
:func:`guarded` counts, and ends such code.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import inspect
import random
import types
from collections import Counter
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias, Unpack, cast, final

import trio

from ..client import Client, Outcome
from ..client.driver import Driver
from ..client.opening import connect
from ..core.client import ClientCore
from ..core.errors import (
    CallError,
    ConfigError,
    DidNotRun,
    MayHaveRun,
    RanAndFailed,
    ServerNotClosed,
)
from ..core.limits import ClientLimits, ServerLimits, WireLimits, check_together
from ..core.messages import Outcome as OutcomeMessage
from ..core.messages import encode
from ..core.terms import ID_BYTES, short
from ..envs.interface import Rollout, trim_state
from ..envs.loading import LoadedEnvironment, load
from ..models.interface import Asking, Completion, Messages, Model
from ..net import MemoryNetwork, Message, Network, unwrap_single
from ..retrylab import BrokenSystem, Event, Judge, OneHolder, OneTrueAnswer, Violation, judge_log
from ..retrylab.judges import Kind
from ..retrylab.target import BaseRun
from ..retrylab.trial import on_virtual_clock
from ..retrylab.world import Events
from ..server import Server
from ..server.opening import open_setup
from ..server.options import ServerOptions, Setup
from .retransmit import RetransmittingNetwork
from .wrapped import messages_in

ADDRESS = "memory:trial"

LATENCIES_S = (0.0, 0.001, 0.05)
"""Latencies without faults; a trial draws one."""

RETRANSMIT_S = (0.05, 1.0, 30.0)
"""Pauses after which a client that retransmits sends a request again."""


# -- what is asked and told ----------------------------------------------------------------


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


class TrialAnswer(NamedTuple):
    """Answer that a caller got."""

    outcome: Outcome
    execution: str
    """Name of the execution whose value it is; empty if it is no execution's."""


# -- the environment -----------------------------------------------------------------------

CANCELS_MOST = 1000
"""Number of times that code may ignore a ``Cancelled``; then it is ended."""


NO_PROCESSES = (
    "a trial runs no processes and no sandboxes: its clock is virtual, and would pass all limits "
    "while they work; test this with the fixture envserve_server"
)
"""Refusal of what takes real time."""


class IgnoredCancel(RuntimeError):
    """The trial has ended code that ignored its cancel."""


def load_for_trial(spec: str | object, args: Mapping[str, Any]) -> LoadedEnvironment:
    """The environment, if a virtual clock can run it.  Raises ConfigError."""
    loaded = load(spec, args)
    if loaded.backend == "asyncio":
        raise ConfigError(
            f"{loaded.name} runs on an asyncio loop, which has no virtual clock: test it with "
            "the fixture envserve_server and the fault proxy instead"
        )
    return loaded


class RecordedEnvironment:
    """An environment that writes into a trial's history what another one does."""

    backend = "trio"

    def __init__(self, loaded: LoadedEnvironment, trial: Trial) -> None:
        self.name = loaded.name
        self.rerun = loaded.rerun
        self.uses_carrier = loaded.mixed
        self.model_roles = loaded.model_roles
        self._loaded = loaded
        self._trial = trial

    async def setup(self) -> None:
        """The environment's own."""
        if self._loaded.setup is not None:
            await _called(self._loaded.setup)

    async def teardown(self) -> None:
        """The environment's own."""
        if self._loaded.teardown is not None:
            await _called(self._loaded.teardown)

    async def run_rollout(self, rollout: Rollout) -> Any:
        """The environment's own, with its value in an envelope."""
        running = self._begin(rollout)
        try:
            value = await _called(self._loaded.run_rollout, running.rollout)
            return running.returned(value)
        except BaseException as error:
            running.failed(error)
            raise

    def _begin(self, rollout: Rollout) -> _Running:
        request, given = rollout.input
        own: Rollout = _TrialRollout(
            **{each.name: getattr(rollout, each.name) for each in dataclasses.fields(rollout)}
        )
        own = dataclasses.replace(own, input=given)
        if self._loaded.backend == "thread":
            own = dataclasses.replace(
                own, model=_OnTheLoop(rollout.model),
                _in_role=lambda role: _OnTheLoop(rollout._in_role(role)),
            )  # fmt: skip
        return _Running(self._trial, request, own)


@final
class RecordedGroups(RecordedEnvironment):
    """An environment that scores groups itself, likewise."""

    async def run_group(self, rollouts: list[Rollout]) -> Any:
        """The environment's own, with each value in an envelope."""
        assert self._loaded.run_group is not None
        begun = [self._begin(rollout) for rollout in rollouts]
        try:
            values = await _called(self._loaded.run_group, [each.rollout for each in begun])
        except BaseException as error:
            for running in begun:
                running.failed(error)
            raise
        if not isinstance(values, list | tuple) or len(values) != len(begun):
            values = [TypeError(f"run_group must return {len(begun)} values")] * len(begun)
        return [running.returned(value) for running, value in zip(begun, values, strict=True)]


@final
class _Running:
    """An execution, from its begin to its end."""

    def __init__(self, trial: Trial, request: str, rollout: Rollout) -> None:
        trial.counts["executions"] += 1
        self.rollout = rollout
        self._name = f"execution {trial.counts['executions'] - 1}"
        self._request = request
        self._trial = trial
        again = f", attempt {rollout.attempt}" * (rollout.attempt > 1)
        trial.write("began", self._name, request, rollout.attempt, f"{self._name} begins{again}")

    def returned(self, value: Any) -> Any:
        """The value in an envelope; an error, which a group's member may have, as it is."""
        if isinstance(value, BaseException):
            self.failed(value)
            return value
        value = trim_state(value, self.rollout.state_columns)
        self._trial.write("did", self._name, self._request, value, f"{self._name} returns")
        self._trial.write("ended", self._name, self._request)
        return {"execution": self._name, "value": value}

    def failed(self, error: BaseException) -> None:
        """Note that the code has raised, or let its cancel through."""
        cancelled = isinstance(error, trio.Cancelled)
        how = "was cancelled" if cancelled else f"raised {type(error).__name__}"
        self._trial.write("ended", self._name, self._request, error, f"{self._name} {how}")


async def _called(code: Callable[..., Any], *arguments: Any) -> Any:
    """Run environment code to its end; a plain or a coroutine function."""
    value = code(*arguments)
    if inspect.iscoroutine(value):
        return await guarded(value)
    return await value if inspect.isawaitable(value) else value


@types.coroutine
def guarded(code: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Await ``code``, and end it if it keeps ignoring its cancel.

    (trio resumes a task by sending it an outcome, which the innermost function
    unwraps: that is where a ``Cancelled`` is seen on its way in.)
    """
    cancels = 0
    sent: Any = None
    while True:
        try:
            trap = code.send(sent)
        except StopIteration as stop:
            return stop.value
        try:
            sent = yield trap
        except BaseException:  # noqa: ASYNC103
            code.close()  # trio throws nothing into a task: this one is being discarded
            raise
        cancels += isinstance(getattr(sent, "error", None), trio.Cancelled)
        if cancels > CANCELS_MOST:
            with contextlib.suppress(RuntimeError):  # it ignores this, too
                code.close()
            raise IgnoredCancel(
                f"this code went on after {CANCELS_MOST} cancellations: it must let "
                "trio.Cancelled through"
            )


class _Passed:
    """The task of a checkpoint that is passed without the loop."""

    @staticmethod
    def unwrap() -> None:
        """As trio's outcome."""


def _refused(*args: Any, **options: Any) -> NoReturn:
    raise RuntimeError(NO_PROCESSES)


@final
class _TrialRollout(Rollout):
    """A rollout without processes: the virtual clock would not wait for what they do."""

    process = run = run_sync = sandbox = _refused


@final
class _OnTheLoop:
    """The model of a rollout whose code is called on the loop instead of in a thread."""

    def __init__(self, model: Model) -> None:
        self._model = model

    async def complete(self, messages: Messages, **how: Unpack[Asking]) -> Completion:
        """The model's own."""
        return await self._model.complete(messages, **how)

    def complete_sync(self, messages: Messages, **how: Unpack[Asking]) -> Completion:
        """The model's own, run through without the loop: the offline models, all
        that a trial has, never wait for anything."""
        asked = self._model.complete(messages, **how)
        sent: Any = None
        while True:
            try:
                asked.send(sent)
            except StopIteration as stop:
                return cast(Completion, stop.value)
            sent = _Passed

    async def aclose(self) -> None:
        """The model's own."""
        await self._model.aclose()


# -- what must hold ------------------------------------------------------------------------

ALLOWANCE = ClientLimits().max_executions
"""Executions of an ask with consent, if it does not say how many."""


class OneAtATime(OneHolder):
    """G1: no request has two live executions."""

    guarantee = "G1"

    def see(self, event: Event) -> Iterator[Violation]:
        """Violation by an execution that begins beside another one."""
        yield from super().see(event._replace(what=event.request))


class WithConsent(Judge):
    """G2: a request is executed once; with consent, as often as it allows."""

    def __init__(self) -> None:
        self.reruns = False
        """The environment's consent to a further execution."""
        self.left: dict[str, int] = {}

    def see(self, event: Event) -> Iterator[Violation]:
        """Violation by one execution too many; a repetition inside of one is none."""
        match event.kind:
            case "phase" if event.actor == "begin":
                self.reruns = event.what["rerun"]
            case "asked":
                options = event.what.options
                consent = options.get("rerun")
                consents = self.reruns if consent is None else consent
                most = options.get("max_executions") or ALLOWANCE
                self.left[event.request] = int(most) if consents else 1
            case "began" if event.what == 1:
                self.left[event.request] -= 1
                if self.left[event.request] < 0:
                    yield event.breaks("G2", f"{event.request} was executed more than allowed")


class OneTrueOutcome(OneTrueAnswer):
    """G3: a caller gets the value of an execution of its request, and all outcomes that were
    sent for one request are the same bytes.  G9: each caller gets something."""

    guarantee = "G3"

    def __init__(self) -> None:
        super().__init__()
        self.sent: dict[str, str] = {}

    def see(self, event: Event) -> Iterator[Violation]:
        """Violation by a value that is another's, or by a second outcome."""
        match event.kind:
            case "sent" if self.sent.setdefault(event.request, event.what) != event.what:
                yield event.breaks("G3", f"{event.request} was answered with different outcomes")
            case "did":
                event = event._replace(what=event.actor)
            case "told" if event.what.outcome.ok:
                event = event._replace(what=event.what.execution)
            case "told":
                event = event._replace(kind="withdrawn")  # its error is for NoSilentWait
        yield from super().see(event)

    def rest(self, at_s: float) -> Iterator[Violation]:
        """Violations by callers that are never told."""
        yield from (Violation("G9", at_s, v.text, v.key) for v in super().rest(at_s))


class KeptUntilReceived(Judge):
    """G4: a value that the environment has returned reaches its caller, unless the server ended
    before, the worker was killed, or client and server heard nothing of each other for so long
    that either may have given up."""

    def __init__(self) -> None:
        self.patience_s = 0.0
        self.apart_s = 0.0
        self.bound: set[str] = set()
        """Requests whose values must arrive: rollouts without a time limit."""
        self.kept: dict[str, str] = {}
        """By execution whose server and worker live: its request."""
        self.returned: dict[str, str] = {}
        """By request: an execution that has returned a value, and whose server and worker live."""
        self.found: list[Violation] = []

    def see(self, event: Event) -> None:
        """Follow executions; violations are certain at the end."""
        match event.kind:
            case "phase" if event.actor == "begin":
                self.patience_s = event.what["patience_s"]
            case "asked" if event.what.kind == "rollout" and "timeout_s" not in event.what.options:
                self.bound.add(event.request)
            case "began":
                self.kept[event.actor] = event.request
            case "did" if event.actor in self.kept:
                self.returned[event.request] = event.actor
            case "died":
                self.kept.clear()
                self.returned.clear()
            case "harmed" if event.actor == "network":
                self.apart_s = max(self.apart_s, event.what)
            case "told" if event.request in self.bound and event.request in self.returned:
                error = event.what.outcome.error
                if isinstance(error, MayHaveRun):
                    text = f"{self.returned[event.request]} of {event.request} returned a value, "
                    self.found.append(event.breaks("G4", f"{text}and its caller got: {error}"))

    def rest(self, at_s: float) -> list[Violation]:
        """Violations, if neither side had a reason to give up."""
        return self.found if self.apart_s < self.patience_s else []


class CancelIsComplete(Judge):
    """G7: an execution whose request was cancelled or answered does not run any more."""

    def __init__(self) -> None:
        self.running: dict[str, str] = {}
        """By execution: its request."""
        self.over: dict[str, tuple[str, float]] = {}
        """By request: how its call ended, and when."""

    def see(self, event: Event) -> Iterator[Violation]:
        """Violation by code that ignores its cancel."""
        match event.kind:
            case "told":
                self.over[event.request] = "its call ended", event.at_s
            case "withdrawn":
                self.over[event.request] = "its caller was cancelled", event.at_s
            case "began":
                self.running[event.actor] = event.request
            case "ended":
                self.running.pop(event.actor, None)
                if isinstance(event.what, IgnoredCancel):
                    text = f"{event.actor} of {event.request} ignores its cancel: {event.what}"
                    yield event.breaks("G7", text)

    def rest(self, at_s: float) -> Iterator[Violation]:
        """Violations by executions that still run, though nobody wants them."""
        for execution, request in self.running.items():
            if request in self.over:
                why, ended_s = self.over[request]
                text = f"{execution} of {request} still ran {at_s - ended_s:.0f} s after {why}"
                yield Violation("G7", at_s, text, request)


class NoSilentWait(Judge):
    """G9: what callers are told of executions is true, and nothing is left on the server."""

    def __init__(self) -> None:
        self.begun: set[str] = set()
        """Asks of which something has begun."""

    def see(self, event: Event) -> Iterator[Violation]:
        """Violation by an untrue verdict, or by what is left."""
        ask, _, _ = event.request.partition(".")  # a group has one verdict
        match event.kind:
            case "began":
                self.begun.add(ask)
            case "told":
                error = event.what.outcome.error
                name = f"{event.request}: {type(error).__name__}"
                if isinstance(error, DidNotRun) and ask in self.begun:
                    yield event.breaks("G9", f"{name} says that it did not run, and it did")
                if isinstance(error, RanAndFailed) and ask not in self.begun:
                    yield event.breaks("G9", f"{name} says that it ran, and it did not")
            case "phase" if event.actor == "rest":
                for what, count in event.what.items():
                    if count:
                        yield event.breaks("G9", f"the server is left with {count} {what}")


JUDGES: Sequence[Callable[[], Judge]] = (
    OneAtATime, WithConsent, OneTrueOutcome, KeptUntilReceived, CancelIsComplete, NoSilentWait,
)  # fmt: skip
"""The default judges of :func:`run_trial`: by what the environment's code and the callers saw,
never by what the server says."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialReport(BaseRun[Any]):
    """The finding of the judges, and what they saw.  ``str()`` of it is for people.

    The trace has the events in words; the digest also has the header of every message.  The
    same seed gives the same on every machine.
    """

    history: tuple[Event, ...]
    """Events, in order."""
    counts: dict[str, int]
    """Numbers of what happened: ``asked``, ``told``, ``withdrawn``, ``executions``, ``lives`` of
    the server, messages ``sent`` and ``lost``, requests ``retransmitted``, and the server's own
    ``coalesced``, ``replayed``, ``reruns``."""

    def outcomes(self) -> dict[str, Outcome]:
        """By request: the outcome that its caller got."""
        return {each.request: each.what.outcome for each in self.history if each.kind == "told"}

    @property
    def ok(self) -> bool:
        """Whether no judge found a violation."""
        return not self.violations

    def check(self) -> None:
        """Raise AssertionError, with everything that is known, if there is a violation."""
        if self.violations:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        faults = ", ".join(f"{name} x{count}" for name, count in sorted(self.faults.items()))
        head = (
            f"trial with seed {self.seed}: {len(self.violations)} violations in "
            f"{self.virtual_s:.0f} virtual seconds ({counts}; faults: {faults or 'none'})"
        )
        if not self.violations:
            return head
        found = "\n".join(f"  - {text}" for text in self.violations)
        keys = {violation.key for violation in self.violations} - {""}
        shown = [r for r in self.trace if not keys or r.who in keys or not r.who.startswith("ask ")]
        story = "\n".join(record.text(str) for record in shown)
        return f"{head}\n{found}\nwhat happened to them:\n{story}"


# -- the trial -----------------------------------------------------------------------------


@final
class Trial:
    """A running trial, as its faults see it.  Made by :func:`run_trial`.

    The events: ``asked``, ``told`` and ``withdrawn`` are a client's, for a request: the ask,
    or one member of a group.  ``began``, ``did`` and ``ended`` are an execution's.  The server
    is ``serving``, and it or its workers ``died``; it has ``sent`` the outcome of this digest.
    ``harmed``: by a fault, or the network for so many seconds.  ``phase``: the ``begin`` (what
    is allowed) and the ``rest`` (what is left).
    """

    def __init__(
        self, seed: int, environment: str | object, args: dict[str, Any],
        limits: ServerLimits, client_limits: ClientLimits,
    ) -> None:  # fmt: skip
        self.seed = seed
        self.rng = random.Random(f"faults {seed}")
        """Faults draw from it, so that the seed decides."""
        self.network = MemoryNetwork()
        """Joins clients and server.  Its filter is the trial's own."""
        self.address = ADDRESS
        self.history: list[Event] = []
        """The events so far."""
        self.server: Server | None = None
        """The server that runs now; None while there is none."""
        self.counts = Counter[str]()
        """See :attr:`TrialReport.counts`."""
        self.faults = Counter[str]()
        self.events = Events[bytes](bytes, trace=True)
        self._environment = environment
        self._args = args
        self._loaded: LoadedEnvironment | None = load_for_trial(environment, args)
        self._limits = limits
        self._client_limits = client_limits
        self._ids = random.Random(f"ids {seed}")
        self._losses = random.Random(f"losses {seed}")
        self._shares: list[float] = []
        self._apart = 0
        self._callers: dict[int, trio.CancelScope] = {}
        self._clients: dict[str, Client] = {}
        self._impatient = RetransmittingNetwork(self.network, pauses_s=RETRANSMIT_S)
        self._restarting = trio.Lock()
        self._stop = trio.Event()
        self._up = trio.Event()
        self._drain_s = 0.0
        self._down_s = 0.0
        self._over = False

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
            self.write("harmed", "network", what=trio.current_time() - began_s)

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
            self.write("died", "workers")
        return len(lives)

    def cancel_ask(self, number: int | None = None) -> int | None:
        """Cancel the caller of an ask, or of a drawn one; None if none is pending."""
        pending = sorted(self._callers)
        if number is None and pending:
            number = self.rng.choice(pending)
        if number not in self._callers:
            return None
        self._callers[number].cancel()
        return number

    # -- what happens ------------------------------------------------------------

    async def _main(
        self, asks: Sequence[tuple[float, str, Ask]], strikes: Sequence[tuple[float, Fault]],
        limit_s: float,
    ) -> None:  # fmt: skip
        """All of it.  ``asks``: each with its moment and its client."""
        assert self._loaded is not None
        patience_s = min(self._limits.lease_s, self._client_limits.recovery_s)
        wants = {"rerun": self._loaded.rerun, "patience_s": patience_s}
        self.write("phase", "begin", what=wants)
        draw = random.Random(f"system {self.seed}")
        self.network.latency_s = draw.choice(LATENCIES_S)
        self.network.filter = self._filter
        with unwrap_single():
            async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
                await nursery.start(self._serve)
                for name in sorted({client for _, client, _ in asks}):
                    network: Network = self.network if draw.random() < 0.5 else self._impatient
                    self._clients[name] = await stack.enter_async_context(
                        connect(self._client(name), network)
                    )
                with trio.move_on_at(limit_s), unwrap_single():
                    async with trio.open_nursery() as busy:
                        for number, (at_s, client, ask) in enumerate(asks):
                            busy.start_soon(self._ask, number, at_s, client, ask)
                        for at_s, fault in strikes:
                            busy.start_soon(self._strike, fault, at_s)
                with trio.move_on_after(limit_s):
                    await self._settle()
                self.write("phase", "rest", what=self._left())
                self._over = True
                nursery.cancel_scope.cancel()
        assert self.server is None

    def _client(self, name: str) -> Client:
        core = ClientCore(
            name=name, new_id=self._new_id, now_s=trio.current_time(), limits=self._client_limits
        )
        return Client(Driver(core, ADDRESS), "auto", core.wire)

    async def _ask(self, number: int, at_s: float, client: str, ask: Ask) -> None:
        await trio.sleep_until(at_s)
        group, name = ask.kind == "group", f"ask {number}"
        inputs = ask.input if group else [ask.input]
        requests = [f"{name}.{member}" if group else name for member in range(len(inputs))]
        for request, given in zip(requests, inputs, strict=True):
            own = Ask(given, kind=ask.kind, **ask.options)
            self.write("asked", client, request, own, f"{client} asks")
        envelopes = [[request, given] for request, given in zip(requests, inputs, strict=True)]
        with trio.CancelScope() as scope:
            self._callers[number] = scope
            try:
                outcome = await self._clients[client].outcome(
                    envelopes if group else envelopes[0], kind=ask.kind, **ask.options
                )
            finally:
                del self._callers[number]
            self._answered(client, requests, outcome)
        if scope.cancelled_caught:
            for request in requests:
                self.write("withdrawn", client, request, None, "its caller is cancelled")

    def _answered(self, client: str, requests: Sequence[str], outcome: Outcome) -> None:
        """Open the envelopes that the caller got."""
        members = [outcome] * len(requests)
        if requests[0].count(".") and outcome.ok:
            with contextlib.suppress(CallError):  # else a value that no execution returned
                members = Outcome.members(outcome)
        for request, member in zip(requests, members, strict=True):
            execution = ""
            match member.value:
                case {"execution": str(execution), "value": value}:
                    member = dataclasses.replace(member, value=value)
            answer = "a value" if member.ok else type(member.error).__name__
            self.write("told", client, request, TrialAnswer(member, execution), f"is told {answer}")

    async def _strike(self, fault: Fault, at_s: float) -> None:
        await trio.sleep_until(at_s)
        name = getattr(fault, "__name__", type(fault).__name__)
        self.faults[name] += 1
        self.write("harmed", name, words="begins")
        answer = await fault(self)
        self.write("harmed", name, words=str(answer) if answer else "is over")

    async def _serve(self, *, task_status: trio.TaskStatus[None]) -> None:  # noqa: ASYNC128  # _live does
        """Run the server, one life after the other."""
        while True:
            self._stop = trio.Event()
            try:
                await self._live(task_status)
            except* ServerNotClosed:  # what still runs is judged by its own events
                self.note("server", "has closed, and something of it still runs")
            await trio.sleep(self._down_s)

    async def _live(self, task_status: trio.TaskStatus[None]) -> None:
        """One life of the server."""
        setup = Setup(
            options=ServerOptions(self._make, bind=ADDRESS, workers=0, network=self.network),
            name="trial", limits=self._limits, new_id=self._new_id,
        )  # fmt: skip
        async with open_setup(setup) as server:
            self.counts["lives"] += 1
            if self.counts["lives"] == 1:
                await server.wait_ready()
                task_status.started()
            self.write("serving", "server")
            self.server = server
            self._up.set()
            try:
                await self._stop.wait()
                self.write("died", "server")
                if self._drain_s:
                    await server.drain(self._drain_s)
            finally:
                self.server = None
                cache = server.stats().cache
                for name in ("coalesced", "replayed", "reruns"):
                    self.counts[name] += getattr(cache, name)

    def _make(self) -> Any:
        """The environment of a new worker: a new one if a class or factory makes it."""
        loaded, self._loaded = self._loaded, None
        loaded = loaded or load_for_trial(self._environment, self._args)
        kind = RecordedGroups if loaded.run_group is not None else RecordedEnvironment
        return kind(loaded, self)

    def _left(self) -> dict[str, int]:
        """Numbers of requests that the server still holds."""
        if self.server is None:
            return {}
        stats = self.server.stats()
        return {"running": stats.running, "waiting": stats.waiting, "kept": stats.kept}

    async def _settle(self) -> None:
        """Wait until nothing runs and the server holds nothing."""
        while True:
            running = self.counts["began"] > self.counts["ended"]
            if self.server is not None and not running and not any(self._left().values()):
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
        self.events.now_s = trio.current_time()
        self.events.note_message("network", direction, header)
        self.counts["sent"] += 1
        if direction == "to_dealer":
            for message, body in messages_in(frames):
                if isinstance(message, OutcomeMessage):
                    request = f"{short(message.session)}/{message.sequence}"
                    data = encode(message) + bytes(body or b"")
                    digest = hashlib.blake2b(data, digest_size=8).hexdigest()
                    self.history.append(self._event("sent", "server", request, digest))
        if any(self._losses.random() < share for share in self._shares):
            self.counts["lost"] += 1
            return False
        return True

    def _new_id(self) -> bytes:
        return self._ids.randbytes(ID_BYTES)

    # -- what is written -----------------------------------------------------------

    def write(
        self, kind: Kind, actor: str, request: str = "", what: Any = None, words: str = ""
    ) -> None:
        """Add an event to the history, and in words to the story; none when all is over.

        Args:
            kind: Kind of the event.
            actor: Name of the client, execution, fault or place.
            request: Name of the request; empty if it is of none.
            what: See the kinds above.
            words: Event in words.
        """
        if not self._over:
            self.counts[kind] += 1
            self.history.append(self._event(kind, actor, request, what))
            self.note(request or actor, words or kind)

    def note(self, who: str, words: str) -> None:
        """Add a line to the story."""
        self.events.now_s = trio.current_time()
        self.events.note(who, words)

    def _event(self, kind: Kind, actor: str, request: str, what: Any) -> Event:
        return Event(trio.current_time(), kind, actor, request, what)

    def _report(self, judges: Iterable[Callable[[], Judge]]) -> TrialReport:
        self.counts["retransmitted"] = self._impatient.retransmitted
        return TrialReport(
            seed=self.seed,
            plan=None,
            violations=tuple(judge_log(judges, self.history)),
            events=len(self.history),
            virtual_s=self.history[-1].at_s,
            faults=dict(self.faults),
            told={name: self.counts[name] for name in ("told", "withdrawn")},
            digest=self.events.digest(),
            trace=tuple(r for r in self.events.trace or () if r.message is None),
            history=tuple(self.history),
            counts={name: self.counts[name] for name in COUNTED},
        )


COUNTED = (
    "asked", "told", "withdrawn", "executions", "lives", "retransmitted", "sent", "lost",
    "coalesced", "replayed", "reruns",
)  # fmt: skip


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
    """Lose some messages, in either direction, for up to 20 s."""
    share, for_s = trial.rng.uniform(0.05, 0.6), trial.rng.uniform(1, 20)
    await trial.lose(share, for_s)
    return f"of {share:.0%} for {for_s:.1f} s"


async def latency(trial: Trial) -> object:
    """Delay messages by up to 3 s, for up to 20 s."""
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


def run_trial(
    environment: str | object, asks: Iterable[Any], *,
    args: Mapping[str, Any] | None = None, seed: int = 0,
    faults: Sequence[Fault] = FAULTS, judges: Sequence[Callable[[], Judge]] = JUDGES,
    moments: int = 8, over_s: float = 60.0, clients: int = 2,
    limits: ServerLimits | None = None, client_limits: ClientLimits = CLIENT_LIMITS,
    settle_s: float = 900.0,
) -> TrialReport:  # fmt: skip
    """Ask ``environment`` for rollouts under faults, and judge what happens.

    ``environment``, ``args``: as for :func:`~trio_envserve.open_server` with
    ``workers=0``.  ``asks``: inputs, or :class:`Ask` for an input with options.  They
    are made at random moments within ``over_s`` virtual seconds by ``clients``
    clients, some of which send everything again.  At ``moments`` random moments one
    of ``faults`` strikes; add your own as ``(*FAULTS, mine)``, and your own judge, a class, as
    ``(*JUDGES, Mine)``.  ``faults=()`` is a trial without faults.

    When the faults are over, calls have ``settle_s`` virtual seconds to end.
    ``limits`` are the server's, ``client_limits`` the clients'.  (An hour of rollouts
    is some 100,000 steps of its clocks, and takes seconds.)

    This is a plain function with a loop and a clock of its own, so call it from a
    synchronous test.  Raises ConfigError for wrong arguments, for an environment on
    asyncio, inside a trio run, and with a version of trio whose order of tasks it
    cannot decide; ServerStartError if the environment cannot be set up; and whatever a
    fault or a judge raises.
    """
    if clients < 1 or moments < 0 or over_s < 0:
        raise ConfigError("clients must be at least 1; moments and over_s must not be negative")
    server_limits = limits or ServerLimits()
    for each in (server_limits, client_limits):
        check_together(each, WireLimits())
    trial = Trial(seed, environment, dict(args or {}), server_limits, client_limits)
    draw = random.Random(f"trial {seed}")
    given = [ask if isinstance(ask, Ask) else Ask(ask) for ask in asks]
    names = [f"client-{draw.randrange(clients)}" for _ in given]
    asked_s = [draw.uniform(0, over_s) for _ in given]
    strikes_s = sorted(draw.uniform(0, over_s) for _ in range(moments if faults else 0))
    strikes = [(at_s, draw.choice(faults)) for at_s in strikes_s]
    asking = [*zip(asked_s, names, given, strict=True)]
    try:
        on_virtual_clock(seed, trial._main, asking, strikes, over_s + settle_s)
    except BrokenSystem as error:
        raise ConfigError(str(error)) from None
    return trial._report(judges)
