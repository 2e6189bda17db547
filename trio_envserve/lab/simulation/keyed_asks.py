"""The calls of a run that name keys.

Drawn apart from the rest of the plan: two seeds of seven have keys, and those without
are what they were before there were any.  Keys are few and near in time, so that
callers meet: some ask the same, some another thing under the same key, some only
attach, and some cancel or forget what others wait for.  Where clients are stopped, half of
the runs have work, too, that goes on for seconds after it was cancelled by key, and a client
that is away for longer than its lease while it waits for that (:func:`_with_work_that_stays`).
"""

from __future__ import annotations

import dataclasses
from random import Random

from ...core.key_records import KeyAct, Tag
from ...core.limits import KeyLimits
from .faults import PLAIN_LEASE_S, Ask, Fault, KeyUse, Plan, body_of

HAVE_KEYS = (2, 5)
"""The seeds that have keys, modulo 7."""

ACTS = (
    *[KeyAct.ASK] * 12, *[KeyAct.ATTACH] * 2, KeyAct.CANCEL, KeyAct.FORGET, KeyAct.WITHDRAW,
)  # fmt: skip

LONG = 0.3
"""How much of the work lasts for so long that callers come and go meanwhile."""

STAYS_S = 9.0
"""How long at most what was cancelled goes on where somebody is away meanwhile."""

SPANS = 4
"""The time of a run has so many spans, with keys of their own."""


def have_keys(seed: int) -> bool:
    """Whether calls of this seed name keys."""
    return seed % 7 in HAVE_KEYS


def with_keys(plan: Plan, rng: Random) -> Plan:
    """The same with further calls, which name keys; ``rng`` is read in a fixed order."""
    plain = [ask for asks in plan.asks for ask in asks]
    words = rng.choice((1, 2, 4))
    inputs = {
        (namespace, f"k{span}{word}", variant): _input(
            rng, rng.choice(plain), f"{namespace}.k{span}{word}/{variant}"
        )
        for namespace in ("a", "b")
        for span in range(SPANS)
        for word in range(words)
        for variant in ("x", "y")
    }
    asks = tuple(
        asks
        + tuple(
            _ask(rng, f"c{client}:key{n}", plan.busy_s, words, inputs)
            for n in range(rng.choice((10, 20)))
        )
        for client, asks in enumerate(plan.asks)
    )
    commands = [ask for mine in asks for ask in mine if ask.use is not None and ask.use.tag]
    asks = tuple(
        mine + _copies(rng, f"c{client}:copy", plan.busy_s, commands)
        for client, mine in enumerate(asks)
    )
    keyed = dataclasses.replace(
        plan,
        faults=plan.faults | {Fault.KEYS},
        asks=asks,
        keys=_limits(rng, tiny=plan.has(Fault.TINY_BOUNDS)),
        server=dataclasses.replace(
            plan.server, lease_s=min(plan.server.lease_s, rng.choice((2.5, PLAIN_LEASE_S)))
        ),
    )
    if plan.has(Fault.STOP_CLIENT) and rng.random() < 0.5:
        return _with_work_that_stays(keyed, rng)
    return keyed


