"""The two kinds of workers: in processes of their own, or in the server's process.

Theory of operation
-------------------
A worker has no address.  Its host, here, gives it one end of a stream of messages and
keeps the other, so nobody else can speak as a worker.  A message on a stream is from
the worker that was started with it, and its id is put before each message here.  The
incarnation in the message still counts, against stale messages (G5).

The host reads everything that a process has sent before it reports the death: no
message is lost, and none can come later.

Both kinds of workers have the same interface (:class:`Workers`); the shell does not
know which kind it has.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import shlex
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any, Protocol, TypeAlias, final

import trio

from ..core.errors import ConfigError
from ..core.heartbeat import Heartbeat, StackQuestion
from ..core.limits import KIB, ServerLimits, WireLimits, WorkerLimits
from ..core.router_effects import AskWorker, Spawn
from ..envs.loading import load
from ..net import (
    Frame,
    Message,
    MessageStream,
    Stream,
    make_memory,
    open_memory_streams,
    open_stream,
)
from ..net.framing import FramingError
from ..worker.config import WorkerConfig
from ..worker.shell import run_worker
from ..worker.stacks import describe_request, describe_requests
from .interpreters import own_folders
from .locks import LockFile
from .processes import WorkerProcess, start_process

_log = logging.getLogger("trio_envserve.server")

Started: TypeAlias = Callable[[int], None]
Heard: TypeAlias = Callable[[list[list[Frame]]], None]
"""Takes messages of a worker, each with the worker's id before it."""
Felt: TypeAlias = Callable[[Heartbeat], None]
"""Takes a heartbeat."""

HEARD_AT_ONCE = 64
"""Number of messages of a worker that are handled before other tasks have a turn."""
HEARD_BYTES = 128 * KIB
"""Bytes of headers of these after which other tasks have a turn all the same: the longest that a
worker may send take milliseconds each."""

_NOT_STARTED = "it was killed before it was started"


class Workers(Protocol):
    """How the shell starts, reaches and ends workers."""

    heartbeats: bool
    """Whether a thread beside their event loop sends a heartbeat."""

    async def live(self, spawn: Spawn, started: Started, heard: Heard, felt: Felt) -> str:
        """Supervise a worker: start it, and return when it is reaped and all its
        messages were heard; returns how it ended."""
        ...

    def send_many_nowait(self, worker: bytes, messages: Sequence[Message]) -> bool:
        """Queue messages for a worker; returns False if not all were queued, or there is
        no such worker."""
        ...

    def kill(self, worker: bytes) -> None:
        """Kill the worker now, or before it starts, if the router has decided both at
        once; ``live`` returns when it is dead."""
        ...

    def where(self, worker: bytes) -> str:
        """The stacks of its executions, for people; empty if they are not known."""
        ...

    def stack(self, ask: AskWorker) -> str | None:
        """Where one of its executions stands; None: a heartbeat will say it, or nothing."""
        ...


def _worker_limits(limits: ServerLimits) -> WorkerLimits:
    return WorkerLimits(
        beat_s=limits.beat_s,
        heartbeat_s=limits.heartbeat_s,
        blocked_report_s=limits.blocked_report_s,
        teardown_s=limits.teardown_s,
        announce_bytes=limits.announce_bytes,
        held_bytes=limits.worker_held_bytes,
        capacity=limits.worker_capacity,
    )


