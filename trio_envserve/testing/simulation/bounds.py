"""What a core holds: is it within its bounds, and is it gone at the end?  (G8)

The only part of the judge that looks into a core, and only at sizes.
"""

from __future__ import annotations

from typing import Any

from ...core.client import ClientCore
from ...core.requests import State
from ...core.router import Router


def audit(router: Router, peak_live: int) -> list[str]:
    """What is over its bound, or is not what it is counted as (G8).

    What is kept may pass its bound by what was running: at most ``peak_live``
    outcomes, of the largest's size; and by one outcome of each session that had
    none, so that those who fetch theirs are not stopped by those who do not.
    """
    cache, limits, wrong = router.cache, router.limits, []
    kept = kept_bytes = held = by_workers = by_workers_bytes = largest_bytes = 0
    for session in cache.sessions.values():
        for entry in session.entries.values():
            held += entry.body_bytes if entry.body is not None else 0
            if entry.state is State.COMPLETED:
                assert entry.kept is not None
                kept += 1
                kept_bytes += entry.kept.size_bytes
                if entry.executions:
                    by_workers += 1
                    by_workers_bytes += entry.kept.size_bytes
                    largest_bytes = max(largest_bytes, entry.kept.size_bytes)
        if len(session.entries) > limits.window:
            wrong.append(f"a session of {len(session.entries)} entries")
        if session.finished.span_count() > 2 * limits.window + 2:
            wrong.append(f"a session of {session.finished.span_count()} spans")
    counts: dict[str, tuple[Any, Any]] = {
        "kept": (kept, cache.kept_count),
        "kept bytes": (kept_bytes, cache.kept_bytes),
        "held bytes": (held, cache.held_bytes),
        "queued": (len(router.queue), cache.queued_count),
    }
    wrong += [f"{name}: {a} counted as {b}" for name, (a, b) in counts.items() if a != b]
    over = peak_live + sum(session.kept_count > 0 for session in cache.sessions.values())
    if by_workers > limits.kept_outcomes + over:
        wrong.append(f"{by_workers} outcomes kept")
    if by_workers_bytes > limits.kept_bytes + over * largest_bytes:
        wrong.append(f"{by_workers_bytes} bytes of outcomes kept")
    return wrong


def at_a_bound(router: Router) -> bool:
    """Whether as much is kept as may be."""
    cache, limits = router.cache, router.limits
    return cache.kept_count >= limits.kept_outcomes or cache.kept_bytes >= limits.kept_bytes


def unfinished(router: Router) -> list[str]:
    """What a router at rest should not hold any more."""
    left = {
        "entries": sum(len(s.entries) for s in router.cache.sessions.values()),
        "executions": router.force.live_count(),
        "queued": len(router.queue),
        "kept": router.cache.kept_count,
        "held bytes": router.cache.held_bytes,
    }
    return [f"the router still has {name}: {n}" for name, n in left.items() if n]


def unanswered(name: str, core: ClientCore) -> list[str]:
    """What a client at rest should not hold any more."""
    left = {"calls": len(core.calls), "lost sessions": len(core.lost)}
    return [f"client {name} still has {what}: {n}" for what, n in left.items() if n]
