"""The client's shell: one connection, any number of calls.

Theory of operation
-------------------
:class:`~trio_envserve.core.client.ClientCore` decides; this module moves its
messages and wakes its callers.  The nursery owns the receiver, the clock, and the
task that carries out the effects of calls.
A call is the caller's own task, which waits for its outcome.  Cancelling that scope
cancels the rollout on the server at once, and does not wait for it: the bookkeeping
is synchronous and comes before the next await.

The effects of calls are carried out in the next turn of the loop, so requests of the
same turn go out together.  The request of a lone call goes out at once.

An outcome is received when the caller's task has decoded it.  Only then does the
client acknowledge it.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Literal, Unpack, final

import trio

from ..core import messages, values
from ..core.client import ClientCore
from ..core.client_effects import Answer, Fail, Reconnect, Statistics, ToServer
from ..core.errors import (
    CallError,
    ConfigError,
    NotEncodable,
    OutcomeNotDecodable,
    ServerNotReady,
    error_from_info,
)
from ..core.fields import MAX_UINT
from ..core.health import Health, ServerHealth
from ..core.limit_rules import check_together
from ..core.limits import ClientLimits, WireLimits
from ..core.slots import Report
from ..core.status import ServerStats
from ..core.terms import ID_BYTES, Body, Status
from ..envs.request import RolloutRequest
from ..envs.turns import Threads
from ..net import (
    DEFAULT_TRANSPORT,
    ConnectionEvent,
    DealerSocket,
    Message,
    Network,
    Transport,
    open_background,
    open_network,
    parse_peer_address,
    unwrap_single,
)
from .options import CallOptions
from .outcome import Outcome

_log = logging.getLogger("trio_envserve.client")
_LEVELS = logging.getLevelNamesMapping()

Arrays = Literal["auto", "numpy", "torch"]

_TROUBLE = {
    ConnectionEvent.DISCONNECTED: "the connection to {} was lost",
    ConnectionEvent.REFUSED: "nothing listens at {} (is the server started, is the address right?)",
    ConnectionEvent.HANDSHAKE_FAILED: "what listens at {} does not speak ZeroMQ",
}


@final
class Client:
    """A connection to a server.  Made by :func:`open_client`.

    All calls may be made by any number of tasks at once.
    """

    def __init__(self, core: ClientCore, address: str, arrays: Arrays, wire: WireLimits) -> None:
        self._core = core
        self._address = address
        self._arrays: Arrays = arrays
        self._wire = wire
        self._threads = Threads()
        self._socket: DealerSocket | None = None
        self._waiting: dict[int, tuple[trio.lowlevel.Task, list[Answer | Fail]]] = {}
        self._asked: dict[int, tuple[trio.Event, list[Body]]] = {}
        self._next_ask = 0
        self._changed = trio.lowlevel.ParkingLot()
        self._poke = trio.Event()
        self._wake_at_s = 0.0
        self._asked_of_core = trio.Event()
        """Set when a call has changed the core, and its effects are not carried out yet."""
        self._said = Health.STARTING

    # -- calls ----------------------------------------------------------------

    async def run_rollout(self, input: Any, **options: Unpack[CallOptions]) -> Any:
        """Run one rollout and return its result.

        ``input``: any encodable value, as the environment wants it.  Options:

        - ``model`` (``"oracle"``, ``"random"``, or an endpoint the server knows),
          ``model_name``, ``sampling_args``: what the environment asks;
        - ``max_retries``: how often the worker repeats a rollout that *failed*,
          inside the one execution;
        - ``state_columns``: which columns of the state to send back;
        - ``rerun``: whether it may be executed again after its worker is proven
          dead (None: as the environment declares); ``max_executions`` caps that
          over the whole life of the call (default 4);
        - ``timeout_s``: how long to wait, and how long the server may run it
          (None: as long as this scope allows).

        Raises :class:`~trio_envserve.DidNotRun`, :class:`~trio_envserve.RanAndFailed`
        or :class:`~trio_envserve.MayHaveRun`, and ConfigError for wrong options.
        """
        return (await self.outcome(input, **options)).unwrap()

    async def run_group(
        self, inputs: Sequence[Any], **options: Unpack[CallOptions]
    ) -> list[Outcome]:
        """Run several inputs as one request, scored together; one outcome for
        each, in order.  Options as for :meth:`run_rollout`.  Raises if the group
        as a whole has no result; a member that failed is an outcome with an error.
        """
        whole = await self.outcome(list(inputs), kind="group", **options)
        return Outcome.members(whole)

    async def outcome(
        self, input: Any, *, kind: Literal["rollout", "group"] = "rollout",
        model: str = "oracle", model_name: str = "",
        sampling_args: Mapping[str, Any] | None = None, max_retries: int = 0,
        state_columns: Sequence[str] = (), rerun: bool | None = None,
        max_executions: int | None = None, timeout_s: float | None = None,
    ) -> Outcome:  # fmt: skip
        """Like :meth:`run_rollout`, but an error is part of the outcome that
        is returned, with worker, duration and executions as far as known."""
        request = RolloutRequest(
            kind=kind, input=input, endpoint=model, model_name=model_name,
            sampling_args={} if sampling_args is None else sampling_args,
            max_retries=max_retries, state_columns=_columns(state_columns),
        )  # fmt: skip
        _check(rerun, max_executions, timeout_s)
        try:
            body = await self._encoded(request.to_body())
        except values.EncodingError as error:
            return Outcome.failed(NotEncodable(str(error), path=error.path))
        began_s = trio.current_time()
        ended = await self._call(body, began_s, rerun, max_executions, timeout_s)
        return await self._outcome(ended, began_s, trio.current_time())

    async def _call(
        self, body: bytes, now_s: float, rerun: bool | None, max_executions: int | None,
        limit_s: float | None,
    ) -> Answer | Fail:  # fmt: skip
        """Submit, and wait in the caller's own task."""
        number = self._core.submit(
            body, now_s, rerun=rerun, max_executions=max_executions, limit_s=limit_s
        )
        _, box = self._waiting[number] = trio.lowlevel.current_task(), []

        def abort(_: object) -> trio.lowlevel.Abort:
            del self._waiting[number]  # whatever arrives now wakes nobody
            return trio.lowlevel.Abort.SUCCEEDED

        if len(self._waiting) > 1 and not self._core.closed:
            self._asked_of_core.set()
        else:
            self._carry_out()  # a lone call; or the task that would do it has ended
        try:
            if box:  # it has ended at once
                await trio.lowlevel.checkpoint()
            else:
                # No Event: each call has one waiter, and this is a fifth of what it costs.
                await trio.lowlevel.wait_task_rescheduled(abort)
        except BaseException:
            self._waiting.pop(number, None)
            self._core.cancel(number, trio.current_time())
            self._carry_out()
            raise
        del self._waiting[number]
        return box[0]

    async def _outcome(self, ended: Answer | Fail, began_s: float, now_s: float) -> Outcome:
        """What the caller gets.  The answer is received here, and not before."""
        took_s = now_s - began_s
        if isinstance(ended, Fail):
            return Outcome.failed(error_from_info(ended.info), took_s=took_s)
        error: CallError | None = None
        value: Any = None
        try:
            if ended.status is Status.RESULT:
                value = await self._decoded(ended.body)
            else:
                error = error_from_info(self._core.error_of(ended))
        except Exception as problem:
            # Whatever went wrong (memory, say), the caller gets what there is.
            why = str(problem) if isinstance(problem, values.DecodingError) else repr(problem)
            raw = bytes(ended.body)
            error = OutcomeNotDecodable(f"the outcome cannot be decoded: {why}", raw=raw)
        finally:
            # Also when this task is cancelled or interrupted: nobody else takes the answer.
            self._core.received(ended.call, trio.current_time())
            if self._core.has_effects() or self._core.wake_at_s() < self._wake_at_s:
                self._asked_of_core.set()
        return Outcome(
            value=value, error=error, worker=ended.worker, duration_s=ended.duration_s,
            executions=ended.executions, took_s=took_s,
        )  # fmt: skip

    async def _encoded(self, value: object) -> bytes:
        """The body of a value.  A large one is encoded in a thread."""
        encode = functools.partial(values.encode, value, root="", limits=self._wire)
        try:
            return encode(at_once=True)
        except values.TooMuchWork:
            pass
        try:
            return await self._threads.run(lambda pause: encode(pause=pause))
        except values.NotHere:
            return encode()

    async def _decoded(self, body: Body) -> object:
        """The value of a body.  A large one is decoded in a thread."""
        decode = functools.partial(
            values.decode, body, arrays=self._arrays, root="result", limits=self._wire
        )
        try:
            return decode(at_once=True)
        except values.TooMuchWork:
            return await self._threads.run(lambda pause: decode(pause=pause))

    @asynccontextmanager
    async def run_many(
        self, inputs: Iterable[Any], *, in_flight: int = 1000, **options: Unpack[CallOptions]
    ) -> AsyncIterator[AsyncIterator[tuple[int, Outcome]]]:
        """Run one rollout for each input, at most ``in_flight`` at a time::

            async with client.run_many(inputs) as outcomes:
                async for index, outcome in outcomes:
                    ...

        Outcomes come as they finish; an error is an outcome too.  Leaving the
        block early cancels what is left.  Options as for :meth:`run_rollout`.
        """
        if not isinstance(in_flight, int) or isinstance(in_flight, bool) or in_flight < 1:
            raise ConfigError(f"in_flight must be a number >= 1, not {in_flight!r}")
        send, receive = trio.open_memory_channel[tuple[int, Outcome]](0)
        limit = trio.Semaphore(in_flight)

        async def run(index: int, input: Any, sender: trio.MemorySendChannel[Any]) -> None:
            async with sender:
                try:
                    outcome = await self.outcome(input, **options)
                    await sender.send((index, outcome))
                finally:  # not before it is taken: outcomes must not pile up (G8)
                    limit.release()

        async def feed(nursery: trio.Nursery) -> None:
            async with send:
                for index, input in enumerate(inputs):
                    await limit.acquire()
                    nursery.start_soon(run, index, input, send.clone())

        with unwrap_single():
            async with receive, trio.open_nursery() as nursery:
                nursery.start_soon(feed, nursery)
                yield receive
                nursery.cancel_scope.cancel()

    # -- health and statistics --------------------------------------------------

    def health(self) -> ServerHealth:
        """Starting, healthy or unhealthy, and the reason.  No call is cancelled
        because of it."""
        return ServerHealth(*self._core.health(trio.current_time()))

    async def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait until the server has a worker ready.  Raises ServerNotReady, with what
        is known, after ``timeout_s`` (default: the limit ``start_s``), and at
        once if the server refuses this client or the client is closed."""
        limit_s = self._core.limits.start_s if timeout_s is None else timeout_s
        with trio.move_on_after(limit_s):
            while True:
                if self._core.closed:
                    raise ServerNotReady("the client was closed")
                if self.health().health is Health.HEALTHY:
                    return
                if self._core.refusal is not None:
                    raise ServerNotReady(self._core.refusal.message)
                await self._changed.park()
        raise ServerNotReady(f"not ready after {limit_s:g} s: {self.health().reason}")

    async def stats(self, timeout_s: float | None = None) -> ServerStats:
        """The server's statistics.  Raises ServerNotReady, with what is known, if the
        server does not answer within ``timeout_s`` (default: the limit ``start_s``);
        DecodingError or ProtocolError if the answer is malformed."""
        limit_s = self._core.limits.start_s if timeout_s is None else timeout_s
        probe, self._next_ask = self._next_ask, self._next_ask + 1
        event, box = self._asked[probe] = trio.Event(), []
        try:
            with trio.move_on_after(limit_s):
                while not box:
                    if self._core.closed:
                        raise ServerNotReady("the client was closed")
                    if self._socket is not None:
                        self._socket.send_nowait((messages.encode(messages.AskStats(probe)),))
                    with trio.move_on_after(self._core.limits.ping_s):
                        await event.wait()
        finally:
            del self._asked[probe]
        if not box:
            raise ServerNotReady(f"no answer after {limit_s:g} s: {self.health().reason}")
        return ServerStats.of(values.decode(box[0], limits=self._wire))

    def counters(self) -> dict[str, int]:
        """The client's own counters: sessions, connections, retransmissions."""
        core = self._core
        return {
            "sessions": core.sessions.opened, "connections": core.connections,
            "retransmitted": core.calls.retransmitted, "reissued": core.calls.reissued,
        }  # fmt: skip

    # -- tasks ----------------------------------------------------------------

    async def _receive(self, socket: DealerSocket) -> None:
        while True:
            batch = await socket.receive()
            now_s = trio.current_time()
            for frames in batch:
                self._core.message(frames, now_s)
            self._carry_out()

    async def _serve_calls(self) -> None:
        """Carry out the effects of calls, all of one turn of the loop at once."""
        while True:
            await self._asked_of_core.wait()
            if self._asked_of_core.is_set():  # else another task has done it meanwhile
                self._carry_out()

    async def _keep_time(self) -> None:
        while True:
            self._poke = trio.Event()
            self._wake_at_s = self._core.wake_at_s()
            at_s = max(self._wake_at_s, trio.current_time() + 0.001)
            with trio.move_on_at(at_s) as scope:
                await self._poke.wait()
            if scope.cancelled_caught:
                now_s = trio.current_time()
                self._core.tick(now_s, late_s=now_s - at_s)
                self._carry_out()

    def _event(self, event: ConnectionEvent) -> None:
        now_s = trio.current_time()
        if event is ConnectionEvent.CONNECTED:
            self._core.connected(now_s)
        else:
            self._core.disconnected(now_s, _TROUBLE[event].format(self._address))
        self._carry_out()

    # -- effects --------------------------------------------------------------

    def _carry_out(self) -> None:
        """Do what the core says, in order, before anything else happens."""
        if self._asked_of_core.is_set():
            self._asked_of_core = trio.Event()
        sent: list[Message] = []
        for effect in self._core.take():
            match effect:
                case ToServer():
                    sent.append(effect.frames)
                case Answer() | Fail():
                    waiting = self._waiting.get(effect.call)
                    if waiting is not None:
                        task, box = waiting
                        box.append(effect)
                        if task is not trio.lowlevel.current_task():  # else it does not wait yet
                            trio.lowlevel.reschedule(task)
                case Statistics(probe, body):
                    asked = self._asked.get(probe)
                    if asked is not None:
                        asked[1].append(body)
                        asked[0].set()
                case Reconnect():
                    if self._socket is not None:
                        self._socket.reconnect()
                case Report(level, text):
                    _log.log(_LEVELS[level.upper()], "%s: %s", self._address, text)
        if sent and self._socket is not None:
            # A message that is not sent is not lost: the next sync repairs it.
            self._socket.send_many_nowait(sent)
        self._report_health()
        if self._core.wake_at_s() < self._wake_at_s:
            self._poke.set()
        if self._changed:
            self._changed.unpark_all()

    def _report_health(self) -> None:
        health, why = self._core.health(trio.current_time())
        if health is not self._said:
            self._said = health
            if health is Health.UNHEALTHY:
                _log.warning("%s: unhealthy: %s", self._address, why)
            else:
                _log.info("%s: %s", self._address, health.value)

    def _end_calls(self) -> None:
        """End pending calls now, and tell the server."""
        self._core.close(trio.current_time())
        self._carry_out()


