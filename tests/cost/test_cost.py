"""The rig of costs: its table, its judge, its report, and a small run of each case."""

import dataclasses
import json
import mmap
import signal
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import trio

from docs.draw.benchmark import svg
from tests.cli.commands import check_nothing_left, command
from tests.cost.cases import CASES, chosen
from tests.cost.environment import Echo
from tests.cost.load import Load, Tally
from tests.cost.report import about, markdown
from tests.cost.run import (
    OF_OTHERS,
    OURS,
    PEER,
    Bench,
    Case,
    Judge,
    Options,
    Setup,
    Side,
    Size,
    machine,
    summary,
    versions,
)
from trio_envserve.envs.interface import Rollout

real = pytest.mark.real
slow = pytest.mark.slow
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads processor times in /proc")
# More requests on the one host than a worker takes that does not say how many.
SMALL = Size(
    outcomes=300, pending=50, clients=20, requests=500, hosts=1, idle_s=0.3, done=1500,
    journal_keys=200, window_s=0.1,
)  # fmt: skip
SMALLEST = Options((), rounds=1, seconds=0.05, warm_s=0.0, special_rounds=1, size=SMALL)


# -- the table -----------------------------------------------------------------


def test_names_of_cases_are_different_and_marks_are_about_sides_that_there_are():
    assert len({case.name for case in CASES}) == len(CASES)
    for case in CASES:
        assert bool(case.sides) != bool(case.special)
        others = {side.name for side in case.sides[1:]}
        assert {mark.against for mark in case.marks} - {""} <= others, case.name


def test_cases_are_chosen_by_pattern_and_long_ones_by_name_only():
    assert [case.name for case in chosen(["*-16mb", "start"])] == [
        "request-16mb", "response-16mb", "start",
    ]  # fmt: skip
    assert chosen(["nothing"]) == []
    assert {"many-hosts", "model-calls-256"}.isdisjoint(case.name for case in chosen([]))


# -- the judge -----------------------------------------------------------------


def write(folder: Path, name: str, starts: dict[int, int]) -> None:
    log = bytearray(100)
    for call, times in starts.items():
        log[call] = times
    (folder / name).write_bytes(log)


@pytest.mark.parametrize(
    ("one", "other", "answered", "wrong", "found"),
    [
        ({0: 1}, {1: 1}, 2, 0, ""),
        ({0: 2, 1: 1}, {}, 2, 0, "started_twice"),
        ({0: 1, 1: 1}, {1: 1}, 2, 0, "started_twice"),
        ({0: 1}, {}, 2, 0, "never_started"),
        ({0: 1, 1: 1}, {}, 1, 0, "lost"),
        ({0: 1, 1: 1}, {}, 2, 1, "wrong"),
    ],
)
def test_judge_finds_the_one_thing_that_went_wrong(tmp_path, one, other, answered, wrong, found):
    write(tmp_path, "starts-1", one)
    write(tmp_path, "starts-2", other)
    judge = Judge(tmp_path)
    judge.took(2, answered, wrong)
    record = judge.record()
    assert {
        name for name in ("started_twice", "never_started", "lost", "wrong") if record[name]
    } == ({found} - {""})
    assert record["ok"] == (not found)


def test_judge_takes_a_second_start_only_with_consent_and_no_start_only_of_the_cancelled(tmp_path):
    write(tmp_path, "starts-1", {0: 2, 2: 1, 3: 2, 4: 2})
    judge = Judge(tmp_path)
    judge.took(1, 1, consent=True)
    judge.cancelled(2)
    assert judge.record()["ok"]
    judge.cancelled(1)
    judge.took(1, 1)
    assert judge.record()["started_twice"] == 2


async def test_environment_counts_each_start(tmp_path):
    environment = Echo(str(tmp_path))
    for call in (0, 1, 1):
        asked = {"call": call, "response": 10}
        rollout = Rollout(asked, None, "", {}, (), 1, "r")  # type: ignore[arg-type]  # asks no model
        answer = await environment.run_rollout(rollout)
        assert (answer["call"], len(answer["payload"])) == (call, 10)
    assert isinstance(environment._starts, mmap.mmap)
    judge = Judge(tmp_path)
    judge.took(2, 2)
    assert judge.record()["started_twice"] == 1


# -- figures and their report --------------------------------------------------


def test_tally_numbers_and_times_requests():
    times = iter([0.0, 1.0, 3.0, 3.5, 4.0, 6.0])
    tally = Tally({"first": 7, "seconds": 3.25}, clock=lambda: next(times))
    call, began_s = tally.begin()
    assert (call, tally.more(), tally.more()) == (7, True, False)
    tally.end(began_s, False)
    figures = tally.figures()
    assert (figures["asked"], figures["answered"], figures["wrong"]) == (1, 1, 1)
    assert (figures["p50_ms"], figures["seconds"]) == (3000.0, 6.0)


