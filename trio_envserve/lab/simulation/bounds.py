"""The contents of a core: are they within their bounds, and gone at the end?  (G8)

The only part of the judge that looks into a core, and only at sizes.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ...core.account import WHOLE, Account, Usage
from ...core.client import ClientCore
from ...core.executions import Duty, Execution
from ...core.key_records import Payload
from ...core.limits import ServerLimits
from ...core.requests import RetainedOutcome
from ...core.router import Router
from ...core.terms import Status
from ...core.work import Work, WorkState

USAGES = tuple(field.name for field in dataclasses.fields(Usage))


def audit(router: Router, peak_live: int) -> list[str]:
    """The contents that are over their bounds, or are not what they are counted as (G8).

    What is kept and what runs may pass its bound by the own part of each session, or
    one, so that those who fetch theirs are not stopped by those who do not; its
    bytes also by what was running, or waited to run again: at most ``peak_live`` outcomes
    too small to be announced, or errors; and by one that is announced.
    """
    taken, limits = router.accounts.all, router.limits
    works, accounts = works_of(router), accounts_of(router)
    wrong = starved(router, works, accounts)
    kept = kept_bytes = by_workers = 0
    held_by_workers = announced(router)
    large_bytes = [each.size_bytes or 0 for each in held_by_workers if each.fetched]
    coming_bytes = sum(large_bytes)
    waiting_bytes = sum(each.size_bytes or 0 for each in held_by_workers if not each.fetched)
    small_bytes: list[int] = []
    places = len(router.queue)
    sessions = router.sessions.known.values()
    for session in sessions:
        for ticket in session.tickets.values():
            places += ticket.key is not None or (ticket.kept is not None and not ticket.ran)
            if ticket.kept is not None:
                kept += 1
                kept_bytes += ticket.kept.size_bytes
                by_workers += ticket.ran
                if ticket.key is not None:
                    continue  # its payload is that of the work of its key
                if _is_large(ticket.kept, limits.announce_bytes):
                    large_bytes.append(len(ticket.kept.payload))
                elif ticket.ran:
                    small_bytes.append(ticket.kept.size_bytes)
        if len(session.tickets) > limits.window:
            wrong.append(f"a session of {len(session.tickets)} tickets")
        if session.finished.span_count() > 2 * limits.window + 2:
            wrong.append(f"a session of {session.finished.span_count()} spans")
    opened = Counter(session.opener for session in sessions)
    if any(count > limits.connection_sessions for count in opened.values()):
        wrong.append(f"{max(opened.values())} sessions were opened on one connection")
    large = [len(work.saved) for work in works if work.saved is not None]
    if large and max(large) > limits.save_bytes:
        wrong.append(f"a state of {max(large)} bytes, {limits.save_bytes} are allowed")
    running = sum(work.state is WorkState.RUNNING for work in works)
    held = sum(
        work.body_bytes + len(work.saved or b"")
        for work in works
        if work.body is not None and work.state is not WorkState.HELD
    )
    counts: dict[str, tuple[Any, Any]] = {
        "kept": (kept, taken.kept_count),
        "kept bytes": (kept_bytes + coming_bytes, taken.kept_bytes),
        "announced bytes": (waiting_bytes, taken.announced_bytes),
        "held bytes": (held, taken.held_bytes),
        "running": (running, taken.running_count),
        "places": (places, taken.waiting),
        **_usage_of_keys(router),
        **_sums(accounts, taken),
    }
    wrong += [f"{name}: {a} counted as {b}" for name, (a, b) in counts.items() if a != b]
    over = sum(bool(each.waiting or each.running_count or each.kept_count) for each in accounts)
    if by_workers + running > limits.kept_outcomes + over * _own(limits.kept_outcomes, limits):
        wrong.append(f"{by_workers} outcomes kept, {running} under way")
    own_bytes = over * (limits.kept_bytes // limits.sessions)
    most_bytes = limits.kept_bytes + own_bytes + (over + peak_live) * max(small_bytes, default=0)
    if sum(small_bytes) > most_bytes:
        wrong.append(f"{sum(small_bytes)} bytes of outcomes kept that need no announcement")
    if sum(large_bytes) > limits.kept_bytes + own_bytes + max(large_bytes, default=0):
        wrong.append(f"{sum(large_bytes)} bytes of announced outcomes kept or under way")
    return wrong + permits_miscounted(router) + resources_miscounted(router)


def permits_miscounted(router: Router) -> list[str]:
    """Claims that no live execution has, and counts of permits that do not hold."""
    workers = router.workforce.workers.values()
    claims = [each for worker in workers for each in worker.claims.values() if each is not None]
    live = {execution for worker in workers for execution in worker.live.values()}
    wrong = [f"claim {each.number} of nobody" for each in claims if each.holder not in live]
    lines = router.dispatches.permits.lines.values()
    for line in lines:
        mine = [each for each in claims if each.line is line]
        held = sum(each.is_held for each in mine)
        counted = line.held, len(line.waiting), line.limits
        if counted != (held, len(mine) - held, sorted(each.most for each in mine)):
            wrong.append(f"permits of {line.name!r}: {counted}, by {len(mine)} claims")
    lost = len(claims) - sum(len(line.limits) for line in lines)
    return [*wrong, *([f"{lost} claims of forgotten names"] if lost else [])]


def resources_miscounted(router: Router) -> list[str]:
    """Bounds that are passed, and resources that their holders do not have."""
    resources, limits, wrong = router.resources, router.limits, []
    of_executions = Counter(each.execution for each in resources.all.values() if each.execution)
    for count, most, whose in (
        (len(resources.all), limits.resources, "server"),
        (max(resources.of.values(), default=0), limits.account_resources, "account"),
        (max(of_executions.values(), default=0), limits.execution_resources, "execution"),
    ):
        if count > most and not router.followed:  # but for those that an earlier router allowed
            wrong.append(f"{count} resources of one {whose}, of {most}")
    for each in resources.all.values():
        if each.holder is None:
            continue
        known = router.workforce.workers.values()
        if each.holder not in known:
            wrong.append(f"{each.text} of a worker that is gone")
        elif each.execution is not None and each.execution not in each.holder.live.values():
            wrong.append(f"{each.text} of an execution that has ended")
    return wrong


def works_of(router: Router) -> list[Work]:
    """All works of a router: those of sessions, and those with keys."""
    tickets = (t for s in router.sessions.known.values() for t in s.tickets.values())
    of_sessions = (t.work for t in tickets if t.key is None and t.work is not None)
    return [*of_sessions, *router.works.generations.values()]


def accounts_of(router: Router) -> list[Account]:
    """The accounts of all sessions and namespaces."""
    of_sessions = (session.account for session in router.sessions.known.values())
    return [*of_sessions, *router.accounts.namespaces.values()]


def _sums(accounts: Sequence[Account], whole: Usage) -> dict[str, tuple[int, int]]:
    """The usage of all accounts together, and what it is counted as."""
    return {
        f"{name} of all accounts": (
            sum([getattr(each, name) for each in accounts]),
            getattr(whole, name),
        )
        for name in USAGES
    }


def _usage_of_keys(router: Router) -> dict[str, tuple[int, int]]:
    """The bytes of works with keys, and what they are counted as.  What a work has brought counts
    once, while that or a request that was answered holds it."""
    here, usage = router.works.generations.values(), router.accounts.all
    tickets = (t for s in router.sessions.known.values() for t in s.tickets.values())
    outcomes = [each.outcome for each in here] + [each.kept for each in tickets]
    held = Counter[Payload](each.shared for each in outcomes if each is not None and each.shared)
    outcome_bytes = sum(payload.size_bytes for payload in held)
    own_bytes = sum(each.own_bytes for each in here)
    return {
        "works with keys": (len(here), usage.works),
        "bytes of works": (own_bytes + outcome_bytes, usage.size_bytes),
        "bytes of retained outcomes": (outcome_bytes, usage.outcome_bytes),
        "holders of outcomes": (held.total(), sum(payload.holders for payload in held)),
    }


def _own(bound: int, limits: ServerLimits) -> int:
    """The part of a bound that a session may have, whatever the others have."""
    return max(1, bound // limits.sessions)


def _is_large(kept: RetainedOutcome, announce_bytes: int) -> bool:
    """Whether it must have been announced: a result, and too large."""
    return len(kept.payload) > announce_bytes and kept.outcome.status == Status.RESULT


def announced(router: Router) -> list[Execution]:
    """Executions of which workers hold the outcome, as far as the router knows."""
    live = [e for worker in router.workforce.workers.values() for e in worker.live.values()]
    return [execution for execution in live if execution.size_bytes is not None]


def starved(router: Router, works: Sequence[Work], accounts: Sequence[Account]) -> list[str]:
    """Accounts that wait for a worker, though one is free and they hold less than what
    is theirs at any bound: their share of what the others leave, their own part, and one
    at least."""
    if router.workforce.pausing.holds(router.awake_s):
        return []
    # The rest may be for workers that still start, for as long as is said.
    most = _share(router) if router.awake_s < router.pool.spread_until_s else math.inf
    workers = router.workforce.workers.values()
    if not any(worker.open() and worker.running < most for worker in workers):
        return []
    wrong, limits = [], router.limits
    here = announced(router)
    waiting = [
        work.account for work in works if work.state is WorkState.WAITING and work.suspicion is None
    ]
    for account in accounts:
        if not any(each is account for each in waiting):
            continue
        mine = account.running_count + account.kept_count - account.kept_unrun
        others = router.accounts.all.running_count + router.accounts.all.kept_count
        others -= router.accounts.all.kept_unrun + mine
        mine_bytes = account.kept_bytes
        others_bytes = router.accounts.all.kept_bytes - mine_bytes
        mine_bytes += sum(e.size_bytes or 0 for e in here if not e.fetched and e.session is account)
        share = limits.session_share
        own, own_bytes = (
            bound * account.part // WHOLE for bound in (limits.kept_outcomes, limits.kept_bytes)
        )
        most = max(share * (limits.kept_outcomes - others), own)
        most_bytes = max(share * (limits.kept_bytes - others_bytes), own_bytes)
        if account.namespace and not router.accounts.may_retain(account):
            continue
        if account.namespace and router.works.earlier_lives:
            continue  # hosts of an earlier server may run what waits
        left = mine < most and mine_bytes < most_bytes
        if not mine or left:
            wrong.append(f"an account that holds {mine} waits, and a worker is free")
    return wrong


def _share(router: Router) -> int:
    """The share of a worker of all that runs and waits."""
    wanted = sum(slot.is_open for slot in router.pool.slots)
    return -(-(router.workforce.live_count() + len(router.queue)) // max(1, wanted))


def crowded(router: Router, started: Iterable[Execution]) -> list[str]:
    """Workers that were given another execution just now, though they have their share and
    others still start."""
    if not router.pool.spreads(router.awake_s):
        return []
    most = _share(router)
    return [
        f"one more execution for {worker.name}, which has {worker.running} of {most}"
        for worker in {execution.worker.id: execution.worker for execution in started}.values()
        if worker.running > most and worker.duty is not Duty.SUSPECTS
    ]


def greedy(router: Router, started: Iterable[Execution]) -> list[str]:
    """Accounts that were given another execution just now, though their outcomes had
    used up what is theirs of the bytes."""
    taken, limits, wrong = router.accounts.all, router.limits, []
    for session in {execution.session.id: execution.session for execution in started}.values():
        others_bytes = taken.kept_bytes - session.kept_bytes
        most_bytes = max(
            limits.session_share * (limits.kept_bytes - others_bytes),
            limits.kept_bytes * session.part // WHOLE,
        )
        mine = session.running_count + session.kept_count - session.kept_unrun
        mine_bytes = session.kept_bytes + session.announced_bytes
        if mine > 1 and mine_bytes >= most_bytes:
            wrong.append(f"one more execution for an account that holds {mine_bytes} bytes")
    return wrong


def begun(router: Router) -> int:
    """Number of executions, and of requests that wait to run again: each will leave an outcome."""
    again = sum(
        work.state is WorkState.WAITING and work.executions > 0 for work in works_of(router)
    )
    return router.workforce.live_count() + again


def at_a_bound(router: Router) -> bool:
    """Whether as much is kept as may be."""
    taken, limits = router.accounts.all, router.limits
    return taken.kept_count >= limits.kept_outcomes or taken.kept_bytes >= limits.kept_bytes


def unfinished(router: Router) -> list[str]:
    """The contents that a router at rest should not have."""
    left = {
        "tickets": sum(len(s.tickets) for s in router.sessions.known.values()),
        "executions": router.workforce.live_count(),
        "queued": len(router.queue),
        "kept": router.accounts.all.kept_count,
        "held bytes": router.accounts.all.held_bytes,
        "announced": len(router.announced),
        "claims": sum(len(line.limits) for line in router.dispatches.permits.lines.values()),
        "resources": len(router.resources.all) - len(router.resources.stuck),
        # What is retained may stay; nobody is to wait for it, and nothing of it to live.
        "works with keys": len(router.works.generations) - len(router.works.retained),
    }
    return [f"the router still has {name}: {n}" for name, n in left.items() if n]


def unanswered(name: str, core: ClientCore) -> list[str]:
    """The contents that a client at rest should not have."""
    left = {"calls": len(core.calls.live), "lost sessions": len(core.sessions.lost)}
    return [f"client {name} still has {what}: {n}" for what, n in left.items() if n]
