"""The two kinds of workers: in processes of their own, or in the server's process.

Theory of operation
-------------------
A worker has no address.  It is started with one end of a stream of messages, and this module keeps
the other end: so nobody else can pose as a worker.  Each message of a stream gets the id of its
worker in front here.  The incarnation in the message still counts, against stale messages (G5).

All messages that a process has sent are read before its death is reported: none is lost, and none
can arrive later.

Both kinds of workers have one interface (:class:`Workers`), and the shell does not know which kind
it has.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import shlex
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any, Protocol, TypeAlias, final

import trio

from ..core.errors import ConfigError
from ..core.heartbeat import Heartbeat, StackQuestion
from ..core.limits import KIB, MIB, ServerLimits, WireLimits
from ..core.router_effects import AskWorker, Spawn
from ..envs.loading import load
from ..net import (
    Frame,
    Message,
    MessageStream,
    Stream,
    open_memory_streams,
    open_stream,
)
from ..net.framing import FramingError
from ..worker import folders
from ..worker.config import WorkerConfig
from ..worker.guard import may_start
from ..worker.shell import run_worker
from ..worker.stacks import describe_request, describe_requests
from .interpreters import own_folders
from .locks import LockFile
from .processes import WorkerProcess, start_process

_log = logging.getLogger("trio_envserve.server")

Started: TypeAlias = Callable[[int], None]
"""Called with the pid of a worker that was started."""
OnMessages: TypeAlias = Callable[[list[list[Frame]]], None]
"""Called with messages of a worker, each with the worker's id in front."""
OnHeartbeat: TypeAlias = Callable[[Heartbeat], None]
"""Called with each heartbeat of a worker."""

MESSAGES_AT_ONCE = 64
"""Most messages of a worker that are handled before other tasks have a turn."""
HEADER_BYTES_AT_ONCE = 128 * KIB
"""Most bytes of headers that are handled before other tasks have a turn: the longest headers take
milliseconds each."""

UNREAD_MESSAGES = 10_000
"""Most messages that wait for a worker to read them: a worker that says much and reads nothing is
killed."""
UNREAD_BYTES = 64 * MIB
"""Most bytes of headers in these.  Bodies belong to dispatches, so to executions."""

_NOT_STARTED = "it was killed before it was started"


class Workers(Protocol):
    """The interface by which the shell starts, reaches and ends workers."""

    heartbeats: bool
    """Whether a thread beside their event loop sends heartbeats."""

    async def live(
        self, spawn: Spawn, started: Started, on_messages: OnMessages, on_heartbeat: OnHeartbeat
    ) -> str:
        """Supervise a worker: start it, and return when it is reaped and all its messages were
        handled; returns a text on how it ended."""
        ...

    def send_many_nowait(self, worker: bytes, messages: Sequence[Message]) -> None:
        """Queue messages for a worker, if there is one.  It is killed if it cannot get all of them:
        then it would not have what its router has told; and if it leaves too many unread (G8)."""
        ...

    def kill(self, worker: bytes) -> None:
        """Kill a worker now, or before its start if :meth:`live` has not begun; ``live`` returns
        when it is dead."""
        ...

    def where(self, worker: bytes) -> str:
        """The stacks of a worker's executions, for people; empty if they are not known."""
        ...

    def stack(self, ask: AskWorker) -> str | None:
        """The stack of one of its executions; None if a heartbeat will have it, or nothing will."""
        ...