@final
class ProcessWorkers:
    """Each worker is a process with a process group of its own."""

    heartbeats = True

    def __init__(
        self, environment: str | None, args: dict[str, Any], limits: ServerLimits,
        wire: WireLimits, locks: Sequence[LockFile], address: str,
        environ: Sequence[Mapping[str, str]], worker_logging: dict[str, Any],
        command: Sequence[str], python: str | None = None,
        worker_otlp: dict[str, Any] | None = None,
        start: Callable[..., WorkerProcess] = start_process,
    ) -> None:  # fmt: skip
        self._environment = environment
        self._args = args
        self._limits = limits
        self._wire = wire
        self._start = start
        """How a process is started: as a child of this one, or of a guard."""
        self._locks = locks
        """Those that prove to a later server that a worker lives."""
        self._address = address
        self._environ = environ
        self._logging = worker_logging
        self._otlp = worker_otlp
        self._command = command
        self._python = python
        self._living: dict[bytes, WorkerProcess | None] = {}
        """None: the worker was killed before its process was started."""
        self._streams: dict[bytes, Stream] = {}

    async def live(self, spawn: Spawn, started: Started, heard: Heard, felt: Felt) -> str:
        """Supervise one process, from its start until it is reaped."""
        worker = spawn.worker
        if self._living.pop(worker, ...) is None:
            return _NOT_STARTED
        environ = self._environ[spawn.slot] if spawn.slot < len(self._environ) else {}
        locks = [lock.fd for lock in self._locks]
        try:
            process = self._start(
                environ=environ, locks=locks, command=self._command, python=self._python
            )
        except OSError as error:
            return _not_started(error)
        self._living[worker] = process
        process.tell_started(started)
        try:
            first = self._config(spawn).to_frames()
            async with open_stream(
                process.link, limits=self._wire, first=first, memory=make_memory()
            ) as stream:
                self._streams[worker] = stream
                return await self._attend(process, stream, worker, heard, felt)
        finally:
            self._streams.pop(worker, None)
            try:
                await process.aclose()
            finally:
                del self._living[worker]

    async def _attend(
        self, process: WorkerProcess, stream: Stream, worker: bytes, heard: Heard, felt: Felt
    ) -> str:
        """Listen to a process until it is reaped; returns how it ended."""
        why = ""
        arrived: deque[list[Frame]] = deque()
        """The messages that were received and not handled."""

        async def receive() -> None:
            nonlocal why
            try:
                while True:
                    arrived.extend(_named(worker, await stream.receive()))
                    while arrived:
                        heard(_portion(arrived))
                        if arrived:
                            await trio.lowlevel.checkpoint()
            except trio.EndOfChannel:
                # Usually the process is about to exit.
                await trio.sleep(self._limits.stop_s)
                why = "it closed its link and did not exit; "
            except FramingError as error:
                why = f"it broke the framing of its link with {error}; "
            process.kill()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(process.listen, felt)
            nursery.start_soon(receive)
            how = await process.wait()
            nursery.cancel_scope.cancel()
        if arrived:
            heard([*arrived])
        try:
            heard(_named(worker, stream.drain_nowait()))
        except FramingError as error:
            why = why or f"its last words broke the framing of its link with {error}; "
        return why + how

    def send_many_nowait(self, worker: bytes, messages: Sequence[Message]) -> bool:
        """See :class:`Workers`."""
        stream = self._streams.get(worker)
        return stream is not None and stream.send_many_nowait(messages)

    def kill(self, worker: bytes) -> None:
        """Send SIGKILL to the process and its process group."""
        process = self._living.setdefault(worker)
        if process is not None:
            process.kill()

    def where(self, worker: bytes) -> str:
        """Nothing: the worker is in another process."""
        return ""

    def stack(self, ask: AskWorker) -> str | None:
        """Ask the process."""
        process = self._living.get(ask.worker)
        if process is not None:
            process.ask(StackQuestion(ask.number, ask.request))
        return None

    def _config(self, spawn: Spawn) -> WorkerConfig:
        if self._python is None:
            path = [entry or os.getcwd() for entry in sys.path]
        else:
            path = own_folders()
        return WorkerConfig(
            worker=spawn.worker.decode(),
            incarnation=spawn.incarnation,
            environment=self._environment,
            args=self._args,
            server=self._address,
            limits=_worker_limits(self._limits),
            wire=self._wire,
            path=path,
            keep_path=self._python is not None,
            logging=self._logging,
            otlp=self._otlp,
        )


def _not_started(error: OSError) -> str:
    """Why a process could not be started, and what to do about it."""
    advice = {
        errno.EMFILE: (
            f"this process may have {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} descriptors "
            "open: raise that limit (ulimit -n), or serve fewer clients and workers"
        ),
        errno.ENFILE: "the system has no descriptor left: raise fs.file-max",
        errno.EAGAIN: "no more processes are allowed: raise that limit (ulimit -u)",
        errno.ENOMEM: "the system has no memory left for it",
        errno.E2BIG: "its environment variables are too many or too large: see worker_environ",
    }.get(error.errno or 0, "")
    return f"it could not be started: {error.strerror or error}" + (advice and f"; {advice}")


def parse_command(command: str | Sequence[str] | None) -> tuple[str, ...]:
    """The words of a command; a string is split as in a shell.  Raises ConfigError."""
    if command is None:
        return ()
    try:
        words = tuple(shlex.split(command) if isinstance(command, str) else command)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"worker_command {command!r} is not a command: {error}") from None
    texts = all(isinstance(word, str) and "\0" not in word for word in words)
    if not words or not texts or not words[0]:
        raise ConfigError(
            f"worker_command must be a command, such as 'node worker.js' or a list of its words, "
            f"not {command!r}"
        )
    return words


