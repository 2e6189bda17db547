"""The client: calls, and what is known of the server.

Theory of operation
-------------------
A :class:`~.driver.Driver` runs the core; this module turns inputs into requests and
answers into outcomes.  A call is the caller's own task, which waits for its outcome.
Cancelling that scope cancels the rollout on the server at once, and does not wait for
it: the bookkeeping is synchronous and comes before the next await.  Shared calls go on
(:mod:`.driver`).

An outcome is received when the caller's task has decoded it.  Only then does the
client acknowledge it.

Many calls (:meth:`Client.run_many`) have one task together: one of its own would cost a call
more than all the rest of it.  This *feeder* submits calls while fewer than ``in_flight`` are
under way or have ended and were not taken.  The task that iterates decodes an outcome as it
takes it; only then is it received.  An input or an outcome that takes long to encode or decode
gets a task after all, so that it holds up nobody; but only a few outcomes are decoded before
they are taken.
"""

from __future__ import annotations

import dataclasses
import os
from collections import deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Sequence,
)
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from itertools import starmap
from typing import Any, Literal, TypeVar, Unpack, final

import trio

from ..core import values
from ..core.client import Answer, CallKey, Fail, Terms
from ..core.errors import (
    CallError,
    EnvironmentBroken,
    OutcomeNotDecodable,
    ProtocolError,
    ServerNotReady,
    error_from_info,
)
from ..core.health import Health, ServerHealth, ServerStatus
from ..core.key_records import KeyAct
from ..core.limits import WireLimits
from ..core.notes import Note
from ..core.status import ClientCounters, KeyPage, RunningPage, ServerStats
from ..core.terms import ID_BYTES, Body, SentBody
from ..net import unwrap_single
from ..turns import Threads
from .driver import Driver, Ended, Hold, OnDelta, OnNote
from .options import (
    DEFAULT_NAMESPACE,
    Asked,
    CallOptions,
    Encoded,
    checked,
    key_name,
    natural,
    seconds,
    several,
)
from .outcome import Outcome, not_encodable

Arrays = Literal["auto", "numpy", "torch"]
"""The type of arrays in outcomes: numpy's or torch's, whatever was sent; with ``auto`` numpy's if
it is installed, else ``array.array``."""


AT_ONCE = 64
"""Number of calls that are submitted, or outcomes that are taken, before other tasks have a
turn."""

DECODED_AHEAD = 2
"""Most large outcomes that are decoded before they are taken: no limit counts their values."""

BUSY_S = 0.05
"""Pause before a server that was asked too many questions at once is asked again."""

P = TypeVar("P", KeyPage, RunningPage)


@dataclasses.dataclass(frozen=True, slots=True)
class KeyEnded:
    """The effect of a cancel or a forget by key."""

    known: bool
    """Whether there was work, or its outcome, under the key."""
    started: bool
    """False: it had never been started, and now never will be.  True: it may have run."""
    finished: bool = False
    """Whether the key had its outcome before the cancel, and keeps it: ``attach`` gets it."""


@final
class _DecodedOnce:
    """The outcome of a large answer for which several callers may wait."""

    def __init__(self) -> None:
        self.callers = 0
        self.lock = trio.Lock()
        self.outcome: Outcome | None = None


