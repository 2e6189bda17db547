"""The stacks of a worker's executions, for people.

Any thread may read them, also while the loop runs or is blocked: a task that goes on meanwhile
is shown somewhere on its way.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import trio

from ..core.stack_frames import authors_line, is_authors
from ..redaction import redacted

REQUEST = "request "
"""Prefix of the names of executions' tasks."""

ASYNCIO_THREAD = "trio-envserve-asyncio"
"""The name of the thread in which their loop runs."""

ASYNCIO_TASKS: dict[asyncio.Task[None], str] = {}
"""The tasks of asyncio in which executions run, with the names of the executions' own.

Global, as what reads it looks at all tasks and threads of the process, from a thread that
knows no runner; each task is taken out by the backend that has put it in."""

TREE_CHARACTERS = 12_000
"""The tree of an execution's tasks goes no further."""

FRAMES_MOST = 20
"""Most frames of a task that are shown."""
OWN_FRAMES_MOST = 10
"""Most frames of the author's code among them, the innermost ones."""


def describe_requests(task: trio.lowlevel.Task) -> str:
    """The stack of each execution below this task, and of the tasks that they have started."""
    texts = (
        f"{each.name} stands here:\n{_stacks(each)}"
        for each in tasks_below(task) if each.name.startswith(REQUEST)
    )  # fmt: skip
    return redacted("".join(texts))


def request_name() -> str:
    """The name of the execution's task to which the present task belongs; empty outside."""
    task: trio.lowlevel.Task | None = trio.lowlevel.current_task()
    while task is not None and not task.name.startswith(REQUEST):
        task = None if task.parent_nursery is None else task.parent_nursery.parent_task
    return "" if task is None else task.name


def tasks_below(task: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
    """The tasks that this one has started, each before those that it has started itself."""
    waiting = _started_by(task)
    while waiting:
        each = waiting.pop()
        yield each
        waiting += _started_by(each)


def _started_by(task: trio.lowlevel.Task) -> list[trio.lowlevel.Task]:
    return [child for nursery in task.child_nurseries for child in nursery.child_tasks]


def _stacks(task: trio.lowlevel.Task) -> str:
    tasks = (task, *tasks_below(task))
    return "".join(_shown(each.iter_await_frames()) for each in tasks)


def _shown(frames: Iterable[tuple[FrameType, int]]) -> str:
    """Frames as text, from the author's first one on: before it stands only what calls it.
    Where there are too many, the author's are shown before others."""
    stack = list(traceback.StackSummary.extract(iter(frames)))
    own = [number for number, each in enumerate(stack) if is_authors(each.filename)]
    first = own[0] if own else 0
    if len(stack) - first <= FRAMES_MOST:
        return "".join(traceback.format_list(stack[first:]))
    above = own[-OWN_FRAMES_MOST:]
    begin = max(len(stack) - FRAMES_MOST + len(above), above[-1] + 1 if above else 0)
    left_out = begin - first - len(above)
    lines = traceback.format_list([stack[number] for number in above])
    lines += [f"  ({left_out} frames are left out)\n"] if left_out else []
    return "".join(lines + traceback.format_list(stack[begin:]))


def describe_request(root: trio.lowlevel.Task, request: str, loop_thread: int | None = None) -> str:
    """Where the execution of a request stands: the tasks that it has, as a tree, and the
    threads and tasks of asyncio in which its code runs.  ``root``: a task above it.
    ``loop_thread``: that of the loop, if it is late; it may be this execution that holds it."""
    name = f"{REQUEST}{request}"
    parts: list[str] = []
    if loop_thread is not None:
        parts.append("the event loop is late, and stands here:\n" + _frames(loop_thread))
    for task in tasks_below(root):
        if task.name == name:
            parts.append("tasks of trio:\n" + _tree(task))
    parts += [f"thread:\n{stack}" for stack in _of_threads(name)]
    of_asyncio = list(_of_asyncio(name))
    if of_asyncio:
        parts += of_asyncio
        loops = _of_threads(ASYNCIO_THREAD)
        parts += [f"the loop of asyncio stands here:\n{stack}" for stack in loops]
    text = "\n".join(parts)
    own = authors_line(text)
    if own:
        text = f"the environment's code stands here:\n  {own}\n\n{text}"
    return redacted(text) or f"{name} has no task here: it has not begun, or it has ended\n"


def _tree(task: trio.lowlevel.Task) -> str:
    lines: list[str] = []
    left = TREE_CHARACTERS
    waiting = [(task, 0)]
    while waiting:
        each, depth = waiting.pop()
        if left <= 0:
            lines.append(f"and {len(waiting) + 1} tasks more, with those below them\n")
            break
        text = f"{each.name}\n{_shown(each.iter_await_frames())}"
        left -= len(text)
        lines += [f"{'  ' * min(depth, 20)}{line}\n" for line in text.splitlines()]
        waiting += [(child, depth + 1) for child in _started_by(each)]
    return "".join(lines)


def _of_threads(name: str) -> list[str]:
    """The stacks of the threads of this name that have begun."""
    threads = [each for each in threading.enumerate() if each.name == name]
    return [_frames(each.ident) for each in threads if each.ident is not None]


def _frames(thread: int) -> str:
    """The innermost frames of a thread."""
    frame: FrameType | None = sys._current_frames().get(thread)
    return _shown(reversed(list(traceback.walk_stack(frame)))) if frame is not None else ""


def _of_asyncio(name: str) -> Iterator[str]:
    """The tasks of asyncio of a request."""
    for task, request in list(ASYNCIO_TASKS.items()):
        if request == name:
            yield f"task of asyncio:\n{_shown(_awaited(task.get_coro()))}"


def _awaited(code: Any) -> Iterator[tuple[FrameType, int]]:
    """The frames of a coroutine or generator, and of what it awaits.  Its loop may run it
    meanwhile; then the last one is where it was called from."""
    while code is not None:
        frame = getattr(code, "cr_frame", None) or getattr(code, "gi_frame", None)
        if frame is not None:
            yield frame, frame.f_lineno
        code = getattr(code, "cr_await", None) or getattr(code, "gi_yieldfrom", None)