def bench_of(case: Case, **rounds: list[float]) -> Bench:
    bench = Bench(SMALLEST._replace(cases=[case]), print)
    bench._rounds[case.name] = {
        side: [{"per_s": each, "router_us": None} for each in some] for side, some in rounds.items()
    }
    return bench


def test_marks_are_judged_by_the_median_of_the_ratios_of_rounds():
    (case,) = chosen(["inflight-64"])
    record = bench_of(case, ours=[60, 70, 50], plain=[100, 80, 100]).record()
    assert record["cases"][0]["ratios"] == {"plain": {"per_s": summary([0.6, 0.875, 0.5])}}
    (mark,) = record["marks"]
    assert (mark["against"], mark["got"]["median"], mark["reached"]) == ("plain", 0.6, False)


def test_record_as_a_page_has_date_machine_versions_and_every_figure():
    (case,) = chosen(["inflight-64"])
    record = bench_of(case, ours=[900, 1000], plain=[5000, 5000]).record()
    record |= {"machine": machine(1.0), "versions": versions(), "notes": ["without <it>"]}
    text = markdown(record)
    for part in ("trio 0.", "cores", "| 950 (900-1,000) |", "without <it>", about(record)):
        assert part in text
    chart = ElementTree.fromstring(svg(record))
    texts = [element.text for element in chart.iter() if element.tag.endswith("text")]
    assert {"64 in flight", "5,000"} <= set(texts)


# -- small runs ----------------------------------------------------------------


@real
@slow
@linux
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
async def test_small_run_of_a_case_has_the_figures_of_its_marks(case):
    bench = Bench(SMALLEST._replace(cases=[smaller(case)]), print)
    with trio.fail_after(300):
        await bench.run()
    record = bench.record()
    assert record["judged"]["ok"], record["judged"]
    assert not record["failed"]
    (found,) = record["cases"]
    ours = [side.name for side in case.sides if side.setup.kind not in OF_OTHERS] or [OURS]
    assert list(found["figures"]) == ours
    for figures in found["figures"].values():
        assert all(each["n"] == 1 for each in figures.values())
    there = {(mark["measure"], mark["against"]) for mark in record["marks"]}
    assert there == {(m.measure, m.against) for m in case.marks if m.against != PEER}
    if case.name == "inflight-1":  # the workers are below guards
        assert found["figures"][OURS]["worker_us"]["median"] > 0
    if case.name == "start":
        assert found["figures"][OURS]["heavy_modules"]["median"] == 0


def smaller(case: Case) -> Case:
    """The case with less to do on each side."""
    sides = [
        side._replace(
            load=dataclasses.replace(
                side.load,
                in_flight=min(side.load.in_flight, 16), clients=min(side.load.clients, 16),
                request_bytes=min(side.load.request_bytes, 2_000_000), least_s=0.0, tail_s=0.0,
                watchers=side.load.watchers and (2, 1, 0.2),
            )
        )
        for side in case.sides
    ]  # fmt: skip
    return case._replace(sides=tuple(sides))


@real
@slow
@linux
async def test_rig_that_does_not_start_says_why_and_other_cases_go_on():
    broken = Side(OURS, Load(1), Setup(options=("--capacity", "many")))
    cases = [Case("broken", "", (broken,)), *chosen(["recovery-cut"])]
    bench = Bench(SMALLEST._replace(cases=cases), print)
    with trio.fail_after(120):
        await bench.run()
    record = bench.record()
    assert record["failed"] == ["broken"]
    assert "--capacity" in record["notes"][0]
    assert [case["name"] for case in record["cases"]] == ["recovery-cut"]


# -- the command ---------------------------------------------------------------


@real
@slow
@linux
async def test_command_writes_a_record_that_it_shows_again(tmp_path):
    words = ("--rounds", "1", "--case", "inflight-1", "--out", "record.json")
    async with command(tmp_path, *words, module="tests.cost") as running:
        done = await running.wait()
    assert done.code == 0, done.err
    done.check_no_traceback()
    assert "0 started twice, 0 lost" in done.out
    record = json.loads((tmp_path / "record.json").read_text())
    assert [case["name"] for case in record["cases"]] == ["inflight-1"]
    await check_nothing_left(tmp_path)
    async with command(tmp_path, "--from", "record.json", module="tests.cost") as running:
        assert (await running.wait()).out == done.out


@real
@slow
@linux
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
async def test_interrupted_command_leaves_nothing_and_shows_what_it_has(tmp_path, number, code):
    words = ("--rounds", "1000", "--case", "inflight-64", "--out", "so-far.json")
    async with command(tmp_path, *words, module="tests.cost") as running:
        await running.said("inflight-64: ")
        running.signal(number)
        done = await running.wait()
    assert done.code == code
    done.check_no_traceback()
    await check_nothing_left(tmp_path)
    if code == 130:
        assert json.loads((tmp_path / "so-far.json").read_text())["judged"]["ok"]
