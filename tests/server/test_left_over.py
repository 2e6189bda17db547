"""The workers that are left when a server has closed, in words."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from trio_envserve.server.left_over import left_over

HERE, BUSY, AWAY, FAR, OTHER = b"here", b"busy", b"away", b"far", b"other"
HOSTS = {AWAY: "h1", FAR: "h0", OTHER: "h1"}

SESSION = SimpleNamespace(id=b"\xab" * 16, name="a trainer")
LIVE = {
    1: SimpleNamespace(session=SESSION, sequence=3),
    2: SimpleNamespace(session=SESSION, sequence=4),
}
ROUTER: Any = SimpleNamespace(
    pool=SimpleNamespace(
        lives={
            HERE: SimpleNamespace(name="w0-1", pid=11, host=""),
            BUSY: SimpleNamespace(name="w1-1", pid=12, host=""),
            **{worker: SimpleNamespace(host=host) for worker, host in HOSTS.items()},
        }
    ),
    workforce=SimpleNamespace(workers={BUSY: SimpleNamespace(live=LIVE)}),
)


def told(*workers: bytes) -> str:
    return left_over(workers, ROUTER, 2.5, lambda worker: f"it is {worker.decode()}\n")


def test_workers_of_this_machine_are_named_with_what_they_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert told() == ""
    text = told(HERE, BUSY)
    runs = [f"request abababab#{number} of a trainer" for number in (3, 4)]
    assert text == (
        "worker w0-1 (pid 11) was killed and has not ended in 2.5 s; it runs nothing that is "
        "known\nit is here\n"
        "worker w1-1 (pid 12) was killed and has not ended in 2.5 s; it runs "
        f"{', '.join(runs)}\nit is busy\n"
    )
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert text in record.getMessage()


def test_workers_of_hosts_are_counted_in_the_log_and_are_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert told(AWAY, FAR, OTHER) == ""
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("1 workers of host h0 are not known to have ended")
    assert second.startswith("2 workers of host h1 are not known to have ended")


def test_a_worker_that_ended_after_the_last_stage_broke_the_report_on_the_others() -> None:
    assert told(b"over", HERE) == told(HERE)
    assert told(b"over") == ""
