"""The keys with which a door comes to its server."""

from __future__ import annotations

from ..core.errors import ConfigError
from ..net.keypairs import ClientCurve
from ..server import Server


def keys_of(server: Server | str, given: ClientCurve | None) -> ClientCurve | None:
    """Those of a server of this process, or those that were given for an address.  Raises
    ConfigError for both."""
    if isinstance(server, str):
        return given
    if given is not None:
        raise ConfigError("a server of this process lets its doors in: give no curve")
    return server.curve
