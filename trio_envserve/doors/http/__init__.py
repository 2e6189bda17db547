"""The HTTP door: rollouts by ``POST``.  Needs the extra ``http``."""

try:
    import h11 as _h11
except ImportError as _missing:
    raise ImportError(
        "the HTTP door needs an extra: pip install 'trio-envserve[http]'"
    ) from _missing

from ..limits import HttpLimits
from .opening import HttpDoor, open_http_door

__all__ = ["HttpDoor", "HttpLimits", "open_http_door"]

del _h11
