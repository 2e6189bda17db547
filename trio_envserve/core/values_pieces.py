"""Decoding in pieces: for bodies that take long, and for those with many keys.

Theory of operation
-------------------
The compiled decoder reads a whole item in one call, and nothing else of the process
runs meanwhile.  :class:`PieceDecoder` gives it no more than a *window* of the body at
a time: members of a container, as many as fit, behind a head of its own.  An item that
does not fit is taken apart here, member by member, at most as deep as the body may
be.  Between pieces ``pause`` is called: whoever decodes in a thread lets others run
there, or gives up by raising.

A window that turns out too small was decoded in vain.  Each such attempt is paid
from what was decoded before, so all of them together cost no more than the rest.
If something in a window is wrong, it is read again item by item, to tell where.

This is also where keys are counted (:mod:`values_keys`): each piece is small enough
to be decoded before it is looked at.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, Final

import cbor2

from .arrays import ELEMENT_TYPES
from .cbor_heads import head
from .limits import KIB
from .values_keys import chosen, too_many
from .values_parts import written_head
from .values_paths import step
from .values_prices import TAG_SET
from .values_scan import LEAST_CUT_BYTES

WINDOW_BYTES: Final = 16 * KIB
"""Decoding so much takes 30 ms at worst: a map of colliding keys."""

_FREE_WINDOWS: Final = 8
"""Windows that may be decoded in vain before anything else is decoded."""
_MANY: Final = 1 << 62
_BYTES, _TEXT, _ARRAY, _MAP, _TAG = 2, 3, 4, 5, 6
_BREAK: Final = 0xFF


class PieceProblem(ValueError):
    """Bytes that are no body.  Collects the way to them while it unwinds."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.way: list[str] = []
        """Steps from the innermost outwards."""


_TOO_DEEP: Final = "it is nested beyond the depth that is allowed"
_TOO_SHORT: Final = "it ends too early"


