"""A client in a thread of its own, for callers without a trio loop.

Theory of operation
-------------------
:class:`ClientThread` runs a trio loop with one :class:`~.shell.Client`.  Its callers, in any
thread, encode their inputs themselves and hand over *jobs*: each is a task of that loop, in the
context variables of its caller.  What came of it is delivered in the loop's thread, once; what
becomes of that then is the business of the face that made the job (``aio``, ``plain``).

An outcome is received when it is decoded here: caller and thread are one process, and end together.

Nothing here holds a lock of Python code, because callers may be interrupted anywhere: by Ctrl-C, by
a signal handler that calls the same client, by garbage that is collected.  Jobs are handed over by
:meth:`trio.lowlevel.TrioToken.run_sync_soon`, which is safe in all of these.

The thread ends with :meth:`ClientThread.close`, and at the latest when the interpreter ends:
pending calls are cancelled on the server then.  A forked child has a copy of the object and no
thread; it is told so.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import contextvars
import inspect
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, ParamSpec, TypeAlias, TypeVar, final

import trio

from ..core.errors import ConfigError, ServerNotReady
from ..core.health import ServerHealth
from ..core.limits import WireLimits
from ..core.status import ClientCounters
from .options import Asked, Encoded
from .outcome import Outcome
from .shell import Client, run_encoded

P = ParamSpec("P")
T = TypeVar("T")

EXIT_S = 5.0
"""Seconds for which the end of the interpreter waits for a client."""

Act: TypeAlias = Callable[[Client], Awaitable[Any]]
"""Work for the client, which is done in its loop."""

Deliver: TypeAlias = Callable[[Any, BaseException | None], object]
"""Takes what came of a job, or the error.  Called in the client's thread, or in that of the caller
if the client has ended: must be quick, and must not raise."""


@final
class ThreadJob:
    """A job of the thread.  It is made before it is handed over, so that it can be cancelled
    whatever comes in between."""

    __slots__ = ("deliver", "scope")

    def __init__(self, deliver: Deliver) -> None:
        self.deliver = deliver
        self.scope = trio.CancelScope()


@final
class ClientThread:
    """The thread of a client.  ``open_client`` is called in it."""

    def __init__(
        self, open_client: Callable[[], AbstractAsyncContextManager[Client]], wire: WireLimits
    ) -> None:
        self.wire = wire
        self._open_client = open_client
        self._pid = os.getpid()
        self._stopping = False
        self._stop = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._opened: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, name="trio_envserve client", daemon=True)
        # The rest is the loop's.
        self._closed = False
        """Whether no further job is begun."""
        self._jobs: set[ThreadJob] = set()
        """The jobs that were begun, and have neither ended nor been cancelled."""

    # -- for callers, in any thread ---------------------------------------------

    def start(self) -> concurrent.futures.Future[None]:
        """Start the thread.  The future is done when the client is open, and has the error if it
        cannot be."""
        atexit.register(self.close, EXIT_S)
        try:
            self._thread.start()
        except RuntimeError:  # there may be no further thread
            atexit.unregister(self.close)
            self._ended.set_result(None)
            raise
        return self._opened

    def run(self, job: ThreadJob, act: Act) -> None:
        """Run something in a task of the loop; its result or error will be delivered, or
        ServerNotReady if the client was closed before it began."""
        if os.getpid() != self._pid:
            raise ConfigError(
                f"this client belongs to process {self._pid}, and this is a forked child of it "
                f"(process {os.getpid()}); open a client here"
            )
        begin = partial(contextvars.copy_context().run, self._begin, job, act)
        if not self._soon(begin):
            job.deliver(None, _closed())

    def cancel(self, job: ThreadJob) -> None:
        """Cancel a job, whether or not anybody waits for it; its rollout is cancelled at once."""
        self._soon(job.scope.cancel)

    def stop(self) -> concurrent.futures.Future[None]:
        """Cancel what is pending and end the thread; the future is done when it has ended.
        May be called more than once, anywhere."""
        self._stopping = True
        self._soon(self._stop.set)
        return self._ended

    def close(self, limit_s: float | None = None) -> None:
        """Stop, and wait for the end, but not in the thread itself or in a forked child."""
        ended = self.stop()
        if os.getpid() == self._pid and self._thread.ident and not self._is_this():
            with contextlib.suppress(concurrent.futures.TimeoutError):
                ended.result(limit_s)

    def check_thread(self) -> None:
        """Raise ConfigError in the client's own thread, which cannot wait for itself."""
        if self._is_this():
            raise ConfigError(
                "this client is called in its own thread (by a logging handler, or by a "
                "__del__), which would wait for itself for ever"
            )

    def _is_this(self) -> bool:
        return threading.get_ident() == self._thread.ident

    def _soon(self, act: Callable[[], object]) -> bool:
        """Have the loop call something soon.  Returns whether it will: it has not ended, and is not
        that of another process."""
        if self._token is None or os.getpid() != self._pid:
            return False
        try:
            self._token.run_sync_soon(act)
        except trio.RunFinishedError:
            return False
        return True

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
            job.deliver(None, error or _closed())
        if error is None:
            self._ended.set_result(None)
        elif self._opened.done():
            self._ended.set_exception(error)
        else:
            self._opened.set_exception(error)
            self._ended.set_result(None)

    async def _main(self) -> None:
        async with self._open_client() as self._client:
            async with trio.open_nursery() as self._nursery:
                self._token = trio.lowlevel.current_trio_token()
                self._opened.set_result(None)
                if not self._stopping:  # it is set before the token is looked for
                    await self._stop.wait()
                self._closed = True
                self._client._driver.close()  # all jobs end soon, with an error that is true

    def _begin(self, job: ThreadJob, act: Act) -> None:
        if self._closed:
            job.deliver(None, _closed())
        else:
            self._jobs.add(job)
            self._nursery.start_soon(self._act, job, act)

    async def _act(self, job: ThreadJob, act: Act) -> None:
        result: Any = None
        error: BaseException | None = None
        with job.scope:
            try:
                result = await act(self._client)
            except trio.Cancelled:
                raise
            except BaseException as problem:  # it is the caller's, whatever it is
                error = problem
        self._jobs.discard(job)
        if not job.scope.cancelled_caught:
            job.deliver(result, error)


def _closed() -> ServerNotReady:
    return ServerNotReady("the client was closed")


async def encode(client: Client, asked: Asked) -> Encoded:
    """A large call, encoded as a job.  Raises EncodingError, and NotHere if code of the value's
    must run where the value is from."""
    return await client._threads.run(lambda pause: asked.encode(client._wire, pause))


def call(encoded: Encoded) -> Callable[[Client], Awaitable[Outcome]]:
    """A call of the client, as a job."""
    return lambda client: run_encoded(client, encoded)


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
