"""The door for verifiers: its clients ask this server as they would ask their own.  Needs the
extra ``verifiers``."""

try:
    import msgpack as _msgpack
except ImportError as _missing:
    raise ImportError(
        "the door for verifiers needs an extra: pip install 'trio-envserve[verifiers]'"
    ) from _missing

from ..limits import VerifiersLimits
from .opening import VerifiersDoor, open_verifiers_door

__all__ = ["VerifiersDoor", "VerifiersLimits", "open_verifiers_door"]

del _msgpack
