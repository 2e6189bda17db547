"""The plan of a siege, from the seed alone: stages, rounds, and their attacks.

Theory of operation
-------------------
A *stage* is a victim under certain limits; a *round* is some attacks on it at the same
time, and then as long a quiet beside a process that takes the attacker's processor
time.  The attacks are dealt out like cards: none comes again before all have come, so
that the shortest siege has each of them.  A seed decides rounds, attacks and what they
send, but not how far they get in their time.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

from trio_envserve.core.errors import ConfigError
from trio_envserve.core.limits import MIB, KeyLimits, ServerLimits, WireLimits
from trio_envserve.doors.verifiers import VerifiersLimits

from .attacks import NAMES, ON_CLIENTS, ON_SERVERS

SECONDS_LEAST = 10.0
"""In less there is no room for a round of each stage."""

LONG_S = 600.0
"""From here on rounds are long, and loops are held for a minute."""

SMALL: Final[dict[str, Any]] = {
    "kept_outcomes": 2000, "kept_bytes": 16 * MIB, "queue": 4000, "queue_bytes": 16 * MIB,
    "sessions": 500, "window": 4096, "lease_s": 60.0, "worker_held_bytes": 16 * MIB,
}  # fmt: skip
"""Limits of a server whose bounds are reached in seconds."""

SMALL_WIRE: Final[dict[str, Any]] = {
    "message_bytes": 8 * MIB, "peer_queue_bytes": 8 * MIB, "arriving_bytes": 24 * MIB,
    "waiting_bytes": 24 * MIB,
}  # fmt: skip

SMALL_KEYS: Final[dict[str, Any]] = {
    "generations": 4000, "retained_bytes": 16 * MIB, "retention_s": 60.0, "orphan_s": 20.0,
}  # fmt: skip

SMALL_DOORS: Final[dict[str, Any]] = {
    "http": {
        "connections": 256, "body_bytes": 4 * MIB, "bodies_bytes": 16 * MIB,
        "answers_bytes": 16 * MIB, "calls": 200, "wait_s": 10.0, "idle_s": 5.0, "body_s": 5.0,
        "write_s": 5.0, "delivered_s": 5.0,
    },
    "verifiers": {
        "connections": 256, "frame_bytes": 8 * MIB, "run_bytes": 2 * MIB, "runs": 1000,
        "runs_bytes": 16 * MIB, "kept_bytes": 16 * MIB, "early_cancels": 100, "lease_s": 20.0,
        "unsure_s": 2.0, "arriving_bytes": 24 * MIB, "waiting_bytes": 24 * MIB,
    },
}  # fmt: skip

DEFAULT_DOORS: Final[dict[str, Any]] = {
    "http": {"bodies_bytes": 256 * MIB, "answers_bytes": 256 * MIB}, "verifiers": {},
}  # fmt: skip
"""Nothing but the defaults; those of HTTP cannot be read without its extra."""

BODY_TIMES = 4
"""A call that waits at the HTTP door was a body, is a value, is encoded, and is under way."""

VALUE_TIMES = 32
"""A call of the HTTP door that runs is a value at its worker, so many times as large as a body of
JSON at most (``{"a":0},``)."""

SLACK_BYTES = 96 * MIB
"""The growth of a process beside what its limits name: the allocator's own memory, tables
of connections, a pump's batch."""


@dataclasses.dataclass(frozen=True, slots=True)
class Stage:
    """A victim, and how it is set up."""

    name: str
    share: float
    """The share of the time of the siege."""
    limits: dict[str, Any] = dataclasses.field(default_factory=dict)
    wire: dict[str, Any] = dataclasses.field(default_factory=dict)
    keys: dict[str, Any] = dataclasses.field(default_factory=dict)
    doors: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    """The limits of each door by its name."""
    workers: int = 1
    descriptors: int | None = None
    scheme: str = "tcp"

    @property
    def allowed(self) -> dict[str, int]:
        """Bytes that each kind of process may grow by."""
        limits, wire = ServerLimits(**self.limits), WireLimits(**self.wire)
        sockets = wire.arriving_bytes + wire.waiting_bytes
        # A value may take eight times its body, and one is decoded at a time.
        value = 8 * min(wire.message_bytes, 32 * MIB)
        server = SLACK_BYTES + limits.kept_bytes + limits.queue_bytes + sockets
        return {
            "server": server + KeyLimits(**self.keys).retained_bytes + self._doors_bytes,
            "worker": SLACK_BYTES
            + value
            + limits.kept_bytes
            + limits.worker_held_bytes
            + self._values_bytes,
            "client": SLACK_BYTES + value + sockets,
            "host": SLACK_BYTES + limits.kept_bytes + limits.worker_held_bytes + sockets,
        }

    @property
    def _values_bytes(self) -> int:
        """Bytes that a worker may grow by for what runs for the HTTP door."""
        return VALUE_TIMES * int(self.doors["http"]["bodies_bytes"]) if self.doors else 0

    @property
    def _doors_bytes(self) -> int:
        """Bytes that a server may grow by for its doors.  Each has a client of its own."""
        if not self.doors:
            return 0
        door = VerifiersLimits(**self.doors["verifiers"])
        runs = door.runs_bytes + door.kept_bytes + door.arriving_bytes + door.waiting_bytes
        http = self.doors["http"]
        return runs + BODY_TIMES * int(http["bodies_bytes"]) + int(http["answers_bytes"])


