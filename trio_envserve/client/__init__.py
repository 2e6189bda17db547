"""The client: its calls run at most once, however often they are sent.

The client for asyncio is in ``aio``, and is imported by who needs it.
"""

from .opening import open_client
from .options import CallOptions
from .outcome import Outcome
from .plain import PlainClient
from .shell import Arrays, Client, KeyEnded

__all__ = [
    "Arrays",
    "CallOptions",
    "Client",
    "KeyEnded",
    "Outcome",
    "PlainClient",
    "open_client",
]
