"""Raw sockets attack a server, its doors and a client: ``python -m tests.attack``.

Runs a :class:`~.run.Siege` as a scenario of the rigs, which prints each phase on standard error;
then each problem, and as one JSON object the judge's figures.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from tests.rig.rig import Rig, Scenario, main

from .attacks import ATTACKS, HELD
from .judge import FINDINGS, judge
from .run import Plan, Siege, make_plan


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--seconds", type=float, default=30.0, help="duration of the attacks, 10 s or more")
    add("--minutes", type=float, help="the duration in minutes")
    add("--only", action="append", default=[], choices=(*ATTACKS, *HELD), metavar="ATTACK",
        help="run this attack or scenario only; repeatable")  # fmt: skip
    add("--unjudged", action="append", default=[], choices=tuple(FINDINGS),
        help="leave out the problems of a finding; repeatable")  # fmt: skip
    add("--transport", choices=("zmtp", "libzmq"), default="zmtp", help="of servers and clients")
    add("--remote-host", action="store_true", help="workers run on a host that has joined")


def plan_of(given: argparse.Namespace) -> Plan:
    seconds = given.seconds if given.minutes is None else 60 * given.minutes
    return make_plan(given.seed, seconds, given.only)


def wants(given: argparse.Namespace) -> Mapping[str, int]:
    plan_of(given)
    return {"told": 1}


async def run(rig: Rig, given: argparse.Namespace) -> None:
    await Siege(rig, given, plan_of(given)).run()


SCENARIO = Scenario(
    "tests.attack", run, wants, options, lambda log, given: judge(log, given.unjudged), False
)

if __name__ == "__main__":
    raise SystemExit(main(SCENARIO))
