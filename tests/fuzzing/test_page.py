"""The page names every mutant, every kind of fault and every figure that there is."""

from __future__ import annotations

import re
from pathlib import Path

from trio_envserve.lab.mutants import MUTANTS
from trio_envserve.lab.simulation.coverage import IMPOSSIBLE, POSSIBLE
from trio_envserve.lab.simulation.plan import FaultKind
from trio_envserve.lab.simulation.target import Protocol, SimulationTally
from trio_envserve.retrylab.failure import examine

PAGE = Path(__file__).parent.parent.parent.joinpath("docs/fuzzing.md").read_text(encoding="utf-8")


def test_the_number_of_mutants_is_that_of_the_code():
    assert f"in {len(MUTANTS)} ways" in PAGE


def test_the_failure_that_is_shown_is_what_the_command_says():
    name = "reruns-without-consent"
    command = re.search(rf"trio-envserve fuzz --seed (\d+) --mutant {name}\n", PAGE)
    assert command is not None
    target = Protocol(mutant=name)
    with target.applied():
        found = examine(target, int(command[1]))
    assert found is not None
    assert f"```text\n{found.text()}\n```" in PAGE


def test_every_kind_of_fault_is_named():
    for fault in FaultKind:
        assert fault.value in PAGE, fault


def test_every_figure_is_explained():
    explained = set(re.findall(r"`(\w+)`", PAGE))
    assert set(SimulationTally().figures(1.0)) <= explained
    assert f"the other {len(IMPOSSIBLE)} of {len(IMPOSSIBLE) + len(POSSIBLE)} pairs" in PAGE
