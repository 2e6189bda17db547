"""A disk that is stuck, and what goes on being asked of keys meanwhile (G8)."""

from __future__ import annotations

import pytest

from trio_envserve.core import messages
from trio_envserve.core.key_answers import PAGES, RECORDS_OF_EACH
from trio_envserve.core.key_records import KeyAct, KeyName
from trio_envserve.core.limits import KeyLimits
from trio_envserve.core.terms import Status

from .helpers import STRANGER
from .keyed import NAME
from .test_journal import Journaled, fail
from .test_keyed_at_rest import AtDisk

MOST = 10
"""Generations that there may be."""

LIMITS = KeyLimits(
    generations=MOST, retained_bytes=10_000, namespace_share=1.0, retention_s=64.0, orphan_s=20.0
)


class Stuck(Journaled):
    """A server whose disk saves nothing until it is told to."""

    keys = LIMITS


class StuckAtRest(AtDisk):
    """The same, which reads outcomes from its journal, too."""

    keys = LIMITS


def owed(pair: Journaled) -> tuple[int, int, int]:
    """Records and bytes that are not safe, and who waits for that."""
    dispatcher = pair.router.dispatcher
    journal = dispatcher.journal
    waiting = dispatcher.keyed.answers.waiting
    return journal.appended - journal.safe, journal.waiting_bytes, waiting


def key(number: int) -> KeyName:
    return KeyName(b"default", b"%d" % number)


def flood(pair: Journaled, session: bytes, first: int = 0) -> None:
    """Ask and cancel under ever new keys."""
    for number in range(first, first + 200):
        pair.request(session, number, name=key(number))
        pair.tell(messages.KeyedCancel(session, number), route=STRANGER)


@pytest.mark.parametrize("kind", [Stuck, StuckAtRest])
def test_g8_who_asked_and_cancelled_under_ever_new_keys_filled_memory_while_a_disk_was_stuck(
    kind: type[Journaled],
):
    pair = kind(ready=False)
    session = pair.stranger()
    flood(pair, session)
    records, _, waiting = owed(pair)
    assert records <= RECORDS_OF_EACH * MOST + 1
    assert waiting <= RECORDS_OF_EACH * MOST
    pair.request(session, 200, name=key(200))
    refused = pair.heard()
    assert (refused.code, refused.delay_s is None) == ("journal", False)
    assert "not on the disk yet" in refused.text
    pair.disk()
    assert owed(pair) == (0, 0, 0)
    pair.request(session, 200, name=key(200))
    assert pair.router.keys.open


def test_g8_the_inputs_of_what_was_cancelled_filled_memory_while_a_disk_was_stuck():
    pair = Stuck(ready=False)
    session = pair.stranger()
    for number in range(20):
        pair.request(session, number, bytes(4_000), name=key(number))
        pair.tell(messages.KeyedCancel(session, number), route=STRANGER)
    assert owed(pair)[1] == 12_000
    pair.disk(1)
    assert owed(pair)[1] == 8_000
    pair.request(session, 20, bytes(4_000), name=key(20))
    assert owed(pair)[1] == 12_000
    pair.disk()
    assert owed(pair)[1] == 0


@pytest.mark.parametrize("act", [KeyAct.CANCEL, KeyAct.FORGET, KeyAct.WITHDRAW])
def test_g8_commands_that_hit_nothing_filled_memory_while_a_disk_was_stuck(act: KeyAct):
    pair = Stuck(ready=False)
    session = pair.stranger()
    pair.request(session, 0)
    for number in range(1, 400):
        pair.request(session, number, b"", act=act, tag=99, name=key(number))
        pair.tell(messages.KeyedCancel(session, number), route=STRANGER)
    assert owed(pair)[2] <= 2 * RECORDS_OF_EACH * MOST + 2


def test_commands_end_work_where_requests_are_refused():
    pair = Stuck(ready=False)
    session = pair.stranger()
    pair.request(session, 0)
    flood(pair, session, 1)
    assert NAME in pair.router.keys.open
    pair.request(session, 300, b"", act=KeyAct.CANCEL, tag=0)
    assert NAME not in pair.router.keys.open
    pair.disk()
    assert pair.heard().status == Status.RESULT


def test_g8_pages_of_keys_filled_memory_while_a_disk_was_stuck():
    pair = Stuck(ready=False)
    pair.stranger()
    pair.call()
    for number in range(3 * PAGES):
        pair.tell(messages.AskKeys(1, b"default", 0), route=b"route %d" % number)
    assert owed(pair)[2] == PAGES
    pair.disk()
    assert owed(pair)[2] == 0
    pair.tell(messages.AskKeys(2, b"default", 0), route=STRANGER)
    assert isinstance(pair.heard(), messages.KnownKeys)


def test_what_was_let_in_goes_on_while_requests_are_refused():
    pair = Stuck()
    session = pair.stranger()
    number = pair.call(name=key(1000))
    pair.disk()
    flood(pair, session)
    pair.end(payload=b"outcome")
    pair.request(session, 300, b"", act=KeyAct.ATTACH, name=key(1000))
    assert pair.heard().code == "journal"  # this outcome is not safe, and would wait
    pair.disk()
    pair.receive(number)
    pair.request(session, 300, b"", act=KeyAct.ATTACH, name=key(1000))
    assert pair.heard().status == Status.RESULT


@pytest.mark.parametrize("kind", [Stuck, StuckAtRest])
def test_what_is_known_and_safe_is_told_while_requests_are_refused(kind: type[Journaled]):
    pair = kind()
    number = pair.call()
    pair.disk()
    pair.end(payload=b"out")
    pair.disk()
    pair.receive(number)
    pair.advance(1.0)
    pair.disk()
    session = pair.stranger()
    flood(pair, session)
    pair.request(session, 300, b"", act=KeyAct.ATTACH)
    pair.request(session, 301)
    if isinstance(pair, StuckAtRest):
        pair.read()
    told = [message for _, message in pair.mail if isinstance(message, messages.Outcome)]
    assert sorted((each.sequence, each.status) for each in told) == [
        (300, Status.RESULT), (301, Status.RESULT),
    ]  # fmt: skip
    pair.request(session, 302, b"", act=KeyAct.ATTACH, name=key(1000))
    assert pair.heard().code == "unknown-key"


def test_g9_a_journal_that_is_lost_owes_nothing_and_refuses_no_command_for_that():
    pair = Stuck(ready=False)
    session = pair.stranger()
    flood(pair, session)
    fail(pair, final=True)
    pair.request(session, 300, b"", act=KeyAct.CANCEL, tag=99)
    pair.advance(1.0)
    assert pair.heard().status == Status.ERROR  # it is told so, and that it is not durable


def test_g8_the_ends_of_retentions_filled_memory_while_a_disk_was_stuck():
    """Keys at rest may be millions; each leaves a record when its retention ends."""

    class Many(AtDisk):
        keys = KeyLimits(generations=2, namespace_share=1.0, retention_s=64.0)

    pair = Many()
    for number in range(12):
        pair.run_one(name=key(number))
        pair.advance(8.0)
    assert pair.resting.all.keys
    pair.disk()
    for _ in range(100):
        pair.advance(2.0)
    assert not pair.router.behind
    assert owed(pair)[0] < RECORDS_OF_EACH * 2
    assert pair.resting.all.keys
    for _ in range(20):
        pair.disk()
        pair.advance(2.0)
    assert not pair.resting.all.keys
