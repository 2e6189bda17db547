"""The pool and the lives of its workers: every phase, every input, every clock; whether it has
workers that are ready, and what is said if it has none."""

from __future__ import annotations

from typing import Any

import pytest

from trio_envserve.core import error_records, messages
from trio_envserve.core.client import Fail
from trio_envserve.core.errors import ErrorInfo
from trio_envserve.core.health import Health
from trio_envserve.core.heartbeat import Heartbeat
from trio_envserve.core.limits import ServerLimits
from trio_envserve.core.messages import Request
from trio_envserve.core.pool import NOT_NEEDED, Life, LifeInput, Phase, Pool
from trio_envserve.core.router_effects import Kill, Lost, Report, Spawn
from trio_envserve.core.router_inputs import WorkerBack
from trio_envserve.core.terms import Status, Verdict
from trio_envserve.core.worker import SetUpFailed, WorkerCore
from trio_envserve.core.worker_range import WorkerRange

from .helpers import FIRST, OTHER, QUICK, REPLACEMENT, Ids, Pair, identifier, kinds

LIMITS: dict[str, Any] = {
    "start_s": 20.0, "silence_report_s": 2.0, "silence_kill_s": 6.0, "blocked_report_s": 1.0,
    "reap_settle_s": 0.1, "restart_pause_s": 1.0, "restart_pause_max_s": 4.0,
    "restart_healthy_s": 10.0, "broken_after": 2, "stop_s": 3.0,
}  # fmt: skip


def pool_with(*, slots: int = 1, heartbeats: bool = True, **limits: Any) -> Any:
    """A pool; not typed, as its effects are of several types."""
    return Pool(slots, ServerLimits(**(LIMITS | limits)), Ids(), heartbeats=heartbeats)


def born(pool: Pool, now_s: float = 0.0) -> Life:
    """The life that the next tick spawns."""
    spawns = [e for e in pool.tick(now_s) if isinstance(e, Spawn)]
    assert len(spawns) == 1
    life = pool.lives[spawns[0].worker]
    life.pid = 123
    return life


def ready(pool: Pool, now_s: float = 0.0) -> Life:
    life = born(pool, now_s)
    pool.step(life, LifeInput.HELLO, now_s)
    return life


PHASES: dict[Phase, tuple[LifeInput, ...]] = {
    Phase.STARTING: (),
    Phase.READY: (LifeInput.HELLO,),
    Phase.RETIRING: (LifeInput.HELLO, LifeInput.RETIRE),
    Phase.EMPTYING: (LifeInput.HELLO, LifeInput.RETIRE, LifeInput.SPENT),
    Phase.ENDING: (LifeInput.HELLO, LifeInput.RETIRE, LifeInput.DRAINED),
    Phase.REAPED: (LifeInput.HELLO, LifeInput.RETIRE, LifeInput.DRAINED, LifeInput.EXITED),
}
"""How a life comes there."""


def in_phase(pool: Pool, phase: Phase) -> Life:
    """A life in this phase at time 0."""
    life = born(pool)
    for each in PHASES[phase]:
        pool.step(life, each, 0.0, "old")
    assert life.phase is phase
    return life


def heartbeat(
    pool: Any, life: Life, now_s: float, lag_s: float, memory_bytes: int, where: str
) -> Any:
    return pool.step(life, LifeInput.HEARTBEAT, now_s, Heartbeat(lag_s, memory_bytes, where))


HELD = Heartbeat(where='  File "/e.py", line 7, in hang\n', holder="ab#1")

