"""Keyed requests at the bounds of a server, and when it closes."""

from __future__ import annotations

import pytest

from trio_envserve.core import error_records, messages
from trio_envserve.core.client_effects import Answer
from trio_envserve.core.key_records import KeyAct, KeyName
from trio_envserve.core.router_inputs import CloseAsked
from trio_envserve.core.terms import Status, Verdict

from .helpers import STRANGER, identifier, limit_keys
from .keyed import Keyed


def test_g8_at_the_bound_of_keys_new_ones_wait_and_known_ones_do_not():
    pair = Keyed()
    limit_keys(pair, generations=2)
    session = pair.stranger()
    pair.request(session, 0)
    pair.request(session, 1, name=KeyName(b"default", b"other"))
    assert (pair.heard().code, pair.heard().delay_s is None) == ("keys-full", False)
    pair.request(session, 2, caller=identifier(3))
    assert len(pair.router.keys.generations[0].waiters) == 2


def test_g8_work_of_keys_has_its_share_of_the_queue():
    pair = Keyed(ready=False, server={"queue_bytes": 1000})
    session = pair.stranger()
    pair.request(session, 0, b"a" * 400, name=KeyName(b"n", b"a"))
    pair.request(session, 1, b"b" * 400, name=KeyName(b"n", b"b"))
    assert pair.heard().code == "key-queue-full"


def test_g8_without_room_for_a_session_of_work_new_namespaces_wait():
    pair = Keyed(server={"sessions": 2})
    pair.submit(b"plain")
    session = pair.stranger()
    pair.ask(session, 5)
    pair.request(session)
    assert (pair.heard().code, pair.heard().delay_s is None) == ("key-queue-full", False)
    assert len(pair.runs) == 2


def test_g10_one_client_took_all_sessions_with_work_in_as_many_namespaces():
    pair = Keyed(server={"sessions": 20, "worker_capacity": 1})
    limit_keys(pair, namespaces=4)
    session, idle = pair.stranger(), pair.stranger(901)
    for number in range(30):
        pair.request(session, number, name=KeyName(b"%d" % number, b"key"))
    assert (pair.heard().code, pair.heard().delay_s is None) == ("key-queue-full", False)
    own = [each for each in pair.router.cache.sessions.values() if each.own]
    assert len(own) == 4
    assert idle in pair.router.cache.sessions
    assert pair.stranger(902) in pair.router.cache.sessions
    pair.end()  # of the first: so there is room for another one
    pair.request(session, 30, name=KeyName(b"another", b"key"))
    assert len(pair.router.keys.open) == 5
    assert sum(bool(each.own) for each in pair.router.cache.sessions.values()) == 4


def test_g8_namespaces_of_long_ago_are_forgotten():
    pair = Keyed(server={"sessions": 4, "lease_s": 20.0})
    limit_keys(pair, namespaces=8)
    for number in range(12):
        pair.call(name=KeyName(b"%d" % number, b"key"))
        pair.end()
        pair.receive(number)
        pair.advance(21.0, step_s=1.0)
    assert len(pair.router.dispatcher.keyed._sessions) <= 8
    assert len(pair.router.cache.sessions) <= 4


def test_g8_outcomes_have_room_before_work_is_dispatched():
    pair = Keyed(server={"worker_capacity": 1})
    limit_keys(pair, retained_bytes=1000)
    pair.call()
    pair.call(name=KeyName(b"default", b"other"))
    pair.end(payload=b"x" * 900)
    assert len(pair.runs) == 1  # until there is room
    pair.about(KeyAct.FORGET)
    assert len(pair.runs) == 1  # who was answered with it holds it
    pair.receive(0)
    assert len(pair.runs) == 2


def test_g10_an_outcome_that_many_are_answered_with_is_counted_once():
    """Who attached 16,384 times to 1 MiB, and received none, had 16 GiB counted for it, and
    others had less room."""
    pair = Keyed()
    limit_keys(pair)
    pair.call()
    pair.end(payload=b"x" * 100_000)
    session = pair.stranger()
    for number in range(50):
        pair.request(session, number, act=KeyAct.ATTACH)
    cache, usage = pair.router.cache, pair.router.keys.usage
    assert sum(each.kept_count for each in cache.sessions.values()) == 51
    assert cache.kept_bytes < 100_000 < usage.outcome_bytes < 101_000
    pair.about(KeyAct.FORGET)
    pair.receive(0)
    assert usage.outcome_bytes > 100_000  # others have not received it
    pair.tell(messages.Goodbye(session), route=STRANGER)
    assert usage.outcome_bytes == usage.size_bytes == 0


@pytest.mark.parametrize("running", [False, True])
def test_g9_a_server_that_closes_answers_all_that_wait(running: bool):
    pair = Keyed(ready=running)
    session = pair.stranger()
    pair.request(session, 0, caller=identifier(1))
    pair.request(session, 1, caller=identifier(2))
    pair.give(CloseAsked(pair.now_s, drain_s=1.0))
    pair.settle()
    pair.advance(3.0)
    entries = pair.router.cache.sessions[session].entries
    for entry in entries.values():
        assert entry.kept is not None
        info = error_records.decode(entry.kept.frames[1])
        assert info.verdict is (Verdict.MAY_HAVE_RUN if running else Verdict.DID_NOT_RUN)
    assert len(entries) == 2


def test_an_outcome_too_large_for_one_reaches_the_other():
    pair = Keyed()
    pair.call()
    session = pair.stranger()
    pair.router.cache.sessions[session].message_bytes = 10
    pair.request(session)
    pair.end(payload=b"x" * 100)
    mine = pair.last()
    assert isinstance(mine, Answer)
    assert mine.status is Status.RESULT
    assert pair.heard().status == Status.ERROR
