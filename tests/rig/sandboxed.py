"""Rollouts with a sandbox each, of which workers are killed: none leaves anything.

``python -m tests.rig.sandboxed`` asks for 200 rollouts that consent to further executions, kills 20
workers meanwhile, and exits with 0 only if there is no problem: neither one that the judge of all
runs finds, nor a process, a mount or a folder of a sandbox that is left.

All processes that bwrap starts for a run have a number of its own in their words.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import sys
import zlib
from pathlib import Path
from typing import Any, final

import trio

from tests.rig.client import Ask, Asks
from tests.rig.kills import LIMITS
from tests.rig.rig import EVENTS, Rig, Scenario, main
from trio_envserve import Rollout
from trio_envserve.core.errors import ConfigError
from trio_envserve.lab.environment import LoggedEnvironment
from trio_envserve.lab.guarantees import judge
from trio_envserve.lab.killer import Killer
from trio_envserve.lab.processes import until
from trio_envserve.sandboxes import bubblewrap
from trio_envserve.sandboxes.interface import SandboxSpec

IN_FLIGHT, WORKERS = 24, 3
LONGEST_S = 3.0
MADE = "made"
"""Folder for temporary files of the server and its workers."""
LEFT = "left"
"""File with what is left: a line each."""
ALL_S, GONE_S = 1200.0, 60.0
"""Far more than all rollouts, and all cleaning, take; only a hang takes longer."""


class Mix(Asks):
    """Rollouts that consent to further executions."""

    def nth(self, number: int) -> Ask:
        rng = random.Random(f"{self.seed}/{number}")
        return Ask(
            f"sandboxed/{number}", rng.uniform(0.0, LONGEST_S), rerun=True, max_executions=40
        )  # fmt: skip


@final
class BoxedEnvironment:
    """Rollouts that have a sandbox, in which something runs when they end."""

    name = "boxed"

    def __init__(self, log: str) -> None:
        self._logged = LoggedEnvironment(log)
        self._sign = _sign(Path(log))

    async def run_rollout(self, rollout: Rollout) -> dict[str, Any]:
        """One execution."""
        async with rollout.sandbox("bubblewrap", processes=16, cpu_s=self._sign) as sandbox:
            line = "sleep 600 >/dev/null 2>&1 & echo $$ > a; cat a"
            done = await sandbox.exec(["sh", "-c", line])
            assert done.returncode == 0, done
            return await self._logged.run_rollout(rollout)


def _sign(log: Path) -> int:
    """Processor time of sandboxes that no other run has."""
    return 1_000_000_000 + zlib.crc32(str(log).encode()) % 1_000_000_000


async def run(rig: Rig, given: argparse.Namespace) -> None:
    made = rig.folder / MADE
    made.mkdir()
    os.environ["TMPDIR"] = str(made)
    before = _mounts()
    server = rig.serve(
        limits=LIMITS, workers=WORKERS, environment="tests.rig.sandboxed:BoxedEnvironment"
    )
    async with rig.kept(server, "server"):
        async with rig.kept_clients(1, server.said["address"]):
            with rig.phase("kills", ALL_S):
                async with trio.open_nursery() as nursery:
                    kills = [("worker", "kill")]
                    nursery.start_soon(
                        rig.strike, Killer(rig), given.seed, given.kills, kills, given.rollouts
                    )
                    await rig.carried_out("all", in_flight=IN_FLIGHT, count=given.rollouts)
            with rig.phase("gone", GONE_S):
                await until(lambda: not _folders(made))
        rig.log.write("phase", "end")
    left = [f"folder {each}" for each in _folders(made)] + sorted(_mounts() - before)
    left += [f"process {each}" for each in _alive(_sign(rig.folder / EVENTS))]
    (rig.folder / LEFT).write_text("".join(f"{each}\n" for each in left))


def _folders(made: Path) -> list[str]:
    return [str(each) for base in made.glob("trio-envserve-sandboxes-*") for each in base.iterdir()]


def _mounts() -> set[str]:
    """Places at which something is mounted."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {f"mount {line.split()[4]}" for line in lines}


def _alive(sign: int) -> list[int]:
    """Processes of sandboxes that are there yet."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            if str(sign).encode() in each.read_bytes():
                found.append(int(each.parent.name))
    return found


def judged(log: Path, given: argparse.Namespace) -> dict[str, Any]:
    """The judge's word, with what is left."""
    found = judge(log)
    left = (log.with_name(LEFT)).read_text().splitlines() if log.with_name(LEFT).exists() else []
    problems = [*found["problems"], *(f"{each} is left" for each in left)]
    return {**found, "problems": problems, "ok": found["ok"] and not left}


def wants(given: argparse.Namespace) -> dict[str, int]:
    """All rollouts, the kills, and something that began again."""
    try:
        bubblewrap.check(SandboxSpec())
    except ConfigError as error:
        raise ConfigError(f"nothing can be shown here: {error}") from error
    return {"asked": given.rollouts, "kills": given.kills, "began again": 1}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rollouts", type=int, default=200)
    parser.add_argument("--kills", type=int, default=20)


SCENARIO = Scenario("tests.rig.sandboxed", run, wants, options, judged)

if __name__ == "__main__":
    sys.exit(main(SCENARIO))
