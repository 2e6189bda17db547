"""The limits of the client that a door is to its server."""

from __future__ import annotations

from ..core.limits import ClientLimits

CLIENT_LIMITS = ClientLimits(idle_ping_s=ClientLimits().ping_s)
"""A door tells others whether its server is ready, and so asks as often while nobody calls."""
