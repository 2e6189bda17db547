"""What environment code leaves behind in the task that ran it."""

from __future__ import annotations

import contextvars

import trio


def is_clean(task: trio.lowlevel.Task, context: contextvars.Context) -> bool:
    """Whether an execution has left the task unchanged: no nursery, no context variable."""
    if task.child_nurseries or len(task.context) != len(context):
        return False
    # By identity: values may compare by code of their own.
    return all(task.context.get(name, context) is value for name, value in context.items())
