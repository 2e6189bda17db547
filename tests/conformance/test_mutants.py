"""Served mutants do not conform: each fails the case that the page has beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.conformance.drawn import CAUGHT
from trio_envserve.testing.conformance.cases import CASES, select
from trio_envserve.testing.conformance.run import Options, conform

pytestmark = [pytest.mark.real, pytest.mark.slow]

PROGRAM = Path(__file__).with_name("mutant_server.py")
ROOT = PROGRAM.parent.parent.parent
LIMITS = {"restart_pause_s": 0.02, "restart_pause_max_s": 0.1, "window": 64}

PATIENCE_S = 2.0
"""Only cases that must fail are judged here: the less patient, the sooner they do."""


@asynccontextmanager
async def served(folder: Path, mutant: str) -> AsyncIterator[str]:
    """The address of a server that is this mutant, in a process of its own."""
    options = {
        "mutant": mutant, "directory": str(folder / "runs"), "limits": LIMITS,
        "wire": {"message_bytes": 1 << 20},
    }  # fmt: skip
    command = [sys.executable, str(PROGRAM), json.dumps(options)]
    with (folder / "log").open("wb") as log:
        process = await trio.lowlevel.open_process(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=ROOT,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with process.stdin, process.stdout:
            said = b""
            while not said.endswith(b"\n"):
                more = await process.stdout.receive_some()
                assert more, (folder / "log").read_text()
                said += more
            yield json.loads(said)["address"]
    finally:
        # A mutant need not end by itself; its workers end with it.
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


@pytest.mark.parametrize(("mutant", "case"), CAUGHT.items())
async def test_a_served_mutant_does_not_conform(tmp_path: Path, mutant: str, case: str):
    with trio.fail_after(120):
        async with served(tmp_path, mutant) as address:
            report = await conform(
                Options(address, select([case]), wait_s=60, patience_s=PATIENCE_S)
            )
    assert [each.case.name for each in report.failed] == [case]
    assert report.failed[0].expected != "a case that ends"  # it is the server that failed


async def test_the_same_server_unbroken_passes_the_same_cases(tmp_path: Path):
    with trio.fail_after(240):
        async with served(tmp_path, "") as address:
            cases = select(sorted(set(CAUGHT.values())))
            report = await conform(Options(address, cases, wait_s=60, patience_s=60))
    assert report.failed == []
    assert len(report.verdicts) == len(cases)


def test_the_mutants_are_not_caught_by_one_case_alone():
    assert len(CAUGHT) >= 6
    assert set(CAUGHT.values()) <= {case.name for case in CASES}
    assert len(set(CAUGHT.values())) >= len(CAUGHT) - 2
