"""A siege: the stages of its plan, one after the other, and the loops that are held.

Theory of operation
-------------------
In each round the honest client asks as fast as it can while the attacks go on, and
another client comes new.  Then the same process that has attacked takes the processor
time that it took, and does nothing: what the honest client reaches now is what its
rate is compared with.  Nothing is decided here; everything is written to logs, and
:mod:`.judge` reads those.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, final

import trio

from trio_envserve.core.errors import ServerStartError
from trio_envserve.lab.logs import prepared
from trio_envserve.lab.programs import Program, program
from trio_envserve.lab.remote_host import with_host
from trio_envserve.net import unwrap_single

from .held import hold_loops
from .judge import judge
from .plan import Plan, Round, Stage, make_plan
from .testbed import ATTACKS, IN_FLIGHT, LOGS, Testbed

VICTIM = program("tests.attack.server")

WARM_UP_S = 1.0
CLIENTS = 6
"""Further clients of the one that is attacked."""
TURN_S = 1.5
"""How long one attack has a connection of the client."""
ANSWER_S = 60.0
"""From the end of an order's time to its answer; only a hang takes longer."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SiegeOptions:
    """Options of a siege."""

    directory: Path
    """Where the logs go; made if it is not there, must not have logs yet."""
    seconds: float = 30.0
    seed: int = 0
    only: Collection[str] = ()
    """Attacks and scenarios; all if there are none."""
    transport: str | None = None
    """The transport of servers and clients of this project; None: their default."""
    unjudged: Collection[str] = ()
    """Findings that are left open, with their figures."""
    server_command: Sequence[str] = VICTIM
    """The command that starts the server, with options as its last argument."""
    remote_host: bool = False
    """The workers of a besieged server are those of a host that has joined."""


@final
class Siege:
    """One siege.  :meth:`run` it, once; :meth:`figures` are there at any time."""

    def __init__(self, options: SiegeOptions) -> None:
        """ConfigError for options that cannot work."""
        self.plan: Plan = make_plan(options.seed, options.seconds, options.only)
        self.directory = prepared(options.directory, LOGS)
        self._options = options
        common = {} if options.transport is None else {"transport": options.transport}
        self.testbed = Testbed(self.directory, options.seed, tuple(options.server_command), common)

    def figures(self) -> dict[str, Any]:
        """The judge's (see :mod:`.judge`), from what is in the folder now."""
        return {"seed": self._options.seed, "seconds": self._options.seconds} | judge(
            self.directory, self._options.unjudged
        )

    async def run(self) -> None:
        """All of it.  ServerStartError if a program cannot be started."""
        testbed, plan = self.testbed, self.plan
        try:
            testbed.events.write("begin", seed=self._options.seed, seconds=self._options.seconds)
            with unwrap_single():
                async with testbed.watching_stalls():
                    for stage in plan.stages:
                        left = plan.of(stage)
                        while left:  # from the round behind the one in which a victim was lost
                            left = await self._stage(stage, left)
                    for name in plan.held:
                        testbed.phase = name
                        await hold_loops(testbed, name, plan.held_s)
            testbed.events.write("end")
        finally:
            testbed.close()

    async def _stage(self, stage: Stage, rounds: list[Round]) -> list[Round]:
        """Rounds in a row on one victim; those that are left if it was lost."""
        self.testbed.events.write("stage", stage=stage.name, allowed=stage.allowed)
        async with AsyncExitStack() as stack:
            kind = _OnClient if stage.name == "client" else _OnServer
            scene: _Scene = kind(self.testbed, stage, hosted=self._options.remote_host)
            self.testbed.phase = f"{stage.name}: starting"
            await scene.enter(stack)
            nursery = await stack.enter_async_context(trio.open_nursery())
            nursery.start_soon(self.testbed.sample, stage.name, scene.victims)
            left = list(rounds)
            while left:
                each = left.pop(0)
                self.testbed.phase = f"{stage.name}, round {each.number}: {', '.join(each.attacks)}"
                self.testbed.events.write(
                    "round", stage=stage.name, round=each.number, attacks=each.attacks
                )
                try:
                    await scene.fight(each)
                except _VictimLost:
                    break  # what is left has another one
                finally:
                    self.testbed.events.write("round-end", stage=stage.name, round=each.number)
            nursery.cancel_scope.cancel()
        return left


class _VictimLost(Exception):
    """A victim has ended, or does not answer; it is written down."""


class _Scene:
    """One victim, and those around it."""

    suspect: str
    """The program that is to blame if none has ended."""

    def __init__(self, testbed: Testbed, stage: Stage, *, hosted: bool) -> None:
        self.testbed = testbed
        self.stage = stage
        self.hosted = hosted
        self.victims: dict[str, Program] = {}
        """Those that run now."""

    async def enter(self, stack: AsyncExitStack) -> None:
        """Start what stays for all rounds."""

    async def round(self, each: Round, stack: AsyncExitStack) -> None:
        """One round; ``stack`` for what is started for it.  ServerStartError if
        somebody has ended or does not answer."""
        raise NotImplementedError

    async def fight(self, each: Round) -> None:
        """One round.  _VictimLost, which is written down; ServerStartError if there was
        no victim yet, so that what should have been around it could not be started."""
        async with AsyncExitStack() as stack:
            try:
                await self.round(each, stack)
                return
            except ServerStartError as error:
                lost = error
            if not self.victims:
                raise lost
            await self.testbed.blame(self.victims, self.suspect, each.number, str(lost))
            raise _VictimLost


