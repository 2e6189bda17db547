"""The pool and the lives of its workers: every phase, every input, every clock."""

from __future__ import annotations

from typing import Any

import pytest

from trio_envserve.core.heartbeat import Heartbeat
from trio_envserve.core.limits import ServerLimits
from trio_envserve.core.lives import NOT_NEEDED, Life, LifeInput, Phase, Pool
from trio_envserve.core.messages import Request
from trio_envserve.core.router_effects import Kill, Lost, Report, Spawn

from .helpers import FIRST, QUICK, REPLACEMENT, Ids, Pair, kinds

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


def in_phase(pool: Pool, phase: Phase) -> Life:
    """A life in this phase at time 0."""
    life = born(pool)
    if phase is not Phase.STARTING:
        pool.step(life, LifeInput.HELLO, 0.0)
    if phase in (Phase.RETIRING, Phase.ENDING, Phase.REAPED):
        pool.step(life, LifeInput.RETIRE, 0.0, "old")
    if phase in (Phase.ENDING, Phase.REAPED):
        pool.step(life, LifeInput.DRAINED, 0.0, "old")
    if phase is Phase.REAPED:
        pool.step(life, LifeInput.EXITED, 0.0, "exit 0")
    assert life.phase is phase
    return life


def heartbeat(
    pool: Any, life: Life, now_s: float, lag_s: float, memory_bytes: int, where: str
) -> Any:
    return pool.step(life, LifeInput.HEARTBEAT, now_s, Heartbeat(lag_s, memory_bytes, where))


# What each input makes of each phase, and the effects.
INPUTS: dict[str, Any] = {
    "hello": lambda pool, life: pool.step(life, LifeInput.HELLO, 1.0),
    "retire": lambda pool, life: pool.step(life, LifeInput.RETIRE, 1.0, "why"),
    "recall": lambda pool, life: pool.step(life, LifeInput.RECALL, 1.0),
    "kill": lambda pool, life: pool.step(life, LifeInput.KILL, 1.0, "why"),
    "exited": lambda pool, life: pool.step(life, LifeInput.EXITED, 1.0, "why"),
    "time": lambda pool, life: pool.step(life, LifeInput.TIME, 1.0),
}
P = Phase
TABLE: dict[str, dict[Phase, tuple[Phase, list[str]]]] = {
    "hello": {
        P.STARTING: (P.READY, ["Report"]), P.READY: (P.READY, []), P.RETIRING: (P.RETIRING, []),
        P.ENDING: (P.ENDING, []), P.REAPED: (P.REAPED, []),
    },
    "retire": {
        P.STARTING: (P.STARTING, []), P.READY: (P.RETIRING, []), P.RETIRING: (P.RETIRING, []),
        P.ENDING: (P.ENDING, []), P.REAPED: (P.REAPED, []),
    },
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
    assert (pool.slots[0].life is life) is (not life.leaving)


@pytest.mark.parametrize("phase", [p for p in Phase if p is not Phase.RETIRING])
def test_only_a_worker_that_retires_is_ever_drained(phase):
    pool = pool_with()
    with pytest.raises(AssertionError, match=f"worker w0-1 is {phase.value}"):
        pool.step(in_phase(pool, phase), LifeInput.DRAINED, 1.0, "why")


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


def test_a_replacement_starts_before_the_old_process_has_ended():
    pool = pool_with()
    old = ready(pool)
    pool.step(old, LifeInput.RETIRE, 20.0, "recycled")
    pool.step(old, LifeInput.DRAINED, 20.0, "recycled")
    new = born(pool, 20.0)
    assert new.id == b"w0-2"
    assert new.incarnation != old.incarnation
    assert pool.restarts == 1
    assert {*pool.lives} == {old.id, new.id}


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
    assert Kill(life.id, "no hello within 20 s") in pool.tick(120.0)


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


def test_quick_deaths_make_the_next_pause_longer_up_to_a_bound():
    assert deaths(pool_with(), 5, ready_s=1.0) == [1.0, 2.0, 4.0, 4.0, 4.0]
    assert deaths(pool_with(), 2, ready_s=None) == [1.0, 2.0]


def test_a_death_after_a_healthy_time_is_replaced_at_once():
    assert deaths(pool_with(), 2, ready_s=10.0) == [0.0, 0.0]


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


def test_deaths_are_told_apart_from_ends():
    pool = pool_with()
    life = ready(pool)
    (died,) = pool.step(life, LifeInput.EXITED, 1.0, "signal 11")
    assert (died.level, died.text) == ("warning", "worker w0-1 (pid 123) died: signal 11")
    pool = pool_with()
    life = in_phase(pool, Phase.ENDING)
    assert pool.step(life, LifeInput.EXITED, 1.0, "exit 0")[0].level == "info"
    assert life.why == "old"


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
