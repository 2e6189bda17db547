"""Text that is written past Python to standard error, as JSON.

Theory of operation
-------------------
:mod:`..logs` makes objects of all that Python writes.  A library in C, a process that an
environment has started, and an interpreter that dies write to the descriptor itself.  With
``--log-json`` this descriptor is a pipe, which workers inherit, and a small process at its
other end makes an object of each line that is none.  It is a process, because the last words
of this one must be read when this one is dead; and it is forked twice, so it is nobody's child
that an environment might wait for.  It ends when nobody is left who could write.

Nobody waits for whoever reads the log: what they do not take in time is lost.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import time
from collections import deque
from typing import Final, NoReturn, final

from .. import logs

STANDARD_ERROR: Final = 2

_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
"""Signals that are meant for the command, and after which the last lines are still written."""

_OBJECT: Final = b'{"time": "'
"""Beginning of a line of :mod:`..logs`."""

_MOST_WAITING: Final = 8 << 20
_LONGEST_LINE: Final = 256 << 10
_END_S: Final = 1.0
"""After the end of all writers, the reader of the log has so long to take what is left."""


def relay_standard_error() -> int | None:
    """Put the relay behind standard error, and return a descriptor of what it was; None if
    there is none.  Call it before any thread is started."""
    try:
        real = fcntl.fcntl(STANDARD_ERROR, fcntl.F_DUPFD_CLOEXEC, 3)
    except OSError:
        return None
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            if not os.fork():
                os.close(write)
                _relay(read, real)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(read)
    os.dup2(write, STANDARD_ERROR)
    os.close(write)
    return real


def _relay(read: int, real: int) -> NoReturn:
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    for standard in (0, 1, STANDARD_ERROR):  # so that their readers find the end
        try:
            os.close(standard)
        except OSError:  # it was closed already
            continue
    lines = Lines(real)
    while True:
        ready = dict(_poll(read, real if lines.waiting else None))
        if real in ready and not lines.write():
            lines.reader_gone = True
        if read in ready:
            data = os.read(read, 64 << 10)
            if not data:
                break
            lines.take(data)
    lines.end()
    until_s = time.monotonic() + _END_S
    while lines.waiting and time.monotonic() < until_s:
        if _poll(None, real, _END_S) and not lines.write():
            break
    os._exit(0)


def _poll(
    read: int | None, write: int | None, limit_s: float | None = None
) -> list[tuple[int, int]]:
    poll = select.poll()
    if read is not None:
        poll.register(read, select.POLLIN)
    if write is not None:
        poll.register(write, select.POLLOUT)
    return poll.poll(None if limit_s is None else limit_s * 1e3)


@final
class Lines:
    """The lines that were read, and what of them is to be written."""

    def __init__(self, descriptor: int) -> None:
        self.reader_gone = False
        self.waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._descriptor = descriptor
        self._line = b""

    def take(self, data: bytes) -> None:
        """Bytes of somebody's."""
        *whole, self._line = (self._line + data).split(b"\n")
        if len(self._line) > _LONGEST_LINE:
            whole.append(self._line)
            self._line = b""
        for line in whole:
            self._put_apart(line)

    def end(self) -> None:
        """There will be no more."""
        self._put_apart(self._line)
        self._line = b""

    def write(self) -> bool:
        """Write a part that a pipe takes at once, when it takes anything; False if nobody
        reads any more."""
        data = self.waiting.popleft()
        part, rest = data[: select.PIPE_BUF], data[select.PIPE_BUF :]
        try:
            written = os.write(self._descriptor, part)
        except OSError:
            self.waiting.clear()
            self._waiting_bytes = 0
            return False
        self._waiting_bytes -= written
        rest = part[written:] + rest
        if rest:
            self.waiting.appendleft(rest)
        return True

    def _put_apart(self, line: bytes) -> None:
        """A worker's object may stand behind words that end no line."""
        begin = line.find(_OBJECT)
        if begin > 0 and is_object(line[begin:]):
            self._put(line[:begin])
            line = line[begin:]
        self._put(line)

    def _put(self, line: bytes) -> None:
        if not line.strip() or self.reader_gone or self._waiting_bytes > _MOST_WAITING:
            return
        data = as_object(line) + b"\n"
        self.waiting.append(data)
        self._waiting_bytes += len(data)


def is_object(line: bytes) -> bool:
    """Whether it is JSON already, as a worker's lines are."""
    if not line.startswith(b"{"):
        return False
    try:
        json.loads(line)
    except ValueError:  # it only looks like it
        return False
    return True


def as_object(line: bytes) -> bytes:
    """A line as a JSON object; unchanged if it is one."""
    if is_object(line):
        return line
    text = line.decode("utf-8", "backslashreplace").rstrip("\r")
    return logs.as_object(time.time(), "info", "stderr", None, text).encode()
