"""Runs are added up, here and across processes."""

from __future__ import annotations

import json

from trio_envserve.lab.simulation.coverage import IMPOSSIBLE, POSSIBLE, name_of
from trio_envserve.lab.simulation.plan import FaultKind
from trio_envserve.lab.simulation.simulator import run
from trio_envserve.lab.simulation.target import SimulationTally


def tally_of(*seeds: int) -> SimulationTally:
    tally = SimulationTally()
    for seed in seeds:
        tally.add(run(seed, harsh=seed % 2 == 1))
    return tally


def test_parts_add_up_to_the_whole():
    whole, parts = tally_of(0, 1, 2, 3), SimulationTally()
    for part in (tally_of(1, 3), tally_of(0, 2), SimulationTally()):
        parts.merge(json.loads(json.dumps(vars(part))))
    parts.virtual_s = whole.virtual_s  # whose sum depends on the order
    assert parts == whole


def test_the_figures_have_every_name():
    figures = json.loads(json.dumps(tally_of(5).figures(2.0)))
    assert list(figures["faults"]) == [fault.value for fault in FaultKind]
    assert list(figures["pairs"]) == [name_of(pair) for pair in POSSIBLE]
    assert sum(figures["pairs"].values()) > 20
    beyond = figures["pairs_that_cannot_occur"]
    assert beyond == {name_of(pair): why for pair, why in IMPOSSIBLE.items()}
    assert figures["runs_per_minute"] == 30.0
    assert (figures["runs"], figures["violations"], figures["harsh_runs"]) == (1, 0, 1)
    assert figures["least"]["requests"] >= 50
    assert figures["average"]["clients"] >= 2
    assert figures["simulated_hours"] > 0


def test_no_runs_have_figures_too():
    assert SimulationTally().figures(0.0)["runs"] == 0
