"""Logging of the processes that this package starts: the command and its workers.

Library code here only logs to ``trio_envserve.*``; a program that embeds it
configures logging itself.  This module is for our own processes.

Theory of operation
-------------------
A write to a pipe that nobody reads, or to a disk that is stuck, does not return,
and a router that waits for its log serves nobody.  So lines are queued, and a
thread writes them (:class:`Writer`).  The queue is bounded.  Lost lines are counted,
and the count is logged when there is room again.  Everything that Python writes to
standard error goes the same way, as JSON if the setup says so.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import faulthandler
import io
import json
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, final

from .redaction import hide_named, redacted
from .tracing import here

WAITING_BYTES = 8 << 20
"""Bytes of lines that wait to be written; past it lines are lost, and counted."""

_STANDARD_ERROR = 2

FLUSH_S = 1.0
"""Time that a process waits at its end for its last lines to be written, in seconds."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogSetup:
    """The logging of one of our processes."""

    level: str = "INFO"
    """Least level that is written, such as ``INFO``."""
    json: bool = False
    """Whether each line is a JSON object."""
    directory: str = ""
    """Folder for the files ``server.log`` and ``worker-SLOT.log``, which are appended to; empty:
    standard error."""


@final
class Writer:
    """Writes to a descriptor in a thread of its own; :meth:`put` never waits."""

    def __init__(self, descriptor: int) -> None:
        self.lost = 0
        """Texts that were lost, and not reported yet."""
        self._descriptor = descriptor
        self._told: Callable[[str], str] = lambda text: f"{text}\n"
        self._forked = self._torn = False
        self._reset()
        os.register_at_fork(after_in_child=self._after_fork)
        threading.Thread(target=self._run, name="log writer", daemon=True).start()

    def _reset(self) -> None:
        self._texts: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()

    def _after_fork(self) -> None:
        """A forked child has no threads, and locks may be held for ever."""
        self._reset()
        self._forked = True

    def tell_with(self, told: Callable[[str], str]) -> None:
        """Set how the writer makes lines of its own."""
        self._told = told

    def put(self, text: str) -> None:
        """Queue a text, without secrets."""
        data = redacted(text).encode("utf-8", "backslashreplace")
        if self._forked:
            self._write(data)
            return
        with self._changed:
            if self._waiting_bytes + len(data) > WAITING_BYTES:
                self.lost += 1
                return
            self._texts.append(data)
            self._waiting_bytes += len(data)
            self._changed.notify_all()

    def flush(self, limit_s: float) -> bool:
        """Wait until everything is written; returns False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting_bytes, limit_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._texts)
                data = self._texts.popleft()
            written = self._write(data)
            with self._changed:
                self.lost += not written
                lost = self.lost
            if written and lost:
                why = "their reader was too slow or is gone, or the disk was full"
                notice = self._told(f"{lost} lines of this log were lost: {why}")
                if not self._write(notice.encode()):
                    lost = 0  # reported later
            with self._changed:
                self.lost -= lost if written else 0
                self._waiting_bytes -= len(data)
                self._changed.notify_all()

    def _write(self, data: bytes) -> bool:
        """Write everything, on a line of its own; returns False if that fails now."""
        if self._torn:
            data = b"\n" + data
        left = data
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError:  # nobody reads any more, or the disk is full: no reason to end
            self._torn = self._torn or len(left) < len(data)
            return False
        self._torn = False
        return True


@final
class _Lines(logging.Handler):
    """Hands records to a writer, formatted at once."""

    def __init__(self, writer: Writer) -> None:
        super().__init__()
        self.writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception as error:  # arguments that do not fit, or whose __str__ raises
            where = f"{record.pathname}:{record.lineno}"
            text = f"a record of {where} cannot be formatted: {type(error).__name__}"
            line = self.format(_record(logging.ERROR, record.name, text))
        self.writer.put(f"{line}\n")


class _Stream(io.TextIOBase):
    """Standard error as a stream that passes text on to a writer: unchanged, or each
    line as a JSON object."""

    def __init__(self, writer: Writer, formatter: _JsonFormatter | None, fd: int) -> None:
        self.writer = writer
        self._formatter = formatter
        self._fd = fd
        self._line = ""

    encoding = "utf-8"
    errors = "backslashreplace"

    @property
    def buffer(self) -> Any:
        """The stream for bytes."""
        assert sys.__stderr__ is not None
        return sys.__stderr__.buffer

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return self._formatter is None and os.isatty(self._fd)

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._formatter is None:
            self.writer.put(text)
            return len(text)
        *lines, self._line = (self._line + text).split("\n")
        for line in filter(None, lines):
            record = _record(logging.INFO, "stderr", line)
            self.writer.put(f"{self._formatter.format(record)}\n")
        return len(text)

    def end_line(self) -> None:
        """End an unfinished line."""
        if self._line:
            self.write("\n")


class _JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object, with the whole traceback in a field of its own."""

    def format(self, record: logging.LogRecord) -> str:
        more = {}
        span = here()
        if span is not None:
            _, more["trace_id"], more["span_id"], _ = span.split("-")
        if record.exc_info:
            more["traceback"] = self.formatException(record.exc_info)
        return as_object(
            record.created, record.levelname.lower(), record.name, record.process,
            record.getMessage(), **more,
        )  # fmt: skip


