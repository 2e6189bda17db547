"""The log of a run of real processes: events of :mod:`~trio_envserve.retrylab`, a line each.

Theory of operation
-------------------
All processes of a run write to one file, opened for appending: a line before or after they do
something, in one ``write``.  So lines never mix, what is written stays written whoever is killed
next, and the order of the lines is the order in which they were written.  The log is followed
while it grows, and with it the processes of the environment that write it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from ..client import Outcome
from ..core.errors import ConfigError
from ..retrylab.judges import Kind
from .witness import is_dead


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
class EventLog:
    """Appends events to a file."""

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


@dataclasses.dataclass(slots=True, eq=False)
class LoggedProcess:
    """A process of the environment, as the log tells of it."""

    process: str
    pid: int
    began_s: float
    """When it wrote its first event."""
    alive_s: float
    """The last moment at which it was seen not to have ended."""
    running: dict[str, tuple[str, float]] = dataclasses.field(default_factory=dict)
    """By execution that it began and has not ended: its request, and when it began."""
    dead: bool = False

    @property
    def requests(self) -> set[str]:
        """Requests that it runs, or ran when it died."""
        return {request for request, _ in self.running.values()}


@final
class Lives:
    """Follows the events of a run, and watches the processes of its environment die: whether one
    has ended is the kernel's word (:mod:`~trio_envserve.lab.witness`)."""

    def __init__(self, path: Path) -> None:
        self.all: dict[str, LoggedProcess] = {}
        """By process, as they appeared."""
        self._path = path
        self._offset = 0

    def look(self, log: EventLog) -> None:
        """Take in what is new; a ``died`` event for each process that has ended."""
        self._read()
        for life in self.living:
            asked_s = time.monotonic()
            if is_dead(f"{self._path}.lives", life.process):
                self._read()  # what it wrote before
                life.dead = True
                log.write("died", life.process, pid=life.pid, alive_s=life.alive_s)
            else:
                life.alive_s = asked_s

    @property
    def living(self) -> list[LoggedProcess]:
        """Those that were not seen to have ended."""
        return [life for life in self.all.values() if not life.dead]

    @property
    def running(self) -> int:
        """Number of executions of those that live."""
        return sum(len(life.running) for life in self.living)

    def _read(self) -> None:
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for text in whole.splitlines():
            if b'"began"' in text or b'"ended"' in text:
                self._see(json.loads(text))

    def _see(self, event: dict[str, Any]) -> None:
        process, at_s, what = event["actor"], event["at_s"], event["what"]
        if event["kind"] == "began":
            # It wrote the line, so it was alive then.
            life = self.all.setdefault(process, LoggedProcess(process, what["pid"], at_s, at_s))
            life.running[what["execution"]] = event["request"], at_s
        elif event["kind"] == "ended":
            self.all[process].running.pop(what["execution"], None)


OWN_WORDS = "; servers that were lost"
"""The begin of what a client adds to the message of an outcome that is the server's."""


def told_of(outcome: Outcome) -> dict[str, Any]:
    """All that an outcome says, for a judge: of two that are the same it is the same."""
    error, value = outcome.error, outcome.value if isinstance(outcome.value, dict) else {}
    info = None if error is None else error.info
    text = (info.message if info else str(error or "")).partition(OWN_WORDS)[0]
    said = [
        repr(value), text, outcome.worker, outcome.duration_s, outcome.executions,
        None if info is None else [info.code, info.verdict.name, info.type, info.traceback],
    ]  # fmt: skip
    return {
        "ok": outcome.ok, "execution": value.get("execution"),
        "code": None if error is None else info.code if info else error.code,
        "verdict": None if error is None else error.verdict.name,
        "message": None if error is None else str(error)[:300],
        "said": hashlib.blake2b(json.dumps(said).encode(), digest_size=16).hexdigest(),
    }  # fmt: skip