STAGES: Final = (
    Stage("small", 0.45, SMALL, SMALL_WIRE, SMALL_KEYS, SMALL_DOORS),
    Stage(
        "descriptors", 0.15, SMALL, SMALL_WIRE, SMALL_KEYS, SMALL_DOORS, descriptors=256,
        scheme="ipc",
    ),
    Stage("default", 0.15, doors=DEFAULT_DOORS, workers=2),
    Stage("client", 0.25, wire=SMALL_WIRE),
)  # fmt: skip
"""In the order in which they come."""

HELD: Final = ("held-client", "held-client-libzmq", "held-server", "held-server-libzmq")
"""Scenarios of a loop that stands still."""


class Round(NamedTuple):
    """Some attacks at the same time."""

    number: int
    stage: str
    attacks: tuple[str, ...]
    siege_s: float
    quiet_s: float
    """Beside a busy process instead of the attacker; 0 for rounds on the client."""


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """A whole siege."""

    rounds: tuple[Round, ...]
    held: tuple[str, ...]
    held_s: float

    @property
    def stages(self) -> list[Stage]:
        """Those that have rounds."""
        return [stage for stage in STAGES if any(self.of(stage))]

    def of(self, stage: Stage) -> list[Round]:
        """The rounds of one stage."""
        return [each for each in self.rounds if each.stage == stage.name]


def make_plan(seed: int, seconds: float, only: Collection[str] = ()) -> Plan:
    """The plan of a siege of about so many seconds, held loops apart.

    ``only``: nothing but these attacks and scenarios.  ConfigError for names that
    there are not, and for too little time.
    """
    if not seconds >= SECONDS_LEAST:
        raise ConfigError(f"a siege takes at least {SECONDS_LEAST:g} seconds, not {seconds!r}")
    wanted = set(only)
    if unknown := wanted - {*NAMES, *HELD}:
        raise ConfigError(f"no attack is called {', '.join(sorted(unknown))}")
    attacks = {
        "server": [name for name in ON_SERVERS if not wanted or name in wanted],
        "client": [name for name in ON_CLIENTS if not wanted or name in wanted],
    }
    stages = [
        stage for stage in STAGES if attacks["client" if stage.name == "client" else "server"]
    ]
    return Plan(
        rounds=tuple(_rounds(seed, seconds, stages, attacks)),
        held=tuple(name for name in HELD if not wanted or name in wanted),
        held_s=60.0 if seconds >= LONG_S else 6.0,
    )


def _rounds(
    seed: int, seconds: float, stages: Sequence[Stage], attacks: dict[str, list[str]]
) -> Iterator[Round]:
    siege_s, quiet_s = (20.0, 8.0) if seconds >= LONG_S else (3.0, 2.0)
    whole = sum(stage.share for stage in stages)
    counts = {
        stage.name: max(1, round(seconds * stage.share / whole / (siege_s + quiet_s)))
        for stage in stages
    }
    on_servers = sum(count for name, count in counts.items() if name != "client")
    rng = random.Random(f"siege/{seed}")
    deck = _dealt(rng, attacks["server"])
    at_once = max(4, math.ceil(len(attacks["server"]) / max(1, on_servers)))
    number = 0
    for stage in stages:
        for _ in range(counts[stage.name]):
            if stage.name == "client":
                # One after the other, each connection of the client another one.
                names = tuple(rng.sample(attacks["client"], len(attacks["client"])))
                yield Round(number, stage.name, names, siege_s + quiet_s, 0.0)
            else:
                size = min(at_once, len(attacks["server"]))
                yield Round(number, stage.name, _hand(deck, size), siege_s, quiet_s)
            number += 1


def _dealt(rng: random.Random, names: Sequence[str]) -> Iterator[str]:
    """All of them in some order, then all of them in another one, and so on."""
    while names:
        yield from rng.sample(names, len(names))


def _hand(deck: Iterator[str], size: int) -> tuple[str, ...]:
    """``size`` different attacks from the deck."""
    hand: dict[str, None] = {}
    while len(hand) < size:
        hand[next(deck)] = None
    return tuple(hand)
