"""Logs on disk, as the demonstration and the soak write and follow them.

Theory of operation
-------------------
Whoever acts writes down what it does, a line before or after, in one ``write``
call to a file opened for appending: so lines of several processes never mix,
and what is written stays written whoever is killed next.  The environment's own
log is followed while it grows, and with it the processes that write it: whether
one has ended is the kernel's word (:mod:`~trio_envserve.envs.witness`).
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from ..core.errors import ConfigError
from ..envs.witness import is_dead
from ..retrylab.judges import Kind


def prepared(directory: Path, names: Sequence[str]) -> Path:
    """The folder with these logs, empty, by a path that holds in other processes too.
    Raises ConfigError if it has one of them already, or cannot be written to."""
    directory = directory.resolve()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any((directory / name).exists() for name in names):
            raise ConfigError(f"{directory} has the logs of an earlier run; give an empty folder")
        for name in names:
            (directory / name).touch()
    except OSError as error:
        raise ConfigError(f"cannot keep logs in {directory}: {error.strerror}") from error
    return directory


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

    def sync(self) -> None:
        """All lines are on the disk."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """No more lines."""
        os.close(self._descriptor)


@final
class EventLog:
    """Appends events to a file, which may be that of other processes too: each in one
    ``write``, so lines never mix, and stay written whoever is killed next."""

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o644)

    def write(self, kind: Kind, actor: str, request: str = "", **what: Any) -> None:
        """One event, now."""
        line = {
            "at_s": time.monotonic(), "kind": kind, "actor": actor, "request": request,
            "what": what,
        }  # fmt: skip
        os.write(self._descriptor, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        """No more events."""
        os.close(self._descriptor)


@final
class Lives:
    """Follows the events of a run, and watches the processes of its environment die."""

    def __init__(self, path: Path) -> None:
        self.running: dict[str, set[str]] = {}
        """Executions of each process that is not dead."""
        self.dead: set[str] = set()
        self._path = path
        self._offset = 0
        self._alive: dict[str, tuple[int, float]] = {}
        """By process: its id, and the last moment at which it was seen not to have ended."""

    def look(self, log: EventLog) -> None:
        """Take in what is new; a ``died`` event for each process that has ended."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for text in whole.splitlines():
            if b'"began"' in text or b'"ended"' in text:
                self._see(json.loads(text))
        for process, (pid, alive_s) in list(self._alive.items()):
            asked_s = time.monotonic()
            if is_dead(f"{self._path}.lives", process):
                del self._alive[process]
                self.running.pop(process, None)
                self.dead.add(process)
                log.write("died", process, pid=pid, alive_s=alive_s)
            else:
                self._alive[process] = pid, asked_s

    def _see(self, event: dict[str, Any]) -> None:
        process, what = event["actor"], event["what"]
        if process in self.dead:
            return  # it wrote this before its death was seen
        match event["kind"]:
            case "began":
                # It wrote the line, so it was alive then.
                self._alive.setdefault(process, (what["pid"], event["at_s"]))
                self.running.setdefault(process, set()).add(what["execution"])
            case "ended":
                self.running.get(process, set()).discard(what["execution"])


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
        if "key" not in line:
            return  # asked for without one: nothing is said of the process that runs it
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

    def living(self) -> int:
        """How many keys have been begun, by processes not seen to have ended, and not ended."""
        return sum(len(life.living) for life in self.lives.values() if not life.dead)

    def all_dead(self) -> bool:
        """Whether every process that ever wrote has been seen to have ended."""
        return all(life.dead for life in self.lives.values())