# What each input makes of each phase, and the effects.
INPUTS: dict[str, Any] = {
    "hello": lambda pool, life: pool.step(life, LifeInput.HELLO, 1.0),
    "held": lambda pool, life: pool.step(life, LifeInput.HELD, 1.0, HELD),
    "retire": lambda pool, life: pool.step(life, LifeInput.RETIRE, 1.0, "why"),
    "recall": lambda pool, life: pool.step(life, LifeInput.RECALL, 1.0),
    "kill": lambda pool, life: pool.step(life, LifeInput.KILL, 1.0, "why"),
    "exited": lambda pool, life: pool.step(life, LifeInput.EXITED, 1.0, "why"),
    "time": lambda pool, life: pool.step(life, LifeInput.TIME, 1.0),
}
P = Phase
TABLE: dict[str, dict[Phase, tuple[Phase, list[str]]]] = {
    "hello": {phase: (phase, []) for phase in P} | {P.STARTING: (P.READY, ["Report"])},
    "held": {phase: (phase, ["Report"]) for phase in P},
    "retire": {phase: (P.RETIRING if phase is P.READY else phase, []) for phase in P},
    "recall": {phase: (phase, []) for phase in P},
    "kill": {phase: (P.ENDING, ["Kill", "Report"]) for phase in P} | {P.REAPED: (P.REAPED, [])},
    "exited": {phase: (P.REAPED, ["Report"]) for phase in P} | {P.REAPED: (P.REAPED, [])},
    "time": {phase: (phase, ["Lost"] if phase is P.REAPED else []) for phase in P},
}  # fmt: skip


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("name", INPUTS)
def test_every_input_in_every_phase(name, phase):
    pool = pool_with()
    life = in_phase(pool, phase)
    after, effects = TABLE[name][phase]
    assert kinds(INPUTS[name](pool, life)) == effects
    assert life.phase is after
    assert (pool.slots[0].life is life) is (not life.leaving and life.phase is not P.EMPTYING)
    assert pool.slots[0].emptying == (life.phase is P.EMPTYING)


def test_holder_of_an_interpreter_is_told_once_and_in_the_reason_of_the_kill():
    pool = pool_with()
    life = ready(pool)
    held = 'its interpreter is held by request ab#1, at File "/e.py", line 7, in hang'
    [told] = pool.step(life, LifeInput.HELD, 1.0, HELD)
    assert told == Report("warning", f"worker w0-1: {held}\n{HELD.where}")
    assert pool.step(life, LifeInput.HELD, 1.5, HELD) == []
    assert (life.is_stuck, life.where) == (True, HELD.where)
    heartbeat(pool, life, 2.0, 0.0, 1, "")  # it was let go
    assert not life.is_stuck
    pool.step(life, LifeInput.HELD, 3.0, HELD)
    assert pool.step(life, LifeInput.TIME, 7.9) == [
        Report("warning", "worker w0-1 (pid 123): no heartbeat for 5.9 s")
    ]  # to say who holds it is no sign of life
    kill = pool.step(life, LifeInput.TIME, 8.1)[0]
    assert kill == Kill(b"w0-1", f"no heartbeat for 6 s; {held}")


MAY_COME = {
    LifeInput.SPENT: (P.RETIRING,),
    LifeInput.DRAINED: (P.RETIRING, P.EMPTYING),
}
"""The phases in which these inputs come; all others come in each."""


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("given", MAY_COME)
def test_only_a_worker_that_retires_is_ever_spent_or_drained(given, phase):
    pool = pool_with()
    life = in_phase(pool, phase)
    if phase in MAY_COME[given]:
        pool.step(life, given, 1.0, "why")
        assert pool.slots[0].life is None
        return
    with pytest.raises(AssertionError, match=f"worker w0-1 is {phase.value}"):
        pool.step(life, given, 1.0, "why")


@pytest.mark.parametrize("ends", ["drained", "killed", "died"])
def test_worker_that_has_left_its_place_ends_without_its_successor(ends):
    pool = pool_with()
    life = in_phase(pool, P.EMPTYING)
    successor = ready(pool, 1.0)
    assert not pool.needs_slot(successor), "it would be the second one beside its place"
    if ends == "drained":
        assert pool.step(life, LifeInput.DRAINED, 2.0, "old") == []
    elif ends == "killed":
        heartbeat(pool, successor, 60.0, 0.0, 0, "")
        assert Kill(life.id, "no heartbeat for 60 s") in pool.tick(60.0)
    else:
        pool.step(life, LifeInput.EXITED, 2.0, "signal 9")
    slot = pool.slots[0]
    assert (slot.life, slot.emptying, slot.failures) == (successor, 0, 0)
    assert pool.needs_slot(successor)


