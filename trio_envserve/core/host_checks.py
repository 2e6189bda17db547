"""Checks of all that hosts send, made before the router acts on it.

A host is admitted to run workers and for nothing else.  A wrong message is a ProtocolError: it ends
the host's membership (:mod:`.host_pool`), and affects no other host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from string import ascii_letters, digits
from typing import Any, NamedTuple, TypeAlias

from . import messages
from .errors import ConfigError, ProtocolError
from .heartbeat import HEARTBEAT_LINE_BYTES, Heartbeat, HeartbeatLines
from .host_link import Item, ItemKind
from .host_messages import FULL, UNFIT, HostHello
from .messages import WorkerHello
from .ranges import Ranges
from .terms import Body, one_line

NAME_BYTES = 64
"""Most bytes of a host's name."""
HOST_WORKERS_MOST = 1024
"""Most workers of one host."""
HOSTS_MOST = 4096
"""Most hosts of a router."""
WORKERS_MOST = 16_384
"""Most workers of all hosts of a router together."""
NUMBERS_MOST = 1 << 16
"""Most dispatches that run on the workers of one host."""
HOW_BYTES = 1_000
"""Most bytes of the text on how a worker ended; a longer one is cut."""
_PLAIN = frozenset(ascii_letters + digits + "._-")
_BUSY = ("load", "memory_bytes")
_BUSY_MOST = 1e18


def host_name(given: str) -> str:
    """The name of a host with characters that worker names, logs and metric labels allow."""
    text = "".join(char if char in _PLAIN else "_" for char in given[:NAME_BYTES])
    return text or "_"


def _is_amount(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < _BUSY_MOST


def check_amounts(what: str, amounts: Mapping[str, Any]) -> None:
    """ConfigError if some needed or offered resource has no valid amount.  ``what``: name of the
    option, for the message."""
    for name, amount in amounts.items():
        if not _is_amount(amount):
            raise ConfigError(
                f"{what}: {name}={amount!r:.80} is no amount; write a number, such as gpu=1"
            )


def fitting(workers: int, offers: Mapping[str, Any], needs: Mapping[str, float]) -> int:
    """Number of workers, out of ``workers``, for which a host's resources are enough.  ``needs``:
    amount of each resource that one worker needs."""
    most = float(workers)
    for what, need in needs.items():
        offered = offers.get(what, 0)
        if need > 0:
            most = min(most, offered // need if _is_amount(offered) else 0.0)
    return int(most)


def unfit(workers: int, capacity: int, needs: Mapping[str, float]) -> tuple[str, str] | None:
    """Code and text of the reason for which a host can have no worker here; None if it can."""
    if workers > HOST_WORKERS_MOST:
        return (
            UNFIT,
            f"it offers {workers} workers, but a host may have {HOST_WORKERS_MOST} at most",
        )
    if not capacity:
        wanted = ", ".join(f"{what}={need:g}" for what, need in needs.items())
        return UNFIT, f"it offers less than one worker needs: {wanted}"
    return None


def crowded(here: Sequence[int], capacity: int) -> tuple[str, str] | None:
    """Code and text of the refusal of a further host of this capacity; None if the router may have
    it.  ``here``: capacities of the present hosts."""
    if len(here) >= HOSTS_MOST or sum(here) + capacity > WORKERS_MOST:
        text = f"the router is full: it has {len(here)} hosts with {sum(here)} workers"
        return FULL, text
    return None


def busy(told: Mapping[str, Any]) -> dict[str, float]:
    """The load and memory of a machine among the figures that its host has sent."""
    found: dict[str, float] = {"load": 0.0, "memory_bytes": 0}
    for name in _BUSY:
        value: Any = told.get(name)
        if _is_amount(value):
            found[name] = float(value) if name == "load" else int(value)
    return found


class LeftLife(NamedTuple):
    """A worker that lives on from an earlier membership, as its host reports it."""

    worker: bytes
    incarnation: bytes
    pid: int
    hello: bytes
    seen: Ranges
    """Numbers of the dispatches to it."""
    running: Ranges
    slot: int
    """Index of its slot on the host."""


def left_lives(hello: HostHello, *, header_bytes: int) -> list[LeftLife]:
    """The surviving workers that a hello states.  ProtocolError if the statement is impossible."""
    lives = [
        LeftLife(
            worker, incarnation, pid, told, Ranges.from_flat(seen), Ranges.from_flat(running), slot
        )
        for worker, incarnation, pid, told, seen, running, slot in hello.lives
    ]
    if len({life.worker for life in lives}) < len(lives):
        raise ProtocolError("two workers of a host have one name")
    if (count := sum(len(life.running) for life in lives)) > NUMBERS_MOST:
        raise ProtocolError(f"the workers of a host run {count} dispatches, {NUMBERS_MOST} at most")
    for life in lives:
        if any(number not in life.seen for number in life.running):
            raise ProtocolError("a worker runs a dispatch that it was never sent")
        if life.hello:
            told = messages.decode(life.hello, most_bytes=header_bytes)
            if not isinstance(told, WorkerHello):
                raise ProtocolError(f"{type(told).__name__} as the hello of a worker")
    return lives


def on_slots(lives: Sequence[LeftLife], count: int) -> Iterator[tuple[LeftLife, int, bool]]:
    """Each surviving worker with its slot on the host, and whether it is to end because no slot
    is left, or a later worker was started in its own: the last worker of each slot keeps that if
    it is free.  Workers with more executions come first.  ``lives``: in the order of their
    starts."""
    free, last = set(range(count)), {life.slot: life.worker for life in lives}
    for life in sorted(lives, key=lambda life: -len(life.running)):
        is_to_end = not free or last[life.slot] != life.worker
        slot = min(life.slot, count - 1)
        if not is_to_end:
            slot = slot if slot in free else min(free)
            free.discard(slot)
        yield life, slot, is_to_end


Value: TypeAlias = Sequence[Body] | int | str | Heartbeat


def value_of(item: Item) -> Value:
    """The value of a host's item: the frames of a worker's message, a pid, a text on how a worker
    ended, or a heartbeat.  ProtocolError if it is malformed, or an item of routers."""
    if item.kind is ItemKind.MESSAGE:
        return item.frames
    if (size_bytes := sum(map(len, item.frames))) > HEARTBEAT_LINE_BYTES:
        raise ProtocolError(f"{item.kind.name} of {size_bytes} bytes")
    match item.kind:
        case ItemKind.SPAWNED:
            return _number(item)
        case ItemKind.EXITED:
            return one_line(_text(item), HOW_BYTES)
        case ItemKind.HEARTBEAT:
            return _heartbeat(item)
        case _:
            raise ProtocolError(f"{item.kind.name} from a host")


def is_hello(frames: Sequence[Body], header_bytes: int) -> bool:
    """Whether a worker's message is a hello."""
    is_alone = len(frames) == 2 and len(frames[1]) <= header_bytes
    return is_alone and messages.kind_claimed(frames[1]) is WorkerHello


def _heartbeat(item: Item) -> Heartbeat:
    try:
        heartbeats = HeartbeatLines().feed(b"".join(map(bytes, item.frames)))
    except ValueError as error:
        raise ProtocolError(f"malformed heartbeat: {error}") from None
    if not heartbeats:
        raise ProtocolError("malformed heartbeat: its line has no end")
    return heartbeats[-1]


def _number(item: Item) -> int:
    text = _text(item)
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ProtocolError("a pid is no number")
    return int(text)


def _text(item: Item) -> str:
    return b"".join(map(bytes, item.frames)).decode("utf-8", "replace")
