"""The client: its calls run at most once, however often they are sent.

The client for asyncio is in ``aio``, and is imported by who needs it.
"""

from .opening import open_client
from .options import CallOptions
from .outcome import Outcome
from .plain import PlainClient, PlainOutcomes
from .shell import Arrays, Client, KeyEnded, Outcomes

__all__ = [
    "Arrays", "CallOptions", "Client", "KeyEnded", "Outcome", "Outcomes", "PlainClient",
    "PlainOutcomes", "open_client",
]  # fmt: skip
