"""Small runs of the benchmark with real processes."""

import sys
from contextlib import AsyncExitStack

import pytest
import trio

from tests.cost.cases import Load, Size, chosen
from tests.cost.judge import Judge
from tests.cost.profile import PROGRAMS, TOP, profile
from tests.cost.rigs import open_ours, open_plain
from tests.cost.run import QUICK, Bench
from tests.cost.special import SPECIAL, run_special
from trio_envserve.core.errors import ServerStartError
from trio_envserve.lab.programs import open_program

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads processor times in /proc"),
]
HANG_S = 120.0
SMALL = Size(
    outcomes=300,
    pending=50,
    clients=20,
    requests=500,
    idle_s=0.3,
    done=1500,
    window_s=0.1,
    pairs=1,
    journal_keys=200,
    readers=8,
    readers_s=0.2,
)


async def test_one_run_compares_ours_and_the_plain_loop():
    said: list[str] = []
    bench = Bench(QUICK._replace(cases=chosen(["inflight-64"]), rounds=2, peers=False), said.append)
    with trio.fail_after(HANG_S):
        await bench.run()
    record = bench.record()
    assert record["judged"]["ok"]
    assert record["judged"]["asked"] >= 128
    (case,) = record["cases"]
    for who in ("ours", "bare", "plain", "frames"):
        for measure in ("per_s", "p50_ms", "router_us", "worker_us", "client_us"):
            assert case["figures"][who][measure]["n"] == 2
            assert case["figures"][who][measure]["min"] > 0
    assert case["ratios"]["plain"]["per_s"]["n"] == 2
    assert [mark["against"] for mark in record["marks"]] == ["plain"]
    assert record["notes"] == ["the peers were left out, as asked"]


@pytest.mark.parametrize(
    "load",
    [
        Load(20, clients=4),
        Load(2, request_bytes=100_000),
        Load(2, response=100_000),
        Load(20, together=True),
    ],
    ids=["clients", "request", "response", "run-many"],
)
async def test_every_kind_of_load_is_answered_by_both(tmp_path, load):
    judge = Judge(tmp_path)
    with trio.fail_after(HANG_S):
        async with AsyncExitStack() as stack:
            for rig in (
                await stack.enter_async_context(open_ours(judge, 2)),
                await stack.enter_async_context(open_plain(2)),
                await stack.enter_async_context(open_plain(2, "frames")),
                *(
                    []
                    if load.together
                    else [await stack.enter_async_context(open_plain(1, "bare"))]
                ),
            ):
                figures = await rig.run(load, 0.05)
                assert figures["asked"] == figures["answered"] >= load.in_flight
                assert figures["wrong"] == 0
    assert judge.judged.ok


@pytest.mark.parametrize("response", ["lists", "arrays"])
async def test_a_realistic_rollout_arrives_whole(tmp_path, response):
    if response == "arrays":
        pytest.importorskip("numpy")
    judge = Judge(tmp_path)
    with trio.fail_after(HANG_S):
        async with open_ours(judge, 1) as ours:
            await ours.run(Load(4, response=response), 0.05)
    assert judge.judged.ok


@pytest.mark.parametrize(
    ("name", "measures"),
    [
        pytest.param(
            "session-done", {"early_us", "late_us", "late_over_early"}, marks=pytest.mark.slow
        ),
        ("keyed-calls", {"plain_us", "keyed_us", "keyed_over_plain"}),
        (
            "curve-64",
            {
                "curve_us",
                "keyless_us",
                "curve_over_keyless",
                "least_over_keyless",
                "most_over_keyless",
            },
        ),
        ("journal-calls", {"plain_per_s", "keyed_per_s", "keyed_over_plain", "fsync_ms"}),
        ("journal-beside", {"with_us", "without_us", "with_over_without"}),
        ("visible-calls", {"visible_us", "unseen_us", "visible_over_unseen"}),
        ("event-readers", {"read_p99_ms", "unread_p99_ms", "read_over_unread"}),
        ("journal-restart", {"ready_s", "server_cpu_s", "bytes_each", "fsync_ms"}),
        (
            "http-rollouts",
            {"rate_over_bare", "per_s", "bare_per_s", "server_us", "bare_us"},
        ),
        pytest.param("memory-kept", {"of_their_bytes", "outcomes_mb"}, marks=pytest.mark.slow),
        pytest.param("idle-pending", {"core_percent"}, marks=pytest.mark.slow),
        ("idle-clients", {"core_percent"}),
        ("many-waiting", {"bytes_each", "sync_ms", "cancel_us"}),
        ("many-running", {"bytes_each", "sync_ms", "cancel_us"}),
        pytest.param(
            "recovery-worker", {"seconds", "start_s", "beyond_start_s"}, marks=pytest.mark.slow
        ),
        ("recovery-cut", {"seconds"}),
        pytest.param("recovery-restart", {"seconds"}, marks=pytest.mark.slow),
        ("start", {"import_s", "heavy_modules", "worker_ready_s"}),
    ],
)
async def test_special_cases_give_their_figures(tmp_path, name, measures):
    judge = Judge(tmp_path)
    figures = await run_special(name, judge, SMALL)
    assert set(figures) == measures
    assert judge.judged.ok
    if name == "start":
        assert figures["heavy_modules"] == 0


async def test_a_program_that_ends_early_says_why():
    with pytest.raises(ServerStartError, match="as told"):
        async with open_program([sys.executable, "-c", "raise SystemExit('as told')"]) as program:
            await program.line()


async def test_the_profile_names_the_functions_of_all_three_programs():
    with trio.fail_after(HANG_S):
        found = await profile(Load(8), seconds=0.2)
    assert set(found) == set(PROGRAMS)
    for some in found.values():
        assert 0 < len(some) <= TOP
        assert some[0].own_us == max(line.own_us for line in some) > 0
    names = " ".join(line.function for some in found.values() for line in some)
    assert "messages.py" in names


async def test_a_special_case_that_fails_does_not_lose_the_others(monkeypatch):
    async def fails(judge, size):
        raise ServerStartError("as told")

    monkeypatch.setitem(SPECIAL, "start", fails)
    bench = Bench(QUICK._replace(cases=chosen(["start", "recovery-cut"]), peers=False), print)
    with trio.fail_after(HANG_S):
        await bench.run()
    record = bench.record()
    assert record["failed"] == ["start"]
    assert [case["name"] for case in record["cases"]] == ["recovery-cut"]
    assert "as told" in record["notes"][0]
