"""A soak: real processes under real faults for minutes, and then: is everything back?

``python -m tests.rig.soak --minutes 10`` prints the judges' figures, and exits with 0 only if there
is no problem.  The phases:

1. *warm-up*: load without faults, then rest; the sample ``begin``.
2. *faults*: load, and the killer's schedule.
3. *calm*: the schedule is over, so everything that was stopped goes on and the network is whole.
   What is pending must come to its end, what belonged to killed clients must be ended with their
   leases, and then processes, descriptors and threads must be back: the sample ``end``.
4. *measurement*: the client that has lived throughout asks for block after block of short
   rollouts, and after each the resident memory is looked at.
5. *closed*: everything is told to end; the sample ``closed`` finds what has not.

Where something does not come back the wait for it ends at a limit, and the samples say what was
there.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, NamedTuple, final

import trio

from tests.rig.client import Ask, Asks
from tests.rig.rig import Rig, Scenario, main
from tests.rig.samples import has_proc, not_given_back, rss_kib
from trio_envserve.lab.killer import Act, Killer
from trio_envserve.lab.processes import join_process, until
from trio_envserve.testing.proxy import open_fault_proxy

ROUND_S = 18.0
"""About how long a round of faults is."""

LAST = 0.8
"""The part of a round after which no fault begins, so that all can end in it."""


class FaultProfile(NamedTuple):
    """One kind of fault."""

    often: int
    """How often in a round."""
    lasts_s: tuple[float, float] = (0.0, 0.0)
    amount: tuple[float, float] = (0.0, 0.0)


def schedule(
    rng: random.Random, seconds: float, round_s: float,
    kinds: Mapping[tuple[str, str], FaultProfile],
) -> list[Act]:  # fmt: skip
    """The faults of a run, in order.  The time is cut into rounds; each has the same faults in
    another order, so a short run has every kind, and a long one all of them many times."""
    rounds = max(1, round(seconds / round_s))
    each_s = seconds / rounds
    return sorted(
        Act(
            each_s * (number + LAST * rng.random()), of, how, rng.random(),
            rng.uniform(*kind.lasts_s), rng.uniform(*kind.amount),
        )
        for number in range(rounds)
        for (of, how), kind in kinds.items()
        for _ in range(kind.often)
    )  # fmt: skip


KINDS = {
    ("worker", "kill"): FaultProfile(2),
    ("worker", "stop"): FaultProfile(2, (0.2, 2.5)),
    ("worker", "freeze"): FaultProfile(1),  # stopped for good: the server has to kill it
    ("client", "kill"): FaultProfile(1),
    ("client", "stop"): FaultProfile(2, (0.2, 4.0)),
    ("server", "kill"): FaultProfile(1),
    ("server", "stop"): FaultProfile(1, (0.2, 4.0)),
    ("network", "cut"): FaultProfile(3),
    ("network", "half-open"): FaultProfile(1),
    ("network", "stall"): FaultProfile(1, (0.2, 2.5)),
    ("network", "throttle"): FaultProfile(1, (1.0, 4.0), (20_000.0, 400_000.0)),  # bytes a second
    ("network", "lag"): FaultProfile(1, (1.0, 4.0), (0.01, 0.2)),  # seconds, at most, of each chunk
}
"""The faults.  Stops are shorter than what the server takes for the end of a worker or client."""

KINDS_OF_HOST = {("host", "kill"): FaultProfile(1), ("host", "stop"): FaultProfile(1, (0.2, 3.0))}
"""Those that a remote host has besides."""

LIMITS: Mapping[str, Any] = {
    "lease_s": 20.0, "silence_report_s": 2.0, "silence_kill_s": 6.0, "restart_pause_max_s": 2.0,
    "restart_healthy_s": 3.0,
}  # fmt: skip
"""Limits of the server, with seconds for what takes minutes by default."""

CLIENTS = 4
IN_FLIGHT = 12
"""Calls at once for each client."""
BLOCKS, BLOCK_REQUESTS, STEADY_IN_FLIGHT = 4, 10_000, 64

ENDLESS_S = 600.0
"""A call that lasts so long ends only by being withdrawn, or with its client's lease."""

WARM_UP_CALLS = 60
"""Ended calls of each client before the faults begin."""
SETTLED = 3
"""Samples in a row with the same counts: it has settled."""
WARM_UP_S, SETTLE_S, MEASURE_S = 180.0, 20.0, 600.0
CALM_S = 90.0
"""Time in which what is pending must end, and what is held come back: more than the lease, the
longest call, and the end of a half-open connection together."""
GONE_S = 15.0


@final
class Mix(Asks):
    """Most calls are short.  Some consent to a rerun, some have a limit, some are withdrawn, some
    carry a body that takes a throttled network a while.  A few are endless: where their caller is
    killed the server has to end them with its lease."""

    PAD = bytes(48 * 1024)

    def __init__(self, seed: int, name: str) -> None:
        super().__init__(seed, name)
        self._numbers = itertools.count()

    def draw(self, reach: int) -> Ask:
        rng = self.rng
        kind, special = rng.random(), rng.random()
        span = (0.0, 0.4) if kind < 0.65 else (0.4, 2.0) if kind < 0.92 else (2.0, 6.0)
        seconds, withdraw_s = rng.uniform(*span), float("inf")
        if special < 0.06:
            withdraw_s = rng.uniform(0.0, 1.5)
        elif special > 0.99:
            seconds, withdraw_s = ENDLESS_S, rng.uniform(0.5, 6.0)
        return Ask(
            f"{self.name}/{next(self._numbers)}", seconds,
            rerun=rng.choice((True, True, True, False, None)),
            max_executions=rng.choice((None, None, 1, 2, 10)),
            timeout_s=rng.uniform(0.2, 6.0) if rng.random() < 0.1 else None,
            withdraw_s=withdraw_s, pad=self.PAD if rng.random() < 0.04 else b"",
        )  # fmt: skip

    def nth(self, number: int) -> Ask:
        """One of the measurement."""
        return Ask("")


