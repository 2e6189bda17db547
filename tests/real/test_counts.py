"""Every figure that is told of a server, against the log that its environment has written.

Calls with and without keys, failures of several codes, a key for which two callers wait, a
cancel, workers that die, and a server that is killed and started again with its journal.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import trio

from tests.connections import held_port
from tests.real.judge import Judge
from tests.real.support import PATIENCE_S, Calls, open_calls, open_server_process, wait_gone
from trio_envserve import Client, Outcome, ServerStats
from trio_envserve.evals.run import Evaluation, EvaluationPlan, RunKeys
from trio_envserve.evals.tally import ResultsTally
from trio_envserve.lab.processes import Process

pytest.importorskip("h11")
httpx2 = pytest.importorskip("httpx2")
parser = pytest.importorskip("prometheus_client.parser")

from trio_envserve.doors.http import open_http_door  # noqa: E402  # see above

DIE: list[Any] = ["die"]
RAISE: list[Any] = ["raise", "value"]


class Figures:
    """The environment's log, from a moment on, as the figures that a server should have."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._starts, self._ends = len(judge.records("start")), len(judge.records("end"))

    @property
    def starts(self) -> int:
        return len(self._judge.records("start")) - self._starts

    @property
    def ends(self) -> Counter[str]:
        """Executions that have ended by themselves, by how."""
        return Counter(each["how"] for each in self._judge.records("end")[self._ends :])

    @property
    def repeated(self) -> int:
        """Executions that were not the first of their key, also where that was before."""
        before = {each["key"] for each in self._judge.records("start")[: self._starts]}
        new = Counter(each["key"] for each in self._judge.records("start")[self._starts :])
        return sum(number - (key not in before) for key, number in new.items())


journaled = partial(open_server_process, workers=2, journal=True, lease_s=3600.0)


async def at_rest(client: Client) -> ServerStats:
    """The statistics, once nothing is under way and all that was told was received."""
    while True:
        stats = await client.stats()
        busy = stats.waiting or stats.running or stats.kept or stats.ready < stats.workers
        if not busy and stats.cache.finished == stats.cache.entered:
            return stats
        await trio.sleep(0.02)


