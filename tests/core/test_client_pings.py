"""The pings of a client: hello until there is a session, less and less often while it holds
nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trio_envserve.core import messages
from trio_envserve.core.client import CallSubmitted, ClientTick
from trio_envserve.core.router_inputs import Tick

from .helpers import Pair

STEP_S = 0.25


def syncs_at(pair: Pair, seconds: float) -> list[float]:
    """When the client has said a sync, from now on."""
    came: list[float] = []
    began_s = pair.now_s
    for _ in range(round(seconds / STEP_S)):
        before = len(pair.sent)
        pair.advance(STEP_S, step_s=STEP_S)
        syncs = [each for each in pair.sent[before:] if isinstance(each, messages.Sync)]
        came += [pair.now_s - began_s] * len(syncs)
    return came


def idle_pair(**client: float) -> Pair:
    """A client that has asked nothing for long, and has just pinged."""
    pair = Pair(client=client)
    pair.advance(60.0, step_s=STEP_S)
    while syncs_at(pair, STEP_S) == []:
        pass
    return pair


def test_hello_is_repeated_with_the_same_nonce_until_the_welcome():
    pair = Pair(welcomed=False)
    with pair.losing(messages.Welcome):
        pair.connect()
        pair.advance(1.0)
        hellos = pair.sent_of(messages.Hello)
        assert len(hellos) >= 2
        assert len({m.nonce for m in hellos}) == 1
    pair.advance(1.0)
    assert pair.client.sessions.opened == 1
    assert len(pair.router.sessions.known) == 1


def asks_later(pair: Pair) -> None:
    pair.advance(4.5, step_s=STEP_S)
    pair.submit()


def server_is_mute(pair: Pair) -> None:
    pair.lose = lambda message: True


def server_stops(pair: Pair) -> None:
    pair.close()


def connects_anew(pair: Pair) -> None:
    pair.disconnect()
    pair.lose = lambda message: isinstance(message, messages.Sync)
    pair.connect()


def hears_an_answer_again(pair: Pair) -> None:
    (*_, answer) = (each for each in pair.told if isinstance(each, messages.Synced))
    for _ in range(3):
        pair.hear(answer)


def loses_its_session(pair: Pair) -> None:
    pair.submit()
    pair.restart(proven=False)


EACH_SECOND = [float(second) for second in range(1, 11)]

PINGS: list[tuple[Callable[[], Pair], Callable[[Pair], object], list[float]]] = [
    (Pair, lambda pair: None, [1.0, 3.0, 7.0]),
    (Pair, Pair.submit, EACH_SECOND),
    (idle_pair, Pair.submit, EACH_SECOND),
    (idle_pair, asks_later, [each - 0.5 for each in EACH_SECOND]),
    (lambda: Pair(ready=False), lambda pair: None, EACH_SECOND),
    (idle_pair, server_is_mute, EACH_SECOND[4:]),
    (idle_pair, server_stops, EACH_SECOND[4:]),
    (idle_pair, connects_anew, EACH_SECOND),
    (idle_pair, hears_an_answer_again, [5.0, 10.0]),
    (idle_pair, loses_its_session, EACH_SECOND),
]


@pytest.mark.parametrize(("opened", "happens", "expected"), PINGS)
def test_pings_are_rare_while_nothing_is_pending_and_the_server_serves(opened, happens, expected):
    pair = opened()
    happens(pair)
    assert sorted({*syncs_at(pair, 10.0)}) == expected  # of two sessions at the same moments


def test_g9_what_an_idle_client_asks_is_asked_again_within_a_ping():
    pair = idle_pair()
    with pair.losing(messages.Request):
        pair.submit()
        assert pair.runs == []
    pair.advance(1.0, step_s=STEP_S)
    assert len(pair.runs) == 1


def test_g9_a_lost_acknowledgement_is_repaired_within_a_ping_after_the_last_call():
    pair = idle_pair()
    pair.submit()
    pair.end()
    with pair.losing(messages.Finish, messages.Sync):
        pair.receive(0)
        pair.advance(2.5, step_s=STEP_S)  # its first statements are lost as well
        assert pair.session.tickets
    pair.advance(1.0, step_s=STEP_S)
    assert not pair.session.tickets


def test_g9_a_lost_cancel_is_repaired_within_a_ping():
    pair = idle_pair()
    pair.lose = lambda message: isinstance(message, messages.Finish)
    pair.submit()
    pair.cancel(0)
    assert pair.session.tickets
    pair.advance(1.0, step_s=STEP_S)
    assert not pair.session.tickets
    assert pair.cancels == [(b"w0-1", 0)]


def test_a_server_with_a_short_lease_forgot_an_idle_client_all_the_time():
    pair = Pair(server={"lease_s": 4.0})
    pair.advance(60.0, step_s=STEP_S)
    assert pair.router.works.counters.sessions_opened == 2, "it is forgotten once, and learns"
    assert syncs_at(pair, 20.0) == [2.5 * n for n in range(1, 9)]


# -- after a sleep ------------------------------------------------------------------
# Whether a loop was late was seen by its ping, which an idle client may not owe for long.


def test_g9_an_idle_client_asks_nothing_after_a_sleep_until_its_session_is_known():
    pair = idle_pair()
    pair.now_s += 3.0  # its next ping is not due yet
    pair.client_takes(CallSubmitted(pair.new_call(), b"body", pair.now_s))
    assert pair.runs == []
    pair.client_takes(ClientTick(pair.now_s, late_s=3.0))
    assert len(pair.runs) == 1  # the sync of that tick was answered


# -- answers that are late ------------------------------------------------------------
# What a blocked loop finds when it goes on is read in any order: news of the connection,
# and answers that came by the one before it.


def late(pair: Pair, kind: type[messages.Message]) -> messages.Message:
    """The last message of this kind that the server has said."""
    return next(each for each in reversed(pair.told) if isinstance(each, kind))


def assert_asked_only_once_it_knows(pair: Pair, old: messages.Message) -> None:
    """It hears an old answer while its syncs are lost; a call waits for the answer to one."""
    pair.hear(old)
    pair.submit()
    assert not any(isinstance(message, messages.Request) for message in pair.sent)
    pair.lose = lambda message: False
    pair.advance(2.0)
    assert len(pair.runs) == 1


def test_g9_an_answer_of_the_server_before_had_calls_sent_in_a_session_that_was_lost():
    pair = idle_pair()
    synced = late(pair, messages.Synced)
    pair.disconnect()
    pair.restart(proven=False)
    pair.lose = lambda message: isinstance(message, messages.Sync)
    pair.connect()
    assert_asked_only_once_it_knows(pair, synced)


def test_g9_an_answer_from_before_a_sleep_had_calls_sent_in_a_session_that_was_forgotten():
    pair = Pair(server={"lease_s": 20.0})
    pair.lose = lambda message: isinstance(message, messages.Synced)
    pair.advance(1.0)
    synced = late(pair, messages.Synced)  # it is under way when the client falls asleep
    for _ in range(30):
        pair.now_s += 1.0
        pair.give(Tick(pair.now_s))
    pair.lose = lambda message: isinstance(message, messages.Sync)
    pair.give_client(ClientTick(pair.now_s, late_s=30.0))
    assert_asked_only_once_it_knows(pair, synced)


def test_g9_a_client_whose_loop_is_late_in_each_turn_asks_all_the_same():
    pair = Pair()
    pair.lose = lambda message: isinstance(message, messages.Synced)
    for _ in range(3):  # in each it hears what was answered in the one before
        told = [each for each in pair.told if isinstance(each, messages.Synced)][-1:]
        pair.now_s += 3.0
        pair.submit()
        pair.client_takes(ClientTick(pair.now_s, late_s=2.0))
        for synced in told:
            pair.hear(synced)
    assert pair.runs


def test_g9_a_welcome_of_the_server_before_had_calls_sent_in_a_session_that_was_lost():
    pair = Pair(welcomed=False)
    pair.lose = lambda message: isinstance(message, messages.Welcome)
    pair.connect()
    welcome = late(pair, messages.Welcome)
    pair.disconnect()
    pair.restart(proven=False)
    pair.connect()
    pair.lose = lambda message: isinstance(message, messages.Sync)
    assert_asked_only_once_it_knows(pair, welcome)


def test_g9_a_refusal_of_the_server_before_refused_all_calls_of_a_session():
    pair = Pair()
    pair.hear(messages.Error(2, "foreign-version", "version 1 is not spoken, 2 is"))
    pair.submit()
    assert len(pair.runs) == 1
