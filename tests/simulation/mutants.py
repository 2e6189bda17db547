"""Variants of the core that are broken on purpose: each must be caught.

A check that no mutant fails is not a check.  Each mutant is applied from
outside, and names the guarantee by which it must be found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from trio_envserve.core import client, dedup, executions, messages
from trio_envserve.core.calls import limit_passed
from trio_envserve.core.client import ClientCore
from trio_envserve.core.clock import AwakeClock
from trio_envserve.core.dedup import DedupCache, Do, Input
from trio_envserve.core.ranges import Ranges
from trio_envserve.core.requests import Session, State
from trio_envserve.core.router import Router
from trio_envserve.core.slots import Pool
from trio_envserve.core.terms import RequestId
from trio_envserve.core.worker import Run, WorkerCore
from trio_envserve.core.workforce import Workforce
from trio_envserve.testing.simulation.faults import Fault


class Mutant(NamedTuple):
    """A broken variant: how it is made, and what it violates."""

    name: str
    violates: tuple[str, ...]
    apply: Callable[[pytest.MonkeyPatch], None]
    needs: frozenset[Fault]
    """Only seeds with all these faults are tried: what they defend against is rare."""


MUTANTS: list[Mutant] = []


def mutant(name: str, *violates: str, needs: tuple[Fault, ...] = ()) -> Callable[[Any], Any]:
    def add(apply: Callable[[pytest.MonkeyPatch], None]) -> Callable[[pytest.MonkeyPatch], None]:
        MUTANTS.append(Mutant(name, violates, apply, frozenset(needs)))
        return apply

    return add


@mutant("a duplicate of a running request runs as well", "G1")
def _(patch):
    def again(cache, session, sequence, entry, ask):
        if entry.body is None:
            entry.body = ask.body
            cache.held_bytes += entry.body_bytes
            session.held_bytes += entry.body_bytes
        entry.state = State.WAITING
        dedup._queue(cache, session, +1)
        return ((Do.QUEUE, entry),)

    patch.setitem(dedup.TABLE[Input.REQUEST], State.RUNNING, again)


@mutant("finished looks like never seen", "G2")
def _(patch):
    def state(self, sequence):
        entry = self.entries.get(sequence)
        return State.NOT_SEEN if entry is None else entry.state

    patch.setattr(Session, "state", state)


@mutant("a worker runs a repeated dispatch", "G1", "G2")
def _(patch):
    def dispatch(self, dispatch, body):
        self.seen.add(dispatch.number)
        request = RequestId(dispatch.session, dispatch.sequence)
        self.running[dispatch.number] = (request, dispatch.client)
        return [Run(dispatch.number, request, dispatch.client, body)]

    patch.setattr(WorkerCore, "_dispatch", dispatch)


@mutant("a worker takes dispatches of other incarnations", "G5")
def _(patch):
    message = WorkerCore.message
    patch.setattr(WorkerCore, "message", lambda self, f: message(self, (self.incarnation, *f[1:])))


@mutant("the router listens to other incarnations", "G", needs=(Fault.MANGLE, Fault.RESTART_FAST))
def _(patch):
    message = Workforce.message

    def any_incarnation(self, frames, now_s):
        life = self.pool.lives.get(bytes(frames[0]))
        if life is not None:
            frames = (frames[0], life.incarnation, *frames[2:])
        return message(self, frames, now_s)

    patch.setattr(Workforce, "message", any_incarnation)


@mutant("reruns without consent", "G2")
def _(patch):
    patch.setattr(
        DedupCache,
        "may_rerun",
        lambda self, entry: entry.executions < entry.allowance and entry.body is not None,
    )


@mutant("silence is taken for death", "G1")
def _(patch):
    check = Pool._check

    def no_proof(self, life, now_s):
        silent = life.pulses and now_s - life.heard_s >= self.limits.silence_kill_s
        if silent and life.reaped_s is None:
            self._leave_slot(life, now_s, "silent", failed=False)
            life.reaped_s = now_s - 1.0
        return check(self, life, now_s)

    patch.setattr(Pool, "_check", no_proof)


@mutant("spans are one too long", "G")
def _(patch):
    add_span = Ranges.add_span
    patch.setattr(Ranges, "add_span", lambda self, a, b: add_span(self, a, b + 1))


@mutant(
    "every lost session is said to be gone",
    "G1",
    needs=(Fault.STOP_CLIENT, Fault.SHORT_LEASE, Fault.IGNORE_CANCEL),
)
def _(patch):
    original = Router._session

    def session(self, route, session_id, epoch=b""):
        found = original(self, route, session_id, epoch)
        if found is None:
            self._send(route, messages.Unknown(session_id, True, self.epoch))
        return found

    patch.setattr(Router, "_session", session)


@mutant("a new session forgets what the last one used", "G2", needs=(Fault.POISON,))
def _(patch):
    assign = ClientCore._assign

    def forget(self, call, session):
        assign(self, call, session)
        call.granted = 0

    patch.setattr(ClientCore, "_assign", forget)


@mutant("the server never says what it misses", "G9")
def _(patch):
    sync = DedupCache.sync
    patch.setattr(DedupCache, "sync", lambda self, *a: (sync(self, *a)[0], Ranges()))


@mutant("the server replays nothing in a sync", "G9")
def _(patch):
    sync = DedupCache.sync

    def silent(self, *args):
        effects, missing = sync(self, *args)
        return [e for e in effects if e[0] is not Do.ANSWER], missing

    patch.setattr(DedupCache, "sync", silent)


@mutant("a stop that overtakes its dispatch is forgotten", "G7", needs=(Fault.MANGLE,))
def _(patch):
    stop = WorkerCore._stop
    patch.setattr(
        WorkerCore,
        "_stop",
        lambda self, numbers: stop(self, Ranges(n for n in numbers if n in self.seen)),
    )


@mutant("an outcome is dropped when others are kept", "G4", "G9")
def _(patch):
    complete = dedup._complete

    def evict(cache, session, sequence, entry, kept):
        effects = complete(cache, session, sequence, entry, kept)
        for other in [e for e in session.entries.values() if e.state is State.COMPLETED]:
            if other is not entry:
                dedup._finish_kept(cache, session, other.id.sequence, other, None)
        return effects

    patch.setitem(dedup.TABLE[Input.OUTCOME], State.RUNNING, evict)


@mutant(
    "leases run on while the server is stopped",
    "G4",
    needs=(Fault.STOP_SERVER, Fault.STOP_CLIENT),
)
def _(patch):
    def read(self, now_s):
        self.awake_s += max(0.0, now_s - self._last_s)
        self._last_s = max(now_s, self._last_s)
        return self.awake_s

    patch.setattr(AwakeClock, "read", read)


@mutant("cancelling does not reach the worker", "G7", "G8")
def _(patch):
    def stop(self, execution, now_s):
        execution.entry = execution.body = None

    patch.setattr(Workforce, "stop", stop)


@mutant("answers go to the first connection for ever", "G9", needs=(Fault.NEW_ROUTE,))
def _(patch):
    patch.setattr(DedupCache, "moved", lambda *args: None)


@mutant("a worker sends its outcome once", "G")
def _(patch):
    ended = WorkerCore.ended

    def once(self, number, status, payload, duration_s):
        effects = ended(self, number, status, payload, duration_s)
        self._kept.clear()
        return effects

    patch.setattr(WorkerCore, "ended", once)


@mutant("a replay has a header of its own", "G3")
def _(patch):
    def replay(cache, session, sequence, entry, ask):
        header, payload = entry.kept.frames
        message = messages.decode(header, most_bytes=1 << 20)
        assert isinstance(message, messages.Outcome)
        changed = messages.encode(message._replace(duration_s=1.5))
        entry.kept.frames = (changed, payload)
        return ((Do.ANSWER, entry),)

    patch.setitem(dedup.TABLE[Input.REQUEST], State.COMPLETED, replay)


@mutant("other payloads are taken for the same request", "G6", "G1", "G2", "CRASH")
def _(patch):
    def replace(cache, session, sequence, entry, ask):
        entry.body = ask.body
        return ()

    patch.setitem(dedup.TABLE[Input.OTHER_DIGEST], State.WAITING, replace)


@mutant("a cancel says that it did not run", "G9")
def _(patch):
    patch.setattr(DedupCache, "ever_started", lambda *args: False)


@mutant("work goes to a worker that was told to exit", "G2")
def _(patch):
    patch.setattr(executions.Worker, "open", lambda self: len(self.live) < self.capacity)


@mutant(
    "dispatching does not pause at the bound of kept outcomes",
    "G8",
    needs=(Fault.TINY_BOUNDS,),
)
def _(patch):
    patch.setattr(DedupCache, "may_dispatch", lambda self: True)
    patch.setattr(DedupCache, "share_left", lambda self, session: True)


@mutant("a request that kills its workers is dispatched for ever", "G2", needs=(Fault.POISON,))
def _(patch):
    def may_rerun(self, entry):
        consent = self.declared_rerun if entry.rerun is None else entry.rerun
        return consent and entry.body is not None

    patch.setattr(DedupCache, "may_rerun", may_rerun)


@mutant("a worker that never says hello is waited for", "G8", "G9", needs=(Fault.SLOW_START,))
def _(patch):
    check = Pool._check

    def patient(self, life, now_s):
        life.born_s = now_s
        return check(self, life, now_s)

    patch.setattr(Pool, "_check", patient)


@mutant("a client takes every welcome", "G", needs=(Fault.MANGLE,))
def _(patch):
    welcome = ClientCore._welcome

    def take(self, message, now_s):
        self.session, self._nonce = None, message.nonce
        welcome(self, message, now_s)

    patch.setattr(ClientCore, "_welcome", take)


@mutant("a worker's last words are thrown away", "G4", needs=(Fault.KILL_AFTER_OUTCOME,))
def _(patch):
    message = Workforce.message

    def deaf(self, frames, now_s):
        life = self.pool.lives.get(bytes(frames[0]))
        return [] if life is None or life.reaped_s is not None else message(self, frames, now_s)

    patch.setattr(Workforce, "message", deaf)


@mutant("a limit that has passed is said to mean that nothing ran", "G9")
def _(patch):
    patch.setattr(client, "limit_passed", lambda started: limit_passed(started=False))
