"""The environment that a server serves to be judged: its runs can be counted and held up.

Theory of operation
-------------------
Whether something ran twice can be told only by what runs.  So the cases ask for
rollouts that count themselves: each start, and how it ended, is one byte
appended to a file of its key, and another rollout reads the file.  Workers of
one server share the folder, and what a killed worker had written is still
there.  A rollout that waits looks for a file, which another one makes.

The same few operations are what a server of another make has to offer;
``docs/conformance.md`` has them as a contract, and :data:`OPERATIONS` by name.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, final

import trio

from ...core.errors import ConfigError
from ...envs.interface import Rollout

CONTRACT: Final = 1
"""Version of what the cases and this environment have agreed on."""

OPERATIONS: Final = ("about", "count", "open", "echo", "wait", "fail", "die")
"""The operations that an input's ``op`` may name; the first three do not count as starts."""

MARKS: Final = {"s": "started", "r": "results", "e": "errors", "c": "cancelled"}
"""The bytes of a key's file, and what they count."""

POLL_S: Final = 0.01
POLL_MOST_S: Final = 0.1
"""Between two looks for a gate: the longer it has waited, the fewer, since a full
window of requests may wait."""
WAIT_S: Final = 30.0
"""How long a rollout waits at most, so that a case that broke off leaves nothing."""


@final
class Conformance:
    """The environment for ``trio-envserve conform``.

    ``directory`` is where the workers share their counts; it is made if it is not
    there, and grows by a small file for each key.  ``die`` is whether rollouts may
    kill their worker: False for a server without worker processes, which would
    die itself; the cases that need it are then skipped.

    Raises :class:`ConfigError` if the folder cannot be made.
    """

    name = "conformance"
    backend = "trio"

    def __init__(self, directory: str | os.PathLike[str], die: bool = True) -> None:
        self.directory = Path(directory).absolute()
        self._operations = [each for each in OPERATIONS if die or each != "die"]
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"conformance: {error}") from error

    async def run_rollout(self, rollout: Rollout) -> dict[str, Any]:
        """Do what the input says; see the page."""
        asked = rollout.input
        operation = asked.get("op") if isinstance(asked, Mapping) else None
        if operation not in self._operations:
            raise ValueError(f"op must be one of {', '.join(self._operations)}, not {operation!r}")
        if operation == "about":
            return {"conformance": CONTRACT, "operations": list(self._operations)}
        key = asked["key"]
        if operation == "count":
            return self._counts(key)
        if operation == "open":
            self._file("gate", key).touch()
            return {}
        started = self._begin(key)
        try:
            value = await self._do(operation, key, started, asked)
        except Exception:
            self._mark(key, "e")
            raise
        except BaseException:
            self._mark(key, "c")
            raise
        self._mark(key, "r")
        return {
            "op": operation, "key": key, "started": started, "value": value,
            "run": secrets.token_hex(8), "state": {"op": operation, "key": key},
        }  # fmt: skip

    async def _do(self, operation: str, key: str, started: int, asked: Mapping[str, Any]) -> Any:
        """The operation itself; ``started`` is which start of the key this is."""
        match operation:
            case "fail" if started <= asked.get("times", started):
                raise ValueError(f"as told: {key}")
            case "die" if started <= asked.get("times", started):
                os.kill(os.getpid(), signal.SIGKILL)
                await trio.sleep_forever()
            case "wait":
                with trio.CancelScope(shield=bool(asked.get("stubborn", False))):
                    await self._wait(key, asked.get("seconds", WAIT_S))
                await trio.lowlevel.checkpoint()  # where the stubborn learn of it at last
        return asked.get("value")

    async def _wait(self, key: str, seconds: float) -> None:
        gate = self._file("gate", key)
        pause_s = POLL_S
        with trio.move_on_after(min(seconds, WAIT_S)):
            while not gate.exists():  # noqa: ASYNC110  # another process makes it
                await trio.sleep(pause_s)
                pause_s = min(pause_s * 1.1, POLL_MOST_S)

    # -- counting --------------------------------------------------------------

    def _begin(self, key: str) -> int:
        self._mark(key, "s")
        return self._counts(key)["started"]

    def _counts(self, key: str) -> dict[str, int]:
        try:
            marks = self._file("runs", key).read_text("ascii")
        except FileNotFoundError:
            marks = ""
        return {name: marks.count(mark) for mark, name in MARKS.items()}

    def _mark(self, key: str, mark: str) -> None:
        """One byte at the end of the file: whole, whatever happens next."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(self._file("runs", key), flags, 0o644)
        try:
            os.write(descriptor, mark.encode("ascii"))
        finally:
            os.close(descriptor)

    def _file(self, kind: str, key: str) -> Path:
        name = hashlib.blake2b(str(key).encode(), digest_size=16).hexdigest()
        return self.directory / f"{kind}-{name}"
