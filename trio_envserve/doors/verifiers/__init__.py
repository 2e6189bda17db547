"""The door for verifiers: its clients ask this server as they would ask their own."""

from .limits import VerifiersLimits
from .opening import VerifiersDoor, open_verifiers_door

__all__ = ["VerifiersDoor", "VerifiersLimits", "open_verifiers_door"]