def test_g10_client_that_takes_nothing_broke_an_environment_of_which_there_can_be_one():
    """Its outcomes kept a worker there that had the GPU: no other could start beside it, and the
    calls of everybody else ended, since the environment was taken for broken."""
    pool = pool_with()
    life = in_phase(pool, P.EMPTYING)
    now_s = 1.0

    def fails() -> None:
        nonlocal now_s
        now_s += pool.limits.restart_pause_max_s
        pool.step(life, LifeInput.HEARTBEAT, now_s, Heartbeat())
        pool.tick(now_s)
        (successor,) = (each for each in pool.lives.values() if each.phase is P.STARTING)
        pool.set_up_failed(successor, "the GPU has no memory left")
        pool.step(successor, LifeInput.EXITED, now_s, "exit 3")

    for _ in range(12):
        fails()
    assert pool.slots[0].pause_s == pool.limits.restart_pause_max_s
    assert not pool.is_broken()
    pool.step(life, LifeInput.DRAINED, now_s, "old")
    for _ in range(pool.limits.broken_after):
        assert not pool.is_broken()
        fails()
    assert pool.is_broken_for_good()


def test_only_a_worker_that_was_not_needed_is_recalled():
    pool = pool_with()
    life = ready(pool)
    pool.step(life, LifeInput.RETIRE, 1.0, NOT_NEEDED)
    assert kinds(list(pool.step(life, LifeInput.RECALL, 2.0))) == ["Report"]
    assert (life.phase, life.why) == (Phase.READY, "")


def test_g1_a_death_is_declared_only_when_reaped_and_what_it_sent_was_taken_in():
    pool = pool_with()
    life = ready(pool)
    pool.step(life, LifeInput.KILL, 1.0, "why")
    assert not any(isinstance(e, Lost) for t in (1.0, 1.5, 3.9) for e in pool.tick(t))
    pool.step(life, LifeInput.EXITED, 3.9, "signal 9")
    assert kinds(pool.tick(3.95)) == []
    assert pool.tick(4.01) == [Lost(life.id, "why")]
    assert life.id not in pool.lives
    assert pool.step(life, LifeInput.KILL, 4.0, "again") == []  # it is dead


def test_g9_silence_is_reported_then_killed_and_a_heartbeat_ends_the_suspicion():
    pool = pool_with()
    life = ready(pool)
    assert kinds(pool.tick(1.9)) == []
    assert kinds(pool.tick(2.0)) == ["Report"]
    assert kinds(pool.tick(2.1)) == []
    assert not pool.accepts(life)
    assert pool.is_silent()
    assert kinds(heartbeat(pool, life, 2.5, 0.0, 0, "")) == ["Report"]
    assert pool.accepts(life)
    assert not pool.is_silent()
    pool.tick(4.5)
    assert kinds(pool.tick(8.25)) == []
    assert "Kill" in kinds(pool.tick(8.5))


def test_a_hello_ends_the_suspicion_of_a_silent_start():
    """A worker that started late was called silent after its hello, until its next heartbeat.
    One that was stopped in between was never reported, and could get work meanwhile."""
    pool = pool_with()
    life = born(pool)
    assert kinds(pool.tick(2.0)) == ["Report"]
    pool.step(life, LifeInput.HELLO, 2.5)
    assert pool.accepts(life)
    assert not pool.is_silent()
    assert kinds(pool.tick(4.5)) == ["Report"]
    assert not pool.accepts(life)


def test_a_hello_ends_the_suspicion_of_a_blocked_start():
    """An environment that blocks the loop while it is loaded said hello, and got no work until
    its next heartbeat."""
    pool = pool_with()
    life = born(pool)
    assert kinds(heartbeat(pool, life, 1.5, 1.2, 5, "in load()")) == ["Report"]
    pool.step(life, LifeInput.HELLO, 1.6)
    assert pool.accepts(life)


@pytest.mark.parametrize("phase", [p for p in Phase if p is not Phase.REAPED])
def test_g9_a_worker_was_killed_for_the_silence_of_its_host(phase):
    """Nothing of it could come through, and nothing to it: only the time since then counts."""
    pool = pool_with(start_s=6.5)
    life = in_phase(pool, phase)
    pool.stop()  # no other one begins
    life.held = True
    for now_s in range(1, 3600):
        assert "Kill" not in kinds(pool.tick(float(now_s)))
    life.held = False
    limit_s = 3.0 if phase is Phase.ENDING else 6.0
    assert "Kill" not in kinds(pool.tick(3598.5 + limit_s))
    assert "Kill" in kinds(pool.tick(3599.0 + limit_s))


