"""``/metrics`` of a real door: names, kinds and values, as Prometheus's own parser reads them."""

from __future__ import annotations

import dataclasses
import math
import sys
from typing import Any

import pytest
import trio

from tests.doors.http.door import Runs, asking, echo, open_all, open_door, open_nowhere, raw
from trio_envserve.core.durations import BOUNDS_S
from trio_envserve.core.health import ServerStatus
from trio_envserve.core.status import (
    CacheStats,
    HostStats,
    PermitStats,
    ServerStats,
    WorkerStats,
)
from trio_envserve.doors.http import HttpLimits
from trio_envserve.doors.http.metrics import METRICS, PREFIX, DoorCounts, ScrapedValues

prometheus_client = pytest.importorskip("prometheus_client")

from prometheus_client.openmetrics import parser as openmetrics  # noqa: E402  # see above
from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

OPENMETRICS = {"accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
ONLY_WHILE_CLOSING = {"closing_left_seconds"}
DOOR = DoorCounts(bounds={}, answers={})


class Scrape:
    """The answer to a scrape."""

    def __init__(self, answer: Any) -> None:
        assert answer.status_code == 200, answer.text
        self.media = answer.headers["content-type"]
        families = (
            openmetrics.text_string_to_metric_families
            if self.media.startswith("application/openmetrics-text")
            else text_string_to_metric_families
        )
        self.families = {family.name: family for family in families(answer.text)}

    def __getitem__(self, name: str) -> float:
        """The value of a metric without labels."""
        return self.by(name)[()]

    def by(self, name: str) -> dict[tuple[str, ...], float]:
        """The values of a metric, by those of its labels."""
        full = f"{PREFIX}{name}"
        return {
            tuple(sample.labels.values()): sample.value
            for family in self.families.values()
            for sample in family.samples
            if sample.name == full
        }


async def scrape(client: Any, **options: Any) -> Scrape:
    return Scrape(await client.get("/metrics", **options))


# -- names and kinds --------------------------------------------------------------


@pytest.mark.parametrize("headers", [{}, OPENMETRICS], ids=["text", "openmetrics"])
async def test_all_metrics_of_the_table_are_there_with_their_kinds_and_no_others(
    headers: dict[str, str],
):
    async with open_door("arithmetic") as door, asking(door) as client:
        await client.get("/livez")  # one answer is counted
        found = await scrape(client, headers=headers)
    named = {f"{PREFIX}{metric.name}": metric for metric in METRICS}
    assert {name: family.type for name, family in found.families.items()} == {
        name: metric.kind for name, metric in named.items()
    }
    silent = {name for name, family in found.families.items() if not family.samples}
    only_there = {each.name for each in METRICS if {"host", "permit"} & {*each.labels}}
    assert silent == {f"{PREFIX}{name}" for name in {*ONLY_WHILE_CLOSING, *only_there}}
    for name, family in found.families.items():
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(named[name].labels)
            assert math.isfinite(sample.value)
    everything = prometheus_client.generate_latest(prometheus_client.REGISTRY)
    assert PREFIX.encode() not in everything, "nothing is registered for the whole process"


def test_the_table_is_whole_and_its_names_are_as_prometheus_wants_them():
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert not metric.bound or metric.bound in names
        assert metric.meaning.endswith(".")
        assert not metric.unit or metric.name.endswith(metric.unit)
        assert bool(metric.durations) == (metric.kind == "histogram")
        assert set(metric.labels) <= {
            "slot", "status", "result", "kind", "environment", "epoch", "host", "state", "code",
            "permit",
        }  # fmt: skip


def test_every_number_that_a_record_declares_is_a_metric():
    for record in (ServerStats, CacheStats, WorkerStats, HostStats, PermitStats):
        numbers = {field.name for field in dataclasses.fields(record) if field.metadata}
        plain = {field.name for field in dataclasses.fields(record) if field.type == "int"}
        assert plain - numbers <= {"slot", "restarts", "workers"}
    counters: dict[str, Any] = {
        field.name: number for number, field in enumerate(dataclasses.fields(CacheStats), 1)
        if field.metadata
    }  # fmt: skip
    cache = CacheStats(**counters)
    seen = ScrapedValues(DOOR, ServerStats(status=ServerStatus.READY, cache=cache))
    read = [value for metric in METRICS if metric.kind == "counter"
            for _, value in metric.read(seen)]  # fmt: skip
    assert set(counters.values()) <= set(read)


# -- values -----------------------------------------------------------------------


async def test_the_values_are_what_was_done():
    async def environment(rollout: Any) -> Any:
        if rollout.input == "fail":
            raise ValueError("as asked")
        return (await rollout.ask([{"role": "user", "content": "?"}], reference="yes")).text

    async with open_all(environment) as opened:
        for _ in range(3):
            await opened.native.run_rollout("ask", model="oracle")
        failed = await opened.native.outcome("fail")
        assert failed.error is not None
        refused = await opened.http.post("/v1/rollouts", json={"inputs": 0})
        assert refused.status_code == 400
        while (found := await scrape(opened.http))["model_call_seconds_count"] < 3:
            await trio.sleep(0.05)  # the worker says it with its next beat
        stats = opened.server.stats()
    assert found["requests_entered_total"] == 4
    assert found["executions_dispatched_total"] == found["requests_completed_total"] == 4
    assert found.by("worker_executions_done_total") == {("0",): 4}
    assert found.by("worker_executions_failed_total") == {("0",): 1}
    for name, record in (
        ("request_wait_seconds", stats.waits), ("execution_run_seconds", stats.runs),
        ("model_call_seconds", stats.model_calls),
    ):  # fmt: skip
        count = sum(record.values()) - record["sum_s"] - record["most_s"]
        assert found[f"{name}_count"] == count == (3 if name.startswith("model") else 4)
        assert found[f"{name}_sum"] == pytest.approx(record["sum_s"])
        buckets = found.by(f"{name}_bucket")
        assert [float(bound) for (bound,) in buckets] == [*BOUNDS_S, math.inf]
        assert list(buckets.values()) == sorted(buckets.values())
        assert buckets[("+Inf",)] == count
    assert found.by("model_calls_total") == {("answered",): 3, ("failed",): 0}
    assert found.by("http_answers_total")[("400",)] == 1
    assert found["server_up"] == 1
    assert found.by("server_status") == {
        (status.value,): status is ServerStatus.READY for status in ServerStatus
    }
    assert found.by("server_info") == {(stats.environment, stats.epoch): 1}


async def test_server_that_drains_is_scraped_and_what_runs_stands_beside_its_bound():
    runs = Runs(go_on=False)
    async with open_all(runs) as opened, raw(opened.door) as peer:
        await peer.post({"input": 0})
        await runs.have_started()
        found = await scrape(opened.http)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(opened.server.drain)
            while (draining := await scrape(opened.http)).by("server_status")[("stopping",)] != 1:
                pass  # the drain begins in one of the next turns
            runs.may_end.set()
    limits = HttpLimits()
    assert (found["http_calls"], found["http_calls_limit"]) == (1, limits.calls)
    assert found["http_bodies_bytes"] == len(b'{"input":0}')
    assert found["http_answers_limit_bytes"] == limits.answers_bytes
    assert found["http_connections_limit"] == limits.connections
    assert 1 <= found["http_connections"] <= 2
    assert (found["executions_running"], found["executions_running_limit"]) == (1, 256)
    assert found.by("worker_pending") == {("0",): 1}
    for metric in METRICS:
        if metric.bound and not metric.labels:
            assert found[metric.name] <= found[metric.bound]
    assert (draining["server_up"], draining["executions_running"]) == (1, 1)
    assert 0 < draining["closing_left_seconds"] <= 30


async def test_door_whose_server_is_gone_tells_its_own():
    async with open_nowhere(scrape_s=0.01) as client:
        await client.get("/livez")
        found = await scrape(client)
    assert found["server_up"] == 0
    shown = {name for name, family in found.families.items() if family.samples}
    assert shown == {f"{PREFIX}server_up"} | {
        f"{PREFIX}{metric.name}" for metric in METRICS if metric.name.startswith("http_")
    }


# -- labels -----------------------------------------------------------------------


@pytest.mark.parametrize(("why", "value"), [("", 0.0), ("No space left on device", 1.0)])
def test_journal_that_cannot_save_was_in_no_metric(why: str, value: float):
    stats = ServerStats(status=ServerStatus.READY, journal=why)
    (metric,) = (each for each in METRICS if each.name == "journal_failed")
    assert metric.read(ScrapedValues(DOOR, stats)) == [((), value)]
    assert metric.read(ScrapedValues(DOOR, None)) == []


def test_a_slot_has_one_value_whoever_lives_in_it():
    """Each restart of a worker made a new series."""
    workers = [(0, 1, 5), (0, 1, 2), (1, 3, 7), (1, 2, 9), (2, 0, 1), (-1, 0, 1)]
    stats = ServerStats(
        status=ServerStatus.READY, workers=2,
        per_worker=tuple(
            WorkerStats(worker=f"w{slot}-{restarts + 1}", slot=slot, restarts=restarts, done=done)
            for slot, restarts, done in workers
        ),
    )  # fmt: skip
    (done,) = [metric for metric in METRICS if metric.name == "worker_executions_done"]
    assert dict(done.read(ScrapedValues(DOOR, stats))) == {("0",): 2, ("1",): 7}


def test_each_host_has_its_numbers_and_one_state():
    hosts = (HostStats(host="a", state="ready", ready=2), HostStats(host="b", state="quiet"))
    per_worker = (
        WorkerStats(worker="w9-1@a", slot=9, host="a", done=3),
        WorkerStats(worker="w5000-1@a", slot=5000, host="a", done=3),
    )
    stats = ServerStats(status=ServerStatus.READY, workers=1, hosts=hosts, per_worker=per_worker)
    seen = ScrapedValues(DOOR, stats)
    of = {metric.name: dict(metric.read(seen)) for metric in METRICS if metric.kind != "histogram"}
    assert of["host_workers_ready"] == {("a",): 2, ("b",): 0}
    assert {labels for labels, value in of["host_state"].items() if value} == {
        ("a", "ready"), ("b", "quiet"),
    }  # fmt: skip
    # Its slot is beyond those that there should be, since those of an earlier host count.
    assert of["worker_executions_done"] == {("9",): 3}


def test_each_name_of_permits_has_its_numbers_and_there_are_not_many():
    permits = tuple(
        PermitStats(name=f"limit:{n:03d}", held=n, waiting=2 * n, limit=4) for n in range(100)
    )
    seen = ScrapedValues(DOOR, ServerStats(status=ServerStatus.READY, permits=permits))
    of = {metric.name: dict(metric.read(seen)) for metric in METRICS if metric.kind != "histogram"}
    assert of["permits_held"][("limit:007",)] == 7
    assert of["permits_waiting"][("limit:007",)] == 14
    assert of["permits_limit"][("limit:007",)] == 4
    assert len(of["permits_held"]) == 32


async def test_keys_and_sessions_make_no_series():
    def series(found: Scrape) -> int:
        return sum(len(family.samples) for family in found.families.values())

    async with open_door(echo) as door, asking(door) as client:
        headers = {"idempotency-key": '"first"'}
        await client.post("/v1/rollouts", json={"input": 0}, headers=headers)
        before = await scrape(client)
        for number in range(20):
            headers = {"idempotency-key": f'"key-{number}"'}
            url = f"/v1/rollouts?namespace=n{number}"
            await client.post(url, json={"input": 0}, headers=headers)
        after = await scrape(client)
    assert after["keys"] == 21
    assert series(after) == series(before)


async def test_hostile_text_in_the_name_of_an_environment_stays_in_its_label():
    class Named:
        name = 'a"} 1\nevil{x="\\'

        async def run_rollout(self, rollout: Any) -> Any:
            return 1

    async with open_door(Named()) as door, asking(door) as client:
        found = await scrape(client)
    assert set(found.families) == {f"{PREFIX}{metric.name}" for metric in METRICS}
    assert len(found.by("server_info")) == 1


# -- who may, and what it needs -----------------------------------------------------


async def test_without_the_extra_it_is_said_which_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "trio_envserve.doors.http.exposition", raising=False)
    async with open_door("arithmetic") as door, asking(door) as client:
        answer = await client.get("/metrics")
        record = (await client.post("/v1/rollouts", json={"input": {"index": 0}})).json()
    assert (answer.status_code, answer.json()["code"]) == (501, "extra-missing")
    assert "pip install 'trio-envserve[metrics]'" in answer.json()["detail"]
    assert record["executions"] == 1
