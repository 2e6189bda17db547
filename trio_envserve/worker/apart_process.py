"""The inside of a process for calls apart.  Nothing heavy is imported here: each process pays.

Theory of operation
-------------------
The process calls one function after the other (:func:`run`), in its main thread.  The *paper* of
a call is a file that outlives the process: it gets the process id, and the stack if the process
ends badly.  Nothing in it needs the interpreter lock: at the limit of time a timer of the kernel
sends a signal, for which ``faulthandler`` writes the stack, and which then ends the process,
whatever holds the interpreter.  (``faulthandler`` has a timer of its own, which takes the place of
that where there is none: a thread, whose start and end would take half of a short call.)

What a call starts ends with it: processes are killed, and a process in which it has left threads
is not used again.  A forked child gets none of the descriptors by which this process speaks.

What a call has changed is put back (:class:`ProcessState`): folder, variables, path of imports,
limits, timers, handlers and mask of signals.  A scorer that runs code of a model may have taken
functions away from it for good (``os.kill = None``).  So the names in some modules
(:data:`MODULES`), and those of modules, are compared, by identity: what a call has put there may be
equal to anything (``mock.ANY``).  What has changed is put back, so that the reply can be sent.  But
what was imported meanwhile may have a copy of it: such a process is not used again.  Globals of
other modules are not looked at: to compare all would take longer than a call.

On Linux two processes stand above this one.  The one that the worker starts forks the *reaper*, and
that the process for calls (:func:`fork_below`).  The reaper becomes the parent of each process
below it whose own parent has ended (:mod:`.reaper`): also of one in a session of its own.  It kills
all of them once

- the process for calls has ended, by its timer or otherwise;
- the first process has ended: the worker kills that one to cancel a call;
- the process for calls has become another program (``os.execv``), which has no timer and would
  never reply: the kernel has closed its end of a pipe.

Reaper and first process then end as the process for calls has.  Both hold all descriptors that the
worker watches: so for the worker nothing has ended until all has.  Only where it cancels a call may
it reap the first process, which it has killed, a moment before the others have ended.  A reaper
that a call has stopped goes on by the first process, or by the end of that.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import faulthandler
import importlib
import io
import operator
import os
import pickle
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeAlias, final

from ..file_modules import module_of_file
from ..large_pickles import Spans, dump, mapped, write
from ..redaction import hide_named, redacted
from .reaper import (
    PR_SET_PDEATHSIG,
    be_deaf,
    become_subreaper,
    children_of_this,
    die_with_parent,
    drain,
    end_as,
    kill_group,
    kill_others,
    reap,
    woken_by_children,
)

PID_BYTES = 8
"""Length of the process id, big-endian, at the begin of a paper."""
TIMED_OUT: Final = "Timeout ("
"""Begin of what ``faulthandler``'s own timer writes."""
OUT_OF_MEMORY = "memory"
"""The reply of a call that needed more memory than it may."""
ARRAYS_AT = 1 << 20
"""Place from which on a paper has large arrays."""
PRINTED_BYTES = 64 * 1024
"""Most bytes that one call may print."""
TRACEBACK_CHARACTERS = 32 * 1024
"""Longest traceback."""
END_S = 1.0
"""Time for which the end of the processes that a call has started is waited for, in seconds."""
RETIRE_S = 0.2
"""Time for which a process that is not used again may take to end, in seconds."""
TIMES_OUT: Final = int(getattr(signal, "SIGRTMAX", signal.SIGUSR2)) - 4
"""Signal of the timer of calls: one of those that nobody has a meaning for.  Its handler is
``faulthandler``'s, which is lost if there is another."""
LEFT: Final = TIMES_OUT - 1
"""Signal by which the first process ends if the one for calls has become another program."""
FIRST_TO_DIE = "1000"
"""Mark for the kernel, which ends such a process before others when memory runs out."""

_CLOCK_MONOTONIC = 1

Reply: TypeAlias = tuple[bytes | None, Spans, bytes | None, str, str]
"""First fields of an ``ApartReply``."""
Most: TypeAlias = tuple[int, int]
"""Most bytes of a value's pickle, and of the large arrays beside it."""


@final
class _State:
    """The state of this process.  Global, as the process has one task in all."""

    spoilt = False
    """Whether it is not to be used again."""
    shared: ProcessState | None = None
    """State that is put back after each call; None before the first."""
    timer: _Timer | None = None
    """Timer of the kernel; None where there is none."""
    printed: _Printed


