"""Bodies of maps of which only one value changes: the rest is encoded once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import cbor2

from .limits import WireLimits
from .values import (
    DEFAULT_LIMITS,
    ITEMS_AT_ONCE,
    EncodingError,
    body_of,
    encode_to_send,
    parts_of,
)
from .values_lower import SMALL_DEPTH, SMALL_ITEMS, Lowering, items_left, takes_small
from .values_order import small_in_order
from .values_parts import written_head
from .values_paths import Refusal, step

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .terms import Joined


@final
class Form:
    """A map that has another value for one of its text keys each time.

    A call has an input of its own, and options that many have: so the options are encoded
    once, and each input is put between what stands before and after it.
    """

    __slots__ = ("_around", "_around_in_order", "_items", "_key", "_members")

    def __init__(self, members: Mapping[str, object], key: str) -> None:
        """``members``: all of the map, in order; what it has for ``key`` is not looked at."""
        self._members = {**members, key: None}
        self._key = key
        self._items = items_left(self._members, SMALL_ITEMS, SMALL_DEPTH)
        """Number of items that the value may have to stay small; negative if the others are not
        small."""
        self._around = self._around_in_order = b"", b""
        if self._items >= 0:
            try:
                self._around = _around(self._members, key)
                self._around_in_order = _around(small_in_order(self._members), key)
            except UnicodeEncodeError:
                self._items = -1

    def encode(
        self, value: object, *, root: str = "value", limits: WireLimits = DEFAULT_LIMITS,
        sort_keys: bool = False, **how: Any,
    ) -> bytes | Joined:  # fmt: skip
        """The encoding, as of :func:`encode_to_send`, of the map with this value."""
        is_small = items_left(value, self._items, SMALL_DEPTH - 1) >= 0
        if is_small and takes_small(limits):
            before, after = self._around_in_order if sort_keys else self._around
            try:
                return before + cbor2.dumps(small_in_order(value) if sort_keys else value) + after
            except UnicodeEncodeError:
                pass  # below it is said which text it was
        if self._items >= 0 and takes_small(limits):
            try:
                return self._around_large(value, root, limits, sort_keys=sort_keys, **how)
            except UnicodeEncodeError:
                pass  # as above
        body = {**self._members, self._key: value}
        return encode_to_send(body, root=root, limits=limits, sort_keys=sort_keys, **how)

    def _around_large(
        self, value: object, root: str, limits: WireLimits, *, sort_keys: bool,
        at_once: bool = False, pause: Callable[[], None] | None = None,
    ) -> bytes | Joined:  # fmt: skip
        """The encoding of the map with a value that is not small: only the value is walked
        through."""
        at_most = ITEMS_AT_ONCE if at_once else None
        lowering = Lowering(limits, pause=pause, items_at_once=at_most, sort_keys=sort_keys)
        try:
            lowering.inside(self._members, SMALL_ITEMS - self._items)
            parts = parts_of(lowering.value(value, 1))
        except Refusal as refusal:
            refusal.way.append((step(self._key), self._members))
            raise EncodingError(*refusal.located(root)) from refusal.__cause__
        before, after = self._around_in_order if sort_keys else self._around
        return body_of([before, *parts, after], lowering, limits, pause)


def _around(members: Any, key: str) -> tuple[bytes, bytes]:
    """The bytes before and after the value of this key, where all others are small."""
    items, at = [*members.items()], [*members].index(key)
    before, after = (
        b"".join(cbor2.dumps(item) for pair in pairs for item in pair)
        for pairs in (items[:at], items[at + 1 :])
    )
    return written_head(5, len(items)) + before + cbor2.dumps(key), after
