"""Signals of the command, from its very start to its very end.

Theory of operation
-------------------
Python answers Ctrl-C with an exception anywhere; in the middle of an import this
shows a traceback.  Before a loop listens, nothing has been started
that must be cleaned up, so a signal simply ends the process.  Once the work is done
and only the last line is left to print, the first signal has nothing to stop.

In between, the loop is told (:meth:`Interrupts.listening`).  A third signal ends the process even
if environment code blocks the loop (``--workers 0``).  A signal that comes twice within a moment
counts once: ``timeout`` sends it to the process and to its process group.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import final

TOGETHER_S = 0.25
"""Two signals of one kind within this time count as one: a hand is slower."""


@final
class Interrupts:
    """The signals of this process, and its parent.  Knows nothing of trio."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.parent = os.getppid()
        """Asked before the imports: one that ends meanwhile would be taken for another."""
        self.signals = [signal.SIGINT, signal.SIGTERM]
        # A program under nohup keeps running when its terminal is closed.
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            self.signals.append(signal.SIGHUP)
        self._tell: Callable[[int], object] | None = None
        self._ending = False
        """The work is done: a first signal changes nothing any more."""
        self._seen = 0
        self._last: tuple[int, float] = 0, -TOGETHER_S
        """The signal that was counted last, and when."""
        self._as_json = as_json

    def install(self) -> None:
        """Take the signals over.  Only in the main thread."""
        for number in self.signals:
            signal.signal(number, self._handle)

    @contextlib.contextmanager
    def listening(self, tell: Callable[[int], object]) -> Iterator[None]:
        """Pass signals on while the block lasts: it does the work.  ``tell`` may be called at any
        moment."""
        before = {number: signal.getsignal(number) for number in self.signals}
        self._seen, self._tell = 0, tell
        self.install()
        try:
            yield
        finally:
            self._seen, self._tell, self._ending = 0, None, True
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if number == self._last[0] and now_s - self._last[1] < TOGETHER_S:
            return
        self._last = number, now_s
        self._seen += 1
        if self._tell is None:
            if not (self._ending and self._seen == 1):
                self._say("interrupted")
                os._exit(128 + number)
        elif self._seen >= 3:
            self._say("ended by a third signal")
            os._exit(1)
        else:
            self._tell(number)

    def _say(self, text: str) -> None:
        """Print a last line, if standard error takes it at once."""
        line = f"\ntrio-envserve: {text}\n"
        if self._as_json:
            line = json.dumps({"level": "error", "message": f"trio-envserve: {text}"}) + "\n"
        with contextlib.suppress(OSError, ValueError):  # there may be no standard error
            if select.select([], [2], [], 0.0)[1]:
                os.write(2, line.encode())

    def ignore(self) -> None:
        """Only the interpreter's own end is left; a late signal must not make it look
        like a failure."""
        for number in self.signals:
            signal.signal(number, signal.SIG_IGN)
