"""The door for verifiers: its clients ask this server as they would ask their own."""

from .limits import VerifiersLimits

__all__ = ["VerifiersLimits"]
