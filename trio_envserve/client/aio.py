"""The client for asyncio programs.

Theory of operation
-------------------
An :class:`AsyncioClient` belongs to the event loop that opened it.  The client itself runs in a
thread (:mod:`.thread`).  What that delivers is collected here until the event loop hands it over:
to the future for which a task waits, or to the outcomes of many calls.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Concatenate, Literal, ParamSpec, TypeAlias, TypeVar, Unpack, final

from ..core.errors import ConfigError, NeverStarted, ServerNotReady
from ..core.limits import ClientLimits, WireLimits
from ..core.values import EncodingError, NotHere
from ..near import with_near_names
from ..net import DEFAULT_TRANSPORT, Transport
from ..net.keypairs import ClientCurve
from .opening import open_client, wire_of
from .options import Asked, CallOptions, Encoded, checked, several
from .outcome import Outcome, not_encodable
from .shell import AT_ONCE, Arrays, Client, check_in_flight
from .thread import ClientThread, ThreadJob, call, documented_as, encode
from .thread import counters as counters_of
from .thread import health as health_of

Take: TypeAlias = Callable[[Any, BaseException | None], object]
"""Takes a result or an error, in the event loop."""

T = TypeVar("T")
P = ParamSpec("P")


def _passed_on(
    method: Callable[Concatenate[Client, P], Awaitable[T]],
) -> Callable[Concatenate[AsyncioClient, P], Coroutine[Any, Any, T]]:
    """The same method of the client in the thread."""

    async def called(self: AsyncioClient, /, *args: P.args, **options: P.kwargs) -> T:
        return await self._run(lambda client: method(client, *args, **options))

    return documented_as(method, called)


@final
class AsyncioClient:
    """A connection to a server, for asyncio.  Made by :func:`open_client_asyncio`.

    All calls may be made by any number of tasks of one event loop at once.  Cancelling a
    task that waits for a rollout cancels the rollout.
    """

    def __init__(self, thread: ClientThread) -> None:
        self._thread = thread
        self._loop = asyncio.get_running_loop()
        self._delivered: deque[tuple[Take, Any, BaseException | None]] = deque()
        """Results that the thread has delivered, and the event loop has not handed over."""

    # -- calls ----------------------------------------------------------------

    async def run_rollout(self, input: Any, **options: Unpack[CallOptions]) -> Any:
        """See :meth:`Client.run_rollout`."""
        return (await self.outcome(input, **options)).unwrap()

    async def run_group(
        self, inputs: Sequence[Any], **options: Unpack[CallOptions]
    ) -> list[Outcome]:
        """See :meth:`Client.run_group`."""
        whole = await self.outcome(list(several(inputs)), kind="group", **options)
        return Outcome.members(whole)

    async def outcome(
        self, input: Any, *, kind: Literal["rollout", "group", "rescore"] = "rollout",
        **options: Unpack[CallOptions],
    ) -> Outcome:  # fmt: skip
        """See :meth:`Client.outcome`."""
        return await self._outcome(checked(input, kind=kind, **options))

    async def _outcome(self, asked: Asked) -> Outcome:
        try:
            return await self._run(call(await self._encoded(asked)))
        except EncodingError as error:
            return Outcome.failed(not_encodable(error))
        except ServerNotReady:
            return Outcome.failed(NeverStarted("the client was closed"))

    async def _encoded(self, asked: Asked) -> Encoded:
        """The call as it goes to the server; a large one is encoded in a thread of the client's."""
        wire = self._thread.wire
        encoded = asked.at_once(wire)
        if encoded is not None:
            return encoded
        try:
            return await self._run(lambda client: encode(client, asked))
        except NotHere:  # the value's own code, which belongs to this thread
            body = asked.encoded(wire)
        return Encoded(body, await asyncio.to_thread(asked.terms_of, body))

    @asynccontextmanager
    async def run_many(
        self, inputs: Iterable[Any], *, in_flight: int = 1000, **options: Unpack[CallOptions]
    ) -> AsyncGenerator[AsyncioOutcomes, None]:
        """See :meth:`Client.run_many`.  Inputs are read while outcomes are waited for."""
        check_in_flight(in_flight)
        outcomes = AsyncioOutcomes(self, checked(None, **options), several(inputs), in_flight)
        try:
            yield outcomes
        finally:
            outcomes._close()

    # -- keys, health and statistics -------------------------------------------

    attach = _passed_on(Client.attach)
    cancel_key = _passed_on(Client.cancel_key)
    forget = _passed_on(Client.forget)
    list_keys = _passed_on(Client.list_keys)
    list_running = _passed_on(Client.list_running)
    stack = _passed_on(Client.stack)
    health = _passed_on(health_of)
    wait_ready = _passed_on(Client.wait_ready)
    stats = _passed_on(Client.stats)
    counters = _passed_on(counters_of)

    # -- the thread -------------------------------------------------------------

    async def _run(self, act: Callable[[Client], Awaitable[T]]) -> T:
        """Have the client do something in its thread, and wait for what comes of it."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            raise ConfigError("this client was opened in another event loop; open one in this")
        future: asyncio.Future[T] = loop.create_future()
        job = self._job(partial(_settle, future))
        try:
            self._thread.run(job, act)
            return await future
        except BaseException:
            if not future.done() or future.cancelled():
                self._thread.cancel(job)  # this task is cancelled, or interrupted
            raise

    def _job(self, take: Take) -> ThreadJob:
        """A job whose result is taken in the event loop."""
        return ThreadJob(partial(self._deliver, take))

    def _deliver(self, take: Take, result: Any, error: BaseException | None) -> None:
        """Collect a result for the event loop.  Called in the client's thread."""
        self._delivered.append((take, result, error))
        with suppress(RuntimeError):  # the event loop is closed, and nobody waits in it
            self._loop.call_soon_threadsafe(self._hand_over)

    def _hand_over(self) -> None:
        """Give each result that was collected to whoever takes it."""
        for _ in range(len(self._delivered)):
            take, result, error = self._delivered.popleft()
            take(result, error)


