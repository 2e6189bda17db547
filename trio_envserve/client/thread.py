"""A client in a thread of its own, for callers without a trio loop.

Theory of operation
-------------------
:class:`ClientThread` runs a trio loop with one :class:`~.shell.Client`.  Its callers, in
any thread, encode their inputs themselves and hand over *jobs*; the loop takes all that
are there at once, so that many calls of one moment cost one waking.  A job is delivered
in the loop's thread, once: with what came of it, or with the error that ended the
thread.  What becomes of it then is the business of the face that made it (``aio``,
``plain``).

An outcome is received when it is decoded here: caller and thread are one process, and
end together.  A job that is cancelled is delivered to nobody.

Nothing here holds a lock, because callers may be interrupted anywhere: by Ctrl-C, by a
signal handler that calls the same client, by garbage that is collected.  Jobs are posted
into a deque, and whoever posts one wakes the loop if it sleeps.

The thread ends with :meth:`ClientThread.close`, and at the latest when the interpreter
ends: pending calls are cancelled on the server then.  A forked child has a copy of the
object and no thread; it is told so.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import inspect
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, ParamSpec, TypeAlias, TypeVar, final

import trio

from .. import tracing
from ..core import values
from ..core.errors import Abandoned, ConfigError, NeverStarted, ServerNotReady
from ..core.health import ServerHealth
from ..core.limits import WireLimits
from ..core.status import ClientCounters
from ..core.terms import SentBody
from .driver import Ended, begin_call
from .options import Asked, Terms
from .outcome import Outcome
from .shell import Client

P = ParamSpec("P")
T = TypeVar("T")

AT_ONCE = 64
"""Jobs that are taken, or delivered, before other tasks have a turn."""

EXIT_S = 5.0
"""Seconds for which the end of the interpreter waits for a client."""

Deliver: TypeAlias = Callable[[Any, BaseException | None], None]
"""Takes what came of a job, or the error.  Called in the client's thread: must be quick,
and must not raise."""


@final
class ThreadJob:
    """A job of the thread.  It is made before it is posted, so that it can be cancelled whatever
    comes in between."""

    __slots__ = ("act", "began_s", "body", "deliver", "number", "scope", "span", "terms")

    def __init__(self, deliver: Deliver) -> None:
        self.deliver: Deliver | None = deliver
        """None once it was delivered, or cancelled."""
        self.body: SentBody | None = None
        """Body of a call; None for a job with a task of its own."""
        self.terms = Terms()
        self.span: tracing.Span | None = None
        """Span of a call's caller, which is the current one in another thread than this."""
        self.act: Callable[[Client], Awaitable[Any]] | None = None
        self.number: int | None = None
        """Number of its call, while that can be cancelled."""
        self.began_s = 0.0
        self.scope: trio.CancelScope | None = None


