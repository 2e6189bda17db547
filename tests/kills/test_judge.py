"""The judge of the kills: it accepts what is right, and finds each thing that is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trio_envserve.lab.kills.judge import judge

Line = dict[str, Any]


class Run:
    """The logs of a run in which all is well: two keys, one begun again by consent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment: list[Line] = []
        self.callers: list[Line] = []
        self.killer: list[Line] = [
            {"event": "begin", "monotonic": 0.0, "kills": 5, "keys": 2, "seed": 0},
            *(self._kill(s, what) for s, what in (
                (1.0, "client"), (4.0, "worker"), (4.1, "worker"), (4.2, "server"), (4.3, "worker"),
            )),
            {"event": "dead", "monotonic": 4.5, "process": "p1", "pid": 1, "alive_s": 3.9},
            {"event": "end", "monotonic": 50.0},
            {"event": "journal", "monotonic": 51.0, "problems": []},
        ]  # fmt: skip
        self.ask(2.0, "once", rerun=False)
        self.start(3.0, "once", "p1", "x1")
        self.told(5.0, "once", code="worker-lost")
        self.ask(2.0, "again", rerun=True)
        self.start(3.0, "again", "p1", "x2")
        self.start(6.0, "again", "p2", "x3", before="dead")
        self.end(7.0, "again", "p2", "x3")
        self.told(8.0, "again", execution="x3")
        self.told(9.0, "again", execution="x3")

    def _kill(self, at_s: float, what: str) -> Line:
        return {"event": "kill", "monotonic": at_s, "what": what, "pid": 7, "began_s": at_s}

    def ask(self, at_s: float, key: str, *, rerun: bool) -> None:
        self.callers.append({"event": "ask", "monotonic": at_s, "key": key, "rerun": rerun})

    def told(
        self, at_s: float, key: str, *, began_s: float = 2.0, code: str | None = None,
        execution: str | None = None, said: str = "", verdict: str = "MAY_HAVE_RUN",
    ) -> None:  # fmt: skip
        self.callers.append({
            "event": "told", "monotonic": at_s, "key": key, "client": "c", "began_s": began_s,
            "ok": code is None, "code": code, "verdict": verdict, "execution": execution,
            "executions": 1, "said": said or f"{code} {execution}",
        })  # fmt: skip

    def start(
        self, at_s: float, key: str, process: str, execution: str, before: str = "none"
    ) -> None:
        self.environment.append({
            "event": "start", "monotonic": at_s, "key": key, "process": process, "pid": 1,
            "predecessor": before, "execution": execution, "attempt": 1,
        })  # fmt: skip

    def end(self, at_s: float, key: str, process: str, execution: str) -> None:
        self.environment.append({
            "event": "end", "monotonic": at_s, "key": key, "process": process, "how": "result",
            "execution": execution, "attempt": 1,
        })  # fmt: skip

    def judged(self) -> Line:
        for name in ("environment", "callers", "killer"):
            lines = "".join(json.dumps(line) + "\n" for line in getattr(self, name))
            (self.folder / f"{name}.jsonl").write_text(lines)
        return judge(self.folder)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def only(figures: Line, name: str, text: str) -> None:
    """The one problem that there is."""
    (problem,) = figures["problems"]
    assert text in problem
    assert len(figures[name]) == 1
    assert figures["ok"] is False


def test_all_is_well(run: Run):
    figures = run.judged()
    assert figures["problems"] == []
    assert (figures["with_outcome"], figures["told"], figures["starts"]) == (2, 3, 3)
    assert (figures["again"], figures["most_starts"]) == (1, 2)
    assert figures["kills"] == {"server": 1, "worker": 3, "client": 1}
    assert figures["outcomes"] == {"result": 1, "worker-lost": 1}


def test_two_things_told_of_one_key_are_found(run: Run):
    run.told(10.0, "again", execution="x3", said="something else")
    only(run.judged(), "told_differently", "told in two ways")


def test_what_was_told_and_is_unknown_later_is_forgotten(run: Run):
    run.told(10.0, "again", began_s=4.0, code="unknown-key")
    assert run.judged()["unsaid"] == {"unknown-key": 1}
    assert run.judged()["ok"] is True  # it was asked before anybody was told
    run.told(10.0, "again", began_s=8.5, code="unknown-key")
    only(run.judged(), "forgotten", "unknown after they had been told")


def test_a_key_that_begins_after_it_was_told_is_found(run: Run):
    run.start(10.0, "again", "p9", "x9", before="dead")
    run.killer.append(
        {"event": "dead", "monotonic": 9.9, "process": "p2", "pid": 1, "alive_s": 9.0}
    )
    only(run.judged(), "after_told", "began after they had been told")


