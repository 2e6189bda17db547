"""What travels in the simulated world, and what those who look on see of it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core import messages
from trio_envserve.core.terms import Body
from trio_envserve.lab.simulation.network import (
    WORKER,
    Frames,
    SimulatedLink,
    TurnMessages,
    said_in,
)
from trio_envserve.testing import strategies

BEFORE = (b"i" * 16,)
ROWS, ALONE = messages.BATCHED, set(messages.MESSAGES) - messages._WITH_BODY
SAID = st.one_of(
    st.tuples(strategies.messages(*ROWS), st.binary()),
    st.tuples(strategies.messages(*ALONE), st.none()),
)


class Peer:
    """Nobody in particular."""

    name, rng = "peer", Random(0)

    def take_in(self, frames: Frames) -> None: ...

    def cut_off(self) -> None: ...


class Sent(list[Frames]):
    """A carrier that keeps what it is to carry."""

    def send(self, link: SimulatedLink | None, message: Frames, *, up: bool) -> None:
        self.append(message)


def plain(said: Sequence[tuple[Any, Body | None]]) -> list[Any]:
    return [(message, None if body is None else bytes(body)) for message, body in said]


@given(st.lists(SAID, max_size=8), st.booleans())
def test_judges_see_in_the_rows_of_a_batch_what_their_reader_does(said: Any, grouped: bool):
    server: Any = None  # nobody asks for it
    sent, link = Sent(), SimulatedLink(b"route", Peer(), server, WORKER)
    outgoing = TurnMessages(sent, grouped=grouped)
    for each in said:
        outgoing.say(link, each, BEFORE, up=True)
    outgoing.leave(up=True)
    seen = [plain(said_in(frames, 1)) for frames in sent]
    assert seen == [plain(messages.read(frames[1:], most_bytes=1 << 20)) for frames in sent]
    assert [row for rows in seen for row in rows] == plain(said)
