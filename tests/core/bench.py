"""Works with a clock and a worker of their own, and a disk that saves at once."""

from __future__ import annotations

import dataclasses
from itertools import chain
from typing import Any

import cbor2

from trio_envserve.core import error_records, messages
from trio_envserve.core.account import Usage
from trio_envserve.core.executions import Execution
from trio_envserve.core.key_records import KeyAct, Keyed, KeyName, input_digest
from trio_envserve.core.limits import KeyLimits, ServerLimits
from trio_envserve.core.ranges import Ranges
from trio_envserve.core.requests import RetainedOutcome
from trio_envserve.core.router import Router
from trio_envserve.core.router_effects import ToClient
from trio_envserve.core.sessions import Session
from trio_envserve.core.terms import ID_BYTES, Status
from trio_envserve.core.work import Ticket, Work, WorkInput, WorkState

from .helpers import NAME, Ids, error_body, identifier, worker_of

LIMITS = KeyLimits(orphan_s=10.0, retention_s=100.0, command_s=20.0)
NONCE = 1000

Told = tuple[Any, ...]
"""Who was told (session and sequence), and what: a payload, an answer, or a code."""


def made(payload: bytes = b"outcome") -> RetainedOutcome:
    """The outcome that a worker brings."""
    outcome = messages.Outcome(identifier(1), 0, Status.RESULT, "w0-1", 1.0, 1)
    return RetainedOutcome.made(outcome, payload)


def lost(work: Any) -> RetainedOutcome:
    """The outcome of a work whose worker is dead."""
    session, sequence = work.id
    outcome = messages.Outcome(session, sequence, Status.ERROR, "w0-1", None, work.executions)
    return RetainedOutcome.made(outcome, error_body("worker-lost"))