@final
class Client:
    """A connection to a server.  Made by :func:`~trio_envserve.open_client`.

    All calls may be made by any number of tasks at once.
    """

    def __init__(self, driver: Driver, arrays: Arrays, wire: WireLimits) -> None:
        self._driver = driver
        self._arrays: Arrays = arrays
        self._wire = wire
        self._threads = Threads()
        self._decoding: dict[int, _DecodedOnce] = {}
        """Large answers that are being decoded, by the number of their call."""

    # -- calls ----------------------------------------------------------------

    async def run_rollout(self, input: Any, **options: Unpack[CallOptions]) -> Any:
        """Run one rollout and return its result.

        Raises :class:`~trio_envserve.DidNotRun`, :class:`~trio_envserve.RanAndFailed` or
        :class:`~trio_envserve.MayHaveRun`, and ConfigError for wrong options.

        Args:
            input: Any encodable value, as the environment wants it.
            **options: Options of the call: :class:`~trio_envserve.CallOptions`.
        """
        return (await self._run(checked(input, **options))).unwrap()

    async def run_group(
        self, inputs: Sequence[Any], **options: Unpack[CallOptions]
    ) -> list[Outcome]:
        """Run several inputs as one request, scored together; one outcome for each, in order.
        Raises if the group as a whole has no result; a member that failed is an outcome with an
        error.

        Args:
            inputs: Input of each member.
            **options: Options of the call: :class:`~trio_envserve.CallOptions`.
        """
        whole = await self.outcome(list(several(inputs)), kind="group", **options)
        return Outcome.members(whole)

    async def outcome(
        self, input: Any, *, kind: Literal["rollout", "group", "rescore"] = "rollout",
        **options: Unpack[CallOptions],
    ) -> Outcome:  # fmt: skip
        """Like :meth:`run_rollout`, but an error is part of the outcome that
        is returned, with worker, duration and executions as far as known.

        Args:
            input: As of :meth:`run_rollout`, or what the kind says.
            kind: With ``group`` the input is a list of inputs that are scored together; with
                ``rescore`` it is ``{"input": ..., "value": ...}``, those of an earlier rollout, and
                the value is scored anew.
            **options: Options of the call: :class:`~trio_envserve.CallOptions`.
        """
        return await self._run(checked(input, kind=kind, **options))

    async def _run(
        self, asked: Asked, on_delta: OnDelta | None = None, on_note: OnNote | None = None,
        hold: Hold | None = None, *, is_large: bool = False,
    ) -> Outcome:  # fmt: skip
        """The outcome of a call.  ``is_large``: its input is known to take long to encode."""
        try:
            encoded = await self._encode(asked, is_large=is_large)
        except values.EncodingError as error:
            return Outcome.failed(not_encodable(error))
        await trio.lowlevel.checkpoint_if_cancelled()  # a shared call would go on
        return await self._run_encoded(encoded, on_delta, on_note, hold)

    async def _encode(self, asked: Asked, *, is_large: bool = False) -> Encoded:
        """Encode a call's input, in a thread if that takes long.  Raises EncodingError."""
        if not is_large and (encoded := asked.at_once(self._wire)) is not None:
            return encoded
        try:
            return await self._threads.run(lambda pause: asked.encode(self._wire, pause))
        except values.NotHere:  # the input's own code, which belongs to this thread
            body = asked.encoded(self._wire)
        return Encoded(body, await self._threads.run(lambda pause: asked.terms_of(body)))

    async def _run_encoded(
        self, encoded: Encoded, on_delta: OnDelta | None = None, on_note: OnNote | None = None,
        hold: Hold | None = None,
    ) -> Outcome:  # fmt: skip
        began_s = trio.current_time()
        body, terms = encoded
        ended = await self._call(body, began_s, terms, on_delta, on_note, hold)
        took_s = trio.current_time() - began_s
        try:
            return self._outcome_at_once(ended, took_s)
        except values.TooMuchWork:
            return await self._outcome_large(ended, took_s)

    async def _call(
        self, body: SentBody, now_s: float, terms: Terms, on_delta: OnDelta | None = None,
        on_note: OnNote | None = None, hold: Hold | None = None,
    ) -> Ended:  # fmt: skip
        """Submit, and wait in the caller's own task.  With ``hold`` the call is shared."""
        task, waits = trio.lowlevel.current_task(), False
        box: list[Ended] = []

        def ended(what: Ended) -> None:
            box.append(what)
            if waits:
                trio.lowlevel.reschedule(task)

        def abort(_: object) -> trio.lowlevel.Abort:
            nonlocal waits
            waits = False  # whatever arrives now wakes nobody
            return trio.lowlevel.Abort.SUCCEEDED

        shared = None
        if hold is None:
            number = self._driver.submit(body, now_s, terms, ended, on_delta, on_note)
        else:
            shared = self._driver.share(body, now_s, terms, ended, hold)
        try:
            if box:  # it has ended at once
                await trio.lowlevel.checkpoint()
            else:
                # No Event: each call has one waiter, and this is a fifth of what it costs.
                waits = True
                await trio.lowlevel.wait_task_rescheduled(abort)
        except BaseException:
            if shared is None:
                self._driver.cancel((number,))
            else:
                shared.waiting.remove(ended)
                for each in box:  # too late for this task
                    self._driver.received(each)
            raise
        return box[0]

    def _outcome_at_once(self, ended: Ended, took_s: float) -> Outcome:
        """The caller's outcome.  Raises TooMuchWork if that takes long; it is not received then."""
        try:
            outcome = self._read(ended, took_s, at_once=True)
        except values.TooMuchWork:
            raise
        except BaseException:
            self._driver.received(ended)  # interrupted: nobody else takes the answer
            raise
        self._driver.received(ended)
        return outcome

    async def _outcome_large(self, ended: Ended, took_s: float) -> Outcome:
        """The caller's outcome of a large answer, which is decoded in a thread, and once for all
        callers of a shared call."""
        assert not isinstance(ended, Fail)
        once = self._decoding.setdefault(ended.call, _DecodedOnce())
        once.callers += 1
        try:
            async with once.lock:
                if once.outcome is None:
                    once.outcome = await self._threads.run(
                        lambda pause: self._read(ended, took_s, pause=pause)
                    )
        except Exception as problem:  # no thread can be started, say: the caller gets what there is
            once.outcome = _outcome_of(ended, None, _not_decodable(problem, ended.body), took_s)
        finally:
            # Also when this task is cancelled or interrupted: nobody else takes the answer.
            self._driver.received(ended)
            once.callers -= 1
            if not once.callers:
                del self._decoding[ended.call]
        return dataclasses.replace(once.outcome, took_s=took_s)

    def _read(self, ended: Ended, took_s: float, **how: Any) -> Outcome:
        """The outcome of a call that has ended.  ``how``: options of :func:`.values.decode`; with
        ``at_once``, raises TooMuchWork if that takes long."""
        if isinstance(ended, Fail):
            return Outcome.failed(error_from_info(ended.info), took_s=took_s)
        error: CallError | None = None
        value: Any = None
        try:
            if ended.error is None:
                value = self._decode(ended.body, **how)
            else:
                error = error_from_info(ended.error)
        except values.TooMuchWork:
            raise
        except Exception as problem:
            # Whatever went wrong (memory, say), the caller gets what there is.
            error = _not_decodable(problem, ended.body)
        return _outcome_of(ended, value, error, took_s)

    def _decode(self, body: Body, **how: Any) -> object:
        return values.decode(body, arrays=self._arrays, root="result", limits=self._wire, **how)

    @asynccontextmanager
    async def run_many(
        self, inputs: Iterable[Any], *, in_flight: int = 1000,
        on_note: Callable[[int, Note], object] | None = None, **options: Unpack[CallOptions],
    ) -> AsyncIterator[Outcomes]:  # fmt: skip
        """Run one rollout for each input, at most ``in_flight`` at a time::

            async with client.run_many(inputs) as outcomes:
                async for index, outcome in outcomes:
                    ...

        Outcomes come as they finish; an error is an outcome too.  Leaving the block early cancels
        what is left.  Outcomes that had come by then, and were not iterated, are those of
        ``outcomes.arrived()``.

        Args:
            inputs: Input of each rollout; read as calls are made.
            in_flight: Most calls at once.
            on_note: Called with the index of an input and the fields of its rollout's last note, at
                most about once a second. It must be quick. If it raises, the error is logged, and
                it hears no more of that rollout.
            **options: Options of the call: :class:`~trio_envserve.CallOptions`. A key is that of
                all, followed by ``/`` and the index.
        """
        calls = starmap(checked(None, **options).member, enumerate(several(inputs)))
        async with open_many(self, calls, in_flight, on_note) as outcomes:
            yield outcomes

    # -- keys -----------------------------------------------------------------

    async def attach(
        self, key: str, *, namespace: str = DEFAULT_NAMESPACE, timeout_s: float | None = None
    ) -> Outcome:
        """Wait for the outcome of the work under a key, whoever asked for it, without its
        input.  It starts nothing, and keeps no work going.  The error is
        :class:`~trio_envserve.UnknownKey` if the server knows nothing of the key.

        Args:
            key: The key.
            namespace: Owner of the key.
            timeout_s: Longest wait in seconds; None: as long as the caller's cancel scope allows.
        """
        return await self._of_key(KeyAct.ATTACH, key, namespace, timeout_s)

    async def cancel_key(
        self, key: str, *, namespace: str = DEFAULT_NAMESPACE, timeout_s: float | None = None
    ) -> KeyEnded:
        """Cancel the work of a key, whoever waits for it.  What has its outcome keeps it, and
        the answer says so (``finished``).  If nothing is known under the key, nothing is
        cancelled: an ask that is on its way is ended by cancelling its call.

        Args:
            key: The key.
            namespace: Owner of the key.
            timeout_s: Longest wait in seconds; None: as long as the caller's cancel scope allows.
        """
        return await self._end(KeyAct.CANCEL, key, namespace, timeout_s)

    async def forget(
        self, key: str, *, namespace: str = DEFAULT_NAMESPACE, timeout_s: float | None = None
    ) -> KeyEnded:
        """Drop a key and its outcome; what runs is cancelled first.  The next ask of the
        key is new work.

        Args:
            key: The key.
            namespace: Owner of the key.
            timeout_s: Longest wait in seconds; None: as long as the caller's cancel scope allows.
        """
        return await self._end(KeyAct.FORGET, key, namespace, timeout_s)

    async def _end(
        self, act: KeyAct, key: str, namespace: str, timeout_s: float | None
    ) -> KeyEnded:
        tag = os.urandom(ID_BYTES)
        return _ended(await self._of_key(act, key, namespace, timeout_s, tag))

    async def _of_key(
        self, act: KeyAct, key: str, namespace: str, timeout_s: float | None,
        tag: bytes | None = None,
    ) -> Outcome:  # fmt: skip
        asks = CallKey(act, key_name(key, namespace), tag=tag)
        terms = Terms(limit_s=seconds(timeout_s), key=asks)
        return await self._run_encoded(Encoded(b"", terms))

    async def list_keys(
        self, namespace: str | None = DEFAULT_NAMESPACE, *, first: int = 0,
        timeout_s: float | None = None,
    ) -> KeyPage:  # fmt: skip
        """A page of the keys that the server knows, in the order in which they were asked for.  Go
        on with ``first=page.next`` until that is None.  Errors as of :meth:`stats`.

        Args:
            namespace: Owner of the keys; None: all of them.
            first: Where the page begins.
            timeout_s: Longest wait for the server's answer in seconds; None: the limit ``start_s``.
        """
        name = None if namespace is None else key_name("any", namespace).namespace
        return await self._page("keys", KeyPage.of, first, timeout_s, name)

    async def list_running(self, *, first: int = 0, timeout_s: float | None = None) -> RunningPage:
        """A page of the executions that run, the oldest first, with their last notes.
        Go on with ``first=page.next`` until that is None.  Errors as of :meth:`stats`.

        Args:
            first: Where the page begins.
            timeout_s: Longest wait for the server's answer in seconds; None: the limit ``start_s``.
        """
        return await self._page("running", RunningPage.of, first, timeout_s)

    async def _page(
        self, about: str, read: Callable[[Any], P], first: int, timeout_s: float | None,
        namespace: bytes | None = None,
    ) -> P:  # fmt: skip
        first, limit_s = natural("first", first), self._limit_s(timeout_s)
        with trio.move_on_after(limit_s):
            while True:
                record = await self._driver.ask(about, limit_s, first=first, namespace=namespace)
                page = read(values.decode(record, limits=self._wire))
                if page.next is None or page.next > first:
                    return page
                await trio.sleep(BUSY_S)
        raise ServerNotReady(f"no page after {limit_s:g} s: the server is asked for too many")

    async def stack(self, number: int, *, timeout_s: float | None = None) -> str | None:
        """The stack of an execution, for people: trio's tasks below it, and its thread or its
        tasks of asyncio; None if it does not run any more.  A worker whose loop is blocked answers,
        too; one that is stopped, is on a host that is cut off, or is no worker of this package,
        does not: ServerNotReady after ``timeout_s``.

        Args:
            number: Its number, as :meth:`list_running` has it.
            timeout_s: Longest wait for the server's answer in seconds; None: the limit ``start_s``.
        """
        number, limit_s = natural("number", number), self._limit_s(timeout_s)
        with trio.move_on_after(limit_s):
            while True:
                record = await self._driver.ask("stack", limit_s, first=number)
                match values.decode(record, limits=self._wire):
                    case {"state": "told", "text": str(text)}:
                        return text
                    case {"state": "over"}:
                        return None
                    case {"state": "busy"}:
                        await trio.sleep(BUSY_S)
                    case _:
                        raise ProtocolError("the server's answer is no stack")
        raise ServerNotReady(f"no stack after {limit_s:g} s: the server is asked for too many")

    # -- health and statistics ------------------------------------------------

    def health(self) -> ServerHealth:
        """Starting, healthy or unhealthy, and the reason, as the server said last: with nothing
        pending it is asked every ``idle_ping_s``.  No call is cancelled because of it."""
        return self._driver.health()

    async def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait until the server has a worker ready.  Raises ServerNotReady, with what is known,
        after ``timeout_s``, and at once if the server refuses this client or the client is closed;
        at once EnvironmentBroken, with the traceback, if the server's environment is.

        Args:
            timeout_s: Longest wait in seconds; None: the limit ``start_s``.
        """
        core = self._driver.core
        limit_s = self._limit_s(timeout_s)
        with trio.move_on_after(limit_s):
            while True:
                if core.closed:
                    raise ServerNotReady("the client was closed")
                if self.health().health is Health.HEALTHY:
                    return
                if core.refusal is not None:
                    raise ServerNotReady(core.refusal.message)
                # While a question is open, another server may be there than said this.
                if core.link.asked_s is None and core.link.server_is(ServerStatus.BROKEN):
                    raise EnvironmentBroken(self.health().reason)
                await self._driver.changed.park()
        raise ServerNotReady(f"not ready after {limit_s:g} s: {self.health().reason}")

    async def stats(self, timeout_s: float | None = None) -> ServerStats:
        """The server's statistics.  Raises ServerNotReady, with what is known, if the server does
        not answer in time; DecodingError or ProtocolError if the answer is malformed.

        Args:
            timeout_s: Longest wait for the server's answer in seconds; None: the limit ``start_s``.
        """
        record = await self._driver.ask("statistics", self._limit_s(timeout_s))
        return ServerStats.of(values.decode(record, limits=self._wire))

    def _limit_s(self, timeout_s: float | None) -> float:
        limit_s = 0.0 if timeout_s == 0 else seconds(timeout_s)
        return self._driver.core.limits.start_s if limit_s is None else limit_s

    def counters(self) -> ClientCounters:
        """The client's own counters."""
        core = self._driver.core
        return ClientCounters(
            sessions=core.sessions.opened, connections=core.pings.connections,
            retransmitted=core.calls.retransmitted, reissued=core.calls.reissued,
        )  # fmt: skip


