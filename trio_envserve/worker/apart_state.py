"""The state of a process that all calls apart in it share: put back after each.

Theory of operation
-------------------
After each call what it has changed is put back: folder, variables, path of imports, limits, timers,
handlers and mask of signals.

A scorer that runs code of a model may have taken functions away from it for good
(``os.kill = None``).  So the names in some modules (:data:`MODULES`), and those of modules, are
compared, by identity: what a call has put there may be equal to anything (``mock.ANY``).  What has
changed is put back, so that the reply can be sent.  But what was imported meanwhile may have a copy
of it: such a process is not used again.

Globals of other modules are not looked at: to compare all would take longer than a call.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import operator
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import Any, Final, final

TIMES_OUT: Final = int(getattr(signal, "SIGRTMAX", signal.SIGUSR2)) - 4
"""Signal of the timer of calls: one of those that nobody has a meaning for.  Its handler is
``faulthandler``'s, which is lost if there is another."""
MODULES = (builtins, os, sys, signal, time, shutil, subprocess, socket)
"""Modules whose names are compared."""
LIMITS = ("AS", "CORE", "CPU", "DATA", "FSIZE", "NOFILE", "NPROC", "STACK")
"""Limits that are put back, as far as the system has them."""

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
