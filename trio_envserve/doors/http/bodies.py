"""Bodies of requests and answers, in JSON or CBOR.

Theory of operation
-------------------
What a stranger sends is read strictly: no key twice, no number that JSON has not, valid
UTF-8, nothing behind the value.  Values that JSON lacks have the form of
:mod:`~trio_envserve.json_values`, both ways.  CBOR is read as the bodies of calls are.

Parsing JSON takes long, so a body is bounded, and so is the number of its items.  One that is
large all the same is parsed in a thread that lets the loop run in between, and what takes
long to write is written in such a thread.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NoReturn, TypeVar, final

import trio

from ...core import values
from ...core.limits import KIB, WireLimits
from ...core.terms import BYTE_COST, COST_HEADER, stated_cost
from ...core.values import written_head
from ...json_values import (
    Malformed,
    Pause,
    as_it_is,
    dumped,
    jsonable,
    restored,
    weight,
)
from ...turns import Threads, after
from ..limits import HttpLimits
from .guard import Headers
from .problems import Problem
from .turns import BYTE_US, ITEM_US, Turns

T = TypeVar("T")

JSON, CBOR, LINES = "application/json", "application/cbor", "application/x-ndjson"
PROBLEM = "application/problem+json"

_AT_ONCE: Final = 20_000
"""The weight of what is written at once: some 10 ms, or 20 of a text that is no ASCII."""

_ITEMS_AT_ONCE: Final = 20_000
"""Commas and brackets of JSON that is parsed at once: some 15 ms."""

_BYTES_AT_ONCE: Final = 512 * KIB
"""The length of such JSON: some 10 ms, if it is the digits of long numbers."""

_SMALL: Final = 16 * KIB
"""A body whose value nobody need wait with."""

_ELEMENT_BYTES: Final = 4
"""Bytes of an array that cost as much as an item when it is written as a list."""


def body_type(headers: Headers) -> str:
    """The media type of a request's body.  Problem if it is neither JSON nor CBOR."""
    if any(each.strip().lower() != b"identity" for each in headers.get(b"content-encoding", ())):
        raise Problem("unsupported-media-type", "a Content-Encoding is not read here")
    given = headers.get(b"content-type", ())
    text = given[0].decode("latin-1") if len(given) == 1 else ""
    name, *parameters = (part.strip().lower() for part in text.split(";"))
    charsets = {each[8:].strip('"') for each in parameters if each.startswith("charset=")}
    if name not in (JSON, CBOR) or charsets - {"utf-8"}:
        raise Problem("unsupported-media-type", f"the Content-Type is {text[:80]!r}")
    return name


def accepted(headers: Headers, offered: Sequence[str]) -> str:
    """The best of the media types that are offered, the first of them if all are as good.
    Problem if none is acceptable."""
    if b"accept" not in headers:
        return offered[0]
    text = b",".join(headers[b"accept"]).decode("latin-1").lower()
    ranges = [each for each in map(_range, text.split(",")) if each is not None]
    best, found = 0.0, ""
    for name in offered:
        # The most exact of the ranges that match it says how welcome it is.
        matching = [(len(which), q) for which, q in ranges if _matches(name, which)]
        q = max(matching)[1] if matching else 0.0
        if q > best:
            best, found = q, name
    if not ranges and not text.strip():
        return offered[0]
    if not found:
        raise Problem("not-acceptable", f"the answer can be {' or '.join(offered)}")
    return found


def _range(text: str) -> tuple[str, float] | None:
    name, *parameters = (part.strip() for part in text.split(";"))
    q = 1.0
    for each in parameters:
        if each.startswith("q="):
            try:
                q = float(each[2:])
            except ValueError:
                return None
    return (name, q) if name and 0 <= q <= 1 else None


def _matches(name: str, which: str) -> bool:
    return which in ("*/*", name) or (which.endswith("/*") and name.startswith(which[:-1]))


