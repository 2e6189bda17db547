"""What a server tells a worker process before it begins: one line of JSON on
the socket pair that afterwards carries the pulses."""

from __future__ import annotations

import dataclasses
import json
import socket
from collections.abc import Mapping
from typing import Any

from ..core.errors import ConfigError
from ..core.limits import WireLimits, WorkerLimits

CONFIG_BYTES = 8 * 1024 * 1024
"""Longest configuration line."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Everything a worker process needs to know."""

    address: str
    worker: str
    incarnation: str
    """In hex."""
    environment: str
    args: dict[str, Any]
    limits: WorkerLimits
    wire: WireLimits
    path: list[str]
    """The server's ``sys.path``, so that what it can import, its workers can."""
    parent: int
    """The server's process id."""
    title: str
    logging: dict[str, Any]
    """Arguments of :class:`~trio_envserve.logs.LogSetup`, or empty."""

    def to_line(self) -> bytes:
        """The line to send; see :func:`check_args` for what it cannot carry."""
        return json.dumps(dataclasses.asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> WorkerConfig:
        """Read the line back."""
        record = json.loads(line)
        record["limits"] = WorkerLimits(**record["limits"])
        record["wire"] = WireLimits(**record["wire"])
        return cls(**record)


def check_args(args: Mapping[str, Any]) -> None:
    """ConfigError if a worker process would not get exactly these arguments."""
    for name, value in args.items():
        try:
            back: Any = json.loads(json.dumps(value))
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"args[{name!r}] cannot be sent to a worker process: {error}"
            ) from None
        if repr(back) != repr(value):  # the text tells True from 1, and nan from nothing
            raise ConfigError(
                f"args[{name!r}], {value!r:.100}, would reach a worker process as {back!r:.100}: "
                "give what JSON has (str, int, float, bool, None, lists, dicts with str keys)"
            )


def read_config(channel: socket.socket) -> WorkerConfig:
    """Read the configuration; EOFError if the server is gone."""
    data = b""
    while not data.endswith(b"\n"):
        more = channel.recv(64 * 1024)
        if not more or len(data) > CONFIG_BYTES:
            raise EOFError("the server closed the channel before the configuration was read")
        data += more
    return WorkerConfig.from_line(data)