async def run(rig: Rig, given: argparse.Namespace) -> None:
    async with AsyncExitStack() as stack:
        # Everything is told to end in the order in which it depends on each other.
        server = rig.serve(hosted=given.remote_host, limits=LIMITS, command=given.server_command)
        await stack.enter_async_context(rig.kept(server, "server"))
        if given.remote_host:
            host = join_process(server.said["hosts"], 2, rig.folder, cwd=rig.folder)
            rig.hosts["remote"] = host
            await stack.enter_async_context(rig.kept(host, "host", name="remote"))
        opened = open_fault_proxy(server.said["address"], seed=given.seed)
        rig.proxy = await stack.enter_async_context(opened)
        await stack.enter_async_context(rig.kept_clients(CLIENTS, rig.proxy.address))
        rig.spared = rig.clients[0]  # its memory is measured
        begin = await _warm_up(rig)
        await _make_faults(rig, given)
        await _calm_down(rig, begin)
        await _measure(rig)
        rig.log.write("phase", "end")
    with trio.move_on_after(GONE_S):
        await until(lambda: not set(rig.sample("closed")["kinds"]) - {"rig"})
    rig.sample("closed")


async def _warm_up(rig: Rig) -> dict[str, Any]:
    with rig.phase("warm-up", WARM_UP_S):
        await rig.wait_all(lambda client: client.ready)
        await rig.tell("load", in_flight=IN_FLIGHT, reach=0)
        await rig.wait_all(lambda client: client.ended >= WARM_UP_CALLS)
        await rig.carried_out("rest")
    return await _settled(rig, "begin", lambda _: True, SETTLE_S)


async def _make_faults(rig: Rig, given: argparse.Namespace) -> None:
    seconds = given.minutes * 60
    kinds = KINDS | (KINDS_OF_HOST if given.remote_host else {})
    acts = schedule(random.Random(f"soak/{given.seed}"), seconds, ROUND_S, kinds)
    killer = Killer(rig)
    await rig.tell("load", in_flight=IN_FLIGHT, reach=0)

    async def look() -> None:
        while True:
            rig.sample("faults")
            rig.say(f"{killer.done} of {len(acts)} faults")
            await trio.sleep(5.0)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        async with trio.open_nursery() as making:
            making.start_soon(killer.run, acts)
            making.start_soon(trio.sleep, seconds)
        nursery.cancel_scope.cancel()


async def _calm_down(rig: Rig, begin: dict[str, Any]) -> None:
    with rig.phase("calm", CALM_S):
        await rig.wait_all(lambda client: client.ready)
        await rig.carried_out("rest")
    with trio.move_on_after(CALM_S):  # what still runs then is told by the judge
        await until(lambda: not rig.lives.running)
    rig.log.write("phase", "rest")
    await _settled(rig, "end", lambda now: not list(not_given_back(begin, now)), CALM_S)


async def _measure(rig: Rig) -> None:
    client = rig.clients[0]
    assert rig.server is not None
    with rig.phase("measurement", MEASURE_S):
        for _ in range(BLOCKS):
            right = await rig.measured(client, count=BLOCK_REQUESTS, in_flight=STEADY_IN_FLIGHT)
            await trio.sleep(2.0)  # the last acknowledgements take a moment
            pids = {"router": rig.server.pid, "client": client.process.pid}
            held = {who: rss_kib(pid) for who, pid in pids.items()} if has_proc() else {}
            rig.log.write("sampled", "steady", requests=BLOCK_REQUESTS, right=right, rss_kib=held)


async def _settled(
    rig: Rig, phase: str, is_there: Callable[[dict[str, Any]], bool], limit_s: float
) -> dict[str, Any]:
    """Sample until it is there, and some samples in a row have the same counts, or the limit has
    passed: the last one is that of the phase."""
    counts: list[Any] = []
    found: dict[str, Any] = {}
    with trio.move_on_after(limit_s):
        while not (
            len(counts) >= SETTLED
            and is_there(found)
            and all(a == b for a, b in itertools.pairwise(counts[-SETTLED:]))
        ):
            await trio.sleep(0.5)
            found = rig.sample("settling")
            counts.append(counted(found))
    return rig.sample(phase)


def counted(sample: dict[str, Any]) -> dict[str, Any]:
    """A sample without its memory, which never stands still."""
    kinds = {
        kind: {name: value for name, value in record.items() if name != "rss_kib"}
        for kind, record in sample["kinds"].items()
    }
    return {**sample, "kinds": kinds}


def wants(given: argparse.Namespace) -> dict[str, int]:
    kinds = KINDS | (KINDS_OF_HOST if given.remote_host else {})
    return {"result": 1} | {f"{of} {how}": 1 for of, how in kinds}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=1.0, help="how long the faults go on")
    parser.add_argument(
        "--remote-host", action="store_true", help="workers of a host that has joined"
    )


SCENARIO = Scenario("tests.rig.soak", run, wants, options)

if __name__ == "__main__":
    sys.exit(main(SCENARIO))
