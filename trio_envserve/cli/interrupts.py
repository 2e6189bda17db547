"""Signals while no trio loop listens: at the very start and the very end.

Theory of operation
-------------------
Python's own answer to Ctrl-C is an exception anywhere, which in the middle of
an import is a traceback.  Until the loop takes signals over, nothing has been
started that would have to be given back, so a signal simply ends the process.
Once the work is done and only the last line is to be printed, the first
signal has nothing left to stop.

In between, trio's receiver gets them; :meth:`Interrupts.count` stands before it,
so that a third signal ends the process even if the loop is stuck in
environment code (``--workers 0``).
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any, final


@final
class Interrupts:
    """The signals of this process.  Knows nothing of trio."""

    def __init__(self) -> None:
        self.signals = [signal.SIGINT, signal.SIGTERM]
        # A program under nohup keeps running when its terminal is closed.
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            self.signals.append(signal.SIGHUP)
        self.ending = False
        """The work is done: a first signal changes nothing any more."""
        self._seen = 0

    def install(self) -> None:
        """Take the signals over.  Only in the main thread."""
        for number in self.signals:
            signal.signal(number, self._alone)

    def count(self) -> None:
        """Stand before the handlers that are there now: the third signal ends
        the process, workers die with it."""
        for number in self.signals:
            signal.signal(number, self._counting(signal.getsignal(number)))

    def _alone(self, number: int, frame: FrameType | None) -> None:
        self._seen += 1
        if self.ending and self._seen == 1:
            return
        os.write(2, b"\ntrio-envserve: interrupted\n")
        os._exit(128 + number)

    def _counting(self, behind: Any) -> Any:
        def handle(number: int, frame: FrameType | None) -> None:
            self._seen += 1
            if self._seen >= 3:
                os.write(2, b"\ntrio-envserve: ended by a third signal\n")
                os._exit(1)
            behind(number, frame)

        return handle

    def finish(self) -> None:
        """The work is done: see :attr:`ending`."""
        self.ending = True
        self._seen = 0

    def ignore(self) -> None:
        """Nothing is left but the interpreter's own end, which is not to be
        taken for a failure because a signal came late."""
        for number in self.signals:
            signal.signal(number, signal.SIG_IGN)