@asynccontextmanager
async def open_client(
    address: str, *, name: str = "", limits: ClientLimits | None = None,
    wire: WireLimits | None = None, network: Network | None = None,
    transport: Transport = DEFAULT_TRANSPORT, arrays: Arrays = "auto",
) -> AsyncGenerator[Client, None]:  # fmt: skip
    """Connect to a server, and reconnect when the connection is lost.

    ``transport``: what speaks ZMTP on this side, ``"zmtp"`` (trio) or ``"libzmq"``; the
    server may use either.  ``name`` is for the server's logs.
    ``arrays``: the type of arrays in outcomes.

    Does not wait for the server: see :meth:`Client.wait_ready`.  At the end of the
    block pending calls end with an error, and the server cancels them.  Raises
    ConfigError for a wrong address, for arrays of a library that is not installed, and
    for limits that contradict each other.
    """
    if not str(address).startswith("memory:"):
        parse_peer_address(address)
    limits, wire = limits or ClientLimits(), wire or WireLimits()
    check_together(limits, wire)
    core = ClientCore(
        name=_check_name(name), new_id=functools.partial(os.urandom, ID_BYTES),
        now_s=trio.current_time(), limits=limits, wire=wire,
    )  # fmt: skip
    client = Client(core, address, _check_arrays(arrays), wire)
    async with connect(client, network, transport) as opened:
        yield opened


