"""Processor time of each turn of a loop, and the times at which the machine itself stood still.

Theory of operation
-------------------
A *turn* is what a loop does between two waits for I/O.  A trio instrument reads the processor
time of the loop's thread at every step, so other processes do not count, and a turn that waits
costs nothing.  Four times a second a thread writes the longest turn since the last report to the
log of the run (``sampled``, ``turn``): with the task that had the longest step, the part of it
that collected garbage (whoever allocates next pays for that, wherever it is), and where the loop
stood if that took long.  The thread sees a turn that never ends, too.  It needs the interpreter
for that: a call that keeps it is reported when it has returned.

A virtual machine is stopped by its host for tens of milliseconds at a time, and the threads that
ran then are charged with it.  Nothing of lower priority can keep a process at real-time priority
from waking: if a thread of it that asked to sleep for 5 ms wakes 20 ms late, its processor ran
nobody meanwhile.  ``python -m tests.rig.meter '{"log": ...}'`` is such a process.  It writes a
line for each (``sampled``, ``stall``), says ``watching``, or ``blind`` where it may not have that
priority (which needs root, or CAP_SYS_NICE), and ends with its standard input.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import trio

from tests.rig.program import given_options, say
from trio_envserve.lab.logs import EventLog

REPORT_S = 0.25
"""Time between two reports."""
LOOK_S = 0.02
"""Time between two looks at a turn under way."""
LONG_S = 0.1
"""A turn of so much processor time is told with where it is."""

SLEEP_S = 0.005
LATE_S = 0.02
"""A thread that wakes later than this was stalled."""
MOST_PROCESSORS = 8
"""Processors that are watched: the threads of many would wait for each other, which looks like a
stall."""


@final
class LoopMeter(trio.abc.Instrument):
    """Measures the loop it is added to; must be made in its thread."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.turn_s = self.step_s = self.collect_s = 0.0
        """Longest turn since the last :meth:`take`, longest step, and the part of that turn that
        collected garbage."""
        self.task = ""
        """Task that had the longest step."""
        self.when_s = (0.0, 0.0)
        """Begin and end (monotonic) of the longest turn."""
        self._clock = time.pthread_getcpuclockid(self.thread)
        self._collected_s = self._collecting_s = 0.0
        self._began_at_s = time.monotonic()
        self._step_s = time.thread_time()
        self._began_s: float | None = self._step_s
        """When the turn under way began; None while the loop waits."""

    def after_io_wait(self, timeout: float) -> None:
        self._began_at_s, self._began_s, self._collected_s = (
            time.monotonic(),
            time.thread_time(),
            0.0,
        )

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._step_s = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        took_s = time.thread_time() - self._step_s
        if took_s > self.step_s:
            self.step_s, self.task = took_s, task.name

    def before_io_wait(self, timeout: float) -> None:
        took_s, self._began_s = self.under_way_s(), None
        if took_s > self.turn_s:
            self.turn_s, self.collect_s = took_s, self._collected_s
            self.when_s = (self._began_at_s, time.monotonic())

    def collecting(self, phase: str, info: dict[str, int]) -> None:
        """For :data:`gc.callbacks`: garbage is being collected, or was."""
        if threading.get_ident() == self.thread:
            now_s = time.thread_time()
            if phase == "start":
                self._collecting_s = now_s
            else:
                self._collected_s += now_s - self._collecting_s

    def take(self) -> dict[str, Any]:
        """The longest turn since the last call; from any thread."""
        turn_s, when_s, collect_s = self.under_way_s(), self.when_s, self.collect_s
        if turn_s > self.turn_s:  # it goes on
            when_s, collect_s = (self._began_at_s, time.monotonic()), self._collected_s
        found = {
            "turn_s": round(max(turn_s, self.turn_s), 4), "task": self.task, "when_s": when_s,
            "collect_s": round(collect_s, 4),
        }  # fmt: skip
        self.turn_s = self.step_s = self.collect_s = 0.0
        self.task = ""
        return found

    def under_way_s(self) -> float:
        """Processor time of the turn under way so far."""
        began_s = self._began_s
        return 0.0 if began_s is None else time.clock_gettime(self._clock) - began_s

    def where(self) -> list[str]:
        """The last frames of the loop's thread, the innermost last."""
        frame = sys._current_frames().get(self.thread)
        try:
            stack = traceback.extract_stack(frame, limit=40) if frame is not None else []
        except Exception:  # of frames that end while they are read: another look comes soon
            return []
        return [f"{Path(each.filename).name}:{each.lineno} {each.name}" for each in stack][-6:]


def watch_loop(log: Path | str, who: str) -> Callable[[], None]:
    """Measure the loop of this thread: to be called inside of it.  Returns what ends that, which
    need not be called."""
    meter, events = LoopMeter(), EventLog(Path(log))
    over = threading.Event()
    trio.lowlevel.add_instrument(meter)
    gc.callbacks.append(meter.collecting)

    def report() -> None:
        while not over.is_set():
            where: list[str] = []
            until_s = time.monotonic() + REPORT_S
            while time.monotonic() < until_s and not over.wait(LOOK_S):
                if meter.under_way_s() > LONG_S:
                    where = meter.where()
            events.write("sampled", "turn", who=who, where=where, **meter.take())

    def end() -> None:
        over.set()
        thread.join()
        events.close()
        gc.callbacks.remove(meter.collecting)
        trio.lowlevel.remove_instrument(meter)

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    return end


def watch_machine(log: Path) -> None:
    """Watch the first processors until the end of standard input."""
    try:
        processors = sorted(os.sched_getaffinity(0))[:MOST_PROCESSORS]
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except (AttributeError, OSError):  # no such call (macOS), or not allowed
        say("blind")
        sys.stdin.read()
        return
    events = EventLog(log)

    def watch(processor: int) -> None:
        os.sched_setaffinity(threading.get_native_id(), {processor})
        while True:
            due_s = time.monotonic() + SLEEP_S
            time.sleep(SLEEP_S)
            late_s = time.monotonic() - due_s
            if late_s > LATE_S:
                when_s = (due_s, due_s + late_s)
                events.write("sampled", "stall", processor=processor, when_s=when_s)

    for processor in processors:
        threading.Thread(target=watch, args=(processor,), daemon=True).start()
    say("watching")
    sys.stdin.read()


if __name__ == "__main__":
    watch_machine(Path(given_options()["log"]))
