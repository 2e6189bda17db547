"""The keys with which a door comes to its server."""

from __future__ import annotations

import pytest

from trio_envserve import ClientCurve, ConfigError, KeyPair, ServerCurve, open_server
from trio_envserve.doors.keys import keys_of


@pytest.mark.real
async def test_a_server_of_this_process_lets_its_door_in_and_an_address_needs_a_key():
    server_keys = KeyPair.new()
    given = ClientCurve(server_keys.public, KeyPair.new())
    assert keys_of("tcp://127.0.0.1:5555", given) is given
    assert keys_of("tcp://127.0.0.1:5555", None) is None
    async with open_server("arithmetic", workers=0, curve=ServerCurve(server_keys)) as server:
        own = keys_of(server, None)
        assert own is not None
        assert own.server == server_keys.public
        with pytest.raises(ConfigError, match="give no curve"):
            keys_of(server, given)
