"""The router and clients of every kind: well-behaved, late, foreign, hostile."""

from __future__ import annotations

import pytest

from trio_envserve.core import messages
from trio_envserve.core.health import Health
from trio_envserve.core.router_inputs import ClientMessage
from trio_envserve.core.terms import Status, Verdict

from .helpers import STRANGER, Pair, identifier

HELLO = messages.Hello(1, identifier(900), 1, "raw", 1 << 20)
REQUEST = messages.Request(identifier(5), 0, identifier(901), None, 1, None)

# -- a well-behaved client ----------------------------------------------------


# -- duplicates, conflicts, lateness ------------------------------------------


def test_g2_duplicates_coalesce_and_replay_and_never_run_again():
    pair, session = Pair.with_stranger()
    for _ in range(3):
        pair.ask(session)
    assert len(pair.runs) == 1
    pair.end()
    first = pair.mail[-1]
    for _ in range(2):
        pair.ask(session)
        assert pair.mail[-1] == first
    pair.tell(messages.Finish(session, [0, 1]), route=STRANGER)
    pair.ask(session)
    assert (pair.heard().code, pair.heard().delay_s) == ("finished", None)
    assert len(pair.runs) == 1


@pytest.mark.parametrize("how", [{"allowance": 0}, {"body": b"x" * 101}])
def test_what_can_never_be_taken_is_refused_for_good(how):
    pair = Pair(wire={"message_bytes": 100})
    pair.ask(pair.stranger(), **how)
    assert (pair.heard().code, pair.heard().delay_s) == ("refused", None)
    assert pair.runs == []


def test_g2_an_allowance_is_cut_to_the_servers_own():
    pair, session = Pair.with_stranger(server={"max_executions": 2})
    pair.ask(session, rerun=True, allowance=50)
    assert pair.router.cache.sessions[session].entries[0].allowance == 2


@pytest.mark.parametrize(
    "message",
    [
        REQUEST, messages.Finish(identifier(5), [0, 1]),
        messages.Cancel(identifier(5), 0), messages.Sync(identifier(5), identifier(6), 1, 1, 0, []),
    ],
    ids=lambda message: type(message).__name__,
)  # fmt: skip
def test_g4_an_unknown_session_is_refused_as_unknown_and_nothing_runs(message):
    pair = Pair()
    bodies = (b"body",) if isinstance(message, messages.Request) else ()
    pair.tell(message, *bodies, route=STRANGER)
    assert pair.heard() == messages.Unknown(identifier(5), False, pair.router.epoch, False)
    assert pair.runs == []
    pair.tell(messages.Goodbye(identifier(5)), route=STRANGER)
    assert len(pair.mail) == 1


def test_unknown_says_gone_of_a_proven_epoch_and_of_its_own_sessions_once_nothing_runs():
    pair = Pair()
    session, epoch = pair.stranger(), pair.router.epoch
    sync = messages.Sync(session, epoch, 1, 1, 0, [])

    def is_gone() -> bool:
        pair.tell(sync, route=STRANGER)
        return bool(pair.heard().gone)

    pair.ask(session)
    for _ in range(2):
        pair.tell(messages.Goodbye(session), route=STRANGER)
    assert not is_gone()
    pair.end(status=Status.CANCELLED)
    assert is_gone()
    pair.restart(proven=True)
    assert is_gone()
    pair.restart(proven=False)
    assert not is_gone()


# -- cancelling ---------------------------------------------------------------


def test_g7_a_cancel_reaches_the_environment_and_says_whether_it_started():
    pair, session = Pair.with_stranger()
    pair.ask(session)
    pair.tell(messages.Cancel(session, 0), route=STRANGER)
    assert pair.heard() == messages.Cancelled(session, 0, True)
    assert pair.cancels == [(b"w0-1", 0)]
    pair.tell(messages.Cancel(session, 7), route=STRANGER)
    assert pair.heard() == messages.Cancelled(session, 7, False)
    pair.ask(session, 7)
    assert pair.heard().code == "finished"
    assert len(pair.runs) == 1


# -- bounds -------------------------------------------------------------------


def test_g8_at_the_bounds_requests_are_refused_for_now():
    pair = Pair(server={"window": 2, "queue": 1, "worker_capacity": 1, "session_share": 1.0})
    session, other = pair.stranger(), pair.stranger(5)
    pair.ask(session, 0)
    pair.ask(session, 1)
    pair.ask(session, 2)
    assert (pair.heard().code, pair.heard().delay_s) == ("window", 0.5)
    pair.ask(other, 0)  # a session of which nothing waits may always have one there
    assert pair.heard().code == "window"
    pair.ask(other, 1)
    assert (pair.heard().code, pair.heard().delay_s) == ("queue-full", 0.5)


# -- strangers ----------------------------------------------------------------


def test_malformed_messages_are_answered_counted_and_change_nothing():
    pair = Pair()
    before = pair.router.stats()
    for frames in ((), (b"\xff",), (messages.encode(HELLO), b"body"), (b"\x81\x18\x50",)):
        pair.give(ClientMessage(STRANGER, frames, pair.now_s))
    pair.give(ClientMessage(STRANGER, (messages.encode(REQUEST),), pair.now_s))
    worker_kind = messages.encode(messages.Retire())
    pair.router_takes(ClientMessage(STRANGER, (worker_kind,), pair.now_s))
    assert [m.code for _, m in pair.mail] == ["malformed"] * 6  # type: ignore[union-attr]
    assert pair.router.stats() == {**before, "malformed": 6}


def test_g8_only_some_malformed_messages_a_second_are_logged():
    pair = Pair(server={"log_rate": 2})
    for _ in range(2):
        for _ in range(5):
            pair.give(ClientMessage(STRANGER, (), pair.now_s))
        pair.advance(1.0)
    assert len([r for r in pair.reports if "no frames" in r.text]) == 4
    assert pair.router.malformed == 10


def test_a_request_to_an_environment_that_is_broken_for_good_is_answered_at_once(
    monkeypatch: pytest.MonkeyPatch,
):
    pair = Pair(ready=False)
    monkeypatch.setattr(pair.router.pool, "broken", "a traceback")
    monkeypatch.setattr(type(pair.router.pool), "is_broken_for_good", lambda self: True)
    pair.submit()
    assert "a traceback" in pair.failure().message


# -- failures that servers of this kind are known for ----------------------------


@pytest.mark.parametrize("rerun", [True, False])
def test_failure_12_server_restarted_between_two_health_checks_is_never_noticed(rerun):
    """The server is restarted between two health checks: each finds a server that is
    well, and all pending calls are orphans.

    Here the ping states the session, which the new server does not know, and says so.
    """
    pair = Pair(rerun=rerun)
    calls = [pair.submit(b"%d" % number) for number in range(3)]
    pair.advance(0.5)
    pair.restart(proven=True)
    pair.advance(5.0)
    assert pair.client.link.health(pair.now_s)[0] is Health.HEALTHY
    if rerun:
        assert len(pair.runs) == 6, "issued again, by consent and on proof"
        pair.end_what_runs()
        results = [pair.result(call) for call in calls]
        assert results == [b"outcome of 0", b"outcome of 1", b"outcome of 2"]
    else:
        assert [pair.failure(call).verdict for call in calls] == [Verdict.MAY_HAVE_RUN] * 3
        assert len(pair.runs) == 3