def test_a_start_was_over_before_its_host_could_hear_of_it():
    pool = pool_with()
    life = born(pool)
    life.held = True
    pool.tick(100.0)
    life.held = False
    for now_s in range(100, 120):
        heartbeat(pool, life, float(now_s), 0.0, 0, "")
        assert kinds(pool.tick(float(now_s))) == []
    heartbeat(pool, life, 120.0, 0.0, 0, "")
    assert Kill(life.id, "its environment was not set up within 20 s") in pool.tick(120.0)


def test_g9_a_blocked_loop_is_reported_with_where_and_never_killed():
    pool = pool_with()
    life = ready(pool)
    (report,) = heartbeat(pool, life, 1.0, 1.0, 5, "in solve()")
    assert isinstance(report, Report)
    assert "in solve()" in report.text
    assert not pool.accepts(life)
    assert heartbeat(pool, life, 1.5, 1.5, 5, "in solve()") == []
    for now_s in range(2, 100):
        heartbeat(pool, life, float(now_s), float(now_s), 5, "")
        assert kinds(pool.tick(float(now_s))) == []
    assert kinds(heartbeat(pool, life, 100.0, 0.0, 5, "")) == ["Report"]
    assert pool.accepts(life)
    assert (life.memory_bytes, life.lag_s) == (5, 0.0)


def test_a_worker_over_its_memory_is_retired():
    pool = pool_with(worker_memory_bytes=1 << 20)
    life = ready(pool)
    heartbeat(pool, life, 0.0, 0.0, 1 << 20, "")
    pool.tick(0.0)
    assert life.phase is Phase.READY
    heartbeat(pool, life, 0.0, 0.0, 3 << 20, "")
    pool.tick(0.0)
    assert (life.phase, life.why) == (Phase.RETIRING, "it holds 3 MiB of memory")


def deaths(pool: Pool, count: int, *, ready_s: float | None) -> list[float]:
    """Pauses before the next start, after each of some deaths."""
    pauses, now_s = [], 0.0
    for _ in range(count):
        life = born(pool, now_s)
        if ready_s is not None:
            pool.step(life, LifeInput.HELLO, now_s)
            heartbeat(pool, life, now_s + ready_s, 0.0, 0, "")
            now_s += ready_s
        pool.step(life, LifeInput.EXITED, now_s, "died")
        pauses.append(pool.slots[0].start_at_s - now_s)
        now_s = pool.slots[0].start_at_s
        if pauses[-1]:
            assert not any(isinstance(e, Spawn) for e in pool.tick(now_s - 0.01))
    return pauses


@pytest.mark.parametrize(
    ("ready_s", "pauses_s"),
    [(1.0, [1.0, 2.0, 4.0, 4.0, 4.0]), (None, [1.0, 2.0]), (10.0, [0.0, 0.0])],
    ids=["soon after its start", "before it is ready", "after a healthy time"],
)
def test_a_death_is_followed_by_a_pause_that_grows_up_to_a_bound(
    ready_s: float | None, pauses_s: list[float]
):
    assert deaths(pool_with(), len(pauses_s), ready_s=ready_s) == pauses_s


def test_a_worker_that_starts_slowly_and_then_dies_soon_has_died_soon():
    """It had lived for long, and been ready for a moment."""
    pool = pool_with()
    life = born(pool)
    pool.step(life, LifeInput.HELLO, 500.0)
    pool.step(life, LifeInput.EXITED, 501.0, "died")
    assert pool.slots[0].start_at_s == 502.0
    assert pool.slots[0].failures == 1


def test_an_environment_that_keeps_failing_is_broken_until_one_is_ready():
    pool = pool_with()
    life = born(pool)
    (report,) = pool.set_up_failed(life, "ImportError: x" + "y" * 9000)
    assert report.level == "error"
    assert len(pool.broken) == 4000
    pool.step(life, LifeInput.EXITED, 0.0, "exit 1")
    assert not pool.is_broken()
    life = born(pool, 1.0)
    pool.step(life, LifeInput.KILL, 1.0, "no hello")  # counts as a start that failed, too
    assert pool.is_broken()
    ready(pool, 3.0)
    assert not pool.is_broken()
    assert pool.broken == ""
    assert pool.slots[0].failed_starts == 0
    pool.open_slots(1)
    for now_s in (4.0, 6.0):
        life = born(pool, now_s)
        pool.set_up_failed(life, "no disk")
        pool.step(life, LifeInput.EXITED, now_s, "exit 1")
    assert not pool.is_broken(), "another one is ready"