@final
class _Printed(io.RawIOBase):
    """Standard error, for so much of each call."""

    left = PRINTED_BYTES

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2

    def write(self, data: Any) -> int:
        taken = len(data)
        if self.left > 0:
            text = bytes(data[: self.left]).decode(errors="backslashreplace")
            self.left -= taken
            if self.left <= 0:
                text += "\n[what this call apart prints further is left out]\n"
            with contextlib.suppress(OSError):  # nobody reads it
                os.write(2, redacted(text).encode(errors="backslashreplace"))
        return taken


@final
class _Timer:
    """A timer of the kernel that sends :data:`TIMES_OUT` to this process."""

    def __init__(self, libc: ctypes.CDLL) -> None:
        self._libc = libc
        self._id = ctypes.c_void_p()
        event = struct.pack("Pii48x", 0, TIMES_OUT, 0)
        if libc.timer_create(_CLOCK_MONOTONIC, event, ctypes.byref(self._id)):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def set(self, after_s: float) -> None:
        """Let it go off after this time; 0: not at all."""
        seconds, rest = divmod(int(after_s * 1e9), 1_000_000_000)
        self._libc.timer_settime(self._id, 0, struct.pack("llll", 0, 0, seconds, rest), None)


def _arm(written: io.FileIO, timeout_s: float) -> None:
    """Let this process end after this time."""
    if _State.timer is None:
        faulthandler.dump_traceback_later(timeout_s, exit=True, file=written)
    else:
        faulthandler.register(TIMES_OUT, file=written, all_threads=False, chain=True)
        _State.timer.set(max(timeout_s, 1e-6))


def _disarm() -> None:
    if _State.timer is None:
        faulthandler.cancel_dump_traceback_later()
    else:
        _State.timer.set(0.0)


def begin() -> None:
    """Prepare this process; called once.  It goes on below the one that has called it."""
    try:
        _begin()
    except BaseException:  # the process would wait for a worker that waits for it
        traceback.print_exc()
        os._exit(1)


def _begin() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    fork_below(libc)
    os.setpgid(0, 0)
    become_subreaper(libc)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            _State.timer = _Timer(libc)
    with contextlib.suppress(OSError):  # not on Linux
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write(FIRST_TO_DIE)
    hide_named()
    with open(os.devnull, "wb") as nothing:  # what programs print there could have no end
        os.dup2(nothing.fileno(), 1)
    _State.printed = _Printed()
    sys.stdout = sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(_State.printed), errors="backslashreplace", line_buffering=True
    )
    own = _descriptors()
    for each in own:
        with contextlib.suppress(OSError):  # it was that of the list
            os.set_inheritable(each, False)
    os.register_at_fork(after_in_child=lambda: [*map(_close, own)])


def _descriptors() -> list[int]:
    """The open descriptors beyond the standard ones."""
    try:
        found = [int(each) for each in os.listdir("/proc/self/fd")]
    except OSError:
        found = [*range(256)]
    return [each for each in found if each > 2]


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)


def retire() -> bool:
    """Whether a call has spoilt this process, asked after each reply.  If so, the timer starts that
    ends it."""
    if _State.spoilt:
        # Threads that a call has left behind do not hold up the end of this process.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, RETIRE_S)
    return _State.spoilt


def run(
    paper: str, timeout_s: float, memory_bytes: int | None, module: str, file: str, job: bytes,
    spans: Spans, most: Most,
) -> Reply | str:  # fmt: skip
    """Call the function of a job; returns the first fields of an ``ApartReply``, or
    :data:`OUT_OF_MEMORY`."""
    pid, threads = os.getpid(), threading.active_count()
    _State.printed.left = PRINTED_BYTES
    with open(paper, "r+b", buffering=0) as written:
        written.write(pid.to_bytes(PID_BYTES, "big"))
        faulthandler.enable(written)
        try:
            return _reply(written, timeout_s, memory_bytes, module, file, job, spans, most)
        finally:
            if os.getpid() != pid:  # a child that the call has forked, which returned, too
                os._exit(os.EX_SOFTWARE)
            faulthandler.disable()
            if threading.active_count() > threads:  # one is left that may change anything
                _State.spoilt = True
            _end_children()


