"""The times at which the machine itself stood still: a process at real-time priority sees them.

``python -m tests.attack.stalls '{"log": ...}'``

A virtual machine is stopped by its host for tens of milliseconds at a time, and what
ran then is charged with it as processor time.  Nothing of lower priority can keep this
process from waking: so if a thread that asked to sleep for 5 ms wakes 20 ms late, its
processor ran nobody meanwhile.  The log gets a line ``stall`` for each, with when it
began and how long it was, by processor.

It prints one line, ``{"event": "watching"}``, or ``{"event": "blind"}`` where it may
not have that priority (it takes root, or CAP_SYS_NICE), and stops when its standard
input ends.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from trio_envserve.lab.logs import JsonLog
from trio_envserve.lab.orders import given_options, say

SLEEP_S = 0.005
LATE_S = 0.02
"""A thread that wakes later than this was stalled."""
MOST = 8
"""Processors that are watched: the threads of many would wait for each other, which
looks like a stall."""


def main() -> int:
    """Watch the first processors until the end of standard input."""
    log = JsonLog(Path(given_options("tests.attack")["log"]))
    try:
        processors = sorted(os.sched_getaffinity(0))[:MOST]
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except (AttributeError, OSError):  # no such call (macOS), or not allowed
        say("blind")
        sys.stdin.read()
        return 0
    for processor in processors:
        threading.Thread(target=_watch, args=(log, processor), daemon=True).start()
    say("watching")
    sys.stdin.read()
    return 0


def _watch(log: JsonLog, processor: int) -> None:
    thread = threading.get_native_id()
    os.sched_setaffinity(thread, {processor})
    while True:
        asked_s = time.monotonic()
        time.sleep(SLEEP_S)
        late_s = time.monotonic() - asked_s - SLEEP_S
        if late_s > LATE_S:
            began_s = round(asked_s + SLEEP_S, 4)
            log.write("stall", processor=processor, began_s=began_s, seconds=round(late_s, 4))


if __name__ == "__main__":
    raise SystemExit(main())
