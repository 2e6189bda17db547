"""The heartbeat thread, which also watches for the end of the server.

Theory of operation
-------------------
A thread sends heartbeats over an inherited socket pair.  They tell the server that the process
lives and how late its event loop is, even while environment code blocks that loop.  The thread also
notices the end of the server, whatever killed it: the socket ends, or this process gets another
parent.  Then the thread kills the whole process group, with all processes that the environment has
started there.

The thread needs the interpreter lock.  For code that never releases it, a process watches the
server as well (:mod:`.guard`), and on Linux the kernel does
(:func:`~.reaper.die_with_parent`).
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ..core.clock import BlockedFor
from ..core.heartbeat import ANSWERS_MOST, Heartbeat, StackQuestion
from .reaper import end_process_group

if TYPE_CHECKING:
    import trio


class HeartbeatThread:
    """The state that the event loop and the heartbeat thread share.

    The loop calls :meth:`touch`; the thread measures how long ago the last call was.
    """

    def __init__(
        self, signs: socket.socket, parent: int, *, heartbeat_s: float, blocked_report_s: float
    ) -> None:
        self._signs = signs
        self._parent = parent
        self._unsent = b""
        """The unsent rest of a line."""
        self._heartbeat_s = heartbeat_s
        self._blocked_report_s = blocked_report_s
        self._touched_s: float | None = None
        self._period_s = 0.0
        self._blocked = BlockedFor(heartbeat_s, now_s=time.monotonic(), busy_s=time.process_time())
        self._loop_thread = threading.get_ident()
        self._root: trio.lowlevel.Task | None = None
        """Root of the loop's tasks, once the loop runs."""
        self._questions: deque[StackQuestion] = deque(maxlen=ANSWERS_MOST)
        """The server's questions that have no answer yet."""

    def touch(self, period_s: float) -> None:
        """Note that the loop runs, and will call this again after ``period_s``."""
        if self._root is None:
            self._root = sys.modules["trio"].lowlevel.current_root_task()
        self._period_s = period_s
        self._touched_s = time.monotonic()

    def start(self) -> None:
        """Start the thread.  It is a daemon: it ends with the process only."""
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def _lag_s(self) -> float:
        touched_s, period_s = self._touched_s, self._period_s
        return self._blocked.look(time.monotonic(), time.process_time(), touched_s, period_s)

    def _beat(self) -> None:
        poll = select.poll()
        poll.register(self._signs, select.POLLIN)
        while True:
            # A line goes out for each question at once, unless the server does not read.
            goes_on = self._questions and not self._unsent
            wait_ms = 0 if goes_on else self._heartbeat_s * 1000
            if poll.poll(wait_ms) and not self._server_listens():
                end_process_group()
            # A process that the server has forked may keep the other end open.
            if os.getppid() != self._parent:
                end_process_group()
            self._send_heartbeat()

    def _server_listens(self) -> bool:
        try:
            data = self._signs.recv(4096, socket.MSG_DONTWAIT)
            self._questions += StackQuestion.read(data)
            return bool(data)
        except BlockingIOError:
            return True
        except OSError:
            return False

    def _send_heartbeat(self) -> None:
        # A stopped server does not read.  A line that does not fit is left out; but a line
        # that was sent in part is finished first, or the next one would be part of it.
        line = self._unsent or self._heartbeat().to_line()
        with contextlib.suppress(OSError):
            sent = self._signs.send(line, socket.MSG_DONTWAIT)
            self._unsent = line[sent:]

    def _heartbeat(self) -> Heartbeat:
        lag_s = self._lag_s()
        where = _read(self._loop_stack) if lag_s >= self._blocked_report_s else ""
        question = self._questions.popleft() if self._questions else None
        if question is None or self._root is None:
            return Heartbeat(lag_s, memory_bytes(), where)
        thread = self._loop_thread if lag_s >= self._heartbeat_s else None
        stack = _read(partial(_request_stack, self._root, question.request, thread))
        return Heartbeat(lag_s, memory_bytes(), where, question.number, stack)

    def _loop_stack(self) -> str:
        """The stack of the loop's thread."""
        from ..redaction import redacted

        frames = traceback.format_stack(sys._current_frames().get(self._loop_thread))
        return redacted("".join(frames))


def _request_stack(root: trio.lowlevel.Task, request: str, loop_thread: int | None) -> str:
    """The stack of an execution."""
    from .stacks import describe_request

    return describe_request(root, request, loop_thread)


def _read(stack: Callable[[], str]) -> str:
    """The stack of tasks or threads that run meanwhile, which may change while it is read."""
    try:
        return stack()
    except Exception as error:  # any, from a changed object; heartbeats must go on
        return f"the stack changed while it was read: {error!r}; ask again"


def memory_bytes() -> int:
    """Resident memory of this process in bytes; its peak if the system does not tell it."""
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        # No /proc; or no descriptor is left, and the heartbeat must not stop.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