@asynccontextmanager
async def connect(
    client: Client, network: Network | None, transport: Transport = DEFAULT_TRANSPORT
) -> AsyncGenerator[Client, None]:
    """Keep a client connected until the block ends: the part of :func:`open_client`
    after its arguments were checked."""
    wire = client._wire

    async def run(served: Callable[[Client], Awaitable[None]]) -> None:
        async with AsyncExitStack() as stack:
            sockets = network
            if sockets is None:
                sockets = await stack.enter_async_context(open_network(transport))
            socket = await stack.enter_async_context(
                sockets.open_dealer(client._address, limits=wire, on_event=client._event)
            )
            client._socket = socket
            stack.enter_context(unwrap_single())
            nursery = await stack.enter_async_context(trio.open_nursery())
            nursery.start_soon(client._receive, socket)
            nursery.start_soon(client._keep_time)
            nursery.start_soon(client._serve_calls)
            await served(client)
            with trio.move_on_after(wire.flush_s):
                await socket.flush()
            nursery.cancel_scope.cancel()

    async with open_background(run) as opened:
        try:
            yield opened
        finally:
            client._end_calls()


def _check(rerun: bool | None, max_executions: int | None, timeout_s: float | None) -> None:
    if rerun is not None and not isinstance(rerun, bool):
        raise ConfigError(f"rerun must be True, False or None, not {rerun!r}")
    whole = isinstance(max_executions, int) and not isinstance(max_executions, bool)
    if max_executions is not None and not (whole and 1 <= max_executions < MAX_UINT):
        raise ConfigError(f"max_executions must be a number >= 1, not {max_executions!r}")
    try:
        positive = timeout_s is None or (timeout_s > 0 and not isinstance(timeout_s, bool))
    except TypeError:
        positive = False
    if not positive:
        raise ConfigError(f"timeout_s must be a positive number, not {timeout_s!r}")


def _columns(columns: Any) -> Any:
    """A string is a sequence of strings, too, but nobody means that.  The request
    reports other mistakes."""
    is_several = isinstance(columns, Sequence) and not isinstance(columns, str)
    return tuple(columns) if is_several else columns


def _check_arrays(arrays: object) -> Arrays:
    """Checked now, and not when an outcome comes: its rollout would have run."""
    if arrays == "auto":
        return "auto"
    if arrays not in ("numpy", "torch"):
        raise ConfigError(f'arrays must be "numpy", "torch" or "auto", not {arrays!r}')
    try:
        found = importlib.util.find_spec(arrays)  # imports nothing
    except ValueError:  # it is not a module of the usual kind
        found = None
    if found is None:
        raise ConfigError(f'arrays="{arrays}": {arrays} is not installed')
    return "numpy" if arrays == "numpy" else "torch"


def _check_name(name: str) -> str:
    """The name, encodable and not empty.  Raises ConfigError."""
    try:
        name.encode()
    except (AttributeError, UnicodeEncodeError):
        raise ConfigError(f"name must be text, not {name!r}") from None
    return name or f"pid-{os.getpid()}"
