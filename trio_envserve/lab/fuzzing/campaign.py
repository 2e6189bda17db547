"""Jobs for the simulating processes (:mod:`.process`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import trio

from ...retrylab import campaign as kit
from ...retrylab.campaign import Found, ProcessDied, Result
from .failure import Failure
from .hunt import Catch

MODULE = "trio_envserve.lab.fuzzing.process"


async def examine(found: Found, *, harsh: bool, mutant: str) -> Failure:
    """The failure, made small."""
    job = {
        "do": "examine", "seed": found.seed, "harsh": harsh, "guarantee": found.guarantee,
        "mutant": mutant,
    }  # fmt: skip
    failure = (await kit.ask(MODULE, job))["failure"]
    if failure is None:
        raise ProcessDied(f"seed {found.seed} failed, and did not when it was run again")
    return Failure.from_data(failure)


async def one(
    seed: int, *, harsh: bool, mutant: str = "", trace: bool = False,
    plan: dict[str, Any] | None = None,
) -> Result:  # fmt: skip
    """One run, in a process of its own: what it came to."""
    job = {
        "do": "one", "seed": seed, "harsh": harsh, "mutant": mutant, "trace": trace, "plan": plan,
    }  # fmt: skip
    return await kit.ask(MODULE, job)


async def hunt_all(
    names: Sequence[str], *, base: int, jobs: int, caught: Callable[[Catch], object]
) -> None:
    """Hunt each of these mutants, several at once; ``caught`` is told of each."""
    left = list(reversed(names))

    async def work() -> None:
        async with kit.open_worker(MODULE) as worker:
            while left:
                job = {"do": "hunt", "mutant": left.pop(), "base": base}
                await worker.do(job, lambda result: caught(Catch(**result["caught"])))

    async with trio.open_nursery() as nursery:
        for _ in range(min(jobs, len(names))):
            nursery.start_soon(work)
