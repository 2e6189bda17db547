"""Checks of what environment code leaves behind in the task that ran it."""

from __future__ import annotations

import contextvars

import trio


def innermost_scope(task: trio.lowlevel.Task) -> object:
    """A token of a task's innermost open cancel scope.

    trio has no public name for it.  A scope that is left open is seen when the one around it
    is closed, too; but one for each execution costs more than an empty rollout.
    """
    return task._cancel_status


def is_clean(task: trio.lowlevel.Task, context: contextvars.Context, scope: object) -> bool:
    """Whether an execution has left the task unchanged: no nursery, no context variable, and
    no open scope inside ``scope`` (:func:`innermost_scope`, from before it)."""
    if innermost_scope(task) is not scope or task.child_nurseries:
        return False
    if len(task.context) != len(context):
        return False
    # By identity: values may compare by code of their own.
    return all(task.context.get(name, context) is value for name, value in context.items())