class Bench:
    """The works of a router that has no worker: each input is a turn of its own, and what is
    due is done then."""

    def __init__(self, keys: KeyLimits = LIMITS, *, reads: bool = False, **limits: Any) -> None:
        self.router = Router(
            epoch=bytes(ID_BYTES), slots=1, now_s=0.0, new_id=Ids(1 << 40),
            limits=ServerLimits(**limits), keys=keys, journaled=reads, resting=reads,
        )  # fmt: skip
        self.works, self.accounts = self.router.works, self.router.accounts
        self.works.environment.is_known = True
        self.worker = worker_of(capacity=1 << 20)
        self.reached: set[tuple[WorkInput, WorkState]] = set()
        """The cells of the table that were reached."""
        self._watch()

    def _watch(self) -> None:
        step = self.works.step

        def watched(work: Work | None, input: WorkInput, arg: Any = None) -> Any:
            self.reached.add((input, WorkState.ABSENT if work is None else work.state))
            return step(work, input, arg)

        self.works.step = watched  # type: ignore[method-assign]  # to look on

    @property
    def now_s(self) -> float:
        return self.works.clock.awake_s

    # -- turns ------------------------------------------------------------------

    def turn(self) -> list[Told]:
        """Go on until nothing is due; what was told."""
        works, journal, found = self.works, self.works.journal, []
        while True:
            works.stop()
            journal.take()
            journal.saved(journal.appended)
            works.go_on()
            found += [self._short(each) for each in works.out if isinstance(each, ToClient)]
            works.out.clear()
            works.budget.renew()
            if not works.behind and not journal.unsaved:
                self._check()
                return found
            works.tick()

    def _check(self) -> None:
        """What is counted of each account is what is there, and only works whose time runs are
        among those."""
        works = self.works
        if len(works.generations) + sum(len(s.tickets) for s in works.sessions.known.values()) > 99:
            return  # it would take long
        assert all(each.works or each.outcome_bytes for each in self.accounts.namespaces.values())
        assert self.accounts.at_work <= self.accounts.namespaces.keys()
        for timed in (works.orphans, works.retained):
            assert all(timed is each.timed for each in timed.values())
        accounts = [each.account for each in works.sessions.known.values()]
        found = {id(each): Usage() for each in [*accounts, *self.accounts.namespaces.values()]}
        everybody = [works.generations.values(), *map(self._own, works.sessions.known.values())]
        shared = {}
        for work in chain.from_iterable(everybody):
            assert all(ticket.work is work for ticket in work.tickets)
            assert work.state is not WorkState.COMPLETED or all(t.counts for t in work.tickets)
            assert work.live is any(each.work is work for each in self.worker.live.values())
            assert (work.execution is not None) is (work.state is WorkState.RUNNING)
            usage = found[id(work.account)]
            usage.waiting += work.state is WorkState.WAITING
            usage.running_count += work.state is WorkState.RUNNING
            if work.body is not None and work.state is not WorkState.HELD:
                usage.held_bytes += work.weight
            usage.works += work.name is not None
            usage.own_bytes += work.name.size_bytes if work.name is not None else 0
            usage.own_bytes += work.weight if work.state is WorkState.HELD else 0
            if work.outcome is not None:
                shared[id(work.outcome.shared)] = work.outcome.shared
        for session in works.sessions.known.values():
            usage = found[id(session.account)]
            for ticket in session.tickets.values():
                kept = ticket.kept
                usage.waiting += ticket.key is not None if kept is None else not ticket.ran
                if kept is not None:
                    usage.kept_count += 1
                    usage.kept_unrun += not ticket.ran
                    usage.kept_bytes += kept.size_bytes
                    if kept.shared is not None:
                        shared[id(kept.shared)] = kept.shared
        for payload in shared.values():
            account = self.accounts.namespaces[payload.namespace]
            found[id(account)].outcome_bytes += payload.size_bytes
        for account in [*accounts, *self.accounts.namespaces.values()]:
            for name, value in dataclasses.asdict(found[id(account)]).items():
                assert getattr(account, name) == value, (account.name, name)
        for field in dataclasses.fields(Usage):
            total = sum(getattr(each, field.name) for each in found.values())
            assert getattr(self.accounts.all, field.name) == total, field.name

    @staticmethod
    def _own(session: Session[Ticket]) -> list[Work]:
        """The works of requests without a key."""
        tickets = session.tickets.values()
        return [each.work for each in tickets if each.key is None and each.work is not None]

    def _short(self, effect: ToClient) -> Told:
        message: Any = effect.message
        who = int.from_bytes(message.session, "big"), message.sequence
        match message:
            case messages.Refused():
                return (*who, message.code)
            case messages.Cancelled():
                return (*who, message.started)
        assert effect.body is not None
        if message.status != Status.RESULT:
            return (*who, error_records.decode(effect.body).code)
        is_ours = message.worker == "" and message.executions == 0
        return (*who, cbor2.loads(effect.body) if is_ours else bytes(effect.body))

    def wait(self, seconds: float) -> list[Told]:
        """Time passes."""
        self.works.clock.awake_s += seconds
        self.works.tick()
        return self.turn()

    # -- clients ----------------------------------------------------------------

    def session(self, number: int, caller: int | None = None) -> Session[Ticket]:
        """The session of a client, opened if there is none."""
        found = self.works.sessions.known.get(identifier(number))
        if found is None:
            found = self.works.sessions.open(
                identifier(number), identifier(number % 10 if caller is None else caller),
                identifier(NONCE + number), f"client {number}", b"route %d" % number, 1, self.now_s,
            )  # fmt: skip
            assert found is not None
        return found

    def ask(
        self, number: int, sequence: int = 0, *, body: bytes = b"input",
        name: KeyName | None = None, act: KeyAct = KeyAct.ASK, tag: int | bytes | None = None,
        earlier: int | None = None, rerun: bool | None = None, allowance: int = 4,
        digest: bytes | None = None,
    ) -> list[Told]:  # fmt: skip
        """A request: of a key if it names one."""
        if digest is None:
            digest = input_digest(body, rerun)
        key = None if name is None else Keyed(act, name, tag)
        session = self.session(number)
        request = messages.Request(
            session.id, sequence, digest, rerun, allowance, None, earlier=earlier
        )
        self.works.request(session, request, body, key, session.route)
        return self.turn()

    def attach(self, number: int, name: KeyName = NAME, sequence: int = 0) -> list[Told]:
        return self.ask(number, sequence, body=b"", name=name, act=KeyAct.ATTACH)

    def command(
        self, number: int, act: KeyAct, tag: int | bytes | None, name: KeyName = NAME,
        sequence: int = 0,
    ) -> list[Told]:  # fmt: skip
        return self.ask(number, sequence, body=b"", name=name, act=act, tag=tag)

    def finish(self, number: int, *sequences: int) -> list[Told]:
        self.works.finish(self.session(number), Ranges(sequences or (0,)))
        return self.turn()

    def end(self, number: int, *, lost: bool) -> list[Told]:
        """A session ends."""
        self.works.end_session(self.session(number), lost=lost)
        return self.turn()

    # -- executions -------------------------------------------------------------

    def work(self, number: int = 0) -> Work:
        """A work with a key, by its number."""
        work: Work = self.works.generations[number]
        return work

    def own(self, number: int = 1, sequence: int = 0) -> Work:
        """The work of a request without a key."""
        work = self.session(number).tickets[sequence].work
        assert work is not None
        return work

    def dispatch(self, work: Work) -> Execution:
        works, worker = self.works, self.worker
        works.queue.remove(work)
        execution = works.dispatches.start(work.account, work, worker, self.now_s)
        works.dispatches.send(execution, is_safe=works.dispatched(work, execution))
        assert self.turn() == []
        return execution

    def report(self, execution: Execution, brought: RetainedOutcome | None = None) -> list[Told]:
        """It has ended, with its outcome."""
        brought = made() if brought is None else brought
        session, sequence = execution.work.id
        brought.outcome = brought.outcome._replace(session=session, sequence=sequence)
        return self._ended(execution, brought)

    def dies(self, execution: Execution) -> list[Told]:
        """Its worker is proven dead."""
        return self._ended(execution, None)

    def _ended(self, execution: Execution, brought: RetainedOutcome | None) -> list[Told]:
        if execution.number in self.worker.live:
            self.worker.end(execution)
        self.works.ended(execution, brought, lost)
        return self.turn()

    def run(self, work: Work, payload: bytes = b"outcome") -> list[Told]:
        """From its dispatch to its outcome."""
        return self.report(self.dispatch(work), made(payload))

    def answer(self, work: Work) -> list[Told]:
        """The router ends it."""
        self.works.answer(work, lost)
        return self.turn()