def as_object(
    at_s: float, level: str, logger: str, process: int | None, message: str, **more: str
) -> str:
    """A line of the log as a JSON object."""
    second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at_s))
    line = {
        "time": f"{second}.{int(at_s % 1 * 1e3):03d}Z",
        "level": level, "logger": logger, "process": process, "message": message, **more,
    }  # fmt: skip
    return json.dumps(line)


def _record(level: int, name: str, text: str) -> logging.LogRecord:
    return logging.LogRecord(name, level, "", 0, text, None, None)


def log_file(setup: LogSetup, who: str) -> Path:
    """The file to which ``who`` (``server``, or a worker id such as ``w0-3``) logs."""
    slot = who.partition("-")[0]
    name = f"worker-{slot[1:]}.log" if slot != who else f"{who}.log"
    return Path(setup.directory) / name


def configure(setup: LogSetup, who: str) -> None:
    """Configure the logging and the standard error of this process, which must be ours.

    Raises OSError if the file cannot be opened.
    """
    hide_named()
    writer = take_stderr(as_json=setup.json)
    if setup.directory:
        file = log_file(setup, who)
        file.parent.mkdir(parents=True, exist_ok=True)
        writer = Writer(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666))
    text = f"%(asctime)s %(levelname)-7s {who} %(name)s: %(message)s"
    formatter = _JsonFormatter() if setup.json else logging.Formatter(text)
    name = "trio_envserve.logs"
    writer.tell_with(lambda text: f"{formatter.format(_record(logging.WARNING, name, text))}\n")
    handler = _Lines(writer)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.setLevel(setup.level)
    root.addHandler(handler)
    if root.level > logging.DEBUG:
        # It tells of each request to a model.
        logging.getLogger("httpx2").setLevel(logging.WARNING)
    if setup.json:
        logging.captureWarnings(True)
        _log_exceptions(root)
    with contextlib.suppress(OSError, ValueError):  # there is no standard error
        # Where a crash in C, or the watchdog of a service manager, has ended this process.
        faulthandler.enable(_STANDARD_ERROR)


def take_stderr(*, as_json: bool, descriptor: int | None = None) -> Writer:
    """Let a thread write what Python writes to standard error.  Once is enough.
    ``descriptor``: where to (default: that of standard error)."""
    if isinstance(sys.stderr, _Stream):
        return sys.stderr.writer
    if descriptor is None:
        descriptor = _descriptor_of_stderr()
    writer = Writer(descriptor)
    sys.stderr = _Stream(writer, _JsonFormatter() if as_json else None, descriptor)
    atexit.register(finish)
    return writer


def _descriptor_of_stderr() -> int:
    descriptor = -1  # there is no standard error: texts are lost
    if sys.stderr is not None:
        try:
            descriptor = sys.stderr.fileno()
        except (OSError, ValueError):  # not a file, or closed
            descriptor = 2
    return descriptor


def finish() -> None:
    """Wait until the last lines are written, but not for long.  Call it before
    ``os._exit``."""
    writers = [each.writer for each in logging.getLogger().handlers if isinstance(each, _Lines)]
    if isinstance(sys.stderr, _Stream):
        sys.stderr.end_line()
        writers.append(sys.stderr.writer)
    for writer in writers:
        writer.flush(FLUSH_S)


def _log_exceptions(root: logging.Logger) -> None:
    """An uncaught exception becomes a record, with its traceback in it."""

    def uncaught(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        root.critical("%s", kind.__name__, exc_info=(kind, error, traceback))

    def uncaught_elsewhere(args: Any) -> None:  # in a thread, or where it cannot be raised
        error = args.exc_value or args.exc_type()
        root.error("%s", args.exc_type.__name__, exc_info=error)

    sys.excepthook = uncaught
    threading.excepthook = sys.unraisablehook = uncaught_elsewhere


def set_title(title: str) -> None:
    """Set this process's title, if the extra for it is installed.  Only in the main thread."""
    with contextlib.suppress(ImportError):  # a title is a courtesy
        import setproctitle

        setproctitle.setproctitle(title)
        # Linux keeps a short name besides.  With a space in it some readers of /proc/PID/stat,
        # that of Slurm's proctrack/linuxproc among them, take the process for no child of its
        # parent, and never kill it.
        setproctitle.setthreadtitle(title.partition(" ")[0])