async def scraped(address: str) -> dict[str, dict[tuple[str, ...], float]]:
    """What Prometheus would read of the server: by name, and by the values of labels."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    async with open_http_door(address) as door:
        await door.wait_ready()
        async with httpx2.AsyncClient(base_url=door.url, timeout=None) as client:
            text = (await client.get("/metrics")).text
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix("trio_envserve_")
            found.setdefault(name, {})[tuple(sample.labels.values())] = sample.value
    return found


async def ask(calls: Calls, key: str, *do: Any, keyed: bool = False, **options: Any) -> Outcome:
    asked = {"key": key, "do": list(do), "value": options.pop("value", None)}
    if keyed:
        options["key"] = key
    calls.outcomes[key] = outcome = await calls.client.outcome(asked, **options)
    return outcome


def codes(outcomes: Sequence[Outcome]) -> dict[str, int]:
    return dict(Counter(each.error.code for each in outcomes if each.error is not None))


def assert_figures(
    judge: Judge, stats: ServerStats, read: dict[str, dict[tuple[str, ...], float]], *,
    log: Figures, failures: dict[str, int], lost: int, cancelled: int, entered: int,
) -> None:  # fmt: skip
    """``lost``: executions that were under way when their worker died."""
    cache = stats.cache
    reported = sum(log.ends.values())
    assert reported + lost == log.starts
    wanted = {
        "executions_dispatched_total": log.starts,
        "executions_repeated_total": log.repeated,
        "execution_run_seconds_count": reported,
        "request_wait_seconds_count": log.starts,
        "requests_entered_total": entered,
        "requests_finished_total": entered,
        "requests_completed_total": reported - cancelled,
        "requests_cancelled_total": cancelled,
        "requests_lost_total": failures.get("worker-lost", 0),
        "requests_late_total": 0,
        "requests_waiting": 0,
        "executions_running": 0,
        "outcomes_kept": 0,
        "worker_restarts_total": len(stats.deaths),
    }
    assert {name: read[name][()] for name in wanted} == wanted
    by_code = {code: n for (code,), n in read["requests_failed_total"].items() if n}
    assert by_code == failures == stats.failures
    assert (cache.dispatched, cache.reruns, cache.lost) == (
        log.starts, log.repeated, failures.get("worker-lost", 0),
    )  # fmt: skip
    assert (cache.completed, cache.cancelled) == (reported - cancelled, cancelled)
    assert (cache.entered, cache.finished) == (entered, entered)
    assert sum(each.lost for each in stats.deaths) == lost
    for durations, number in ((stats.runs, reported), (stats.waits, log.starts)):
        assert sum(n for bound, n in durations.items() if not bound.endswith("_s")) == number


async def assert_keys(judge: Judge, client: Client) -> None:
    page = await client.list_keys()
    assert page.next is None
    starts = {each.key: judge.starts("-".join(each.key.split("/")[:2])) for each in page.keys}
    assert {each.key: each.executions for each in page.keys} == starts


async def test_figures_are_those_of_the_log_of_the_environment(judge: Judge):
    with trio.fail_after(2 * PATIENCE_S), held_port() as port:
        bind = f"tcp://127.0.0.1:{port}"
        async with open_calls(bind) as calls, open_calls(bind) as others:
            async with journaled(judge, bind=bind) as server:
                log = Figures(judge)
                await some_work(judge, calls, others)
                stats = await at_rest(calls.client)
                outcomes = list(calls.outcomes.values())
                assert_figures(
                    judge, stats, await scraped(bind), log=log, failures=codes(outcomes),
                    lost=3, cancelled=1, entered=len(outcomes) + len(others.outcomes) + 1,
                )  # fmt: skip
                for key, outcome in calls.outcomes.items():
                    assert outcome.executions == judge.starts(key), key
                await assert_keys(judge, calls.client)
                await server_killed_in_an_evaluation(judge, calls, server, bind)


async def some_work(judge: Judge, calls: Calls, others: Calls) -> None:
    """One after the other, where a worker's death would take others along."""
    for number in range(3):
        await ask(calls, f"plain-{number}")
        await ask(calls, f"keyed-{number}", keyed=True)
    await ask(others, "keyed-1", keyed=True)
    for key in ("bad", "worse"):
        await ask(calls, f"plain-{key}", RAISE)
        await ask(calls, f"keyed-{key}", RAISE, keyed=True)
    await ask(others, "keyed-bad", RAISE, keyed=True)
    await ask(calls, "no-encoding", value={"unencodable": True})
    await ask(calls, "killer", DIE)
    await ask(calls, "plain-twice", ["die once", "plain-died"], rerun=True)
    await ask(calls, "keyed-twice", ["die once", "keyed-died"], keyed=True, rerun=True)
    await judge.wait_started(calls.start("given-up", ["wait", "never"]))
    calls.cancel("given-up")
    await judge.wait_ended("given-up")


async def server_killed_in_an_evaluation(
    judge: Judge, calls: Calls, server: Process, bind: str
) -> None:
    """The evaluation has a name, and consents to further executions.  Beside it runs a key that
    does not."""
    dos: list[list[Any]] = [[], [RAISE], [["wait", "gate"]], [["die once", "eval-died"]]]
    plan = EvaluationPlan([{"key": f"run-{index}", "do": do} for index, do in enumerate(dos)])
    tally = ResultsTally()
    evaluation = Evaluation(plan, tally, keys=RunKeys("run"))
    names = list(plan.names())
    async with trio.open_nursery() as nursery:

        async def evaluate() -> None:
            await evaluation.run(calls.client, names, 1, rerun=True)

        nursery.start_soon(evaluate)
        nursery.start_soon(partial(ask, calls, "half", ["wait", "never"], keyed=True))
        await judge.wait_started("run-2", "half")
        server.signal(signal.SIGKILL)
        await server.wait()
        await wait_gone(*judge.pids("run-2"), *judge.pids("half"))  # else it sees the gate, too
        log = Figures(judge)
        judge.put("gate")
        async with journaled(judge, bind=bind):
            while evaluation.progress.done < len(names) or "half" not in calls.outcomes:
                await trio.sleep(0.02)
            summary = tally.summary()
            half = calls.outcomes["half"]
            assert half.executions == judge.starts("half") == 1
            stats = await at_rest(calls.client)
            # All calls but these three were told their outcomes by the server before.
            assert_figures(
                judge, stats, await scraped(bind), log=log, failures=codes([half]), lost=1,
                cancelled=0, entered=3,
            )  # fmt: skip
            await assert_keys(judge, calls.client)
    assert (summary["results"], summary["errors"]) == (3, 1)
    assert {each["code"]: each["count"] for each in summary["errors_by"]} == {"rollout-failed": 1}
    starts = {name: judge.starts(f"run-{name[0]}") for name in names}
    assert {name: tally.found[name].executions for name in names} == starts
    assert summary["rerun"] == sum(each > 1 for each in starts.values()) == 2
