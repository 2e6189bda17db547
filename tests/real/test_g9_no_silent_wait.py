"""G9: each call ends, and says which is true; faults are repaired, without false alarms."""

import contextlib
import os
import signal
import socket
import time
from typing import Any

import pytest
import trio

from tests.connections import accepted
from tests.real.environments import BadBase
from tests.real.support import (
    honest_s,
    info_of,
    open_calls,
    open_client_process,
    open_server,
    open_server_process,
    serving,
    serving_cut,
    serving_process,
    until,
    worker_of,
)
from trio_envserve import (
    Health,
    NeverStarted,
    NoAnswer,
    NotEncodable,
    OutcomeNotEncodable,
    RolloutFailed,
    ServerLost,
    ServerNotReady,
    ServerStartError,
    ServerUnreachable,
    Verdict,
    open_client,
)
from trio_envserve.testing.proxy import open_fault_proxy

RAISED = {
    "value": "ValueError",
    "group": "ExceptionGroup",
    "base": f"{BadBase.__module__}.BadBase",
    "text": "tests.real.environments.BadText",
    "surrogate": "ValueError",
    "exit": "SystemExit",
    "interrupt": "KeyboardInterrupt",
    "generator": "GeneratorExit",
    "stop": "StopAsyncIteration",
    "memory": "MemoryError",
}


@pytest.mark.parametrize("workers", [1, 0])
async def test_g9_whatever_the_code_raises_is_the_outcome_of_its_own_request_only(judge, workers):
    async with serving(judge, workers=workers) as (_, calls):
        await judge.wait_started(calls.start("neighbour", ["wait", "go"]))
        for name, kind in RAISED.items():
            calls.start(name, ["raise", name])
            error = await calls.error(name, RolloutFailed)
            assert info_of(error).type == kind
            assert error.verdict is Verdict.RAN_AND_FAILED
            if name != "text":
                assert kind.rpartition(".")[2] in info_of(error).traceback
        judge.put("go")
        await calls.value("neighbour")
    judge.assert_at_most(1)
    assert len({record["pid"] for record in judge.records("start")}) == 1


async def test_g9_what_cannot_be_encoded_is_said_with_its_place(judge):
    async with serving(judge) as (_, calls):
        calls.start("outcome", value={"unencodable": 1})
        error = await calls.error("outcome", OutcomeNotEncodable)
        assert "['inner']" in str(error) or "inner" in str(error)
        await calls.error(calls.start("input", value=object()), NotEncodable)
    judge.assert_at_most(1)
    assert judge.starts("input") == 0


async def test_g9_a_worker_that_exits_is_noticed_at_once(judge):
    """Also where nothing is silent: silence would be noticed after a minute."""
    async with serving(judge) as (_, calls):
        for step in (
            ["exit", 0], ["exit", 1], ["exit", 3], ["die", "SIGSEGV"], ["die", "SIGTERM"]
        ):  # fmt: skip
            key = calls.start("-".join(map(str, step)), step, rerun=False)
            error = await calls.failure(key)
            assert error.verdict is Verdict.MAY_HAVE_RUN
            assert info_of(error).worker
            assert "set up" not in str(error)  # status 3 is that of a broken environment, too
    judge.assert_at_most(1)


async def test_g9_a_worker_that_hangs_before_its_hello_is_replaced(judge):
    setup = [["block once", "never", "hanging"]]
    start_s = await honest_s(judge)  # the next one, too, has to start within it
    async with serving(judge, args={"setup": setup}, start_s=start_s) as (server, calls):
        await calls.value(calls.start("a"))
        assert server.stats().worker_restarts >= 1
    judge.assert_exactly_once("a")


async def test_g9_an_environment_that_cannot_be_set_up_is_no_healthy_server(judge):
    broken = "tests.real.environments:Unmakeable"
    async with serving(judge, environment=broken, client={"recovery_s": 0.5}) as (server, calls):
        with pytest.raises(ServerStartError, match="the data set is not there"):
            await server.wait_ready()
        await until(lambda: calls.client.health().health is Health.UNHEALTHY)
        assert "the data set is not there" in calls.client.health().reason
        with pytest.raises(ServerNotReady, match="the data set is not there"):
            await calls.client.wait_ready(0.1)
        error = await calls.failure(calls.start("a"))
        assert error.verdict is Verdict.DID_NOT_RUN


async def test_g9_without_a_server_a_call_says_that_it_did_not_run(judge):
    async with open_server(judge, workers=0) as server:
        address = server.address
    async with open_calls(address, start_s=0.3) as calls:
        await until(lambda: "nothing listens" in calls.client.health().reason)
        error = await calls.error(calls.start("a"), ServerUnreachable)
        assert "nothing listens" in str(error)