class PieceDecoder:
    """One body, contiguous bytes.

    ``accepted`` are the decoders of tags, ``built_in`` the tags that cbor2 decodes
    itself, ``keys`` is the limit of that name.
    """

    def __init__(
        self, data: memoryview, *, accepted: dict[int, Any], built_in: frozenset[int],
        keys: int, pause: Callable[[], None], window: int = WINDOW_BYTES,
    ) -> None:  # fmt: skip
        self._data = data
        self._accepted = accepted
        self._accepted[TAG_SET] = self._set
        self._built_in = built_in - {TAG_SET}
        self._keys = keys
        self._pause = pause
        self._window = window
        self._in_vain = 0
        """Bytes that were decoded in vain."""
        self._guess = 64
        """Estimated number of members in the next window."""

    def whole(self, depth: int) -> object:
        """The value.  Raises :class:`PieceProblem`."""
        value, end = self._item(0, depth, immutable=False)
        if end != len(self._data):
            raise PieceProblem("the body goes on after its end")
        return value

    def _item(self, at: int, depth: int, *, immutable: bool) -> tuple[Any, int]:
        """The item there, and where it ends.  ``depth``: levels that may be entered."""
        major, argument, after = self._head(at)
        if major in (_BYTES, _TEXT):
            return self._string(at, major, argument, after)
        if major == _TAG:
            if depth <= 0:
                raise PieceProblem(_TOO_DEEP)
            return self._tagged(at, argument, after, depth - 1, immutable=immutable)
        if major == _ARRAY:
            listed: list[object] = []
            end = self._fill(listed, at, depth, immutable=immutable)
            return (tuple(listed) if immutable else listed), end
        if major == _MAP:
            pairs: dict[object, object] = {}
            return pairs, self._fill(pairs, at, depth, immutable=False)
        return self._decoded(at, after), after

    def _head(self, at: int) -> tuple[int, int, int]:
        if at >= len(self._data):
            raise PieceProblem(_TOO_SHORT)
        found = head(self._data, at)
        if found[1] < 0:
            raise PieceProblem("it is malformed, or ends too early")
        return found

    def _decoded(self, start: int, end: int) -> object:
        """The value of one small item, by the compiled decoder."""
        try:
            return cbor2.loads(self._data[start:end], semantic_decoders=self._accepted)
        except cbor2.CBORDecodeError as error:
            raise problem_of(error) from error

    def _string(self, at: int, major: int, length: int, after: int) -> tuple[Any, int]:
        if self._data[at] & 31 == 31:
            return self._chunks(major, after)
        end = after + length
        if end > len(self._data):
            raise PieceProblem(_TOO_SHORT)
        if major == _BYTES:
            return bytes(self._data[after:end]), end
        try:
            return str(self._data[after:end], "utf-8"), end
        except UnicodeDecodeError as error:
            raise PieceProblem(f"it is no text: {error.reason}") from None

    def _chunks(self, major: int, at: int) -> tuple[Any, int]:
        chunks: list[Any] = []
        while True:
            chunk_major, length, after = self._head(at)
            if self._data[at] == _BREAK:
                return (b"" if major == _BYTES else "").join(chunks), after
            if chunk_major != major or self._data[at] & 31 == 31:
                raise PieceProblem("a string in chunks has a chunk of another kind")
            chunk, at = self._string(at, major, length, after)
            chunks.append(chunk)
            self._pause()

    # -- tags -------------------------------------------------------------------

    def _tagged(
        self, start: int, tag: int, at: int, depth: int, *, immutable: bool
    ) -> tuple[object, int]:
        if tag in ELEMENT_TYPES:
            content, end = self._elements(at, depth)
        else:
            content, end = self._item(at, depth, immutable=immutable or tag == TAG_SET)
        if tag in self._built_in:
            return self._decoded(start, end), end
        try:
            return self._accepted[tag](content, immutable), end
        except PieceProblem:
            raise
        except Exception as error:  # ValueError, and whatever libraries say of odd content
            raise PieceProblem(f"tag {tag}: {error}") from error

    def _elements(self, at: int, depth: int) -> tuple[object, int]:
        """The content of a typed array: a view of the body, if it is large."""
        major, length, after = self._head(at)
        end = after + length
        if major == _BYTES and LEAST_CUT_BYTES <= length <= len(self._data) - after:
            return self._data[after:end], end
        return self._item(at, depth, immutable=False)

    # -- containers ---------------------------------------------------------------

    def _fill(
        self, members: list[Any] | dict[Any, Any], at: int, depth: int, *, immutable: bool
    ) -> int:
        """Put the members of the array or map there into ``members``; where it ends."""
        major, remaining, after = self._head(at)
        endless = self._data[at] & 31 == 31
        if endless:
            remaining = _MANY
        at = after
        risky = 0
        while remaining:
            if endless and at < len(self._data) and self._data[at] == _BREAK:
                return at + 1
            if depth <= 0:
                raise PieceProblem(_TOO_DEEP)
            self._pause()
            piece, end = self._piece(
                major, at, 1 if endless else remaining, depth, len(members), immutable=immutable
            )
            if isinstance(members, dict):
                risky += chosen(piece)
            self._merge(members, piece, risky)
            remaining -= len(piece)
            at = end
        return at

    def _piece(
        self, major: int, at: int, most: int, depth: int, index: int, *, immutable: bool
    ) -> tuple[Any, int]:
        """Up to ``most`` members, the first with that index, and where they end."""
        piece, end = self._window_full(major, at, most, depth, immutable=immutable)
        if piece is not None:
            return piece, end
        try:
            return self._one(major, at, depth - 1, immutable=immutable)
        except PieceProblem as problem:
            if major == _ARRAY:
                problem.way.append(f"[{index}]")
            raise

    def _window_full(
        self, major: int, at: int, most: int, depth: int, *, immutable: bool
    ) -> tuple[Any, int]:
        """The members that fit into a window, by estimate, and their end; None if not even one
        fits."""
        if not self._window or self._in_vain > at + _FREE_WINDOWS * self._window:
            return None, at
        count = min(most, self._guess)
        front = written_head(major, count)
        stream = io.BytesIO(front + self._data[at : at + self._window])
        try:
            piece: Any = cbor2.load(
                stream, semantic_decoders=self._accepted, object_hook=self._map,
                read_size=len(front) + self._window, max_depth=depth,
                allow_duplicate_keys=False, immutable=immutable,
            )  # fmt: skip
        except cbor2.CBORDecodeEOF:
            self._in_vain += self._window
            if count == 1:
                return None, at
            self._guess = 1
            return self._window_full(major, at, 1, depth, immutable=immutable)
        except cbor2.CBORDecodeError as error:
            problem_of(error)
            self._window = 0  # from here on one by one, to tell where it is
            return None, at
        used = stream.tell() - len(front)
        if used < self._window // 4:
            self._guess = min(4 * self._guess, self._window)
        return piece, at + used

    def _one(self, major: int, at: int, depth: int, *, immutable: bool) -> tuple[Any, int]:
        """One member as a container of its own, and where it ends."""
        if major == _ARRAY:
            member, end = self._item(at, depth, immutable=immutable)
            return [member], end
        key, after = self._item(at, depth, immutable=True)
        _check_hash(key)
        try:
            member, end = self._item(after, depth, immutable=False)
        except PieceProblem as problem:
            problem.way.append(step(key))
            raise
        return {key: member}, end

    def _merge(self, members: list[Any] | dict[Any, Any], piece: Any, risky: int) -> None:
        """Add a piece to its container."""
        if isinstance(members, list):
            members.extend(piece)
            return
        if risky > self._keys:
            raise PieceProblem(too_many(self._keys))
        expected = len(members) + len(piece)
        members.update(piece)
        if len(members) != expected:
            raise PieceProblem("a map has a key twice")

    def _map(self, pairs: Any, _immutable: bool) -> Any:
        """Look at a map that cbor2 has decoded."""
        if len(pairs) > self._keys and chosen(pairs) > self._keys:
            raise PieceProblem(too_many(self._keys))
        return pairs

    def _set(self, content: object, immutable: bool) -> object:
        """The decoder of tag 258."""
        if not isinstance(content, list | tuple):
            raise PieceProblem("a set must be an array")
        members = _frozen(content)
        _check_hash(members)
        if len(members) > self._keys and chosen(members) > self._keys:
            raise PieceProblem(too_many(self._keys))
        return frozenset(members) if immutable else set(members)


def _frozen(value: Any) -> Any:
    """A member of a set, with tuples for lists."""
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    if isinstance(value, set):
        return frozenset(value)
    if hasattr(value, "dtype"):  # some libraries' arrays could be hashed
        raise PieceProblem("an array cannot be a key or a member of a set")
    return value


def _check_hash(key: object) -> None:
    try:
        hash(key)
    except TypeError as error:
        raise PieceProblem(f"a key or a member of a set: {error}") from None


def problem_of(error: cbor2.CBORDecodeError) -> PieceProblem:
    """The problem behind an error of the compiled decoder."""
    cause = error.__cause__
    if cause is not None and not isinstance(cause, Exception):
        # cbor2 wraps even a KeyboardInterrupt that arrives while a tag is
        # handled; it is nobody's decoding error.
        raise cause
    return PieceProblem(f"{error}: {cause}" if cause is not None else f"{error}")
