"""Statistics can be asked for without a session; found with the command ``status``."""

from __future__ import annotations

from trio_envserve.core.health import Health, Link
from trio_envserve.core.limits import ClientLimits
from trio_envserve.core.router import Router


def test_an_answer_before_the_welcome_is_no_sign_of_ill_health():
    # It was reported as "unhealthy: the server grants no session" for an instant.
    limits = ClientLimits()
    link = Link(limits, 0.0)
    link.answered(0.1)
    assert link.health(0.2)[0] is Health.STARTING
    assert link.health(limits.unreachable_report_s)[0] is Health.UNHEALTHY
    link.trouble = "too many sessions"
    assert link.health(0.2) == (Health.UNHEALTHY, "too many sessions")


def test_statistics_have_what_the_shell_counts_too():
    # Over the wire they lacked the router's own lag and its address.
    router = Router(epoch=b"e" * 16, slots=1, now_s=0.0, new_id=lambda: b"i" * 16)
    router.shell_stats = lambda: {"address": "memory:x"}
    assert router.stats()["address"] == "memory:x"
    assert router.stats()["sessions"] == 0