class _OnServer(_Scene):
    """A server with its doors, an honest client that uses them all, and the attacker."""

    suspect = "server"

    async def enter(self, stack: AsyncExitStack) -> None:
        """Start all, and warm up."""
        testbed, stage = self.testbed, self.stage
        bind = "tcp://127.0.0.1:0"
        if stage.scheme == "ipc":
            # Not in the folder of the siege: its path may be too long for a unix socket's.
            short = stack.enter_context(TemporaryDirectory(prefix="siege-", dir="/tmp"))
            bind = f"ipc://{short}/front"
        options: dict[str, Any] = {}
        if stage.descriptors:
            options["descriptors"] = stage.descriptors
        options["workers"] = stage.workers
        if self.hosted:
            options = with_host(options)
        self._server, self._addresses = await stack.enter_async_context(
            testbed.server(
                bind, limits=stage.limits, wire=stage.wire, keys=stage.keys, doors=stage.doors,
                **options,
            )
        )  # fmt: skip
        joining = testbed.host(self._addresses.pop("hosts"), stage.workers) if self.hosted else None
        host = None if joining is None else await stack.enter_async_context(joining)
        doors = {name: each for name, each in self._addresses.items() if name != "front"}
        client = testbed.client(self._addresses["front"], wire=stage.wire, doors=doors)
        self.honest = await stack.enter_async_context(client)
        attacking = {"log": str(testbed.directory / ATTACKS), "seed": testbed.seed}
        self._attacker, _ = await stack.enter_async_context(
            testbed.program("attacker", attacking, "the attacker")
        )
        self.victims = {"server": self._server, "client": self.honest}
        if host is not None:
            self.victims["host"] = host
        await self._ask(WARM_UP_S)
        testbed.look(stage.name, self.victims, "begin")

    async def _ask(self, seconds: float) -> dict[str, Any]:
        order = {"do": "ask", "seconds": seconds, "in_flight": IN_FLIGHT}
        return await self.honest.ask(order, seconds + ANSWER_S)

    async def round(self, each: Round, stack: AsyncExitStack) -> None:
        """The attack, and then the quiet."""
        attack = {
            "do": "attack", "addresses": self._addresses, "attacks": each.attacks,
            "seconds": each.siege_s, "round": each.number,
        }  # fmt: skip
        limit_s = each.siege_s + ANSWER_S
        asking = {"do": "ask", "seconds": each.siege_s, "in_flight": IN_FLIGHT, "newcomer": True}
        attacker, honest = await _ask_both(
            (self._attacker, attack), (self.honest, asking), limit_s=limit_s
        )
        self._check_alive()
        cpu = attacker["cpu_s"]
        share_s = cpu / each.siege_s * each.quiet_s
        burning = {"do": "burn", "cpu_s": share_s, "seconds": each.quiet_s}
        quiet = {"do": "ask", "seconds": each.quiet_s, "in_flight": IN_FLIGHT}
        _, calm = await _ask_both((self._attacker, burning), (self.honest, quiet), limit_s=limit_s)
        self._check_alive()
        self.testbed.events.write(
            "rate", round=each.number, stage=self.stage.name, attacker_cpu_s=cpu,
            newcomer_s=honest["newcomer_s"], doors=honest["doors"],
            besieged=honest["answered"] / each.siege_s, quiet=calm["answered"] / each.quiet_s,
        )  # fmt: skip

    def _check_alive(self) -> None:
        for who, started in self.victims.items():
            if started.process.poll() is not None:
                raise ServerStartError(f"the {who} ended")


async def _ask_both(
    *asked: tuple[Program, Mapping[str, Any]], limit_s: float
) -> list[dict[str, Any]]:
    """Their answers, asked for at once.  One ServerStartError if any did not answer: both may
    take too long."""
    said: list[dict[str, Any]] = [{} for _ in asked]
    failed: list[ServerStartError] = []

    async def ask(number: int, started: Program, order: Mapping[str, Any]) -> None:
        try:
            said[number] = await started.ask(order, limit_s)
        except ServerStartError as error:
            failed.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for number, each in enumerate(asked):
            nursery.start_soon(ask, number, *each)
    if failed:
        raise failed[0]
    return said


class _OnClient(_Scene):
    """A client, a hostile server, and then an honest one in its place."""

    suspect = "client"

    async def round(self, each: Round, stack: AsyncExitStack) -> None:
        """Honest, hostile, honest."""
        testbed, stage = self.testbed, self.stage
        async with testbed.server(workers=1) as (_, addresses):
            address = addresses["front"]
            client = await stack.enter_async_context(
                testbed.client(address, wire=stage.wire, limits={"recovery_s": 3.0})
            )
            stack.callback(self.victims.clear)
            self.victims["client"] = client
            await self._ask(client)  # it is warm now, and has seen right answers
            testbed.look(stage.name, self.victims, "begin")
        hostile = {
            "log": str(testbed.directory / ATTACKS), "seed": testbed.seed, "address": address
        }  # fmt: skip
        async with testbed.program("hostile", hostile, "the hostile server") as (enemy, _):
            load = {"do": "load", "clients": CLIENTS, "in_flight": 2}
            await client.ask(load, ANSWER_S)
            attack = {
                "do": "attack", "attacks": each.attacks, "seconds": each.siege_s,
                "turn_s": TURN_S, "round": each.number,
            }  # fmt: skip
            await enemy.ask(attack, each.siege_s + ANSWER_S)
        async with testbed.server(address, workers=1):
            said = await self._ask(client)
        testbed.events.write("recovered", round=each.number, answered=said["answered"])

    async def _ask(self, client: Program) -> dict[str, Any]:
        order = {"do": "ask", "seconds": WARM_UP_S, "in_flight": IN_FLIGHT, "least": 1}
        return await client.ask(order, ANSWER_S)
