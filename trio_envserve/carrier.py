"""How the code of a rollout has work done on the trio loop of its worker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

Work: TypeAlias = Callable[[], Awaitable[Any]]
"""Something to await on the worker's trio loop."""
Undo: TypeAlias = Callable[[Any], object]
"""Takes the value of some work whose caller was cancelled meanwhile."""


class WorkCarrier(Protocol):
    """Has work done on the worker's trio loop, for the code of one execution, wherever that runs:
    on the same loop, on asyncio's, or in a thread."""

    async def call(self, work: Work, undo: Undo | None = None) -> Any:
        """The value of some work, for code on a loop.  Raises ``TypeError`` in a thread."""
        ...

    def call_sync(self, work: Work) -> Any:
        """The value of some work, for code in a thread, which is blocked meanwhile.  Raises
        ``RolloutCancelled``, and ``TypeError`` on a loop."""
        ...

    def soon(self, act: Callable[[], object]) -> None:
        """Call a function on the worker's loop, from anywhere."""
        ...
