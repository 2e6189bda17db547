"""Reading the items of hosts, before anything is believed.

A host is let in to run workers, and for nothing else: what it sends wrong is a ProtocolError,
which ends its session with the router (:mod:`.host_pool`), and harms nobody else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from string import ascii_letters, digits
from typing import Any, NamedTuple, TypeAlias

from . import messages
from .errors import ConfigError, ProtocolError
from .heartbeat import Heartbeat, HeartbeatLines
from .host_link import Item, ItemKind
from .host_messages import FULL, UNFIT, HostHello
from .messages import KINDS as WORKER_KINDS
from .messages import WorkerHello
from .ranges import Ranges
from .terms import Body, one_line

NAME_BYTES = 64
HOST_WORKERS_MOST = 1024
"""No host has more workers."""
HOSTS_MOST = 4096
"""So many hosts are here at once."""
WORKERS_MOST = 16_384
"""All of them together have no more workers."""
NUMBERS_MOST = 1 << 16
"""All workers of a host together run no more dispatches."""
HOW_BYTES = 1_000
"""A longer word of how a worker ended is cut."""
_PLAIN = frozenset(ascii_letters + digits + "._-")
_BUSY = ("load", "memory_bytes")
_BUSY_MOST = 1e18


def host_name(given: str) -> str:
    """The id of a host as it may stand in the name of a worker, a log and a label."""
    text = "".join(char if char in _PLAIN else "_" for char in given[:NAME_BYTES])
    return text or "_"


def _is_amount(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < _BUSY_MOST


def check_amounts(what: str, amounts: Mapping[str, Any]) -> None:
    """ConfigError if these are not what somebody needs or offers."""
    for name, amount in amounts.items():
        if not _is_amount(amount):
            raise ConfigError(f"{what}: {name}={amount!r:.80} is no amount, such as gpu=1")


def fitting(workers: int, offers: Mapping[str, Any], needs: Mapping[str, float]) -> int:
    """How many workers a host is good for, of what each of them needs."""
    most = float(workers)
    for what, need in needs.items():
        offered = offers.get(what, 0)
        if need > 0:
            most = min(most, offered // need if _is_amount(offered) else 0.0)
    return int(most)


def unfit(workers: int, capacity: int, needs: Mapping[str, float]) -> tuple[str, str] | None:
    """Why a host is good for nothing, if it is: a code, and a text for people."""
    if workers > HOST_WORKERS_MOST:
        return UNFIT, f"it has {workers} workers, and a host has {HOST_WORKERS_MOST} at most"
    if not capacity:
        wanted = ", ".join(f"{what}={need:g}" for what, need in needs.items())
        return UNFIT, f"it has not what a worker needs: {wanted}"
    return None


def crowded(here: Sequence[int], capacity: int) -> tuple[str, str] | None:
    """Why there is no room for a host of this capacity beside those that are here, if there is
    none."""
    if len(here) >= HOSTS_MOST or sum(here) + capacity > WORKERS_MOST:
        return FULL, f"{len(here)} hosts with {sum(here)} workers are here, and no more can be"
    return None


def busy(said: Mapping[str, Any]) -> dict[str, float]:
    """A host's figures of its machine, as far as they are known here."""
    found: dict[str, float] = {"load": 0.0, "memory_bytes": 0}
    for name in _BUSY:
        value: Any = said.get(name)
        if _is_amount(value):
            found[name] = float(value) if name == "load" else int(value)
    return found


class LeftLife(NamedTuple):
    """A worker that lives on, as its host reports it."""

    worker: bytes
    incarnation: bytes
    pid: int
    hello: bytes
    next: int
    running: Ranges
    place: int
    """Among the workers of its host."""


def left_lives(hello: HostHello, *, header_bytes: int) -> list[LeftLife]:
    """Those of a hello.  ProtocolError if they cannot be."""
    lives = [
        LeftLife(worker, incarnation, pid, said, after, Ranges.from_flat(running), place)
        for worker, incarnation, pid, said, after, running, place in hello.lives
    ]
    if len({life.worker for life in lives}) < len(lives):
        raise ProtocolError("workers of a host that have one name")
    if (count := sum(len(life.running) for life in lives)) > NUMBERS_MOST:
        raise ProtocolError(f"workers of a host that run {count} dispatches")
    for life in lives:
        if any(number >= life.next for number in life.running):
            raise ProtocolError("a worker that runs what was never dispatched to it")
        if life.hello:
            said = messages.decode(life.hello, most_bytes=header_bytes)
            if not isinstance(said, WorkerHello):
                raise ProtocolError(f"{type(said).__name__} as the hello of a worker")
    return lives


def in_places(lives: Iterable[LeftLife], count: int) -> Iterator[tuple[LeftLife, int, bool]]:
    """Each worker in its place of a host, if there still is one, else in another; and whether
    it is to end, since there is none.  Of too many those stay that run most."""
    free = set(range(count))
    for life in sorted(lives, key=lambda life: -len(life.running)):
        is_to_end = not free
        place = life.place if life.place in free else min(free, default=0)
        free.discard(place)
        yield life, place, is_to_end


Value: TypeAlias = Sequence[Body] | int | str | Heartbeat


def value_of(item: Item) -> Value:
    """The value of an item: the frames of a worker's message, a pid, how a worker ended, or a
    heartbeat.  ProtocolError if it is none of a host."""
    match item.kind:
        case ItemKind.MESSAGE:
            return item.frames
        case ItemKind.SPAWNED:
            return _number(item)
        case ItemKind.EXITED:
            return one_line(_text(item), HOW_BYTES)
        case ItemKind.HEARTBEAT:
            return _heartbeat(item)
        case _:
            raise ProtocolError(f"{item.kind.name} from a host")


def is_hello(frames: Sequence[Body]) -> bool:
    """Whether a worker says that it is ready."""
    head = bytes((0x18, WORKER_KINDS[WorkerHello]))
    return len(frames) == 2 and bytes(frames[1][1:3]) == head


def _heartbeat(item: Item) -> Heartbeat:
    try:
        felt = HeartbeatLines().feed(b"".join(map(bytes, item.frames)))
    except ValueError as error:
        raise ProtocolError(f"a heartbeat that is {error}") from None
    if felt is None:
        raise ProtocolError("a heartbeat without an end")
    return felt


def _number(item: Item) -> int:
    text = _text(item)
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ProtocolError("a pid that is no number")
    return int(text)


def _text(item: Item) -> str:
    return b"".join(map(bytes, item.frames)).decode("utf-8", "replace")
