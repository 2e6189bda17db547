"""The plan of a siege, from the seed alone: stages, rounds, and their attacks.

Theory of operation
-------------------
A *stage* is a victim under certain limits; a *round* is some attacks on it at once, and then a
quiet beside a process that takes the enemy's processor time.  The attacks are dealt out like
cards: none comes again before all have come, so that the shortest siege has each of them.  A seed
decides rounds, attacks and what they send, but not how far they get in their time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from trio_envserve.core.errors import ConfigError
from trio_envserve.core.limits import MIB, KeyLimits, ServerLimits, WireLimits
from trio_envserve.doors.verifiers import VerifiersLimits

from .attacks import ATTACKS, HELD

SECONDS_LEAST = 10.0
"""In less there is no room for a round of each stage."""

LONG_S = 600.0
"""From here on rounds are long, and loops are held for a minute."""

SMALL: Final[Mapping[str, Any]] = {
    "limits": {
        "kept_outcomes": 2000, "kept_bytes": 16 * MIB, "queue": 4000, "queue_bytes": 16 * MIB,
        "sessions": 500, "window": 4096, "lease_s": 60.0, "worker_held_bytes": 16 * MIB,
    },
    "wire": {
        "message_bytes": 8 * MIB, "peer_queue_bytes": 8 * MIB, "arriving_bytes": 24 * MIB,
        "waiting_bytes": 24 * MIB,
    },
    "keys": {
        "generations": 4000, "retained_bytes": 16 * MIB, "retention_s": 60.0, "orphan_s": 20.0,
    },
    "doors": {
        "http": {
            "connections": 256, "body_bytes": 4 * MIB, "bodies_bytes": 16 * MIB,
            "answers_bytes": 16 * MIB, "calls": 200, "wait_s": 10.0, "idle_s": 5.0, "body_s": 5.0,
            "write_s": 5.0, "delivered_s": 5.0,
        },
        "verifiers": {
            "connections": 256, "frame_bytes": 8 * MIB, "run_bytes": 2 * MIB, "runs": 1000,
            "runs_bytes": 16 * MIB, "kept_bytes": 16 * MIB, "early_cancels": 100,
            "lease_s": 20.0, "unsure_s": 2.0, "arriving_bytes": 24 * MIB,
            "waiting_bytes": 24 * MIB,
        },
    },
}  # fmt: skip
"""Limits of a server whose bounds are reached in seconds."""

DEFAULTS: Final[Mapping[str, Any]] = {
    "doors": {"http": {"bodies_bytes": 256 * MIB, "answers_bytes": 256 * MIB}, "verifiers": {}}
}
"""Nothing but the defaults; those of HTTP cannot be read without its extra."""

BODY_TIMES = 4
"""A call that waits at the HTTP door was a body, is a value, is encoded, and is under way."""

VALUE_TIMES = 32
"""A call of the HTTP door that runs is a value at its worker, so many times as large as a body of
JSON at most (``{"a":0},``)."""

SLACK_BYTES = 96 * MIB
"""Growth of a process beside what its limits name: the allocator's own memory, tables of
connections, a pump's batch."""


class Stage(NamedTuple):
    """A victim, and how it is set up."""

    name: str
    share: float
    """Share of the time of the siege."""
    options: Mapping[str, Any]
    """Limits of the server: its own, of its wire, of keys, of each door."""
    workers: int = 1
    descriptors: int | None = None
    scheme: str = "tcp"

    @property
    def allowed(self) -> dict[str, int]:
        """Bytes that each kind of process may grow by."""
        limits = ServerLimits(**self.options.get("limits", {}))
        wire = WireLimits(**self.options.get("wire", {}))
        kept = SLACK_BYTES + limits.kept_bytes
        sockets = wire.arriving_bytes + wire.waiting_bytes
        # A value may take eight times its body, and one is decoded at a time.
        value = 8 * min(wire.message_bytes, 32 * MIB)
        server = kept + limits.queue_bytes + sockets
        server += KeyLimits(**self.options.get("keys", {})).retained_bytes
        worker = kept + value + limits.worker_held_bytes
        if doors := self.options.get("doors"):  # each has a client of its own
            runs, http = VerifiersLimits(**doors["verifiers"]), doors["http"]
            server += runs.runs_bytes + runs.kept_bytes + runs.arriving_bytes + runs.waiting_bytes
            server += BODY_TIMES * http["bodies_bytes"] + http["answers_bytes"]
            worker += VALUE_TIMES * http["bodies_bytes"]
        host = kept + limits.worker_held_bytes + sockets
        client = SLACK_BYTES + value + sockets
        return {"server": server, "worker": worker, "client": client, "host": host}