async def encode(client: Client, asked: Asked) -> Encoded:
    """The request as it goes to the server, for doors, which let their callers' values go
    while they wait.  Raises NotEncodable."""
    try:
        return await client._encode(asked)
    except values.EncodingError as error:
        raise not_encodable(error) from None


async def run_encoded(client: Client, encoded: Encoded, hold: Hold | None = None) -> Outcome:
    """Like :meth:`Client.outcome`, for doors.  With ``hold`` the call, which has a key, is shared
    (:mod:`.driver`).  It is made before this waits for anything: so what is asked afterwards comes
    to the server after it."""
    return await client._run_encoded(encoded, hold=hold)


def is_shared(client: Client, encoded: Encoded) -> bool:
    """Whether this would be another caller of a shared call, and no further call."""
    return client._driver.shared(encoded.terms) is not None


def is_asked(client: Client, key: str, namespace: str) -> bool:
    """Whether a call of this client for the work of a key has not ended."""
    return key_name(key, namespace) in client._driver.core.calls.asking


async def follow(client: Client, asked: Asked, on_delta: OnDelta) -> Outcome:
    """Like :meth:`Client.outcome`, for doors: ``on_delta`` is told the deltas that come before."""
    return await client._run(asked, on_delta=on_delta)


async def release(
    client: Client, key: str, *, namespace: str = DEFAULT_NAMESPACE, timeout_s: float | None = None
) -> KeyEnded:
    """Like :meth:`Client.forget`, for doors, which release a key for every call that they make:
    the server has nothing to remember of it.  If the server is lost meanwhile, it is not asked
    again, and the error is UnknownKey: what is there may have been forgotten, or not.  Shared calls
    for which the server has had no room yet end, too."""
    shared = client._driver.forget(key_name(key, namespace))
    ended = _ended(await client._of_key(KeyAct.FORGET, key, namespace, timeout_s))
    late = [call for call in shared if not call.has_ended]
    for call in late:
        client._driver.end(call)
    return dataclasses.replace(ended, known=True) if late else ended


