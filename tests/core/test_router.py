"""The router: time, workers that die, and its status."""

from __future__ import annotations

import pytest

from trio_envserve.core import messages
from trio_envserve.core.client_inputs import CallKey
from trio_envserve.core.executions import Duty
from trio_envserve.core.key_records import KeyAct, KeyName, input_digest
from trio_envserve.core.router_inputs import HeartbeatFelt, PoolOpened, PoolWaits, Tick
from trio_envserve.core.terms import Status, Verdict

from .helpers import STRANGER, Pair, identifier

# -- time ---------------------------------------------------------------------


def test_a_deadline_answers_and_stops():
    pair, session = Pair.with_stranger(server={"worker_capacity": 1})
    pair.ask(session, 0, deadline_s=2.0)
    pair.ask(session, 1, deadline_s=2.0)
    pair.ask(session, 2, deadline_s=9.0)
    pair.ask(session, 3, deadline_s=2.0)
    pair.tell(messages.Finish(session, [3, 4]), route=STRANGER)
    pair.beat()
    pair.advance(1.5)
    assert not any(isinstance(m, messages.Outcome) for _, m in pair.mail)
    pair.advance(1.0)
    outcomes = pair.mailed(messages.Outcome)
    assert [(m.sequence, m.status) for m in outcomes] == [(0, 1), (1, 1)]
    assert pair.cancels == [(b"w0-1", 0)]
    pair.end(status=Status.CANCELLED)
    assert [run.request.sequence for _, run in pair.runs] == [0, 2]


def test_g7_a_silent_client_loses_its_lease_and_its_work():
    pair, session = Pair.with_stranger(server={"lease_s": 5.0})
    pair.ask(session, deadline_s=60.0)
    pair.advance(5.0)
    assert pair.cancels == []
    pair.advance(1.0)
    assert pair.cancels == [(b"w0-1", 0)]
    assert session in pair.router.cache.sessions  # its execution still lives
    pair.end(status=Status.CANCELLED)
    assert session not in pair.router.cache.sessions
    pair.advance(60.0)  # its deadline passes, and nobody is there


def test_g9_a_stopped_server_does_not_age_its_clients():
    pair, session = Pair.with_stranger(server={"lease_s": 5.0})
    pair.ask(session)
    pair.now_s += 3600.0
    pair.router_takes(Tick(pair.now_s))
    assert pair.cancels == []


def test_g8_deadlines_of_finished_requests_are_dropped():
    pair, session = Pair.with_stranger()
    for sequence in range(3000):
        pair.ask(session, sequence, deadline_s=1e9)
        pair.tell(messages.Cancel(session, sequence), route=STRANGER)
        if sequence % 100 == 0:
            pair.advance(0.1)
    assert len(pair.router.dispatcher.deadlines.heap) < 1200


def test_g8_dispatching_pauses_while_too_much_is_kept():
    pair = Pair(server={"kept_outcomes": 2, "session_share": 0.5})
    one, two = pair.stranger(), pair.stranger(5)
    pair.ask(one, 0)
    pair.end()
    pair.ask(one, 1)
    assert len(pair.runs) == 1  # its share is used up
    pair.ask(two, 0)
    assert len(pair.runs) == 2
    pair.end()
    pair.ask(two, 1)
    assert len(pair.runs) == 2
    pair.tell(messages.Finish(one, [0, 1]), route=STRANGER)
    assert len(pair.runs) == 3


def test_a_heartbeat_of_nobody_is_ignored():
    pair = Pair()
    pair.give(HeartbeatFelt(b"nobody", pair.now_s, 0.0, 0, ""))
    pair.router_takes(HeartbeatFelt(b"w0-1", pair.now_s, 9.0, 0, "here"))
    assert [r.text for r in pair.reports if "blocked" in r.text]


# -- workers that die ---------------------------------------------------------


