"""Outcomes that are in the journal only: a router whose disk reads when it is told to."""

from __future__ import annotations

from typing import Any

import pytest

from trio_envserve.core import error_records, keyed_at_rest, messages
from trio_envserve.core.journal import Closed, Completed, Opened, Record, Started
from trio_envserve.core.key_records import GenerationState, KeyAct, KeyName
from trio_envserve.core.key_table import KeyInput
from trio_envserve.core.keyed_at_rest import READS_AT_ONCE, RestingRequests
from trio_envserve.core.limits import KeyLimits
from trio_envserve.core.rested import left_at_rest
from trio_envserve.core.restored import remains_of
from trio_envserve.core.router_inputs import AtRest, Loaded, Restored
from trio_envserve.core.terms import Status, Verdict

from .helpers import STRANGER, identifier
from .keyed import AtDisk, told


def left(records: list[Record], **how: Any) -> AtDisk:
    """Another server with what a journal has."""
    other = AtDisk(ready=False, **how)
    other.auto_hello = True
    remains = remains_of(records)
    done = [each for each in remains.generations.values() if each.frames is not None]
    open_ = [
        each for each in records
        if getattr(each, "number", None) not in {one.opened.number for one in done}
    ]  # fmt: skip
    other.records += records
    journal = other.router.dispatcher.journal
    journal.appended = journal.safe = len(records)
    other.give(Restored((Closed(remains.next_number - 1), *open_), other.now_s))
    other.give(AtRest([packed for one in done if (packed := left_at_rest(one))], other.now_s))
    other.open_pool()
    return other


def test_what_nobody_waits_for_rests_and_takes_no_room():
    pair = AtDisk.rested()
    assert pair.resting.all.keys == 1
    assert not pair.router.keys.generations
    assert not pair.router.keys.open
    assert vars_of(pair.router.keys.usage) == (0, 0, 0)


def vars_of(usage: Any) -> tuple[int, int, int]:
    return usage.generations, usage.own_bytes, usage.outcome_bytes


def test_g11_nothing_rests_before_its_outcome_is_safe():
    pair, session = AtDisk.with_stranger()
    pair.request(session)
    pair.disk()
    pair.end()
    pair.tell(messages.Finish(session, [0, 1]), route=STRANGER)  # it wants none
    pair.advance(1.0)
    assert pair.router.keys.retained
    pair.disk()
    pair.advance(1.0)
    assert pair.resting.all.keys == 1


@pytest.mark.parametrize("act", [KeyAct.ASK, KeyAct.ATTACH])
def test_g3_who_asks_again_gets_the_same_bytes_when_they_are_read(act):
    pair = AtDisk()
    pair.run_one(payload=b"the outcome")
    session = pair.stranger()
    pair.request(session, act=act)
    assert pair.loads == [0]
    pair.advance(2.0)
    assert pair.loads == [0]  # it is asked for once
    assert not isinstance(pair.heard(), messages.Outcome)
    pair.read()
    assert isinstance(pair.heard(), messages.Outcome)
    assert told(pair)[1] == b"the outcome"
    assert len(pair.runs) == 1


def test_all_who_wait_for_one_reading_are_answered_by_it():
    pair = AtDisk.rested()
    session = pair.stranger()
    for sequence in range(3):
        pair.request(session, sequence, act=KeyAct.ATTACH)
    assert pair.loads == [0]
    pair.read()
    told = pair.mailed(messages.Outcome)
    assert [each.sequence for each in told] == [0, 1, 2]


def test_g6_another_input_is_a_conflict_before_anything_is_read():
    pair = AtDisk.rested()
    pair.request(pair.stranger(), body=b"another")
    assert pair.heard().code == "key-conflict"
    assert not pair.loads
    assert pair.resting.all.keys == 1


def test_g9_an_outcome_that_cannot_be_read_is_told_so_and_never_runs_again():
    pair = AtDisk.rested()
    session = pair.stranger()
    pair.request(session)
    pair.read("bodies/3 is missing")
    outcome = pair.heard()
    assert isinstance(outcome, messages.Outcome)
    error = error_records.decode(told(pair)[1])
    assert (outcome.status, error.code) == (Status.ERROR, "not-durable")
    assert error.verdict is Verdict.MAY_HAVE_RUN
    assert "bodies/3 is missing" in error.message
    assert "generation 0 cannot be read" in pair.reports[-1].text
    pair.advance(1.0)
    assert pair.resting.all.keys == 1
    pair.request(session, 1)  # it may go better now
    pair.read()
    assert pair.heard().status == Status.RESULT
    assert len(pair.runs) == 1


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ((b"\xff", b"out"), "header is not CBOR"),
        ((messages.encode(messages.Stats(1)), b"out"), "Stats in the place of an outcome"),
        ((messages.encode(messages.AskStats(1)),), "AskStats in the place of an outcome"),
    ],
)
def test_what_was_read_and_is_no_outcome_cannot_be_read(frames, why):
    pair = AtDisk.rested()
    session = pair.stranger()
    pair.request(session)
    (number,) = pair.loads
    pair.router_takes(Loaded(number, frames, "", pair.now_s))
    error = error_records.decode(told(pair)[1])
    assert (error.code, error.verdict) == ("not-durable", Verdict.MAY_HAVE_RUN)
    assert why in error.message


