"""Mutants of workers: their side of the link, the router's, and their processes."""

from __future__ import annotations

from typing import Any

from ...core import executions, lives, messages
from ...core.account import Accounts
from ...core.announced import Announcements
from ...core.dispatches import Dispatches
from ...core.elastic import Elastic
from ...core.lives import TABLE, LifeInput, Phase, Pool
from ...core.ranges import Ranges
from ...core.router import Router
from ...core.router_effects import Lost
from ...core.scheduler import Scheduler
from ...core.worker import WorkerCore
from ...core.workforce import Workforce
from ...retrylab.mutants import Family, Patches
from ..simulation.plan import ANY, Fault

FAMILY = Family(ANY)


@FAMILY.mutant("G1", "G2")
def a_number_is_run_twice(patch: Patches) -> None:
    """A worker runs a dispatch as often as it arrives."""
    patch.source(
        WorkerCore._dispatch, "if not self.seen.add(number)", "if self.seen.add(number) is None"
    )


@FAMILY.mutant("G5", "G9")
def a_worker_takes_any_incarnation(patch: Patches) -> None:
    """A worker runs any dispatch that reaches it, whichever incarnation it was meant for."""
    patch.source(WorkerCore._message, "frames[0] != self.incarnation", "False")


@FAMILY.mutant(needs=(Fault.MANGLE, Fault.RESTART_FAST))
def the_router_hears_any_incarnation(patch: Patches) -> None:
    """The router believes an earlier incarnation of a worker as it does the present one."""
    of_frame = 'frames[1] if len(frames) > 1 else b""'
    patch.source(Workforce.message, of_frame, 'life.incarnation if life else b""')


@FAMILY.mutant("G1")
def silence_is_death(patch: Patches) -> None:
    """A worker that gives no sign of life is declared dead, and lives."""
    time = TABLE[LifeInput.TIME]
    cells = {phase: cell for phase, cell in time.items() if phase is not Phase.REAPED}

    def no_proof(pool: Any, life: Any, now_s: float, arg: Any) -> Any:
        if not (life.heartbeats and now_s - life.heard_s >= pool.limits.silence_kill_s):
            return cells[life.phase](pool, life, now_s, arg)
        if not life.leaving:
            pool.vacate(life, now_s, failed=False)
        life.phase, life.left_s = Phase.REAPED, now_s - 1.0
        return pool.step(life, LifeInput.TIME, now_s)

    for phase in cells:
        patch.item(time, phase, no_proof)


@FAMILY.mutant("G1")
def lost_when_killed(patch: Patches) -> None:
    """Work is declared lost when the kill is sent, not when the process is reaped."""

    @patch.around(Pool, "step")
    def note(
        step: Any, self: Any, life: Any, input: LifeInput, now_s: float, arg: Any = None
    ) -> Any:
        effects = step(self, life, input, now_s, arg)
        if input is LifeInput.KILL and effects:
            self.__dict__.setdefault("killed", []).append(Lost(life.id, arg))
        return effects

    @patch.around(Pool, "tick")
    def declare(tick: Any, self: Any, now_s: float) -> Any:
        effects = tick(self, now_s)
        lost, self.__dict__["killed"] = self.__dict__.get("killed", []), []
        return [*effects, *lost]


@FAMILY.mutant("G9", needs=(Fault.BLOCK_LOOP,))
def a_blocked_loop_is_silence(patch: Patches) -> None:
    """Only the heartbeat of an event loop that is on time counts as a sign of life."""
    late = "life.heard_s if heartbeat.lag_s >= pool.limits.blocked_report_s else now_s,"
    patch.source(
        TABLE[LifeInput.HEARTBEAT][Phase.READY], "memory_bytes = now_s,", f"memory_bytes = {late}"
    )


@FAMILY.mutant("G8", "G9", needs=(Fault.SLOW_START,))
def a_start_may_take_for_ever(patch: Patches) -> None:
    """A worker that never says hello is waited for."""
    time = TABLE[LifeInput.TIME]
    patch.item(time, Phase.STARTING, time[Phase.READY])


@FAMILY.mutant("G2")
def work_goes_to_who_retires(patch: Patches) -> None:
    """A worker that was told to exit still gets executions, which are lost with it."""
    patch.attribute(executions.Worker, "open", lambda self: len(self.live) < self.capacity)


