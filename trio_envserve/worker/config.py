"""What a server tells a worker process before it begins: one line of JSON on
the socket pair that afterwards carries the pulses."""

from __future__ import annotations

import dataclasses
import json
import socket
from typing import Any

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
        """The line to send.  TypeError if the arguments are not JSON."""
        return json.dumps(dataclasses.asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> WorkerConfig:
        """Read the line back."""
        record = json.loads(line)
        record["limits"] = WorkerLimits(**record["limits"])
        record["wire"] = WireLimits(**record["wire"])
        return cls(**record)


def read_config(channel: socket.socket) -> WorkerConfig:
    """Read the configuration; EOFError if the server is gone."""
    data = b""
    while not data.endswith(b"\n"):
        more = channel.recv(64 * 1024)
        if not more or len(data) > CONFIG_BYTES:
            raise EOFError("the server closed the channel before the configuration was read")
        data += more
    return WorkerConfig.from_line(data)
