"""A hostile peer finished every second sequence, as many as fit into a header, again and
again.  Each was refused, but only after it had been merged, span by span, into a copy
of what was finished before: a second of the server's time for one message.
"""

from typing import Any

import pytest

from tests.core.helpers import Pair
from trio_envserve.core import messages
from trio_envserve.core.ranges import Ranges

WINDOW = 4


def edges(count: int) -> list[int]:
    """That many spans of one sequence each, with a gap after each."""
    return list(range(2 * count))


@pytest.mark.parametrize("count", [WINDOW + 2, 10_000])
def test_it_is_refused_by_its_number_of_spans(count: int, monkeypatch: Any):
    pair = Pair(server={"window": WINDOW})
    session = pair.stranger()
    merged = []

    def update(self: Ranges, other: Ranges) -> None:
        merged.append(other.span_count())

    monkeypatch.setattr(Ranges, "update", update)
    pair.tell(messages.Finish(session, edges(count)), route=b"stranger")
    assert merged == []
    assert pair.router.cache.sessions[session].finished == Ranges()


def test_as_many_gaps_as_a_window_can_leave_are_taken():
    pair = Pair(server={"window": WINDOW})
    session = pair.stranger()
    pair.tell(messages.Finish(session, edges(WINDOW + 1)), route=b"stranger")
    assert pair.router.cache.sessions[session].finished.flat() == edges(WINDOW + 1)
