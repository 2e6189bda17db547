"""Services, which go on until they are asked to stop: ``serve``, ``join`` and ``up``.  What starts
and watches them is told how they are, and can take them with it when it ends.

Theory of operation
-------------------
systemd names a datagram socket in ``NOTIFY_SOCKET``, and says in ``WATCHDOG_USEC`` how
often it wants to hear of a service.  :meth:`Manager.tell` is called by a task in the
service's own loop, so a loop that is held tells nothing, and systemd ends the service.
It is called until the service has closed, so no drain is too long for the watchdog.  A send
never waits.  A message that the manager cannot take is sent again with the next beat.

The command takes its parent's id when it starts.  It does not notice a parent that
ends in the milliseconds before that.  (Linux's parent-death signal does not help: it
follows the *thread* that started this process, and trio starts processes from threads
that come and go.)
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, final

import trio

from ..evals.files import NotWritten
from ..evals.plain import plain_line
from ..host.allocator import keep_freed_memory
from ..options import option
from .common import AT_ONCE, OK, Result, StopRequest, nothing
from .options import Logged
from .render import emit, put, say

SAY_EVERY_S: Final = 3.0
"""The pause between lines about what the command waits for."""

LOOK_S: Final = 2.0
"""The pause between two looks at the server if no watchdog wants a beat earlier."""

STATUS_CHARACTERS: Final = 200

_NAMES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


POLL_S = 0.25
"""The pause between two looks whether the parent has ended."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServiceOptions(Logged):
    """The options of a verb that goes on until it is asked to stop."""

    drain_s: float = option(30.0, "How long a stop waits for running work.", least=0, common=True)
    exit_with_parent: bool = option(
        False, "Stop at once when the process that started this one has ended.",
        group="Starting and stopping",
    )  # fmt: skip


@final
class Service:
    """The running of a service: what it tells, its tasks beside the work, and its end."""

    def __init__(
        self, asked: ServiceOptions, stop: StopRequest, manager: Manager | None,
        background: trio.Nursery,
    ) -> None:  # fmt: skip
        self.look: Callable[[], ServiceState] | None = None
        """Says how the service is, once it is there."""
        self.background = background
        """For tasks beside the work, which are cancelled when that has ended."""
        self._asked = asked
        self._stop = stop
        self._manager = manager
        self._began_s = trio.current_time()
        self._is_announced = False

    def announce(self, event: str, line: str, **about: Any) -> None:
        """Tell an event: an object on standard output, or a line for people, of which the first
        is there, too."""
        try:
            if self._asked.as_json:
                emit({"event": event, "pid": os.getpid(), **about})
            elif not self._is_announced:
                put(f"{line} (pid {os.getpid()})")
            elif line:
                say(line)
        except NotWritten as problem:  # the service goes on
            say(f"error: {problem}")
        self._is_announced = True

    def tell(self) -> None:
        """Tell the service manager how it is now, if there is one."""
        if self._manager is not None and self.look is not None:
            self._manager.tell(self.look())

    async def keep_telling(self) -> None:
        """Tell it again and again, until it is cancelled; then give up the socket."""
        if self._manager is not None:
            with contextlib.closing(self._manager):
                while True:
                    self.tell()
                    await trio.sleep(self._manager.beat_s)

    async def drained(
        self, running: str, left: Callable[[], str], drain: Callable[[float], Awaitable[bool]]
    ) -> bool:
        """Let running work end, and say what it waits for; whether all of it has ended."""
        drain_s = self._asked.drain_s
        self.tell()
        say(
            f"{self._stop.why or 'asked to stop'}: taking no new work; waiting up to {drain_s:g} s "
            f"for {running} (again to stop at once)"
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_saying, lambda: f"waiting: {left()}")
            drained = await drain(drain_s)
            nursery.cancel_scope.cancel()
        if not drained:
            say(f"not drained after {drain_s:g} s: {left()}; cancelling")
        return drained

    def stopped(self, line: str, **about: Any) -> Result:
        """The result of a service that has ended as it was asked."""
        stop, seconds = self._stop, round(trio.current_time() - self._began_s, 3)
        summary = {
            "event": "stopped", "pid": os.getpid(), "why": stop.why or "parent ended",
            "seconds": seconds, **about,
        }  # fmt: skip
        if stop.at_once:
            say("stopped at once; the workers and their executions were killed")
            return Result(AT_ONCE, summary)
        say(f"stopped after {seconds:.1f} s{line}")
        return Result(OK, summary)


