"""Trials: what goes well is not complained of, and what does not is found."""

from __future__ import annotations

import os
import random
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from trio_envserve import ConfigError, Rollout, RolloutFailed, ServerStartError
from trio_envserve.client import Outcome
from trio_envserve.core.errors import MayHaveRun, NeverStarted
from trio_envserve.core.sessions import Session
from trio_envserve.retrylab import Event, Judge, Violation, judge_log
from trio_envserve.testing.trial import (
    FAULTS,
    JUDGES,
    Ask,
    IgnoredCancel,
    Trial,
    TrialAnswer,
    TrialReport,
    guarded,
    run_trial,
)

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
        assert report.counts["told"] + report.counts["withdrawn"] == len(INPUTS)
        for request, outcome in report.outcomes().items():
            assert not outcome.ok or outcome.value == {"reward": INPUTS[int(request[4:])]}


def test_the_faults_do_strike(reports: list[TrialReport]):
    struck = {name for report in reports for name in report.faults}
    assert struck == {fault.__name__ for fault in FAULTS}
    for what in ("lost", "retransmitted", "coalesced", "replayed", "withdrawn"):
        assert sum(report.counts[what] for report in reports) > 0, what
    assert any(report.counts["lives"] > 1 for report in reports)


def test_a_good_day():
    report = run_trial(Slow(), INPUTS, faults=(), clients=1)
    assert report.counts["told"] == report.counts["executions"] == len(INPUTS)
    assert not report.faults
    assert "0 violations" in str(report)
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
    assert (report.counts["reruns"] > 0) == (report.counts["executions"] > 5) == consent
    assert [outcome.ok for outcome in report.outcomes().values()] == [consent] * 5


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
    told = report.outcomes()
    assert isinstance(told["ask 0"].error, RolloutFailed)
    assert told["ask 1"].value == {"state": {"attempt": 2}}
    began = [event for event in report.history if event.kind == "began"]
    assert [event.what for event in began if event.request == "ask 1"] == [1, 2]
    assert not told["ask 2"].ok
    assert told["ask 3"].value["text"] != "42"
    assert [told[f"ask 4.{member}"].ok for member in range(3)] == [True, False, True]
    assert told["ask 4.2"].value == {"text": "42"}


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
    values = [
        {request[-1]: outcome.value for request, outcome in report.outcomes().items()
         if outcome.ok and request.startswith(f"ask {number}.")} for number in range(9)
    ]  # fmt: skip
    assert {"0": {"reward": False}, "2": {"reward": True}} in values
    assert all(len(each) in (0, 2) for each in values)


def test_code_for_threads_runs_on_the_loop_and_asks_its_judge_there():
    def environment(rollout: Rollout) -> Any:
        assert not rollout.cancelled()
        judged = rollout.ask_sync([], reference="good", endpoint="judge")
        return rollout.ask_sync([], reference="right").text, judged.text

    asks = [Ask(number, roles={"judge": "oracle"}) for number in range(10)]
    report = run_trial(environment, asks, seed=1, args=None)
    report.check()
    values = [outcome.value for outcome in report.outcomes().values() if outcome.ok]
    assert values
    assert all(value == ["right", "good"] for value in values)


class JudgedByThread:
    rollout: Any = None

    def reset(self) -> str:
        return "Write."

    def oracle(self) -> list[str]:
        return ["An essay."]

    def get_reward(self) -> float:
        judge = [{"role": "user", "content": "How good is it?"}]
        return float(self.rollout.ask_sync(judge, reference="0.5", endpoint="judge").text)


class JudgedOnLoop(JudgedByThread):
    async def get_reward(self) -> float:  # type: ignore[override]  # a class may have either
        judge = [{"role": "user", "content": "How good is it?"}]
        return float((await self.rollout.ask(judge, reference="0.5", endpoint="judge")).text)


@pytest.mark.parametrize("environment", [JudgedByThread, JudgedOnLoop])
def test_a_class_asks_its_judge(environment: type):
    asks = [Ask({}, roles={"judge": "oracle"}) for _ in range(3)]
    report = run_trial(environment, asks, faults=())
    assert [one.value["reward"] for one in report.outcomes().values()] == [0.5] * 3


