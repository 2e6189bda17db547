"""The folder and the processes of a rollout, which are gone when its attempt is over."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, final

from ..carrier import WorkCarrier
from ..commands import (
    PIECE_BYTES,
    CommandRun,
    CompletedProcess,
    encoded,
    input_of,
    variables_of,
    words_of,
)
from ..core.errors import EnvServeError

MOST_BYTES = 1 << 20
"""Default of the most bytes of output."""
TAIL_BYTES = 1 << 16
"""Most bytes of standard error that a running process keeps, the last ones."""

_SIGNALS = 64
"""Largest signal number."""


class ProcessError(EnvServeError):
    """Raised if a process of a rollout did not start, or not end as it should."""


@final
class ProcessNotStarted(ProcessError):
    """Raised if a process could not be started."""

    code = "process-not-started"

    def __init__(self, text: str, errno: int = 0) -> None:
        super().__init__(text)
        self.errno = errno
        """The system's error number."""


@final
class ProcessFailed(ProcessError):
    """Raised with ``check=True`` if a process ended with another return code than 0."""

    code = "process-failed"

    def __init__(self, text: str, completed: CompletedProcess | None = None) -> None:
        super().__init__(text)
        self.completed = completed
        """The process and its outputs; None if :meth:`RolloutProcess.wait` raised the error."""


@final
class ProcessTimeout(ProcessError):
    """Raised if a process did not end within its ``timeout_s``, and was killed."""

    code = "process-timeout"

    def __init__(self, text: str, completed: CompletedProcess) -> None:
        super().__init__(text)
        self.completed = completed
        """The process and its outputs until then."""


class ProcessCommand(NamedTuple):
    """A process to start."""

    words: tuple[bytes, ...]
    stdin: Literal["pipe", "null"]
    stdout: Literal["pipe", "null"]
    stderr: Literal["pipe", "stdout", "null"]
    cwd: bytes | None
    """Its directory; None: the folder of the rollout."""
    env: Mapping[bytes, bytes | None]
    """Variables in addition to the worker's; None takes one of these away."""

    @property
    def name(self) -> str:
        """The first word, for people."""
        return os.fsdecode(self.words[0])[:200]


class LoopProcess(Protocol):
    """A process on the worker's loop.  :class:`RolloutProcess` documents its methods."""

    pid: int
    returncode: int | None
    tail: bytes

    async def send(self, data: bytes) -> None: ...  # noqa: D102
    async def end_input(self) -> None: ...  # noqa: D102
    async def receive(self, most_bytes: int) -> bytes: ...  # noqa: D102
    async def receive_line(self, most_bytes: int) -> bytes: ...  # noqa: D102
    async def wait(self, check: bool) -> int: ...  # noqa: D102
    def send_signal(self, number: int) -> None: ...  # noqa: D102
    def end(self) -> None:
        """Have all killed, without waiting."""
        ...

    async def aclose(self) -> None:
        """Have all killed, and wait for that."""
        ...


class RolloutMaker(Protocol):
    """Makes the folder and the processes of a rollout, on the worker's loop."""

    def folder(self) -> Path:
        """The folder of the rollout; in any thread.  Raises RuntimeError, OSError."""
        ...

    async def start(self, command: ProcessCommand) -> LoopProcess:
        """Start a process.  Raises :class:`ProcessNotStarted`."""
        ...

    async def run(self, command: ProcessCommand, how: CommandRun) -> CompletedProcess:
        """Run a process to its end.  Raises :class:`ProcessError`."""
        ...