def test_g2_with_consent_a_lost_request_runs_again_and_ends_with_its_allowance():
    pair, session = Pair.with_stranger(server={"restart_pause_s": 0.1, "restart_pause_max_s": 0.1})
    pair.ask(session, rerun=True, allowance=2)
    pair.die()
    pair.advance(1.0)
    assert len(pair.runs) == 2
    assert pair.router.workforce.workers[b"w0-2"].duty is Duty.SUSPECTS  # alone
    pair.die()
    pair.advance(1.0)
    assert len(pair.runs) == 2
    assert (pair.heard().status, pair.heard().executions) == (Status.ERROR, 2)


@pytest.mark.parametrize("declared", [False, True])
def test_g2_the_environments_declaration_is_consent(declared: bool):
    pair = Pair.asked(rerun=declared)
    pair.die()
    pair.advance(2.0)
    assert len(pair.runs) == 1 + declared
    if not declared:
        assert pair.verdict() == ("worker-lost", Verdict.MAY_HAVE_RUN)


# -- status -------------------------------------------------------------------


def test_the_status_is_the_truth_about_the_pool():
    limits = {"broken_after": 1, "silence_report_s": 1.0, "restart_pause_s": 0.8}
    pair = Pair(ready=False, heartbeats=True, server=limits)
    status = pair.router.status
    assert status()["reason"] == "waiting for the workers of an earlier server to end"
    pair.advance(1.0)
    assert pair.spawns == []
    pair.open_pool()
    assert (status()["status"], status()["reason"]) == ("starting", "no worker is ready yet")
    pair.die(b"w0-1")
    assert status()["status"] == "broken"
    pair.auto_hello = True
    pair.advance(1.0)
    assert (status()["status"], status()["ready"]) == ("ready", 1)
    pair.advance(1.5)
    assert status()["status"] == "silent"


def test_the_status_says_why_no_worker_may_be_started_yet():
    pair = Pair(ready=False, welcomed=False)
    pair.give(PoolWaits("2 workers of an earlier server still run"))
    assert pair.said() == []
    assert pair.router.status()["reason"] == "2 workers of an earlier server still run"
    pair.give(PoolOpened((), pair.now_s))
    assert pair.router.status()["reason"] == "no worker is ready yet"


# -- A traceparent goes the way of its request, and decides nothing ------------

SPAN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
NAME = KeyName(b"default", b"key")


def keyed(body: bytes = b"body") -> CallKey:
    return CallKey(KeyAct.ASK, NAME, input_digest(body, None))


@pytest.mark.parametrize("key", [None, keyed()], ids=["without a key", "with a key"])
@pytest.mark.parametrize("span", [SPAN, None])
def test_the_span_of_a_caller_reaches_the_worker(key: CallKey | None, span: str | None):
    pair = Pair()
    pair.submit(key=key, traceparent=span)
    ((_, run),) = pair.runs
    assert run.traceparent == span


def test_g6_a_request_that_comes_again_with_another_span_is_the_same_request():
    pair, session = Pair.with_stranger()
    for span in (SPAN, OTHER, None):
        request = messages.Request(session, 0, identifier(1), None, 1, None, None, span)
        pair.tell(request, b"body", route=STRANGER)
    ((_, run),) = pair.runs
    assert run.traceparent == SPAN, "the first one counts"
    assert pair.router.cache.counters.conflicts == 0


def test_g2_a_further_execution_is_below_the_same_span():
    pair = Pair(workers=2, rerun=True)
    pair.submit(traceparent=SPAN, rerun=True)
    pair.die()
    pair.advance(2.0)
    assert [run.traceparent for _, run in pair.runs] == [SPAN, SPAN]


def test_work_of_a_key_is_below_the_span_of_the_ask_that_opened_it():
    pair = Pair()
    pair.submit(key=keyed(), traceparent=SPAN)
    pair.submit(key=keyed(), traceparent=OTHER)
    ((_, run),) = pair.runs
    assert run.traceparent == SPAN


def test_a_dispatch_that_was_lost_is_sent_again_with_its_span():
    pair = Pair()
    with pair.losing(messages.Dispatch):
        pair.submit(traceparent=SPAN)
    assert not pair.runs
    pair.beat()
    pair.beat()
    assert [run.traceparent for _, run in pair.runs] == [SPAN]