@pytest.mark.parametrize("how", ["run", "run_sync", "process", "sandbox"])
def test_rollout_that_starts_a_process_got_a_reward_that_was_wrong(how: str):
    """The virtual clock passed the limit of the process while that worked."""

    async def environment(rollout: Rollout) -> dict[str, Any]:
        await getattr(rollout, how)("true" if how == "sandbox" else ["true"])
        return {"reward": 1.0}

    report = run_trial(environment, [Ask({})], faults=())
    (told,) = report.outcomes().values()
    assert isinstance(told.error, RolloutFailed)
    assert "a trial runs no processes and no sandboxes" in str(told.error)


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


def test_the_same_seed_gives_the_same_trial_in_another_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    program = tmp_path / "trial_program.py"
    program.write_text(
        "import random, trio\n"
        "from trio_envserve.testing.trial import run_trial\n"
        "async def environment(rollout):\n"
        "    await trio.sleep(random.uniform(0, 9))\n"
        "    return random.random()\n"
        "print(*[run_trial(environment, range(10), seed=s).digest for s in (1, 1, 2)])\n"
    )
    runpy.run_path(str(program), run_name="__main__")
    here = capsys.readouterr().out.split()
    one, again, two = here
    assert one == again
    assert one != two
    other = "1" if os.environ.get("PYTHONHASHSEED") == "2" else "2"  # here it may be random
    run = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=120, check=True,
        env={**os.environ, "PYTHONHASHSEED": other, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert run.stdout.split() == here


def test_the_callers_own_random_numbers_are_left_alone():
    random.seed(5)
    expected = random.random()
    random.seed(5)
    run_trial(Slow(), [1.0], faults=())
    assert random.random() == expected


# -- what is wrong is found ----------------------------------------------------------


def test_a_second_run_of_a_finished_request_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Session, "has_finished", lambda session, sequence: False)
    reports = (run_trial(Slow(), INPUTS, seed=seed, moments=12) for seed in range(25))
    broken = next(report for report in reports if not report.ok)
    with pytest.raises(AssertionError, match=f"seed {broken.seed}: "):
        broken.check()
    assert broken.violations[0].startswith("G2")


def test_a_cancel_that_reaches_nobody_is_found():
    assert found_in(ASKED, began(0), told(2.0, error=NeverStarted("no"))) == [
        "G9 at 2.000 s: ask 0: NeverStarted says that it did not run, and it did",
        "G7 at 10.000 s: execution 0 of ask 0 still ran 8 s after its call ended",
    ]


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
    (ended,) = [event for event in report.history if event.kind == "ended"]
    assert isinstance(ended.what, IgnoredCancel)
    (violation,) = report.violations
    assert violation.text.startswith("execution 0 of ask 0 ignores its cancel: ")
    assert violation.endswith("must let trio.Cancelled through")


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
    assert [each.guarantee for each in report.violations] == ["G9", "G7"]
    assert "still ran" in report.violations[1]
    assert "ask 0        execution 0 begins" in str(report)


def test_a_call_that_never_ends_is_found():
    async def hang(rollout: Rollout) -> None:
        await trio.sleep_forever()

    report = run_trial(hang, ["x"], faults=(), settle_s=60.0)
    assert "ask 0 is never told" in [each.text for each in report.violations]


def test_own_faults_and_own_judges():
    seen: list[float] = []

    async def shake(trial: Trial) -> str:
        trial.cut()
        seen.append(trial.rng.random())
        return "hard"

    class NobodyWaitsLong(Judge):
        def __init__(self) -> None:
            self.asked_s: dict[str, float] = {}

        def see(self, event: Event) -> Iterator[Violation]:
            if event.kind == "asked":
                self.asked_s[event.request] = event.at_s
            if event.kind == "told" and event.at_s - self.asked_s[event.request] > 5:
                yield event.breaks("quick", f"{event.request} took long")

    options: dict[str, Any] = {
        "faults": [shake], "judges": (*JUDGES, NobodyWaitsLong), "moments": 3, "seed": 9,
    }  # fmt: skip
    good = run_trial(Slow(), [1.0] * 10, **options)
    good.check()
    assert good.faults == {"shake": 3}
    assert ("shake", "hard") in [(record.who, record.what) for record in good.trace]
    bad = run_trial(Slow(), [1.0, 6.0], **options)
    assert [each.text for each in bad.violations] == ["ask 1 took long"]
    assert "ask 0" not in str(bad).partition("what happened")[2]
    assert len(set(seen)) == 3


