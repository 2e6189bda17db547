"""The judge of the siege: a good run passes, and each thing that is wrong turns it red."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.attack.judge import FINDINGS, judge
from tests.attack.testbed import ATTACKS, EVENTS, LOOPS, SAMPLES, STALLS
from trio_envserve.lab.history import CALLERS, ENVIRONMENT, judge_named

Line = dict[str, Any]


class Run:
    """The logs of a small siege in which everything is as it should be, to be changed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lines: dict[str, list[Line]] = {
            name: [] for name in (EVENTS, ATTACKS, LOOPS, SAMPLES, STALLS, CALLERS, ENVIRONMENT)
        }
        self.event(0, "begin", seed=1, seconds=30.0)
        self.event(0.5, "stalls", watched=True)
        allowed = dict.fromkeys(("server", "worker", "client"), 100 << 20)
        self.event(1, "stage", stage="small", allowed=allowed)
        self.event(10, "round", stage="small", round=0, attacks=["twins", "vanish"])
        self.rate = self.event(
            20, "rate", round=0, stage="small", attacker_cpu_s=1.0, newcomer_s=0.2, besieged=80.0,
            quiet=100.0,
        )  # fmt: skip
        self.event(20, "round-end", stage="small", round=0)
        self.stopped = self.event(21, "stopped", who="server", code=0, took_s=0.5, phase="small")
        self.recovered = self.event(30, "recovered", round=1, answered=50)
        self.held = self.event(
            40, "held", scenario="held-client", seconds=6.0, calls=10, right=10, peers=1,
            connections=1,
        )  # fmt: skip
        self.end = self.event(50, "end")
        for name in ("twins", "vanish"):
            self.line(ATTACKS, 10, "begin", attack=name, round=0)
            counts = {"connections": 4, "rounds": 2}
            self.line(ATTACKS, 15, "end", attack=name, round=0, counts=counts)
        self.turn = self.line(
            LOOPS, 12, "loop", who="server", turn_s=0.09, step_s=0.08, io_s=0.0, task="t", turns=9,
            where=["a.py:1 f"], when_s=(11.85, 12.0), collect_s=0.07,
        )  # fmt: skip
        for at_s, phase, rss_kib in ((9.0, "begin", 50_000), (13.0, "siege", 120_000)):
            self.memory = self.line(
                SAMPLES, at_s, "sample", stage="small", phase=phase, who="server", pid=1,
                rss_kib=rss_kib, cpu_s=1.0,
            )  # fmt: skip
        self.line(CALLERS, 11, "ask", key="c/0", client="c", rerun=None)
        self.answer = self.line(
            CALLERS, 12, "answer", key="c/0", client="c", ok=True, right=True, error=None,
            message=None, verdict=None,
        )  # fmt: skip
        for began_s, event, how in ((11.5, "start", {}), (11.6, "end", {"how": "result"})):
            self.line(
                ENVIRONMENT, began_s, event, key="c/0", process="p1", pid=1, attempt=1,
                predecessor="none", **how,
            )  # fmt: skip

    def line(self, log: str, at_s: float, event: str, **fields: Any) -> Line:
        line: Line = {"event": event, "monotonic": at_s, **fields}
        self.lines[log].append(line)
        return line

    def event(self, at_s: float, event: str, **fields: Any) -> Line:
        return self.line(EVENTS, at_s, event, **fields)

    def lost(self, event: str, **fields: Any) -> None:
        self.event(
            14, event,
            **{"who": "server", "code": -6, "round": 0, "why": "", "words": "x\nAssertion failed",
               **fields},
        )  # fmt: skip

    def judged(self) -> dict[str, Any]:
        for name, lines in self.lines.items():
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (self.directory / name).write_text(text)
        return judge(self.directory)

    def bad(self) -> set[str]:
        """The findings that are."""
        figures = self.judged()
        assert figures["ok"] is not any(v["problems"] for v in figures["findings"].values())
        return {name for name, finding in figures["findings"].items() if finding["ok"] is False}


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


def test_a_good_siege_passes_in_every_finding(run):
    figures = run.judged()
    assert figures["ok"] is True
    assert figures["problems"] == []
    assert {name: finding["ok"] for name, finding in figures["findings"].items()} == dict.fromkeys(
        FINDINGS, True
    )


def test_answers_at_doors_are_counted_and_judged(run):
    for number, right in enumerate((True, False)):
        key = f"c/{number + 1}"
        run.line(CALLERS, 11, "ask", key=key, client="c http", door="http", rerun=None)
        run.lines[CALLERS].append({**run.answer, "key": key, "right": right})
        run.line(
            ENVIRONMENT, 11.5, "start", key=key, process="p1", pid=1, attempt=1,
            predecessor="none",
        )  # fmt: skip
    assert run.bad() == {"answers"}
    figures = run.judged()["findings"]["answers"]["figures"]
    assert figures["right_at_doors"] == {"http": 1}


@pytest.mark.parametrize("event", ["ended", "hung"])
def test_a_process_that_ends_or_hangs(run, event):
    run.lost(event)
    assert run.bad() == {"survived"}
    (problem,) = run.judged()["problems"]
    assert "Assertion failed" in problem
    assert "twins, vanish" in problem


def test_a_process_that_does_not_stop(run):
    run.stopped["code"] = -9
    assert run.bad() == {"stopped"}


