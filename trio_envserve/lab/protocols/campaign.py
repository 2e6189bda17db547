"""Jobs for the simulating processes (:mod:`.jobs`)."""

from __future__ import annotations

from typing import Any

from ..kit import campaign as kit
from ..kit.campaign import Found, ProcessDied, Result

MODULE = "trio_envserve.lab.protocols.jobs"


async def examine(protocol: str, found: Found) -> dict[str, Any]:
    """The failure, made small, as data."""
    job = {
        "do": "examine", "protocol": protocol, "seed": found.seed, "guarantee": found.guarantee,
        "digest": found.digest,
    }  # fmt: skip
    failure: dict[str, Any] | None = (await kit.ask(MODULE, job))["failure"]
    if failure is None:
        raise ProcessDied(f"seed {found.seed} failed, and did not when it was run again")
    return failure


async def one(protocol: str, seed: int, *, trace: bool) -> Result:
    """One run, in a process of its own: what it came to."""
    job = {"do": "one", "protocol": protocol, "seed": seed, "trace": trace}
    return await kit.ask(MODULE, job)
