"""Figures: of processes, of several runs, and of pairs of runs.

A machine's speed drifts by more than what is to be seen.  So contenders are run in turn,
again and again, and the runs of one round are compared.  The median of the ratios counts,
and their spread says how far to trust it.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import trio

from trio_envserve.lab.proc import cpu_s


def module(name: str, *arguments: str | Mapping[str, Any]) -> list[str]:
    """The command that runs a program of these.  Records are given as JSON."""
    texts = [each if isinstance(each, str) else json.dumps(each) for each in arguments]
    return [sys.executable, "-m", f"tests.cost.{name}", *texts]


def summary(values: Iterable[float]) -> dict[str, float | int]:
    """Median and spread of some values, of which there is at least one."""
    known = sorted(values)
    return {
        "median": statistics.median(known), "min": known[0], "max": known[-1], "n": len(known),
    }  # fmt: skip


def ratios(ours: Sequence[float | None], other: Sequence[float | None]) -> list[float]:
    """Ours to the other's, round by round, where both are known."""
    return [a / b for a, b in zip(ours, other, strict=True) if a is not None and b]


def column(rounds: Sequence[dict[str, Any]], measure: str) -> list[float | None]:
    """One measure of each round."""
    return [each.get(measure) for each in rounds]


def spent(before: Sequence[float | None], after: Sequence[float | None]) -> float | None:
    """Seconds of processor time between two looks; None if something is not known."""
    total = 0.0
    for one, other in zip(before, after, strict=True):
        if one is None or other is None:
            return None
        total += other - one
    return total


async def share_of_core(pid: int, seconds: float) -> float | None:
    """How much of a core a process takes, on the average over so many seconds."""
    before, began_s = cpu_s(pid), time.monotonic()
    await trio.sleep(seconds)
    took_s = spent([before], [cpu_s(pid)])
    return None if took_s is None else took_s / (time.monotonic() - began_s)
