"""G2: a request is executed at most once, further times only by consent, and capped."""

import contextlib
import os
import signal
import time
from functools import partial

import trio

from tests.proc import is_alive, status_of
from tests.real.support import (
    info_of,
    open_server_process,
    serving,
    serving_cut,
    serving_process,
    until,
    worker_of,
)
from trio_envserve import ServerLost, WorkerLost


async def test_g2_connections_cut_again_and_again_repeat_nothing(judge):
    async with serving_cut(judge, workers=2) as (_, proxy, calls):
        keys = []
        for turn in range(8):
            keys += [calls.start(f"k{turn}-{n}", value="x" * 20_000) for n in range(8)]
            await proxy.wait_connections(1)
            if turn % 2:
                # In the middle of a message, of one direction or the other.
                proxy.drop_after(30_000 * turn)
                await judge.wait_started(keys[-8])
            proxy.cut_all(abrupt=turn % 3 == 0)
        for key in keys:
            assert (await calls.value(key))["value"] == "x" * 20_000
        assert proxy.counters.cut >= 4
    judge.assert_exactly_once(*keys)


async def test_g2_an_outcome_lost_on_its_way_is_sent_again_and_not_run_again(judge):
    async with serving_cut(judge) as (_, proxy, calls):
        await judge.wait_started(calls.start("a", ["wait", "go"], value="needle", rerun=True))
        judge.put("go")
        seen = await proxy.cut_before_receipt(lambda data: b"needle" in data)
        assert b"needle" in seen
        assert calls.outcomes == {}
        await calls.value("a")
    judge.assert_exactly_once("a")


async def test_g2_a_killed_worker_without_consent_is_the_end_of_its_work(judge):
    async with serving(judge, workers=2) as (_, calls):
        keys = [calls.start(f"k{n}", ["wait", "go"], rerun=False) for n in range(8)]
        await judge.wait_started(*keys)
        victim = judge.pids("k0")[0]
        os.kill(victim, signal.SIGKILL)
        judge.put("go")
        for key in keys:
            if judge.pids(key) == [victim]:
                error = await calls.error(key, WorkerLost)
                assert "SIGKILL" in str(error)
                assert info_of(error).executions == 1
            else:
                await calls.value(key)
    judge.assert_at_most(1)


async def test_g2_a_worker_killed_right_after_the_end_of_the_code_repeats_nothing(judge):
    """Its outcome may be lost between the code's last line and the socket."""
    async with serving(judge) as (server, calls):
        for turn in range(5):
            await until(lambda: worker_of(server).phase == "ready")
            key = calls.start(f"k{turn}", rerun=False)
            await until(partial(has_ended, judge, calls, key))
            for pid in judge.pids(key):
                os.kill(pid, signal.SIGKILL)
            outcome = await calls.outcome(key)
            assert outcome.ok or type(outcome.error) is WorkerLost
    # Dispatched to a worker that was dead already, it did not even begin.
    assert sum(judge.starts(f"k{turn}") for turn in range(5)) >= 1
    judge.assert_at_most(1)


async def test_g2_an_outcome_that_was_already_sent_counts_though_its_worker_is_dead(judge):
    """The worker dies with its outcome in the socket: that is taken in before
    the execution is declared lost."""
    async with serving_process(judge) as (server, calls):
        calls.start("a", ["wait", "go"], rerun=True)
        turns = [["sleep", 0.001]] * 5
        calls.start("beside", ["wait", "turn"], *turns, ["mark", "turned"], rerun=False)
        await judge.wait_started("a", "beside")
        server.signal(signal.SIGSTOP)
        judge.put("go")
        await judge.wait_ended("a")
        [pid] = judge.pids("a")
        calls.start("b", rerun=True)
        # Written to the log is not yet written to the socket: the worker does
        # that in the next turn of its loop, so it is given some.
        judge.put("turn")
        await judge.wait_for("turned")
        os.kill(pid, signal.SIGKILL)
        server.signal(signal.SIGCONT)
        await calls.value("a")
        await calls.value("b")
    judge.assert_exactly_once("a", "b")


def has_ended(judge, calls, key):
    return bool(judge.ends(key)) or key in calls.outcomes


async def test_g2_requests_submitted_while_workers_die_run_once(judge):
    """What was dispatched to the dead does not reach their replacements as well."""
    async with serving(judge, workers=2, restart_pause_max_s=0.02) as (server, calls):
        await server.wait_ready()
        keys = []
        for turn in range(6):
            for n in range(10):
                keys.append(calls.start(f"k{turn}-{n}", rerun=False))
                await trio.lowlevel.checkpoint()
            pids = [w.pid for w in server.stats().per_worker if w.pid and w.phase == "ready"]
            if pids:
                # The last one killed may be reaped and not yet be out of the figures.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pids[turn % len(pids)], signal.SIGKILL)
            await calls.outcome(keys[-10])
        for key in keys:
            outcome = await calls.outcome(key)
            assert outcome.ok or type(outcome.error) is WorkerLost
            # A value is that of the one life, and a life that ended well ran once.
            assert judge.starts(key) == 1 or (not outcome.ok and judge.starts(key) == 0)
    judge.assert_at_most(1)