@final
class ProcessWorkers:
    """Each worker is a process, below a guard of its own."""

    heartbeats = True

    def __init__(
        self, environment: str | None, args: dict[str, Any], limits: ServerLimits,
        wire: WireLimits, locks: Sequence[LockFile], address: str,
        environ: Sequence[Mapping[str, str]], worker_logging: dict[str, Any],
        command: Sequence[str], python: str | None = None,
        worker_otlp: dict[str, Any] | None = None, *, leased: bool = False,
    ) -> None:  # fmt: skip
        """``leased``: no worker starts before :meth:`set_deadline`."""
        self._environment = environment
        self._args = args
        self._limits = limits
        self._wire = wire
        self._leased = leased
        self._deadline_s: float | None = None
        self._warned = False
        """Whether the log has said that memory cannot be locked."""
        self._locks = locks
        """Locks by which a later server sees that a worker lives."""
        self._address = address
        self._environ = environ
        self._logging = worker_logging
        self._otlp = worker_otlp
        self._command = command
        self._python = python
        self._living: dict[bytes, WorkerProcess | None] = {}
        """Process of each living worker; None if it was killed before its process was started."""
        self._streams: dict[bytes, Stream] = {}

    async def live(
        self, spawn: Spawn, started: Started, on_messages: OnMessages, on_heartbeat: OnHeartbeat
    ) -> str:
        """Supervise one process, from its start until it is reaped."""
        worker = spawn.worker
        if self._living.pop(worker, ...) is None:
            return _NOT_STARTED
        environ = self._environ[spawn.slot] if spawn.slot < len(self._environ) else {}
        locks = [lock.fd for lock in self._locks]
        try:
            if self._leased and not may_start(self._deadline_s is not None):
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
            process = start_process(
                environ=environ, locks=locks, command=self._command, python=self._python,
                deadline_s=self._deadline_s,
            )  # fmt: skip
        except OSError as error:
            return _not_started(error)
        self._living[worker] = process
        try:
            first = self._config(spawn).to_frames()
            async with open_stream(process.link, limits=self._wire, first=first) as stream:
                self._streams[worker] = stream
                return await self._attend(
                    process, stream, worker, started, on_messages, on_heartbeat
                )
        finally:
            self._streams.pop(worker, None)
            try:
                await process.aclose()
            finally:
                del self._living[worker]

    async def _attend(
        self,
        process: WorkerProcess,
        stream: Stream,
        worker: bytes,
        started: Started,
        on_messages: OnMessages,
        on_heartbeat: OnHeartbeat,
    ) -> str:
        """Listen to a process until it is reaped; returns how it ended."""
        why = ""

        def note_start(pid: int) -> None:
            if process.unlocked and not self._warned:
                self._warned = True
                _log.warning(
                    "the memory of the guard of the workers cannot be locked (%s): raise that "
                    "limit (ulimit -l)", process.unlocked,
                )  # fmt: skip
            started(pid)

        arrived: deque[list[Frame]] = deque()
        """Messages that were received and not handled yet."""

        async def receive() -> None:
            nonlocal why
            try:
                while True:
                    arrived.extend(_named(worker, await stream.receive()))
                    while arrived:
                        on_messages(_portion(arrived))
                        if arrived:
                            await trio.lowlevel.checkpoint()
            except trio.EndOfChannel:
                # Usually the process is about to exit.
                await trio.sleep(self._limits.stop_s)
                why = "it closed its link and did not exit; "
            except FramingError as error:
                why = f"it sent bytes on its link that are no message ({error}); "
            process.kill()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(process.listen, on_heartbeat, self._limits.heartbeat_s)
            nursery.start_soon(receive)
            how = await process.wait(note_start)
            nursery.cancel_scope.cancel()
        if arrived:
            on_messages([*arrived])
        try:
            on_messages(_named(worker, stream.drain_nowait()))
        except FramingError as error:
            why = why or f"the last bytes on its link were no message ({error}); "
        return why + how

    def send_many_nowait(self, worker: bytes, messages: Sequence[Message]) -> None:
        """See :class:`Workers`."""
        stream = self._streams.get(worker)
        if stream is not None and (
            not stream.send_many_nowait(messages)
            or stream.has_backlog(UNREAD_MESSAGES, UNREAD_BYTES, 2)
        ):
            self.kill(worker)

    def kill(self, worker: bytes) -> None:
        """Have the guard kill the process and all that it has started."""
        process = self._living.setdefault(worker)
        if process is not None:
            process.kill()

    def set_deadline(self, boot_s: float | None) -> None:
        """Move the time by which all workers must be dead; None: no worker lives, and none starts
        until it is set again."""
        self._deadline_s = boot_s
        if boot_s is not None:
            for process in self._living.values():
                if process is not None:
                    process.set_deadline(boot_s)

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
            limits=self._limits,
            wire=self._wire,
            path=path,
            keep_path=self._python is not None,
            logging=self._logging,
            otlp=self._otlp,
        )


