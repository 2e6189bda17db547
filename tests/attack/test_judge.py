"""The judge of the siege: a good run passes, and each thing that is wrong turns it red."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.attack.judge import FINDINGS, judge


class Run:
    """The log of a small siege in which everything is as it should be, to be changed."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.add(0, "phase", "begin", wants={"told": 1})
        self.add(1, "phase", "stage", stage="small", allowed={"server": 100 << 20})
        self.memory(9, 50_000, warm=True)
        self.begin = self.add(10, "phase", "round", number=0, attacks=["twins", "vanish"])
        for name in ("twins", "vanish"):
            self.add(10, "did", name, round=0)
        self.answer = self.call(11, "front-1/0")
        self.turn = self.add(
            12, "sampled", "turn", who="server", turn_s=0.09, task="t", where=["a.py:1 f"],
            when_s=[11.85, 12.0], collect_s=0.07,
        )  # fmt: skip
        self.grown = self.memory(13, 120_000)
        self.newcomer = self.add(13, "phase", "newcomer", took_s=0.2)
        for number in range(1, 80):
            self.call(14, f"front-1/{number}")
        for name in ("twins", "vanish"):
            self.done = self.add(14, "did", name, round=0, counts={"connections": 4})
        self.quiet = self.add(20, "phase", "quiet", cpu_s=1.0)
        for number in range(80, 180):
            self.call(21, f"front-1/{number}")
        self.add(30, "phase", "round-end")
        self.stopped = self.add(31, "phase", "stopped", who="server", code=0, took_s=0.5)
        self.recovered = self.add(32, "phase", "recovered", right=16)
        self.held = self.add(
            40, "phase", "held", scenario="held-client", seconds=6.0, calls=10, right=10,
            connections=1,
        )  # fmt: skip
        self.end = self.add(50, "phase", "end")

    def add(self, at_s: float, kind: str, actor: str, request: str = "", **what: Any) -> Any:
        event = {"at_s": at_s, "kind": kind, "actor": actor, "request": request, "what": what}
        self.events.append(event)
        return what

    def memory(self, at_s: float, kib: int, *, warm: bool = False) -> Any:
        return self.add(at_s, "sampled", "memory", warm=warm, kib=[["server", kib]])

    def call(self, at_s: float, request: str) -> Any:
        client, limits = request.partition("/")[0], {"rerun": None, "timeout_s": None}
        self.add(at_s, "asked", client, request, call=request, keyed=False, **limits)
        about = {"execution": request, "pid": 1}
        self.add(at_s, "began", "p1", request, predecessor="none", **about)
        self.add(at_s, "ended", "p1", request, how="result", **about)
        return self.add(
            at_s, "told", client, request, call=request, ok=True, right=True, execution=request,
            code=None, verdict=None, message=None, said=request,
        )  # fmt: skip

    def insert(self, at_s: float, kind: str, actor: str, request: str = "", **what: Any) -> None:
        self.add(at_s, kind, actor, request, **what)
        self.events.sort(key=lambda event: float(event["at_s"]))

    def drop(self, kind: str, request: str) -> None:
        self.events = [e for e in self.events if (e["kind"], e["request"]) != (kind, request)]

    def judged(self, folder: Path, **options: Any) -> dict[str, Any]:
        log = folder / "events.jsonl"
        log.write_text("".join(json.dumps(event) + "\n" for event in self.events))
        return judge(log, **options)


def lose(how: str) -> Callable[[Run], None]:
    about: Any = {
        "how": how,
        "of": "server",
        "code": -6,
        "why": "",
        "words": "x\nAssertion failed\n",
    }
    return lambda run: run.insert(14.5, "harmed", "server", **about)


def stall(processor: int, *when_s: float) -> Callable[[Run], None]:
    def add(run: Run) -> None:
        run.turn["turn_s"] = 0.15
        run.insert(12, "sampled", "stall", processor=processor, when_s=when_s)

    return add


def both(*changes: Callable[[Run], object]) -> Callable[[Run], object]:
    return lambda run: [change(run) for change in changes]


AGAIN = {"execution": "again", "pid": 1, "predecessor": "alive"}


def still(run: Run) -> None:
    for number in range(80, 180):
        for kind in ("asked", "began", "ended", "told"):
            run.drop(kind, f"front-1/{number}")


