"""A report on the workers that have not ended when their server has closed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable

from ..core.router import Router
from ..core.terms import RequestId

_log = logging.getLogger("trio_envserve.server")


def left_over(
    workers: Iterable[bytes], router: Router, reap_s: float, where: Callable[[bytes], str]
) -> str:
    """Log the workers of other hosts among ``workers``, and return a text about those of this
    machine; empty if there are none.  ``where``: returns the stacks of a worker's executions."""
    here: list[bytes] = []
    away: Counter[str] = Counter()
    for worker in workers:
        life = router.pool.lives.get(worker)
        if life is None:
            continue  # it has ended since
        if not life.host:
            here.append(worker)
        else:
            away[life.host] += 1
    for host, count in sorted(away.items()):
        _log.warning(
            "%d workers of host %s are not known to have ended: they have with its lease, "
            "which the next server at this address waits for", count, host,
        )  # fmt: skip
    text = "".join(_about(router, worker, reap_s, where(worker)) for worker in here)
    if text:
        _log.error("the server has closed, but not all of it has ended: %s", text)
    return text


def _about(router: Router, worker_id: bytes, reap_s: float, where: str) -> str:
    life = router.pool.lives[worker_id]
    worker = router.workforce.workers.get(worker_id)
    live = worker.live.values() if worker is not None else ()
    runs = ", ".join(
        f"request {RequestId(each.session.id, each.sequence)} of {each.session.name}"
        for each in live
    )
    return (
        f"worker {life.name} (pid {life.pid}) was killed and has not ended in "
        f"{reap_s:g} s; it runs {runs or 'nothing that is known'}\n{where}"
    )
