"""The frames of the environment author's own code in a stack that a worker has described.

A worker may send any text: a line that is no frame is ignored.
"""

from __future__ import annotations

import re
from types import FunctionType
from typing import Any

AUTHORS_LINE_CHARACTERS = 200
"""Longest text of :func:`authors_line`."""

_FRAME = re.compile(
    r'^[ \t]*File "(?P<path>[^"\n]*)", line \d{1,9}, in (?P<name>.*)$', re.MULTILINE
)
_OURS = re.compile(
    r"/trio_envserve/(?!envs/(?:arithmetic|reasoning_gym)\.py$)"
    r"(?:__init__|__main__|carrier|cli|client|commands|core|doors|envs|evals|extras|file_modules"
    r"|foreign|host|json_values|large_pickles|launchers|logs|models|near|net|options|otlp|pages"
    r"|redaction|regular_files|removal|sandboxes|server|tracing|trainers|turns|worker)(?:/|\.py$)"
)
"""Paths of this package.  The environments that come with it count as an author's, and so does what
is beside it in a folder of its name."""
_LIBRARIES = re.compile(
    r"/site-packages/(?:trio|_?trio_parallel(?:_workers)?|outcome|anyio|sniffio|httpx2?|httpcore2?|h11)/"
    r"|/lib/python3\.\d+/(?!site-packages/)|^<"
)
"""Paths of libraries that stand around an author's code, or that this package calls."""

_TASKS = "tasks of trio:\n"
_LOOP_OF_ASYNCIO = "the loop of asyncio stands here:\n"


def authors_line(stack: str) -> str:
    """The innermost frame of the author's code in a stack, such as
    ``File "env.py", line 7, in step``; empty if the stack has none.

    If the event loop is late because it runs this execution's code, the loop's stack reaches
    further in than the task's, and counts.
    """
    stack = stack.partition(_LOOP_OF_ASYNCIO)[0]
    before, tasks, after = stack.partition(_TASKS)
    loop, own = (_frames(before), _frames(after)) if tasks else ([], _frames(before))
    found = own or loop
    if own and any(_same(own[-1], frame) for frame in loop):
        found = loop
    return found[-1][0].strip()[-AUTHORS_LINE_CHARACTERS:] if found else ""


_DUMPED = re.compile(r'^  (File ".*", line \d+) in (.*)$')


def dumped_stacks(dump: str) -> list[str]:
    """The stacks in what ``faulthandler`` has written, one for each thread, as tracebacks have
    them: the innermost frame last.  That of the main thread is the last one."""
    stacks: list[list[str]] = []
    for line in dump.splitlines():
        if line.endswith("(most recent call first):"):
            stacks.append([])
        elif stacks and (frame := _DUMPED.match(line)):
            stacks[-1].append(f"  {frame[1]}, in {frame[2]}\n")
    return ["".join(reversed(frames)) for frames in stacks]


def authors_part(stack: str) -> str:
    """A stack of frames without their code, from the author's first one on; all of it if it has
    none of those."""
    lines = stack.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if _frames(line):
            return "".join(lines[number:])
    return stack


_OF_A_REQUEST = re.compile(r", in request (\S+)$", re.MULTILINE)


def named(function: Any, name: str) -> Any:
    """A function of Python whose frame has this name in stacks: so they say which request a thread
    runs."""
    code = function.__code__.replace(co_name=name)
    made = FunctionType(
        code, function.__globals__, name, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def holder_in(stacks: list[str]) -> tuple[str, list[str]]:
    """Of the stacks of running threads, those that may hold the interpreter: those of the author's
    code, from that on; and the request in which that is, if there is one such stack."""
    own = [stack for stack in stacks if authors_line(stack)]
    request = _OF_A_REQUEST.search(own[0]) if len(own) == 1 else None
    return request[1] if request else "", [*map(authors_part, own)]


def is_ours(path: str) -> bool:
    """Whether a file is of this package, and not an environment in it, judged by its path: workers
    of other machines and interpreters describe stacks, too."""
    return _OURS.search(path) is not None


def is_authors(path: str) -> bool:
    """Whether a file is code of the environment's author, judged by its path."""
    return not (is_ours(path) or _LIBRARIES.search(path))


def _frames(text: str) -> list[re.Match[str]]:
    return [frame for frame in _FRAME.finditer(text) if is_authors(frame["path"])]


def _same(one: re.Match[str], other: re.Match[str]) -> bool:
    return (one["path"], one["name"]) == (other["path"], other["name"])
