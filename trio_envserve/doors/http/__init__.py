"""The HTTP door: rollouts by ``POST``.  Needs the extra ``http``."""

from ...extras import needs_extra

try:
    import h11 as _h11
except ImportError as _missing:
    raise ImportError(needs_extra("the HTTP door", "http")) from _missing

from ..limits import HttpLimits
from .opening import HttpDoor, open_http_door

__all__ = ["HttpDoor", "HttpLimits", "open_http_door"]

del _h11
