"""The client: its calls run at most once, however often they are sent."""

from .options import CallOptions
from .outcome import Outcome
from .shell import Arrays, Client, open_client

__all__ = ["Arrays", "CallOptions", "Client", "Outcome", "open_client"]