@final
class ClientThread:
    """The thread, and what is handed over to it.  ``open_client`` is called in it."""

    def __init__(
        self, open_client: Callable[[], AbstractAsyncContextManager[Client]], wire: WireLimits
    ) -> None:
        self.wire = wire
        self._open_client = open_client
        self._pid = os.getpid()
        self._posted: deque[tuple[Callable[[ThreadJob], None], ThreadJob]] = deque()
        """The jobs for the loop, from any thread."""
        self._idle = False
        """Whether the loop must be woken to look there.  Only its own task writes this."""
        self._stopping = False
        self._over = False
        self._token: trio.lowlevel.TrioToken | None = None
        self._opened: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, name="trio_envserve client", daemon=True)
        # The rest is the loop's.
        self._jobs: set[ThreadJob] = set()
        """All that are neither delivered nor cancelled."""
        self._answers: deque[tuple[ThreadJob, Ended]] = deque()
        self._cancelled: list[int] = []

    # -- for callers, in any thread ---------------------------------------------

    def start(self) -> concurrent.futures.Future[None]:
        """Start the thread.  The future is done when the client is open, and has the
        error if it cannot be."""
        atexit.register(self.close, EXIT_S)
        self._thread.start()
        return self._opened

    def encode(self, asked: Asked, *, at_once: bool) -> SentBody:
        """The body of a call.  Raises EncodingError, and TooMuchWork if it takes long and
        must be done at once."""
        return asked.encoded(self.wire, at_once=at_once)

    def call(self, job: ThreadJob, body: SentBody, terms: Terms) -> None:
        """Make a call; an :class:`Outcome` will be delivered."""
        job.body, job.terms, job.span = body, terms, begin_call(terms)
        self._post(self._submit, job)

    def run(self, job: ThreadJob, act: Callable[[Client], Awaitable[Any]]) -> None:
        """Run something in a task of the loop; its result or error will be delivered."""
        job.act = act
        self._post(self._start, job)

    def cancel(self, job: ThreadJob) -> None:
        """Cancel a job, whether or not anybody waits for it; its rollout is cancelled at once."""
        if os.getpid() == self._pid:  # a forked child has nothing to cancel
            self._post(self._cancel, job)

    def stop(self) -> concurrent.futures.Future[None]:
        """Cancel what is pending and end the thread; the future is done when it has ended.
        May be called more than once, anywhere."""
        self._stopping = True
        if os.getpid() == self._pid and self._token is not None:
            self._poke(self._wake)
        return self._ended

    def close(self, limit_s: float | None = None) -> None:
        """Stop, and wait for the end, but not in the thread itself or in a forked child."""
        ended = self.stop()
        if os.getpid() == self._pid and self._thread.ident and not self._is_this():
            with contextlib.suppress(concurrent.futures.TimeoutError):
                ended.result(limit_s)

    def _is_this(self) -> bool:
        return threading.get_ident() == self._thread.ident

    def _post(self, act: Callable[[ThreadJob], None], job: ThreadJob) -> None:
        if os.getpid() != self._pid:
            raise ConfigError(
                f"this client belongs to process {self._pid}, and this is a forked child of it "
                f"(process {os.getpid()}); open a client here"
            )
        self._posted.append((act, job))
        if self._idle and not self._over:
            self._poke(self._wake)
        if self._over:  # nobody looks there any more
            self._drain(None)

    def check_thread(self) -> None:
        """Raise ConfigError in the client's own thread, which cannot wait for itself."""
        if self._is_this():
            raise ConfigError(
                "this client is called in its own thread (by a logging handler, or by a "
                "__del__), which would wait for itself for ever"
            )

    def _poke(self, act: Callable[[], None]) -> None:
        assert self._token is not None
        with contextlib.suppress(trio.RunFinishedError):  # the thread will look once more
            self._token.run_sync_soon(act)

    # -- the thread ---------------------------------------------------------------

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            trio.run(self._main)
        except BaseException as problem:  # noqa: ASYNC103  # no task: the thread ends here
            # Whoever waits gets the error.
            error = problem
        atexit.unregister(self.close)
        for job in self._jobs:
            _deliver(job, *(_cut_off(job) if error is None else (None, error)))
        self._over = True  # before the last look: who posts after it looks for himself
        self._drain(error)
        if error is None:
            self._ended.set_result(None)
        elif self._opened.done():
            self._ended.set_exception(error)
        else:
            self._opened.set_exception(error)
            self._ended.set_result(None)

    def _drain(self, error: BaseException | None) -> None:
        """Answer what the loop has not taken."""
        while True:
            try:
                act, job = self._posted.popleft()
            except IndexError:
                return
            if act != self._cancel:
                if job.span is not None:
                    job.span.end(error="closed")
                _deliver(job, *(_never_begun(job) if error is None else (None, error)))

    async def _main(self) -> None:
        self._work = trio.Event()
        async with self._open_client() as self._client:
            async with trio.open_nursery() as self._nursery:
                self._token = trio.lowlevel.current_trio_token()
                self._opened.set_result(None)
                await self._serve()
                self._client._driver.close()  # calls end with an error that is true
                self._deliver_answers(len(self._answers))
                self._nursery.cancel_scope.cancel()

    def _wake(self) -> None:
        self._work.set()

    async def _serve(self) -> None:
        """Take jobs, and deliver what came of them, until the client is stopped."""
        while not self._stopping:
            self._idle = True  # who posts after this wakes the loop
            if not (self._posted or self._answers or self._stopping):
                await self._work.wait()
            self._idle = False
            self._work = trio.Event()
            for _ in range(min(AT_ONCE, len(self._posted))):
                act, job = self._posted.popleft()
                try:
                    act(job)
                except Exception as problem:  # one job that cannot be done is one caller's
                    self._done(job, None, problem)
            if self._cancelled:
                cancelled, self._cancelled = self._cancelled, []
                self._client._driver.cancel(cancelled)
            self._deliver_answers(AT_ONCE)
            await trio.lowlevel.checkpoint()

    def _submit(self, job: ThreadJob) -> None:
        assert job.body is not None
        self._jobs.add(job)
        job.began_s = trio.current_time()
        driver = self._client._driver
        job.number = driver.submit(
            job.body, job.began_s, job.terms, partial(self._answer, job), span=job.span
        )
        job.body = b""

    def _answer(self, job: ThreadJob, ended: Ended) -> None:
        self._answers.append((job, ended))
        self._work.set()

    def _start(self, job: ThreadJob) -> None:
        self._jobs.add(job)
        self._nursery.start_soon(self._act, job)

    def _cancel(self, job: ThreadJob) -> None:
        job.deliver = None
        if job in self._jobs:
            self._jobs.discard(job)
            if job.number is not None:
                self._cancelled.append(job.number)
                job.number = None
        if job.scope is not None:
            job.scope.cancel()

    async def _act(self, job: ThreadJob) -> None:
        assert job.act is not None
        if job.deliver is None:
            return  # cancelled before it began
        with trio.CancelScope() as job.scope:
            result: Any = None
            error: BaseException | None = None
            try:
                result = await job.act(self._client)
            except trio.Cancelled:
                raise
            except BaseException as problem:  # it is the caller's, whatever it is
                error = problem
            self._done(job, result, error)

    def _deliver_answers(self, most: int) -> None:
        for _ in range(min(most, len(self._answers))):
            job, ended = self._answers.popleft()
            if job.number is None:
                continue  # cancelled meanwhile
            job.number = None
            try:
                outcome = self._client._outcome_at_once(ended, job.began_s, trio.current_time())
            except values.TooMuchWork:
                self._nursery.start_soon(self._decode, job, ended)
            else:
                self._done(job, outcome, None)

    async def _decode(self, job: ThreadJob, ended: Ended) -> None:
        outcome = await self._client._outcome_large(ended, job.began_s, trio.current_time())
        self._done(job, outcome, None)

    def _done(self, job: ThreadJob, result: Any, error: BaseException | None) -> None:
        self._jobs.discard(job)
        _deliver(job, result, error)


