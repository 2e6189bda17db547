"""The finding of a judge."""

from __future__ import annotations

from typing import Self


class Violation(str):
    """A guarantee that did not hold: a line for people, and its parts."""

    guarantee: str
    """Its name: ``G1``, say, or ``at most once``."""
    at_s: float
    """When, in seconds since the run began."""
    text: str
    """What happened, for people."""
    key: str
    """The request that it happened to, or the empty string."""

    def __new__(cls, guarantee: str, at_s: float, text: str, key: str = "") -> Self:
        """The line is made of the parts."""
        self = super().__new__(cls, f"{guarantee} at {at_s:.3f} s: {text}")
        self.guarantee, self.at_s, self.text, self.key = guarantee, at_s, text, key
        return self
