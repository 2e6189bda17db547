"""The pool: whether it has workers that are ready, and what is said if it has none."""

from __future__ import annotations

from typing import Any

import pytest

from trio_envserve.core import error_records, messages
from trio_envserve.core.client_effects import Fail
from trio_envserve.core.errors import ErrorInfo
from trio_envserve.core.health import Health
from trio_envserve.core.heartbeat import Heartbeat
from trio_envserve.core.limits import ServerLimits
from trio_envserve.core.lives import LifeInput, Phase, Pool
from trio_envserve.core.router_effects import Report, Spawn
from trio_envserve.core.router_inputs import HeartbeatReceived, WorkerBack
from trio_envserve.core.terms import Status, Verdict
from trio_envserve.core.worker import EnvironmentReady, SetUpFailed, WorkerCore
from trio_envserve.core.worker_range import WorkerRange

from .helpers import FIRST, OTHER, QUICK, Ids, Pair, identifier

# -- an environment that is broken -----------------------------------------------
# A typo in an environment's name was ten minutes of silence: the server knew that its
# environment was broken, and told nobody who called it.


TEXT = "No module named 'arithmatic'"


def opened(workers: int = 1, **server: float) -> Pair:
    pair = Pair(hello=False, workers=workers, server={"restart_pause_s": 0.1, **server})
    return pair


def fail_to_set_up(pair: Pair, worker: bytes, code: str = messages.UNLOADABLE) -> None:
    core = pair.workers[worker]
    assert isinstance(core, WorkerCore)
    traceback = f"Traceback ...\n{TEXT}"
    info = ErrorInfo(code, Verdict.DID_NOT_RUN, TEXT, traceback=traceback)
    pair.work(worker, core.take(SetUpFailed(info)))


def errors(pair: Pair) -> dict[int, ErrorInfo]:
    """How calls have failed."""
    return {
        each.call: each.info if isinstance(each, Fail) else error_records.decode(each.body)
        for each in pair.answers
        if isinstance(each, Fail) or each.status is not Status.RESULT
    }


def test_a_call_that_waits_ends_as_soon_as_every_worker_says_so():
    pair = opened(workers=2)
    call = pair.submit()
    pair.settle()
    fail_to_set_up(pair, b"w0-1")
    pair.settle()
    assert not errors(pair)  # the other may do better
    fail_to_set_up(pair, b"w1-1")
    pair.settle()
    info = errors(pair)[call]
    assert (info.code, info.verdict) == ("environment-broken", Verdict.DID_NOT_RUN)
    assert TEXT in info.message
    assert info.traceback.startswith("Traceback")
    assert len(pair.router.queue) == 0
    later = pair.submit()
    assert errors(pair)[later].code == "environment-broken"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("broken", "cannot be set up: LookupError: words are missing"),
        (messages.UNLOADABLE, "cannot be set up: words are missing"),
    ],
)
def test_a_call_is_told_the_exception_that_broke_the_set_up(code: str, expected: str):
    pair = opened(broken_after=1, restart_pause_s=1.0, restart_pause_max_s=1.0)
    call = pair.submit()
    info = ErrorInfo(
        code, Verdict.DID_NOT_RUN, "\n***\nwords are missing\n)", type="LookupError",
        traceback="Traceback ...\nLookupError: \n***\nwords are missing\n)",
    )  # fmt: skip
    core = pair.workers[b"w0-1"]
    assert isinstance(core, WorkerCore)
    pair.work(b"w0-1", core.take(SetUpFailed(info)))
    pair.die(b"w0-1")
    pair.advance(0.1)
    assert expected in errors(pair)[call].message
    assert "words are missing" in errors(pair)[call].traceback


def test_a_set_up_that_failed_is_tried_again_before_calls_end():
    pair = opened(broken_after=2)
    call = pair.submit()
    fail_to_set_up(pair, b"w0-1", "broken")
    pair.die(b"w0-1")
    pair.settle()
    assert not errors(pair)
    pair.advance(1.0)
    fail_to_set_up(pair, b"w0-2", "broken")
    pair.die(b"w0-2")
    pair.advance(0.1)
    assert errors(pair)[call].code == "environment-broken"