def _not_started(error: OSError) -> str:
    """The reason for which a process could not be started, and what to do about it."""
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


def parse_command(
    command: str | Sequence[str] | None, name: str = "worker_command"
) -> tuple[str, ...]:
    """The words of a command; a string is split as in a shell.  Raises ConfigError."""
    if command is None:
        return ()
    try:
        words = tuple(shlex.split(command) if isinstance(command, str) else command)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{name} {command!r} is not a command: {error}") from None
    texts = all(isinstance(word, str) and "\0" not in word for word in words)
    if not words or not texts or not words[0]:
        raise ConfigError(
            f"{name} must be a command, such as 'node worker.js' or a list of its words, "
            f"not {command!r}"
        )
    return words


@final
class _WorkerTask:
    """A worker in a task of its own, and how and when it ended."""

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

    There is one worker, which cannot be killed: code that ignores its cancellation runs until it
    ends by itself.  The worker is a system task: a closing server must be able to leave such code
    behind, and a nursery could not be left.  ``trio.run`` waits for it at its end.
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

    async def live(
        self, spawn: Spawn, started: Started, on_messages: OnMessages, on_heartbeat: OnHeartbeat
    ) -> str:
        """Supervise one worker in a task.  Cancelled after a kill, it waits no longer for it."""
        worker = spawn.worker
        started(os.getpid())
        here, there = open_memory_streams(self._wire)
        self._streams[worker] = here
        running = _WorkerTask(self._scopes.setdefault(worker, trio.CancelScope()))
        work = partial(
            run_worker, there, worker=worker, incarnation=spawn.incarnation, load=self._load,
            limits=self._limits, wire=self._wire,
        )  # fmt: skip

        async def receive() -> None:
            while True:
                on_messages(_named(worker, await here.receive()))

        # It has no guard that would do this.  Nobody waits for it, however much there is to remove.
        threading.Thread(target=folders.sweep, name="sweep", daemon=True).start()
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
            on_messages(_named(worker, last))
        del self._scopes[worker], self._streams[worker], self._tasks[worker]
        if running.error is not None:
            raise running.error
        return running.how

    def where(self, worker: bytes) -> str:
        """The stacks of its executions."""
        return describe_requests(self._tasks[worker])

    def stack(self, ask: AskWorker) -> str | None:
        """The stack of one of its executions."""
        task = self._tasks.get(ask.worker)
        return None if task is None else describe_request(task, ask.request)

    def send_many_nowait(self, worker: bytes, messages: Sequence[Message]) -> None:
        """See :class:`Workers`."""
        stream = self._streams.get(worker)
        if stream is not None and not stream.send_many_nowait(messages):
            self.kill(worker)

    def kill(self, worker: bytes) -> None:
        """Cancel the task; it ends when the environment's code has."""
        self._scopes.setdefault(worker, trio.CancelScope()).cancel()


def _portion(messages: deque[list[Frame]]) -> list[list[Frame]]:
    """The first messages, as many as are handled in one turn."""
    taken: list[list[Frame]] = []
    size_bytes = 0
    while messages and len(taken) < MESSAGES_AT_ONCE and size_bytes < HEADER_BYTES_AT_ONCE:
        taken.append(messages.popleft())
        size_bytes += sum(map(len, taken[-1][:4]))  # what comes then is not looked into
    return taken


def _named(worker: bytes, messages: list[list[Frame]]) -> list[list[Frame]]:
    return [[worker, *frames] for frames in messages]