STAGES: Final = (
    Stage("small", 0.45, SMALL),
    Stage("descriptors", 0.15, SMALL, descriptors=256, scheme="ipc"),
    Stage("default", 0.15, DEFAULTS, workers=2),
    Stage("client", 0.25, {"wire": SMALL["wire"]}),
)
"""In the order in which they come."""


class Round(NamedTuple):
    number: int
    stage: str
    attacks: tuple[str, ...]
    siege_s: float
    quiet_s: float
    """Beside a busy process instead of the attacks; 0 for rounds on the client."""


class Plan(NamedTuple):
    rounds: tuple[Round, ...]
    held: tuple[str, ...]
    """Scenarios of a loop that stands still."""
    held_s: float

    @property
    def stages(self) -> list[Stage]:
        return [stage for stage in STAGES if self.of(stage)]

    def of(self, stage: Stage) -> list[Round]:
        return [each for each in self.rounds if each.stage == stage.name]


def make_plan(seed: int, seconds: float, only: Collection[str] = ()) -> Plan:
    """The plan of a siege of about so many seconds, held loops apart.

    ``only``: nothing but these attacks and scenarios.  ConfigError for names that there are not,
    and for too little time.
    """
    if not seconds >= SECONDS_LEAST:
        raise ConfigError(f"a siege takes at least {SECONDS_LEAST:g} seconds, not {seconds!r}")
    wanted = set(only) or {*ATTACKS, *HELD}
    if unknown := wanted - {*ATTACKS, *HELD}:
        raise ConfigError(f"no attack is called {', '.join(sorted(unknown))}")
    names = [name for name in ATTACKS if name in wanted]
    on_client = [name for name in names if ATTACKS[name].at == "client"]
    on_server = [name for name in names if name not in on_client]
    stages = [each for each in STAGES if (on_client if each.name == "client" else on_server)]
    return Plan(
        rounds=tuple(_rounds(seed, seconds, stages, on_server, on_client)),
        held=tuple(name for name in HELD if name in wanted),
        held_s=60.0 if seconds >= LONG_S else 6.0,
    )


def _rounds(
    seed: int, seconds: float, stages: Sequence[Stage], on_server: list[str], on_client: list[str]
) -> Iterator[Round]:
    siege_s, quiet_s = (20.0, 8.0) if seconds >= LONG_S else (3.0, 2.0)
    whole = sum(stage.share for stage in stages)
    rng = random.Random(f"siege/{seed}")
    each_s = (siege_s + quiet_s) * whole
    kinds = [
        stage.name for stage in stages
        for _ in range(max(1, round(seconds * stage.share / each_s)))
    ]  # fmt: skip
    served = sum(name != "client" for name in kinds)
    at_once = min(len(on_server), max(4, math.ceil(len(on_server) / max(1, served))))
    deck: list[str] = []
    for number, stage in enumerate(kinds):
        if stage == "client":
            # One after the other, each connection of the client another one.
            names = tuple(rng.sample(on_client, len(on_client)))
            yield Round(number, stage, names, siege_s + quiet_s, 0.0)
            continue
        hand: dict[str, None] = {}
        while len(hand) < at_once:
            deck = deck or rng.sample(on_server, len(on_server))
            hand[deck.pop()] = None
        yield Round(number, stage, tuple(hand), siege_s, quiet_s)
