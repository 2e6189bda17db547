"""A step of two hosts and their router as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .actions import Action
from .hosted_stages import TICK_S
from .hosted_state import HostPart, HostsState, Message
from .hosted_step import KINDS
from .hosted_world import WAYS, HostsWorld

OPENING = "both hosts are welcome, and known to hear the router"


def tell_step(
    world: HostsWorld, before: HostsState, action: Action, after: HostsState
) -> Iterator[str]:
    """An action in words, and what follows from it."""
    name, *where = action
    given: dict[str, str] = {}
    if where and name in (*WAYS, "late"):
        part = before.hosts[where[0]]
        given = {way: _message(part.link(way)[0]) for way in WAYS if part.link(way)}
        if name == "late":
            way, message = part.late[where[1]]
            given["late"] = f"h{where[0]} {way}: {_message(message)}"
    yield KINDS[name].says.format(*where, **given)
    if after.tick != before.tick:
        yield f"it is {after.tick * TICK_S:g} s"
    for h, (was, now) in enumerate(zip(before.hosts, after.hosts, strict=True)):
        yield from _follows(world, h, was, now)


def _follows(world: HostsWorld, h: int, was: HostPart, now: HostPart) -> Iterator[str]:
    for way, says in (("up", f"h{h} sends"), ("down", f"the router sends h{h}")):
        old = was.link(way)
        for message in now.link(way):
            if message not in old:
                yield f"{says} {_message(message)}"
    lived, live = ({w.number: w for w in world.machines.info[p.stage].workers} for p in (was, now))
    for number in sorted(live.keys() - lived.keys()):
        yield f"h{h} runs request {live[number].request} as {number}"
    for number in sorted(lived.keys() - live.keys()):
        yield f"execution {number} on h{h} has ended"


def _message(message: Message) -> str:
    """Its kind and its contents; that it is for a certain process is left out."""
    kind, *rest = message[isinstance(message[0], int) :]
    return f"{kind}({', '.join(map(_shown, rest))})"


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("ascii") or "-"
    if isinstance(value, tuple):
        name = type(value).__name__ if hasattr(value, "_fields") else ""
        return f"{name}({', '.join(map(_shown, value))})"
    return str(value)