def _reply(
    written: io.FileIO, timeout_s: float, memory_bytes: int | None, module: str, file: str,
    job: bytes, spans: Spans, most: Most,
) -> Reply | str:  # fmt: skip
    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        try:
            if module and module not in sys.modules:  # the worker has loaded it from its file
                module_of_file(module, file)
            function, args = pickle.loads(job, buffers=mapped(written.fileno(), spans))
            if _State.shared is None or not _State.shared.has_all_modules:  # a new one is there
                _State.shared = ProcessState()
            _arm(written, timeout_s)
            if memory_bytes is not None:
                _limit(memory_bytes, before[1])
            at = sum(spans[-1]) if spans else ARRAYS_AT
            return (*_pickled(function(*args), written.fileno(), at, most), None, "", "")
        finally:
            _unlimit(before)
    except MemoryError as error:  # wherever it came, with or without a limit
        _State.spoilt = True
        return _raised(error) if memory_bytes is None else OUT_OF_MEMORY
    except BaseException as error:  # whatever the function raises goes to the caller
        return _raised(error)
    finally:
        if _State.shared is not None and not _State.shared.put_back():
            _State.spoilt = True
        _disarm()
        try:
            sys.stdout.flush()
        except (OSError, ValueError):  # the call has closed it
            _State.spoilt = True


def _limit(memory_bytes: int, hard: int) -> None:
    """Limit the memory of this process to what it has and so much more."""
    try:
        with open("/proc/self/statm") as statm:
            has = int(statm.read().split()[0]) * resource.getpagesize()
    except OSError:
        return  # not on Linux, where the limit would not count either
    most = has + memory_bytes
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def _unlimit(before: tuple[int, int]) -> None:
    """Give this process the memory back that it may have."""
    try:
        resource.setrlimit(resource.RLIMIT_AS, before)
    except (OSError, ValueError):  # the call has lowered the hard limit, which only root may raise
        _State.spoilt = True


def _pickled(value: Any, file: int, at: int, most: Most) -> tuple[bytes, Spans]:
    try:
        made, buffers = dump(value, beside=most[1] > 0)
    except MemoryError:
        raise
    except BaseException as error:
        text = f"it returned what cannot be pickled ({type(error).__name__}: {error})"
        raise TypeError(text) from None
    for taken, bound in zip((len(made), sum(each.nbytes for each in buffers)), most, strict=True):
        if taken > bound:
            raise TypeError(f"it returned {taken} bytes, of {bound} at most")
    return made, write(file, at, buffers)


def _raised(error: BaseException) -> Reply:
    return None, (), _read_back(error), _safely(_told, error), _safely(_traceback, error)


def _read_back(error: BaseException) -> bytes | None:
    """The pickle of an exception, if it can be read."""
    try:
        made = pickle.dumps(error, pickle.HIGHEST_PROTOCOL)
        return made if type(pickle.loads(made)) is type(error) else None
    except BaseException:  # its own code may raise anything
        return None


def _safely(text_of: Callable[[BaseException], str], error: BaseException) -> str:
    try:
        text = text_of(error)
        return str(text)[-TRACEBACK_CHARACTERS:].encode(errors="backslashreplace").decode()
    except BaseException:  # its own code may raise anything
        return type(error).__name__


def _told(error: BaseException) -> str:
    return f"{type(error).__qualname__}: {error}"


def _traceback(error: BaseException) -> str:
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return "".join(traceback.format_exception(error.with_traceback(frames)))


def _end_children() -> None:
    """Kill and reap the processes that the call has started."""
    until_s = time.monotonic() + END_S
    while time.monotonic() < until_s:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:  # there is none
            return
        for pid in children_of_this():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)


# -- the state that calls share -----------------------------------------------------

MODULES = (builtins, os, sys, signal, time, shutil, subprocess, socket)
"""Modules whose names are compared."""
LIMITS = ("CORE", "CPU", "DATA", "FSIZE", "NOFILE", "NPROC", "STACK")
"""Limits that are put back, as far as the system has them; that of memory is, for itself."""

_LIMITS: list[int] = [
    getattr(resource, f"RLIMIT_{name}") for name in LIMITS if hasattr(resource, f"RLIMIT_{name}")
]
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
_getsignal: Any = importlib.import_module("_signal").getsignal
"""That of the module ``signal`` makes an enum of each, which takes 30 times as long."""
_all, _is, _len, _map = all, operator.is_, len, map
"""As they were: the call may have changed those of the module."""
_ABSENT = object()


