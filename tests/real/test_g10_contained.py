"""G10: what a rollout has done to its worker harms that worker, and is over soon."""

from __future__ import annotations

import re
from typing import Any

import pytest
import trio

from tests.real.judge import Judge
from tests.real.support import ACTOR, PATIENCE_S, honest_s, info_of, is_doomed, serving, until
from trio_envserve import (
    Client,
    Fault,
    InterpreterHeld,
    Outcome,
    RolloutFailed,
    WorkerLost,
    open_client,
    open_server,
)
from trio_envserve.core import pool
from trio_envserve.lab.simulation.junk import KINDS

FENCED = ("another incarnation", "nothing")
"""Kinds that another process may have sent, for all that is known: such a worker is ended by its
silence."""


EACH_KIND = [
    pytest.param(kind, marks=[pytest.mark.slow] * (kind not in ("headers cut short", "nothing")))
    for kind in sorted(KINDS)
]
"""One of each way to end; how the others are read, the tests of the simulator's junk show."""


@pytest.mark.parametrize("kind", EACH_KIND)
async def test_g10_a_worker_that_speaks_junk_is_ended_and_nobody_waits_for_it(
    judge: Judge, kind: str
):
    """A rollout changed a library: neighbours and all later calls waited for ever."""
    limits: dict[str, Any] = {}
    if kind in FENCED:
        limits = {"silence_kill_s": await honest_s(judge), "silence_report_s": 0.5}
    async with serving(judge, worker_capacity=4, **limits) as (_, calls):
        calls.start("neighbour", ["wait", "never"], rerun=False)
        calls.start("again", ["wait", "go"], rerun=True)
        await judge.wait_started("neighbour", "again")
        calls.start("spoiler", ["speak junk", kind], rerun=False)
        [pid] = judge.pids("neighbour")
        error = info_of(await calls.error("neighbour", WorkerLost))
        assert is_doomed(pid)  # not before the proof (G1)
        words = "it sent no message for" if kind in FENCED else "malformed message"
        assert words in error.message
        await calls.error("spoiler", WorkerLost)
        judge.put("go")
        for number in range(8):
            calls.start(f"later{number}")
        await calls.values("again", *(f"later{number}" for number in range(8)))
    judge.assert_at_most(2)
    assert judge.starts("again") == 2
    assert judge.starts("neighbour") == judge.starts("spoiler") == 1


@pytest.mark.parametrize("environment", [ACTOR, ACTOR.replace("Actor", "ThreadActor")])
async def test_g10_who_holds_the_interpreter_is_named_in_all_errors_and_in_the_log(
    judge: Judge, environment: str, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    """One regular expression cost 63 neighbours, and nobody was told which, or where."""
    silence_counts_once_it_is_held(monkeypatch)
    limits: dict[str, Any] = {"silence_kill_s": 1.0, "silence_report_s": 0.5}
    async with serving(judge, environment=environment, worker_capacity=4, **limits) as (_, calls):
        calls.start("neighbour", ["block", "never"] if "Thread" in environment else ["wait", "no"])
        await judge.wait_started("neighbour")
        calls.start("holder", ["hang", "held"])
        beside = await calls.error("neighbour", WorkerLost)
        guilty = await calls.error("holder", InterpreterHeld)
        request = info_of(guilty).message.partition("by request ")[2].partition(",")[0]
        line = re.compile(rf'by request {request}, at File ".*environments.py", line \d+, in hang')
        for text in (str(beside), str(guilty), caplog.text):
            assert line.search(text), text
        assert (guilty.fault, guilty.mask, guilty.again) == (Fault.ENVIRONMENT, True, False)
        assert isinstance(guilty, WorkerLost)
    judge.assert_at_most(1)


def silence_counts_once_it_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is blamed before a second of processor time, which a busy machine may not have for
    longer than any limit of silence that a test could wait for."""
    is_too_silent = pool._is_too_silent

    def once_it_is_held(of: pool.Pool, life: pool.Life, now_s: float) -> bool:
        return bool(life.held_by) and is_too_silent(of, life, now_s)

    monkeypatch.setattr(pool, "_is_too_silent", once_it_is_held)


async def test_g10_a_rollout_that_computes_and_gives_way_is_not_blamed(
    judge: Judge, caplog: pytest.LogCaptureFixture
):
    """It runs for longer than it takes to be blamed (1 s of a processor)."""
    environment = ACTOR.replace("Actor", "ThreadActor")
    async with serving(judge, environment=environment, worker_capacity=2) as (_, calls):
        await calls.outcome(calls.start("computes", ["spin", 1.5]))
    assert "is held" not in caplog.text


async def test_g10_a_worker_without_descriptors_takes_no_more_than_others_and_is_replaced(
    judge: Judge,
):
    """All that came there failed at once, so that it took 976 of 1,000 rollouts."""
    async with serving(judge, workers=4, worker_capacity=2) as (server, calls):
        await until(lambda: server.status().ready == 4)
        await calls.outcome(calls.start("spoiler", ["use up descriptors"]))
        [pid] = judge.pids("spoiler")
        keys = [calls.start(f"a{number}", ["sleep", 0.02]) for number in range(400)]
        failed = [key for key in keys if (await calls.outcome(key)).error is not None]
        # A row of 8, what ran then, and one for each that others end, until it is clear.
        assert 8 <= len(failed) <= 40
        await until(lambda: is_doomed(pid))
        await calls.values(*[calls.start(f"b{number}") for number in range(40)])
        await until(lambda: server.stats().worker_restarts == 1)
    judge.assert_at_most(1)


async def test_g10_a_scorer_that_hangs_apart_costs_its_own_rollout_only():
    """One regular expression in a scorer cost its 63 neighbours, and no error named it."""
    outcomes: dict[int, Outcome] = {}

    async def ask(client: Client, number: int) -> None:
        outcomes[number] = await client.outcome({"do": "hang" if number == 7 else ""})

    with trio.fail_after(PATIENCE_S):
        async with (
            open_server("tests.envs.marked:Marked", workers=1) as server,
            open_client(server.address) as client,
        ):
            async with trio.open_nursery() as nursery:
                for number in range(64):
                    nursery.start_soon(ask, client, number)
            assert server.stats().worker_restarts == 0
    error = outcomes.pop(7).error
    assert isinstance(error, RolloutFailed)
    assert (error.code, error.fault, error.mask) == ("apart-timeout", Fault.ENVIRONMENT, True)
    assert re.search(r'marked.py", line \d+, in get_reward', str(error))
    assert {outcome.unwrap()["reward"] for outcome in outcomes.values()} == {1.0}
