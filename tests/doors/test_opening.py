"""How a door comes to its server: with which key, and how often it asks."""

from __future__ import annotations

from typing import Any

import pytest

from trio_envserve import ClientCurve, ConfigError, KeyPair, ServerCurve, open_server
from trio_envserve.core.limits import ClientLimits
from trio_envserve.doors import opening
from trio_envserve.doors.http import open_http_door
from trio_envserve.doors.opening import keys_of
from trio_envserve.doors.verifiers import open_verifiers_door


@pytest.mark.real
async def test_server_of_this_process_lets_its_door_in_and_an_address_needs_a_key():
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


@pytest.mark.parametrize("open_door", [open_http_door, open_verifiers_door])
async def test_door_that_nobody_calls_asks_for_its_server_as_often(
    open_door: Any, monkeypatch: pytest.MonkeyPatch
):
    class Opened(Exception):
        """The client of a door was to be opened, with these limits."""

    def open_client(address: str, *, limits: ClientLimits, **_: Any) -> Any:
        raise Opened(limits)

    monkeypatch.setattr(opening, "open_client", open_client)
    with pytest.raises(Opened) as found:
        await open_door("tcp://127.0.0.1:1").__aenter__()
    (limits,) = found.value.args
    assert limits.idle_ping_s <= limits.ping_s == ClientLimits().ping_s
