"""The parts of the benchmark that need no processes."""

import json
import mmap
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.cost import peer as peers
from tests.cost.cases import ALL, BOTH_PEERS, CASES, MARKS, PEER_04, chosen
from tests.cost.chart import svg
from tests.cost.driver import Tally, percentile
from tests.cost.environment import BenchEnvironment
from tests.cost.judge import Judge
from tests.cost.measure import column, ratios, spent, summary
from tests.cost.peer import PEERS, NoPeer, cache_folder, peer_python
from tests.cost.reach import reached
from tests.cost.report import about, markdown, number, targets
from tests.cost.run import machine, versions
from tests.cost.special import SPECIAL
from tests.cost.special_journal import _new_folder
from trio_envserve.envs.interface import Rollout
from trio_envserve.lab.proc import cpu_s

# -- cases ---------------------------------------------------------------------


def test_every_case_is_a_load_or_a_special_one():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert {case.name for case in CASES if case.load is None} == set(SPECIAL)


def test_marks_are_about_cases_and_contenders_that_there_are():
    by_name = {case.name: case for case in CASES}
    for mark in MARKS:
        assert mark.case in by_name
        assert not mark.over or mark.over in by_name
        assert not mark.against or mark.against in by_name[mark.case].contenders


def test_cases_are_chosen_by_pattern():
    assert chosen([]) == list(CASES)
    assert [case.name for case in chosen(["*-16mb", "start"])] == [
        "request-16mb", "response-16mb", "start",
    ]  # fmt: skip
    assert chosen(["nothing"]) == []


def test_the_peers_send_lists_where_we_send_arrays():
    (case,) = chosen(["rollout-arrays"])
    assert {case.load_of(peer).response for peer in BOTH_PEERS} == {"lists"}
    assert case.load_of("ours").response == "arrays"


def test_what_is_wanted_of_one_peer_is_wanted_of_the_other():
    wanted = {
        peer: {(mark.case, mark.measure, mark.wanted) for mark in MARKS if mark.against == peer}
        for peer in BOTH_PEERS
    }
    assert len(wanted[PEER_04]) == 10
    assert len({frozenset(some) for some in wanted.values()}) == 1


# -- judge ---------------------------------------------------------------------


def write(folder, name: str, starts: dict[int, int], size: int = 100) -> None:
    log = bytearray(size)
    for call, count in starts.items():
        log[call] = count
    (folder / name).write_bytes(log)


def test_what_ran_once_and_was_answered_is_right(tmp_path):
    write(tmp_path, "starts-1", {0: 1, 1: 1})
    write(tmp_path, "starts-2", {2: 1})
    judge = Judge(tmp_path)
    judge.load({"asked": 3, "answered": 3, "wrong": 0})
    assert judge.judged.ok
    assert judge.next_call == 3


@pytest.mark.parametrize(
    ("one", "other", "figures", "found"),
    [
        ({0: 2, 1: 1}, {}, {"answered": 2}, "started_twice"),
        ({0: 1, 1: 1}, {1: 1}, {"answered": 2}, "started_twice"),
        ({0: 1}, {}, {"answered": 2}, "never_started"),
        ({0: 1, 1: 1}, {}, {"answered": 1}, "lost"),
        ({0: 1, 1: 1}, {}, {"answered": 2, "wrong": 1}, "wrong"),
    ],
)
def test_what_went_wrong_is_found(tmp_path, one, other, figures, found):
    write(tmp_path, "starts-1", one)
    write(tmp_path, "starts-2", other)
    judge = Judge(tmp_path)
    judge.load({"asked": 2, "wrong": 0, **figures})
    assert not judge.judged.ok
    assert judge.judged.record()[found] == 1


def test_a_second_run_needs_consent(tmp_path):
    write(tmp_path, "starts-1", {0: 2, 1: 2})
    judge = Judge(tmp_path)
    judge.call(answered=True, consent=True)
    assert judge.judged.ok
    judge.call(answered=True)
    assert judge.judged.started_twice == 1


def test_what_was_cancelled_may_never_have_started_but_not_twice(tmp_path):
    write(tmp_path, "starts-1", {1: 1, 2: 1})
    judge = Judge(tmp_path)
    judge.cancelled(2)
    assert judge.judged.ok
    assert judge.next_call == 2
    write(tmp_path, "starts-2", {2: 1})
    judge.cancelled(1)
    assert judge.judged.started_twice == 1


async def test_the_environment_counts_each_start(tmp_path):
    environment = BenchEnvironment(str(tmp_path))
    for call in (5, 6, 6):
        asked = {"call": call, "response": 10}
        rollout = Rollout(asked, None, "", {}, (), 1, "r")  # type: ignore[arg-type]  # asks no model
        answer = await environment.run_rollout(rollout)
        assert (answer["call"], len(answer["payload"])) == (call, 10)
    assert isinstance(environment._starts, mmap.mmap)
    judge = Judge(tmp_path)
    judge.next_call = 5
    judge.load({"asked": 2, "answered": 2, "wrong": 0})
    assert judge.judged.started_twice == 1


# -- figures -------------------------------------------------------------------