def test_g4_what_rests_has_its_outcome_and_a_cancel_by_name_drops_nothing():
    pair = AtDisk.rested()
    session = pair.stranger()
    for sequence in range(2):  # the second one is told what the first was
        pair.request(session, sequence, act=KeyAct.CANCEL, tag=b"id")
        pair.disk()
        assert pair.answered(session, sequence)["finished"] is True
        assert pair.resting.all.keys == 1
    pair.request(session, 2, act=KeyAct.ATTACH)
    pair.request(session, 3, act=KeyAct.CANCEL, tag=b"while it is read")
    pair.read()
    pair.disk()
    assert pair.answered(session, 3)["finished"] is True
    outcomes = pair.mailed(messages.Outcome)
    assert {each.sequence: each.status for each in outcomes}[2] == Status.RESULT


def test_g7_what_rests_is_forgotten_by_name():
    pair = AtDisk.rested()
    session = pair.stranger()
    pair.request(session, act=KeyAct.FORGET, tag=pair.ids())
    assert pair.records[-2] == Closed(0)
    assert not isinstance(pair.heard(), messages.Outcome)  # nothing is said before it is safe
    pair.disk()
    assert isinstance(pair.heard(), messages.Outcome)
    assert not pair.resting.all.keys
    pair.request(session, 1, act=KeyAct.ATTACH)
    assert pair.heard().code == "unknown-key"


def test_a_caller_is_lost_while_its_outcome_is_read_and_stays_away():
    pair = AtDisk.rested()
    steps: set[KeyInput] = set()
    step = pair.router.keys.step

    def noted(generation: Any, input: KeyInput, arg: Any, now_s: float) -> Any:
        if generation is not None and generation.state is GenerationState.READING:
            steps.add(input)
        return step(generation, input, arg, now_s)

    pair.router.keys.step = noted  # type: ignore[method-assign]  # to look on
    pair.request(pair.stranger())
    assert pair.loads == [0]
    pair.advance(pair.server_limits.lease_s + pair.keys.orphan_s + 10.0)
    assert {KeyInput.LOSE, KeyInput.ORPHANED} <= steps
    pair.read()
    pair.advance(1.0)
    assert pair.resting.all.keys == 1
    assert vars_of(pair.router.keys.usage) == (0, 0, 0)


def test_a_command_that_names_another_generation_leaves_one_that_is_read():
    pair = AtDisk.rested()
    session = pair.stranger()
    pair.request(session, act=KeyAct.ATTACH)
    pair.tell(messages.Finish(session, [0, 1]), route=STRANGER)
    pair.request(session, 1, act=KeyAct.FORGET, tag=7)
    assert pair.router.keys.generations
    pair.read()
    pair.advance(1.0)
    assert pair.resting.all.keys == 1


