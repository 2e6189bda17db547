"""The exceptions of ``open_*`` functions, without the groups of nurseries inside them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unwrap_single() -> Iterator[None]:
    """Undo the wrapping of one nursery, which must be directly inside.

    A trio nursery wraps each exception in a group, so users of an
    ``async with open_...()`` block would find their own ``ValueError`` as
    ``ExceptionGroup([ValueError])``, once for each block.  If the nursery ends
    with exactly one exception, that one is raised instead; with several, the group
    stays.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        if len(group.exceptions) != 1:
            raise
        error = group.exceptions[0]
        context = error.__context__
    else:
        return
    try:
        raise error
    finally:
        # raising has put the group there, which contains the error itself
        error.__context__ = context
        del error, context