@final
class _WorkerTask:
    """A worker in a task of its own; says how it ended, and when."""

    def __init__(self, scope: trio.CancelScope) -> None:
        self.scope = scope
        self.ended = trio.Event()
        self.how = "it was cancelled"
        self.error: BaseException | None = None

    async def run(self, work: Callable[[], Awaitable[bool]]) -> None:
        try:
            with self.scope:
                ready = await work()
                self.how = "it retired" if ready else "its environment could not be set up"
        except trio.Cancelled:
            raise
        except BaseException as error:  # raised in ``live``; here it would end trio
            self.error = error
            _log.debug("a worker in this process ended with %r", error)
        finally:
            self.ended.set()


@final
class InProcessWorkers:
    """The environment runs in this process, for closures, debuggers and quick tests.

    There is one worker, which nobody can kill: code that ignores its cancellation holds
    its place until it ends.  The worker is a system task, because a nursery cannot be
    left while such code is in it, and a closing server must be able to leave it behind.
    It disturbs nobody then, but trio waits for it at the end of ``trio.run``.
    """

    heartbeats = False

    def __init__(
        self, environment: str | object, args: dict[str, Any], limits: ServerLimits,
        wire: WireLimits,
    ) -> None:  # fmt: skip
        self._load = partial(load, environment, args)
        self._limits = limits
        self._wire = wire
        self._scopes: dict[bytes, trio.CancelScope] = {}
        self._tasks: dict[bytes, trio.lowlevel.Task] = {}
        self._streams: dict[bytes, MessageStream] = {}

    async def live(self, spawn: Spawn, started: Started, heard: Heard, felt: Felt) -> str:
        """Supervise one worker in a task.  If it is cancelled after a kill, it does not
        wait any more."""
        worker = spawn.worker
        started(os.getpid())
        here, there = open_memory_streams(self._wire)
        self._streams[worker] = here
        running = _WorkerTask(self._scopes.setdefault(worker, trio.CancelScope()))
        work = partial(
            run_worker, there, worker=worker, incarnation=spawn.incarnation, load=self._load,
            limits=_worker_limits(self._limits), wire=self._wire,
        )  # fmt: skip

        async def receive() -> None:
            while True:
                heard(_named(worker, await here.receive()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            self._tasks[worker] = trio.lowlevel.spawn_system_task(
                running.run, work, name=f"worker {worker.decode()}", context=copy_context()
            )
            try:
                await running.ended.wait()
            finally:
                if not running.scope.cancel_called:
                    running.scope.cancel()
                    with trio.move_on_after(self._limits.stop_s, shield=True):
                        await running.ended.wait()
            nursery.cancel_scope.cancel()
        while last := here.receive_nowait():
            heard(_named(worker, last))
        del self._scopes[worker], self._streams[worker], self._tasks[worker]
        if running.error is not None:
            raise running.error
        return running.how

    def where(self, worker: bytes) -> str:
        """The stacks of its executions."""
        return describe_requests(self._tasks[worker])

    def stack(self, ask: AskWorker) -> str | None:
        """Where one of its executions stands."""
        task = self._tasks.get(ask.worker)
        return None if task is None else describe_request(task, ask.request)

    def send_many_nowait(self, worker: bytes, messages: Sequence[Message]) -> bool:
        """See :class:`Workers`."""
        stream = self._streams.get(worker)
        return stream is not None and stream.send_many_nowait(messages)

    def kill(self, worker: bytes) -> None:
        """Cancel the task; it ends when the environment's code has."""
        self._scopes.setdefault(worker, trio.CancelScope()).cancel()


def _portion(messages: deque[list[Frame]]) -> list[list[Frame]]:
    """The first messages, as many as are handled in one turn."""
    taken: list[list[Frame]] = []
    size_bytes = 0
    while messages and len(taken) < HEARD_AT_ONCE and size_bytes < HEARD_BYTES:
        taken.append(messages.popleft())
        size_bytes += sum(map(len, taken[-1][:4]))  # what comes then is not looked into
    return taken


def _named(worker: bytes, messages: list[list[Frame]]) -> list[list[Frame]]:
    return [[worker, *frames] for frames in messages]
