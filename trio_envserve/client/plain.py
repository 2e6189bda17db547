"""The client for plain code: scripts, notebooks, threads.

Theory of operation
-------------------
The client itself runs in a thread (:mod:`.thread`).  A call waits in its caller's thread on a queue
that Ctrl-C interrupts (it is no Python code, so an interrupt leaves no lock behind).  So a call
works in any thread, with or without a running event loop (which it blocks).
"""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack, final

from ..core.errors import NeverStarted, ServerNotReady
from ..core.limits import ClientLimits, WireLimits
from ..core.values import EncodingError
from ..near import with_near_names
from ..net import DEFAULT_TRANSPORT, Transport
from ..net.keypairs import ClientCurve
from .opening import open_client, wire_of
from .options import Asked, CallOptions, checked, several
from .outcome import Outcome, not_encodable
from .shell import Arrays, Client, check_in_flight
from .thread import ClientThread, ThreadJob, call, documented_as
from .thread import counters as counters_of
from .thread import health as health_of

T = TypeVar("T")
P = ParamSpec("P")


def _passed_on(
    method: Callable[Concatenate[Client, P], Awaitable[T]],
) -> Callable[Concatenate[PlainClient, P], T]:
    """The same method of the client in the thread, which blocks the caller's."""

    def called(self: PlainClient, /, *args: P.args, **options: P.kwargs) -> T:
        return self._run(lambda client: method(client, *args, **options))

    return documented_as(method, called)


@final
class PlainClient:
    """A connection to a server, for code without an event loop::

        with PlainClient("tcp://127.0.0.1:5555") as client:
            result = client.run_rollout({"index": 0})

    Reconnects when the connection is lost, and does not wait for the server: see
    :meth:`wait_ready`.  All calls may be made by any number of threads at once.  Ctrl-C
    in a call cancels its rollout.  In a notebook, keep the client and :meth:`close` it at
    the end.  Arguments and errors are those of :func:`open_client`.

    The client runs in a thread of its own, which ends with it, or with the interpreter.
    Pending calls end with an error then, and the server cancels them.  A process that is
    forked from this one must open a client of its own.
    """

    @with_near_names
    def __init__(
        self, address: str, *, name: str = "", limits: ClientLimits | None = None,
        wire: WireLimits | None = None, transport: Transport = DEFAULT_TRANSPORT,
        arrays: Arrays = "auto", caller: str = "", curve: ClientCurve | None = None,
    ) -> None:  # fmt: skip
        self._thread = ClientThread(
            lambda: open_client(
                address, name=name, limits=limits, wire=wire, transport=transport, arrays=arrays,
                caller=caller, curve=curve,
            ),
            wire_of(wire, curve),
        )  # fmt: skip
        # One that is dropped ends by itself; garbage collection must not wait for it.
        self._ends = weakref.finalize(self, self._thread.stop)
        try:
            self._thread.start().result()
        except BaseException:
            self._thread.stop()
            raise

    def __enter__(self) -> PlainClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        where: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    def close(self) -> None:
        """End pending calls with an error, and the connection.  May be called again, and
        by any thread."""
        self._thread.close()
        self._ends.detach()

    # -- calls ----------------------------------------------------------------

    def run_rollout(self, input: Any, **options: Unpack[CallOptions]) -> Any:
        """See :meth:`Client.run_rollout`."""
        return self.outcome(input, **options).unwrap()

    def run_group(self, inputs: Sequence[Any], **options: Unpack[CallOptions]) -> list[Outcome]:
        """See :meth:`Client.run_group`."""
        return Outcome.members(self.outcome(list(several(inputs)), kind="group", **options))

    def outcome(
        self, input: Any, *, kind: Literal["rollout", "group", "rescore"] = "rollout",
        **options: Unpack[CallOptions],
    ) -> Outcome:  # fmt: skip
        """See :meth:`Client.outcome`."""
        asked = checked(input, kind=kind, **options)
        try:
            return self._run(call(asked.encode(self._thread.wire)))
        except EncodingError as error:
            return Outcome.failed(not_encodable(error))
        except ServerNotReady:
            return Outcome.failed(NeverStarted("the client was closed"))

    @contextmanager
    def run_many(
        self, inputs: Iterable[Any], *, in_flight: int = 1000, **options: Unpack[CallOptions]
    ) -> Generator[PlainOutcomes, None, None]:
        """Run one rollout for each input, at most ``in_flight`` at a time::

            with client.run_many(inputs) as outcomes:
                for index, outcome in outcomes:
                    ...

        See :meth:`Client.run_many`.  Inputs are read while outcomes are waited for.  One
        thread iterates; after an exception (Ctrl-C, say) what was left is cancelled.
        """
        check_in_flight(in_flight)
        outcomes = PlainOutcomes(self._thread, checked(None, **options), several(inputs), in_flight)
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

    def _run(self, act: Callable[[Client], Awaitable[T]]) -> T:
        """Have the client do something in its thread, and wait for what comes of it."""
        self._thread.check_thread()
        box: SimpleQueue[tuple[T, BaseException | None]] = SimpleQueue()
        job = ThreadJob(lambda result, error: box.put((result, error)))
        try:
            self._thread.run(job, act)
            result, error = box.get()
        except BaseException:
            self._thread.cancel(job)  # Ctrl-C
            raise
        if error is not None:
            raise error
        return result


