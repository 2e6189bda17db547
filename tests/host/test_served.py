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


def test_limits_that_were_not_said_are_not_told():
    assert Served(environment="arithmetic").to_record()["limits"] == {}


def test_a_host_that_was_told_nothing_runs_what_the_router_says():
    assert THEIRS.under(Served()) == THEIRS


def test_an_environment_of_the_hosts_own_comes_with_its_own_arguments():
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
        {"environment": 1},
        {"args": []},
        {"args": {1: 2}},
        {"command": "node"},
        {"command": [1]},
        {"environ": {}},
        {"environ": [{"A": 1}]},
        {"environ": [{1: "A"}]},
        {"environ": ["A"]},
        {"limits": [1]},
        {"limits": {"stop_s": "soon"}},
    ],
)
def test_what_makes_no_sense_is_refused(said):
    with pytest.raises(ConfigError):
        Served.from_record(said)


def test_what_a_later_router_says_besides_is_left_out():
    said = {"environment": "arithmetic", "more": 1, "limits": {"beat_s": 2.0, "another": 1}}
    assert Served.from_record(said).limits == ServerLimits(beat_s=2.0)


async def test_what_cannot_be_run_here_is_said():
    with pytest.raises(ConfigError, match="which environment to run"):
        await Served().check()
    with pytest.raises(ConfigError, match="nowhere"):
        await Served(environment="nowhere").check()
    with pytest.raises(ConfigError, match="/no/such/python"):
        await Served(environment="nowhere", python="/no/such/python").check()
    with pytest.raises(ConfigError, match="args"):
        await Served(environment="arithmetic", args={"a": {1}}).check()
    assert (await Served(command=("node",)).check()).command == ("node",)
    # Of the two that is run here which is not this package's own worker.
    assert await Served(environment="nowhere", command=("node",)).check()


async def test_an_interpreter_of_its_own_is_found_and_checked(monkeypatch):
    checked = []

    async def check(python):
        checked.append(python)

    monkeypatch.setattr(served_module, "check_interpreter", check)
    here = Served(environment="only:There", python=sys.executable)
    assert (await here.check()).python == sys.executable
    assert checked == [sys.executable]
