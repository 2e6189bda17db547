"""Keys of CURVE for people: pairs as text, and the file that a client has.

Theory of operation
-------------------
A key is 32 bytes.  Its text is Z85, 40 characters, as libzmq and its tools write it.  A
file with a secret key can be read by its owner only: a file that others can read is
refused, because its key may be known to them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import struct
import tempfile
from pathlib import Path
from typing import Any, Final, final

from ..core.errors import ConfigError
from ..regular_files import parse_toml, read_regular
from .zmtp.curve import KEY_BYTES, WrongBox, check_installed, public_of, shared

_TEXT: Final = 40
"""The characters of a key."""


def key_bytes(text: object, what: str) -> bytes:
    """The key of a text.  Raises ConfigError, which never has the text: it may be secret."""
    from zmq.utils import z85

    if isinstance(text, str) and len(text) == _TEXT:
        with contextlib.suppress(KeyError, ValueError, struct.error):
            key: bytes = z85.decode(text)
            if len(key) == KEY_BYTES and z85.encode(key).decode() == text:
                return key
    raise ConfigError(f"{what} is no key: 40 characters of Z85 are one")


def key_text(key: bytes) -> str:
    """The text of a key."""
    from zmq.utils import z85

    return str(z85.encode(key).decode())


@final
@dataclasses.dataclass(frozen=True, slots=True)
class KeyPair:
    """A pair of keys of CURVE, each as 40 characters of Z85.  :meth:`new` makes one."""

    public: str
    """The public key."""
    secret: str = dataclasses.field(repr=False)
    """The secret key."""

    def __post_init__(self) -> None:
        check_installed()
        if key_text(public_of(self.secret_bytes)) != self.public:
            raise ConfigError("the public key is not that of the secret one")

    @classmethod
    def new(cls) -> KeyPair:
        """A pair that nobody else has."""
        check_installed()
        return cls.of_secret(key_text(os.urandom(KEY_BYTES)))

    @classmethod
    def of_secret(cls, secret: str) -> KeyPair:
        """The pair of a secret key.  Raises ConfigError.

        Args:
            secret: 40 characters of Z85.
        """
        check_installed()
        return cls(key_text(public_of(key_bytes(secret, "the secret key"))), secret)

    @property
    def secret_bytes(self) -> bytes:
        """The secret key itself."""
        return key_bytes(self.secret, "the secret key")


@final
@dataclasses.dataclass(frozen=True, slots=True)
class ClientCurve:
    """The keys of a client for a server with keys: the server's public key, as 40 characters of
    Z85, and a pair of its own."""

    server: str
    """The server's public key."""
    keys: KeyPair
    """The client's own pair."""

    def __post_init__(self) -> None:
        check_installed()
        try:
            shared(self.server_bytes, self.keys.secret_bytes)
        except WrongBox as error:
            raise ConfigError(f"the server's key is {error}") from None

    @property
    def server_bytes(self) -> bytes:
        """The server's public key itself."""
        return key_bytes(self.server, "the server's key")

    def to_text(self) -> str:
        """The text of a client's file: a secret."""
        names = {"server": self.server, "public": self.keys.public, "secret": self.keys.secret}
        return "".join(f'{name} = "{value}"\n' for name, value in names.items())

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> ClientCurve:
        """Read a file that ``trio-envserve curve new`` wrote for a client.  Raises ConfigError.

        Args:
            path: Its path.
        """
        read = read_secret_file(path)
        for name in ("server", "secret"):
            if name not in read:
                raise ConfigError(f"{os.fspath(path)}: it has no {name!r}")
        return cls(read["server"], KeyPair.of_secret(read["secret"]))


def read_secret_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The lines of a file with a secret key.  Raises ConfigError, also if others than its
    owner can read or change it."""
    path_name = os.fspath(path)
    try:
        text, found = read_regular(path)
    except OSError as error:
        raise ConfigError(f"{path_name}: {error.strerror or error}") from None
    if found.st_mode & 0o077:
        raise ConfigError(
            f"{path_name}: others can read this secret key (mode {found.st_mode & 0o777:o}); "
            f"chmod 600 it, and make a new one if anybody did"
        )
    try:
        return parse_toml(text)
    except ValueError as error:
        raise ConfigError(f"{path_name} is not a file of keys: {error}") from None


def write_whole(path: Path, text: str, mode: int) -> None:
    """Write a file that is there whole or not at all, and never with more rights.  Raises
    ConfigError."""
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:  # mode 0600
            try:
                file.write(text)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
