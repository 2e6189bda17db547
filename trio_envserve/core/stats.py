"""The status and the statistics of a router, each made in one place.

Counters count from the start of this server (its epoch); gauges are of now.  The record
is plain text-keyed data: it goes over the wire, into the log line, and to
``status --json`` unchanged.
"""

from __future__ import annotations

from typing import Any, Protocol

from .account import Accounts
from .clock import AwakeClock
from .closing import Closing, Held
from .durations import Durations
from .executions import Announcements, Dispatches
from .health import ServerStatus
from .host_pool import Hosts
from .journal import Journal
from .limits import ServerLimits
from .model_totals import TOOK
from .pool import Elastic, Pool
from .scheduler import Scheduler
from .scope import ResourceCounts, Resources
from .sessions import Sessions
from .status import plain
from .terms import Epoch
from .work import Work, Works
from .workforce import Workforce


class CountedRouter(Protocol):
    """The parts of a :class:`~.router.Router` that are counted."""

    epoch: Epoch
    limits: ServerLimits
    clock: AwakeClock
    pool: Pool
    closing: Closing
    journal: Journal
    accounts: Accounts
    announced: Announcements
    dispatches: Dispatches
    workforce: Workforce
    hosts: Hosts | None
    elastic: Elastic
    queue: Scheduler[Work]
    resources: Resources
    works: Works
    sessions: Sessions[Any]
    waits: Durations
    starting: str
    malformed: int

    def held(self) -> Held:
        """The things that closing waits for."""

    def oldest_wait_s(self) -> float:
        """Wait of the oldest request that a worker could take."""


def status(router: CountedRouter) -> dict[str, Any]:
    """The status record of welcomes and syncs."""
    pool, workforce, reason = router.pool, router.workforce, router.starting
    journal = router.journal
    ready = pool.ready_count()
    if router.closing.begun:
        stage = router.closing.stage.value
        status, reason = ServerStatus.STOPPING, f"the server is stopping ({stage})"
    elif pool.is_silent():
        status, reason = ServerStatus.SILENT, "no worker sends heartbeats"
    elif ready:
        status = ServerStatus.READY
    elif pool.is_broken():
        status, reason = ServerStatus.BROKEN, f"the environment is broken:\n{pool.broken}"
    else:
        status = ServerStatus.STARTING
        reason = reason or pool.broken or _waits_for(router)
    record: dict[str, Any] = {
        "status": status.value, "reason": reason, "ready": ready, "workers": pool.wanted,
        "environment": workforce.environment, "rerun": workforce.rerun,
        "durable": journal.on and not journal.failed, "paused": workforce.pausing.why,
    }  # fmt: skip
    if journal.failed:
        record["journal"] = journal.failed
    if router.closing.begun:
        record["closing"] = _closing(router)
    return record


def _closing(router: CountedRouter) -> dict[str, Any]:
    """The stage of closing, what it waits for, and the seconds until the next."""
    left_s = router.closing.left_s(router.clock.last_s)
    running, kept, workers, _, resources = router.held()
    return {
        "stage": router.closing.stage.value, "running": running, "outcomes": kept,
        "workers": workers, "left_s": round(left_s, 1),
        "resources": resources,
    }  # fmt: skip


def _waits_for(router: CountedRouter) -> str:
    if router.pool.wanted:
        return "no worker is ready yet"
    return "no host is here that may start workers"


