"""Identities, while there are networks that have them."""

from __future__ import annotations

import pytest

from trio_envserve.core.errors import ConfigError
from trio_envserve.core.limits import WireLimits

from .conftest import open_bench


@pytest.fixture(params=["memory", pytest.param("libzmq-libzmq-tcp", marks=pytest.mark.real)])
def bench(request: pytest.FixtureRequest, folder: str):
    return lambda: open_bench(request.param, folder)


async def test_a_new_connection_takes_an_identity_over(bench):
    async with bench() as b, b.router() as router:
        # the first one must not take it back: no reconnecting for a while
        limits = WireLimits(reconnect_min_s=60.0, reconnect_max_s=60.0)
        async with b.dealer(router, b"same", limits=limits) as first:
            await b.greet(router, first)
            async with b.dealer(router, b"same") as second:
                await b.greet(router, second)
                assert router.send_nowait(b"same", [b"for the second"])
                assert await b.take(second, 1) == [[b"for the second"]]
                assert first.receive_nowait() == []


@pytest.mark.parametrize("identity", [b"", b"\0abc", bytes(256), b"x" * 256, "text"])
async def test_wrong_identities_are_refused(bench, identity):
    async with bench() as b, b.router() as router:
        with pytest.raises(ConfigError, match="identity"):
            await b.dealer(router, identity).__aenter__()
