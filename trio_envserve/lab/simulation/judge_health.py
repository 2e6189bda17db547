"""Whether what is said and done about health is right (G9): no false alarms,
and no all-clear from a pool that is dead or stopped.

The judge knows which worker was stopped, and when; it never asks the router.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...core import messages
from ...core.ranges import Ranges
from ...core.terms import Body
from .judge_wires import Wires
from .plan import Fault

if TYPE_CHECKING:
    from .actor_server import SimServer
    from .actor_worker import SimWorker

CATCH_UP_S = 0.5
"""For so long after it was continued, a server may tell what was true before."""

REPLACED_S = 0.9
"""A place in the pool may be empty for so long: the longest pause, and some ticks."""

SETTLE_S = 3.0
"""After it was stopped, a process may be taken for silent for a while."""


UNHEARD_S = 8.0
"""For so long a server may not know that a call has ended: a lease and a little more."""


class Health(Wires):
    """The part of the judge that looks after healths."""

    def kill_sent(self, server: SimServer, worker: SimWorker, why: str) -> None:
        """A server kills a worker: does it have a reason that is one?"""
        reason = (
            worker in self.leaving
            or not worker.alive
            or worker.known_s is None
            or bool(worker.junk)
            or server in self.draining
            or bool(worker.told_to_stop)
            or worker.moved_s(self.clock()) < SETTLE_S
            or server.moved_s(self.clock()) < SETTLE_S
        )
        self.leaving.add(worker)
        if not reason:
            text = f"{worker.name} is killed for nothing: {why}"
            keys = [e.key for e in self.by_dispatch.values() if e.worker is worker and e.live()]
            self.violation("G9", text, keys[0] if keys else "")

    def statement_sent(
        self, worker: SimWorker, message: messages.Message, body: Body | None
    ) -> None:
        """A server sends to a worker: what does the server know, and want to end?"""
        self.server_told_worker(worker, message, body)
        if isinstance(message, messages.Statement):
            if worker.known_s is None:
                worker.known_s = self.clock()
            live = Ranges.from_flat(message.live)
            worker.told_to_stop = {n for n in worker.told_to_stop if n in live}
            worker.told_to_stop.update(Ranges.from_flat(message.cancelled))
        elif isinstance(message, messages.Stop):
            worker.told_to_stop.update(Ranges.from_flat(message.numbers))

    def status_told(self, server: SimServer, status: dict[str, Any]) -> None:
        """Judge what a server says of itself: is it ready while nobody could work?"""
        now_s = self.clock()
        if status["status"] != "ready" or server.moved_s(now_s) < CATCH_UP_S:
            return
        workers = server.workers.values()
        there = [w for w in workers if w.set_up_s is not None and not w.reaped]
        limits = self.plan.server
        silent_s = limits.silence_report_s + limits.tick_s + 0.1
        if not there:
            self.violation("G9", f"{server.name} says that it is ready, and has no worker")
        elif server.moved_s(now_s) <= silent_s:
            return  # it measures silence in its own awake time
        elif all(worker.quiet_s(now_s) > silent_s for worker in there):
            self.violation(
                "G9", f"{server.name} says that it is ready; no worker gives a sign of life"
            )

    def pool_seen(self, server: SimServer) -> None:
        """Judge that a worker that ends is replaced soon, however long its process takes to end."""
        now_s = self.clock()
        taken = {w.slot for w in server.workers.values() if w not in self.leaving}
        idle = server in self.draining or not server.locked
        if idle or server.moved_s(now_s) < SETTLE_S:
            server.empty_since_s.clear()
            return
        if self.plan.most_workers:
            self._least_kept(server, len(taken))
            return
        for slot in range(self.plan.workers):
            if slot in taken:
                server.empty_since_s.pop(slot, None)
            elif now_s - server.empty_since_s.setdefault(slot, now_s) > REPLACED_S:
                server.empty_since_s[slot] = now_s
                self.violation("G9", f"{server.name} does not replace a worker that ends")

    def _least_kept(self, server: SimServer, workers: int) -> None:
        """Which slots are open the judge does not know, but how many there are at least."""
        now_s, least = self.clock(), self.plan.workers
        if workers >= least:
            server.empty_since_s.clear()
        elif now_s - server.empty_since_s.setdefault(0, now_s) > least * REPLACED_S:
            server.empty_since_s.clear()
            self.violation("G9", f"{server.name} keeps {workers} workers of at least {least}")

    def spawned(self, server: SimServer) -> None:
        """There is one more worker: may there be, and is there a reason?"""
        if not self.plan.most_workers:
            return
        workers = sum(worker not in self.leaving for worker in server.workers.values())
        before = max(server.most_workers, self.plan.workers)
        server.most_workers = max(before, workers)
        if workers > self.plan.most_workers:
            most = self.plan.most_workers
            self.violation("G8", f"{server.name} has {workers} workers of at most {most}")
        elif workers > before and not self._somebody_waits():
            self.violation("G8", f"{server.name} has {workers} workers, and nobody waits for one")

    def _somebody_waits(self) -> bool:
        """Whether anybody may have asked long ago for what does not run: the judge does not
        know how soon a server hears that it is not wanted any more, nor what keys hold."""
        if self.plan.has(Fault.KEYS) or self.plan.has(Fault.HOSTILE):
            return True
        now_s = self.clock()
        return any(
            call.asked_s <= now_s - self.plan.server.grow_after_s
            and (not call.told or now_s - call.told_s < UNHEARD_S)
            and not any(execution.live() for execution in call.executions)
            for call in self.calls.values()
        )
