"""The first message to a worker: its id, its environment and its limits.

Frames: the incarnation, the header (:class:`~trio_envserve.core.messages.Start`), and
a body, a record in CBOR, which the protocol document describes.
"""

from __future__ import annotations

import dataclasses
import json
import socket
from collections.abc import Mapping
from typing import Any

import cbor2

from ..core import messages
from ..core.errors import ConfigError, ProtocolError
from ..core.limits import (
    MIB,
    PROTOCOL_VERSION,
    ServerLimits,
    ToldTo,
    WireLimits,
    limits_of_peer,
    limits_to_tell,
)
from ..core.terms import Incarnation
from ..net.framing import READ_BYTES, Decoder, FrameLimits

_DEPTH = 1_200
"""How deep arguments may be nested: as deep as in JSON, by which they are checked."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Everything a worker needs to know."""

    worker: str
    incarnation: Incarnation
    environment: str | None
    """Name of the environment; None with a command that knows its own."""
    args: dict[str, Any]
    server: str
    """The server's address, for titles and logs."""
    limits: ServerLimits
    """Its server's limits, as far as a worker is told them."""
    wire: WireLimits
    path: list[str]
    """The server's ``sys.path``, so that workers can import whatever the server can."""
    logging: dict[str, Any]
    """Arguments of :class:`~trio_envserve.logs.LogSetup`, or empty."""
    otlp: dict[str, Any] | None = None
    """Arguments of :class:`~trio_envserve.otlp.OtlpSetup`, if spans are to be sent."""
    keep_path: bool = False
    """The worker has an interpreter of its own, and ``path`` goes before what that has."""

    def to_frames(self) -> tuple[bytes, bytes, bytes]:
        """The message; :func:`check_args` finds arguments that it cannot carry."""
        python: dict[str, Any] = {"path": self.path, "logging": self.logging}
        if self.otlp is not None:
            python["otlp"] = self.otlp
        if self.keep_path:
            python["keep_path"] = True
        body = {
            "environment": self.environment,
            "args": self.args,
            "server": self.server,
            "limits": limits_to_tell(self.limits, ToldTo.WORKER),
            "wire": dataclasses.asdict(self.wire),
            "python": python,
        }
        header = messages.encode(messages.Start(PROTOCOL_VERSION, self.worker))
        return self.incarnation, header, cbor2.dumps(body)

    @classmethod
    def from_frames(cls, frames: list[bytes | memoryview]) -> WorkerConfig:
        """Read the message.  Raises ProtocolError if it is another one."""
        start = messages.decode(frames[1], most_bytes=1 * MIB)
        if not isinstance(start, messages.Start) or len(frames) != 3:
            raise ProtocolError(f"the first message is {type(start).__name__}, not Start")
        body = cbor2.loads(bytes(frames[2]), max_depth=_DEPTH)
        return cls(
            worker=start.worker,
            incarnation=bytes(frames[0]),
            environment=body["environment"],
            args=body["args"],
            server=body["server"],
            limits=limits_of_peer(body["limits"], ToldTo.WORKER),
            wire=WireLimits(**body["wire"]),
            **body["python"],
        )


def check_args(args: Mapping[str, Any]) -> None:
    """Raise ConfigError if a worker process would not get exactly these arguments."""
    for name, value in args.items():
        try:
            text = json.dumps({name: value}, ensure_ascii=False).encode()
            back: Any = json.loads(text)[name]
        except (TypeError, ValueError, RecursionError, KeyError) as error:
            raise ConfigError(
                f"args[{name!r}] cannot be sent to a worker process: {error}"
            ) from None
        if repr(back) != repr(value):  # repr distinguishes True from 1, and takes nan for nan
            raise ConfigError(
                f"args[{name!r}], {value!r:.100}, would reach a worker process as {back!r:.100}: "
                "give what JSON has (str, int, float, bool, None, lists, dicts with str keys)"
            )


def read_config(link: socket.socket) -> WorkerConfig:
    """Wait for the first message.  Raises EOFError if the server is gone.

    Nothing comes after it before the worker's hello.
    """
    # A parent is trusted: whatever it sends is taken.
    whole = FrameLimits(frame_bytes=2**40, message_bytes=2**40, frames=3)
    decoder = Decoder(whole)
    while True:
        view = decoder.buffer()
        if view is None:
            data = link.recv(READ_BYTES)
            size = len(data)
            decoder.feed(data)
        else:
            size = link.recv_into(view)
            decoder.received(size)
        if not size:
            raise EOFError("the server closed the link before the first message was read")
        if found := decoder.take(1):
            return WorkerConfig.from_frames(found[0])
