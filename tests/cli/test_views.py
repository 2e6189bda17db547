"""What people see in a terminal: tables, the live view of an evaluation, ``top``."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import pytest

pytest.importorskip("rich")

from rich.console import Console
from trio.testing import MockClock

from tests.core.helpers import Pair
from trio_envserve.cli.evaluate import Seen, progress_tables
from trio_envserve.cli.render import rich_tables, tables_text
from trio_envserve.cli.serve import left
from trio_envserve.cli.status import HISTORY, Watch, slow_table, status_tables, top_tables
from trio_envserve.core.closing import ClosingStage
from trio_envserve.core.health import ServerStatus
from trio_envserve.core.status import CacheStats, ClosingRecord, ServerStats
from trio_envserve.core.terms import Status
from trio_envserve.evals.run import Evaluation, EvaluationPlan
from trio_envserve.evals.tally import ResultsTally
from trio_envserve.pages.tables import Table


def test_plain_tables_are_aligned():
    text = tables_text([Table("t", ("name", "n"), [("a", "1"), ("long", "100")])])
    assert text == "t\n  name    n\n  a       1\n  long  100"


def test_a_table_acts_on_no_terminal():
    text = tables_text([Table("t\x1b[2J", (), [("a\rb", "\x9b31m"), ("two\nlines", "\u202e")])])
    assert text.split() == ["t\\x1b[2J", "a\\x0db", "\\x9b31m", "two\\nlines", "\\u202e"]


def test_every_declared_number_that_is_not_0_is_in_the_status():
    record = stats(Pair())
    for cls, into in ((ServerStats, record), (CacheStats, record["cache"])):
        for field in dataclasses.fields(cls):
            if (stat := field.metadata.get("stat")) is not None and stat.kind != "histogram":
                into[field.name] = 7
    rows = [row[0] for table in status_tables(record)[:2] for row in table.rows]
    for name in ("oldest wait", "malformed", "journal keys", "kept", "coalesced", "reruns"):
        assert name in rows
    assert len(rows) == len({*rows}) > 35


def test_permits_are_shown_where_any_are_claimed():
    record = stats(Pair())
    assert "permits" not in [table.title for table in status_tables(record)]
    record["permits"] = [{"name": "limit:sandboxes", "held": 3, "limit": 4, "waiting": 17}]
    (table,) = [table for table in status_tables(record) if table.title == "permits"]
    assert tables_text([table]).split() == [
        "permits", "name", "held", "limit", "waiting", "limit:sandboxes", "3", "4", "17",
    ]  # fmt: skip


def test_what_stops_and_where_a_loop_is_blocked_are_shown():
    row: dict[str, Any] = {
        "key": None, "namespace": None, "request": "ab#1", "state": "stopping", "executions": None,
        "worker": "w0-1", "age_s": 7.0, "note": {},
        "where": '  x = 1\n  File "slow.py", line 7, in slow\n    time.sleep(9)\n',
    }  # fmt: skip
    text = tables_text([slow_table({"running": [row], "total": 1, "typical_s": None})])
    assert "ab#1" in text
    assert 'stopping        File "slow.py", line 7, in slow' in text


# -- the live view of an evaluation ---------------------------------------------------


def text_of(seen: Seen) -> str:
    evaluation = Evaluation(EvaluationPlan([0, 1]), ResultsTally())
    evaluation.progress.began_s -= 10.0
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(rich_tables(progress_tables(evaluation, seen, "title")))
    return console.export_text()


async def test_model_calls_and_tokens_are_those_since_the_evaluation_began(mock_clock: MockClock):
    seen = Seen({"calls": 5, "retries": 1, "prompt_tokens": 100})
    assert "model calls" not in text_of(seen)
    usage = {"calls": 1205, "failed": 2, "retries": 4, "prompt_tokens": 5100}
    usage["completion_tokens"] = 3000
    seen.take(ServerStats(status=ServerStatus.READY, model_usage=usage))
    shown = text_of(seen)
    assert "1,200 (2 failed, 3 sent again)" in shown
    assert "5,000 read, 3,000 written (300/s)" in shown


async def test_a_server_that_was_started_anew_has_not_fewer_than_no_calls():
    seen = Seen({"calls": 5, "prompt_tokens": 100})
    usage = {"calls": 3, "prompt_tokens": 20}
    seen.take(ServerStats(status=ServerStatus.READY, model_usage=usage))
    assert set(seen.usage.values()) == {0}
    assert "model calls" not in text_of(seen)


# -- top ------------------------------------------------------------------------------


def stats(pair: Pair) -> dict[str, Any]:
    record = ServerStats.of(pair.router.stats()).to_record()
    slow = {"running": [], "total": 0, "typical_s": None}
    return {**record, "address": "tcp://h:1", "slow": slow}


def shown(watch: Watch) -> str:
    return tables_text(top_tables(watch))


def test_rates_are_of_the_time_between_two_looks():
    pair, watch = Pair(), Watch()
    watch.saw(stats(pair), 10.0)
    assert watch.last["rates"] == {"completed": None, "failed": None}
    for status in (Status.RESULT, Status.ERROR):
        pair.submit()
        pair.end(payload=b"", status=status)
    watch.saw(stats(pair), 12.0)
    assert watch.last["rates"] == {"completed": 1.0, "failed": 0.5}
    assert "1.0/s" in shown(watch)
    for number in range(2 * HISTORY):
        watch.saw(stats(pair), 13.0 + number)
    assert len(watch.rates) == HISTORY


def test_a_pool_that_may_change_shows_how_far_and_why_it_has():
    record = stats(Pair(workers=4))
    watch = Watch()
    watch.saw(record, 10.0)
    assert "4 of 4\n" in shown(watch).replace(" \n", "\n")
    resized = "2 -> 4 workers: a request has waited for 5.0 s"
    watch.saw({**record, "workers_least": 2, "workers_most": 64, "resized": resized}, 11.0)
    assert "4 of 4 (of 2..64)" in shown(watch)
    assert resized in shown(watch)


def test_another_server_at_the_address_begins_anew():
    watch = Watch()
    watch.saw(stats(Pair()), 1.0)
    watch.saw(stats(Pair()), 2.0)
    watch.saw({**stats(Pair()), "epoch": "another"}, 3.0)
    assert watch.last["rates"] == {"completed": None, "failed": None}


def test_the_end_of_a_worker_a_pause_and_silence_are_shown():
    pair, watch = Pair(server={"pause_after_errors": 1}), Watch()
    watch.silent = "no answer yet"
    assert "no answer yet" in shown(watch)
    pair.submit()
    pair.die(how="killed by a test")
    pair.advance(1.0)
    watch.saw(stats(pair), 1.0)
    text = shown(watch)
    assert "killed by a test" in text
    assert "paused" in text
    assert "paused" in tables_text(status_tables(stats(pair)))
    watch.silent = "it is gone"
    assert "silent: it is gone" in shown(watch)


def test_journal_that_cannot_save_is_shown_with_the_reason():
    """Only ``--json`` had it: a server whose disk was full looked well."""
    record, watch = {**stats(Pair()), "journal": "database or disk is full"}, Watch()
    watch.saw(record, 1.0)
    for text in (tables_text(status_tables(record)), shown(watch)):
        assert "database or disk is full" in text


def test_server_that_stops_says_what_the_drain_waits_for():
    """Outcomes that waited for the disk were no part of it: 0 of everything were waited for."""
    closing = ClosingRecord(
        stage=ClosingStage.DRAINING, running=1, outcomes=242, workers=1, left_s=3.2, resources=2
    )
    found = stats(Pair()) | {"closing": dataclasses.asdict(closing)}
    assert "1 executions, 242 outcomes, 1 workers, 2 resources" in tables_text(status_tables(found))
    told = left(
        ServerStats(status=ServerStatus.STOPPING, journal="the disk is full", closing=closing)
    )
    assert told == (
        "1 executions are running, 242 outcomes are not fetched or not saved yet, 2 resources are "
        "not destroyed yet; the journal cannot save: the disk is full; 3 s more at most"
    )


def test_what_a_terminal_would_act_on_is_shown_as_text():
    pair, watch = Pair(), Watch()
    record = stats(pair)
    row = {
        "key": "a\x1b[2J", "namespace": "default", "request": "ab#1", "state": "running",
        "executions": 1, "worker": "w0-1", "age_s": 7.0,
        "note": {"text": "[red]\x1b[2J"}, "where": "",
    }  # fmt: skip
    record["slow"] = {"running": [row], "total": 1, "typical_s": 1.0}
    watch.saw(record, 1.0)
    out = io.StringIO()
    Console(file=out, width=160).print(rich_tables(top_tables(watch)))
    assert "\x1b[2J" not in out.getvalue()
    assert "[red]" in out.getvalue()
