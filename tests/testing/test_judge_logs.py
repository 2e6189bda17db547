"""The judge of the demonstration: it sees what is wrong, and accuses no innocent.

A history is written line by line, as the demonstration would.
"""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import trio_envserve.testing.judge_logs as judge_logs
from trio_envserve.testing.judge_logs import CALLERS, ENVIRONMENT, KILLER, judge


class History:
    """A run in which all is well, until something is added."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.now = 100.0
        self.environment: list[dict[str, Any]] = []
        self.callers: list[dict[str, Any]] = []
        self.killer: list[dict[str, Any]] = []

    def tick(self) -> float:
        self.now += 1.0
        return self.now

    def ask(self, key, rerun=True):
        self.callers.append(
            {"event": "ask", "monotonic": self.tick(), "key": key, "rerun": rerun}
        )  # fmt: skip

    def answer(self, key, ok=True, right=True, verdict=None):
        self.callers.append(
            {"event": "answer", "monotonic": self.tick(), "key": key, "ok": ok,
             "right": right, "verdict": verdict}
        )  # fmt: skip

    def start(self, key, process="p1", predecessor="none", attempt=1):
        self.environment.append(
            {"event": "start", "monotonic": self.tick(), "key": key, "process": process,
             "predecessor": predecessor, "attempt": attempt}
        )  # fmt: skip

    def end(self, key, process="p1", how="result"):
        self.environment.append(
            {"event": "end", "monotonic": self.tick(), "key": key, "process": process, "how": how}
        )  # fmt: skip

    def kill(self, process, *, dead=True):
        alive_s = self.now
        self.killer.append(
            {"event": "kill", "what": "worker", "process": process, "sent_s": self.tick(),
             "monotonic": self.now}
        )  # fmt: skip
        if dead:
            self.died(process, alive_s)

    def died(self, process, alive_s):
        self.killer.append(
            {"event": "dead", "process": process, "alive_s": alive_s, "monotonic": self.tick()}
        )

    def rollout(self, key, process="p1"):
        self.ask(key)
        self.start(key, process)
        self.end(key, process)
        self.answer(key)

    def faults(self):
        """All that a demonstration must have suffered."""
        for number in range(3):
            process = f"victim{number}"
            for each in range(20):
                self.ask(f"{process}-{each}")
                self.start(f"{process}-{each}", process)
            self.kill(process)
            for each in range(20):
                self.start(f"{process}-{each}", "p1", "dead")
                self.end(f"{process}-{each}", "p1")
                self.answer(f"{process}-{each}")
            for how, outcomes in (("ordinary", 0), ("before receipt", 1)):
                self.killer.append(
                    {"event": "cut", "how": how, "connections": 4, "outcomes": outcomes,
                     "monotonic": self.tick()}
                )  # fmt: skip
        self.killer.append(
            {"event": "kill", "what": "server", "sent_s": self.tick(), "monotonic": self.now}
        )
        self.killer.append({"event": "serving", "monotonic": self.tick()})
        self.rollout("later", "p2")
        for epoch, count in (("a", 1), ("a", 2), ("b", 3)):
            self.killer.append(
                {"event": "counters", "epoch": epoch, "replayed": count, "coalesced": count,
                 "monotonic": self.tick()}
            )  # fmt: skip

    def judge(self):
        for name, lines in (
            (ENVIRONMENT, self.environment), (CALLERS, self.callers), (KILLER, self.killer),
        ):  # fmt: skip
            (self.directory / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return judge(self.directory)


@pytest.fixture
def history(tmp_path):
    made = History(tmp_path)
    made.rollout("first", "p0")
    made.faults()
    return made


def test_all_is_well(history):
    figures = history.judge()
    assert figures["ok"], figures["problems"]
    assert figures["asked"] == figures["answered"] == figures["started"] == 62
    assert figures["rerun_with_consent"] == 60
    assert figures["worker_restarts"] == 3
    assert figures["killed_with_worker"] == [20, 20, 20]
    assert figures["server_restarts"] == 1
    assert figures["connections_cut"] == 24
    # The last counters of each life of the server, added up.
    assert figures["replayed"] == figures["coalesced"] == 5
    command = [sys.executable, "-m", "trio_envserve.testing.judge_logs", str(history.directory)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0
    assert json.loads(run.stdout) == figures


def rerun(history, *, consent=True, predecessor="dead", process="p3", dead=True, ended=False):
    """A rollout that is run again."""
    history.ask("again", rerun=consent)
    history.start("again", "p2")
    if ended:
        history.end("again", "p2")
    history.kill("p2", dead=dead)
    history.start("again", process, predecessor)
    history.end("again", process)
    history.answer("again")


def test_a_rerun_after_a_proven_death_is_no_second_run(history):
    rerun(history)
    figures = history.judge()
    assert figures["ok"], figures["problems"]
    assert figures["rerun_with_consent"] == 61


def test_nor_is_one_whose_outcome_died_with_its_worker(history):
    rerun(history, ended=True)
    assert history.judge()["ok"]


@pytest.mark.parametrize(
    "how",
    [
        {"consent": False},
        {"consent": None},
        {"predecessor": "alive"},
        {"predecessor": "none"},
        {"process": "p2"},
        {"dead": False},
    ],
    ids=str,
)
def test_a_rerun_without_right_is_a_second_run(history, how):
    rerun(history, **how)
    figures = history.judge()
    assert not figures["ok"]
    assert figures["started_twice"] == 1
    assert figures["rerun_with_consent"] == 60
    assert figures["rerun_too_early"] == ("consent" not in how)


def test_a_predecessor_that_writes_on_was_alive(history):
    history.ask("again")
    history.start("again", "p2")
    history.start("again", "p3", "dead")
    history.end("again", "p3")
    history.end("again", "p2")
    history.kill("p2")
    history.answer("again")
    figures = history.judge()
    assert figures["rerun_too_early"] == figures["started_twice"] == 1


def test_a_predecessor_that_was_seen_alive_later_was_alive(history):
    history.ask("again")
    history.start("again", "p2")
    history.start("again", "p3", "dead")
    history.died("p2", alive_s=history.tick())
    history.end("again", "p3")
    history.answer("again")
    figures = history.judge()
    assert figures["rerun_too_early"] == figures["started_twice"] == 1


def test_a_death_that_is_seen_late_accuses_nobody(history):
    # Who watches sees a death after it has happened, possibly after the rerun began.
    history.ask("again")
    history.start("again", "p2")
    alive_s = history.tick()
    history.start("again", "p3", "dead")
    history.end("again", "p3")
    history.answer("again")
    history.died("p2", alive_s)
    assert history.judge()["ok"]


def test_a_run_after_the_answer_is_a_second_run(history):
    history.rollout("again", "p2")
    history.kill("p2")
    history.start("again", "p3", "dead")
    figures = history.judge()
    assert figures["started_twice"] == 1


def test_further_attempts_are_within_one_execution(history):
    history.ask("tried")
    history.start("tried", "p1")
    history.end("tried", "p1", how="RolloutError")
    history.start("tried", "p1", "alive", attempt=2)
    history.end("tried", "p1")
    history.answer("tried")
    assert history.judge()["ok"]


def test_what_is_lost_is_seen(history):
    history.ask("never answered")
    history.ask("error")
    history.answer("error", ok=False, right=False, verdict="MAY_HAVE_RUN")
    history.ask("wrong")
    history.answer("wrong", right=False)
    figures = history.judge()
    assert not figures["ok"]
    assert figures["lost"] == 3
    assert figures["errors"] == figures["wrong"] == 1
    assert figures["asked"] - figures["answered"] == 1


def test_an_error_that_is_not_true_is_seen(history):
    history.ask("lie")
    history.start("lie", "p1")
    history.answer("lie", ok=False, right=False, verdict="DID_NOT_RUN")
    assert history.judge()["untrue_errors"] == 1


def test_two_answers_to_one_call_are_seen(history):
    history.answer("first")
    figures = history.judge()
    assert figures["answered_twice"] == 1
    assert not figures["ok"]


def test_what_nobody_asked_for_is_seen(history):
    history.start("uncalled", "p1")
    assert history.judge()["started_unasked"] == 1


@pytest.mark.parametrize(
    ("event", "wanted"),
    [
        ("cut", {"how": "ordinary"}),
        ("cut", {"how": "before receipt"}),
        ("kill", {"what": "worker"}),
        ("kill", {"what": "server"}),
        ("serving", {}),
        ("counters", {}),
    ],
)
def test_without_a_fault_nothing_is_shown(history, event, wanted):
    gone = [x for x in history.killer if x["event"] == event and wanted.items() <= x.items()]
    if event in ("cut", "kill"):
        gone = gone[:1]
    history.killer = [line for line in history.killer if line not in gone]
    figures = history.judge()
    assert not figures["ok"]
    assert "nothing is shown" in figures["problems"][0]


def test_a_worker_that_was_killed_idle_does_not_count(history):
    # One of the twenty had ended in time.
    index = next(i for i, x in enumerate(history.environment) if x["process"] == "victim1")
    ended = {**history.environment[index], "event": "end", "how": "result"}
    history.environment.insert(index + 1, ended)
    assert history.judge()["worker_restarts"] == 2


def test_a_cut_without_an_outcome_on_the_way_does_not_count(history):
    cut = next(x for x in history.killer if x.get("how") == "before receipt")
    cut["outcomes"] = 0
    assert history.judge()["cuts_before_receipt"] == 2


def test_an_outcome_received_after_the_cut_is_counted(history):
    history.ask("late")
    history.start("late", "p1")
    history.end("late", "p1")
    history.killer.append(
        {"event": "cut", "how": "before receipt", "connections": 1, "outcomes": 1,
         "monotonic": history.tick()}
    )  # fmt: skip
    history.answer("late")
    assert history.judge()["received_after_cut"] == 1


def test_nothing_asked_is_nothing_shown(tmp_path):
    assert "nothing was asked" in History(tmp_path).judge()["problems"]


def test_logs_that_cannot_be_read_are_no_success(tmp_path):
    assert not judge(tmp_path)["ok"]
    History(tmp_path).judge()
    (tmp_path / KILLER).write_text("no JSON\n")
    assert "line 1" in judge(tmp_path)["problems"][0]


def test_it_imports_nothing_of_the_package():
    source = Path(judge_logs.__file__).read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            assert all(alias.name in sys.stdlib_module_names for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            assert str(node.module).partition(".")[0] in sys.stdlib_module_names


def test_it_wants_one_folder():
    command = [sys.executable, "-m", "trio_envserve.testing.judge_logs"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 2
    assert "usage" in run.stderr
