"""The release of the wire that a client speaks, found by its messages."""

from __future__ import annotations

from typing import Final

from ...net import Frame
from . import wire_0_4
from .asks import Ask, Wire

WIRES: Final[tuple[Wire, ...]] = (wire_0_4,)
"""All that are spoken here, the newest first."""


def understand(frames: list[Frame]) -> tuple[Wire, Ask] | None:
    """The release and what is asked; None if no release has such messages.  Raises
    NotUnderstood, which the newest release can tell."""
    for wire in WIRES:
        ask = wire.read(frames)
        if ask is not None:
            return wire, ask
    return None
