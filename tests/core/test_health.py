"""The health of a server as its clients see it."""

from __future__ import annotations

import pytest

from trio_envserve.core.health import Health, Link
from trio_envserve.core.limits import ClientLimits
from trio_envserve.core.messages import Goodbye
from trio_envserve.core.terms import Verdict

from .helpers import Pair

LIMITS = ClientLimits(unreachable_report_s=3.0, probe_s=5.0)


def link(**server: object) -> Link:
    """A link at time 0, whose server has answered with this status unless it is empty."""
    made = Link(LIMITS, 0.0)
    if server:
        made.asked(0.0)
        made.answered(0.0)
        made.server = server
    return made


def test_a_server_never_heard_is_starting_and_after_a_while_unhealthy():
    assert link().health(2.9) == (Health.STARTING, "no answer yet")
    assert link().health(3.0) == (Health.UNHEALTHY, "no answer from the server yet")


@pytest.mark.parametrize(
    ("status", "reason", "health", "why"),
    [
        ("ready", "", Health.HEALTHY, ""),
        ("starting", "", Health.STARTING, "the server has no worker ready yet"),
        ("starting", "w0", Health.STARTING, "w0"),
        ("broken", "ImportError", Health.UNHEALTHY, "ImportError"),
        ("stopping", "", Health.UNHEALTHY, "the server is stopping"),
        ("of the future", "", Health.UNHEALTHY, "the server is of the future"),
    ],
)
def test_an_answering_server_is_what_it_says(status, reason, health, why):
    assert link(status=status, reason=reason).health(1.0) == (health, why)


def test_a_server_that_answers_without_granting_a_session_is_not_healthy():
    """For a while: at the first answer, before the welcome, it was unhealthy for an instant."""
    answered = link()
    answered.answered(0.0)
    assert answered.health(1.0) == (Health.STARTING, "no session yet")
    assert answered.health(3.0) == (Health.UNHEALTHY, "the server grants no session")
    answered.trouble = "too many sessions"
    assert answered.health(1.0) == (Health.UNHEALTHY, "too many sessions")


def test_g9_a_probe_that_failed_while_this_loop_was_late_does_not_count():
    probed = link(status="ready")
    probed.was_late(1.0, 0.5)  # nothing waits
    assert probed.asked_s is None
    probed.asked(10.0)
    probed.was_late(14.0, 0.5)
    assert probed.health(18.0)[0] is Health.HEALTHY
    assert probed.health(19.0)[0] is Health.UNHEALTHY


# -- a client without a session --------------------------------------------------
# A server was restarted and had no room for another session.  The client went on
# believing what the old server had said of itself, "ready": it was healthy, and calls
# without a limit waited for ever.
#
# Found by reading: with a session, what was known of its server is gone.


def test_the_health_says_that_there_is_no_session_and_a_call_without_a_limit_ends():
    pair = Pair(client={"recovery_s": 5.0}, server={"sessions": 1})
    assert pair.client.link.health(pair.now_s)[0] is Health.HEALTHY
    pair.restart(proven=True)
    other = pair.stranger()
    pair.ask(other, 0)
    pair.end()  # something of it is kept, so it makes no room
    pair.advance(2.0)
    assert list(pair.router.sessions.known) == [other]
    assert pair.client.link.health(pair.now_s) == (Health.STARTING, "it grants no session yet")
    pair.submit()
    pair.advance(6.0)
    assert pair.failure(0).verdict is Verdict.DID_NOT_RUN
    pair.tell(Goodbye(other))
    pair.advance(2.0)
    assert pair.client.link.health(pair.now_s)[0] is Health.HEALTHY
