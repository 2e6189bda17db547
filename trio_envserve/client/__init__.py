"""The client: calls that run at most once, however often they are sent."""

from .options import CallOptions
from .outcome import Outcome
from .shell import Client, open_client

__all__ = ["CallOptions", "Client", "Outcome", "open_client"]
