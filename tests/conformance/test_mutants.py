"""Served mutants do not conform: each fails the case that the page has beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.conformance.caught import CAUGHT
from tests.conformance.processes import served
from trio_envserve.lab.conformance.cases import select
from trio_envserve.lab.conformance.run import Options, conform

pytestmark = [pytest.mark.real, pytest.mark.slow]

LIMITS = {"restart_pause_s": 0.02, "restart_pause_max_s": 0.1, "window": 64}

PATIENCE_S = 2.0
"""Only cases that must fail are judged here: the less patient, the sooner they do."""


@pytest.mark.parametrize(("mutant", "case"), CAUGHT.items())
async def test_a_served_mutant_does_not_conform(tmp_path: Path, mutant: str, case: str):
    with trio.fail_after(120):
        async with served(tmp_path, mutant=mutant, limits=LIMITS) as address:
            report = await conform(
                Options(address, select([case]), wait_s=60, patience_s=PATIENCE_S, alive_s=0)
            )
    assert [each.case.name for each in report.failed] == [case]
    assert report.failed[0].expected != "a case that ends"  # it is the server that failed


async def test_the_same_server_unbroken_passes_the_same_cases(tmp_path: Path):
    with trio.fail_after(240):
        async with served(tmp_path, limits=LIMITS) as address:
            cases = select(sorted(set(CAUGHT.values())))
            report = await conform(Options(address, cases, wait_s=60, patience_s=60, alive_s=0))
    assert report.failed == []
    assert len(report.findings) == len(cases)