@FAMILY.mutant("G8")
def capacity_is_not_kept(patch: Patches) -> None:
    """A worker gets one execution more than it can take at once."""
    patch.source(executions.Worker.open, "self.capacity)", "self.capacity + 1)")


@FAMILY.mutant("G4", needs=(Fault.KILL_AFTER_OUTCOME,))
def last_words_are_thrown_away(patch: Patches) -> None:
    """The messages that a worker had sent before it died are not taken in."""
    patch.source(Workforce.message, "life is None", "life is None or life.phase is Phase.REAPED")


@FAMILY.mutant("G7", "G8")
def cancel_stays_at_the_router(patch: Patches) -> None:
    """The worker is never told that an execution is to stop."""

    @patch.replacing(Dispatches, "stop")
    def stop(self: Any, executions: Any, now_s: float) -> list[Any]:
        for execution in executions:
            execution.is_wanted, execution.body = False, None
        return []


@FAMILY.mutant("G7", needs=(Fault.MANGLE,))
def an_early_stop_is_forgotten(patch: Patches) -> None:
    """A stop that overtakes its dispatch leaves nothing behind at the worker."""
    patch.source(WorkerCore._stop, "self._stopped_early.add(number)", "pass")


@FAMILY.mutant("G4", "G7", "G8", "G9")
def an_outcome_is_sent_once(patch: Patches) -> None:
    """A worker forgets an outcome as soon as it was sent."""
    patch.source(WorkerCore._outcome_made, "kept = self._kept[number] =", "kept =")


@FAMILY.mutant("G8", "G9", needs=(Fault.CUT_WORKER,))
def a_lost_dispatch_is_not_repeated(patch: Patches) -> None:
    """The router hears that a dispatch never arrived, and leaves it at that."""
    patch.attribute(Workforce, "_missing", lambda self, life, missing: None)


@FAMILY.mutant("G8", "G9", needs=(Fault.CUT_WORKER,))
def a_worker_never_says_what_it_misses(patch: Patches) -> None:
    """A worker does not notice that a dispatch has not arrived."""
    patch.attribute(WorkerCore, "_absent", lambda self, live, cancelled: [])


@FAMILY.mutant("G1", "G2", "G4", "G9")
def what_a_worker_says_it_misses_is_lost(patch: Patches) -> None:
    """A dispatch that is still on its way is given up, and taken for a death."""

    @patch.around(Workforce, "_missing")
    def give_up(missing: Any, self: Any, life: Any, message: Any) -> None:
        worker = self.workers.get(life.id)
        if worker is None:
            return
        for number in Ranges.from_flat(message.numbers):
            execution = worker.live.get(number)
            if execution is not None and execution.body is not None:
                execution.number = worker.next_number  # a new number for the same execution
                worker.next_number += 1
                worker.live[execution.number] = worker.live.pop(number)
                session, work = execution.session, execution.work
                if execution.is_wanted:
                    execution.dispatch = messages.Dispatch(
                        session.id, work.id.sequence, execution.number, session.name
                    )
        missing(self, life, message._replace(numbers=Ranges(worker.live).flat()))


@FAMILY.mutant("G9")
def a_replacement_is_never_started(patch: Patches) -> None:
    """A slot whose worker has died stays empty."""
    patch.source(Pool.vacate, "now_s + pause_s", "float('inf')")


@FAMILY.mutant("G9", needs=(Fault.SLOW_DEATH,))
def a_replacement_waits_for_the_dead(patch: Patches) -> None:
    """A place in the pool stays empty until the old process has ended."""
    ended = "slot.index not in {life.slot for life in self.lives.values()}"
    patch.source(Pool.tick, "slot.life is None", f"slot.life is None and {ended}")


@FAMILY.mutant("G4", "G7", "G8", "G9")
def an_announced_outcome_is_dropped(patch: Patches) -> None:
    """A worker announces an outcome, and has it no more when it is asked for."""
    patch.source(
        WorkerCore._outcome_made, "kept.held_bytes = len(payload)", "del self._kept[number]"
    )


@FAMILY.mutant("G7", "G8", "G9")
def a_lost_announcement_is_not_repeated(patch: Patches) -> None:
    """A worker takes what it has announced once for known."""
    patch.source(
        WorkerCore._outcome_made, "kept.held_bytes =", "kept.known = True; kept.held_bytes ="
    )


