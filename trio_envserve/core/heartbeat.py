"""The heartbeat of a worker process: one line of JSON.

``{"lag_s": 0.0, "memory_bytes": 0, "where": ""}``: the lag of the event loop, the resident memory,
and the stack of the loop if it is blocked.  Each field may be left out.  In the other direction of
the same socket a server asks for the stack of an execution (:class:`StackQuestion`); the next
heartbeat then has the fields ``"asked": number, "stack": text``, too.

A process whose interpreter is held sends nothing.  Its host says who holds it in a line of the
same form with the field ``"holder": request``, which is no sign of life.

A line comes from a process in which any code runs, so it is checked like a peer's message: it has
at most :data:`HEARTBEAT_LINE_BYTES`, and every field is checked.  Of lines that arrive together
the last one counts, and before it the answers to questions, :data:`ANSWERS_MOST` lines in all.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any, NamedTuple, final

from .stack_frames import authors_line

HEARTBEAT_LINE_BYTES = 64 * 1024
"""Most bytes of a heartbeat's line; ``where`` and ``stack`` are cut to fit."""

WHERE_BESIDE_STACK = 2048
"""Most characters of ``where`` in a line that also has a stack."""

ANSWERS_MOST = 16
"""Most questions of a server that wait for their answers in a worker's process, and most heartbeats
that are taken of one read."""

HOLDER_CHARACTERS = 200
"""Most characters of the holder of an interpreter."""
AT_CHARACTERS = 600
"""Most characters of the lines at which it may be held."""

STACKS_APART = "\n\n"
"""Between the stacks of several threads, of which one holds the interpreter."""

_MAX = 2**63
"""Bound of the numbers of a heartbeat, exclusive."""


class Heartbeat(NamedTuple):
    """One heartbeat of a worker."""

    lag_s: float = 0.0
    memory_bytes: int = 0
    where: str = ""
    asked: int | None = None
    """Dispatch number of the execution whose stack the server has asked for."""
    stack: str = ""
    """Stack of that execution."""
    holder: str | None = None
    """Request whose code holds the interpreter of a silent process, empty if it is not known;
    ``where`` has the stack.  None in a sign of life."""

    @property
    def held(self) -> str:
        """The holder of the interpreter and its line, for people."""
        lines = [authors_line(stack) for stack in self.where.split(STACKS_APART)]
        at = " or ".join(filter(None, lines))
        by = f" by request {self.holder[:HOLDER_CHARACTERS]}" if self.holder else ""
        return f"its interpreter is held{by}" + (f", at {at[:AT_CHARACTERS]}" if at else "")

    def to_line(self) -> bytes:
        """The heartbeat as it is sent."""
        # JSON makes six bytes of one character, and twelve of one beyond the first plane.
        where = self.where[-HEARTBEAT_LINE_BYTES // 8 :]
        fields: dict[str, Any] = {"lag_s": self.lag_s, "memory_bytes": self.memory_bytes}
        if self.holder is not None:
            fields["holder"] = self.holder[:HOLDER_CHARACTERS]
        fields["where"] = where
        if self.asked is None:
            while len(line := _line({**fields, "where": where})) > HEARTBEAT_LINE_BYTES:
                where = where[len(where) // 2 :]
            return line
        fields |= {"where": where[-WHERE_BESIDE_STACK:], "asked": self.asked}
        stack = self.stack[:HEARTBEAT_LINE_BYTES]
        while len(line := _line({**fields, "stack": stack})) > HEARTBEAT_LINE_BYTES:
            stack = stack[: len(stack) // 2]
        return line


class StackQuestion(NamedTuple):
    """A server's question to a worker's process for the stack of an execution."""

    number: int
    """Number of the execution's dispatch."""
    request: str
    """Id of its request, as logs show it."""

    def to_line(self) -> bytes:
        """The question as it is sent."""
        return _line({"stack": self.number, "request": self.request})

    @classmethod
    def read(cls, data: bytes) -> list[StackQuestion]:
        """The complete questions in the bytes that were read, the last :data:`ANSWERS_MOST`."""
        found = []
        for line in data.split(b"\n")[:-1][-ANSWERS_MOST:]:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                record = json.loads(line)
                found.append(cls(int(record["stack"]), str(record["request"])))
        return found


def _line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode() + b"\n"


@final
class HeartbeatLines:
    """Reads heartbeats from bytes that arrive in pieces."""

    def __init__(self) -> None:
        self._rest = b""
        self._skipping = False
        """Whether the current line is too long and is being skipped."""

    def feed(self, data: bytes) -> list[Heartbeat]:
        """The last complete heartbeat, behind the answers among those before it.  ValueError if it
        is malformed."""
        before, newline, self._rest = (self._rest + data).rpartition(b"\n")
        earlier, _, line = before.rpartition(b"\n")
        too_long = (self._skipping and line == before) or len(line) > HEARTBEAT_LINE_BYTES
        if newline:
            self._skipping = False
        if len(self._rest) > HEARTBEAT_LINE_BYTES:
            self._rest, self._skipping = b"", True
        if not newline:
            return []
        if too_long:
            raise ValueError(f"a line of more than {HEARTBEAT_LINE_BYTES} bytes")
        last = _parsed(line)
        return [*_answers(earlier), last]


def _answers(lines: bytes) -> list[Heartbeat]:
    """The heartbeats with an answer among the last of these lines."""
    found = []
    for line in lines.split(b"\n")[1 - ANSWERS_MOST :]:
        with contextlib.suppress(ValueError):
            heartbeat = _parsed(line)
            if heartbeat.asked is not None:
                found.append(heartbeat)
    return found


def _parsed(line: bytes) -> Heartbeat:
    try:
        record: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {type(error).__name__}") from None
    if type(record) is not dict:
        raise ValueError("not an object")
    heartbeat = Heartbeat(**{name: record[name] for name in Heartbeat._fields if name in record})
    lag_s, memory_bytes, where, asked, stack, holder = heartbeat
    if type(lag_s) not in (int, float) or not 0 <= lag_s < _MAX:
        raise ValueError("lag_s is not a number of seconds")
    if type(memory_bytes) is not int or not 0 <= memory_bytes < _MAX:
        raise ValueError("memory_bytes is not a number of bytes")
    if type(where) is not str:
        raise ValueError("where is not a text")
    if asked is not None and (type(asked) is not int or not 0 <= asked < _MAX):
        raise ValueError("asked is not the number of a dispatch")
    if type(stack) is not str:
        raise ValueError("stack is not a text")
    if holder is not None and type(holder) is not str:
        raise ValueError("holder is not a text")
    return heartbeat._replace(stack=stack.encode("utf-8", "replace").decode())
