"""``fuzz --protocol``: the same for a protocol of somebody's own."""

from __future__ import annotations

from typing import Any

import trio

from ..retrylab import campaign
from ..retrylab.campaign import Campaign, Found
from ..retrylab.jobs import SIZES, ActorTally
from .common import Result, Stop, put, say
from .fuzz_report import any_tables, count
from .render import PLAIN_EVERY_S, show_tables
from .searching import FAILED, search


async def many(
    spec: str, stop: Stop, *, base: int, runs: int | None, seconds: float | None, jobs: int,
    keep_going: bool, as_json: bool, save: str | None,
) -> Result:  # fmt: skip
    """Search seeds from ``base`` on."""
    say(f"{spec}: seeds from {base}, {count(jobs, 'process')}")
    fuzzing = Campaign(
        campaign.MODULE, ActorTally(), {"system": spec, "base": base}, runs=runs, seconds=seconds,
        jobs=jobs, keep_going=keep_going,
    )  # fmt: skip

    async def examine(found: Found) -> dict[str, Any]:
        return await _examined(spec, found, as_json=as_json, save=save)

    searched = await search(fuzzing, stop, examine, runs=runs, seconds=seconds)
    searched.figures.update(protocol=spec, seed=base, jobs=jobs)
    if not as_json and not searched.interrupted:
        show_tables(any_tables(fuzzing.tally, searched.figures, SIZES), put)
    return searched.result(stop, FAILED if fuzzing.found else 0)


async def one(spec: str, seed: int, *, trace: bool, as_json: bool, save: str | None) -> Result:
    """Run one seed; a failure is made small."""
    began_s = trio.current_time()
    ran = await campaign.one(spec, seed, trace=trace)
    figures = ActorTally.from_data(ran["tally"]).figures(trio.current_time() - began_s)
    if trace and not as_json:
        put("\n".join(ran["log"]))
    failures = [
        await _examined(
            spec, Found(seed, guarantee, violation, ran["digest"]), as_json=as_json, save=save
        )
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


async def exhaustive(spec: str, stop: Stop, *, as_json: bool, save: str | None) -> Result:
    """Look at every order within the system's bounds."""
    say(f"{spec}: every order")
    figures: dict[str, Any] = {}
    told_s = trio.current_time()

    def tell(explored: dict[str, Any]) -> None:
        nonlocal told_s
        figures.update(explored)
        if trio.current_time() - told_s >= PLAIN_EVERY_S:
            told_s = trio.current_time()
            say(explored["text"])

    failure = None
    with trio.CancelScope() as searching:
        stop.on_first = searching.cancel
        failure = await campaign.explore(spec, tell, save=save)
    text = figures.pop("text", "no state yet")
    summary = {**figures, "protocol": spec, "failures": []}
    if searching.cancelled_caught:
        say("interrupted")
        if not as_json:
            put(text)
        return Result(stop.interrupted_code, {**summary, "interrupted": True})
    if failure is not None:
        _show(failure, as_json=as_json)
        summary["failures"] = [failure]
    if not as_json:
        put(text)
    return Result(FAILED if failure else 0, summary)


async def replay(spec: str, path: str, *, as_json: bool) -> Result:
    """Run a saved failure again."""
    replayed = await campaign.replay(spec, path)
    failure, violations = replayed["failure"], replayed["violations"]
    broke = any(guarantee == failure["guarantee"] for guarantee, _ in violations)
    if broke:
        _show(failure, as_json=as_json)
    elif not as_json:
        put(f"{failure['guarantee']} holds: {path} shows nothing any more")
    figures = {
        "protocol": spec, "failures": [{**failure, "saved": path}] * broke,
        "broken": [violation for _, violation in violations],
    }  # fmt: skip
    return Result(FAILED if violations else 0, figures)


def _show(failure: dict[str, Any], *, as_json: bool) -> None:
    text = failure.pop("text")
    if not as_json:
        put(f"{text}\n")


async def _examined(spec: str, found: Found, *, as_json: bool, save: str | None) -> dict[str, Any]:
    failure = await campaign.examine(spec, found, save=save)
    _show(failure, as_json=as_json)
    return failure
