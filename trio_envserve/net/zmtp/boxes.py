"""The boxes of CURVE, on libsodium: bytes sealed so that only the peer can open them.

Theory of operation
-------------------
Two sides that know each other's public keys share a key (``shared``), and seal and open
with it and a nonce that is never used again (Curve25519, XSalsa20, Poly1305: NaCl's
``crypto_box``).  libsodium has the older form of these calls, in which 32 bytes of zeros
stand before the text, and 16 before the box.  That suits here, because it works in
place: the 16 bytes before a box are the name and the nonce of the command that has it.

The module of PyNaCl that is used here is the one below its public functions, which copy
each text three times: for 1 MB 3.7 ms instead of 1.3.

It holds no key and no random source.  PyNaCl is the extra ``curve``.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

from ...core.errors import ConfigError

KEY_BYTES: Final = 32
ROOM_BYTES: Final = 32
"""Bytes that are left free before a text for its box."""

_GAP: Final = bytes(16)

sodium: Any
try:
    sodium = importlib.import_module("nacl._sodium")
except ImportError:  # the extra is not installed
    sodium = None
ffi: Any = getattr(sodium, "ffi", None)
lib: Any = getattr(sodium, "lib", None)


class WrongBox(ValueError):
    """A box does not open, or a key is none."""


def check_installed() -> None:
    """Raise ConfigError, with what to do, if PyNaCl is not there."""
    if lib is None:
        raise ConfigError("CURVE needs PyNaCl: pip install 'trio-envserve[curve]'")


def public_of(secret: bytes) -> bytes:
    """The public key of a secret one."""
    public = bytearray(KEY_BYTES)
    if len(secret) != KEY_BYTES or lib.crypto_scalarmult_base(ffi.from_buffer(public), secret):
        raise WrongBox("not a secret key")
    return bytes(public)


def shared(public: bytes, secret: bytes) -> bytes:
    """The key that the owners of two pairs share."""
    key = bytearray(KEY_BYTES)
    if len(public) != KEY_BYTES or len(secret) != KEY_BYTES:
        raise WrongBox("a key of another size")
    if lib.crypto_box_beforenm(ffi.from_buffer(key), public, secret):
        raise WrongBox("a public key that makes every box open")
    return bytes(key)


def seal_in_place(buffer: bytearray, nonce: bytes, key: bytes) -> None:
    """Seal the text behind the first :data:`ROOM_BYTES`, which are zeros.  The box begins
    after 16 of them."""
    pointer = ffi.from_buffer(buffer)
    lib.crypto_box_afternm(pointer, pointer, len(buffer), nonce, key)


def open_in_place(buffer: bytearray | memoryview, nonce: bytes, key: bytes) -> None:
    """Open the box behind the first 16 bytes, which are lost.  The text begins after
    :data:`ROOM_BYTES`.  Raises WrongBox."""
    if len(buffer) < ROOM_BYTES:
        raise WrongBox("a box without its seal")
    pointer = ffi.from_buffer(buffer)
    ffi.memmove(pointer, _GAP, 16)
    if lib.crypto_box_open_afternm(pointer, pointer, len(buffer), nonce, key):
        raise WrongBox("a box that does not open")


def seal(text: bytes, nonce: bytes, key: bytes) -> bytes:
    """The box of a text."""
    buffer = bytearray(ROOM_BYTES) + text
    seal_in_place(buffer, nonce, key)
    return bytes(buffer[16:])


def open_box(box: bytes, nonce: bytes, key: bytes) -> bytes:
    """The text in a box.  Raises WrongBox."""
    buffer = bytearray(_GAP) + box
    open_in_place(buffer, nonce, key)
    return bytes(buffer[ROOM_BYTES:])
