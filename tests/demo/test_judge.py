"""What the demonstration shows, counted from events; what is wrong is found by the judge of
guarantees (tests/rig/test_guarantees.py)."""

from __future__ import annotations

from typing import Any

import pytest

from trio_envserve.lab.demo.judge import (
    BUSY_KILLED,
    LEAST_LIVING,
    RECEIVED_AFTER_CUT,
    REPLAYED,
    SENT_AGAIN,
    SENT_AGAIN_RUNNING,
    Shown,
    wants,
)
from trio_envserve.retrylab import Event


def said(kind: Any, actor: str = "c0", request: str = "r", **what: Any) -> Event:
    return Event(0.0, kind, actor, request, tuple(what.items()))


SENT, ARRIVED = said("sent", id="s/0"), said("arrived", id="s/0", digest="d")
BEGAN, ENDED = said("began", "p1"), said("ended", "p1")
WITHHELD = said("harmed", "network", of="network", how="cut", connections=4, withheld=("s/0",))


def killed(running: int) -> list[Event]:
    """A worker that is killed while so much runs on it."""
    began = [said("began", "p1", f"r{number}") for number in range(running)]
    kill = said("harmed", "p1", of="worker", how="kill", pid=1)
    return [*began, said("died", "p1", pid=1), kill]


@pytest.mark.parametrize(
    ("events", "counts"),
    [
        ([SENT, BEGAN, ENDED, ARRIVED], {}),
        ([SENT, BEGAN, SENT, ENDED, ARRIVED], {SENT_AGAIN: 1, SENT_AGAIN_RUNNING: 1}),
        ([SENT, BEGAN, ENDED, SENT, ARRIVED], {SENT_AGAIN: 1}),
        ([SENT, BEGAN, said("died", "p1", pid=1), SENT], {SENT_AGAIN: 1}),
        ([SENT, ARRIVED, ARRIVED], {REPLAYED: 1}),
        ([SENT, WITHHELD], {"connections cut": 4}),
        (
            [SENT, WITHHELD, ARRIVED, ARRIVED],
            {"connections cut": 4, RECEIVED_AFTER_CUT: 1, REPLAYED: 2},
        ),
        (killed(LEAST_LIVING), {BUSY_KILLED: 1}),
        (killed(LEAST_LIVING - 1), {}),
        ([*killed(LEAST_LIVING)[:-2], ENDED, *killed(LEAST_LIVING)[-2:]], {BUSY_KILLED: 1}),
    ],
)
def test_counts_are_those_of_what_happened(events: list[Event], counts: dict[str, int]) -> None:
    shown = Shown()
    assert [violation for event in events for violation in shown.see(event)] == []
    assert {name: count for name, count in shown.figures().items() if count} == counts


def test_outcomes_of_one_request_with_other_bytes_are_found() -> None:
    shown = Shown()
    other = said("arrived", id="s/0", digest="e")
    (violation,) = [each for event in (SENT, ARRIVED, other) for each in shown.see(event)]
    assert (violation.guarantee, violation.key) == ("G3", "r")


def test_killed_host_is_wanted_only_if_there_is_one() -> None:
    assert wants(500, hosts=0)["host kill"] == 0
    assert wants(500, hosts=1)["host kill"] == 1
