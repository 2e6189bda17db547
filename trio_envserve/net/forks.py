"""Descriptors that a forked child of this process must close.

Theory of operation
-------------------
A program that embeds a server or a client may fork (``os.fork``, ``multiprocessing``).
The child has a copy of every descriptor.  So it holds a lock for as long as it lives,
and the peers of our sockets never see their end.  The owners of such descriptors are
remembered here, and :meth:`Forgetful.forget` is called in each child that Python forks.
(A child that runs another program has none of them: ``exec`` closes them.)

Python has one list of such hooks for a process, and no hook can be removed.  So there
is one hook, added when it is first needed, and a weak set of owners.
A child that a library forks in C is not told; see :mod:`~trio_envserve.worker.guard`.
"""

from __future__ import annotations

import os
import weakref
from functools import partial
from typing import Protocol


class Forgetful(Protocol):
    """An owner of descriptors."""

    def forget(self) -> None:
        """Called in a forked child: close the descriptors and never use them again."""
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
    """In every child, make these descriptors ``/dev/null``; this process keeps them until
    it ends.

    They are not closed: a free number would be used again, and an owner that does not
    know would close it then.
    """
    os.register_at_fork(after_in_child=partial(_hide, descriptors))


def _hide(descriptors: tuple[int, ...]) -> None:
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in descriptors:
        os.dup2(null, descriptor, inheritable=False)
    os.close(null)
