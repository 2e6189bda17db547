"""Kill -9 at random moments of server, workers and clients, under keys with a journal.

``python -m tests.rig.kills --kills 300 --keys 1000`` prints the judge's figures, and exits with 0
only if there is no problem.

Three clients ask for keys, all of them for the same.  How many keys are known grows with the
kills, so that work always begins, runs and ends while they fall.  The killer draws from a seed who
dies, and after how long.  Whoever dies is started again at once, a client as the same caller; it
does not know what it had asked.  After the last kill each client asks for all keys once more.
"""

from __future__ import annotations

import argparse
import math
import random
import sys

import trio

from tests.rig.client import Ask, Asks
from tests.rig.rig import Rig, Scenario, main
from trio_envserve.lab.killer import Act, Killer
from trio_envserve.lab.processes import until
from trio_envserve.server.journal import tools

CLIENTS, IN_FLIGHT, LAST_IN_FLIGHT = 3, 12, 50
WHO = "server", "worker", "worker", "client"
"""The victims of kills, drawn from these."""
PAUSE_S = 1.2
"""Between two kills, on average."""
FIRST_KEYS = 0.05
"""The part of the keys that is known from the start."""
LONGEST_S = 4.0
LARGE_EACH, LARGE_BYTES = 25, 300_000
"""One result of so many is larger than what a journal keeps in its database."""
CALM_S = 1200.0
"""Far more than it takes to ask for all keys once more; only a hang takes longer."""
LIMITS = {"restart_pause_max_s": 1.0, "restart_healthy_s": 2.0, "broken_after": 1000}
"""Kills fall on workers that are only starting, which is no fault of the environment."""
JOURNAL = "journal"
MANY_KILLS = 100
"""With so many something begins again on any machine."""


class Mix(Asks):
    """Keys that are the same whoever asks.  Half of them consent to a further execution."""

    def __init__(self, seed: int, name: str) -> None:
        super().__init__(seed, name)
        self._told: set[str] = set()
        self._asking: set[str] = set()

    def draw(self, reach: int) -> Ask:
        """Mostly one that was not told to this client, and that it does not ask for already."""
        done = self._told | self._asking
        new = [number for number in range(reach) if self.nth(number).request not in done]
        if new and self.rng.random() < 0.7:
            ask = self.nth(self.rng.choice(new))
        else:
            ask = self.nth(self.rng.randrange(reach))
        self._asking.add(ask.request)
        return ask

    def nth(self, number: int) -> Ask:
        rng = random.Random(f"{self.seed}/{number}")
        large = rng.randrange(LARGE_EACH) == 0
        rerun = number % 2 == 1
        return Ask(
            f"kills/{number}", rng.uniform(0.0, LONGEST_S), keyed=True, rerun=rerun,
            max_executions=4 if rerun else None, give=LARGE_BYTES if large else rng.randrange(200),
        )  # fmt: skip

    def told(self, ask: Ask) -> None:
        self._told.add(ask.request)
        self._asking.discard(ask.request)


async def run(rig: Rig, given: argparse.Namespace) -> None:
    server = rig.serve("--journal", JOURNAL, limits=LIMITS, command=given.server_command)
    async with rig.kept(server, "server"):
        async with rig.kept_clients(CLIENTS, server.said["address"]):
            await rig.tell("load", in_flight=IN_FLIGHT, reach=_reach(0, given))
            await _kill(rig, given)
            with rig.phase("calm", CALM_S):
                await rig.carried_out("all", in_flight=LAST_IN_FLIGHT, count=given.keys)
                rig.log.write("phase", "end")
    problems = await trio.to_thread.run_sync(tools.check, rig.folder / JOURNAL)
    rig.log.write("phase", "journal", problems=problems)


async def _kill(rig: Rig, given: argparse.Namespace) -> None:
    rng, killer, told = random.Random(given.seed), Killer(rig), -1
    while killer.done < given.kills:
        await trio.sleep(rng.uniform(0.0, 2 * PAUSE_S))
        act = Act(0.0, rng.choice(given.who), "kill", rng.random())
        if given.patient:
            await until(lambda: rig.ended > told)  # noqa: B023  # it is awaited here
        await killer.carry_out(act)
        told = rig.ended
        rig.say(f"{killer.done} of {given.kills} kills")
        await rig.tell("reach", reach=_reach(killer.done, given))


def _reach(done: int, given: argparse.Namespace) -> int:
    keys, kills = int(given.keys), int(given.kills)
    return math.ceil(keys * min(max(FIRST_KEYS, (done + 1) / kills), 1.0))


def wants(given: argparse.Namespace) -> dict[str, int]:
    """Each key has an outcome, and of many kills each kind, and something that began again."""
    each = {f"{of} kill": 1 for of in given.who}
    again = {"began again": 1} if given.kills >= MANY_KILLS else {}
    return {"told": given.keys, "kills": given.kills, **each, **again}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--who", nargs="+", default=WHO, help="whom kills fall on")
    parser.add_argument("--patient", action="store_true", help="no kill before something was told")


SCENARIO = Scenario("tests.rig.kills", run, wants, options)

if __name__ == "__main__":
    sys.exit(main(SCENARIO))
