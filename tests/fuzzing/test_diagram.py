"""One request's way, drawn: which messages, in which lanes, and no wider than the page."""

from __future__ import annotations

import pytest

from tests.fuzzing.known import broken_by
from trio_envserve.core import messages
from trio_envserve.core.terms import Status
from trio_envserve.lab.simulation.diagram import COLUMNS, ROUTER, Trace, sequence
from trio_envserve.lab.simulation.target import Protocol
from trio_envserve.retrylab.draw import MOST_ROWS, WIDTH
from trio_envserve.retrylab.judges import Violation
from trio_envserve.retrylab.world import LOST, STRAY, TraceLine

SESSION, OTHER, ID = b"s" * 16, b"o" * 16, b"i" * 16
WORKER = "server0/w0-1"


DRAWING = """\
  seconds  c0                      router                    worker                  environment
    1.000   * asks c0:1: no rerun, 1 at most                    |                         |
    1.200   |- Request 4 -------x     |                         |                         |
    1.300   |~ Request 4 ~~~~~~~~~~~~>|                         |                         |
    1.500   |                         |- Dispatch #7 ---------->| w0-1                    |
    1.500   |                         |                         |                 runs #7 * w0-1
    1.700   |- Sync 4 pending ------->|                         |                         |
    2.000  ~~~~~~~~~~~~ worker link broken, for which its worker is killed: server0/w0-1 ~~~~~~~~~~~
    2.000   |                         |     x-- Outcome #7 res -| w0-1                    |
    2.100   |                         |                         * w0-1 dies: killed       |
    3.000  ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~ G2: broken ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
"""


def request(sequence: int, key: str) -> tuple[bytes, bytes]:
    header = messages.Request(SESSION, sequence, ID, None, 1, None)
    return messages.encode(header), f"{key}|return|0.1|".encode()


def of_worker(message: messages.Message, *more: bytes) -> tuple[bytes, ...]:
    return (ID, messages.encode(message), *more)


def test_only_what_is_about_the_request_is_drawn():
    violation = Violation("G2", 3.0, "c0:1 starts twice", "c0:1")
    ended = messages.WorkerOutcome(SESSION, 4, 7, Status.RESULT, 0.0)
    trace: Trace = (
        TraceLine(0.5, "c0", "asks c0:0: no rerun, 1 at most"),
        TraceLine(1.0, "c0", "asks c0:1: no rerun, 1 at most"),
        TraceLine(1.1, "c0", "->", request(3, "c0:0")),
        TraceLine(1.2, "c0", LOST[True], request(4, "c0:1")),
        TraceLine(1.3, "c0", STRAY[True], request(4, "c0:1")),
        TraceLine(1.4, WORKER, "<-", of_worker(messages.Dispatch(SESSION, 3, 6, "c0"), b"c0:0|")),
        TraceLine(1.5, WORKER, "<-", of_worker(messages.Dispatch(SESSION, 4, 7, "c0"), b"c0:1|")),
        TraceLine(1.5, WORKER, "runs c0:1 (return) as 7"),
        TraceLine(1.6, WORKER, "->", of_worker(messages.Beat(b"", 2, 0, [6, 8], {}))),
        TraceLine(1.7, "c0", "->", (messages.encode(messages.Sync(SESSION, ID, 1, 1, 5, [4, 5])),)),
        TraceLine(1.9, "c0", "->", (messages.encode(messages.Cancel(OTHER, 4)),)),
        TraceLine(2.0, "fault", "worker link broken, for which its worker is killed: server0/w0-1"),
        TraceLine(2.0, WORKER, LOST[True], (ID, b"c0", messages.encode(ended), b"")),
        TraceLine(2.1, WORKER, "dies: killed"),
        TraceLine(2.2, "server0/w1-1", "dies: killed"),
        TraceLine(3.0, "VIOLATION", violation),
        TraceLine(4.0, "c0", "c0:1 is told: result (None)"),
    )
    assert sequence(trace, violation) == DRAWING.splitlines()


@pytest.mark.parametrize(
    "name", ["cancel-is-forgotten", "bytes-are-not-given-back", "a-second-answer-is-forwarded"]
)
def test_every_drawing_fits_the_page_and_ends_where_it_broke(name: str):
    """Of a hostile client's request, of none, of a duplicate."""
    (seed, guarantee), target = broken_by(name), Protocol(mutant=name)
    with target.applied():
        one = target.run(seed, trace=True, until=guarantee)
    violation = next(each for each in one.violations if each.guarantee == guarantee)
    lines = sequence(one.trace, violation)
    assert max(map(len, lines)) <= WIDTH
    assert 2 < len(lines) <= MOST_ROWS + 2
    assert f"{guarantee}: broken" in lines[-1]
    lane = COLUMNS[ROUTER]
    assert all(
        line[lane] in "|*" for line in lines[1:] if "~~" not in line and "* asks" not in line
    )