def test_a_key_that_cannot_be_packed_stays_awake(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(keyed_at_rest, "pack_generation", lambda generation: None)
    pair = AtDisk.rested()
    assert not pair.resting.all.keys
    assert pair.router.keys.generations


def test_g7_who_waits_for_what_is_forgotten_hears_that():
    pair = AtDisk.rested()
    session = pair.stranger()
    pair.request(session)
    pair.request(session, 1, act=KeyAct.FORGET, tag=pair.ids())
    pair.disk()
    told = {each.sequence: each for _, each in pair.mail if isinstance(each, messages.Outcome)}
    assert told[0].status == Status.CANCELLED
    assert told[1].status == Status.RESULT
    pair.read()  # it is too late
    assert not pair.router.keys.generations
    assert vars_of(pair.router.keys.usage) == (0, 0, 0)


def test_what_rests_is_on_the_page_of_keys_in_its_place():
    pair, session, names = many_at_rest(3)
    pair.call(name=KeyName(b"default", b"3"))
    pair.request(session, name=names[1])  # it is awake, and was opened in between
    pages = pair.router._key_pages
    page = pages.page(b"", 0, pair.router.awake_s, 1.0)
    assert [row["key"] for row in page["keys"]] == [b"0", b"1", b"2", b"3"]
    assert [row["state"] for row in page["keys"]] == [
        "completed", "reading", "completed", "running",
    ]  # fmt: skip
    assert [row["executions"] for row in page["keys"]] == [1, 1, 1, 1]
    assert (page["generations"], page["next"]) == (4, None)
    later = pages.page(b"default", 2, pair.router.awake_s, 2.0)
    assert [row["generation"] for row in later["keys"]] == [2, 3]
    assert later["keys"][0]["left_s"] > 50


def many_at_rest(
    count: int, payload: bytes = b"out", **limits: Any
) -> tuple[AtDisk, bytes, list[KeyName]]:
    """As many keys at rest, a stranger's session, and the names of the keys."""
    pair = AtDisk(keys=KeyLimits(retention_s=64.0, **limits))
    names = [KeyName(b"default", b"%d" % number) for number in range(count)]
    for name in names:
        pair.run_one(name=name, payload=payload)
    return pair, pair.stranger(), names


def attach(pair: AtDisk, session: bytes, names: list[KeyName], first: int = 0) -> None:
    for sequence, name in enumerate(names, first):
        pair.request(session, sequence, act=KeyAct.ATTACH, name=name)


def test_g8_no_more_is_read_at_once_than_there_is_room_for():
    pair, session, names = many_at_rest(6, bytes(900), retained_bytes=4000, namespace_share=0.5)
    attach(pair, session, names)
    assert len(pair.loads) == 3  # up to the share, and one that goes past it
    assert pair.heard().code == "keys-full"
    pair.read()
    pair.tell(messages.Finish(session, [0, 3]), route=STRANGER)
    pair.advance(1.0)
    attach(pair, session, names[3:], 3)
    assert pair.loads == [3, 4, 5]


def test_g8_what_is_wanted_waits_for_room_and_is_read_then():
    pair, session, names = many_at_rest(2, bytes(100), retained_bytes=4000, namespace_share=1.0)
    room = pair.router.keys.room
    attach(pair, session, names[:1])
    taken = room.bring(b"default", 4000)  # others have taken it meanwhile
    keyed = pair.router.dispatcher.keyed
    assert isinstance(keyed, RestingRequests)
    keyed._wanted[pair.loads.pop()] = None
    keyed._reading.clear()
    pair.advance(1.0)
    assert not pair.loads
    room.let_go(taken)
    pair.advance(1.0)
    assert pair.loads == [0]


def test_g8_no_more_wake_than_there_may_be():
    pair, session, names = many_at_rest(3, generations=2, namespace_share=1.0)
    attach(pair, session, names)
    assert pair.heard().code == "keys-full"
    assert pair.heard().delay_s is not None
    assert pair.loads == [0, 1]


@pytest.mark.parametrize("act", [KeyAct.ASK, KeyAct.ATTACH])
def test_g8_new_keys_wait_when_the_journal_is_full_and_known_ones_are_answered(act):
    pair, session, names = many_at_rest(2, journal_keys=2, namespace_share=1.0)
    pair.request(session, 0, name=KeyName(b"default", b"new"))
    assert pair.heard().code == "keys-full"
    pair.request(session, 1, act=act, name=names[0])
    pair.read()
    assert pair.heard().status == Status.RESULT


def test_g11_what_a_journal_has_left_rests_and_is_answered_byte_for_byte():
    first = AtDisk()
    first.run_one(payload=b"the outcome")
    first.call(name=KeyName(b"default", b"open"))
    other = left(first.records[:5])
    assert other.resting.all.keys == 1
    assert [*other.router.keys.generations] == [1]
    other.request(other.stranger(), act=KeyAct.ATTACH)
    assert other.loads == [0]
    other.read()
    assert told(other)[1] == b"the outcome"


def test_what_a_journal_has_left_is_retained_after_the_orphan_deadline():
    first = AtDisk.rested()
    other = left(first.records)
    other.advance(64.0 + 19.0)
    assert other.resting.all.keys == 1
    other.advance(3.0)
    assert not other.resting.all.keys
    assert other.records[-1] == Closed(0)


def test_no_more_are_read_at_once_than_a_disk_needs():
    (done,) = [each for each in AtDisk.rested().records if type(each) is Completed]
    names = [KeyName(b"n", b"%d" % number) for number in range(READS_AT_ONCE + 5)]
    records: list[Record] = []
    for number, name in enumerate(names):
        records.append(Opened(number, *name, bytes(32), None, 1, 0, identifier(1), b""))
        records.append(Started(number))
        records.append(Completed(number, (done.frames[0], b"x")))
    other = left(records)
    session = other.stranger()
    attach(other, session, names)
    assert len(other.loads) == READS_AT_ONCE
    # Of those that wait, one caller leaves, and one key is forgotten.
    other.tell(messages.Finish(session, [READS_AT_ONCE, READS_AT_ONCE + 1]), route=STRANGER)
    forgotten, tag = names[READS_AT_ONCE + 1], other.ids()
    other.request(session, 2 * READS_AT_ONCE, act=KeyAct.FORGET, name=forgotten, tag=tag)
    other.read()
    assert len(other.loads) == 3


def test_how_many_keys_rest_was_nowhere_to_be_seen():
    pair = AtDisk()
    assert pair.router.stats()["journal_keys"] == 0
    pair.run_one(payload=b"outcome")
    pair.advance(1.0)
    (one,) = pair.resting
    stats = pair.router.stats()
    assert (stats["journal_keys"], stats["journal_bytes"]) == (1, one.disk_bytes)
    assert stats["bounds"]["journal_keys"] == pair.keys.journal_keys
    assert stats["bounds"]["journal_bytes"] == pair.keys.journal_bytes
