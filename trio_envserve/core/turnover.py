"""Which workers may get work, which are drained and retired, and which must die."""

from __future__ import annotations

from collections.abc import Mapping

from . import messages, spoilt
from .executions import Worker
from .limits import ServerLimits
from .lives import Life, LifeInput, Phase, Pool
from .router_effects import Report, RouterEffect, ToWorker


class Turnover:
    """Decides by what runs on a worker; what follows for its process is the pool's part."""

    def __init__(self, pool: Pool, workers: Mapping[bytes, Worker], limits: ServerLimits) -> None:
        self._pool = pool
        self._workers = workers
        self._limits = limits
        self._tally = spoilt.Tally()
        self._failing = False
        """Whether some worker has as many failures in a row as make it suspect."""

    def check(self, now_s: float) -> list[RouterEffect]:
        """Drain, retire or kill those whose time has come."""
        return [
            effect for worker in self._workers.values() for effect in self._check(worker, now_s)
        ]

    def _check(self, worker: Worker, now_s: float) -> list[RouterEffect]:
        life = self._pool.lives[worker.id]
        limits = self._limits
        ignored_s = _ignored_s(worker, life, now_s)
        if life.leaving:
            return []
        if ignored_s >= limits.cancel_kill_s or (
            ignored_s >= limits.cancel_grace_s and worker.only_abandoned()
        ):
            why = f"an execution ignores its cancel for {ignored_s:.0f} s"
            return list(self._pool.step(life, LifeInput.KILL, now_s, why))
        if worker.suspect:
            self._suspect(worker, now_s)
        effects: list[RouterEffect] = []
        most = limits.recycle_executions
        if most and worker.next_number >= most:
            why = f"it has run {worker.next_number} executions"
            effects += self._pool.step(life, LifeInput.RETIRE, now_s, why)
        if life.phase is Phase.RETIRING and not worker.live:
            effects.append(ToWorker(worker.id, worker.incarnation, messages.Retire()))
            effects.append(Report("info", f"worker {worker.name} retires: {life.why}"))
            effects += self._pool.step(life, LifeInput.DRAINED, now_s, life.why)
        return effects

    def reported(self, worker: Worker, failed: bool, now_s: float) -> list[RouterEffect]:
        """One of its executions has failed, or has a result: decide anew who is suspect, and
        drain who is spoilt."""
        if not (failed or self._failing or worker.results.excess):
            self._tally.ended += 1  # nearly always: in few steps
            return []
        most = self._limits.spoilt_after
        worker.results.add(failed, self._tally, most, now_s)
        if not (failed or self._failing):
            return []
        was_failing, everyone = self._failing, self._workers.values()
        self._failing = worker.results.excess >= most or (
            was_failing and any(each.results.excess >= most for each in everyone)
        )
        if not (self._failing or was_failing):
            return []
        effects: list[RouterEffect] = []
        for each in everyone:
            self._suspect(each, now_s)
            life = self._pool.lives[each.id]
            if (
                each.suspect and life.phase is Phase.READY
                and not each.results.may_be_chance(self._tally)
            ):  # fmt: skip
                row = each.results.row
                many = "all" if row.failed == row.ended else row.failed
                why = (
                    f"{many} of its last {row.ended} executions failed, far more than on other "
                    "workers"
                )
                text = f"worker {each.name} gets no more work: {why}"
                effects += [Report("warning", text)]
                effects += self._pool.step(life, LifeInput.RETIRE, now_s, why)
                self.refresh_one(each, now_s)
        return effects

    def _suspect(self, worker: Worker, now_s: float) -> None:
        most = self._limits.spoilt_after
        worker.suspect = spoilt.is_suspect(worker, self._workers.values(), most)
        worker.resting = worker.suspect and not worker.results.may_try(self._tally, most, now_s)

    def refresh(self, now_s: float) -> None:
        """Decide anew who may get work.  After anything that ends a life: what
        is dispatched to a process on its way out is lost for nothing."""
        for worker in self._workers.values():
            self.refresh_one(worker, now_s)

    def refresh_one(self, worker: Worker, now_s: float) -> None:
        """Decide anew whether this one may."""
        life = self._pool.lives[worker.id]
        patient = _ignored_s(worker, life, now_s) < self._limits.cancel_grace_s
        worker.accepting = patient and self._pool.accepts(life)

    def retire_all(self, now_s: float) -> list[RouterEffect]:
        """Start no more and end every worker once it has no work."""
        self._pool.stop()
        effects: list[RouterEffect] = []
        for life in list(self._pool.lives.values()):
            if life.phase is Phase.STARTING:
                effects += self._pool.step(life, LifeInput.KILL, now_s, "the server stops")
            effects += self._pool.step(life, LifeInput.RETIRE, now_s, "the server stops")
        self.refresh(now_s)
        return effects

    def kill_all(self, now_s: float) -> list[RouterEffect]:
        """End every process now."""
        self._pool.stop()
        effects: list[RouterEffect] = []
        for life in list(self._pool.lives.values()):
            effects += self._pool.step(life, LifeInput.KILL, now_s, "the server stops")
        self.refresh(now_s)
        return effects


def _ignored_s(worker: Worker, life: Life, now_s: float) -> float:
    """For how long an execution on it has ignored its cancel."""
    stopped_s = worker.oldest_stop_s()
    return 0.0 if stopped_s is None else life.counted_s(stopped_s, now_s)
