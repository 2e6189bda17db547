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

from trio_envserve.lab import history as history_of_logs
from trio_envserve.lab.demo import judge_duplicates, judge_logs
from trio_envserve.lab.demo.judge_logs import judge
from trio_envserve.lab.history import CALLERS, ENVIRONMENT, KILLER


class History:
    """A run in which all is well, until something is added."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.now = 100.0
        self.environment: list[dict[str, Any]] = []
        self.callers: list[dict[str, Any]] = []
        self.killer: list[dict[str, Any]] = []
        self.sequences: dict[str, int] = {}

    def tick(self) -> float:
        self.now += 1.0
        return self.now

    def tap(self, event, key=None, **fields):
        """A line of a caller's socket; a request's sequence is its place."""
        if key is not None:
            fields["sequence"] = self.sequences.setdefault(key, len(self.sequences))
        fields = {"caller": 0, "session": "s", **fields}
        if event == "request":
            fields["key"] = key
        elif event == "outcome":
            fields.setdefault("digest", "d")
        self.callers.append({"event": event, "monotonic": self.tick(), **fields})

    def ping(self, probe, answered=True):
        self.tap("ping", probe=probe)
        if answered:
            self.tap("pong", probe=probe)

    def cut(self, how="ordinary", *keys):
        self.killer.append(
            {"event": "cut", "how": how, "connections": 4, "monotonic": self.tick(),
             "withheld": [["s", self.sequences[key]] for key in keys]}
        )  # fmt: skip

    def serving(self, pid, address="tcp://here"):
        self.killer.append(
            {"event": "serving", "monotonic": self.tick(), "pid": pid, "address": address}
        )

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

    def withheld(self, key, process="p1"):
        """A rollout whose outcome is withheld by a cut, and sent again."""
        self.ask(key)
        self.tap("request", key)
        self.start(key, process)
        self.end(key, process)
        self.cut("before receipt", key)
        self.tap("connected")
        self.tap("outcome", key)
        self.answer(key)

    def repeated(self, key, process="p1", *, during=1, after=0, refused=0, replies=0):
        """A rollout whose request is sent again while it runs and after it."""
        self.ask(key)
        self.tap("request", key)
        self.start(key, process)
        for _ in range(during):
            self.tap("request", key)
        self.end(key, process)
        self.tap("outcome", key)
        self.answer(key)
        for _ in range(after):
            self.tap("request", key)
        for _ in range(replies):
            self.tap("outcome", key)
        for _ in range(refused):
            self.tap("refused", key, code="finished")

    def faults(self):
        """All that a demonstration must have suffered."""
        self.killer.append(
            {"event": "begin", "workers": 2, "monotonic": self.tick()}
        )  # fmt: skip
        self.serving(1)
        for number in range(3):
            process, heir = f"victim{number}", f"heir{number}"
            for each in range(20):
                self.ask(f"{process}-{each}")
                self.start(f"{process}-{each}", process)
            self.kill(process)
            for each in range(20):
                self.start(f"{process}-{each}", heir, "dead")
                self.end(f"{process}-{each}", heir)
                self.answer(f"{process}-{each}")
            self.cut()
            self.withheld(f"withheld-{number}", heir)
        self.tap("connected")
        self.repeated("twice", "heir2")
        self.ping(1)
        alive_s = self.now
        self.killer.append(
            {"event": "kill", "what": "server", "sent_s": self.tick(), "monotonic": self.now,
             "pid": 1}
        )  # fmt: skip
        for process in ("p0", "heir0", "heir1", "heir2"):
            self.died(process, alive_s)
        self.serving(2)
        self.tap("connected")
        self.rollout("later", "p2")

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
    assert figures["asked"] == figures["answered"] == figures["started"] == 66
    assert figures["rerun_with_consent"] == 60
    assert figures["worker_restarts"] == 3
    assert figures["killed_with_worker"] == [20, 20, 20]
    assert figures["server_restarts"] == 1
    assert figures["connections_cut"] == 24
    assert figures["replayed"] == figures["received_after_cut"] == 3
    assert figures["coalesced"] == 1
    command = [
        sys.executable,
        "-m",
        "trio_envserve.lab.demo.judge_logs",
        str(history.directory),
    ]
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
        ("begin", {}),
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


def test_a_killed_worker_that_nothing_replaced_does_not_count(history):
    heir = [x for x in history.environment if x["process"] == "heir2"]
    for line in heir:
        line["process"] = "heir0"
    assert history.judge()["worker_restarts"] == 2


def test_nor_does_one_after_which_a_late_beginner_came(history):
    # Its slot had not begun anything when the worker died: it is no replacement.
    history.environment = [x for x in history.environment if x["process"] != "p0"]
    assert history.judge()["worker_restarts"] == 2


@pytest.mark.parametrize(
    "change", [{"address": "tcp://elsewhere"}, {"pid": 1}, {"monotonic": 1e6}], ids=str
)
def test_a_server_that_did_not_come_back_is_seen(history, change):
    [line for line in history.killer if line["event"] == "serving"][1].update(change)
    assert history.judge()["server_restarts"] == 0


def test_a_server_whose_worker_lives_on_has_not_come_back(history):
    history.killer = [x for x in history.killer if x.get("process") != "heir2"]
    assert history.judge()["server_restarts"] == 0


def kill_host(history, *, dead=True, again=5):
    """All workers are its own, and one of them runs something; another host takes its place."""
    history.killer.append({"event": "begin", "monotonic": 1.0, "workers": 2, "hosts": 1})
    history.ask("mine")
    history.start("mine", "on-host")
    history.killer.append(
        {"event": "kill", "what": "host", "pid": 4, "sent_s": history.tick(),
         "monotonic": history.now}
    )  # fmt: skip
    living = {line["process"] for line in history.environment} - {
        line["process"] for line in history.killer if line["event"] == "dead"
    }  # fmt: skip
    for process in living if dead else living - {"on-host"}:
        history.died(process, history.now - 1.0)
    history.killer.append({"event": "joined", "monotonic": history.tick(), "pid": again})
    history.start("mine", "on-the-next", "dead")
    history.end("mine", "on-the-next")
    history.answer("mine")


def test_a_host_that_was_killed_and_replaced_counts(history):
    kill_host(history)
    figures = history.judge()
    assert figures["ok"], figures["problems"]
    assert figures["host_restarts"] == 1


def test_a_host_that_was_not_killed_shows_nothing(history):
    kill_host(history)
    history.killer = [line for line in history.killer if line.get("what") != "host"]
    figures = history.judge()
    assert figures["host_restarts"] == 0
    assert "kills of a host" in figures["problems"][0]


@pytest.mark.parametrize("how", [{"dead": False}, {"again": 4}], ids=str)
def test_a_host_whose_workers_live_on_or_that_is_the_same_was_not_replaced(history, how):
    kill_host(history, **how)
    assert history.judge()["host_restarts"] == 0


def test_a_cut_without_an_outcome_on_the_way_does_not_count(history):
    cut = next(x for x in history.killer if x.get("how") == "before receipt")
    cut["withheld"] = []
    assert history.judge()["cuts_before_receipt"] == 2
    cut["withheld"] = [["s", 99]]  # that nobody had asked for
    figures = history.judge()
    assert figures["cuts_before_receipt"] == figures["replayed"] == 2


def test_an_outcome_received_after_the_cut_is_counted(history):
    history.withheld("late")
    figures = history.judge()
    assert figures["received_after_cut"] == figures["replayed"] == 4


def test_an_outcome_that_a_cut_withheld_for_ever_was_sent_once(history):
    history.withheld("late")
    history.callers = [
        x for x in history.callers
        if (x["event"], x.get("sequence")) != ("outcome", history.sequences["late"])
    ]  # fmt: skip
    figures = history.judge()
    assert figures["received_after_cut"] == figures["replayed"] == 3


def test_a_log_without_outcomes_passed_where_two_cuts_withheld_the_same(history):
    first, second, *_ = [x for x in history.killer if x.get("how") == "before receipt"]
    second["withheld"] = first["withheld"]
    history.callers = [x for x in history.callers if x["event"] != "outcome"]
    figures = history.judge()
    assert figures["replayed"] > 0
    (problem,) = figures["problems"]
    assert problem.startswith("only 0 outcomes received after a cut had withheld them")


@pytest.mark.parametrize(
    ("how", "coalesced", "replayed"),
    [
        ({}, 1, 0),
        ({"during": 3}, 3, 0),
        ({"during": 0}, 0, 0),
        ({"during": 0, "after": 1, "refused": 1}, 0, 0),
        ({"during": 1, "after": 1, "refused": 1}, 1, 0),
        ({"during": 1, "after": 1, "replies": 1}, 1, 1),
        ({"during": 2, "after": 2, "replies": 1, "refused": 1}, 2, 1),
        # Sent while it ran, but there when it had ended: both were answered.
        ({"during": 2, "replies": 2}, 0, 2),
        ({"during": 2, "replies": 1}, 1, 1),
        ({"during": 1, "refused": 1}, 0, 0),
        # Not answered, and not sent while it ran: nothing is sure of it.
        ({"during": 0, "after": 1}, 0, 0),
        # More outcomes than duplicates: a sync may have asked for one, too.
        ({"during": 1, "replies": 3}, 0, 3),
    ],
    ids=str,
)
def test_what_became_of_duplicates(history, how, coalesced, replayed):
    before = history.judge()
    history.repeated("again", **how)
    history.ping(2)
    after = history.judge()
    assert after["coalesced"] - before["coalesced"] == coalesced
    assert after["replayed"] - before["replayed"] == replayed


def test_a_duplicate_that_may_not_have_arrived_is_left_out(history):
    def found():
        return history.judge()["coalesced"]

    before = found()
    history.repeated("a")
    assert found() == before  # no ping
    history.ping(2, answered=False)
    assert found() == before  # no pong
    history.tap("disconnected")
    history.tap("connected")
    history.tap("pong", probe=2)
    assert found() == before  # the ping waited, the duplicate may be lost
    history.repeated("b")
    history.cut()
    history.ping(3)
    assert found() == before
    history.tap("connected")
    history.ping(4)
    assert found() == before
    history.repeated("c")
    history.ping(5)
    assert found() == before + 1


def test_a_duplicate_that_found_the_outcome_lost_on_the_way_is_a_replay(history):
    before = history.judge()["coalesced"]
    history.ask("again")
    history.tap("request", "again")
    history.start("again")
    history.end("again")
    history.cut()
    history.tap("connected")
    history.tap("request", "again")
    history.tap("outcome", "again")
    history.answer("again")
    history.ping(2)
    assert history.judge()["coalesced"] == before


def test_outcomes_that_are_not_the_same_bytes_are_seen(history):
    history.tap("outcome", "twice", digest="other")
    figures = history.judge()
    assert figures["outcomes_differ"] == 1
    assert not figures["ok"]


@pytest.mark.parametrize(("event", "figure"), [("pong", "coalesced"), ("outcome", "replayed")])
def test_without_what_the_sockets_gave_nothing_is_shown(history, event, figure):
    history.callers = [x for x in history.callers if x["event"] != event]
    figures = history.judge()
    assert figures[figure] == 0
    assert not figures["ok"]


def test_nothing_asked_is_nothing_shown(tmp_path):
    assert "nothing was asked" in History(tmp_path).judge()["problems"]


def test_logs_that_cannot_be_read_are_no_success(tmp_path):
    assert not judge(tmp_path)["ok"]
    History(tmp_path).judge()
    (tmp_path / KILLER).write_text("no JSON\n")
    assert "line 1" in judge(tmp_path)["problems"][0]


@pytest.mark.parametrize("module", [judge_logs, judge_duplicates, history_of_logs])
def test_it_imports_nothing_of_the_package_but_its_other_parts(module):
    source = Path(module.__file__).read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            assert all(alias.name in sys.stdlib_module_names for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            assert (node.level, node.module) in {(2, "history"), (1, "judge_duplicates")}
        elif isinstance(node, ast.ImportFrom):
            assert str(node.module).partition(".")[0] in sys.stdlib_module_names


def test_it_wants_one_folder():
    command = [sys.executable, "-m", "trio_envserve.lab.demo.judge_logs"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 2
    assert "usage" in run.stderr