def describe(router: CountedRouter) -> dict[str, Any]:
    """Everything countable of a server."""
    works, taken, workforce, pool = (
        router.works, router.accounts.all, router.workforce, router.pool,
    )  # fmt: skip
    archive = works.archive
    workers = []
    for life in pool.lives.values():
        worker = workforce.workers.get(life.id)
        said = workforce.history.stats.get(life.id, {})
        row = {
            "worker": life.name,
            "slot": life.slot,
            "host": life.host,
            "pid": life.pid,
            "phase": life.phase.value,
            "pending": len(worker.live) if worker else 0,
            "capacity": worker.capacity if worker else 0,
            "done": worker.done if worker else 0,
            "failed": worker.failed if worker else 0,
            "restarts": pool.slots[life.slot].lives - 1,
            "memory_bytes": life.memory_bytes,
            "lag_s": life.lag_s,
            "silent": life.silent,
            "blocked": life.blocked,
        }
        # It cannot overrule what is known here.  Its buckets are in model_calls.
        more = {n: said[n] for n in said if n not in row and not n.startswith(TOOK)}
        workers.append({**row, **more})
    models = workforce.history.models_of_the_dead.copy()
    for statistics in workforce.history.stats.values():
        models.take(statistics)
    return {
        **status(router),
        "epoch": router.epoch.hex(),
        "sessions": len(router.sessions.known),
        "waiting": len(router.queue),
        "running": workforce.live_count(),
        "kept": taken.kept_count,
        "kept_bytes": taken.kept_bytes,
        "announced": len(router.announced),
        "announced_bytes": taken.announced_bytes,
        "held_bytes": taken.held_bytes,
        "keys": taken.works,
        "keys_bytes": taken.size_bytes,
        "journal_keys": 0 if archive is None else archive.all.keys,
        "journal_bytes": 0 if archive is None else archive.all.disk_bytes,
        **_size(router),
        "worker_restarts": pool.restarts,
        "malformed": router.malformed,
        "fenced": workforce.fenced,
        "strays": workforce.strays,
        "differences": workforce.differences,
        "bad_statistics": workforce.history.bad_statistics,
        **_resources(router.resources.counts()),
        "bounds": bounds(router),
        "waits": router.waits.to_record(),
        "runs": workforce.runs.to_record(),
        "model_calls": models.took(),
        "model_usage": models.usage(),
        "cache": plain(works.counters),
        "failures": dict(works.failures),
        "per_worker": workers,
        "deaths": [
            {
                "worker": death.worker, "why": death.why, "lost": death.lost,
                "age_s": round(router.clock.awake_s - death.at_s, 3),
            }
            for death in workforce.history.deaths
        ],
        **_hosts(router),
        "permits": router.dispatches.permits.records(),
        "resources_held": router.resources.records(router.clock.awake_s),
    }  # fmt: skip


def _resources(counts: ResourceCounts) -> dict[str, Any]:
    """Numbers of resources."""
    held, cleaning, stuck, destroyed = counts
    return {
        "resources": held, "resources_cleaning": cleaning, "resources_stuck": stuck,
        "resources_destroyed": destroyed,
    }  # fmt: skip


def _hosts(router: CountedRouter) -> dict[str, Any]:
    """The records of present and past hosts."""
    if router.hosts is None:
        return {"hosts": [], "past_hosts": []}
    running = {worker: len(each.live) for worker, each in router.workforce.workers.items()}
    return router.hosts.records(running, router.hosts.now_s)


def _size(router: CountedRouter) -> dict[str, Any]:
    """The figures on the number of workers: longest wait, range, last change."""
    pool = router.pool
    fixed = pool.wanted - sum(len(part.open()) for part in pool.parts)
    return {
        "oldest_wait_s": round(router.oldest_wait_s(), 3),
        "workers_least": fixed + sum(part.bounds.least for part in pool.parts),
        "workers_most": fixed + sum(part.bounds.most for part in pool.parts),
        "resized": router.elastic.why,
    }


def bounds(router: CountedRouter) -> dict[str, int]:
    """The bounds of what is counted, by its name."""
    limits, keys = router.limits, router.accounts.keys
    return {
        "sessions": limits.sessions,
        "waiting": limits.queue,
        "running": router.workforce.capacity * router.pool.wanted,
        "kept": limits.kept_outcomes,
        "kept_bytes": limits.kept_bytes,
        "announced_bytes": limits.announced_bytes,
        "held_bytes": limits.queue_bytes,
        "keys": keys.generations,
        "keys_bytes": keys.retained_bytes,
        "journal_keys": keys.journal_keys,
        "journal_bytes": keys.journal_bytes,
        "pending": router.workforce.capacity,
        "resources": limits.resources,
    }


def line(stats: dict[str, Any]) -> str:
    """The statistics as one line for a log."""
    cache = stats["cache"]
    workers = " ".join(
        f"{w['worker']}:{w['pending']}/{w['done']}/{w['failed']}"
        f"({w.get('loop_lag_p99_s', 0.0) * 1e3:.0f}ms,{w['memory_bytes'] >> 20}MiB)"
        for w in stats["per_worker"]
    )
    return (
        f"{stats['status']} sessions={stats['sessions']} waiting={stats['waiting']} "
        f"running={stats['running']} kept={stats['kept']} ({stats['kept_bytes'] >> 10} KiB) "
        f"coalesced={cache['coalesced']} replayed={cache['replayed']} "
        f"refused={cache['refused_for_now'] + cache['conflicts'] + cache['spent']} "
        f"finished={cache['finished']} restarts={stats['worker_restarts']} "
        f"router_lag={stats.get('router_lag_p99_s', 0.0) * 1e3:.0f}ms "
        f"workers[pending/done/failed]: {workers or 'none'}"
    )
