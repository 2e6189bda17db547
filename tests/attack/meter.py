"""The length of each turn of a loop: processor time of its thread.

Theory of operation
-------------------
A trio instrument reads the thread's processor time at every step, so what others
do on the machine does not count, and a turn that waits costs nothing.  A *turn* is
what the loop does between two waits for I/O: it takes in what has become ready,
then gives each task that can run one *step*.  The longest of each since the last
report, with the name of the task, goes to the log on disk, so that it is there
whatever happens to the process.

A thread of its own writes the reports: it sees a turn that never ends, too, reads
the loop's processor time from outside, and notes where the loop is held.  It needs
the interpreter for that; a call that keeps it is reported when it has returned.

What the longest turn spent on collecting garbage is told apart: whoever allocates
next pays for it, wherever it is.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, final

import trio

from trio_envserve.lab.logs import JsonLog

REPORT_S = 0.25
"""Between two reports."""
LOOK_S = 0.02
"""Between two looks at a turn under way."""
LONG_S = 0.1
"""A turn of so much processor time is told with where it is."""


@final
class LoopMeter(trio.abc.Instrument):
    """Measures the loop it is added to; must be made in its thread."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.clock = time.pthread_getcpuclockid(self.thread)
        self.turn_s = self.step_s = self.io_s = 0.0
        """The longest since the last :meth:`take`."""
        self.task = ""
        """The task that had the longest step."""
        self.when_s = (0.0, 0.0)
        """Between which moments (monotonic) the longest turn was."""
        self.turns = 0
        self.collect_s = 0.0
        """How long garbage was collected in the longest turn."""
        self._collected_s = self._collect_began_s = 0.0
        self._step_began_s = self._io_began_s = time.thread_time()
        self._began_at_s = time.monotonic()
        self._in_io = False
        self.began_s: float | None = self._step_began_s
        """When the turn under way began; None while the loop waits."""

    def after_io_wait(self, timeout: float) -> None:
        """A turn begins."""
        self._began_at_s = time.monotonic()
        self.began_s = self._io_began_s = time.thread_time()
        self._collected_s = 0.0
        self._in_io = True

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """A step begins."""
        self._step_began_s = time.thread_time()
        if self._in_io:  # the turn's first: what was before it was taking in
            self._in_io = False
            self.io_s = max(self.io_s, self._step_began_s - self._io_began_s)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """A step has ended."""
        took_s = time.thread_time() - self._step_began_s
        if took_s > self.step_s:
            self.step_s, self.task = took_s, task.name

    def before_io_wait(self, timeout: float) -> None:
        """A turn has ended."""
        began_s, self.began_s = self.began_s, None
        self.turns += 1
        took_s = 0.0 if began_s is None else time.thread_time() - began_s
        if took_s > self.turn_s:
            self.turn_s, self.when_s = took_s, (self._began_at_s, time.monotonic())
            self.collect_s = self._collected_s

    def collecting(self, phase: str, info: dict[str, int]) -> None:
        """For :data:`gc.callbacks`: garbage is being collected, or was."""
        if threading.get_ident() != self.thread:
            return
        if phase == "start":
            self._collect_began_s = time.thread_time()
        else:
            self._collected_s += time.thread_time() - self._collect_began_s

    def take(self) -> dict[str, Any]:
        """The longest of everything since the last call; from any thread."""
        held_s, when_s, collect_s = self.held_s(), self.when_s, self.collect_s
        if held_s > self.turn_s:  # it goes on
            when_s, collect_s = (self._began_at_s, time.monotonic()), self._collected_s
        found = {
            "turn_s": round(max(self.turn_s, held_s), 4), "step_s": round(self.step_s, 4),
            "io_s": round(self.io_s, 4), "task": self.task, "turns": self.turns, "when_s": when_s,
            "collect_s": round(collect_s, 4),
        }  # fmt: skip
        self.turn_s = self.step_s = self.io_s = self.collect_s = 0.0
        self.task, self.turns = "", 0
        return found

    def held_s(self) -> float:
        """Processor time of the turn under way so far."""
        began_s = self.began_s
        return 0.0 if began_s is None else time.clock_gettime(self.clock) - began_s

    def where(self) -> list[str]:
        """The last frames of the loop's thread, the innermost last."""
        frame = sys._current_frames().get(self.thread)
        try:
            stack = traceback.extract_stack(frame, limit=40) if frame is not None else []
        except Exception:  # of frames that end while they are read: another look comes soon
            return []
        names = [f"{Path(each.filename).name}:{each.lineno} {each.name}" for each in stack]
        return names[-6:]


def watch_loop(path: str | Path, who: str) -> LoopMeter:
    """Measure the loop of this thread until the process ends: to be called inside of it.

    Writes a line ``loop`` with ``who`` four times a second to the log at ``path``.
    """
    meter = LoopMeter()
    trio.lowlevel.add_instrument(meter)
    gc.callbacks.append(meter.collecting)
    log = JsonLog(Path(path))
    threading.Thread(target=_report, args=(meter, log, who), daemon=True).start()
    return meter


def _report(meter: LoopMeter, log: JsonLog, who: str) -> None:
    while True:
        where: list[str] = []
        until_s = time.monotonic() + REPORT_S
        while time.monotonic() < until_s:
            time.sleep(LOOK_S)
            if meter.held_s() > LONG_S:
                where = meter.where()
        log.write("loop", who=who, **meter.take(), where=where)
