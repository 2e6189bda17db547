"""What a door asks of its server, and how often."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from trio_envserve.core.limits import ClientLimits
from trio_envserve.doors.http import opening as http
from trio_envserve.doors.verifiers import opening as verifiers


class Opened(Exception):
    """The client of a door was to be opened, with these limits."""


def open_client(address: str, *, limits: ClientLimits | None = None, **_: Any) -> Any:
    raise Opened(limits or ClientLimits())


@pytest.mark.parametrize(
    "door",
    [
        lambda: http.open_http_door("tcp://127.0.0.1:1"),
        lambda: verifiers.open_verifiers_door("tcp://127.0.0.1:1"),
    ],
    ids=["http", "verifiers"],
)
async def test_a_door_that_nobody_calls_asks_for_its_server_as_often(
    door: Any, monkeypatch: pytest.MonkeyPatch
):
    for module in (http, verifiers):
        monkeypatch.setattr(module, "open_client", open_client)
    opening: AbstractAsyncContextManager[Any] = door()
    with pytest.raises(Opened) as found:
        await opening.__aenter__()
    (limits,) = found.value.args
    assert limits.idle_ping_s <= limits.ping_s == ClientLimits().ping_s