async def keep_saying(line: Callable[[], str]) -> None:
    """Say a line every few seconds, as long as there is one, until cancelled."""
    while True:
        await trio.sleep(SAY_EVERY_S)
        if text := line():
            say(text)


@asynccontextmanager
async def open_service(asked: ServiceOptions, stop: StopRequest) -> AsyncIterator[Service]:
    """Run a service in the block, which waits for ``stop.asked``."""
    stop.on_first = nothing
    keep_freed_memory()
    async with trio.open_nursery() as nursery:
        service = Service(asked, stop, Manager.of(os.environ), nursery)
        nursery.start_soon(service.keep_telling)
        if asked.exit_with_parent:
            nursery.start_soon(stop_with_parent, stop.parent, stop)
        yield service
        nursery.cancel_scope.cancel()


# -- the service manager ------------------------------------------------------


class ServiceState(NamedTuple):
    """The state of a server, as a service manager is told it."""

    ready: bool
    stopping: bool
    text: str
    """A line for people."""


@final
class Manager:
    """The service manager that started this process."""

    def __init__(self, address: str, watchdog_s: float | None) -> None:
        self.watchdog_s = watchdog_s
        """Time without a message after which systemd ends the service, in seconds; None: there is
        no watchdog."""
        self._address = _kernel_address(address)
        self._due: dict[str, str] = {}
        self._told: dict[str, str] = {}
        self._silenced = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    @classmethod
    def of(cls, environ: MutableMapping[str, str]) -> Manager | None:
        """The manager that the environment variables name, which are taken out of them: a
        worker must not speak for its server.  None if there is none."""
        address, period, process = (environ.pop(name, "") for name in _NAMES)
        if not address.startswith(("/", "@")):
            return None
        mine = not process or process == str(os.getpid())
        watchdog_s = int(period) / 1e6 if mine and period.isdecimal() else 0.0
        return cls(address, watchdog_s or None)

    @property
    def beat_s(self) -> float:
        """The pause between two beats: half of what the watchdog allows."""
        return LOOK_S if self.watchdog_s is None else min(LOOK_S, self.watchdog_s / 2)

    def tell(self, seen: ServiceState) -> None:
        """Send what has changed, and the beat for the watchdog.  Never waits."""
        fields = {"STATUS": plain_line(seen.text, STATUS_CHARACTERS)}
        if seen.ready:
            fields["READY"] = "1"
        if seen.stopping:
            fields["STOPPING"] = "1"
        changed = fields.items() - self._told.items()
        self._due |= dict(changed)
        now = self._due | ({} if self.watchdog_s is None else {"WATCHDOG": "1"})
        if not now:
            return
        text = "\n".join(f"{name}={value}" for name, value in now.items())
        try:
            self._socket.sendto(text.encode(), self._address)
        except BlockingIOError:
            return  # it has no room now
        except OSError as error:
            if not self._silenced:
                self._silenced = True
                say(f"the service manager cannot be told how this server is: {error.strerror}")
            return
        self._silenced = False
        self._told |= self._due
        self._due.clear()

    def close(self) -> None:
        """Give up the socket."""
        self._socket.close()


def _kernel_address(address: str) -> str:
    """A name that begins with ``@`` is in no file system; the kernel wants a zero there."""
    return f"\0{address[1:]}" if address.startswith("@") else address


# -- the parent ---------------------------------------------------------------


async def stop_with_parent(parent: int, stop: StopRequest) -> None:
    """Stop the command at once when it is not a child of ``parent`` any more."""
    while os.getppid() == parent:  # noqa: ASYNC110  # there is nothing to be woken by
        await trio.sleep(POLL_S)
    say("the parent process has ended; stopping at once")
    await stop.end_at_once()