@final
class ProcessState:
    """The state of this process, as it is when this is made."""

    def __init__(self) -> None:
        self._names: list[tuple[dict[str, Any], dict[str, Any]]] = [
            (names, names.copy()) for names in (sys.modules, *map(vars, MODULES))
        ]
        """Names, and the copy of them."""
        self._folder: str | None = None
        with contextlib.suppress(OSError):  # it is gone
            self._folder = os.getcwd()
        self._environ = os.environ
        self._variables: dict[bytes, bytes] = vars(os.environ)["_data"].copy()
        self._path = sys.path.copy()
        self._handlers = [*map(_getsignal, _SIGNALS)]
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._limits = [*map(resource.getrlimit, _LIMITS)]
        self._umask = os.umask(0o77)
        os.umask(self._umask)
        self._recursion = sys.getrecursionlimit()

    @property
    def has_all_modules(self) -> bool:
        """Whether nothing was imported since this was made, or was put back."""
        return len(self._names[0][1]) == len(sys.modules)

    def put_back(self) -> bool:
        """Put it back.  False if something could not be, or may have been copied."""
        try:
            is_same = self._put_names_back()
            for timer in _TIMERS:
                signal.setitimer(timer, 0)
            is_same &= self._put_handlers_back()
            self._put_rest_back()
            return is_same
        except BaseException:  # a handler of the call's raises anything, and limits may be final
            return False

    def _put_names_back(self) -> bool:
        is_same = True
        for now, before in self._names:
            if _len(now) == _len(before) and _all(_map(_is, now.values(), before.values())):
                continue
            for name, value in before.items():
                if now.get(name, _ABSENT) is not value:
                    now[name], is_same = value, False
            added = {name: now[name] for name in now.keys() - before.keys()}
            if now is sys.modules and [name for name in added if added[name] is None]:
                is_same = False  # a module that may not be imported
            before.clear()
            before.update(now)
        return is_same

    def _put_handlers_back(self) -> bool:
        is_same = True
        for number, handler in zip(_SIGNALS, self._handlers, strict=True):
            if _getsignal(number) is not handler:
                signal.signal(number, handler)
                is_same &= number != TIMES_OUT
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        return is_same

    def _put_rest_back(self) -> None:
        if sys.getrecursionlimit() != self._recursion:
            sys.setrecursionlimit(self._recursion)
        sys.path[:] = self._path
        os.umask(self._umask)
        if vars(self._environ)["_data"] != self._variables:
            os.environb.clear()
            os.environb.update(self._variables)
        if [*map(resource.getrlimit, _LIMITS)] != self._limits:
            for limit, before in zip(_LIMITS, self._limits, strict=True):
                resource.setrlimit(limit, before)
        if self._folder is None:
            return
        with contextlib.suppress(OSError):  # it is gone
            if os.getcwd() == self._folder:
                return
        os.chdir(self._folder)


# -- the processes above ------------------------------------------------------------


def fork_below(libc: ctypes.CDLL) -> None:
    """Return in a process below this one and its reaper; in this one where orphans come to
    nobody.  Call it before there are threads."""
    if sys.platform != "linux":
        return
    first_ended, first = os.pipe()
    if child := _fork():
        try:
            be_deaf()
            while os.WIFSTOPPED(status := os.waitpid(child, os.WUNTRACED)[1]):
                os.kill(child, signal.SIGCONT)
            end_as(status)
        finally:
            os._exit(1)
    os.close(first)
    become_subreaper(libc)
    libc.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGCONT))
    last_ended, last = os.pipe()
    parent = os.getpid()
    with woken_by_children() as woken:
        if child := _fork():
            os.close(last)
            be_deaf()
            _watch(child, woken, first_ended, last_ended)
    os.close(first_ended)
    os.close(last_ended)
    die_with_parent(parent)


def _fork() -> int:
    with warnings.catch_warnings():
        # Of the threads of a library that the program has imported.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def has_program(pid: int) -> bool:
    """Whether a process runs one.  The memory of a process that ends is gone before its descriptors
    are closed, however long the rest of its end takes; so this is also False without ``/proc``."""
    try:
        os.readlink(f"/proc/{pid}/exe")
    except FileNotFoundError:
        return False
    except OSError:  # it is there, and another user's by now
        return True
    return True


def _watch(child: int, woken: int, first_ended: int, last_ended: int) -> NoReturn:
    """Wait for the end of the child or of the first process, and kill what is left."""
    try:
        poll = select.poll()
        for each in (woken, first_ended, last_ended):
            poll.register(each, select.POLLIN)
        while (status := reap(child)) is None:
            found = {each for each, _ in poll.poll()}
            drain(woken)
            if first_ended in found:
                poll.unregister(first_ended)
                kill_group(child)
            elif last_ended in found:
                poll.unregister(last_ended)
                if has_program(child):
                    status = LEFT
                    break
        kill_others(woken)
        end_as(status)
    finally:
        os._exit(1)
