"""The typed status record has all that the record on the wire has."""

import dataclasses

from tests.core.helpers import Pair
from trio_envserve.core.closing import ClosingStage
from trio_envserve.core.health import ServerStatus
from trio_envserve.core.status import ClosingRecord, StatusRecord


def plain(record):
    """The record on the wire that a typed one was made of."""
    found = dataclasses.asdict(record)
    found["status"] = record.status.value
    if record.closing is None:
        del found["closing"]
    else:
        found["closing"]["stage"] = record.closing.stage.value
    return found


def test_a_server_that_serves_has_no_record_of_closing():
    pair = Pair()
    record = StatusRecord.of(pair.router.status())
    assert record.status is ServerStatus.READY
    assert record.closing is None
    assert plain(record) == pair.router.status()


def test_a_server_that_stops_says_how_far_it_is():
    pair = Pair()
    pair.submit()
    pair.router.close(pair.now_s)
    pair.advance(1.0)
    record = StatusRecord.of(pair.router.status())
    assert record.status is ServerStatus.STOPPING
    assert isinstance(record.closing, ClosingRecord)
    assert (record.closing.stage, record.closing.running) == (ClosingStage.DRAINING, 1)
    assert plain(record) == pair.router.status()