def _deliver(job: ThreadJob, result: Any, error: BaseException | None) -> None:
    deliver, job.deliver = job.deliver, None
    if deliver is not None:
        deliver(result, error)


def _never_begun(job: ThreadJob) -> tuple[Any, BaseException | None]:
    """The result of a job that the thread had not taken when it ended."""
    if job.body is not None:
        return Outcome.failed(NeverStarted("the client was closed")), None
    return None, ServerNotReady("the client was closed")


def _cut_off(job: ThreadJob) -> tuple[Any, BaseException | None]:
    """The result of a job that the thread had begun when it ended."""
    if job.body is not None:
        text = "the client was closed while the request was under way; it is cancelled"
        return Outcome.failed(Abandoned(text)), None
    return None, ServerNotReady("the client was closed")


async def encode(client: Client, asked: Asked) -> SentBody:
    """A large body, as a job.  Raises EncodingError, and NotHere if code of the value's
    must run where the value is from."""
    return await client._threads.run(lambda pause: asked.encoded(client._wire, pause=pause))


async def health(self: Client) -> ServerHealth:
    """The client's view of its server, as a job."""
    return self.health()


async def counters(self: Client) -> ClientCounters:
    """The client's counters, as a job."""
    return self.counters()


def documented_as(method: Callable[..., Any], face: Callable[P, T]) -> Callable[P, T]:
    """The method of a face, with the name and the signature of the client's that it passes on."""
    face.__name__ = method.__name__
    face.__doc__ = f"See :meth:`Client.{method.__name__}`."
    vars(face)["__signature__"] = inspect.signature(method)
    return face