def keep_no_spans(client: Client) -> None:
    """Give calls no spans of their own, and pass on those of others; for doors."""
    client._driver.keeps_spans = False


def _ended(outcome: Outcome) -> KeyEnded:
    record = outcome.unwrap()
    finished = record.get("finished", False)
    return KeyEnded(record["generation"] is not None or finished, record["started"], finished)


def _outcome_of(answer: Answer, value: Any, error: CallError | None, took_s: float) -> Outcome:
    return Outcome(
        value=value, error=error, worker=answer.worker, duration_s=answer.duration_s,
        executions=answer.executions, took_s=took_s,
    )  # fmt: skip


def _not_decodable(problem: Exception, body: Body) -> OutcomeNotDecodable:
    why = str(problem) if isinstance(problem, values.DecodingError) else repr(problem)
    return OutcomeNotDecodable(f"the outcome cannot be decoded: {why}", raw=bytes(body))


# -- many calls -------------------------------------------------------------------


def check_in_flight(in_flight: object) -> None:
    """ConfigError unless it is a number of calls."""
    natural("in_flight", in_flight, least=1)


@asynccontextmanager
async def open_many(
    client: Client, calls: Iterable[Asked], in_flight: int,
    on_note: Callable[[int, Note], object] | None = None, hold: Hold | None = None,
) -> AsyncIterator[Outcomes]:  # fmt: skip
    """Make calls, at most so many at a time, and cancel at the end of the block what is left.  With
    ``hold`` the calls are shared, and what is under way goes on; all of them hold the same."""
    check_in_flight(in_flight)
    with unwrap_single():
        async with trio.open_nursery() as nursery:
            outcomes = Outcomes(client, in_flight, nursery, on_note, hold)
            nursery.start_soon(outcomes._feed, calls)
            try:
                yield outcomes
            finally:
                outcomes._close()
                nursery.cancel_scope.cancel()


