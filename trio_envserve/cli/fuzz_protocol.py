"""``fuzz --protocol``: the same for a protocol of somebody's own."""

from __future__ import annotations

from typing import Any

import trio

from ..retrylab import campaign
from ..retrylab.campaign import Campaign, Found
from ..retrylab.jobs import SIZES, ActorTally
from .common import Result, Stop, put, say
from .fuzz_report import any_tables, count
from .render import show_tables
from .searching import FAILED, search


async def many(
    spec: str, stop: Stop, *, base: int, runs: int | None, seconds: float | None, jobs: int,
    keep_going: bool, as_json: bool,
) -> Result:  # fmt: skip
    """Search seeds from ``base`` on."""
    say(f"{spec}: seeds from {base}, {count(jobs, 'process')}")
    fuzzing = Campaign(
        campaign.MODULE, ActorTally(), {"system": spec, "base": base}, runs=runs, seconds=seconds,
        jobs=jobs, keep_going=keep_going,
    )  # fmt: skip

    async def examine(found: Found) -> dict[str, Any]:
        return await _examined(spec, found, as_json=as_json)

    searched = await search(fuzzing, stop, examine, runs=runs, seconds=seconds)
    searched.figures.update(protocol=spec, seed=base, jobs=jobs)
    if not as_json and not searched.interrupted:
        show_tables(any_tables(fuzzing.tally, searched.figures, SIZES), put)
    return searched.result(stop, FAILED if fuzzing.found else 0)


async def one(spec: str, seed: int, *, trace: bool, as_json: bool) -> Result:
    """Run one seed; a failure is made small."""
    began_s = trio.current_time()
    ran = await campaign.one(spec, seed, trace=trace)
    figures = ActorTally.from_data(ran["tally"]).figures(trio.current_time() - began_s)
    if trace and not as_json:
        put("\n".join(ran["log"]))
    failures = [
        await _examined(spec, Found(seed, guarantee, violation, ran["digest"]), as_json=as_json)
        for guarantee, violation in ran["violations"][:1]
    ]
    figures |= {
        "protocol": spec, "seed": seed, "digest": ran["digest"], "virtual_s": ran["virtual_s"],
        "failures": failures, "broken": [violation for _, violation in ran["violations"]],
    }  # fmt: skip
    if trace:
        figures["log"] = ran["log"]
    if not as_json:
        put(
            f"seed {seed}: {ran['events']} events in {ran['virtual_s']:.1f} simulated s, "
            f"{count(len(ran['violations']), 'violation')}, trace {ran['digest']}"
        )
    return Result(FAILED if ran["violations"] else 0, figures)


async def _examined(spec: str, found: Found, *, as_json: bool) -> dict[str, Any]:
    failure = await campaign.examine(spec, found)
    text = failure.pop("text")
    if not as_json:
        put(f"{text}\n")
    return failure
