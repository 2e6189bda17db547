"""Commands, in a sandbox or not: their words and limits, their outputs, and their end."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import trio

PIECE_BYTES: Final = 1 << 16
"""Most bytes that are read at once; a pipe holds as much."""
PAUSE_S: Final = 0.001
"""Pause after a piece of a flood, in seconds."""
LEFT_BYTES: Final = 1 << 20
"""Most bytes that are read of a pipe once its command has ended: the kernel's bound of a pipe.
Others that have the pipe may write on."""


class CommandRun(NamedTuple):
    """Input and limits of a command that is run to its end."""

    input: bytes
    timeout_s: float
    """Time limit; ``math.inf``: none."""
    most_bytes: int
    """Most bytes kept of each output."""
    check: bool
    """Whether another return code than 0 is an error."""


def input_of(data: Any) -> bytes:
    """What a command reads, checked: text is UTF-8.  Raises TypeError."""
    if isinstance(data, str):
        return data.encode("utf-8", "surrogateescape")
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"the input of a command is bytes or text, not {type(data).__name__}")
    return bytes(data)


def run_of(input: Any, timeout_s: Any, most_bytes: Any, check: Any = False) -> CommandRun:
    """Input and limits, checked.  Raises TypeError or ValueError."""
    data = input_of(input)
    if timeout_s is None:
        timeout_s = math.inf
    for name, value, kinds in (
        ("timeout_s", timeout_s, (int, float)), ("most_bytes", most_bytes, (int,)),
    ):  # fmt: skip
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise TypeError(f"{name} is a number, not {type(value).__name__}")
    if not timeout_s > 0:
        raise ValueError(f"timeout_s is a number above zero, not {timeout_s!r}")
    if most_bytes < 0:
        raise ValueError(f"most_bytes is a number that is not negative, not {most_bytes!r}")
    return CommandRun(data, float(timeout_s), int(most_bytes), bool(check))


def words_of(command: Any) -> tuple[bytes, ...]:
    """The program and its arguments, checked.  Raises TypeError or ValueError."""
    if isinstance(command, (str, bytes, os.PathLike)) or not isinstance(command, Sequence):
        raise TypeError(
            'a command is a list of words, such as ["git", "status"], not '
            f'{type(command).__name__}; for a line of a shell: ["sh", "-c", line]'
        )
    if not command:
        raise ValueError("a command has at least one word, its program")
    return tuple(encoded(word, "a word of a command") for word in command)


def variables_of(env: Mapping[str, str | None] | None) -> dict[bytes, bytes | None]:
    """Environment variables, checked.  Raises TypeError or ValueError."""
    variables = {
        encoded(name, "a variable"): None if value is None else encoded(value, f"env[{name!r}]")
        for name, value in dict(env or {}).items()
    }
    if any(b"=" in name or not name for name in variables):
        raise ValueError("the name of a variable is not empty, and has no '=' in it")
    return variables


def encoded(word: Any, what: str) -> bytes:
    """A word as the system takes it.  Raises TypeError or ValueError."""
    if not isinstance(word, (str, bytes, os.PathLike)):
        raise TypeError(f"{what} is text, bytes or a path, not {type(word).__name__}")
    data = os.fsencode(word)
    if b"\0" in data:
        raise ValueError(f"{what} has a null character")
    return data


class CompletedProcess(NamedTuple):
    """A process of a rollout, or a command in a sandbox, that has ended."""

    returncode: int
    """Exit status; ``-N`` if signal N has ended it, as a limit does by SIGKILL."""
    stdout: bytes
    """Standard output; of a longer one the beginning and the end."""
    stderr: bytes
    """Standard error, kept alike."""
    stdout_cut: int = 0
    """Number of bytes that are left out of the middle of ``stdout``."""
    stderr_cut: int = 0
    """Number of bytes that are left out of the middle of ``stderr``."""
    limit: str = ""
    """Limit at which it was killed: ``timeout`` or ``memory``; empty: none."""

    @property
    def how(self) -> str:
        """The end in words, such as ``it exited with status 1``."""
        if self.limit:
            return f"it was killed at its limit of {_LIMITS.get(self.limit, self.limit)}"
        return describe_exit(self.returncode)

    @property
    def text(self) -> str:
        """Both outputs, and an end that is not status 0, for a model or a person.  Bytes that are
        no UTF-8 are replaced."""
        parts = [_text(self.stdout, self.stdout_cut), _text(self.stderr, self.stderr_cut)]
        if self.limit or self.returncode:
            parts.append(f"[{self.how}]")
        return "\n".join(part.rstrip("\n") for part in parts if part)


def completed(
    returncode: int, stdout: tuple[bytes, int], stderr: tuple[bytes, int], limit: str
) -> CompletedProcess:
    """The end of a command, with its outputs as :meth:`CutOutput.kept` returns them."""
    code = -signal.SIGKILL if limit else returncode
    return CompletedProcess(code, stdout[0], stderr[0], stdout[1], stderr[1], limit)


_LIMITS = {"timeout": "time", "memory": "memory"}


def _text(output: bytes, cut: int) -> str:
    if not cut:
        return output.decode(errors="replace")
    head, tail = output[: len(output) // 2], output[len(output) // 2 :]
    return (
        f"{head.decode(errors='replace')}\n[... {cut} bytes cut ...]\n"
        f"{tail.decode(errors='replace')}"
    )


def describe_exit(returncode: int, meanings: Mapping[int, str] = MappingProxyType({})) -> str:
    """The end of a process, in words.  ``meanings`` are appended to exit statuses."""
    if returncode >= 0:
        return f"it exited with status {returncode}{meanings.get(returncode, '')}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    return f"it was ended by {name}"


class CutOutput:
    """The beginning and the end of what was written: at most ``most`` bytes."""

    def __init__(self, most: int) -> None:
        self._head, self._tail = bytearray(), bytearray()
        self._head_most, self._tail_most = most // 2, most - most // 2
        self._total = 0

    def take(self, piece: bytes) -> None:
        """Add what was written next."""
        self._total += len(piece)
        left = self._head_most - len(self._head)
        self._head += piece[:left]
        self._tail += piece[left:]
        if len(self._tail) > 2 * self._tail_most + PIECE_BYTES:
            self._cut()

    def _cut(self) -> None:
        del self._tail[: max(0, len(self._tail) - self._tail_most)]

    def kept(self) -> tuple[bytes, int]:
        """The bytes that are kept, and the number of those that are not, in their middle."""
        self._cut()
        kept = bytes(self._head + self._tail)
        return kept, self._total - len(kept)

    async def collect(self, stream: trio.abc.ReceiveStream) -> None:
        """Take what comes out of a stream, until it ends or is closed here."""
        with suppress(trio.ClosedResourceError):
            async for piece in stream:
                self.take(bytes(piece))
                # A flood is not the work of this loop.
                if self._total > self._head_most + self._tail_most:
                    await trio.sleep(PAUSE_S)

    def take_left(self, stream: trio.lowlevel.FdStream) -> None:
        """Take what is in a pipe now."""
        for _ in range(LEFT_BYTES // PIECE_BYTES):
            try:
                piece = os.read(stream.fileno(), PIECE_BYTES)
            except BlockingIOError:
                return
            if not piece:
                return
            self.take(piece)


async def feed(stream: trio.abc.SendStream, data: bytes) -> None:
    """Write all of it to a stream, or until nobody reads it, and close that."""
    async with stream:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await stream.send_all(data)


def open_pipe(its_end: int, given: ExitStack) -> tuple[trio.lowlevel.FdStream, int]:
    """A pipe to a command: this side's end, and the number of the other one, which ``given``
    closes.  ``its_end``: 0 if the command reads, 1 if it writes."""
    ends = os.pipe()
    given.callback(os.close, ends[its_end])
    return trio.lowlevel.FdStream(ends[1 - its_end]), ends[its_end]
