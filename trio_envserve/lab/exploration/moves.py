"""Actions by name, and the methods that carry them out."""

from __future__ import annotations

from .moves_of_clients import ClientMoves
from .moves_of_servers import ServerMoves
from .moves_of_workers import WorkerMoves
from .step import Action


class Move(ClientMoves, ServerMoves, WorkerMoves):
    """One action, from a state to the next."""

    def take(self, action: Action) -> None:
        """Do it."""
        name, *where = action
        getattr(self, f"_{name}")(*where)