def test_what_a_fault_raises_comes_out():
    async def broken(trial: Trial) -> None:
        raise KeyError("my own mistake")

    with pytest.RaisesGroup(KeyError, flatten_subgroups=True, allow_unwrapped=True):
        run_trial(Slow(), [1.0], faults=[broken], moments=1)


# -- each judge alone, on histories that are made up ------------------------------------


def event(kind: Any, actor: str, what: Any = None, at_s: float = 1.0) -> Event:
    request = "ask 0" if actor.startswith(("client", "execution")) else ""
    return Event(at_s, kind, actor, request, what)


def asked(**options: Any) -> Event:
    return event("asked", "client-0", Ask("x", **options))


def began(number: int, attempt: int = 1) -> Event:
    return event("began", f"execution {number}", attempt)


def over(number: int) -> Event:
    return event("ended", f"execution {number}")


def told(at_s: float = 1.0, *, error: Any = None, execution: int = 0) -> Event:
    outcome = Outcome(value=1) if error is None else Outcome.failed(error)
    return event(
        "told", "client-0", TrialAnswer(outcome, f"execution {execution}" * outcome.ok), at_s
    )


ASKED, CONSENTS = asked(), asked(rerun=True)
DID = event("did", "execution 0", 1)
WHOLE = (began(0), DID, over(0), told())
LOST = told(error=MayHaveRun("who knows"))


def found_in(*events: Event, **left: int) -> list[str]:
    """Violations that the judges find; what the server is left with at the end."""
    wants = {"rerun": False, "patience_s": 60.0}
    begin, rest = event("phase", "begin", wants), event("phase", "rest", left, 10.0)
    return list(map(str, judge_log(JUDGES, [begin, *events, rest])))


def guarantees(*events: Event) -> list[str]:
    return [text[:2] for text in found_in(*events)]


def test_the_judges_of_executions():
    assert found_in(ASKED, *WHOLE) == []
    assert found_in(ASKED, began(0), over(0), began(1, attempt=2), *WHOLE[1:3], over(1)) != []
    assert found_in(ASKED, began(0), began(1), DID, over(0), over(1), told()) == [
        "G1 at 1.000 s: execution 1 holds 'ask 0' with execution 0",
        "G2 at 1.000 s: ask 0 was executed more than allowed",
    ]
    thrice = [each for number in (1, 2) for each in (began(number), over(number))]
    assert guarantees(CONSENTS, *thrice, *WHOLE) == []
    assert guarantees(ASKED, *thrice, *WHOLE) == ["G2", "G2"]
    assert guarantees(asked(rerun=True, max_executions=2), *thrice, *WHOLE) == ["G2"]


def test_the_judges_of_answers():
    failed = told(error=RolloutFailed("it failed"))
    assert "says that it ran, and it did not" in found_in(ASKED, failed)[0]
    assert found_in(ASKED, began(0), over(0), failed) == []
    never = told(error=NeverStarted("not at all"))
    assert "says that it did not run, and it did" in found_in(ASKED, began(0), over(0), never)[0]
    assert "'execution 5', which was not done for it" in found_in(
        ASKED, *WHOLE[:3], told(execution=5)
    )[0]  # fmt: skip


@pytest.mark.parametrize(
    ("between", "seen"),
    [
        ([], ["G4"]),
        ([event("died", "workers")], []),
        ([event("died", "server")], []),
        ([event("harmed", "network", 59.0)], ["G4"]),
        ([event("harmed", "network", 60.0)], []),
    ],
)
def test_a_value_that_was_returned_reaches_its_caller(between: list[Event], seen: list[str]):
    assert guarantees(ASKED, began(0), DID, over(0), *between, LOST) == seen
    assert guarantees(asked(timeout_s=9), began(0), DID, over(0), *between, LOST) == []


def test_a_death_before_an_execution_excuses_nothing():
    died = event("died", "workers")
    assert guarantees(ASKED, died, began(0), DID, over(0), LOST) == ["G4"]


def test_the_judges_of_the_end():
    sent = [Event(1.0, "sent", "server", "s/1", digest) for digest in ("one", "other")]
    assert found_in(ASKED, *WHOLE, *sent, running=0, kept=2) == [
        "G3 at 1.000 s: s/1 was answered with different outcomes",
        "G9 at 10.000 s: the server is left with 2 kept",
    ]
    assert found_in(ASKED) == ["G9 at 10.000 s: ask 0 is never told"]
    assert found_in(ASKED, event("withdrawn", "client-0")) == []


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
