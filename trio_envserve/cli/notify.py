"""Telling the service manager how the server is: ready, stopping, alive.

Theory of operation
-------------------
systemd names a datagram socket in ``NOTIFY_SOCKET``, and says in ``WATCHDOG_USEC`` how
often it wants to hear of a service.  :meth:`Manager.tell` is called by a task in the
server's own loop, so a loop that is held tells nothing, and systemd ends the service.
It is called until the server has closed, so no drain is too long for the watchdog.

A send never waits.  A message that the manager cannot take is sent again with the next beat.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, MutableMapping
from typing import Final, NamedTuple, final

import trio

from ..evals.plain import plain_line
from .common import say

SAY_EVERY_S: Final = 3.0
"""The pause between lines about what the command waits for."""

LOOK_S: Final = 2.0
"""The pause between two looks at the server if no watchdog wants a beat earlier."""

STATUS_CHARACTERS: Final = 200

_NAMES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class Seen(NamedTuple):
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

    def tell(self, seen: Seen) -> None:
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


async def keep_told(manager: Manager, tell: Callable[[], None]) -> None:
    """Tell the manager again and again, until it is cancelled; then give up the socket."""
    with contextlib.closing(manager):
        while True:
            tell()
            await trio.sleep(manager.beat_s)


def _kernel_address(address: str) -> str:
    """A name that begins with ``@`` is in no file system; the kernel wants a zero there."""
    return f"\0{address[1:]}" if address.startswith("@") else address
