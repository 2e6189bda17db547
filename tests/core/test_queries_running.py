"""Pages of what runs: what is on them, and that none costs more than its share."""

from __future__ import annotations

from collections import deque
from typing import Any

import cbor2
import pytest

from trio_envserve.core import messages, notes, queries
from trio_envserve.core.errors import ProtocolError
from trio_envserve.core.queries import RunningPages
from trio_envserve.core.router_effects import ToClient
from trio_envserve.core.router_inputs import HeartbeatReceived, HolderFound
from trio_envserve.core.status import RunningPage
from trio_envserve.core.terms import NOTE_BYTES, Status

from .helpers import STRANGER, Pair
from .keyed import Keyed


def ask(pair: Pair, first: int = 0) -> dict[str, Any]:
    """The page that a stranger gets."""
    (effect,) = pair.question(messages.Query(7, "running", first))
    assert isinstance(effect, ToClient)
    assert effect.route == STRANGER
    header, body = effect.frames
    assert messages.decode(bytes(header), most_bytes=100) == messages.QueryAnswer(7)
    page: dict[str, Any] = cbor2.loads(bytes(body))
    return page


def pages(pair: Pair) -> list[int]:
    """The numbers of all that run, page by page."""
    first: int | None = 0
    found: list[int] = []
    while first is not None:
        page = ask(pair, first)
        assert page["next"] is None or page["next"] > first
        found += [row["number"] for row in page["running"]]
        first = page["next"]
    return found


def test_what_runs_is_described_as_it_is():
    pair = Pair.asked()
    pair.note(notes.encode({"turn": 3}))
    pair.beat()
    pair.advance(7.0)
    page = ask(pair)
    [row] = page["running"]
    request = str(pair.runs[0][1].request)
    assert row == {
        "number": 0, "request": request, "client": "test", "namespace": None, "key": None,
        "environment": pair.router.works.environment.name, "state": "running", "executions": 1,
        "worker": "w0-1", "age_s": pytest.approx(7.0, abs=0.01), "note": notes.encode({"turn": 3}),
        "where": "",
    }  # fmt: skip
    assert (page["next"], page["total"], page["typical_s"]) == (None, 1, None)
    [known] = RunningPage.of(page).running
    assert (known.note, known.key, known.request) == ({"turn": 3}, None, request)


def test_the_work_of_a_key_is_shown_by_its_key():
    pair = Keyed.asked()
    [row] = ask(pair)["running"]
    assert (row["client"], row["namespace"], row["key"]) == ("", b"default", b"key")
    [known] = RunningPage.of(ask(pair)).running
    assert (known.namespace, known.key) == ("default", "key")


def test_what_is_to_stop_is_shown_until_it_has_ended():
    pair = Pair()
    number = pair.submit()
    pair.cancel(number)
    [row] = ask(pair)["running"]
    assert (row["state"], row["executions"]) == ("stopping", None)
    pair.end(status=Status.CANCELLED)
    assert ask(pair)["running"] == []


def test_where_a_blocked_loop_stands_is_shown_as_long_as_it_is_blocked():
    pair = Pair.asked(heartbeats=True)
    where = "File 'a.py'\n" * 100 + "File 'late.py', line 7, in slow \ud800"
    pair.give(HeartbeatReceived(b"w0-1", pair.now_s, 9.0, 0, where))
    [row] = ask(pair)["running"]
    assert row["where"].endswith("File 'late.py', line 7, in slow ?")
    assert len(row["where"]) == queries.WHERE_CHARACTERS
    pair.give(HeartbeatReceived(b"w0-1", pair.now_s, 0.0, 0, ""))
    assert ask(pair)["running"][0]["where"] == ""


def test_where_a_held_interpreter_stands_is_shown_as_long_as_it_is_held():
    pair = Pair.asked(heartbeats=True)
    pair.give(HolderFound(b"w0-1", pair.now_s, "", "File 'held.py', line 7, in hang"))
    assert ask(pair)["running"][0]["where"] == "File 'held.py', line 7, in hang"
    pair.give(HeartbeatReceived(b"w0-1", pair.now_s, 0.0, 0, ""))
    assert ask(pair)["running"][0]["where"] == ""


def test_the_typical_duration_is_that_of_what_was_not_cancelled():
    pair = Pair()
    durations = pair.router.workforce.durations
    pair.submit()
    pair.end()
    before = list(durations)
    pair.submit()
    pair.end(status=Status.CANCELLED)
    assert list(durations) == before
    durations.extend([5.0, 1.0, 3.0])
    assert ask(pair)["typical_s"] in (3.0, 5.0)
    assert queries.median(deque([5.0, 1.0, 3.0])) == 3.0


def test_g10_a_page_has_no_more_than_it_may_and_the_next_goes_on():
    pair = Pair(server={"worker_capacity": 250})
    pair.submit_many(220)
    assert len(ask(pair)["running"]) == queries.PAGE_ROWS
    for run in pair.runs:
        pair.note(bytes(NOTE_BYTES), run)
    for _ in range(5):
        pair.beat()
    page = ask(pair)
    assert 1 < len(page["running"]) < queries.PAGE_ROWS
    assert len(cbor2.dumps(page)) < 32 * 1024
    assert pages(pair) == list(range(220))


def test_g10_all_questions_of_a_turn_get_so_many_pages():
    pair = Pair.asked()
    asked = RunningPages(pair.router.workforce)
    for _ in range(queries.TURN_PAGES):
        assert asked.page(0, pair.now_s, 1.0)["running"]
    empty = asked.page(0, pair.now_s, 1.0)
    assert (empty["running"], empty["next"]) == ([], 0)
    assert asked.page(0, pair.now_s, 2.0)["running"]


@pytest.mark.parametrize(
    "record",
    [
        [], {"running": [7]}, {"running": None}, {"running": [{}]},
        {"running": [{"number": 1, "note": "text"}]}, {"running": [{"number": 1, "key": 7}]},
        {"running": [], "next": "later"},
    ],
)  # fmt: skip
def test_a_page_that_is_none_is_refused(record: Any):
    with pytest.raises(ProtocolError):
        RunningPage.of(record)
