"""``top``: the view of the live page in a terminal."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from tests.core.helpers import Pair
from trio_envserve.cli.render import rich_tables, tables_text
from trio_envserve.cli.top import HISTORY, Watch, top_tables
from trio_envserve.core.status import ServerStats
from trio_envserve.core.terms import Status


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
    watch.silent = "it is gone"
    assert "silent: it is gone" in shown(watch)


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