@FAMILY.mutant("G7", "G8", "G9")
def a_lost_fetch_is_not_repeated(patch: Patches) -> None:
    """The router asks for an announced outcome once."""
    nothing = messages.Fetch([], [])
    patch.attribute(executions.Worker, "fetches", lambda self: nothing)


@FAMILY.mutant("G8")
def a_fetched_outcome_counts_twice(patch: Patches) -> None:
    """The room for an outcome under way is counted again when it has arrived."""
    arrived = "self._accounts.reserve(execution.session, -_size_bytes(execution))"
    patch.source(Announcements.remove, arrived, "pass")


@FAMILY.mutant("G8")
def room_dies_with_a_worker(patch: Patches) -> None:
    """Room for what a worker was to send is not given back when it dies."""

    @patch.around(Workforce, "_lost")
    def lose(lost: Any, self: Any, lost_: Any) -> Any:
        worker = self.workers.get(lost_.worker)
        for execution in worker.live.values() if worker is not None else ():
            if execution.fetched:
                self.announced._accounts.reserve(execution.session, execution.size_bytes)
        return lost(self, lost_)


@FAMILY.mutant("G8", needs=(Fault.TINY_BOUNDS,))
def announced_outcomes_need_no_room(patch: Patches) -> None:
    """Every announced outcome is asked for at once."""
    patch.attribute(Accounts, "may_keep", lambda self, session, size_bytes: True)


@FAMILY.mutant("G9", needs=(Fault.ELASTIC,))
def a_worker_that_is_not_needed_is_killed(patch: Patches) -> None:
    """A pool shrinks by killing workers, whatever they run."""

    @patch.around(Pool, "spare")
    def kill(spare: Any, self: Any, slot: Any) -> None:
        spare(self, slot)
        if slot.life is not None:
            slot.life.heard_s = float("-inf")


@FAMILY.mutant("G8", needs=(Fault.ELASTIC,))
def a_pool_grows_without_need(patch: Patches) -> None:
    """A pool grows, though nobody waits for a worker."""
    patch.source(Elastic.tick, "before, need,", "before, need._replace(waiting=1, oldest_s=1e9),")


@FAMILY.mutant("G9", needs=(Fault.ELASTIC,))
def a_pool_shrinks_below_its_least(patch: Patches) -> None:
    """A pool in which nothing runs keeps no worker."""

    @patch.replacing(Elastic, "_shrink")
    def all_of_them(self: Any, most: int) -> None:
        for part in self._pool.parts:
            for slot in part.open():
                self._pool.spare(slot)


@FAMILY.mutant("G2", "G9", needs=(Fault.PAUSES, Fault.KILL_WORKER))
def a_group_outlives_its_turn(patch: Patches) -> None:
    """What a pause has left of a group of suspects goes where the first of them went."""
    patch.source(Scheduler.resume, "self._group = None", "pass")


@FAMILY.mutant("G8", needs=(Fault.ELASTIC,))
def a_pool_grows_beyond_its_most(patch: Patches) -> None:
    """A worker that drains does not count, and another one begins beside it."""

    @patch.around(Pool, "spare")
    def beside(begin: Any, self: Any, slot: Any) -> None:
        begin(self, slot)
        slot.life = None


@FAMILY.mutant("G7", "G8", "G9", needs=(Fault.JUNK,))
def a_malformed_worker_is_kept(patch: Patches) -> None:
    """Malformed messages of a worker are counted and ignored, and it goes on getting work."""
    patch.attribute(Workforce, "_distrust", lambda self, life, why, now_s: None)


@FAMILY.mutant("G7", "G8", "G9", needs=(Fault.JUNK,))
def a_mute_worker_is_kept(patch: Patches) -> None:
    """A worker whose messages are all fenced, or that sends none, is waited for."""
    patch.attribute(lives, "mute_kill_s", lambda limits: float("inf"))


@FAMILY.mutant("G8", needs=(Fault.SPREAD,))
def the_first_worker_takes_everything(patch: Patches) -> None:
    """Workers that still start are left nothing."""
    patch.attribute(Router, "_most_at_once", lambda self: float("inf"))


@FAMILY.mutant("G8", "G9", needs=(Fault.SPREAD,))
def what_is_left_to_others_waits_for_ever(patch: Patches) -> None:
    """A worker that never gets ready is left its share all the same."""
    patch.source(Pool.spreads, "now_s < self.spread_until_s", "self.was_ready")
