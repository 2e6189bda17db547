"""A server was restarted and had no room for another session.  The client went on
believing what the old server had said of itself, "ready": it was healthy, and calls
without a limit waited for ever.

Found by reading: with a session, what was known of its server is gone.
"""

from tests.core.helpers import Pair
from trio_envserve.core.health import Health
from trio_envserve.core.messages import Goodbye
from trio_envserve.core.terms import Verdict


def without_a_session(**limits: float) -> Pair:
    pair = Pair(client=limits, server={"sessions": 1})
    assert pair.client.health(pair.now_s)[0] is Health.HEALTHY
    pair.restart(proven=True)
    other = pair.stranger()
    pair.ask(other, 0)
    pair.end()  # something of it is kept, so it makes no room
    pair.advance(2.0)
    assert pair.client.sessions.current is None
    assert list(pair.router.cache.sessions) == [other]
    return pair


def test_the_health_says_that_there_is_no_session():
    pair = without_a_session()
    assert pair.client.health(pair.now_s) == (Health.STARTING, "it grants no session yet")
    (other,) = pair.router.cache.sessions
    pair.tell(Goodbye(other))
    pair.advance(2.0)
    assert pair.client.health(pair.now_s)[0] is Health.HEALTHY


def test_a_call_without_a_limit_ends():
    pair = without_a_session(recovery_s=5.0)
    pair.submit()
    pair.advance(6.0)
    assert [ended.call for ended in pair.answers] == [0]
    assert pair.failure().verdict is Verdict.DID_NOT_RUN