@final
class AsyncioOutcomes(AsyncIterator[tuple[int, Outcome]]):
    """The outcomes of many calls as they come.  Several tasks may iterate."""

    def __init__(
        self, client: AsyncioClient, asked: Asked, inputs: Iterable[Any], in_flight: int
    ) -> None:
        self._client = client
        self._asked = asked
        self._inputs = enumerate(inputs)
        self._free = in_flight
        self._fed = self._closed = False
        self._turns = 0
        self._calls: dict[int, ThreadJob | asyncio.Task[None] | None] = {}
        """Calls under way, by the index of their input; large inputs have a task."""
        self._ready: deque[tuple[int, Outcome | BaseException]] = deque()
        self._changed = asyncio.Event()

    def __aiter__(self) -> AsyncioOutcomes:
        return self

    async def __anext__(self) -> tuple[int, Outcome]:
        """The next outcome, once there is one."""
        self._turns += 1
        if not self._turns % AT_ONCE:
            await asyncio.sleep(0)  # before anything is taken, which a cancel would lose
        while True:
            if self._feed():
                await asyncio.sleep(0)  # others have a turn, and then it goes on
            elif self._ready:
                break
            elif self._fed and not self._calls:
                self._changed.set()  # nobody else need wait either
                raise StopAsyncIteration
            else:
                self._changed.clear()
                await self._changed.wait()
        index, outcome = self._ready.popleft()
        self._free += 1
        if isinstance(outcome, BaseException):
            raise outcome
        return index, outcome

    def _feed(self) -> bool:
        """Make some calls; whether there is room for more."""
        for _ in range(AT_ONCE):
            if self._fed or not self._free:
                return False
            index, input = next(self._inputs, (-1, None))
            if index < 0:
                self._fed = True
                return False
            self._free -= 1
            self._call(index, self._asked.member(index, input))
        return bool(self._free)

    def _call(self, index: int, asked: Asked) -> None:
        """Make a call.  The input is encoded now: its maker may fill it anew for the next one."""
        take = partial(self._take, index)
        try:
            encoded = asked.at_once(self._client._thread.wire)
        except EncodingError as error:
            self._ready.append((index, Outcome.failed(not_encodable(error))))
            return
        if encoded is not None:
            job = self._calls[index] = self._client._job(take)
            self._client._thread.run(job, call(encoded))
            return
        self._calls[index] = None
        task = asyncio.create_task(self._call_large(take, asked))
        if index in self._calls:  # else it has ended: tasks may begin at once
            self._calls[index] = task

    async def _call_large(self, take: Take, asked: Asked) -> None:
        try:
            outcome = await self._client._outcome(asked)
        except Exception as error:  # it is raised where outcomes are taken
            take(None, error)
        else:
            take(outcome, None)

    def _take(self, index: int, outcome: Any, error: BaseException | None) -> None:
        if index in self._calls:  # else it was cancelled
            del self._calls[index]
            if isinstance(error, ServerNotReady):
                outcome, error = Outcome.failed(NeverStarted("the client was closed")), None
            self._ready.append((index, outcome if error is None else error))
            self._changed.set()

    def _close(self) -> None:
        """Cancel the calls that are left."""
        self._client._hand_over()  # what the thread has delivered has arrived
        self._fed = self._closed = True
        calls, self._calls = self._calls, {}
        for each in calls.values():
            if isinstance(each, ThreadJob):
                self._client._thread.cancel(each)
            elif each is not None:
                each.cancel()
        self._arrived = [(i, each) for i, each in self._ready if isinstance(each, Outcome)]
        self._ready.clear()
        self._changed.set()

    def arrived(self) -> list[tuple[int, Outcome]]:
        """See :meth:`.Outcomes.arrived`."""
        if not self._closed:
            raise RuntimeError("arrived() is for after the block: inside it, iterate")
        return self._arrived


@with_near_names
@asynccontextmanager
async def open_client_asyncio(
    address: str, *, name: str = "", limits: ClientLimits | None = None,
    wire: WireLimits | None = None, transport: Transport = DEFAULT_TRANSPORT,
    arrays: Arrays = "auto", caller: str = "", curve: ClientCurve | None = None,
) -> AsyncGenerator[AsyncioClient, None]:  # fmt: skip
    """Open a client for a program that runs on asyncio; the arguments are those of
    :func:`open_client`.

    The client runs in a thread of its own.  At the end of the block pending calls end
    with an error, and the server cancels them; so it does when the interpreter ends.  A
    process that is forked from this one must open a client of its own.  Raises as
    :func:`open_client` does.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        text = (
            "open_client_asyncio needs asyncio, which does not run here: use open_client with trio"
        )
        raise RuntimeError(f"{text}, or PlainClient") from None
    thread = ClientThread(
        lambda: open_client(
            address, name=name, limits=limits, wire=wire, transport=transport, arrays=arrays,
            caller=caller, curve=curve,
        ),
        wire_of(wire, curve),
    )  # fmt: skip
    try:
        await asyncio.shield(asyncio.wrap_future(thread.start()))
        yield AsyncioClient(thread)
    finally:
        await asyncio.shield(asyncio.wrap_future(thread.stop()))


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return  # cancelled meanwhile
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
