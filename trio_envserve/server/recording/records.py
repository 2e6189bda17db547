"""The records of a recording, and the hashes by which a replay is compared.

Theory of operation
-------------------
A recording is a CBOR sequence (RFC 8742).  Each record is an array that begins with its code.  An
*input* is ``[code, field...]``: the codes from 1 on are those of
:data:`~trio_envserve.core.router_inputs.RouterInput` in its order, and the fields those of its
class.  The *step* of an input is its number, from 1.  The ids that the router drew for
an input, and an error that it raised, follow that input.  The rest are marks:

====== ======================================== ==================================
HEADER [0, "trio-envserve recording", 3, about] first record
DRAWN  [100, id]                                the input took a new id
CLAIM  [105, text]                              why a host may not have a name, or ""
RAISED [101, type, text]                        the router raised
CHECK  [102, step, hash]                        of all effects so far
STATE  [103, step, hash]                        of the router's state
END    [104, step, why]                         no more follows; empty: the server ended
====== ======================================== ==================================

A frame of a message that was not recorded stands as its length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any, get_args

from ...core import journal, messages
from ...core.closing import ClosingStage
from ...core.errors import ConfigError, ProtocolError
from ...core.heartbeat import HEARTBEAT_LINE_BYTES
from ...core.host_checks import check_amounts
from ...core.host_link import ItemKind, items_of
from ...core.host_messages import without_environment
from ...core.lease import EpochWait, LeaseTerms
from ...core.router import Router
from ...core.router_effects import RecordHosts, RouterEffect, Save, ToClient, ToHost, ToWorker
from ...core.router_inputs import (
    ClientMessage,
    HostMessage,
    HostsBefore,
    Loaded,
    Restored,
    RouterInput,
    WorkerMessage,
)
from ...core.terms import ID_BYTES, Body, Membership, Status
from ...core.work import Works
from ...core.worker_range import WorkerRange, most_of

NAME = "trio-envserve recording"
FORMAT = 3
HEADER, DRAWN, RAISED, CHECK, STATE, END, CLAIM = 0, 100, 101, 102, 103, 104, 105

INPUTS: dict[int, Any] = dict(enumerate(get_args(RouterInput), 1))
CODES: dict[type, int] = {cls: code for code, cls in INPUTS.items()}


def record_of(
    given: RouterInput, header_bytes: int, *, bodies: bool,
    has_host: Callable[[Membership], bool] = lambda membership: False,
) -> list[Any]:  # fmt: skip
    """The record of an input.  It has what the router reads: headers, which are no longer than
    ``header_bytes``, and errors; other bodies only if asked for.
    ``has_host``: whether the host of a membership is known."""

    def header(frame: Body) -> bytes | int:
        return bytes(frame) if len(frame) <= header_bytes else len(frame)

    def body(frame: Body) -> bytes | int:
        return bytes(frame) if bodies else len(frame)

    def of_worker(frames: Sequence[Body]) -> list[Any]:
        noted = [*map(header, frames[:1])]
        match frames[1:]:
            case [first]:
                noted.append(header(first))
            case [client, first, second]:
                noted += [len(client), header(first)]
                noted.append(bytes(second) if bodies else _errors(first, second, header_bytes))
            case more:  # it is refused for their number
                noted += map(len, more)
        return noted

    code = CODES[type(given)]
    match given:
        case ClientMessage(route, frames, now_s):
            noted = [header(frames[0]), *map(body, frames[1:])] if frames else []
            return [code, route, noted, now_s]
        case WorkerMessage(frames, now_s):
            return [code, [bytes(frames[0]), *of_worker(frames[1:])], now_s]
        case HostMessage(route, frames, now_s, lease_s):
            noted = [*map(header, frames[:1])]
            for item in items_of(frames, header_bytes, has_host):
                if item.kind is ItemKind.MESSAGE:
                    noted += of_worker(item.frames)
                elif sum(map(len, item.frames)) <= HEARTBEAT_LINE_BYTES:
                    noted += map(bytes, item.frames)
                else:  # it is refused
                    noted += map(len, item.frames)
            noted += map(len, frames[len(noted) :])
            return [code, route, noted, now_s, lease_s]
        case HostsBefore(waits, lease_s):
            known = [
                [epoch, wait_s, None if memberships is None else sorted(memberships)]
                for epoch, wait_s, memberships in waits
            ]
            return [code, known, lease_s]
        case Restored(records, now_s):
            return [code, [journal.plain_of(each, body) for each in records], now_s]
        case Loaded(number, frames, why, now_s):
            outcome = [bytes(frames[0]), *map(body, frames[1:])] if frames else []
            return [code, number, outcome, why, now_s]
        case _:
            return [code, *map(_plain, given)]


def _errors(header: Body, body: Body, header_bytes: int) -> bytes | int:
    """The body of a worker's message without what the router does not look into: of outcomes
    the errors, with zeros in the place of results; else its length."""
    try:
        rows = messages.read((header, body), most_bytes=header_bytes)
    except ProtocolError:  # the router refuses it
        return len(body)
    are_errors = [getattr(message, "status", None) == Status.ERROR for message, _ in rows]
    if not any(are_errors):
        return len(body)
    each = zip(rows, are_errors, strict=True)
    return b"".join(bytes(part if keep else len(part)) for (_, part), keep in each if part)


def _plain(value: Any) -> Any:
    if isinstance(value, ClosingStage):
        return value.value
    return sorted(value) if isinstance(value, set | frozenset | tuple) else value


def input_of(record: Sequence[Any]) -> RouterInput:
    """The input of a record.  A frame that was not recorded has as many zeros.
    ValueError if the record does not have the right fields."""
    code, *values = record
    fields = zip(_FIELDS[code], values, strict=True)  # ValueError if there are not as many
    made: RouterInput = INPUTS[code](*[read(value) for read, value in fields])
    return made


def mark_of(record: Sequence[Any]) -> list[Any]:
    """The fields of a mark, behind its code.  ValueError, or KeyError, if it is none."""
    code, *values = record
    return [read(value) for read, value in zip(_MARKS[code], values, strict=True)]


def about_of(record: Any) -> dict[str, Any]:
    """The header's record of its server.  ValueError if it is no header of a recording."""
    if type(record) is not list or len(record) < 3 or record[:2] != [HEADER, NAME]:
        raise ValueError("is no recording")
    if record[2] != FORMAT:
        raise ValueError(f"has format {record[2]!r}, and this version reads {FORMAT}")
    about = record[3] if len(record) == 4 else None
    if type(about) is not dict:
        raise ValueError("is no recording: its header has no description")
    wrong = []
    for name, read in _ABOUT.items():
        try:
            read(about.get(name))
        except (ValueError, ConfigError):
            wrong.append(name)
    if wrong:
        raise ValueError(f"is no recording: its header has no right {', '.join(wrong)}")
    return about