def test_deaths_are_told_apart_from_ends():
    pool = pool_with()
    life = ready(pool)
    (died,) = pool.step(life, LifeInput.EXITED, 1.0, "signal 11")
    assert (died.level, died.text) == ("warning", "worker w0-1 (pid 123) died: signal 11")
    pool = pool_with()
    life = in_phase(pool, Phase.ENDING)
    assert pool.step(life, LifeInput.EXITED, 1.0, "exit 0")[0].level == "info"
    assert life.why == "old"


# -- an environment that is broken -----------------------------------------------
# A typo in an environment's name was ten minutes of silence: the server knew that its
# environment was broken, and told nobody who called it.


TEXT = "No module named 'arithmatic'"


def opened(workers: int = 1, **server: float) -> Pair:
    return Pair(hello=False, workers=workers, server={"restart_pause_s": 0.1, **server})


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


def test_a_stopped_worker_that_drains_is_no_ready_pool() -> None:
    """A pool whose only worker drained before its replacement, and was stopped then, said that
    it was ready: of those that drain nobody asked whether they give a sign of life."""
    limits = {"silence_report_s": 2.0, "silence_kill_s": 1000.0, "recycle_executions": 1}
    pair = Pair.asked(workers=1, heartbeats=True, server=limits)
    pair.advance(1.0)
    assert pair.router.status()["status"] == "ready"
    pair.advance(5.0)  # it drains, runs on, and has not been heard since it began
    assert pair.router.status()["ready"] == 1
    assert pair.router.status()["status"] == "silent"


def test_a_worker_that_was_killed_before_it_said_so_made_its_replacement_one_that_cannot_load():
    """Every call that waited ended, while another worker was starting; its slot may even be that
    of another host by then."""
    pool = Pool(1, ServerLimits(), Ids())
    pool.tick(0.0)
    old = pool.lives[b"w0-1"]
    pool.step(old, LifeInput.KILL, 600.0, "its environment was not set up within 600 s")
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


@pytest.mark.parametrize("said", ["", "ImportError: no module named torch"])
def test_how_a_process_ended_is_the_reason_unless_its_worker_said_one(said: str):
    """An interpreter that crashes while it imports the environment says nothing before its
    end: after three such starts the server was "broken", with no word on why."""
    pair = Pair(hello=False, server={"broken_after": 1})
    if said:
        pair.router.pool.set_up_failed(pair.router.pool.lives[b"w0-1"], said)
    pair.die(b"w0-1", "signal 11")
    status = pair.router.status()
    assert status["status"] == "broken"
    assert (said or "w0-1 did not get ready: signal 11") in status["reason"]


# -- what is counted --------------------------------------------------------------------
# Each answer to a sync went through all workers and slots three times: with 200 hosts that
# was most of what a sync cost.


def counts(pool: Pool) -> tuple[int, bool, int]:
    return pool.ready_count(), pool.is_silent(), pool.wanted


def counted_anew(pool: Pool) -> tuple[int, bool, int]:
    pool._counts = None
    return counts(pool)


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("given", LifeInput)
@pytest.mark.parametrize("silent", [False, True])
def test_what_is_counted_follows_every_input(phase: Phase, given: LifeInput, silent: bool) -> None:
    limits = ServerLimits()
    pool = Pool(2, limits, Ids())
    pool.tick(0.0)
    life = pool.lives[b"w0-1"]
    for each in PHASES[phase]:
        pool.step(life, each, 0.0, "why")
    beats = (LifeInput.HEARTBEAT, LifeInput.HELD)
    arg: Any = Heartbeat(holder="") if given in beats else "so"
    if silent:
        pool.step(life, LifeInput.TIME, limits.silence_report_s)
    # One that drains before it is replaced still works: a pool of one that is recycled often
    # looked as if it never became ready (seed 1635 of the harsh ones).
    assert pool.ready_count() == (phase in (Phase.READY, Phase.RETIRING))
    for now_s in (0.0, limits.silence_report_s, limits.silence_kill_s, 1e6):
        before = counts(pool)
        assert before == counted_anew(pool)
        never = life.phase not in MAY_COME.get(given, Phase)
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


