"""The cost of a request, counted: the same on any machine, and not more than before."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cost.counted import BATCH, MACHINES, Machines, bytecodes, counted, expected, problems
from trio_envserve.core.router import Router
from trio_envserve.core.work import Works

ROOT = Path(__file__).resolve().parent.parent.parent


COUNT = "import json; from tests.cost.counted import counted; print(json.dumps(counted(grown={})))"


def counted_alone(*, grown: bool):
    """The counts of a process of its own: what else traces calls adds to them."""
    environ = {name: os.environ[name] for name in os.environ if not name.startswith("COV")}
    command = [sys.executable, "-c", COUNT.format(grown)]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("grown", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_request_costs_no_more_than_expected_whatever_is_pending_or_done(grown):
    assert expected(), "python -m tests.cost --counted --accept"
    assert problems(counted_alone(grown=grown)) == []


def test_counts_of_the_same_inputs_are_the_same():
    assert bytecodes() == bytecodes()


def slowed(monkeypatch, kind, name, turns):
    plain = getattr(kind, name)

    def dearer(self, *given):
        for _ in range(turns(self)):
            pass
        return plain(self, *given)

    monkeypatch.setattr(kind, name, dearer)


def test_dearer_router_is_noticed(monkeypatch):
    slowed(monkeypatch, Router, "take", lambda router: 50 * BATCH)
    found = problems({"bytecodes": bytecodes()})
    assert any(problem.startswith("the router executes") for problem in found)


def test_dearer_keys_are_noticed(monkeypatch):
    slowed(monkeypatch, Works, "_ask_key", lambda works: 100)
    dearer = [each for each in problems(counted(grown=False)) if "router" in each]
    (problem,) = dearer  # of what else runs in this process the client's count may have a little
    assert problem.startswith("the router executes")
    assert "for a keyed request" in problem


@pytest.mark.slow
def test_cost_that_grows_with_pending_requests_is_noticed(monkeypatch):
    slowed(monkeypatch, Router, "take", lambda router: sum(
        len(session.tickets) for session in router.sessions.known.values()
    ))  # fmt: skip
    assert any("with 10,000 in flight" in problem for problem in problems(counted()))


@pytest.mark.parametrize("keyed", [False, True])
def test_machines_answer_and_receive_all_that_is_asked(keyed):
    joined = Machines(keyed=keyed)
    joined.keep_in_flight(64)
    for _ in range(80):  # more than may be answered while no time passes
        joined.turn()
    stats, keys = joined.router.stats(), joined.router.works
    assert stats["running"] == 64
    assert (stats["malformed"], stats["cache"]["refused_for_now"]) == (0, 0)
    assert stats["cache"]["finished"] >= 78 * BATCH  # the last are told with the next requests
    assert len(keys.generations) == (64 + 80 * BATCH) * keyed
    assert set(joined.counts) == set(MACHINES)