def _exactly(*types: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) not in types:
            raise ValueError(f"a {type(value).__name__} in the place of a {types[0].__name__}")
        return value

    return read


def _within(least: float, bound: float, *types: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not least <= _exactly(*types)(value) < bound:
            raise ValueError(f"{value} in the place of a number from {least:g} to {bound:g}")
        return value

    return read


def _id(value: Any) -> bytes:
    if len(_exactly(bytes)(value)) != ID_BYTES:
        raise ValueError("an id of another length")
    return bytes(value)


_number_or_none = _exactly(float, int, type(None))


def _hosts(value: Any) -> None:
    if value is None:
        return
    try:
        fence_s, margin_s, drift, guard_s = map(_number_or_none, _exactly(list)(value["lease"]))
        LeaseTerms(fence_s, margin_s, drift, guard_s)
        check_amounts("needs", value["needs"])
        _exactly(bool)(value["claims"])
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"no lease of hosts: {error}") from None


def _slots(value: Any) -> None:
    _within(0, 100_000, int)(most_of(slots_of(value)))


def _frames(value: Any) -> list[Body]:
    frames = [bytes(each) if type(each) is int and 0 <= each < 2**31 else each for each in value]
    return [_exactly(bytes)(each) for each in frames]


def _wait(epoch: Any, wait_s: Any, memberships: Any) -> EpochWait:
    known = None if memberships is None else frozenset(map(_id, memberships))
    return EpochWait(_id(epoch), _exactly(float, int)(wait_s), known)


_READ: dict[str, Callable[[Any], Any]] = {
    "bytes": _exactly(bytes), "Route": _exactly(bytes), "str": _exactly(str),
    "bool": _exactly(bool), "int": _exactly(int), "float": _exactly(float, int),
    "float | None": _exactly(float, int, type(None)), "ClosingStage": ClosingStage,
    "Sequence[Record]": lambda records: [journal.record_of(each) for each in records],
    "Sequence[bytes]": lambda packed: list(map(_exactly(bytes), packed)),
    "Sequence[EpochWait]": lambda waits: [_wait(*each) for each in waits],
    "Sequence[Body]": _frames, "Collection[Epoch]": lambda ids: list(map(_exactly(bytes), ids)),
}  # fmt: skip
"""Readers of field values, by the type of the field as it is written; each raises for a wrong
value."""