async def test_g9_a_server_gone_for_good_is_said_after_the_limit(judge):
    async with open_server_process(judge) as server:
        async with open_calls(
            server.address, recovery_s=5.0, probe_s=0.5, late_s=0.2, cancel_answer_s=0.3
        ) as calls:
            await calls.client.wait_ready()
            await judge.wait_started(calls.start("ran", ["wait", "never"], rerun=True))
            server.signal(signal.SIGKILL)
            await server.wait()
            error = await calls.failure("ran")
            assert error.verdict is Verdict.MAY_HAVE_RUN
            error = await calls.failure(calls.start("late"))
            assert error.verdict is Verdict.DID_NOT_RUN
    judge.assert_at_most(1)


async def test_g9_a_limit_that_passes_behind_a_busy_worker_did_not_run(judge):
    async with serving(judge, worker_capacity=1) as (_, calls):
        await judge.wait_started(calls.start("busy", ["wait", "go"]))
        await calls.error(calls.start("a", timeout_s=0.3), NeverStarted)
        judge.put("go")
        await calls.value("busy")
    assert judge.starts("a") == 0


async def test_g9_a_limit_that_passes_at_a_silent_server_may_have_run(judge):
    async with serving_process(judge, client={"cancel_answer_s": 0.3}) as (server, calls):
        await calls.value(calls.start("warm"))
        limit_s, told = 0.5, False
        while not told:  # on a slow machine the limit may pass before the server is stopped
            limit_s *= 4
            key = calls.start(f"in {limit_s:g} s", ["wait", "never"], timeout_s=limit_s)
            await until(lambda: judge.starts(key) or key in calls.outcomes)  # noqa: B023  # at once
            server.signal(signal.SIGSTOP)
            error = await calls.failure(key)
            server.signal(signal.SIGCONT)
            told = bool(judge.starts(key)) and type(error) is NoAnswer
        await judge.wait_ended(key)  # it is cancelled as soon as the server hears
    judge.assert_at_most(1)
    assert judge.ends(key) == ["Cancelled"]


async def test_g9_a_stopped_server_is_unhealthy_and_loses_nothing(judge):
    """Stopped for longer than its own lease, and than every suspicion."""
    kill_s = await honest_s(judge)
    limits: dict[str, Any] = {
        "lease_s": kill_s, "silence_report_s": 0.5, "silence_kill_s": kill_s,
    }  # fmt: skip
    client = {"probe_s": 0.5, "late_s": 0.2}
    async with serving_process(judge, **limits, client=client) as (server, calls):
        await judge.wait_started(calls.start("a", ["wait", "go"], rerun=True))
        server.signal(signal.SIGSTOP)
        await until(lambda: calls.client.health().health is Health.UNHEALTHY)
        calls.start("b", rerun=True)
        # What must not happen takes its time; nothing here waits for it to pass.
        await trio.sleep(kill_s + 0.5)
        assert calls.outcomes == {}
        server.signal(signal.SIGCONT)
        judge.put("go")
        await calls.value("a")
        await calls.value("b")
        await until(lambda: calls.client.health().health is Health.HEALTHY)
        assert calls.client.counters().sessions == 1
    judge.assert_exactly_once("a", "b")


async def test_g9_a_stopped_client_is_no_reason_to_lose_its_session(judge):
    """Stopped until its connection is given up: only its lease is left of it."""
    asked: list[Any] = [({"key": "a", "do": [["wait", "go"]]}, {})]
    async with open_server(judge) as server, open_fault_proxy(server.address) as proxy:
        async with open_client_process(judge, proxy.address, asked) as client:
            await judge.wait_started("a")
            client.signal(signal.SIGSTOP)
            proxy.cut_all()
            await until(lambda: not accepted(server.address, socket.socket.fileno))
            judge.put("go")
            await until(lambda: server.stats().kept == 1)
            assert server.stats().more["undelivered"] >= 1
            client.signal(signal.SIGCONT)
            assert (await client.line())["error"] is None
        assert server.stats().cache.sessions_opened == 1
    judge.assert_exactly_once("a")


async def test_g9_a_busy_event_loop_of_the_client_is_no_false_alarm(judge, caplog):
    """Its own loop is late, so its unanswered probes prove nothing."""
    async with serving(judge, client={"probe_s": 0.5, "late_s": 0.2}) as (_, calls):
        await judge.wait_started(calls.start("a", ["wait", "go"]))
        for _ in range(3):
            time.sleep(0.8)  # noqa: ASYNC251  # server and client share this loop
            await calls.client.stats()
        judge.put("go")
        await calls.value("a")
        assert calls.client.counters().connections == 1
    assert not [text for text in caplog.messages if "unhealthy" in text]
    judge.assert_exactly_once("a")


async def test_g9_a_connection_cut_for_an_instant_delays_no_answer(judge):
    """The answer goes to the old identity; health is fine; nobody waits for ever."""
    async with serving_cut(judge) as (_, proxy, calls):
        for turn in range(5):
            key = calls.start(f"k{turn}", ["wait", f"go{turn}"])
            await judge.wait_started(key)
            judge.put(f"go{turn}")
            proxy.cut_all()
            await calls.value(key)
    judge.assert_exactly_once(*(f"k{turn}" for turn in range(5)))