# -- failures that servers of this kind are known for ----------------------------


def test_failure_02_duplicate_is_started_while_the_old_process_still_runs():
    """A worker is being restarted and its requests are forgotten at once: a duplicate
    starts elsewhere while the old process still runs, and the re-dispatch does too.

    Here an execution lives until its process has been reaped (G1): until then a
    duplicate joins it, and no consent starts another.
    """
    pair = Pair(workers=2, beats=True, rerun=True, server=QUICK)
    call = pair.submit()
    assert [worker for worker, _ in pair.runs] == [FIRST]

    pair.silent.add(FIRST)
    pair.advance(6.0)
    assert [kill.worker for kill in pair.kills] == [FIRST], "silence has led to a kill"
    for _ in range(4):  # the killed process takes its time
        pair.tell(pair.sent_of(Request)[0], b"body")
        pair.advance(1.0)
    assert len(pair.runs) == 1, "started again while the old process runs"

    pair.die(FIRST)
    pair.advance(2.0)
    assert len(pair.runs) == 2, "by consent, and after the proof of death"
    pair.end()
    assert pair.result(call) == b"outcome"


def test_failure_03_worker_with_a_blocked_loop_is_taken_for_dead():
    """Environment code blocks the event loop of its worker, which is taken for dead;
    it finishes, its answer is dropped as stale, and the request runs again.

    Here signs of life come from a thread of their own: a blocked loop is reported,
    with where, and whatever it answers is answered.
    """
    pair = Pair(workers=2, beats=True, rerun=True, server=QUICK)
    call = pair.submit()
    stuck = pair.runs[0]

    pair.blocked_s[stuck[0]] = pair.now_s
    pair.advance(60.0)
    assert [kill.worker for kill in pair.kills] == []
    assert any("blocked" in r.text and "environment.py" in r.text for r in pair.reports)

    pair.end(stuck)
    assert pair.result(call) == b"outcome"
    del pair.blocked_s[stuck[0]]
    pair.advance(10.0)
    assert len(pair.runs) == 1


@pytest.mark.parametrize("heart", ["silent", "beats"])
def test_failure_15_worker_that_hangs_before_its_first_heartbeat_is_never_restarted(heart):
    """A worker hangs before its first heartbeat (a file pair, an import), and is
    waited for, for ever.

    Here silence counts from birth, and the time to the hello has a limit of its own
    for a process whose heart beats while its environment hangs.
    """
    pair = Pair(beats=True, server={**QUICK, "start_s": 30.0})
    pair.auto_hello = False
    pair.die(FIRST)
    assert [spawn.worker for spawn in pair.spawns] == [FIRST, REPLACEMENT]
    call = pair.submit()

    pair.auto_hello = True
    if heart == "silent":
        pair.silent.add(REPLACEMENT)
    pair.advance(32.0)
    assert REPLACEMENT in [kill.worker for kill in pair.kills]
    assert [worker for worker, _ in pair.runs] == [b"w0-3"]
    pair.end()
    assert pair.result(call) == b"outcome"


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
    nothing will until they are killed or go on.  How long that may last is the server's limit,
    and ends no call."""
    limits = {"silence_report_s": 2.0, "silence_kill_s": 1000.0}
    pair = Pair(workers=2, beats=True, server=limits, client={"recovery_s": 10.0})
    call = pair.submit()
    pair.silent.add(OTHER)
    pair.advance(4.0)
    assert health(pair) is Health.HEALTHY, "one of two is enough"
    pair.silent.add(FIRST)
    pair.advance(30.0)
    assert pair.router.status()["status"] == "silent"
    reason = "no worker sends heartbeats"
    assert pair.client.link.health(pair.now_s) == (Health.UNHEALTHY, reason)
    assert not pair.answers
    pair.silent.clear()
    pair.advance(6.0)  # a client that asks nothing hears of it so late at most
    assert health(pair) is Health.HEALTHY, "they went on"
    pair.end()
    assert pair.last().call == call


def health(pair: Pair) -> Health:
    """The server's health, as its client sees it."""
    return pair.client.link.health(pair.now_s)[0]