_FIELDS: dict[int, list[Callable[[Any], Any]]] = {
    code: [_READ[hint.__forward_arg__] for hint in cls.__annotations__.values()]
    for code, cls in INPUTS.items()
}


_text, _step = _exactly(str), _within(0, 2**63, int)
_MARKS: dict[int, tuple[Callable[[Any], Any], ...]] = {
    DRAWN: (_id,), CLAIM: (_text,), RAISED: (_text, _text), CHECK: (_step, _exactly(bytes)),
    STATE: (_step, _exactly(bytes)), END: (_step, _text),
}  # fmt: skip

_ABOUT: dict[str, Callable[[Any], Any]] = {
    "began_s": _within(-1e15, 1e15, int, float), "time": _within(0, 1e11, int, float), "epoch": _id,
    "slots": _slots, "heartbeats": _exactly(bool), "limits": _exactly(dict), "wire": _exactly(dict),
    "version": _text, "environment": _text, "address": _text, "hosts": _hosts,
}  # fmt: skip
"""The fields that a header must have."""


class EffectsHash:
    """A rolling hash of effects: headers byte for byte, bodies by their length."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=8)

    def add(self, effects: Iterable[RouterEffect]) -> None:
        """Fold in effects, in order."""
        parts: list[Body] = []
        for effect in effects:
            if isinstance(effect, ToClient):
                header, *bodies = effect.frames
                parts += (b"C", effect.route, header)
            elif isinstance(effect, ToWorker):
                incarnation, header, *bodies = effect.frames
                parts += (b"W", effect.worker, incarnation, header)
            elif isinstance(effect, Save):
                kept = [journal.plain_of(each, len) for each in effect.records]
                parts.append(repr((kept, effect.upto)).encode())
                continue
            elif isinstance(effect, ToHost):
                header, *bodies = effect.frames
                parts += (b"H", effect.route, without_environment(header))
            elif isinstance(effect, RecordHosts):
                waits = [(*each[:2], sorted(each.memberships or ())) for each in effect.waits]
                parts.append(repr(waits).encode())
                continue
            else:
                parts.append(repr(effect).encode("utf-8", "backslashreplace"))
                continue
            parts += [b"%d," % len(body) for body in bodies]
        self._hash.update(b"".join(parts))

    def digest(self) -> bytes:
        """The hash of all so far."""
        return self._hash.digest()


def slots_of(noted: Any) -> int | WorkerRange:
    """Number of slots with which a router was made.  Raises ConfigError."""
    return noted if type(noted) is int else WorkerRange.of(str(noted))


def state_digest(router: Router) -> bytes:
    """A hash of what a router counts, and of what each session and each key holds."""
    sessions = [
        (
            each.id, each.route, each.connection, each.probe, each.ended, each.account.waiting,
            each.account.running_count, each.account.kept_count, each.account.kept_bytes,
            each.account.held_bytes, len(each.tickets), len(each.finished),
        )
        for each in router.sessions.known.values()
    ]  # fmt: skip
    text = repr((_counted(router), sessions))
    if router.works.next_number:
        text += _of_keys(router.works)  # recordings without keys have no such part
    if router.works.archive is not None:
        text += repr(list(router.works.archive))
    if permits := router.dispatches.permits.records():
        text += repr(permits)
    if any((counts := router.resources.counts()).values()):
        text += repr((counts, router.resources.records(router.awake_s)))
    return blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).digest()


_LATER = (
    "bounds", "waits", "runs", "model_calls", "model_usage", "oldest_wait_s", "workers_least",
    "workers_most", "resized", "permits", "resources", "resources_cleaning", "resources_stuck",
    "resources_destroyed", "resources_held",
)  # fmt: skip


def _counted(router: Router) -> dict[str, Any]:
    """The statistics without what follows from the rest, which earlier recordings lack."""
    stats = router.stats()
    for name in _LATER:
        del stats[name]
    for worker in stats["per_worker"]:
        del worker["slot"]
    return stats


def _of_keys(works: Works) -> str:
    generations = [
        (
            each.number, each.name, each.digest, each.state.value, each.executions, each.live,
            [(ticket.id, ticket.counts) for ticket in each.tickets], sorted(each.lost),
            each.since_s, each.size_bytes,
        )
        for each in works.generations.values()
    ]  # fmt: skip
    timed = [list(numbers) for numbers in (works.orphans, works.retained)]
    return repr((works.next_number, generations, timed))
