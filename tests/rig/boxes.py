"""Kill -9 of servers, workers and hosts while rollouts have boxes: each that was made is removed,
once.

``python -m tests.rig.boxes --kills 100 --rollouts 1000`` prints the figures, and exits with 0 only
if there is no problem.  With ``--hosts 2`` the workers are on two hosts, and kills fall on hosts,
on guards, and on hosts with all of their guards, too.

The provider is a folder with one folder for each box, and a log to which it adds a synced line when
a box is made, and when removing it begins and has ended.  It alone is judged: never what the server
says of itself.  A worker may be killed between the end of a removal and its report, so a box may be
removed again, by another process, if the first one was killed; never at the same time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import trio

from tests.rig.client import Ask, Asks
from tests.rig.kills import JOURNAL, LIMITS
from tests.rig.rig import Rig, Scenario, main
from tests.rig.samples import Pool
from trio_envserve import Rollout
from trio_envserve.lab.killer import Act, HeldVictim, Killer
from trio_envserve.lab.processes import join_process, until

PROVIDER = "boxes.log"
CALM_S = 60.0
"""Time after the last rollout in which all boxes must be gone, in seconds."""
PAUSE_S = 0.6
"""Between two kills, on average, in seconds."""
IN_FLIGHT = 24
KILLS = (("server", "kill"), *[("worker", "kill")] * 3)
KILLS_OF_HOSTS = (
    ("host", "kill"), ("host", "kill"), ("host", "kill with guards"), ("guard", "kill"),
)  # fmt: skip
"""What a kill falls on, drawn from these."""


# -- the provider, in worker processes ----------------------------------------------------


def _note(what: str, name: str) -> None:
    """Add a line to the provider's log, and wait until it is safe."""
    line = json.dumps([what, name, os.getpid(), time.monotonic()]) + "\n"
    fd = os.open(Path(os.environ["BOXES"], PROVIDER), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, line.encode())
        os.fsync(fd)
    finally:
        os.close(fd)


async def create(name: str) -> str:
    """Make a box, which takes a moment."""
    _note("makes", name)
    os.mkdir(os.path.join(os.environ["BOXES"], "boxes", name))
    await trio.sleep(random.uniform(0.0, 0.05))
    return name


async def destroy(name: str, handle: str | None) -> None:
    """Remove a box, which takes a moment."""
    _note("removes", name)
    await trio.sleep(random.uniform(0.0, 0.1))
    with suppress(FileNotFoundError):
        os.rmdir(os.path.join(os.environ["BOXES"], "boxes", name))
    _note("removed", name)


async def rollout(rollout: Rollout) -> dict[str, float]:
    """Has a box for a while."""
    async with rollout.resource("box", create, destroy):
        await trio.sleep(random.uniform(0.0, 0.5))
    return {"reward": 1.0}


rollout.rerun = True  # type: ignore[attr-defined]  # as environments say it


# -- the run --------------------------------------------------------------------------------


class Mix(Asks):
    """Work under keys, begun again as often as it takes."""

    def nth(self, number: int) -> Ask:
        return Ask(f"boxes/{number}", keyed=True, rerun=True, max_executions=1000)


async def run(rig: Rig, given: argparse.Namespace) -> None:
    folder = rig.folder
    (folder / "boxes").mkdir()
    os.environ["BOXES"] = str(folder)
    server = rig.serve(
        "--journal", JOURNAL, workers=3, hosted=given.hosts > 0, command=given.server_command,
        limits={**LIMITS, "max_executions": 1000}, environment="tests.rig.boxes:rollout",
        logged=False,
    )  # fmt: skip
    killer = Killer(rig, {"kill with guards": partial(_kill_with_guards, folder)})
    kinds = KILLS + KILLS_OF_HOSTS if given.hosts else KILLS
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(rig.kept(server, "server"))
        for name in (f"h{number}" for number in range(given.hosts)):
            host = join_process(server.said["hosts"], 2, folder, name=name, cwd=folder)
            await stack.enter_async_context(rig.kept(host, "host", name=name))
            rig.hosts[name] = host
        await stack.enter_async_context(rig.kept_clients(1, server.said["address"]))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                rig.strike, killer, given.seed, given.kills, kinds, given.rollouts, PAUSE_S
            )
            await rig.carried_out("all", in_flight=IN_FLIGHT, count=given.rollouts)
        with rig.phase("calm", CALM_S):
            await until(lambda: not os.listdir(folder / "boxes"))
        rig.log.write("phase", "end", rollouts=rig.ended, kills=killer.done)


async def _kill_with_guards(folder: Path, act: Act, held: HeldVictim) -> None:
    """Kill a host and its guards at once, so nobody is left to end what workers started."""
    for pid in (held.pid, *Pool.at(folder, held.pid).guards):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    held.signal(signal.SIGKILL)  # known to whoever starts it again
    await held.wait_ended()


def judged(log: Path) -> dict[str, Any]:
    """The boxes of a run, and what is wrong with them, by the provider's own log."""
    folder = log.parent
    events = [json.loads(line) for line in (folder / PROVIDER).read_text().splitlines()]
    problems = [f"box {name} is left" for name in os.listdir(folder / "boxes")]
    problems += _removed_wrongly(events)
    made = {name for what, name, *_ in events if what == "makes"}
    removed = {name for what, name, *_ in events if what == "removed"}
    again = sum(what == "removes" for what, *_ in events) - len(removed)
    problems += [f"box {name} was never removed" for name in sorted(made - removed)]
    said = map(json.loads, log.read_text().splitlines())
    ends = [each["what"] for each in said if (each["kind"], each["actor"]) == ("phase", "end")]
    if not ends:
        problems.append("the run came to no end")
    return {
        **dict(*ends), "made": len(made), "removed": len(removed & made), "again": again,
        "problems": problems, "ok": not problems,
    }  # fmt: skip


def _removed_wrongly(events: list[list[Any]]) -> Iterator[str]:
    """Removals beside others, by processes that went on: each wrote a line later than that."""
    last_line = {pid: at for at, (_, _, pid, _) in enumerate(events)}
    begun: dict[str, int] = {}
    ended: dict[str, int] = {}
    for at, (what, name, pid, _) in enumerate(events):
        if what == "makes" and name in begun:
            yield f"box {name} was made after it was removed"
        elif what == "removes":
            for before, how in ((begun.get(name), "while"), (ended.get(name), "after")):
                if before is not None and before != pid and last_line[before] > at:
                    yield f"box {name} was removed by {pid} {how} {before} had, which went on"
                elif before == pid and how == "after":
                    yield f"box {name} was removed twice by {pid}"
            begun[name] = pid
        elif what == "removed":
            begun.pop(name, None)
            ended[name] = pid


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rollouts", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--hosts", type=int, default=0, help="on which the workers are; 0: none")


SCENARIO = Scenario(
    "tests.rig.boxes", run, lambda _: {}, options, lambda log, _: judged(log), watched=False
)

if __name__ == "__main__":
    sys.exit(main(SCENARIO))
