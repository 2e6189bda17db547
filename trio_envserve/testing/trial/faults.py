"""The faults of a trial.  Yours look the same: any ``async def fault(trial)``.

Each is called at a random moment and returns when it is over; several may be on
at once.  A fault draws from ``trial.rng``, so that the seed decides.  The report
shows what it returns.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from .system import Trial

Fault: TypeAlias = "Callable[[Trial], Awaitable[object]]"
"""A fault: any async callable that takes the trial."""


async def cut(trial: Trial) -> object:
    """All connections are cut; the clients reconnect at once."""
    return f"{trial.cut()} connections"


async def partition(trial: Trial) -> object:
    """No message passes between client and server for up to 20 s; neither is told."""
    for_s = trial.rng.uniform(0.5, 20)
    await trial.partition(for_s)
    return f"for {for_s:.1f} s"


async def loss(trial: Trial) -> object:
    """For up to 20 s some of the messages, in either direction, are lost."""
    share, for_s = trial.rng.uniform(0.05, 0.6), trial.rng.uniform(1, 20)
    await trial.lose(share, for_s)
    return f"of {share:.0%} for {for_s:.1f} s"


async def latency(trial: Trial) -> object:
    """For up to 20 s messages take up to 3 s longer."""
    latency_s, for_s = trial.rng.uniform(0.1, 3), trial.rng.uniform(1, 20)
    await trial.slow(latency_s, for_s)
    return f"of {latency_s:.1f} s for {for_s:.1f} s"


async def restart_server(trial: Trial) -> object:
    """The server is stopped in order, and started again up to 10 s later."""
    drain_s = trial.rng.choice([0.0, 0.0, 5.0])
    await trial.restart_server(down_s=trial.rng.uniform(0, 10), drain_s=drain_s)
    return f"after a drain of {drain_s:g} s" if drain_s else "without a drain"


async def crash_server(trial: Trial) -> object:
    """The server ends without a last message, and is started again up to 10 s later."""
    await trial.restart_server(down_s=trial.rng.uniform(0, 10), crash=True)
    return ""


async def kill_worker(trial: Trial) -> object:
    """The worker and its executions end; the server replaces it."""
    return f"{trial.kill_workers()} workers"


async def cancel_ask(trial: Trial) -> object:
    """The caller of one of the pending asks is cancelled."""
    number = trial.cancel_ask()
    return "of none: nothing was pending" if number is None else f"of ask {number}"


FAULTS: Sequence[Fault] = (
    cut, partition, loss, latency, restart_server, crash_server, kill_worker, cancel_ask,
)  # fmt: skip
"""The default faults of :func:`run_trial`."""