async def test_g9_a_restart_faster_than_any_health_check_is_noticed(judge):
    async with serving_process(
        judge,
        client={"ping_s": 30.0, "probe_s": 60.0, "reconnect_s": 60.0, "cancel_answer_s": 30.0},
    ) as (old, calls):
        await judge.wait_started(calls.start("a", ["wait", "never"], rerun=False))
        old.signal(signal.SIGKILL)
        await old.wait()
        async with open_server_process(judge, bind=old.address):
            await calls.error("a", ServerLost)
            await until(lambda: calls.client.counters().sessions == 2)
    judge.assert_at_most(1)


async def test_g9_calls_made_before_the_server_are_answered_when_it_is_there(judge):
    async with open_server(judge, workers=0) as server:
        address = server.address
    async with open_calls(address) as calls:
        keys = [calls.start(f"k{n}") for n in range(10)]
        await until(lambda: "nothing listens" in calls.client.health().reason)
        async with open_server_process(judge, bind=address):
            await calls.values(*keys)
    judge.assert_exactly_once(*keys)


async def test_g9_what_a_stopping_server_did_not_start_runs_on_the_next_one(judge):
    async with serving_process(judge, worker_capacity=1) as (old, calls):
        await judge.wait_started(calls.start("busy", ["wait", "never"]))
        keys = [calls.start(f"k{n}", rerun=False) for n in range(3)]
        await calls.client.stats()
        old.signal(signal.SIGTERM)
        error = await calls.failure("busy")
        assert error.verdict is Verdict.MAY_HAVE_RUN
        assert await old.wait() == 0
        async with open_server_process(judge, bind=old.address):
            await calls.values(*keys)
    judge.assert_exactly_once(*keys)


async def test_g9_a_worker_s_death_is_told_though_all_others_are_busy(judge):
    async with serving(judge, workers=2, worker_capacity=1) as (server, calls):
        await until(lambda: server.status().ready == 2)
        calls.start("a", ["wait", "never"], rerun=False)
        calls.start("b", ["block", "go"], rerun=False)
        await judge.wait_started("a", "b")
        os.kill(judge.pids("a")[0], signal.SIGKILL)
        assert (await calls.failure("a")).verdict is Verdict.MAY_HAVE_RUN
        judge.put("go")
        await calls.value("b")
    judge.assert_at_most(1)


async def test_g9_with_cuts_and_kills_at_once_every_call_still_ends(judge):
    """All at once, a small storm: the judge counts, the verdicts are checked."""
    async with serving_cut(judge, workers=2, restart_pause_max_s=0.02) as (server, proxy, calls):
        await server.wait_ready()
        keys = []
        for turn in range(6):
            for n in range(10):
                rerun = n % 2 == 0
                keys.append((calls.start(f"k{turn}-{n}", value="x" * 5_000, rerun=rerun), rerun))
            ready = [w.pid for w in server.stats().per_worker if w.pid and w.phase == "ready"]
            if ready and turn % 2:
                # The last one killed may be reaped and not yet be out of the figures.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(ready[0], signal.SIGKILL)
            proxy.cut_all(abrupt=bool(turn % 3))
            await calls.outcome(f"k{turn}-0")
        for key, rerun in keys:
            outcome = await calls.outcome(key)
            if outcome.error is None:
                assert judge.ends(key)[-1] == "result"
            else:
                assert outcome.error.verdict is Verdict.MAY_HAVE_RUN
            assert judge.starts(key) <= (2 if rerun else 1)
    judge.assert_one_at_a_time()


async def test_g9_closing_a_client_does_not_wait_for_a_server_that_is_gone(judge):
    async with open_server_process(judge) as server:
        async with open_client(server.address) as client:
            await client.wait_ready()
            server.signal(signal.SIGSTOP)
        server.signal(signal.SIGCONT)


@pytest.mark.slow
async def test_g9_a_worker_that_was_stopped_is_not_said_to_have_been_blocked(judge, caplog):
    """Its heart said so, in the first moment after the stop."""
    limits: dict[str, Any] = {"blocked_report_s": 2.0, "silence_report_s": 3.0}
    async with serving(judge, **limits) as (server, calls):
        await judge.wait_started(calls.start("a", ["wait", "go"]))
        [pid] = judge.pids("a")
        for _ in range(3):
            os.kill(pid, signal.SIGSTOP)
            await until(lambda: worker_of(server).silent)
            os.kill(pid, signal.SIGCONT)
            await until(lambda: not worker_of(server).silent)
        judge.put("go")
        await calls.value("a")
    assert "event loop blocked" not in caplog.text
    assert caplog.text.count("no heartbeat for") >= 3


async def test_a_rerun_does_not_wait_for_a_long_rollout_while_a_worker_is_idle(judge):
    """The worker reserved for a suspect stayed the one that was least busy when the
    other had just died, with an hour to go, though its replacement idled."""
    async with serving(judge, workers=2) as (server, calls):
        await until(lambda: server.status().ready == 2)
        await judge.wait_started(calls.start("long", ["wait", "go"]))
        await calls.value(calls.start("short", ["die once", "died"], rerun=True))
        assert judge.ends("long") == []
        judge.put("go")
        await calls.value("long")
    judge.assert_at_most(2)