class _Process:
    """A process of a rollout, with all its descendants."""

    def __init__(self, process: LoopProcess, carrier: WorkCarrier) -> None:
        self._process = process
        self._carrier = carrier

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit status; ``-N`` if signal N has ended it; None while it runs."""
        return self._process.returncode

    @property
    def stderr(self) -> bytes:
        """Last bytes of standard error so far (with ``stderr="pipe"``)."""
        return self._process.tail

    def kill(self, number: int = 9) -> None:
        """Send a signal to the process and to its process group; nothing if it has ended.  Raises
        ValueError.

        Args:
            number: Number of the signal; SIGKILL by default.
        """
        if not 0 < number <= _SIGNALS:
            raise ValueError(f"a signal has a number from 1 to {_SIGNALS}, not {number!r}")
        self._carrier.soon(partial(self._process.send_signal, int(number)))


@final
class RolloutProcess(_Process):
    """A process that a rollout has started (trio and asyncio)."""

    async def send(self, data: bytes | str) -> None:
        """Write to standard input.  Raises ``BrokenPipeError`` if nobody reads that.

        Args:
            data: The bytes or text to write, all of it.
        """
        await self._carrier.call(partial(self._process.send, input_of(data)))

    async def end_input(self) -> None:
        """Close standard input."""
        await self._carrier.call(self._process.end_input)

    async def receive(self, most_bytes: int = PIECE_BYTES) -> bytes:
        """Next bytes of standard output; ``b""`` at its end.  A process whose output nobody
        receives waits once the pipe is full.

        Args:
            most_bytes: Most bytes that are returned.
        """
        received: bytes = await self._carrier.call(partial(self._process.receive, most_bytes))
        return received

    async def receive_line(self, most_bytes: int = MOST_BYTES) -> bytes:
        """Next line of standard output, newline included; at the end the rest, and then ``b""``.
        Raises ``ValueError`` for a longer line.

        Args:
            most_bytes: Most bytes of a line.
        """
        line: bytes = await self._carrier.call(partial(self._process.receive_line, most_bytes))
        return line

    async def wait(self, *, check: bool = False) -> int:
        """Wait for the end of the process, and return its ``returncode``.  Its descendants may go
        on until the block ends.

        Args:
            check: Raise ``ProcessFailed`` if the return code is not 0.
        """
        code: int = await self._carrier.call(partial(self._process.wait, check))
        return code


@final
class BlockingProcess(_Process):
    """A process that a rollout in a thread has started.  Its methods may be called in any thread
    that the environment starts, and raise :class:`RolloutCancelled`."""

    def send(self, data: bytes | str) -> None:
        """Like ``RolloutProcess.send``."""
        self._carrier.call_sync(partial(self._process.send, input_of(data)))

    def end_input(self) -> None:
        """Like ``RolloutProcess.end_input``."""
        self._carrier.call_sync(self._process.end_input)

    def receive(self, most_bytes: int = PIECE_BYTES) -> bytes:
        """Like ``RolloutProcess.receive``."""
        received: bytes = self._carrier.call_sync(partial(self._process.receive, most_bytes))
        return received

    def receive_line(self, most_bytes: int = MOST_BYTES) -> bytes:
        """Like ``RolloutProcess.receive_line``."""
        line: bytes = self._carrier.call_sync(partial(self._process.receive_line, most_bytes))
        return line

    def wait(self, *, check: bool = False) -> int:
        """Like ``RolloutProcess.wait``."""
        code: int = self._carrier.call_sync(partial(self._process.wait, check))
        return code


@final
class ProcessBlock:
    """A process for a block of code, made by :meth:`~.interface.Rollout.process`."""

    def __init__(self, carrier: WorkCarrier, maker: RolloutMaker, command: ProcessCommand) -> None:
        self._carrier = carrier
        self._start = partial(maker.start, command)
        self._process: LoopProcess | None = None

    async def __aenter__(self) -> RolloutProcess:
        self._once()
        self._process = process = await self._carrier.call(self._start, lambda made: made.end())
        return RolloutProcess(process, self._carrier)

    async def __aexit__(self, *error: object) -> None:
        if self._process is not None:
            self._carrier.soon(self._process.end)  # also where the rollout is cancelled
            # A cancelled caller need not wait: the end is under way.
            await self._carrier.call(self._process.aclose)  # noqa: ASYNC102

    def __enter__(self) -> BlockingProcess:
        self._once()
        self._process = process = self._carrier.call_sync(self._start)
        return BlockingProcess(process, self._carrier)

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            self._carrier.soon(self._process.end)
            self._carrier.call_sync(self._process.aclose)

    def _once(self) -> None:
        if self._process is not None:
            raise RuntimeError("a process is started once: call rollout.process() again")


# -- checks ---------------------------------------------------------------------------


def command_of(
    words: Sequence[str | os.PathLike[str]], *, stdin: str = "pipe", stdout: str = "pipe",
    stderr: str, cwd: str | os.PathLike[str] | None, env: Mapping[str, str | None] | None,
) -> ProcessCommand:  # fmt: skip
    """A command, checked.  Raises TypeError or ValueError."""
    for name, value, known in (
        ("stdin", stdin, ("pipe", "null")), ("stdout", stdout, ("pipe", "null")),
        ("stderr", stderr, ("pipe", "stdout", "null")),
    ):  # fmt: skip
        if value not in known:
            raise ValueError(f"{name} is {' or '.join(map(repr, known))}, not {value!r:.80}")
    return ProcessCommand(
        words_of(words), stdin, stdout, stderr,  # type: ignore[arg-type]  # one of the known ones
        None if cwd is None else encoded(cwd, "cwd"), variables_of(env),
    )  # fmt: skip
