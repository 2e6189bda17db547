"""The stacks of a worker's executions, for people."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

import trio

REQUEST = "request "
"""How the name of an execution's task begins."""

FRAMES_MOST = 20
"""How many of the innermost frames of a task are shown."""


def describe_requests(task: trio.lowlevel.Task) -> str:
    """The stack of each execution below this task, and of the tasks that they have started."""
    return "".join(
        f"{each.name} stands here:\n{_stacks(each)}"
        for each in _below(task) if each.name.startswith(REQUEST)
    )  # fmt: skip


def _below(task: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield child
            yield from _below(child)


def _stacks(task: trio.lowlevel.Task) -> str:
    texts = []
    for each in (task, *_below(task)):
        stack = traceback.StackSummary.extract(each.iter_await_frames())
        texts += stack[-FRAMES_MOST:]
    return "".join(traceback.format_list(texts))
