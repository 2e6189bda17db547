"""The door for verifiers: its clients ask this server as they would ask their own.  Needs the
extra ``verifiers``."""

from ...extras import needs_extra

try:
    import msgpack as _msgpack
except ImportError as _missing:
    raise ImportError(needs_extra("the door for verifiers", "verifiers")) from _missing

from ..limits import VerifiersLimits
from .opening import VerifiersDoor, open_verifiers_door

__all__ = ["VerifiersDoor", "VerifiersLimits", "open_verifiers_door"]

del _msgpack
