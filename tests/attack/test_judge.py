"""The judge of the siege: a good run passes, and each thing that is wrong turns it red."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.attack.judge import FINDINGS, judge
from tests.rig.written import Edit, Log, do

TURN: dict[str, Any] = {
    "who": "server", "turn_s": 0.09, "task": "t", "where": ["a.py:1 f"], "when_s": [11.85, 12.0],
    "collect_s": 0.07,
}  # fmt: skip


class Run(Log):
    """A small siege in which everything is as it should be."""

    def run(self) -> None:
        self.add(0, "phase", "begin", wants={"told": 1})
        self.add(1, "phase", "stage", stage="small", allowed={"server": 100 << 20})
        self.add(9, "sampled", "memory", warm=True, kib=[["server", 50_000]])
        self.add(10, "phase", "round", number=0, attacks=["twins", "vanish"])
        for name in ("twins", "vanish"):
            self.add(10, "did", name, round=0)
            self.add(14, "did", name, round=0, counts={"connections": 4})
        self.add(12, "sampled", "turn", **TURN)
        self.add(13, "sampled", "memory", warm=False, kib=[["server", 120_000]])
        self.add(13, "phase", "newcomer", took_s=0.2)
        for number in range(180):
            self.answered(14 if number < 80 else 21, f"front-1/{number}")
        self.add(20, "phase", "quiet", cpu_s=1.0)
        self.add(30, "phase", "round-end")
        self.add(31, "phase", "stopped", who="server", code=0, took_s=0.5)
        self.add(32, "phase", "recovered", right=16)
        held: dict[str, Any] = {"calls": 10, "right": 10, "connections": 1}
        self.add(40, "phase", "held", scenario="held-client", seconds=6.0, **held)
        self.add(50, "phase", "end")

    def answered(self, at_s: float, request: str) -> None:
        self.add(at_s, "asked", "front-1", request, call=request)
        self.began(at_s, request, "p1", request)
        self.ended(at_s, request, "p1", request)
        self.told(at_s, request, call=request, execution=request)
        self.events[-1]["actor"] = "front-1"

    def victim(self, how: str) -> None:
        words = "x\nAssertion failed\n"
        self.add(14.5, "harmed", "server", of="server", how=how, code=-6, why="", words=words)

    def stand_still(self) -> None:
        self.events = [each for each in self.events if each["at_s"] != 21]

    def found(self, folder: Path, **options: Any) -> dict[str, Any]:
        return judge(self.written(folder / "events.jsonl"), **options)


def turn(turn_s: float) -> Edit:
    return do.change("sampled", {"turn_s": turn_s}, who="server")


def stall(processor: int, *when_s: float) -> Edit:
    return do.add(12, "sampled", "stall", processor=processor, when_s=when_s)


UNMADE = do.change("did", {"counts": {"refused": 3}}, counts={"connections": 4})
# fmt: off
CHANGES: dict[str, tuple[Any, ...]] = {
    "good run": ("",),
    "process that ended": ("survived", do.victim("ended")),
    "process that hangs": ("survived", do.victim("hung")),
    "process that does not stop": ("stopped", do.change("phase", {"code": -9}, code=0)),
    "turn at its limit": ("", turn(0.1)),
    "long turn": ("turns", turn(0.2)),
    "long turn before the round": ("", do.add(5, "sampled", "turn", **{**TURN, "turn_s": 9.0})),
    "long turn while the machine stood still": ("", turn(0.15), stall(0, 11.9, 11.96)),
    "long turn with two short stalls": (
        "", turn(0.15), stall(0, 11.86, 11.89), stall(0, 11.9, 11.93)),
    "long turn with stalls of two processors, of which one counts": (
        "turns", turn(0.15), stall(0, 11.9, 11.93), stall(1, 11.9, 11.93)),
    "long turn after a stall": ("turns", turn(0.15), stall(0, 11.7, 11.76)),
    "long turn before a stall": ("turns", turn(0.15), stall(0, 12.01, 12.07)),
    "long turn with little of a stall in it": ("turns", turn(0.15), stall(0, 11.2, 11.89)),
    "memory at its bound": ("", do.change("sampled", {"kib": [["server", 152_400]]}, warm=False)),
    "memory past its bound": (
        "memory", do.change("sampled", {"kib": [["server", 152_401]]}, warm=False)),
    "rate below half": ("rate", do.add(15, "phase", "quiet", cpu_s=1.0)),
    "standstill after the attack": ("rate", do.stand_still()),
    "newcomer that is not served": (
        "newcomers", do.change("phase", {"took_s": None}, took_s=0.2)),
    "client that does not recover": ("recovered", do.change("phase", {"right": 0}, right=16)),
    "held loop that loses an outcome": ("held", do.change("phase", {"right": 9}, right=10)),
    "storm of connections": ("held", do.change("phase", {"connections": 5}, connections=1)),
    "reconnection now and then": ("", do.change("phase", {"connections": 4}, connections=1)),
    "attack that was never made": ("attacked", UNMADE),
    "attack that was not made after a loss": ("survived", UNMADE, do.victim("ended")),
    "wrong answer": ("G3", do.change("told", {"right": False}, request="front-1/0")),
    "run without an end": ("shown", do.without("phase", "end")),
    "log that cannot be read": ("log", do.add(60, "nonsense", "twins")),
}
# fmt: on


@pytest.mark.parametrize("name", CHANGES)
def test_judge_finds(name: str, tmp_path: Path):
    bad, *edits = CHANGES[name]
    figures = Run(edits).found(tmp_path)
    assert " ".join(figures["bad"]) == bad
    assert figures["ok"] is not bool(figures["problems"])


def test_each_finding_turns_bad_by_some_change():
    assert set(FINDINGS) <= {word for bad, *_ in CHANGES.values() for word in bad.split()}


def test_finding_that_is_unjudged_keeps_its_figures(tmp_path: Path):
    figures = Run([turn(0.2)]).found(tmp_path, unjudged=["turns"])
    assert figures["ok"]
    assert figures["turns"] == {"server": 0.2}


def test_problem_is_told_with_its_place_and_its_attacks(tmp_path: Path):
    lost, long = Run([turn(0.2), do.victim("ended")]).found(tmp_path)["problems"]
    for words in ("Assertion failed", "twins, vanish"):
        assert words in lost
    for words in ("200 ms", "70 ms of it collecting garbage", "a.py:1 f", "twins, vanish"):
        assert words in long