@final
class Outcomes(AsyncIterator[tuple[int, Outcome]]):
    """The outcomes of many calls as they come, each with the index of its input.

    Several tasks may iterate; each outcome goes to one of them.
    """

    def __init__(
        self, client: Client, in_flight: int, nursery: trio.Nursery,
        on_note: Callable[[int, Note], object] | None, hold: Hold | None,
    ) -> None:  # fmt: skip
        self._client = client
        self._driver = client._driver
        self._nursery = nursery
        self._on_note = on_note
        self._held = None if hold is None else hold()
        """What shared calls take of bounds; None: they are not shared."""
        self._holders = 1
        """Number of these calls that have not ended, and 1 for the block."""
        self._free = in_flight
        self._fed = self._closed = False
        self._closed_s = 0.0
        self._under_way: dict[int, tuple[int, float]] = {}
        """Index of the input and moment of submission of each call without a task, by number."""
        self._tasks = 0
        """Calls that have a task of their own."""
        self._ended: deque[Ended] = deque()
        self._ready: deque[tuple[int, Outcome]] = deque()
        self._ahead: dict[int, tuple[Ended, float]] = {}
        """The large outcomes that are being decoded, or ready, by index; with the moment of
        submission."""
        self._arrived: list[tuple[int, Outcome]] | None = None
        self._feeder = trio.lowlevel.ParkingLot()
        self._iterators = trio.lowlevel.ParkingLot()
        self._taken = 0

    # -- the feeder -----------------------------------------------------------

    async def _feed(self, calls: Iterable[Asked]) -> None:
        """Submit each call, as room allows."""
        for index, asked in enumerate(calls):
            while not self._free:
                await self._feeder.park()
            self._free -= 1
            self._submit(index, asked)
            if not (index + 1) % AT_ONCE:
                await trio.lowlevel.checkpoint()
        self._fed = True
        self._iterators.unpark_all()

    def _submit(self, index: int, asked: Asked) -> None:
        on_note = None if self._on_note is None else partial(self._on_note, index)
        hold = None if self._held is None else self._hold
        try:
            encoded = asked.at_once(self._client._wire)
        except values.EncodingError as error:
            self._put(index, Outcome.failed(not_encodable(error)))
            return
        if encoded is None:
            run = partial(self._client._run, on_note=on_note, hold=hold, is_large=True)
            self._start(index, run, asked)
            return
        now_s, (body, terms) = trio.current_time(), encoded
        if hold is None:
            number = self._driver.submit(body, now_s, terms, self._has_ended, on_note=on_note)
        else:
            number = self._driver.share(body, now_s, terms, self._has_ended, hold).number
        self._under_way[number] = index, now_s

    def _hold(self) -> ExitStack:
        held = ExitStack()
        held.callback(self._let_go)
        self._holders += 1
        return held

    def _let_go(self) -> None:
        self._holders -= 1
        if not self._holders and self._held is not None:
            self._held.close()

    def _has_ended(self, ended: Ended) -> None:
        if self._closed:  # it was shared, and has gone on
            self._driver.received(ended)
            return
        self._ended.append(ended)
        if self._iterators:
            self._iterators.unpark()

    def _put(self, index: int, outcome: Outcome) -> None:
        # Of a task that had ended, and was not run again before the block ended, it has arrived.
        self._ready.append((index, outcome))
        if self._iterators:
            self._iterators.unpark()

    def _start(self, index: int, act: Callable[..., Awaitable[Outcome]], *args: Any) -> None:
        """Give a call a task of its own."""

        async def run() -> None:
            outcome = await act(*args)
            self._tasks -= 1
            self._put(index, outcome)

        self._tasks += 1
        self._nursery.start_soon(run)

    # -- who takes ------------------------------------------------------------

    def __aiter__(self) -> Outcomes:
        return self

    async def __anext__(self) -> tuple[int, Outcome]:
        """The next outcome, once there is one.  After the block there is none."""
        self._taken += 1
        if self._taken % AT_ONCE:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            await trio.lowlevel.checkpoint()
        while (taken := None if self._closed else self._take()) is None:
            if self._is_over():
                raise StopAsyncIteration
            await self._iterators.park()
        self._free += 1
        if self._feeder:
            self._feeder.unpark()
        if self._iterators:
            if self._is_over():
                self._iterators.unpark_all()
            elif self._ended:  # there may be room to decode the next
                self._iterators.unpark()
        return taken

    def _is_over(self) -> bool:
        """Whether no more outcomes come than are ready."""
        return self._closed or (self._fed and not (self._under_way or self._tasks))

    def _take(self) -> tuple[int, Outcome] | None:
        if self._ready:
            taken = self._ready.popleft()
            self._ahead.pop(taken[0], None)
            return taken
        while self._ended and len(self._ahead) < DECODED_AHEAD:
            ended = self._ended.popleft()
            index, began_s = self._under_way.pop(ended.call)
            took_s = trio.current_time() - began_s
            try:
                return index, self._client._outcome_at_once(ended, took_s)
            except values.TooMuchWork:
                self._ahead[index] = ended, began_s
                self._start(index, self._client._outcome_large, ended, took_s)
        return None

    def _close(self) -> None:
        """Cancel the calls that are left."""
        self._closed, self._closed_s = True, trio.current_time()
        if self._held is None:
            self._driver.cancel(self._under_way)
        else:
            for ended in self._ended:
                self._driver.received(ended)
        self._let_go()
        self._iterators.unpark_all()

    def arrived(self) -> list[tuple[int, Outcome]]:
        """The outcomes that had come when the block ended and were not iterated, each with the
        index of its input.  Large ones are decoded here.

        Raises RuntimeError before the end of the block: until then, iterate."""
        if not self._closed:
            raise RuntimeError("arrived() is for after the block: inside it, iterate")
        if self._arrived is None:
            found = [*self._ready]
            ready = {index for index, _ in found}
            left = [(i, *rest) for i, rest in self._ahead.items() if i not in ready]
            for ended in self._ended:
                index, began_s = self._under_way[ended.call]
                left.append((index, ended, began_s))
            for index, ended, began_s in left:
                outcome = self._client._read(ended, self._closed_s - began_s)
                found.append((index, outcome))
            self._arrived = found
            self._ready.clear()
            self._ended.clear()
            self._under_way.clear()
            self._ahead.clear()
        return self._arrived
