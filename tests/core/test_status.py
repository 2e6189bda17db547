"""The typed records of a server have all that the records on the wire have."""

import json

import pytest

from trio_envserve.core.closing import ClosingStage
from trio_envserve.core.errors import ProtocolError
from trio_envserve.core.health import ServerStatus
from trio_envserve.core.router_inputs import CloseAsked
from trio_envserve.core.status import (
    CacheStats,
    ClosingRecord,
    KeyPage,
    ServerStats,
    StatusRecord,
)
from trio_envserve.core.terms import Status
from trio_envserve.core.worker import BeatDue
from trio_envserve.core.worker_history import DEATHS, Death

from .helpers import Pair, error_body


def busy_pair():
    pair = Pair(workers=2)
    pair.submit_many(3)
    pair.end(pair.runs[0])
    pair.work(b"w0-1", pair.workers[b"w0-1"].take(BeatDue({"loop_lag_p99_s": 0.25, "running": 1})))
    pair.settle()
    return pair


def test_a_record_has_what_a_server_says_of_itself():
    pair = Pair.asked()

    def read() -> StatusRecord:
        record = StatusRecord.of(pair.router.status())
        assert record.to_record() == pair.router.status()
        return record

    assert (read().status, read().closing) == (ServerStatus.READY, None)
    pair.router.journal.fail("the disk is full", final=False)
    assert (read().durable, read().journal) == (False, "the disk is full")
    pair.close()
    pair.advance(1.0)
    assert read().status is ServerStatus.STOPPING
    closing = read().closing
    assert isinstance(closing, ClosingRecord)
    assert (closing.stage, closing.running) == (ClosingStage.DRAINING, 1)


@pytest.mark.parametrize("closing", [False, True])
def test_statistics_are_printed_as_they_travel(closing: bool):
    pair = busy_pair()
    if closing:
        pair.give(CloseAsked(pair.now_s))
        pair.advance(1.0)
    record = {**pair.router.stats(), "router_lag_p99_s": 0.5, "address": "memory:x"}
    stats = ServerStats.of(record)
    assert json.loads(json.dumps(stats.to_record())) == record
    assert (stats.running, stats.cache.dispatched, len(stats.per_worker)) == (2, 3, 2)
    assert not stats.cache.more, "a counter has no field"
    assert "more" not in record["cache"]
    assert stats.per_worker[0].more == {"loop_lag_p99_s": 0.25, "running": 1}
    assert stats.more == {"router_lag_p99_s": 0.5, "address": "memory:x"}


def test_what_a_later_version_adds_is_kept():
    record = busy_pair().router.stats()
    record["cache"]["hits"] = 7
    record["more"] = "a name of ours"
    stats = ServerStats.of(record)
    assert stats.cache.more == {"hits": 7}
    assert stats.more["more"] == "a name of ours"
    assert stats.to_record() == record


def test_what_another_server_leaves_out_is_nought():
    stats = ServerStats.of({"status": "ready"})
    assert (stats.kept, stats.cache, stats.per_worker) == (0, CacheStats(), ())


def test_no_map_is_no_statistics():
    with pytest.raises(ProtocolError, match="of type list"):
        ServerStats.of([])


@pytest.mark.parametrize(
    "wrong",
    [
        {"kept": "many"}, {"kept": True}, {"kept": None}, {"status": "so so"}, {"status": []},
        {"status": None},
        {"cache": 3}, {"per_worker": {}}, {"per_worker": [3]}, {"per_worker": [{1: 2}]},
        {"closing": {"stage": "late"}}, {"closing": {"stage": "draining"}}, {"closing": 1},
    ],
)  # fmt: skip
def test_what_are_no_statistics_is_said(wrong):
    refused = ""
    try:
        ServerStats.of({**busy_pair().router.stats(), **wrong})
    except ProtocolError as error:
        refused = str(error)
    assert refused


@pytest.mark.parametrize("cls", [StatusRecord, ServerStats])
@pytest.mark.parametrize("name", ["status", "reason", "rerun"])
def test_a_number_that_has_no_digits_ended_who_asked(cls: type[StatusRecord], name: str):
    """Python writes no integer of more than 4,300 digits, also where it tells what is wrong."""
    with pytest.raises(ProtocolError, match=name):
        cls.of({"status": "ready", name: 10**5_000})


def test_how_workers_have_ended_and_what_failed_is_told():
    pair = Pair()
    for code in ("model-unavailable", "made-up"):
        pair.submit()
        pair.end(payload=error_body(code), status=Status.ERROR)
    pair.submit()
    pair.end()
    pair.submit()
    pair.die(how="killed by \n a test")
    pair.advance(3.0)
    stats = ServerStats.of(pair.router.stats())
    [death] = stats.deaths
    assert (death.worker, death.lost) == ("w0-1", 1)
    assert death.why.endswith("killed by ? a test")
    assert 2.0 < death.age_s < 5.0
    assert stats.failures == {"model-unavailable": 1, "other": 1, "worker-lost": 1}


def test_of_the_ends_of_workers_the_last_ones_are_told():
    pair = Pair()
    for number in range(DEATHS + 2):
        pair.router.workforce.history.deaths.append(Death(f"w{number}", "", float(number), 0))
    names = [each.worker for each in ServerStats.of(pair.router.stats()).deaths]
    assert names == [f"w{number}" for number in range(2, DEATHS + 2)]


def test_a_key_that_is_no_text_is_shown_as_an_escape():
    page = KeyPage.of(
        {
            "keys": [
                {"namespace": b"a", "key": b"\xff", "generation": 1, "state": "held", "left_s": 1}
            ],
            "next": None, "later": 1,
        }
    )  # fmt: skip
    assert [(known.key, known.left_s) for known in page.keys] == [("\\xff", 1)]


@pytest.mark.parametrize(
    "wrong",
    [
        [], {"keys": {}}, {"keys": [1]}, {"keys": [{}]}, {"next": "x"},
        {"keys": [{"generation": 1, "state": "held", "key": "text"}]},
        {"keys": [{"generation": True, "state": "held"}]},
    ],
)  # fmt: skip
def test_what_is_no_page_of_keys_is_said(wrong):
    with pytest.raises(ProtocolError):
        KeyPage.of(wrong)
