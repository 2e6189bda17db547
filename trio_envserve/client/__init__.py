"""The client: calls that run at most once, however often they are sent."""

from .outcome import Outcome
from .shell import Client, open_client

__all__ = ["Client", "Outcome", "open_client"]
