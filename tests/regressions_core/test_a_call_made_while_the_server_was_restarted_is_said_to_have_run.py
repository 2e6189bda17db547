"""A call made while no server was there was transmitted as soon as there was a
connection again, in the session of the old server.  The new one did not know that
session, so the call ended as "it may have run", though no server had ever had it:
a restart failed also those calls without consent that were made after it.

Found by the soak: one of its calls a minute ended so, and no kill explained it.
"""

from tests.core.helpers import Pair
from trio_envserve.core import messages
from trio_envserve.core.client_effects import Answer


def test_it_waits_until_the_server_has_said_whether_it_knows_the_session():
    pair = Pair()
    pair.client.disconnected(pair.now_s, "cut")
    pair.restart(proven=True)
    pair.submit(b"made meanwhile", rerun=False)
    pair.client.connected(pair.now_s)
    pair.settle()
    (request,) = (message for message in pair.sent if isinstance(message, messages.Request))
    assert pair.client.sessions.current is not None
    assert request.session == pair.client.sessions.current.id
    assert len(pair.runs) == 1
    pair.end()
    assert isinstance(pair.last(), Answer)


def test_it_is_told_again_with_the_next_ping_if_the_answer_is_lost():
    pair = Pair()
    pair.client.disconnected(pair.now_s, "cut")
    pair.submit(b"made meanwhile")
    pair.lose = lambda message: isinstance(message, messages.Synced)
    pair.client.connected(pair.now_s)
    pair.settle()
    assert pair.runs == []
    pair.lose = lambda message: False
    pair.advance(1.5)
    assert len(pair.runs) == 1