@pytest.mark.parametrize(
    ("stalls", "finding"),
    [
        ([(0, 11.9, 0.06)], set()),
        ([(0, 11.86, 0.03), (0, 11.9, 0.03)], set()),
        ([(0, 11.9, 0.03), (1, 11.9, 0.03)], {"turns"}),  # of two processors one counts
        ([(0, 11.7, 0.06)], {"turns"}),  # before
        ([(0, 12.01, 0.06)], {"turns"}),  # after
        ([(0, 11.2, 0.69)], {"turns"}),  # little of it in the turn
    ],
)
def test_time_for_which_the_machine_stood_still_is_no_turns(run, stalls, finding):
    run.turn["turn_s"] = 0.15
    for processor, began_s, seconds in stalls:
        run.line(STALLS, began_s, "stall", processor=processor, began_s=began_s, seconds=seconds)
    assert run.bad() == finding
    figures = run.judged()["findings"]["turns"]["figures"]
    assert figures["excused"] == (not finding)
    assert figures["stalls"] == len(stalls)


@pytest.mark.parametrize(("turn_s", "finding"), [(0.1, set()), (0.2, {"turns"})])
def test_a_long_turn(run, turn_s, finding):
    run.turn["turn_s"] = turn_s
    assert run.bad() == finding


def test_a_long_turn_is_told_with_its_place_and_its_attacks(run):
    run.turn["turn_s"] = 0.2
    (problem,) = run.judged()["problems"]
    assert "200 ms" in problem
    assert "70 ms of it collecting garbage" in problem
    assert "a.py:1 f" in problem
    assert "twins, vanish" in problem


@pytest.mark.parametrize("at_s", [5, 25])
def test_a_long_turn_outside_of_the_rounds_is_of_no_account(run, at_s):
    run.turn.update(turn_s=9.0, monotonic=at_s)
    figures = run.judged()
    assert figures["findings"]["turns"]["ok"] is None


@pytest.mark.parametrize(("rss_kib", "finding"), [(152_400, set()), (152_401, {"memory"})])
def test_memory_past_its_bounds(run, rss_kib, finding):
    run.memory["rss_kib"] = rss_kib
    assert run.bad() == finding


@pytest.mark.parametrize(("besieged", "finding"), [(50.0, set()), (49.0, {"rate"})])
def test_a_rate_below_half(run, besieged, finding):
    run.rate["besieged"] = besieged
    assert run.bad() == finding


def test_one_round_in_which_the_honest_client_stood_still(run):
    run.event(22, "round", stage="small", round=3, attacks=["twins"])
    run.lines[EVENTS].append({**run.rate, "round": 3, "besieged": 1.0, "monotonic": 23})
    run.event(24, "round-end", stage="small", round=3)
    run.rate.update(besieged=400.0, quiet=100.0)
    assert run.bad() == {"rate"}
    assert "round 3" in run.judged()["problems"][0]


def test_a_victim_that_stands_still_after_the_siege(run):
    run.rate.update(besieged=4.0, quiet=4.0)
    assert run.bad() == {"rate"}
    assert "stood still" in run.judged()["problems"][0]


def test_a_wrong_answer(run):
    run.answer["right"] = False
    assert run.bad() == {"answers"}


def test_a_call_without_an_answer(run):
    run.lines[CALLERS].remove(run.answer)
    assert run.bad() == {"answers"}


def test_a_second_start(run):
    start = next(line for line in run.lines[ENVIRONMENT] if line["event"] == "start")
    run.lines[ENVIRONMENT].append({**start, "monotonic": 12.0, "predecessor": "alive"})
    assert run.bad() == {"once"}


def test_a_start_that_nobody_asked_for(run):
    run.line(
        ENVIRONMENT, 13, "start", key="x", process="p1", pid=1, attempt=1, predecessor="none"
    )  # fmt: skip
    assert run.bad() == {"once"}


def test_a_newcomer_that_is_not_served(run):
    run.rate["newcomer_s"] = None
    assert run.bad() == {"newcomers"}


def test_a_client_that_does_not_recover(run):
    run.recovered["answered"] = 0
    assert run.bad() == {"recovered"}


def test_a_held_loop_that_loses_an_outcome(run):
    run.held["right"] = 9
    assert run.bad() == {"held"}


@pytest.mark.parametrize(("connections", "finding"), [(4, set()), (5, {"held"})])
def test_a_storm_of_connections(run, connections, finding):
    run.held["connections"] = connections
    assert run.bad() == finding


def test_an_attack_that_was_never_made(run):
    run.lines[ATTACKS][-1]["counts"] = {"refused": 3}
    assert run.bad() == {"attacked"}


def test_after_a_loss_nobody_asks_whether_all_attacks_were_made(run):
    run.lines[ATTACKS] = run.lines[ATTACKS][:2]
    run.lost("ended")
    assert run.bad() == {"survived"}


def test_a_siege_without_an_end_does_not_pass(run):
    run.lines[EVENTS].remove(run.end)
    figures = run.judged()
    assert figures["ok"] is False
    assert figures["problems"] == ["the siege did not come to its end"]


def test_nothing_tried_is_nothing_shown(tmp_path):
    for name in (EVENTS, ATTACKS, LOOPS, SAMPLES, STALLS, CALLERS, ENVIRONMENT):
        (tmp_path / name).touch()
    (tmp_path / EVENTS).write_text('{"event": "end", "monotonic": 1}\n')
    assert judge(tmp_path)["problems"] == ["nothing was tried"]


def test_logs_that_cannot_be_read_do_not_pass(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["judge", str(tmp_path)])
    assert judge_named(judge, "attack.judge") == 1
    assert "cannot be read" in json.loads(capsys.readouterr().out)["problems"][0]
    monkeypatch.setattr("sys.argv", ["judge"])
    assert judge_named(judge, "attack.judge") == 2
