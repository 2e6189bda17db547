"""Closing: each stage ends by itself, and what is asked meanwhile is answered."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from trio_envserve.core import messages
from trio_envserve.core.client import Disconnected
from trio_envserve.core.closing import Closing, ClosingStage, Held
from trio_envserve.core.limits import ServerLimits
from trio_envserve.core.router_inputs import CloseAsked, Flushed, Tick
from trio_envserve.core.terms import Status, Verdict

from .helpers import STRANGER, Pair

LIMITS = {"drain_s": 4.0, "stop_s": 3.0, "reap_s": 2.0, "cancel_kill_s": 90.0}
FLUSH_S = 1.0
SUM_S = 4.0 + 3.0 + 3.0 + 2.0 + FLUSH_S
NOTHING = Held(0, 0, 0)
HELD = st.builds(Held, *[st.integers(0, 1)] * len(NOTHING))
LATER = list(ClosingStage)[1:]


def closing_pair() -> Pair:
    """One execution runs, and its worker will do nothing of what it is told."""
    pair = Pair.asked(server=LIMITS, wire={"flush_s": FLUSH_S})
    pair.workers.clear()
    return pair


def stages_of(pair: Pair, most_s: float) -> dict[str, float]:
    """When each stage was seen first, in seconds from now."""
    began_s = pair.now_s
    seen: dict[str, float] = {}
    while pair.now_s - began_s < most_s:
        seen.setdefault(pair.router.closing.stage.value, round(pair.now_s - began_s, 1))
        pair.advance(0.1, step_s=0.1)
    return seen


# -- the stages -----------------------------------------------------------------


def test_every_stage_ends_though_nothing_does_what_it_is_told():
    pair = closing_pair()
    pair.close()
    assert stages_of(pair, SUM_S + 2.0) == {
        "draining": 0.0, "cancelling": 4.0, "ending": 7.0, "killing": 10.0, "flushing": 12.0,
        "closed": 13.0,
    }  # fmt: skip
    assert {kill.worker for kill in pair.kills} == {b"w0-1"}
    assert pair.flushes == 1
    assert pair.closed is not None
    assert pair.closed.left == (b"w0-1",)


def test_a_server_without_work_closes_as_soon_as_its_workers_have_ended():
    pair = Pair(server=LIMITS)
    pair.give(CloseAsked(pair.now_s))
    assert pair.router.closing.stage is ClosingStage.ENDING
    assert pair.router.closing.drained
    pair.advance(0.1)
    assert pair.exits == [b"w0-1"]
    pair.die(b"w0-1", "it retired")
    assert pair.flushes == 1
    pair.router_takes(Flushed(pair.now_s))
    assert pair.closed is not None
    assert pair.closed.left == ()
    assert not pair.kills


def test_a_drain_that_is_over_says_that_it_did_not_drain():
    pair = closing_pair()
    pair.give(CloseAsked(pair.now_s, drain_s=0.5))
    pair.advance(0.6, step_s=0.1)
    assert pair.router.closing.stage is ClosingStage.CANCELLING
    assert not pair.router.closing.drained
    assert pair.failure().verdict is Verdict.MAY_HAVE_RUN


def test_a_server_that_was_stopped_meanwhile_gives_each_later_stage_its_time():
    pair = closing_pair()
    pair.give(CloseAsked(pair.now_s))
    pair.now_s += 1000.0
    pair.give(Tick(pair.now_s))
    assert pair.router.closing.stage is ClosingStage.CANCELLING
    pair.give(Tick(pair.now_s + 0.1))
    assert pair.router.closing.stage is ClosingStage.CANCELLING


@given(st.sampled_from(LATER), st.floats(0, 20), st.lists(st.tuples(st.floats(0, 3), HELD)))
def test_closing_ends_within_the_sum_of_its_limits(stage, drain_s, steps):
    limits = ServerLimits(drain_s=4.0, stop_s=3.0, reap_s=2.0)
    closing, now_s = Closing(limits, FLUSH_S), 100.0
    seen = []

    def enter(each):
        closing.enter(each, now_s)
        seen.append(each)

    for each in closing.until(stage):
        enter(each)
    closing.limit_drain(now_s + drain_s)
    for later_s, held in [*steps, *[(0.1, Held(*[1] * len(NOTHING)))] * 150]:
        now_s += later_s
        if (following := closing.following(now_s, held)) is not None:
            enter(following)
    assert seen == LATER
    assert closing.stage is ClosingStage.CLOSED
    assert closing.following(now_s + 1e6, NOTHING) is None


WAITS_FOR = {
    ClosingStage.DRAINING: {"running", "outcomes", "resources"},
    ClosingStage.CANCELLING: {"running", "resources"},
    ClosingStage.ENDING: {"workers"},
    ClosingStage.KILLING: {"workers", "on_disk"},
    ClosingStage.FLUSHING: set(Held._fields),  # its answers have left, or its time is over
}


@pytest.mark.parametrize("stage", WAITS_FOR)
@pytest.mark.parametrize("name", Held._fields)
def test_g9_stage_waits_for_what_its_table_says_and_for_nothing_else(
    stage: ClosingStage, name: str
):
    closing = Closing(ServerLimits(), FLUSH_S)
    closing.enter(stage, 100.0)
    waits = closing.following(100.0, NOTHING._replace(**{name: 1})) is None
    assert waits == (name in WAITS_FOR[stage])


# -- what callers hear ----------------------------------------------------------


@pytest.mark.parametrize("stage", LATER)
def test_who_asks_a_server_that_closes_hears_that_it_did_not_run(stage: ClosingStage):
    pair = closing_pair()
    session = pair.stranger()
    pair.close(stage)
    pair.ask(session)
    outcome = pair.heard()
    assert isinstance(outcome, messages.Outcome)
    assert (outcome.status, outcome.executions) == (Status.ERROR, 0)
    assert len(pair.runs) == 1


def test_a_request_to_run_again_was_never_answered_by_a_server_that_stops():
    """It waited for a worker, and none was to be started any more."""
    pair = Pair()
    pair.submit(rerun=True)
    pair.give(CloseAsked(pair.now_s))
    pair.die()
    assert pair.failure().verdict is Verdict.MAY_HAVE_RUN
    assert len(pair.router.queue) == 0


def test_a_server_that_closes_says_how_far_it_is_and_what_it_waits_for():
    pair = closing_pair()
    assert "closing" not in pair.router.status()
    pair.give(CloseAsked(pair.now_s))
    pair.advance(1.0)
    status = pair.router.status()
    assert (status["status"], status["reason"]) == ("stopping", "the server is stopping (draining)")
    assert status["closing"] == {
        "stage": "draining", "running": 1, "outcomes": 0, "workers": 1, "left_s": 3.0,
        "resources": 0,
    }  # fmt: skip
    pair.stranger(7)
    welcome = pair.heard()
    assert isinstance(welcome, messages.Welcome)
    assert welcome.server["closing"]["stage"] == "draining"
    assert pair.mail[-1][0] == STRANGER


def test_a_client_of_a_server_that_has_stopped_hears_that_and_not_that_nobody_listens():
    pair = closing_pair()
    pair.give(CloseAsked(pair.now_s))
    pair.advance(2.0)
    pair.give_client(Disconnected(pair.now_s, "nothing listens at tcp://127.0.0.1:1"))
    pair.now_s += 60.0
    _, why = pair.client.link.health(pair.now_s)
    assert why == "the server has stopped, and no other is there yet"


# -- a drain, and clients that are silent ----------------------------------------
# It waits for clients that have an outcome to fetch, and not for silent ones.


@pytest.mark.parametrize("silent", [True, False])
def test_client_with_an_outcome_to_fetch_is_waited_for_while_it_is_heard(silent: bool):
    pair = Pair.asked(server={"client_gone_s": 2.0})
    pair.end()
    pair.close()
    pair.advance(20.0)
    assert pair.draining()
    if not silent:
        pair.receive(0)
        assert not pair.draining()
        return
    pair.lose = lambda message: True
    pair.advance(1.5, step_s=0.1)
    assert pair.draining()
    pair.advance(0.6, step_s=0.1)
    assert not pair.draining()
    assert pair.session.account.kept_count == 1  # not waited for is not forgotten: it may come back
