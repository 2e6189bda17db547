"""What the live view of an evaluation shows of its model calls."""

from __future__ import annotations

import io

import pytest

pytest.importorskip("rich")

from rich.console import Console

from trio_envserve.cli.live import Seen, view
from trio_envserve.core.health import ServerStatus
from trio_envserve.core.status import ServerStats
from trio_envserve.evals.run import Evaluation, Plan
from trio_envserve.evals.tally import Tally


def stats(**usage: float) -> ServerStats:
    return ServerStats(status=ServerStatus.READY, model_usage=usage)


def text_of(seen: Seen) -> str:
    evaluation = Evaluation(Plan([0, 1]), Tally())
    evaluation.progress.began_s -= 10.0
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(view(evaluation, seen, "title"))
    return console.export_text()


async def test_model_calls_and_tokens_are_those_since_the_evaluation_began():
    seen = Seen({"calls": 5, "retries": 1, "prompt_tokens": 100})
    assert "model calls" not in text_of(seen)
    seen.take(stats(calls=1205, failed=2, retries=4, prompt_tokens=5100, completion_tokens=3000))
    shown = text_of(seen)
    assert "1,200 (2 failed, 3 sent again)" in shown
    assert "5,000 read, 3,000 written (300/s)" in shown


async def test_a_server_that_was_started_anew_has_not_fewer_than_no_calls():
    seen = Seen({"calls": 5, "prompt_tokens": 100})
    seen.take(stats(calls=3, prompt_tokens=20))
    assert set(seen.usage.values()) == {0}
    assert "model calls" not in text_of(seen)
