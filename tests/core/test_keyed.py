"""Keyed requests: the keys, joined with the dedup cache, the queue and the workers.

What becomes of a generation in each state is in ``test_key_table`` and its neighbours;
here it is that callers get what is theirs, through a whole server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cbor2
import pytest

from trio_envserve.core import messages
from trio_envserve.core.call_steps import CallInput
from trio_envserve.core.call_table import Calls
from trio_envserve.core.calls import ClientSession
from trio_envserve.core.client_effects import Answer
from trio_envserve.core.client_inputs import CallKey, CallSubmitted, ServerMessage
from trio_envserve.core.closing import ClosingStage
from trio_envserve.core.key_records import GenerationState, KeyAct, KeyName, input_digest
from trio_envserve.core.limits import KIB, ClientLimits
from trio_envserve.core.request_table import RequestInput
from trio_envserve.core.requests import RequestState, Session
from trio_envserve.core.router_inputs import CloseAsked
from trio_envserve.core.terms import Status, Verdict
from trio_envserve.core.worker_inputs import EnvironmentReady

from .helpers import STRANGER, Pair, identifier, limit_keys
from .keyed import Keyed, generation


def test_g2_two_that_ask_under_one_key_start_it_once():
    pair = Keyed.asked()
    session = pair.stranger()
    pair.request(session)
    assert len(pair.runs) == 1
    pair.end(payload=b"the one")
    mine = pair.last()
    assert isinstance(mine, Answer)
    assert bytes(mine.body) == b"the one"
    theirs = pair.heard()
    assert (theirs.session, theirs.sequence, theirs.status) == (session, 0, Status.RESULT)
    assert (theirs.worker, theirs.executions) == ("w0-1", 1)


def test_g4_its_outcome_is_replayed_to_those_that_ask_later():
    pair = Keyed.asked()
    pair.end()
    pair.receive(0)
    pair.call()
    assert len(pair.runs) == 1
    assert isinstance(pair.last(), Answer)
    assert len(pair.answers) == 2
    pair.about(KeyAct.ATTACH)
    assert len(pair.answers) == 3
    assert isinstance(pair.last(), Answer)


def test_g6_another_input_under_the_key_is_a_conflict():
    pair = Keyed.asked()
    session = pair.stranger()
    pair.request(session, body=b"other")
    refused = pair.heard()
    assert (refused.code, refused.delay_s) == ("key-conflict", None)
    pair.call(body=b"other")
    assert pair.failure().code == "key-conflict"
    assert pair.failure().verdict is Verdict.DID_NOT_RUN


@pytest.mark.parametrize(
    "other",
    [{"name": KeyName(b"default", b"other")}, {"act": KeyAct.FORGET}, {"caller": identifier(3)}],
    ids=str,
)
def test_g6_an_id_that_asked_something_of_another_key_was_taken_for_the_same(
    other: dict[str, Any],
):
    pair, session = Keyed.with_stranger()
    pair.request(session, 0)
    pair.request(session, 0, **other)
    assert (pair.heard().code, pair.heard().delay_s) == ("conflict", None)
    pair.end(payload=b"the first")
    assert (pair.heard().sequence, pair.heard().status) == (0, Status.RESULT)
    assert len(pair.runs) == 1


# -- who leaves ---------------------------------------------------------------


@pytest.mark.parametrize(("others", "started"), [(0, False), (1, True), (None, True)])
def test_g7_a_cancel_says_whether_it_may_have_run(others: int | None, started: bool):
    """For another that waits, too; of what was never seen nobody knows."""
    pair, session = Keyed.with_stranger(ready=False)
    for sequence in range(0 if others is None else 1 + others):
        pair.request(session, sequence, caller=identifier(1 + sequence))
    pair.tell(messages.KeyedCancel(session, 0), route=STRANGER)
    assert pair.heard() == messages.Cancelled(session, 0, started)
    assert len(pair.router.queue) == (others or 0)


def test_a_limit_of_the_caller_is_his_alone():
    pair = Keyed(ready=False)
    pair.restart(proven=True)
    pair.auto_hello = False
    pair.call(limit_s=5.0)
    session = pair.stranger()
    pair.request(session)
    pair.advance(10.0)
    assert pair.failure().verdict is Verdict.MAY_HAVE_RUN  # for the stranger, it still may
    assert len(pair.router.queue) == 1


@pytest.mark.parametrize("others", [False, True])
def test_a_deadline_says_whether_the_work_goes_on(others: bool):
    pair, session = Keyed.with_stranger(ready=False)
    pair.request(session, 0, deadline_s=5.0, caller=identifier(1))
    if others:
        pair.request(session, 1, caller=identifier(2))
    pair.advance(6.0)
    outcome = pair.heard()
    assert outcome.status is not Status.RESULT
    assert pair.verdict_of(session) is (Verdict.MAY_HAVE_RUN if others else Verdict.DID_NOT_RUN)
    assert len(pair.router.queue) == others


def test_a_goodbye_leaves_and_a_lost_lease_goes_on_counting():
    for goodbye in (True, False):
        pair, session = Keyed.with_stranger(server={"lease_s": 20.0})
        pair.request(session)
        if goodbye:
            pair.tell(messages.Goodbye(session), route=STRANGER)
        else:
            pair.advance(21.0)
        assert session not in pair.router.cache.sessions or not goodbye
        assert generation(pair) is (GenerationState.CLOSED if goodbye else GenerationState.RUNNING)


def test_g8_retention_ends_and_the_next_ask_is_new_work():
    pair = Keyed.asked()
    pair.end()
    pair.receive(0)
    pair.advance(pair.keys.retention_s + 2.0)
    assert generation(pair) is GenerationState.CLOSED
    pair.call()
    assert len(pair.runs) == 2


# -- commands -----------------------------------------------------------------


@pytest.mark.parametrize("tag", [0, b"", b"id"])
def test_g4_a_cancel_of_what_has_its_outcome_drops_nothing_and_says_so(tag: int | bytes):
    """The outcome was dropped, also before its caller had it, and the answer said that it was
    cancelled."""
    pair = Keyed.asked()
    pair.end()
    session = pair.stranger()
    for sequence in range(2):
        pair.request(session, sequence, b"", act=KeyAct.CANCEL, tag=tag)
        said = {"generation": None, "started": True, "finished": True}
        assert pair.answered(session, sequence) == said
        if sequence == 0:
            pair.receive(0)
    assert generation(pair) is GenerationState.COMPLETED
    pair.request(session, 2)
    assert pair.heard().status == Status.RESULT


@pytest.mark.parametrize("act", [KeyAct.CANCEL, KeyAct.FORGET])
def test_a_command_without_an_id_hits_nothing_when_its_request_is_sent_again(act: KeyAct):
    pair, session = Keyed.with_stranger()
    pair.call()
    for _ in range(2):
        pair.request(session, 0, b"", act=act, tag=b"")
        if len(pair.runs) == 1:
            pair.end()  # what was cancelled, or was to be forgotten
        pair.call(body=b"other")
    pair.tell(messages.Finish(session, [0, 1]), route=STRANGER)
    pair.request(session, 0, b"", act=act, tag=b"")
    assert generation(pair, 0) is GenerationState.CLOSED
    assert generation(pair, 1) is GenerationState.RUNNING
    assert not pair.router.keys.commands.said


@pytest.mark.parametrize("act", [KeyAct.CANCEL, KeyAct.FORGET])
def test_a_command_without_an_id_that_is_issued_again_hits_nothing(act: KeyAct):
    """The session that had it is lost, and may have carried it out: what is there now may be
    another generation."""
    pair, session = Keyed.with_stranger()
    pair.call()
    pair.request(session, 0, b"", act=act, tag=b"", earlier=0, gone=True)
    assert (pair.heard().code, pair.heard().delay_s) == ("unknown-key", None)
    assert generation(pair) is GenerationState.RUNNING
    pair.request(session, 1, b"", act=act, tag=b"id", earlier=0, gone=True)
    assert generation(pair) is GenerationState.CLOSED


def test_g8_commands_are_refused_for_now_at_their_bound():
    pair = Keyed()
    limit_keys(pair, commands=1)
    session = pair.stranger()
    pair.request(session, 0, b"", act=KeyAct.CANCEL, tag=b"one")
    pair.request(session, 1, b"", act=KeyAct.CANCEL, tag=b"two")
    assert (pair.heard().code, pair.heard().delay_s is None) == ("commands-full", False)


def test_what_cannot_be_a_key_is_refused():
    pair, session = Keyed.with_stranger()
    pair.request(session, name=KeyName(b"", b"key"))
    assert (pair.heard().code, pair.heard().delay_s) == ("refused", None)
    assert pair.router.cache.sessions[session].state(0) is RequestState.NOT_SEEN


# -- generations --------------------------------------------------------------


def test_g1_the_next_generation_waits_for_the_end_of_the_last():
    pair = Keyed.asked()
    first = pair.runs[-1]
    pair.about(KeyAct.FORGET)
    pair.call()
    assert len(pair.runs) == 1
    assert generation(pair, 1) is GenerationState.HELD
    pair.end(first, status=Status.CANCELLED)
    assert len(pair.runs) == 2
    assert generation(pair, 1) is GenerationState.RUNNING


def test_g7_what_is_held_and_cancelled_never_starts():
    pair = Keyed.asked()
    pair.about(KeyAct.FORGET)
    pair.call()
    pair.about(KeyAct.CANCEL)
    said = pair.answers[-1]
    assert isinstance(said, Answer)
    assert cbor2.loads(said.body) == {"generation": 1, "started": False}
    pair.end(status=Status.CANCELLED)
    assert len(pair.runs) == 1


def test_g1_nothing_of_a_key_runs_beside_what_a_dying_worker_still_runs():
    pair = Keyed.asked(workers=2)
    worker = pair.runs[-1][0]
    pair.about(KeyAct.FORGET)
    pair.call()
    assert len(pair.runs) == 1
    pair.die(worker)
    assert len(pair.runs) == 2


@pytest.mark.parametrize("consent", [False, True])
def test_g2_its_worker_dies(consent: bool):
    pair = Keyed.asked(workers=2, rerun=consent)
    pair.die()
    assert len(pair.runs) == 1 + consent
    if not consent:
        assert pair.failure().code == "worker-lost"
        pair.call()  # and that is what everybody hears
        assert len(pair.runs) == 1
        assert pair.failure().code == "worker-lost"


# -- a server that was lost -------------------------------------------------------


@pytest.mark.parametrize(
    ("proven", "rerun", "runs"), [(True, True, 2), (True, False, 1), (False, True, 1)]
)
def test_g2_it_is_issued_again_only_by_proof_and_consent(proven: bool, rerun: bool, runs: int):
    pair = Keyed.asked(rerun=rerun, client={"recovery_s": 20.0})
    pair.restart(proven=proven)
    pair.advance(30.0)
    assert len(pair.runs) == runs
    if runs == 1:
        assert pair.failure().verdict is Verdict.MAY_HAVE_RUN


def test_it_is_issued_again_once_a_worker_has_said_what_it_consents_to():
    pair = Keyed.asked(rerun=True)
    pair.auto_hello = False
    pair.restart(proven=True)
    pair.advance(5.0)
    assert len(pair.runs) == 1
    assert not pair.answers
    pair.auto_hello = True
    for worker, core in pair.workers.items():
        pair.work(worker, core.take(EnvironmentReady(1, "env", True)))
    pair.advance(5.0)
    assert len(pair.runs) == 2


def test_g2_each_epoch_starts_its_part_of_the_allowance():
    pair, session = Keyed.with_stranger(rerun=True)
    pair.request(session, allowance=4)
    own = next(s for s in pair.router.cache.sessions.values() if s.own)
    assert own.entries[0].allowance == 3
    pair.request(session, 1, name=KeyName(b"default", b"b"), allowance=4, earlier=3, gone=True)
    assert own.entries[1].allowance == 1


def test_a_session_that_was_forgotten_joins_what_still_runs():
    """The client slept for longer than its lease; its work went on."""
    pair = Keyed.asked(server={"lease_s": 20.0}, client={"late_s": 1.0})
    pair.router.dispatcher.end(pair.session, lost=True)
    pair.advance(3.0)
    pair.end()
    assert len(pair.runs) == 1
    assert isinstance(pair.last(), Answer)
    assert not pair.router.keys.generations[0].lost


# -- Keyed requests at the bounds of a server, and when it closes --------------


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
    pair, session = Keyed.with_stranger(ready=False, server={"queue_bytes": 1000})
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
    pair, session = Keyed.with_stranger(ready=running)
    pair.request(session, 0, caller=identifier(1))
    pair.request(session, 1, caller=identifier(2))
    pair.close(drain_s=1.0)
    pair.advance(3.0)
    verdict = Verdict.MAY_HAVE_RUN if running else Verdict.DID_NOT_RUN
    assert [pair.verdict_of(session, sequence) for sequence in range(2)] == [verdict] * 2


def test_an_outcome_too_large_for_one_reaches_the_other():
    pair = Keyed.asked()
    session = pair.stranger()
    pair.router.cache.sessions[session].message_bytes = 10
    pair.request(session)
    pair.end(payload=b"x" * 100)
    mine = pair.last()
    assert isinstance(mine, Answer)
    assert mine.status is Status.RESULT
    assert pair.heard().status == Status.ERROR


# -- Requests with keys, between client and router: what once went wrong there -


def submit(
    pair: Pair, word: bytes, act: KeyAct = KeyAct.ASK, body: bytes = b"body", **how: Any
) -> int:
    """A call with a key, sent as far as it goes."""
    digest = input_digest(body, how.get("rerun"))
    tag = word if act in (KeyAct.CANCEL, KeyAct.FORGET) else b""
    return pair.submit(body, key=CallKey(act, KeyName(b"default", word), digest, tag), **how)


def full_of_keys() -> Pair:
    """A server with room for one generation, and a client that waits with another one."""
    pair = Pair(workers=2)
    limit_keys(pair, generations=1, namespace_share=1.0)
    submit(pair, b"0")
    submit(pair, b"1")
    assert len(pair.runs) == 1
    assert len(pair.client.calls.held) == 1
    return pair


def test_the_next_work_of_a_key_waited_for_ever_when_an_announced_outcome_was_not_wanted():
    pair = Pair(workers=1, server={"kept_bytes": 64 * KIB})
    fills, waits = pair.submit(b"fills what may be kept"), submit(pair, b"key")
    for run in list(pair.runs):
        pair.end(run, bytes(100 * KIB))
    assert len(pair.router.announced) == 1
    pair.cancel(waits)
    pair.receive(fills)
    submit(pair, b"key")
    assert len(pair.runs) == 3
    assert not pair.router.keys.ending


def test_work_was_answered_again_that_its_key_had_finished_as_the_server_closed():
    pair = Pair(workers=1)
    submit(pair, b"key")
    steps = watched(pair)
    pair.give(CloseAsked(pair.now_s, ClosingStage.DRAINING))
    pair.die()
    assert (RequestInput.DEADLINE, RequestState.NOT_SEEN) not in steps


def test_a_waiter_and_who_had_attached_crashed_the_server_when_they_left_together():
    pair = Pair(workers=1)
    both = [submit(pair, b"key"), submit(pair, b"key", KeyAct.ATTACH)]
    with pair.losing(messages.Finish):
        pair.cancel(*both)
    pair.advance(1.5)  # the next sync says it of both
    assert not pair.session.entries
    assert len(pair.cancels) == 1


def watched(pair: Pair) -> list[tuple[RequestInput, RequestState]]:
    """What the requests of the router will be given, and in which states."""
    step, steps = pair.router.cache.step, []

    def watching(session: Session, sequence: int, input: RequestInput, arg: Any = None) -> Any:
        steps.append((input, session.state(sequence)))
        return step(session, sequence, input, arg)

    pair.router.cache.step = watching  # type: ignore[method-assign]  # to look on
    return steps


# -- calls that are refused for their keys, and the others of their client ----------------
# A window full of asks for whose keys there was no room kept back every other call of
# their client, the forget that would have made room among them; and one that no worker
# could judge yet ("keys-early") did so alone.

WINDOW = 16


def crowd(pair: Pair, count: int) -> None:
    """Asks for keys, all made before anything is heard."""
    for number in range(count):
        word = b"%d" % number
        key = CallKey(KeyAct.ASK, KeyName(b"default", word), input_digest(b"body", None))
        pair.give_client(CallSubmitted(pair.new_call(), b"body", pair.now_s, key=key))
    pair.settle()


def full_window() -> Pair:
    """A client with more asks than its window takes, at a server with room for one key."""
    pair = Pair(workers=2, server={"window": WINDOW})
    limit_keys(pair, generations=1, namespace_share=1.0)
    crowd(pair, 3 * WINDOW)
    assert len(pair.runs) == 1
    return pair


@pytest.mark.parametrize("full", [full_of_keys, full_window])
def test_asks_without_room_for_their_keys_held_up_calls_without_keys(full: Callable[[], Pair]):
    pair = full()
    pair.submit(b"no key")
    assert [bytes(run.body) for _, run in pair.runs] == [b"body", b"no key"]


@pytest.mark.parametrize("full", [full_of_keys, full_window])
def test_asks_without_room_for_their_keys_held_up_the_forget_that_makes_room(
    full: Callable[[], Pair],
):
    pair = full()
    submit(pair, b"0", KeyAct.FORGET)
    pair.end(status=Status.CANCELLED)
    pair.advance(5.0)
    assert len(pair.runs) == 2
    assert (full is full_of_keys) == (not pair.client.calls.held)


def test_asks_past_their_part_of_the_window_are_sent_when_others_have_left_it():
    pair = full_window()
    limit_keys(pair)
    pair.advance(30.0)
    while len(pair.answers) < 3 * WINDOW:
        pair.end(pair.runs[len(pair.answers)])
        pair.receive(pair.answers[-1].call)
        pair.advance(1.0)
    assert len(pair.runs) == 3 * WINDOW


def test_a_window_of_one_takes_an_ask_for_a_key():
    pair = Pair(server={"window": 1})
    submit(pair, b"key")
    assert len(pair.runs) == 1


def test_an_ask_that_came_too_early_held_up_calls_without_keys():
    pair = Pair(workers=2)
    submit(pair, b"key")
    session, sequence = pair.session.id, 0
    refused = messages.Refused(session, sequence, "keys-early", "no worker has said it", 60.0)
    pair.give_client(ServerMessage((messages.encode(refused),), pair.now_s))
    pair.submit(b"no key")
    assert [bytes(run.body) for _, run in pair.runs] == [b"body", b"no key"]


def held_calls(count: int, *, may_wait: int = 0, no_room: int = 0) -> Calls:
    """Calls that were refused for their keys, the first ones as such that may wait, the last
    ones for want of room, a second later."""
    calls, session = Calls(ClientLimits()), ClientSession(bytes(16), bytes(16), 9999, 9)
    for number in range(count):
        call = calls.new(CallSubmitted(number, b"body", 0.0))
        call.may_wait = number < may_wait
        calls.step(call, CallInput.SEND, 0.0, session)
        if number >= count - no_room:
            calls.step(call, CallInput.HOLD, 0.0, 1.0)
        else:
            at_s = 1.0 if may_wait and number >= may_wait else 0.0
            calls.step(call, CallInput.KEY_HELD, 0.0, (at_s, "keys-full"))
    return calls


def test_a_call_for_which_there_was_no_room_once_waited_behind_all_that_wait_for_keys():
    assert held_calls(500, no_room=1).due(1.0)[0].number == 499


def test_every_call_refused_for_its_key_has_its_turn_within_a_round():
    calls, tried = held_calls(300), set()
    for _ in range(256):
        for call in calls.due(1.0):
            tried.add(call.number)
            calls.step(call, CallInput.DUE, 1.0)
            calls.step(call, CallInput.KEY_HELD, 1.0, (1.0, "keys-full"))
    assert len(tried) == 300


def test_calls_that_may_wait_took_the_room_that_others_had_been_refused():
    """Runs whose clients were gone, dozens, were tried again in turn with those of others."""
    calls = held_calls(60, may_wait=59)
    assert calls.due(0.5) == []  # it is not due yet, and its room is not given to others
    [last] = calls.due(1.0)
    assert last.number == 59
    calls.step(last, CallInput.DUE, 1.0)
    assert {call.number for call in calls.due(1.0)} <= set(range(59))
    assert calls.due(1.0)