@final
class Codec:
    """Reads and writes bodies."""

    def __init__(self, limits: HttpLimits, wire: WireLimits, turns: Turns) -> None:
        self.turns = turns
        self._limits = limits
        self._wire = wire
        # As much as one string of body_bytes.
        most_bytes = BYTE_COST * limits.body_bytes + values.FREE_BYTES
        self._too_costly = (
            f"the value of the body may cost {most_bytes} bytes of memory, and not more than its "
            f"header says, if it has one (--http-limit body_bytes=...): 8 for each byte of its "
            "encoding, and 128 for each text, byte string, array, map and tag"
        )
        self._any_header = COST_HEADER + written_head(0, most_bytes)
        self._wire_to_read = dataclasses.replace(
            wire, message_bytes=min(wire.message_bytes, most_bytes // BYTE_COST)
        )
        self._threads = Threads()
        self._large = trio.Lock()

    @asynccontextmanager
    async def alone(self, body: bytes) -> AsyncGenerator[None, None]:
        """While the value of a large body is here, that of no other one is: a value may take
        thirty times its body.  For whoever reads it, encodes it, and lets it go."""
        if len(body) <= _SMALL:
            yield
            return
        async with self._large:
            yield

    async def read(self, body: bytes, media: str) -> Any:
        """The value of a body.  Problem if it is none."""
        if media == JSON:
            return await self._parsed(body, _json_value)
        cost_us = BYTE_US * len(body)
        await self.turns.take(cost_us)
        value = await self._read_cbor(body)
        await self.turns.take(cost_us)  # whoever has it encodes it for the server
        return value

    async def read_row(self, body: bytes) -> Any:
        """The value of a body of plain JSON, in which no object means anything else.
        Problem if it is none."""
        return await self._parsed(body, _plain_value)

    async def _read_cbor(self, body: bytes) -> Any:
        if not body.startswith(COST_HEADER):  # strangers need not say what it costs
            body = self._any_header + body
        try:
            return await self._at_once(values.decode, body, root="body", limits=self._wire_to_read)
        except values.DecodingError as error:
            if isinstance(error.__cause__, values.TooCostly):
                raise Problem("body-too-large", self._too_costly) from None
            raise Problem("bad-request", f"the body cannot be read: {error}") from None

    async def _at_once(self, do: Callable[..., T], value: Any, **how: Any) -> T:
        """Read or write CBOR, in a thread if that takes long."""
        try:
            return do(value, at_once=True, **how)
        except values.TooMuchWork:
            return await self._threads.run(lambda pause: do(value, pause=pause, **how))

    async def _parsed(self, body: bytes, parse: Callable[[bytes, Pause | None], Any]) -> Any:
        """The value of JSON, which is encoded next by whoever asks."""
        items = sum(map(body.count, (b",", b"[", b"{")))
        if items > self._limits.json_items:
            raise Problem("body-too-large", "the body has too many items for JSON; send CBOR")
        cost_us = BYTE_US * len(body)
        try:
            if items > _ITEMS_AT_ONCE or len(body) > _BYTES_AT_ONCE:
                value = await self._threads.run(lambda pause: parse(body, pause))
            else:
                await self.turns.take(cost_us)
                value = parse(body, None)
        except Malformed as error:
            raise Problem("bad-request", f"the body cannot be read: {error}") from None
        await self.turns.take(cost_us)  # as above
        return value

    async def write(self, value: Mapping[str, Any], media: str) -> bytes:
        """A mapping of any decoded values as a body."""
        if media == CBOR:
            body = await self._at_once(values.encode, value, root="", limits=self._wire)
            _, start = stated_cost(body)  # strangers would not know what the header is
            return body[start:]
        return await self._dumped(value, weight(value, _AT_ONCE), jsonable)

    async def write_row(self, value: Mapping[str, Any]) -> bytes:
        """A mapping as plain JSON: arrays are lists, and what is no number is null."""
        items = weight(value, _AT_ONCE, of_array=_ELEMENT_BYTES)
        return await self._dumped(value, items, lambda value, *_: _plain(value))

    async def _dumped(self, value: Any, items: int, lowered: Callable[..., Any]) -> bytes:
        """A value as JSON: ``lowered`` makes it plain, and is given what writes bytes in pieces."""
        if items <= _AT_ONCE:
            await self.turns.take(ITEM_US * items)
            return json.dumps(lowered(value), allow_nan=False).encode()
        return await self._threads.run(lambda pause: dumped(lowered(value, as_it_is), pause))


def _plain(value: Any) -> Any:
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if hasattr(value, "tolist"):  # arrays, and numpy's numbers
        return _plain(value.tolist())
    return jsonable(value)


def to_json(value: Any) -> bytes:
    """A value as one line of JSON, without its end."""
    return json.dumps(jsonable(value), allow_nan=False).encode()


def _json_value(body: bytes, pause: Pause | None) -> Any:
    """The value of JSON.  Malformed if it is none."""
    try:
        return restored(_plain_value(body, pause), strict=True, pause=pause)
    except RecursionError:
        raise Malformed("it is nested too deeply") from None


def _plain_value(body: bytes, pause: Pause | None) -> Any:
    """The value of JSON in which no object means anything else.  Malformed if it is none."""
    whole, finite, once = (
        (None, _finite, _once)
        if pause is None
        else (after(pause, int), after(pause, _finite), after(pause, _once))
    )
    try:
        return json.loads(
            body.decode(), parse_constant=_no_constant, parse_int=whole, parse_float=finite,
            object_pairs_hook=once,
        )  # fmt: skip
    except RecursionError:
        raise Malformed("it is nested too deeply") from None
    except Malformed:
        raise
    except ValueError as error:  # of UTF-8, of JSON, of a number with too many digits
        raise Malformed(f"it is no JSON: {error}") from None


def _no_constant(name: str) -> NoReturn:
    raise Malformed(f'{name} is no JSON; write {{"$float": "nan"}}, or inf, or -inf')


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise Malformed(f"{text[:40]} is too large for a number")
    return number


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Malformed("a key of an object is there twice")
    return found