def test_calls_are_served_again_once_the_environment_is_mended():
    pair = opened()
    fail_to_set_up(pair, b"w0-1")
    pair.die(b"w0-1")
    pair.advance(1.0)
    pair.work(b"w0-2", pair.workers[b"w0-2"].take(EnvironmentReady(1, "env", False)))
    call = pair.submit()
    pair.settle()
    assert call not in errors(pair)
    assert pair.router.accounts.all.running_count == 1


def test_what_was_ready_once_is_broken_for_good_only_after_the_longest_pause():
    """Memory that a dead worker has not given back yet, say: waiting helps."""
    pair = Pair(server={"restart_pause_s": 1.0, "restart_pause_max_s": 16.0, "broken_after": 2})
    pair.auto_hello = False
    pair.die(b"w0-1")
    call = pair.submit()
    for life in range(2, 6):
        pair.advance(20.0)
        fail_to_set_up(pair, b"w0-%d" % life)
        pair.die(b"w0-%d" % life)
        pair.advance(0.1)
        assert pair.router.pool.is_broken() == (life >= 3)
        assert (call in errors(pair)) == (life == 5)


def test_a_request_whose_worker_died_may_have_run():
    pair = Pair(
        rerun=True, server={"restart_pause_s": 1.0, "restart_pause_max_s": 1.0, "broken_after": 1}
    )
    call = pair.submit()
    pair.auto_hello = False
    pair.die(b"w0-1")
    pair.advance(3.0)
    fail_to_set_up(pair, b"w0-2")
    pair.die(b"w0-2")
    pair.advance(0.1)
    info = errors(pair)[call]
    assert (info.code, info.verdict) == ("worker-lost", Verdict.MAY_HAVE_RUN)
    assert TEXT in info.message


def test_workers_that_only_die_are_tried_for_longer():
    """Descriptors or memory may be there again soon."""
    pair = opened(restart_pause_s=1.0, restart_pause_max_s=8.0, broken_after=1)
    call = pair.submit()
    for life in range(1, 5):
        pair.die(b"w0-%d" % life, "it was ended by SIGKILL")
        assert pair.router.pool.is_broken()
        assert (call in errors(pair)) == (life == 4)
        pair.advance(10.0)
    assert "SIGKILL" in errors(pair)[call].message


# -- a worker that drains --------------------------------------------------------
# A pool of one worker that is recycled often was "starting" whenever a client
# asked: the worker that drains before its replacement did not count as ready.  The
# client took that for a server that never came up, and gave up a call without a
# limit while the server was working through its queue.
#
# Found by the simulator: seed 1635 of the harsh ones.


def test_a_worker_that_drains_still_counts_as_ready():
    pool = Pool(1, ServerLimits(), lambda: b"i" * 16)
    (spawn,) = pool.tick(0.0)
    assert isinstance(spawn, Spawn)
    life = pool.lives[spawn.worker]
    pool.step(life, LifeInput.HELLO, 1.0)
    pool.step(life, LifeInput.RETIRE, 1.0, "it has run enough")
    assert life.phase is Phase.RETIRING
    assert pool.ready_count() == 1
    pool.step(life, LifeInput.DRAINED, 2.0, "it has run enough")
    assert pool.ready_count() == 0


# -- a stopped worker that drains ------------------------------------------------
# A pool whose only worker drained before its replacement, and was stopped then, said
# that it was ready: of those that drain nobody asked whether they give a sign of life.


def test_a_stopped_worker_that_drains_is_no_ready_pool() -> None:
    limits = {"silence_report_s": 2.0, "silence_kill_s": 1000.0, "recycle_executions": 1}
    pair = Pair.asked(workers=1, heartbeats=True, server=limits)
    pair.advance(1.0)
    assert pair.router.status()["status"] == "ready"
    pair.advance(5.0)  # it drains, runs on, and has not been heard since it began
    assert pair.router.status()["ready"] == 1
    assert pair.router.status()["status"] == "silent"


# -- a pool whose workers are all silent -----------------------------------------
# It is not healthy, and ends no call for it.


def test_a_worker_that_was_killed_before_it_said_so_made_its_replacement_one_that_cannot_load():
    """Every call that waited ended, while another worker was starting; its slot may even be that
    of another host by then."""
    pool = Pool(1, ServerLimits(), Ids())
    pool.tick(0.0)
    old = pool.lives[b"w0-1"]
    pool.step(old, LifeInput.KILL, 600.0, "no hello within 600 s")
    pool.tick(601.0)
    assert pool.slots[0].life is pool.lives[b"w0-2"]
    (report,) = pool.set_up_failed(old, "no such module", unloadable=True)
    assert isinstance(report, Report)
    assert not pool.is_broken()


