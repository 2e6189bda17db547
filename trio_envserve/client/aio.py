"""The client for asyncio programs.

Theory of operation
-------------------
An :class:`AsyncioClient` belongs to the event loop that opened it.  The client itself
runs in a thread (:mod:`.thread`); what that delivers is collected, and handed over to
the waiting tasks in one step of the event loop for all that is there.
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
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack, final

from ..core.errors import ConfigError, NeverStarted, NotEncodable, ServerNotReady
from ..core.limits import ClientLimits, WireLimits
from ..core.terms import SentBody
from ..core.values import EncodingError, NotHere, TooMuchWork
from ..net import DEFAULT_TRANSPORT, Transport
from ..net.keypairs import ClientCurve
from .opening import open_client, wire_of
from .options import Asked, CallOptions, checked
from .outcome import Outcome
from .shell import Arrays, Client, check_in_flight
from .thread import AT_ONCE, ClientThread, ThreadJob, documented_as, encode
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
        self._delivered: deque[tuple[Callable[[Any, BaseException | None], None], Any, Any]]
        self._delivered = deque()
        self._told = False
        """Whether the event loop will look there."""

    # -- calls ----------------------------------------------------------------

    async def run_rollout(self, input: Any, **options: Unpack[CallOptions]) -> Any:
        """See :meth:`Client.run_rollout`."""
        return (await self.outcome(input, **options)).unwrap()

    async def run_group(
        self, inputs: Sequence[Any], **options: Unpack[CallOptions]
    ) -> list[Outcome]:
        """See :meth:`Client.run_group`."""
        whole = await self.outcome(list(inputs), kind="group", **options)
        return Outcome.members(whole)

    async def outcome(
        self, input: Any, *, kind: Literal["rollout", "group", "rescore"] = "rollout",
        **options: Unpack[CallOptions],
    ) -> Outcome:  # fmt: skip
        """See :meth:`Client.outcome`."""
        return await self._outcome(checked(input, kind=kind, **options))

    async def _outcome(self, asked: Asked) -> Outcome:
        try:
            body = await self._encoded(asked)
        except EncodingError as error:
            return Outcome.failed(NotEncodable(str(error), path=error.path))
        except ServerNotReady:  # closed meanwhile
            return Outcome.failed(NeverStarted("the client was closed"))
        if asked.is_hashed_long(body):
            terms = await asyncio.to_thread(asked.terms_of, body)
        else:
            terms = asked.terms_of(body)
        result: Outcome = await self._wait(lambda job: self._thread.call(job, body, terms))
        return result

    async def _encoded(self, asked: Asked) -> SentBody:
        """The body of a call.  A large one is encoded in a thread of the client's."""
        try:
            return self._thread.encode(asked, at_once=True)
        except TooMuchWork:
            pass
        try:
            return await self._run(lambda client: encode(client, asked))
        except NotHere:  # the value's own code, which belongs to this thread
            return self._thread.encode(asked, at_once=False)

    @asynccontextmanager
    async def run_many(
        self, inputs: Iterable[Any], *, in_flight: int = 1000, **options: Unpack[CallOptions]
    ) -> AsyncGenerator[AsyncioOutcomes, None]:
        """See :meth:`Client.run_many`.  Inputs are read while outcomes are waited for."""
        check_in_flight(in_flight)
        outcomes = AsyncioOutcomes(self, checked(None, **options), inputs, in_flight)
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
        result: T = await self._wait(lambda job: self._thread.run(job, act))
        return result

    async def _wait(self, post: Callable[[ThreadJob], None]) -> Any:
        """Hand a job over, and wait for what comes of it."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            raise ConfigError("this client was opened in another event loop; open one in this")
        future = loop.create_future()
        job = ThreadJob(partial(self._deliver, partial(_settle, future)))
        try:
            post(job)
            return await future
        except BaseException:
            if not future.done() or future.cancelled():
                self._thread.cancel(job)  # this task is cancelled, or interrupted
            raise

    def _deliver(
        self, take: Callable[[Any, BaseException | None], None], result: Any,
        error: BaseException | None,
    ) -> None:  # fmt: skip
        """Hand over to the event loop.  Called in the client's thread."""
        self._delivered.append((take, result, error))
        if not self._told:
            self._told = True
            try:
                self._loop.call_soon_threadsafe(self._hand_over)
            except RuntimeError:
                pass  # the event loop is closed, and nobody waits in it

    def _hand_over(self) -> None:
        self._told = False  # first: what is delivered from here on tells again
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
        self._room = in_flight
        self._fed = False
        self._jobs: dict[int, ThreadJob | asyncio.Task[None]] = {}
        """Jobs under way, by the index of their input; large inputs have a task."""
        self._ready: deque[tuple[int, Any, BaseException | None]] = deque()
        self._changed = asyncio.Event()
        self._turns = 0
        self._arrived: list[tuple[int, Outcome]] | None = None

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
            elif self._fed and not self._jobs:
                self._changed.set()  # nobody else need wait either
                raise StopAsyncIteration
            else:
                self._changed.clear()
                await self._changed.wait()
        index, outcome, error = self._ready.popleft()
        self._room += 1
        if error is not None:
            raise error
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
            self._call(index, self._asked.member(index, input))
        return bool(self._room)

    def _call(self, index: int, asked: Asked) -> None:
        thread = self._client._thread
        job = self._jobs[index] = ThreadJob(
            partial(self._client._deliver, partial(self._take, index))
        )
        try:
            body = thread.encode(asked, at_once=True)
        except TooMuchWork:
            self._jobs[index] = asyncio.create_task(self._call_large(index, asked))
        except EncodingError as error:
            self._take(index, Outcome.failed(NotEncodable(str(error), path=error.path)), None)
        else:
            if asked.is_hashed_long(body):
                self._jobs[index] = asyncio.create_task(self._call_large(index, asked))
            else:
                thread.call(job, body, asked.terms_of(body))

    async def _call_large(self, index: int, asked: Asked) -> None:
        try:
            outcome = await self._client._outcome(asked)
        except Exception as error:  # it is raised where outcomes are taken
            self._take(index, None, error)
        else:
            self._take(index, outcome, None)

    def _take(self, index: int, outcome: Any, error: BaseException | None) -> None:
        if self._jobs.pop(index, None) is not None:
            self._ready.append((index, outcome, error))
            self._changed.set()

    def _close(self) -> None:
        """Cancel the calls that are left."""
        self._fed = True
        self._client._hand_over()  # what the thread has delivered has arrived
        jobs, self._jobs = self._jobs, {}
        for job in jobs.values():
            if isinstance(job, ThreadJob):
                self._client._thread.cancel(job)
            else:
                job.cancel()
        self._arrived = [(index, outcome) for index, outcome, error in self._ready if error is None]
        self._ready.clear()
        self._changed.set()

    def arrived(self) -> list[tuple[int, Outcome]]:
        """See :meth:`.Outcomes.arrived`."""
        if self._arrived is None:
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
