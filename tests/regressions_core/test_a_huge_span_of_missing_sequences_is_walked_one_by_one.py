"""A server, broken or hostile, named every sequence up to 2^62 as missing: the client
went through them one by one and was not heard of again.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.core.helpers import Pair
from trio_envserve.core import messages
from trio_envserve.core.messages import Request
from trio_envserve.core.ranges import Ranges

ALL = [0, 2**62]


def limited(self: Ranges) -> Iterator[int]:
    """A walk that ends, and says so."""
    for start, stop in self.spans():
        for number in range(start, stop):
            assert number < 1000, "it walks through all of them"
            yield number


def test_only_what_is_pending_is_looked_at(monkeypatch: Any):
    pair = Pair()
    pair.lose = lambda message: isinstance(message, Request)
    for _ in range(3):
        pair.submit()
    assert pair.client.sessions.current is not None
    monkeypatch.setattr(Ranges, "__iter__", limited)
    synced = messages.Synced(pair.client.sessions.current.id, 99, ALL, pair.router.status())
    pair.lose = lambda message: False
    pair.client.message((messages.encode(synced),), pair.now_s)
    pair.settle()
    assert pair.client.calls.retransmitted == 3
    assert len(pair.runs) == 3


@pytest.mark.parametrize("name", ["finish", "sync"])
def test_neither_does_the_server_walk_through_what_a_client_finishes(name: str, monkeypatch: Any):
    pair = Pair()
    session = pair.stranger()
    for sequence in range(3):
        pair.ask(session, sequence)
    monkeypatch.setattr(Ranges, "__iter__", limited)
    finish = messages.Finish(session, ALL)
    sync = messages.Sync(session, pair.router.epoch, 1, 1, 2**62, [])
    pair.tell(finish if name == "finish" else sync, route=b"stranger")
    assert not pair.router.cache.sessions[session].entries
    assert len(pair.halts) == 3