def test_g10_a_worker_that_a_host_named_as_the_next_one_here_took_its_place():
    """What was for the one that was started here then went to that host."""
    pool = Pool(1, ServerLimits(), Ids())
    (slot,) = pool.open_slots(1, "host", "-tag")
    back = WorkerBack(b"w0-1", slot.index, identifier(1), 7, False, b"", 0, (), 0.0)
    theirs = pool.take_back(back, 0.0)
    (spawn,) = pool.tick(0.0)
    assert isinstance(spawn, Spawn)
    assert spawn.worker == b"w0-2"
    assert pool.lives == {b"w0-1": theirs, b"w0-2": pool.slots[0].life}
    assert pool.restarts == 0


SILENCE = {"silence_report_s": 2.0, "silence_kill_s": 1000.0}


def test_pool_of_silent_workers_is_not_healthy_and_its_calls_wait_on() -> None:
    pair = Pair(workers=2, heartbeats=True, server=SILENCE, client={"recovery_s": 10.0})
    number = pair.submit()
    assert pair.client.link.health(pair.now_s)[0] is Health.HEALTHY

    pair.advance(30.0)
    assert pair.router.status()["status"] == "silent"
    health, why = pair.client.link.health(pair.now_s)
    assert health is Health.UNHEALTHY
    assert why == "no worker gives a sign of life"
    assert not pair.answers, "how long a worker may be silent is the server's limit"

    for worker in pair.workers:
        pair.give(HeartbeatReceived(worker, pair.now_s, 0.0, 0, ""))
    pair.advance(1.5)
    assert pair.client.link.health(pair.now_s)[0] is Health.HEALTHY
    pair.end()
    assert pair.last().call == number


# -- workers that crash at their start -------------------------------------------
# An interpreter that crashes while it imports the environment says nothing before its
# end.  After three such starts the server was "broken", with no word on why.


@pytest.mark.parametrize("said", ["", "ImportError: no module named torch"])
def test_how_a_process_ended_is_the_reason_unless_its_worker_said_one(said: str):
    pair = Pair(hello=False, server={"broken_after": 1})
    if said:
        pair.router.pool.set_up_failed(pair.router.pool.lives[b"w0-1"], said)
    pair.die(b"w0-1", "signal 11")
    status = pair.router.status()
    assert status["status"] == "broken"
    assert (said or "w0-1 did not get ready: signal 11") in status["reason"]


# -- failures that servers of this kind are known for ----------------------------


def test_failure_16_worker_restart_blocks_every_other_answer():
    """A worker is restarted, and until its old process has ended, which takes long,
    the server answers nobody.

    Here a kill is an effect that nobody waits for: others' answers go on, and the
    replacement works while the old process is still ending.
    """
    pair = Pair(workers=2, beats=True, server={**QUICK, "worker_capacity": 2})
    lost, running = pair.submit(), pair.submit()
    assert [worker for worker, _ in pair.runs] == [FIRST, OTHER]
    pair.silent.add(FIRST)
    pair.advance(5.5)
    assert [kill.worker for kill in pair.kills] == [FIRST]

    pair.end(pair.runs[1])
    assert pair.result(running) == b"outcome"
    pair.advance(3.0)
    others = [pair.submit() for _ in range(4)]  # more than the other worker takes alone
    for run in pair.runs[2:]:
        pair.end(run)
    assert others == [call for call in others if call in pair.endings], "some wait"
    assert FIRST in pair.workers, "the old process has not ended yet"

    pair.die(FIRST)
    assert pair.failure(lost).verdict is Verdict.MAY_HAVE_RUN


