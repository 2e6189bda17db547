"""Trials: what goes well is not complained of, and what does not is found."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from trio_envserve import ConfigError, Rollout, RolloutFailed, ServerStartError
from trio_envserve.core.requests import Session
from trio_envserve.testing.trial import (
    FAULTS,
    JUDGES,
    Ask,
    History,
    Trial,
    TrialReport,
    run_trial,
)
from trio_envserve.testing.trial.environment import guarded
from trio_envserve.testing.trial.history import AskRecord, Life

ROOT = Path(__file__).resolve().parent.parent.parent


class Slow:
    """A trio environment that takes as long as it is told."""

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    async def run_rollout(self, rollout: Rollout) -> dict[str, Any]:
        await trio.sleep(rollout.input * self.factor)
        return {"reward": rollout.input, "state": {"attempt": rollout.attempt, "other": 1}}


INPUTS = [i % 9 for i in range(30)]


# -- all is well -------------------------------------------------------------------


@pytest.fixture(scope="module")
def reports() -> list[TrialReport]:
    return [run_trial(Slow(), INPUTS, seed=seed, moments=12) for seed in range(5)]


def test_nothing_is_found_in_what_ships(reports: list[TrialReport]):
    for report in reports:
        report.check()
        assert report.ok
        assert sum(report.faults.values()) == 12
        for ask in report.history.asks:
            assert ask.answered or ask.cancelled_s is not None
            if ask.outcome is not None and ask.outcome.ok:
                assert ask.outcome.value == {"reward": INPUTS[ask.number]}


def test_the_faults_do_strike(reports: list[TrialReport]):
    struck = {name for report in reports for name in report.faults}
    assert struck == {fault.__name__ for fault in FAULTS}
    for what in ("lost", "retransmitted", "coalesced", "replayed", "cancelled"):
        assert sum(report.counts[what] for report in reports) > 0, what
    assert any(report.counts["lives"] > 1 for report in reports)


def test_a_good_day():
    report = run_trial(Slow(), INPUTS, faults=(), clients=1)
    assert report.counts["answered"] == report.counts["executions"] == len(INPUTS)
    assert not report.faults
    assert "0 problems" in str(report)
    assert "faults: none" in str(report)
    assert report.virtual_s > 0


@pytest.mark.parametrize("consent", [True, False])
def test_a_workers_death_is_told_or_with_consent_runs_again(consent: bool):
    class Consenting(Slow):
        rerun = consent

    async def kill(trial: Trial) -> str:
        assert trial.kill_workers() == 1
        return "of the one"

    report = run_trial(Consenting(), [60.0] * 5, faults=[kill], moments=1, over_s=5.0)
    report.check()
    outcomes = [ask.outcome is not None and ask.outcome.ok for ask in report.history.asks]
    assert (report.counts["reruns"] > 0) == (report.counts["executions"] > 5) == consent
    assert all(outcomes) == consent


def test_options_groups_attempts_and_errors():
    class Choosy:
        tries = 0

        async def run_rollout(self, rollout: Rollout) -> Any:
            if rollout.input == "fail":
                raise ValueError("as asked")
            if rollout.input == "second":
                if rollout.attempt == 1:
                    raise ValueError("not yet")
                return {"state": {"attempt": rollout.attempt}}
            if rollout.input == "long":
                await trio.sleep_forever()
            answer = await rollout.ask([], reference="42")
            return {"text": answer.text}

    asks = [
        Ask("fail"),
        Ask("second", max_retries=1, state_columns=["attempt"]),
        Ask("long", timeout_s=5),
        Ask("plain", model="random"),
        Ask(["a", "fail", "c"], kind="group"),
    ]
    report = run_trial(Choosy, asks, faults=())
    report.check()
    fail, second, long, plain, group = report.history.asks
    assert isinstance(fail.outcome and fail.outcome.error, RolloutFailed)
    assert second.outcome is not None
    assert second.outcome.value == {"state": {"attempt": 2}}
    assert [run.attempt for run in report.history.executions_of(second.number)] == [1, 2]
    assert long.outcome is not None
    assert not long.outcome.ok
    assert plain.outcome is not None
    assert plain.outcome.value["text"] != "42"
    assert [member.ok for member in group.members] == [True, False, True]
    assert group.members[2].value == {"text": "42"}


def test_groups_that_are_scored_together():
    class Ranking:
        async def run_rollout(self, rollout: Rollout) -> Any:
            raise NotImplementedError

        def run_group(self, rollouts: list[Rollout]) -> list[Any]:
            best = max(rollout.input for rollout in rollouts)
            return [
                KeyError("zero") if not rollout.input else {"reward": rollout.input == best}
                for rollout in rollouts
            ]

    report = run_trial(Ranking(), [Ask([3, 0, 4], kind="group")] * 9, seed=3)
    report.check()
    done = [ask for ask in report.history.asks if ask.outcome is not None and ask.outcome.ok]
    assert done
    for ask in done:
        assert [member.value for member in ask.members if member.ok] == [
            {"reward": False}, {"reward": True},
        ]  # fmt: skip


def test_code_for_threads_runs_on_the_loop():
    def environment(rollout: Rollout) -> Any:
        assert not rollout.cancelled()
        return rollout.ask_sync([], reference="right").text

    report = run_trial(environment, range(10), seed=1, args=None)
    report.check()
    values = {ask.outcome.value for ask in report.history.asks if ask.outcome and ask.outcome.ok}
    assert values == {"right"}


def test_set_up_and_torn_down_in_every_life():
    said: list[str] = []

    class Careful(Slow):
        async def setup(self) -> None:
            said.append("up")

        def teardown(self) -> None:
            said.append("down")

    async def restart(trial: Trial) -> None:
        await trial.restart_server(drain_s=1.0)

    report = run_trial(Careful, INPUTS, args={"factor": 0.1}, faults=[restart], moments=2)
    report.check()
    assert said == ["up", "down"] * 3


# -- the seed decides --------------------------------------------------------------


def test_the_same_seed_gives_the_same_trial_in_another_process(tmp_path: Path):
    program = tmp_path / "trial_program.py"
    program.write_text(
        "import random, trio\n"
        "from trio_envserve.testing.trial import run_trial\n"
        "async def environment(rollout):\n"
        "    await trio.sleep(random.uniform(0, 9))\n"
        "    return random.random()\n"
        "print(*[run_trial(environment, range(10), seed=s).trace for s in (1, 1, 2)])\n"
    )
    traces = []
    for hash_seed in ("0", "1"):
        run = subprocess.run(
            [sys.executable, str(program)], capture_output=True, text=True, timeout=120, check=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        traces.append(run.stdout.split())
    (one, again, two), other = traces
    assert one == again
    assert one != two
    assert traces[0] == other


def test_the_callers_own_random_numbers_are_left_alone():
    random.seed(5)
    expected = random.random()
    random.seed(5)
    run_trial(Slow(), [1.0], faults=())
    assert random.random() == expected


# -- what is wrong is found ----------------------------------------------------------


def found(patch: pytest.MonkeyPatch, seeds: Iterator[int] | range = range(25)) -> str:
    """The first problem that any seed shows."""
    for seed in seeds:
        report = run_trial(Slow(), INPUTS, seed=seed, moments=12)
        if not report.ok:
            with pytest.raises(AssertionError, match=f"seed {seed}: "):
                report.check()
            return report.problems[0]
    return ""


def test_a_second_run_of_a_finished_request_is_found(monkeypatch: pytest.MonkeyPatch):
    def has_finished(self: Session, sequence: int) -> bool:
        return False

    monkeypatch.setattr(Session, "has_finished", has_finished)
    assert found(monkeypatch).startswith("G2")


def test_a_cancel_that_reaches_nobody_is_found():
    history = a_history()
    history.begin(1.0, 0, 0, 1)
    assert problems(history) == ["G7: execution 0 of ask 0 still ran 8 s after its call ended"]


def test_an_environment_that_swallows_its_cancellation_is_found():
    async def stubborn(rollout: Rollout) -> str:
        while True:
            try:
                await trio.sleep(1)
            except trio.Cancelled:
                pass

    async def cancel(trial: Trial) -> None:
        await trio.sleep(100)
        trial.cancel_ask()

    report = run_trial(stubborn, ["x"], faults=[cancel], moments=1, over_s=1.0)
    (run,) = report.history.executions
    assert run.how == "raised"
    (problem,) = report.problems
    assert problem.startswith("G7: execution 0 of ask 0 ignores its cancel: ")
    assert problem.endswith("must let trio.Cancelled through")


def test_an_environment_that_shields_itself_for_long_is_found():
    async def shielded(rollout: Rollout) -> str:
        with trio.CancelScope(shield=True):
            await trio.sleep(1000)
        return "too late"

    async def cancel(trial: Trial) -> None:
        await trio.sleep(100)
        assert trial.cancel_ask() == 0
        assert trial.cancel_ask(7) is None

    report = run_trial(shielded, ["x"], faults=[cancel], moments=1, over_s=1.0, settle_s=120.0)
    assert [text[:2] for text in report.problems] == ["G7", "G9"]
    assert "still ran" in report.problems[0]
    assert "ask 0: execution 0 begins" in str(report)


def test_a_call_that_never_ends_is_found():
    async def hang(rollout: Rollout) -> None:
        await trio.sleep_forever()

    report = run_trial(hang, ["x"], faults=(), settle_s=60.0)
    assert "G9: ask 0 was never answered" in report.problems


def test_own_faults_and_own_judges():
    seen: list[float] = []

    async def shake(trial: Trial) -> str:
        trial.cut()
        seen.append(trial.rng.random())
        return "hard"

    def nobody_waits_long(history: History) -> Iterator[str]:
        for ask in history.asks:
            if ask.ended_s is not None and ask.ended_s - ask.asked_s > 5:
                yield f"ask {ask.number} took long"

    options: dict[str, Any] = {
        "faults": [shake], "judges": (*JUDGES, nobody_waits_long), "moments": 3, "seed": 9,
    }  # fmt: skip
    good = run_trial(Slow(), [1.0] * 10, **options)
    good.check()
    assert good.faults == {"shake": 3}
    assert "shake hard" in good.history.story()
    bad = run_trial(Slow(), [1.0, 6.0], **options)
    assert bad.problems == ("ask 1 took long",)
    assert "ask 0" not in str(bad).partition("what happened")[2]
    assert len(set(seen)) == 3


def test_what_a_fault_raises_comes_out():
    async def broken(trial: Trial) -> None:
        raise KeyError("my own mistake")

    with pytest.RaisesGroup(KeyError, flatten_subgroups=True, allow_unwrapped=True):
        run_trial(Slow(), [1.0], faults=[broken], moments=1)


# -- each judge alone, on histories that are made up ------------------------------------


def a_history(*, rerun: bool = False) -> History:
    """One ask, asked at 1 s and ended at 2 s; nothing has run."""
    history = History(rerun=rerun, patience_s=60.0)
    history.lives.append(Life(0.0, None))
    history.asks.append(AskRecord(0, "x", "rollout", {}, "client-0", 1.0, 2.0))
    history.ended_s = 10.0
    return history


def problems(history: History) -> list[str]:
    return [text for judge in JUDGES for text in judge(history)]


def ran(history: History, began_s: float, ended_s: float, **options: Any) -> None:
    attempt = options.pop("attempt", 1)
    history.end(ended_s, history.begin(began_s, 0, 0, attempt), **options)


def test_the_judges_of_executions():
    history = a_history()
    assert problems(history) == []
    ran(history, 1.0, 1.5)
    ran(history, 1.6, 1.7, attempt=2)
    assert problems(history) == []
    ran(history, 1.65, 1.9)
    assert [text[:2] for text in problems(history)] == ["G1", "G2"]
    consenting = a_history(rerun=True)
    for i in range(3):
        ran(consenting, 1 + i / 10, 1.05 + i / 10)
    assert problems(consenting) == []
    consenting.asks[0].options["max_executions"] = 2
    assert [text[:2] for text in problems(consenting)] == ["G2"]
    consenting.asks[0].options["rerun"] = False
    assert "3 times, 1 allowed" in problems(consenting)[0]


def test_the_judges_of_answers():
    from trio_envserve.client import Outcome
    from trio_envserve.core.errors import MayHaveRun, NeverStarted

    history = a_history()
    (ask,) = history.asks
    ask.outcome = Outcome.failed(RolloutFailed("it failed"))
    assert "says that it ran, and it did not" in problems(history)[0]
    ran(history, 1.0, 1.5, how="raised")
    assert problems(history) == []
    ask.outcome = Outcome.failed(NeverStarted("not at all"))
    assert "says that it did not run, and it did" in problems(history)[0]
    ask.outcome, ask.came_from = Outcome(value=1), [0]
    assert "from execution 0, which returned none" in problems(history)[0]
    ask.foreign.append("the value of ask 3 (execution 5)")
    assert problems(history)[0] == "G3: ask 0 got the value of ask 3 (execution 5)"

    history = a_history()
    (ask,) = history.asks
    ask.outcome = Outcome.failed(MayHaveRun("who knows"))
    ran(history, 1.0, 1.5)
    assert problems(history)[0].startswith("G4: execution 0 of ask 0 returned a value")
    history.kills_s.append(1.2)
    assert problems(history) == []
    history.kills_s.clear()
    history.lives[0] = Life(0.0, 1.7)
    assert problems(history) == []
    history.lives[0] = Life(0.0, 2.7)
    assert problems(history) != []
    history.longest_apart_s = 60.0
    assert problems(history) == []


def test_the_judges_of_the_end():
    history = a_history()
    history.outcomes_sent["s/1"] = {"one", "other"}
    history.left = {"running": 0, "kept": 2}
    assert problems(history) == [
        "G3: request s/1 was answered with 2 different outcomes",
        "G9: the server is left with 2 kept",
    ]
    history.asks[0].ended_s = None
    assert "G9: ask 0 was never answered" in problems(history)


# -- wrong use ------------------------------------------------------------------------


async def test_it_is_no_coroutine_and_says_so():
    with pytest.raises(ConfigError, match="loop of its own"):
        run_trial(Slow(), [1.0])


class OnAsyncio(Slow):
    backend = "asyncio"


@pytest.mark.parametrize(
    ("environment", "ask", "options", "told"),
    [
        (OnAsyncio, 1.0, {}, "no virtual clock"),
        (Slow, Ask(1.0, timeout_s=-1), {}, "timeout_s"),
        (Slow, 1.0, {"clients": 0}, "clients"),
        (Slow, 1.0, {"moments": -1}, "moments"),
        (Slow, 1.0, {"over_s": -1.0}, "over_s"),
    ],
)
def test_wrong_use_is_refused(environment: Any, ask: Any, options: dict[str, Any], told: str):
    with pytest.RaisesGroup(
        pytest.RaisesExc(ConfigError, match=told), flatten_subgroups=True, allow_unwrapped=True
    ):
        run_trial(environment(), [ask], **options)


def test_a_broken_environment_is_told_with_its_traceback():
    class Broken(Slow):
        async def setup(self) -> None:
            raise RuntimeError("no such disk")

    with pytest.RaisesGroup(
        pytest.RaisesExc(ServerStartError, match="no such disk"),
        flatten_subgroups=True, allow_unwrapped=True,
    ):  # fmt: skip
        run_trial(Broken(), [1.0])


# -- code that is ended ------------------------------------------------------------------


async def test_guarded_code_sees_everything_as_it_is():
    async def code(value: int) -> int:
        with trio.move_on_after(0.01) as scope:
            await trio.sleep_forever()
        assert scope.cancelled_caught
        try:
            await fails()
        except KeyError:
            return value + 1
        return value

    async def fails() -> None:
        await trio.lowlevel.checkpoint()
        raise KeyError

    assert await guarded(code(4)) == 5


@pytest.mark.parametrize("name", ["_r", "_ALLOW_DETERMINISTIC_SCHEDULING"])
def test_a_trio_whose_order_cannot_be_decided_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No seed would give the same trial twice, and nobody would be told."""
    monkeypatch.delattr(f"trio._core._run.{name}")
    with pytest.raises(ConfigError, match=f"how trio {trio.__version__} orders its tasks"):
        run_trial(Slow(), INPUTS)
