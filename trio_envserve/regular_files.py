"""Files of settings and keys: read whole, up to a bound, and never waited for."""

from __future__ import annotations

import os
import stat
import tomllib
from typing import Any

from .core.errors import ConfigError


def read_regular(
    path: str | os.PathLike[str], most_bytes: int = 64 * 1024
) -> tuple[bytes, os.stat_result]:
    """The content and the state of a regular file.  Raises OSError, and ConfigError for any other
    kind (a FIFO would be waited for) and for more than ``most_bytes``."""
    with open(path, "rb", opener=_open_at_once) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(f"{os.fspath(path)} is no regular file")
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ConfigError(f"{os.fspath(path)} is larger than {most_bytes} bytes")
    return content, found


def parse_toml(text: bytes) -> dict[str, Any]:
    """The tables of a file.  ValueError if it is none, whatever its bytes are."""
    try:
        return tomllib.loads(text.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