@final
class PlainOutcomes(Iterator[tuple[int, Outcome]]):
    """The outcomes of many calls as they come.  For one thread; any may close it."""

    def __init__(
        self, thread: ClientThread, asked: Asked, inputs: Iterable[Any], in_flight: int
    ) -> None:
        self._thread = thread
        self._asked = asked
        self._inputs = enumerate(inputs)
        self._in_flight = in_flight
        self._fed = False
        self._interrupted = self._closed = False
        self._arrived: list[tuple[int, Outcome]] = []
        self._jobs: dict[int, ThreadJob] = {}
        """Jobs whose outcomes were not taken, by the index of their input."""
        self._ready: SimpleQueue[tuple[int, Any, BaseException | None]] = SimpleQueue()

    def __iter__(self) -> PlainOutcomes:
        return self

    def __next__(self) -> tuple[int, Outcome]:
        """The next outcome, once there is one."""
        try:
            if self._interrupted:
                raise RuntimeError("these calls were interrupted, and cancelled: start them again")
            self._thread.check_thread()
            return self._next()
        except StopIteration:
            raise
        except BaseException:
            self._interrupted = True  # an outcome may be gone that was taken already
            self._close()
            raise

    def _next(self) -> tuple[int, Outcome]:
        self._feed()
        while self._jobs:
            index, outcome, error = self._ready.get()
            if self._jobs.pop(index, None) is None:
                continue  # closed meanwhile
            if error is not None:
                raise error
            return index, outcome
        raise StopIteration

    def _feed(self) -> None:
        while len(self._jobs) < self._in_flight and not self._fed:
            index, input = next(self._inputs, (-1, None))
            if index < 0:
                self._fed = True
                return
            job = self._jobs[index] = ThreadJob(partial(self._deliver, index))
            asked = self._asked.member(index, input)
            try:
                encoded = asked.encode(self._thread.wire)
            except EncodingError as error:
                outcome = Outcome.failed(not_encodable(error))
                self._ready.put((index, outcome, None))
            else:
                self._thread.run(job, call(encoded))

    def _deliver(self, index: int, outcome: Any, error: BaseException | None) -> None:
        if isinstance(error, ServerNotReady):
            outcome, error = Outcome.failed(NeverStarted("the client was closed")), None
        self._ready.put((index, outcome, error))

    def _close(self) -> None:
        """Cancel the calls that are left."""
        self._fed = self._closed = True
        jobs, self._jobs = self._jobs, {}
        for job in jobs.values():
            self._thread.cancel(job)
        self._ready.put((-1, None, None))  # wakes who waits

    def arrived(self) -> list[tuple[int, Outcome]]:
        """See :meth:`.Outcomes.arrived`."""
        if not self._closed:
            raise RuntimeError("arrived() is for after the block: inside it, iterate")
        with suppress(Empty):
            while True:
                index, outcome, error = self._ready.get_nowait()
                if index >= 0 and error is None:
                    self._arrived.append((index, outcome))
        return self._arrived