def _with_work_that_stays(plan: Plan, rng: Random) -> Plan:
    """Every worker is given work that ignores its cancel.  One of these is cancelled by key and
    asked for again, so that the next generation is held; another key waits for a worker.
    Then clients are stopped, with luck the one that waits, beyond lease and orphan deadline;
    faults that would end all this sooner strike later.
    """
    cancel_s = rng.uniform(1.3, 2.0)
    like = rng.choice([ask for asks in plan.asks for ask in asks if ask.use is None])

    def ask(at_s: float, name: str, word: str, act: KeyAct = KeyAct.ASK) -> Ask:
        body = body_of(f"a.{word}/x", "ignore", STAYS_S - 2.0) if act is KeyAct.ASK else b""
        return dataclasses.replace(
            like, key=name, at_s=at_s, behaviour="ignore", duration_s=STAYS_S - 2.0,
            limit_s=None, cancel_after_s=None, body=body,
            use=KeyUse(act, "a", word, b"" if act is KeyAct.ASK else name.encode()),
        )  # fmt: skip

    first = tuple(ask(0.01, f"c0:stays{n}", f"stays{n}") for n in range(plan.workers))
    other = (
        ask(cancel_s, "c1:stays-cancel", "stays0", KeyAct.CANCEL),
        ask(cancel_s + 0.1, "c1:stays0", "stays0"),
        ask(cancel_s + 0.1, "c1:waits", "waits"),
    )
    stops = sorted(cancel_s + rng.uniform(0.2, 0.5) for _ in range(2))
    return dataclasses.replace(
        plan,
        asks=(plan.asks[0] + first, plan.asks[1] + other, *plan.asks[2:]),
        moments=(
            *((at_s, Fault.STOP_CLIENT) for at_s in stops),
            *((at_s + STAYS_S, fault) for at_s, fault in plan.moments),
        ),
        busy_s=plan.busy_s + STAYS_S,
        server=dataclasses.replace(
            plan.server, lease_s=2.5, worker_capacity=1,
            cancel_grace_s=STAYS_S, cancel_kill_s=STAYS_S,
        ),
        keys=dataclasses.replace(plan.keys, orphan_s=0.5),
    )  # fmt: skip


def _input(rng: Random, like: Ask, label: str) -> Ask:
    """One input under a key.  Its consent is part of it."""
    behaviour, duration_s = like.behaviour, like.duration_s
    if behaviour == "return" and rng.random() < LONG:
        duration_s = rng.uniform(1.0, 7.0)
    padding = like.body[len(like.body.rstrip(b".")) :]
    body = body_of(label, behaviour, duration_s) + padding
    return dataclasses.replace(like, duration_s=duration_s, body=body)


def _ask(
    rng: Random, name: str, busy_s: float, words: int, inputs: dict[tuple[str, str, str], Ask]
) -> Ask:
    at_s = rng.uniform(0.0, busy_s)
    span = min(int(at_s / busy_s * SPANS), SPANS - 1)
    span = max(0, span - (rng.random() < 0.2))  # some come back to what is over
    namespace, word = rng.choice("aaab"), f"k{span}{rng.randrange(words)}"
    act = rng.choice(ACTS)
    tag: Tag = rng.randrange(8) if rng.random() < 0.3 else name.encode()
    like = inputs[namespace, word, rng.choice("xxxxxxxy")]
    hangs = like.behaviour == "hang"
    return dataclasses.replace(
        like,
        key=name,
        at_s=at_s,
        max_executions=rng.randint(1, 4),
        limit_s=rng.uniform(0.1, 6.0) if hangs or rng.random() < 0.2 else None,
        cancel_after_s=rng.uniform(0.0, 1.5) if rng.random() < 0.25 else None,
        body=like.body if act is KeyAct.ASK else b"",
        use=KeyUse(act, namespace, word, tag if act in (KeyAct.CANCEL, KeyAct.FORGET) else b""),
    )


def _copies(rng: Random, name: str, busy_s: float, commands: list[Ask]) -> tuple[Ask, ...]:
    """Commands that come again, from whomever, when others may have asked since."""
    firsts = [rng.choice(commands) for _ in range(3)] if commands else []
    return tuple(
        dataclasses.replace(first, key=f"{name}{n}", at_s=rng.uniform(first.at_s, busy_s))
        for n, first in enumerate(firsts)
    )


def _limits(rng: Random, *, tiny: bool) -> KeyLimits:
    retention_s, orphan_s = rng.choice((0.5, 2.0, 3600.0)), rng.choice((0.5, 2.0, 8.0))
    limits = KeyLimits(
        command_s=rng.choice((1.0, 600.0)), orphan_s=orphan_s, retention_s=retention_s
    )
    if not tiny:
        return limits
    # At a bound new keys wait for others to be forgotten: that must come within the run.
    return KeyLimits(
        command_s=1.0,
        orphan_s=orphan_s,
        retention_s=min(retention_s, 2.0),
        generations=rng.choice((3, 65_536)),
        retained_bytes=rng.choice((100, 600, 1 << 20)),
        waiters=rng.choice((2, 1024)),
        commands=rng.choice((1, 16_384)),
    )
