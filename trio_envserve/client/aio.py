"""The client for asyncio programs.

Theory of operation
-------------------
An :class:`AsyncioClient` belongs to the event loop that opened it.  The client itself runs in a
thread (:mod:`.thread`); a task that waits for it waits for a future of its own loop.
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
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack, final

from ..core.errors import ConfigError, NeverStarted, NotEncodable, ServerNotReady
from ..core.limits import ClientLimits, WireLimits
from ..core.values import EncodingError, NotHere
from ..net import DEFAULT_TRANSPORT, Transport
from ..net.keypairs import ClientCurve
from .opening import open_client, wire_of
from .options import Asked, CallOptions, Encoded, checked, several
from .outcome import Outcome
from .shell import AT_ONCE, Arrays, Client, check_in_flight
from .thread import ClientThread, ThreadJob, call, documented_as, encode
from .thread import counters as counters_of
from .thread import health as health_of

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
            return Outcome.failed(NotEncodable(str(error), path=error.path))
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
        job = ThreadJob(partial(self._deliver, future))
        try:
            self._thread.run(job, act)
            return await future
        except BaseException:
            if not future.done() or future.cancelled():
                self._thread.cancel(job)  # this task is cancelled, or interrupted
            raise

    def _deliver(
        self, future: asyncio.Future[Any], result: Any, error: BaseException | None
    ) -> None:
        """Hand over to the event loop.  Called in the client's thread."""
        with suppress(RuntimeError):  # the event loop is closed, and nobody waits in it
            self._loop.call_soon_threadsafe(_settle, future, result, error)


@final
class AsyncioOutcomes(AsyncIterator[tuple[int, Outcome]]):
    """The outcomes of many calls as they come.  Several tasks may iterate."""

    def __init__(
        self, client: AsyncioClient, asked: Asked, inputs: Iterable[Any], in_flight: int
    ) -> None:
        self._client = client
        self._asked = asked
        self._inputs = enumerate(inputs)
        self._room = in_flight
        self._fed = self._closed = False
        self._calls: set[asyncio.Task[None]] = set()
        self._ready: deque[tuple[int, Outcome | Exception]] = deque()
        self._changed = asyncio.Event()

    def __aiter__(self) -> AsyncioOutcomes:
        return self

    async def __anext__(self) -> tuple[int, Outcome]:
        """The next outcome, once there is one."""
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
        self._room += 1
        if isinstance(outcome, Exception):
            raise outcome
        return index, outcome

    def _feed(self) -> bool:
        """Make some calls; whether there is room for more."""
        for _ in range(AT_ONCE):
            if self._fed or not self._room:
                return False
            index, input = next(self._inputs, (-1, None))
            if index < 0:
                self._fed = True
                return False
            self._room -= 1
            self._calls.add(
                asyncio.create_task(self._call(index, self._asked.member(index, input)))
            )
        return bool(self._room)

    async def _call(self, index: int, asked: Asked) -> None:
        outcome: Outcome | Exception
        try:
            outcome = await self._client._outcome(asked)
        except Exception as error:  # it is raised where outcomes are taken
            outcome = error
        task = asyncio.current_task()
        assert task is not None
        self._calls.discard(task)
        self._ready.append((index, outcome))
        self._changed.set()

    def _close(self) -> None:
        """Cancel the calls that are left."""
        self._fed = self._closed = True
        for task in self._calls:
            task.cancel()
        self._calls.clear()
        self._arrived = [(i, each) for i, each in self._ready if isinstance(each, Outcome)]
        self._ready.clear()
        self._changed.set()

    def arrived(self) -> list[tuple[int, Outcome]]:
        """See :meth:`.Outcomes.arrived`."""
        if not self._closed:
            raise RuntimeError("arrived() is for after the block: inside it, iterate")
        return self._arrived


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
    thread = ClientThread(
        lambda: open_client(
            address,
            name=name,
            limits=limits,
            wire=wire,
            transport=transport,
            arrays=arrays,
            caller=caller,
            curve=curve,
        ),
        wire_of(wire, curve),
    )
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