@pytest.mark.parametrize("how", ["no consent", "alive", "never seen dead", "same process"])
def test_a_second_start_needs_consent_and_proof(run: Run, how: str):
    start = run.environment[2]
    if how == "no consent":
        for line in run.callers:
            line["rerun"] = False
    elif how == "alive":
        start["predecessor"] = "alive"
    elif how == "never seen dead":
        run.killer = [line for line in run.killer if line["event"] != "dead"]
    else:
        start["process"] = "p1"
    only(run.judged(), "unproven", "without consent or proof")


def test_more_starts_than_were_allowed_are_found(run: Run):
    for number in range(3):
        run.start(6.0, "again", f"p{number + 3}", f"y{number}", before="dead")
        run.killer.append({
            "event": "dead", "monotonic": 6.0, "process": f"p{number + 2}", "pid": 1, "alive_s": 5.0
        })  # fmt: skip
    assert run.judged()["over_allowance"] == ["again"]


def test_a_key_that_nobody_had_asked_for_is_found(run: Run):
    run.start(1.0, "unheard", "p2", "x9")
    only(run.judged(), "unasked", "before anybody had asked")


@pytest.mark.parametrize("how", ["of nothing", "of another key", "before its end"])
def test_a_result_must_be_that_of_an_execution_that_is_over(run: Run, how: str):
    if how == "before its end":
        run.environment[3]["monotonic"] = 8.5
    else:
        execution = "x0" if how == "of nothing" else "x1"
        for line in run.callers[-2:]:
            line |= {"execution": execution, "said": "the same"}
    figures = run.judged()
    assert figures["untrue"]
    assert "outcomes were untrue" in figures["problems"][0]


@pytest.mark.parametrize(("rerun", "kills"), [(False, 0), (True, 2)])
def test_a_worker_is_lost_by_kills_only(run: Run, rerun: bool, kills: int):
    run.callers[0]["rerun"] = rerun
    run.callers[0]["monotonic"] = 4.35 if kills == 0 else 4.15
    run.environment[0]["monotonic"] = 4.4
    only(run.judged(), "untrue", "cannot have used its allowance up")


def test_a_kill_whose_line_came_after_what_was_told_of_it_was_none(run: Run):
    run.callers[0]["monotonic"], run.environment[0]["monotonic"] = 4.25, 4.28
    last = run.killer[5]
    assert last == run._kill(4.3, "worker")
    last["monotonic"] = 5.1  # the killer had no turn meanwhile
    assert run.judged()["untrue"] == []
    last["began_s"] = 5.05
    only(run.judged(), "untrue", "cannot have used its allowance up")


def test_a_dispatch_to_a_worker_that_was_dead_and_not_known_to_be_was_untrue(run: Run):
    run.callers[0]["monotonic"] = 4.35
    del run.environment[0]  # so it never began
    figures = run.judged()
    assert (figures["untrue"], figures["ok"]) == ([], True)
    for kill in run.killer[1:6]:
        kill["monotonic"] = kill["began_s"] = 5.5
    only(run.judged(), "untrue", "cannot have used its allowance up")


def test_an_error_that_nothing_here_explains_is_untrue(run: Run):
    run.callers[1] |= {"code": "deadline"}
    only(run.judged(), "untrue", "has no excuse here")


def test_a_key_without_an_outcome_is_lost(run: Run):
    del run.callers[1]
    figures = run.judged()
    assert figures["problems"] == ["1 of 2 keys have an outcome"]


def test_a_run_that_was_not_finished_is_not_well(run: Run):
    run.killer = [line for line in run.killer if line["event"] != "end"]
    run.killer.append({"event": "ended-by-itself", "monotonic": 9.0, "who": "server-1"})
    first, second = run.judged()["problems"]
    assert "not finished" in first
    assert "ended by themselves" in second


def test_a_damaged_journal_and_too_few_kills_are_problems(run: Run):
    run.killer[-1]["problems"] = ["a row is missing"]
    run.killer[0]["kills"] = 6
    first, second = run.judged()["problems"]
    assert "in the journal at the end" in first
    assert "so nothing is shown" in second


@pytest.mark.parametrize(("kills", "is_shown"), [(5, True), (100, False)])
def test_many_kills_after_which_nothing_began_again_show_nothing(
    run: Run, kills: int, is_shown: bool
):
    run.killer[0]["kills"] = kills
    run.environment = [line for line in run.environment if line["execution"] != "x2"]
    problems = run.judged()["problems"]
    assert any("nothing began again" in problem for problem in problems) is not is_shown


def test_logs_that_cannot_be_read_are_not_well(run: Run):
    run.judged()
    (run.folder / "callers.jsonl").write_text("{")
    assert judge(run.folder)["ok"] is False
    assert judge(run.folder / "nowhere")["ok"] is False
