"""What the workers of a host run, by their router's word and by the host's own."""

from __future__ import annotations

import sys

import pytest

from trio_envserve.core.errors import ConfigError
from trio_envserve.core.limits import ServerLimits
from trio_envserve.host import served as served_module
from trio_envserve.host.served import Served

THEIRS = Served(
    environment="arithmetic", args={"level": 1, "size": 2}, python="/their/python",
    environ=[{"GPU": "0", "A": "a"}, {"GPU": "1"}], limits=ServerLimits(stop_s=3.0),
)  # fmt: skip


def test_what_a_router_says_arrives():
    there = Served.from_record(THEIRS.to_record())
    assert there.to_record() == THEIRS.to_record()
    assert there.limits == THEIRS.limits
    assert Served(environment="arithmetic").to_record()["limits"] == {}
    of_a_later_version = {
        "environment": "arithmetic", "more": 1, "limits": {"beat_s": 2.0, "another": 1},
    }  # fmt: skip
    assert Served.from_record(of_a_later_version).limits == ServerLimits(beat_s=2.0)


def test_an_environment_of_the_hosts_own_comes_with_its_own_arguments():
    assert THEIRS.under(Served()) == THEIRS
    ours = THEIRS.under(Served(environment="a:b", args={"level": 9}))
    assert (ours.environment, ours.args) == ("a:b", {"level": 9})
    assert ours.python == "/their/python"
    command = THEIRS.under(Served(command=("node", "worker.js")))
    assert (command.environment, command.command, command.python) == (
        None, ("node", "worker.js"), None,
    )  # fmt: skip


def test_single_things_of_the_hosts_own_are_laid_over_the_routers():
    own = Served(
        args={"level": 9}, python="mine", environ=[{}, {"GPU": "7"}, {"B": "b"}],
        limits=ServerLimits(stop_s=9.0),
    )  # fmt: skip
    ours = THEIRS.under(own)
    assert (ours.environment, ours.args) == ("arithmetic", {"level": 9, "size": 2})
    assert ours.python == "mine"
    assert ours.environ == [{"GPU": "0", "A": "a"}, {"GPU": "7"}, {"B": "b"}]
    assert ours.limits == ServerLimits(stop_s=9.0)


@pytest.mark.parametrize(
    "said",
    [
        {"environment": 1}, {"args": []}, {"args": {1: 2}}, {"command": "node"},
        {"command": [1]}, {"environ": {}}, {"environ": [{"A": 1}]}, {"environ": [{1: "A"}]},
        {"environ": ["A"]}, {"limits": [1]}, {"limits": {"stop_s": "soon"}},
    ],
    ids=str,
)  # fmt: skip
def test_what_makes_no_sense_is_refused(said):
    with pytest.raises(ConfigError):
        Served.from_record(said)


@pytest.mark.parametrize(
    ("served", "why"),
    [
        (Served(), "which environment to run"),
        (Served(environment="nowhere"), "nowhere"),
        (Served(environment="nowhere", python="/no/such/python"), "/no/such/python"),
        (Served(environment="arithmetic", args={"a": {1}}), "args"),
    ],
    ids=["nothing", "environment", "python", "args"],
)
async def test_what_cannot_be_run_here_is_said(served: Served, why: str):
    with pytest.raises(ConfigError, match=why):
        await served.check()


async def test_what_runs_in_a_program_of_its_own_is_looked_for_there(monkeypatch):
    checked = []

    async def check(python):
        checked.append(python)

    monkeypatch.setattr(served_module, "check_interpreter", check)
    there = Served(environment="only:There", python=sys.executable)
    assert (await there.check()).python == sys.executable
    assert checked == [sys.executable]
    assert (await Served(command=("node",)).check()).command == ("node",)
    # Of the two that is run here which is not this package's own worker.
    assert await Served(environment="nowhere", command=("node",)).check()