async def test_g2_a_worker_killed_before_its_hello_costs_no_execution(judge):
    async with serving(judge, args={"setup": [["die once", "dead"]]}) as (_, calls):
        await calls.value(calls.start("a", rerun=False))
    assert judge.exists("dead")
    judge.assert_exactly_once("a")


async def test_g2_a_request_that_kills_its_workers_ends_and_its_neighbours_complete(judge):
    async with serving(judge, workers=2) as (_, calls):
        neighbours = [calls.start(f"n{n}", ["wait", "go"], rerun=True) for n in range(3)]
        await judge.wait_started(*neighbours)
        await judge.wait_started(calls.start("killer", ["die"], rerun=True, max_executions=3))
        judge.put("go")
        error = await calls.error("killer", WorkerLost)
        # One of the three is held back for a session after this one.
        assert info_of(error).executions == 2
        await calls.values(*neighbours)
    judge.assert_at_most(3)
    assert judge.starts("killer") == 2
    assert all(judge.ends(key)[-1] == "result" for key in neighbours)


async def test_g2_consent_may_be_declared_by_the_environment_and_withheld_by_the_request(judge):
    async with serving(judge, args={"rerun": True}) as (_, calls):
        await calls.value(calls.start("declared", ["die once", "died"]))
        calls.start("withheld", ["die once", "died too"], rerun=False)
        await calls.error("withheld", WorkerLost)
    judge.assert_at_most(2)
    assert judge.starts("withheld") == 1


async def test_g2_a_server_killed_and_restarted_at_once_repeats_nothing_without_consent(judge):
    async with serving_process(judge) as (old, calls):
        calls.start("no", ["wait", "go"], rerun=False)
        calls.start("yes", ["wait", "go"], rerun=True)
        await judge.wait_started("no", "yes")
        old.signal(signal.SIGKILL)
        await old.wait()
        async with open_server_process(judge, bind=old.address):
            error = await calls.error("no", ServerLost)
            assert "rerun=True" in str(error)
            await judge.wait_started("yes", times=2)
            judge.put("go")
            await calls.value("yes")
    judge.assert_at_most(2)
    assert judge.starts("no") == 1


async def test_g2_the_cap_on_executions_holds_over_any_number_of_servers(judge):
    async with serving_process(judge) as (server, calls):
        await judge.wait_started(calls.start("a", ["wait", "never"], rerun=True, max_executions=2))
        server.signal(signal.SIGKILL)
        await server.wait()
        async with open_server_process(judge, bind=server.address) as second:
            await judge.wait_started("a", times=2)
            second.signal(signal.SIGKILL)
            await second.wait()
            async with open_server_process(judge, bind=server.address):
                await calls.error("a", ServerLost)
    judge.assert_at_most(2)


def kill_workers(server):
    """Kill all workers, and hold up the server's loop until they and their guards are dead: one
    that is only to die may be given work, as any other."""
    pids = [each.pid for each in server.stats().per_worker]
    guards = [int(status_of(pid, "PPid")) for pid in pids]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    while any(map(is_alive, pids + guards)):
        time.sleep(0.001)


async def test_g2_workers_that_die_together_cost_a_request_one_execution(judge):
    """It was dispatched to those whose ends were not told yet, one after the other."""
    async with serving(judge, workers=6) as (server, calls):
        await until(lambda: [w.phase for w in server.stats().per_worker] == ["ready"] * 6)
        await judge.wait_started(calls.start("a", ["wait", "go"], rerun=True))
        kill_workers(server)
        judge.put("go")
        await calls.value("a")
        assert sum(death.lost for death in server.stats().deaths) == 1
    judge.assert_at_most(2)


async def test_workers_that_died_together_took_with_them_what_was_asked_after_the_first_end(judge):
    """As many calls again ended as WorkerLost, of which none had begun."""
    async with serving(judge, workers=6) as (server, calls):
        await until(lambda: [w.phase for w in server.stats().per_worker] == ["ready"] * 6)

        async def ask(caller: int) -> None:
            for turn in range(3):
                do = ["sleep", 0.1] if turn else ["wait", "never"]
                await calls.outcome(calls.start(f"k{caller}-{turn}", do, rerun=False))

        async with trio.open_nursery() as nursery:
            for caller in range(24):
                nursery.start_soon(ask, caller)
            await judge.wait_started(*(f"k{caller}-0" for caller in range(24)))
            kill_workers(server)
        lost = sorted(key for key, outcome in calls.outcomes.items() if not outcome.ok)
        assert lost == sorted(f"k{caller}-0" for caller in range(24))
    judge.assert_at_most(1)
