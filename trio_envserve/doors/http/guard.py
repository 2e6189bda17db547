"""The guard of the door: the address it is bound to, tokens, Host and Origin.

Theory of operation
-------------------
Whoever reaches the door may run the environment.  So it is bound to this machine only,
unless callers show a token, or the one who starts it says that all may.  A browser on
this machine reaches it, too, for any page that it shows: a page of another site is told
by ``Origin``, and one that has its own name resolve to this address (DNS rebinding) by
``Host``.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, final

from ...core.errors import ConfigError
from ...net import Address, is_loopback
from ...net.address import ANY
from ...regular_files import read_regular
from .problems import Problem

LEAST_TOKEN: Final = 16
"""Characters of a token: fewer can be guessed."""

_TOKEN: Final = re.compile(rf"[A-Za-z0-9._~+/=-]{{{LEAST_TOKEN},512}}")
_TOKEN_FILE_BYTES: Final = 1024 * 1024
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")

Headers = Mapping[bytes, Sequence[bytes]]
"""The fields of a head, by name in lower case."""


def read_tokens(path: str | os.PathLike[str]) -> list[bytes]:
    """The digests of the tokens in a file, one a line.  ConfigError if others may read
    it, or if what it holds are no tokens."""
    name = os.fspath(path)
    try:
        text, found = read_regular(name, _TOKEN_FILE_BYTES)
    except OSError as error:
        raise ConfigError(f"cannot read the tokens in {name}: {error.strerror}") from None
    if found.st_uid not in (os.geteuid(), 0):
        raise ConfigError(f"{name} belongs to another user")
    if found.st_mode & 0o077:
        raise ConfigError(f"others may read or write {name}: chmod 600 {name}")
    digests = []
    for number, line in enumerate(text.decode("latin-1").split("\n"), 1):
        token = line.strip()
        if token and not _TOKEN.fullmatch(token):
            raise ConfigError(
                f"{name}, line {number}: a token is {LEAST_TOKEN} to 512 letters, digits or "
                "-._~+/= (for example from: openssl rand -hex 32)"
            )
        if token:
            digests.append(_digest(token.encode()))
    if not digests:
        raise ConfigError(f"{name} holds no token")
    return digests


def parse_hosts(names: Iterable[str]) -> frozenset[str]:
    """Further names of this server, without ports.  ConfigError for what is none."""
    found = set()
    for name in names:
        match = _HOST.fullmatch(name)
        if match is None or match[2] is not None:
            raise ConfigError(f"{name!r} is not the name of a host (without a port)")
        found.add(_plain(match[1]))
    return frozenset(found)


@final
class Guard:
    """Looks at the headers of each request."""

    def __init__(self, address: Address, hosts: frozenset[str], tokens: Sequence[bytes]) -> None:
        self._anywhere = address.host == ANY or _is(address.host, "is_unspecified")
        """Whether it is bound to every interface, so that any address may be its own."""
        own = {_plain(address.host)}
        if self._anywhere or is_loopback(str(address)):
            own |= {"localhost", "127.0.0.1", "::1"}
        self._hosts = own | hosts
        self._tokens = tokens
        self.wants_tokens = bool(tokens)
        """Whether callers show a token."""

    def check_host(self, headers: Headers) -> None:
        """Problem unless the caller means this server, and is no page of another one."""
        host = headers.get(b"host", ())
        if len(host) != 1:
            raise Problem("bad-request", "a request has one header Host")
        if not self._is_own(host[0].decode("latin-1")):
            raise Problem("host-refused", "the header Host names another server")
        for origin in headers.get(b"origin", ()):
            scheme, _, address = origin.lower().partition(b"://")
            if scheme not in (b"http", b"https") or address != host[0].lower():
                raise Problem("origin-refused", "the header Origin names another site")

    def check_token(self, headers: Headers) -> None:
        """Problem unless the caller has a token, where one is needed."""
        if not self.wants_tokens:
            return
        given = headers.get(b"authorization", ())
        scheme, _, token = (given[0] if len(given) == 1 else b"").partition(b" ")
        shown = _digest(token.strip())
        # All of them, each in the same time: how long it takes says nothing.
        known = [hmac.compare_digest(shown, each) for each in self._tokens]
        if scheme.lower() != b"bearer" or True not in known:
            challenge = (b"www-authenticate", b'Bearer realm="trio-envserve"')
            raise Problem("unauthorized", "the request carries no token of this server", challenge)

    def _is_own(self, address: str) -> bool:
        match = _HOST.fullmatch(address)
        if match is None:
            return False
        name = _plain(match[1])
        # A name may be made to resolve to anything; an address is what was connected to.
        return name in self._hosts or (self._anywhere and _is(name))


def _plain(host: str) -> str:
    return host.strip("[]").rstrip(".").lower()


def _is(host: str, what: str = "version") -> bool:
    """Whether it is an address at all, or one of a kind."""
    try:
        return bool(getattr(ipaddress.ip_address(host), what))
    except ValueError:
        return False


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