def test_failure_18_dead_pool_still_answers_healthy():
    """All workers are dead, and because the process that answers the pings is not, the
    server counts as healthy.

    Here each answer says how many workers are ready, and none is not healthy, with
    the reason.
    """
    pair = Pair(workers=2)
    pair.advance(2.0)
    assert health(pair) is Health.HEALTHY

    pair.auto_hello = False
    for worker in (FIRST, OTHER):
        pair.die(worker)
    pair.advance(2.0)
    assert health(pair) is not Health.HEALTHY, "processes, but no worker that is ready"

    broken = ErrorInfo("broken", Verdict.DID_NOT_RUN, "no such file", traceback="in setup, line 7")
    for _ in range(6):
        worker = pair.spawns[-1].worker
        pair.work(worker, pair.workers[worker].take(SetUpFailed(broken)))
        pair.die(worker)
        pair.advance(10.0)
    assert health(pair) is Health.UNHEALTHY
    assert "in setup, line 7" in pair.client.link.health(pair.now_s)[1]


def test_failure_18_pool_of_stopped_workers_still_answers_healthy():
    """The same with workers whose processes are there but stopped: nothing runs, and
    nothing will until they are killed or go on."""
    pair = Pair(workers=2, beats=True, server={"silence_report_s": 2.0})
    pair.silent.add(OTHER)
    pair.advance(4.0)
    assert health(pair) is Health.HEALTHY, "one of two is enough"
    pair.silent.add(FIRST)
    pair.advance(4.0)
    assert health(pair) is not Health.HEALTHY, "no worker gives a sign of life"
    pair.silent.clear()
    pair.advance(6.0)  # a client that asks nothing hears of it so late at most
    assert health(pair) is Health.HEALTHY, "they went on"


def health(pair: Pair) -> Health:
    """The server's health, as its client sees it."""
    return pair.client.link.health(pair.now_s)[0]


# -- what is counted --------------------------------------------------------------------
# Each answer to a sync went through all workers and slots three times: with 200 hosts that
# was most of what a sync cost.


def counts(pool: Pool) -> tuple[int, bool, int]:
    return pool.ready_count(), pool.is_silent(), pool.wanted


def counted_anew(pool: Pool) -> tuple[int, bool, int]:
    pool._tally = None
    return counts(pool)


PHASES: dict[Phase, tuple[LifeInput, ...]] = {
    Phase.STARTING: (),
    Phase.READY: (LifeInput.HELLO,),
    Phase.RETIRING: (LifeInput.HELLO, LifeInput.RETIRE),
    Phase.ENDING: (LifeInput.HELLO, LifeInput.KILL),
    Phase.REAPED: (LifeInput.HELLO, LifeInput.EXITED),
}
"""How a life comes there."""


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("given", LifeInput)
@pytest.mark.parametrize("silent", [False, True])
def test_what_is_counted_follows_every_input(phase: Phase, given: LifeInput, silent: bool) -> None:
    limits = ServerLimits()
    pool = Pool(2, limits, Ids())
    pool.tick(0.0)
    life = pool.lives[b"w0-1"]
    arg: Any = Heartbeat() if given is LifeInput.HEARTBEAT else "so"
    for each in PHASES[phase]:
        pool.step(life, each, 0.0, "why")
    if silent:
        pool.step(life, LifeInput.TIME, limits.silence_report_s)
    for now_s in (0.0, limits.silence_report_s, limits.silence_kill_s, 1e6):
        before = counts(pool)
        assert before == counted_anew(pool)
        never = given is LifeInput.DRAINED and life.phase is not Phase.RETIRING
        if life.id in pool.lives and not never:
            pool.step(life, given, now_s, arg)
        assert counts(pool) == counted_anew(pool)


def test_what_is_counted_follows_slots_that_come_and_go() -> None:
    pool = Pool(WorkerRange(1, 3), ServerLimits(), Ids())
    assert counts(pool) == (0, False, 1)
    spare = pool.parts[0].spare()[0]
    pool.open(spare)
    assert counts(pool) == (0, False, 2)
    pool.spare(spare)
    assert counts(pool) == (0, False, 1)
    slots = pool.open_slots(4, "h", "@h")
    assert counts(pool) == (0, False, 5)
    pool.vary(slots, 2)
    assert counts(pool) == (0, False, 3)
    pool.close_slots(slots)
    assert counts(pool) == (0, False, 1)
    back = WorkerBack(b"w0-1", 0, identifier(1), 1, False, b"", 0, [], 0.0)
    pool.step(pool.take_back(back, 0.0), LifeInput.HELLO, 0.0)
    assert counts(pool) == counted_anew(pool) == (1, False, 1)
