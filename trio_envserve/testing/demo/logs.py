"""What the demonstration writes to disk, and how it follows what others write."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any, final

from ...core import values
from ...core.errors import ProtocolError
from ...core.limits import WireLimits
from ...core.messages import Outcome, Refused, Request, Sync, Synced, decode
from ...envs.witness import is_dead
from ...net import ConnectionEvent, Message

_LIMITS = WireLimits()
RequestId = tuple[bytes, int]
"""Session and sequence."""


@final
class JsonLog:
    """Appends JSON lines to a file, each with the moment it was written."""

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o644)

    def write(self, event: str, **fields: Any) -> None:
        """One line with ``event``, ``monotonic`` and the fields; one ``write`` call."""
        line = {"event": event, "monotonic": time.monotonic(), **fields}
        os.write(self._descriptor, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        """No more lines."""
        os.close(self._descriptor)


@final
class CallerTap:
    """Writes down what one caller's socket sends and receives, as far as the
    judge wants it: requests, outcomes, refusals, pings and their answers, and
    the beginning and end of connections.

    ``received`` is filled with the ids of all outcomes that came.
    """

    def __init__(self, caller: int, log: JsonLog, received: set[RequestId]) -> None:
        self._caller = caller
        self._log = log
        self._received = received
        self._keys: dict[RequestId, str] = {}

    def _write(self, event: str, session: bytes, **fields: Any) -> None:
        self._log.write(event, caller=self._caller, session=session.hex(), **fields)

    def sent(self, frames: Message) -> None:
        """A request, with the key in its body, or a ping."""
        match _header(frames):
            case Request(session, sequence):
                key = self._keys.get((session, sequence))
                if key is None:
                    body: Any = values.decode(frames[1], limits=_LIMITS)
                    key = self._keys[session, sequence] = str(body["input"]["key"])
                self._write("request", session, sequence=sequence, key=key)
            case Sync(session) as sync:
                self._write("ping", session, probe=sync.probe)

    def received(self, frames: Message) -> None:
        """An outcome, with a digest of all its bytes, a refusal, or a pong."""
        match _header(frames):
            case Outcome(session, sequence):
                self._received.add((session, sequence))
                digest = hashlib.blake2b(digest_size=16)
                for frame in frames:
                    digest.update(frame)
                self._write("outcome", session, sequence=sequence, digest=digest.hexdigest())
            case Refused(session, sequence, code):
                self._write("refused", session, sequence=sequence, code=code)
            case Synced(session, probe):
                self._write("pong", session, probe=probe)

    def happened(self, event: ConnectionEvent) -> None:
        """A connection that began or ended."""
        if event in (ConnectionEvent.CONNECTED, ConnectionEvent.DISCONNECTED):
            self._log.write(event.value, caller=self._caller)


def _header(frames: Message) -> Any:
    try:
        return decode(frames[0], most_bytes=_LIMITS.header_bytes)
    except ProtocolError:
        return None  # the client will say what it thinks of it


@dataclasses.dataclass(slots=True, eq=False)
class WorkerLife:
    """One worker process, as the environment's log tells of it."""

    process: str
    pid: int
    began_s: float
    """When it wrote its first line (monotonic)."""
    alive_s: float
    """The last moment (monotonic) at which it was seen not to have ended."""
    living: dict[str, float] = dataclasses.field(default_factory=dict)
    """Keys that it began and has not ended, with when they began (monotonic)."""
    dead: bool = False


@final
class EnvironmentLog:
    """Follows the environment's log, and watches the processes that write it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lives: dict[str, WorkerLife] = {}
        """By process name, as they appeared."""
        self._offset = 0

    def read(self) -> None:
        """Take in the lines written since the last call."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return  # nothing has been run yet
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for text in whole.splitlines():
            self._line(json.loads(text))

    def _line(self, line: dict[str, Any]) -> None:
        process, key = line["process"], line["key"]
        life = self.lives.get(process)
        if life is None:
            # It wrote the line, so it was alive then.
            life = WorkerLife(process, line["pid"], line["monotonic"], line["monotonic"])
            self.lives[process] = life
        if line["event"] == "start":
            life.living[key] = line["monotonic"]
        else:
            life.living.pop(key, None)

    def look(self, log: JsonLog) -> EnvironmentLog:
        """Take in what is new, and look which processes have ended: a ``dead``
        line for each that has."""
        self.read()
        for life in self.lives.values():
            if life.dead:
                continue
            asked_s = time.monotonic()
            if is_dead(f"{self.path}.lives", life.process):
                life.dead = True
                log.write("dead", process=life.process, pid=life.pid, alive_s=life.alive_s)
            else:
                life.alive_s = asked_s
        return self

    def all_dead(self) -> bool:
        """Whether every process that ever wrote has been seen to have ended."""
        return all(life.dead for life in self.lives.values())