def test_ratios_are_those_of_the_same_round():
    assert ratios([10.0, None, 30.0], [5.0, 1.0, 10.0]) == [2.0, 3.0]
    assert ratios([1.0], [0.0]) == []
    assert summary([3.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 3.0, "n": 3}
    assert column([{"a": 1.0}, {}], "a") == [1.0, None]
    assert spent([1.0, 2.0], [1.5, 2.5]) == 1.0
    assert spent([None], [1.0]) is None


def test_percentiles():
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 3.0
    assert percentile([1.0], 0.99) == 1.0


def test_no_such_process_has_no_processor_time():
    assert cpu_s(2**22 + 1) is None


def test_a_tally_numbers_and_times():
    times = iter([0.0, 1.0, 3.0, 3.5, 4.0, 6.0, 10.0])
    tally = Tally({"first": 7, "seconds": 3.25}, clock=lambda: next(times))
    call, began_s = tally.begin()
    assert call == 7
    assert tally.more()
    assert not tally.more()
    tally.end(began_s)
    figures = tally.figures()
    assert (figures["asked"], figures["answered"], figures["seconds"]) == (1, 1, 6.0)
    assert figures["p50_ms"] == 3000.0


# -- report --------------------------------------------------------------------


def rounds(*per_s: float) -> list[dict[str, float]]:
    return [{"per_s": each, "router_us": 1e6 / each} for each in per_s]


def test_marks_are_judged_by_the_median_of_the_ratios():
    marks = reached({"inflight-64": {"ours": rounds(60, 70, 50), PEER_04: rounds(10, 10, 10)}})
    (mark,) = marks
    assert (mark["against"], mark["got"]["median"], mark["reached"]) == (PEER_04, 6.0, True)
    (mark,) = reached({"inflight-64": {"ours": rounds(59), PEER_04: rounds(10)}})
    assert not mark["reached"]


def test_a_cost_is_compared_across_cases():
    found = reached({"inflight-100": {"ours": rounds(100)}, "inflight-10000": {"ours": rounds(50)}})
    (mark,) = found
    assert (mark["against"], mark["reached"]) == ("ours, inflight-100", False)


def record() -> dict[str, Any]:
    both = {"ours": {"per_s": summary([900, 1000])}, "plain": {"per_s": summary([5000.0])}}
    return {
        "date": "2026-01-02 03:04 UTC", "machine": machine(1.0), "versions": versions(),
        "rounds": 2, "seconds": 0.5, "notes": ["without the peer: <none>"],
        "judged": {"ok": True, "asked": 1900, "started_twice": 0, "lost": 0},
        "cases": [
            {"name": "inflight-64", "title": "64 in <flight>", "figures": both, "ratios": {}},
            {"name": "start", "title": "start", "figures": {"ours": {"import_s": summary([0.1])}},
             "ratios": {}},
        ],
        "marks": reached({"start": {"ours": [{"import_s": 0.1}]}}),
    }  # fmt: skip


def test_the_page_has_date_machine_versions_and_every_figure():
    text = markdown(record())
    for part in ("2026-01-02", "trio 0.", "cores", "1,900 requests", "| 950 (900-1,000) |",
                 "without the peer", "| start | import s | 0.10 |"):  # fmt: skip
        assert part in text
    assert about(record()) in text


def test_the_chart_is_well_formed():
    chart = ElementTree.fromstring(svg(record()))
    texts = [element.text for element in chart.iter() if element.tag.endswith("text")]
    assert "64 in <flight>" in texts
    assert "5,000" in texts


def test_the_record_of_the_page_is_of_cases_and_contenders_that_there_are():
    page = Path(__file__).parents[2] / "docs" / "benchmark.json"
    record = json.loads(page.read_text())
    ElementTree.fromstring(svg(record))
    assert record["date"] in markdown(record)
    for case in record["cases"]:
        assert (case["name"], case["title"]) in {(each.name, each.title) for each in CASES}
        assert set(case["figures"]) <= set(ALL)


def test_every_target_is_in_the_table_of_targets():
    rows = [row.split(" | ") for row in targets().splitlines()[2:]]
    assert len(rows) == len({(mark.case, mark.measure) for mark in MARKS})
    for mark in MARKS:
        assert any(f"`{mark.case}`" in row[0] and mark.wanted in "".join(row[2:]) for row in rows)
    assert "<= 1.25 times that of inflight-100 |" in targets()


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.123, "0.12"), (12.34, "12.3"), (1234.5, "1,234")]
)
def test_numbers_have_three_digits(value, text):
    assert number(value) == text


# -- peer ----------------------------------------------------------------------


def test_each_peer_has_a_version_programs_and_a_folder_of_its_own():
    assert [peer.name for peer in PEERS] == list(BOTH_PEERS) == list(ALL[-2:])
    assert len({cache_folder(peer) for peer in PEERS}) == len(PEERS)
    for peer in PEERS:
        assert (Path(peers.__file__).with_name("peer_programs") / peer.program).is_file()
        assert peer.requirement in ("verifiers==0.4.0", "verifiers==0.3.0")


@pytest.mark.real
@pytest.mark.parametrize("peer", PEERS, ids=BOTH_PEERS)
async def test_a_python_without_the_peer_is_no_peer(tmp_path, peer):
    with pytest.raises(NoPeer, match="cannot be run"):
        await peer_python(peer, str(tmp_path / "python"), install=False)
    with pytest.raises(NoPeer, match=r"cannot be installed or imported: .*verifiers"):
        await peer_python(peer, sys.executable, install=False)


@pytest.mark.parametrize("peer", PEERS, ids=BOTH_PEERS)
async def test_a_quick_run_installs_nothing(monkeypatch, tmp_path, peer):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(NoPeer, match="not installed yet"):
        await peer_python(peer, None, install=False)
    assert not list(tmp_path.iterdir())


def test_a_round_found_the_keys_that_the_round_before_had_written(tmp_path: Path):
    judge = Judge(tmp_path)
    first, second = _new_folder(judge), _new_folder(judge)
    assert first != second
    assert list(second.iterdir()) == []
