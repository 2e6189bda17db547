"""Addresses, which are checked early, and errors that explain what is wrong.

There are three kinds: ``tcp://host:port``, ``ipc:///absolute/path`` and
``memory:name``.  libzmq accepts more (and reads ``tcp://host:1x`` as port 1),
and reports an address that it refuses as a bare errno, often only on its own thread.
So everything that the text can tell is checked here, and every
:class:`ConfigError` names the address and says what to write instead.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from typing import Literal

from ..core.errors import ConfigError

IPC_PATH_BYTES = 103
"""Longest path of a unix socket.  Of common systems the smallest bound is 104 bytes
with the final zero (Linux has 108)."""

ANY = "*"
"""Host that stands for every interface of this machine, or port that stands for any free one."""

_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?")
_PORT = re.compile(r"[0-9]{1,5}")  # int() refuses thousands of digits in words of its own
_EXPECTED = "tcp://127.0.0.1:5555 or ipc:///path expected"


@dataclasses.dataclass(frozen=True, slots=True)
class Address:
    """An address in parts.  ``str()`` gives its text again, brackets and all."""

    scheme: Literal["tcp", "ipc", "memory"]
    host: str = ""
    """For tcp: a name, an IPv4 or IPv6 literal (without brackets), or :data:`ANY`."""
    port: int = 0
    """For tcp; 0 asks for any free port."""
    path: str = ""
    """For ipc: the absolute path.  For memory: the name, or :data:`ANY`."""

    def __str__(self) -> str:
        if self.scheme == "tcp":
            host = f"[{self.host}]" if self.is_ipv6 else self.host
            return f"tcp://{host}:{self.port or ANY}"
        return f"ipc://{self.path}" if self.scheme == "ipc" else f"memory:{self.path}"

    @property
    def is_ipv6(self) -> bool:
        """Whether the host is an IPv6 literal."""
        return ":" in self.host

    @property
    def is_complete(self) -> bool:
        """Whether a client can connect to it: the system has nothing left to choose."""
        if self.scheme == "tcp":
            return self.port != 0 and self.host != ANY
        return self.path != ANY


def parse_address(text: str) -> Address:
    """Parse an address.

    ``tcp`` may have port 0 or ``*`` (any free port) and host ``*`` (every
    IPv4 interface); ``memory:*`` asks for a fresh name.  Raises ConfigError for
    everything else, with what to write instead.
    """
    if not isinstance(text, str):
        raise ConfigError(f"{_EXPECTED}, got {text!r}")
    if text.startswith("tcp://"):
        return _parse_tcp(text)
    if text.startswith("ipc://"):
        return _parse_ipc(text)
    if text.startswith("memory:"):
        name = text.removeprefix("memory:")
        if not name:
            raise ConfigError(f"memory:name expected, got {text!r}: the name is missing")
        return Address("memory", path=name)
    raise ConfigError(f"{_EXPECTED}, got {text!r}{_suggestion(text)}")


def parse_peer_address(text: str) -> Address:
    """Parse an address to connect to: host and port must be given.

    Raises ConfigError.
    """
    address = parse_address(text)
    if not address.is_complete:
        raise ConfigError(
            f"cannot connect to {text!r}: * and port 0 only make sense for a server; "
            "use the address that it reports once it is open"
        )
    return address


def parse_transport(text: str) -> Address:
    """Parse an address of a network of real sockets.  Raises ConfigError."""
    address = parse_address(text)
    if address.scheme == "memory":
        raise ConfigError(
            f"{address}: memory: addresses belong to a MemoryNetwork; "
            "tcp://127.0.0.1:5555 or ipc:///path expected"
        )
    return address


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach the address: ipc, memory, localhost,
    127.0.0.0/8, ::1.  False for a name that would have to be looked up.

    Raises ConfigError for a malformed address.
    """
    parsed = parse_address(address)
    if parsed.scheme != "tcp":
        return True
    if parsed.host.rstrip(".").lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(parsed.host).is_loopback
    except ValueError:
        return False


def check_reach(address: str, instead: str, whom: str = "run the environment") -> None:
    """ConfigError, with what to do ``instead``, if other machines reach an address that nothing
    guards.  ``whom``: what everybody may do there."""
    if not is_loopback(address):
        raise ConfigError(
            f"{address.removeprefix('tcp://')} may be reached from other machines: {instead}, or "
            f"let everybody {whom} (--insecure)"
        )


def _suggestion(text: str) -> str:
    """The address that was probably meant."""
    if re.fullmatch(r"[^/\s]+:(\d+|\*)", text):
        return f"; did you mean tcp://{text}?"
    if text.startswith("/"):
        return f"; did you mean ipc://{text}?"
    return ""


def _parse_tcp(text: str) -> Address:
    host, _, port_text = text.removeprefix("tcp://").rpartition(":")
    if not host:
        raise ConfigError(f"tcp://host:port expected, got {text!r}")
    if port_text == ANY:
        port = 0
    elif _PORT.fullmatch(port_text) and int(port_text) <= 65535:
        port = int(port_text)
    else:
        raise ConfigError(f"{text!r}: the port must be a number up to 65535, not {port_text!r}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        try:
            # A zone (fe80::1%eth0) is part of the literal, as in libzmq.
            ipaddress.IPv6Address(host)
        except ValueError:
            raise ConfigError(f"{text!r}: {host!r} is not an IPv6 address") from None
    elif ":" in host:
        raise ConfigError(f"{text!r}: write an IPv6 address in brackets, tcp://[::1]:5555")
    elif host != ANY and not _HOST.fullmatch(host):
        raise ConfigError(f"{text!r}: {host!r} is not a host name or address")
    return Address("tcp", host=host, port=port)


def _parse_ipc(text: str) -> Address:
    path = text.removeprefix("ipc://")
    if not path.startswith("/") or path.endswith("/") or "\0" in path:
        raise ConfigError(f"ipc:///absolute/path/of/a/socket expected, got {text!r}")
    try:
        size_bytes = len(path.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"{text!r}: the path must be valid UTF-8") from None
    if size_bytes > IPC_PATH_BYTES:
        raise ConfigError(
            f"{text!r}: the path has {size_bytes} bytes and the system allows "
            f"{IPC_PATH_BYTES} for a socket; choose a shorter one"
        )
    return Address("ipc", path=path)