# fmt: off
CHANGES: dict[str, tuple[str, Callable[[Run], object]]] = {
    "good run": ("", lambda run: None),
    "process that ended": ("survived", lose("ended")),
    "process that hangs": ("survived", lose("hung")),
    "process that does not stop": ("stopped", lambda run: run.stopped.update(code=-9)),
    "turn at its limit": ("", lambda run: run.turn.update(turn_s=0.1)),
    "long turn": ("turns", lambda run: run.turn.update(turn_s=0.2)),
    "long turn before the round": (
        "", lambda run: run.insert(5, "sampled", "turn", **{**run.turn, "turn_s": 9.0})),
    "long turn while the machine stood still": ("", stall(0, 11.9, 11.96)),
    "long turn with two short stalls": ("", both(stall(0, 11.86, 11.89), stall(0, 11.9, 11.93))),
    "long turn with stalls of two processors, of which one counts": (
        "turns", both(stall(0, 11.9, 11.93), stall(1, 11.9, 11.93))),
    "long turn after a stall": ("turns", stall(0, 11.7, 11.76)),
    "long turn before a stall": ("turns", stall(0, 12.01, 12.07)),
    "long turn with little of a stall in it": ("turns", stall(0, 11.2, 11.89)),
    "memory at its bound": ("", lambda run: run.grown.update(kib=[["server", 152_400]])),
    "memory past its bound": ("memory", lambda run: run.grown.update(kib=[["server", 152_401]])),
    "rate below half": ("rate", lambda run: run.insert(15, "phase", "quiet", cpu_s=1.0)),
    "standstill after the attack": ("rate", still),
    "newcomer that is not served": ("newcomers", lambda run: run.newcomer.update(took_s=None)),
    "client that does not recover": ("recovered", lambda run: run.recovered.update(right=0)),
    "held loop that loses an outcome": ("held", lambda run: run.held.update(right=9)),
    "storm of connections": ("held", lambda run: run.held.update(connections=5)),
    "reconnection now and then": ("", lambda run: run.held.update(connections=4)),
    "attack that was never made": (
        "attacked", lambda run: run.done.update(counts={"refused": 3})),
    "attack that was not made after a loss": (
        "survived", both(lambda run: run.done.update(counts={"refused": 3}), lose("ended"))),
    "call without an answer": ("G9", lambda run: run.drop("told", "front-1/7")),
    "wrong answer": ("G3", lambda run: run.answer.update(right=False)),
    "second start": ("G1 G2 G3", lambda run: run.insert(11.5, "began", "p1", "front-1/0", **AGAIN)),
    "start that nobody asked for": (
        "G2", lambda run: run.insert(11.5, "began", "p1", "x", **AGAIN)),
    "run without an end": ("shown", lambda run: run.events.pop()),
    "run in which nothing was tried": ("shown", lambda run: run.events.__delitem__(slice(1, -1))),
    "log that cannot be read": ("log", lambda run: run.events.append({"at_s": "x"})),
}
# fmt: on


@pytest.mark.parametrize("name", CHANGES)
def test_judge_finds(name: str, tmp_path: Path):
    bad, change = CHANGES[name]
    run = Run()
    change(run)
    figures = run.judged(tmp_path)
    assert " ".join(figures["bad"]) == bad
    assert figures["ok"] is not bool(figures["problems"])


def test_each_finding_turns_bad_by_some_change():
    assert set(FINDINGS) <= {word for bad, _ in CHANGES.values() for word in bad.split()}


def test_finding_that_is_unjudged_keeps_its_figures(tmp_path: Path):
    run = Run()
    run.turn["turn_s"] = 0.2
    figures = run.judged(tmp_path, unjudged=["turns"])
    assert figures["ok"]
    assert figures["turns"] == {"server": 0.2}


def test_problem_is_told_with_its_place_and_its_attacks(tmp_path: Path):
    run = Run()
    run.turn["turn_s"] = 0.2
    lose("ended")(run)
    lost, turn = run.judged(tmp_path)["problems"]
    for words in ("Assertion failed", "twins, vanish"):
        assert words in lost
    for words in ("200 ms", "70 ms of it collecting garbage", "a.py:1 f", "twins, vanish"):
        assert words in turn
