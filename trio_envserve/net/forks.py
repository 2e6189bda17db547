"""What a forked child of this process must not keep.

Theory of operation
-------------------
A program that embeds a server or a client may fork (``os.fork``, ``multiprocessing``).
The child has a copy of every descriptor: of a lock, which is then held for as long as
the child lives, and of our ends of sockets, whose peers then never see the end.  So
what owns such descriptors is remembered here, and :meth:`Forgetful.forget` is called
in each child that Python forks.  (A child that runs another program has none of them:
they are closed by ``exec``.)

Python has one list of such hooks for a process, and none can be taken off it.  So there
is one hook, put there when it is first needed, and a weak set of what it is for.
A child that a library forks in C is not told; see :mod:`~trio_envserve.worker.guard`.
"""

from __future__ import annotations

import os
import weakref
from functools import partial
from typing import Protocol


class Forgetful(Protocol):
    """What owns descriptors."""

    def forget(self) -> None:
        """Called in a forked child: close them, and do nothing with them any more."""
        ...


_owners: weakref.WeakSet[Forgetful] | None = None


def forget_in_children(owner: Forgetful) -> None:
    """Have ``owner.forget()`` called in every child that is forked while it exists."""
    global _owners
    if _owners is None:
        _owners = weakref.WeakSet()
        os.register_at_fork(after_in_child=_forget_all)
    _owners.add(owner)


def _forget_all() -> None:
    for owner in list(_owners or ()):
        owner.forget()


def hide_in_children(*descriptors: int) -> None:
    """In every child, make these ``/dev/null``: for what this process has until it ends.

    They are not closed: a number that is free would be given away again, and then be
    closed by whoever thinks that it is still his.
    """
    os.register_at_fork(after_in_child=partial(_hide, descriptors))


def _hide(descriptors: tuple[int, ...]) -> None:
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in descriptors:
        os.dup2(null, descriptor, inheritable=False)
    os.close(null)
