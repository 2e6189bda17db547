"""How a client is opened and closed, on a network in memory."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any

import pytest
import trio

from tests.memory import ADDRESS, virtual
from trio_envserve import ClientCurve, ClientLimits, ConfigError, KeyPair, WireLimits, open_client
from trio_envserve.client import opening
from trio_envserve.client.opening import wire_of
from trio_envserve.core.terms import ID_BYTES
from trio_envserve.net import MemoryNetwork, Transport
from trio_envserve.net.zmtp.sockets import sealed_wire


class Network:
    """A network in memory, whose dealers are what ``around`` makes of them."""

    def __init__(self, around: Any) -> None:
        self._inner = MemoryNetwork()
        self._around = around
        self.open_router = self._inner.open_router

    @asynccontextmanager
    async def open_dealer(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        async with self._inner.open_dealer(*args, **options) as dealer:
            yield self._around(dealer)


class Dealer:
    """A dealer that does what all do, but for what a subclass has."""

    def __init__(self, dealer: Any) -> None:
        self._dealer = dealer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dealer, name)


def test_opening_without_trio_names_who_does_the_same() -> None:
    async def main() -> None:
        await open_client(ADDRESS).__aenter__()

    with pytest.raises(RuntimeError, match="or use open_client_asyncio, or PlainClient"):
        asyncio.run(main())


KEYS = ClientCurve(KeyPair.new().public, KeyPair.new())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"address": "memory:"}, "the name is missing"),
        ({"address": "memory:*"}, "cannot connect"),
        ({"address": "localhost:5555"}, "did you mean"),
        ({"address": None}, "expected"),
        # A name that could not be encoded raised in the connection's own task.
        *[({"name": wrong}, "name must be text") for wrong in ("\ud800", 5, b"bytes", ["list"])],
        ({"caller": 5}, "caller must be text"),
        ({"curve": KEYS}, "give no network"),
        ({"limits": ClientLimits(ping_s=1, probe_s=1)}, "write probe_s="),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
@virtual
async def test_a_wrong_option_is_refused_at_the_door(options: dict[str, Any], says: str) -> None:
    given = {"address": ADDRESS, "network": MemoryNetwork(), **options}
    with pytest.raises(ConfigError, match=says):
        async with open_client(**given):
            raise AssertionError


def test_the_wire_is_the_callers_and_its_messages_can_be_sealed() -> None:
    wire = WireLimits(flush_s=3)
    assert wire_of(wire, None) == wire
    assert wire_of(None, None) == WireLimits()
    assert wire_of(wire, KEYS) == sealed_wire(wire) != wire


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize(("transport", "module"), [("zmtp", "zmtp.sockets"), ("libzmq", "libzmq")])
async def test_the_socket_is_of_the_transport_that_was_asked_for(
    transport: Transport, module: str, sealed: bool, folder: str
) -> None:
    nobody, curve = f"ipc://{folder}/nobody", KEYS if sealed else None
    wire = WireLimits(flush_s=0.001)
    async with open_client(nobody, transport=transport, curve=curve, wire=wire) as client:
        made = type(client._driver._socket).__module__
    assert made == f"trio_envserve.net.{module}"


@virtual
async def test_a_client_without_a_name_has_that_of_its_process() -> None:
    for name, known in (("mine", "mine"), ("Übung 7", "Übung 7"), ("", f"pid-{os.getpid()}")):
        async with open_client(ADDRESS, network=MemoryNetwork(), name=name) as client:
            assert client._driver.core.pings.name == known


def test_callers_of_one_name_have_one_token_and_those_without_one_each() -> None:
    tokens = [opening._token(name) for name in ("a", "a", "b", "\ud800", "", "")]
    assert [len(token) for token in tokens] == [ID_BYTES] * 6
    assert tokens[0] == tokens[1]
    assert len(set(tokens)) == 5


def test_arrays_are_of_the_library_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    for arrays in ("auto", "numpy", "torch"):
        assert opening._check_arrays(arrays) == arrays


def test_a_module_that_only_has_the_name_of_a_library_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    with pytest.raises(ConfigError, match="torch is not installed"):
        opening._check_arrays("torch")


@virtual
async def test_a_client_that_fails_says_so_as_it_is() -> None:
    """Not in a group: the nursery of its tasks is no affair of the caller's."""

    class Broken(Dealer):
        async def receive(self) -> None:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        async with open_client(ADDRESS, network=Network(Broken)):
            await trio.sleep_forever()


@pytest.mark.parametrize(("takes_s", "ends_s"), [(2.0, 2.0), (100.0, 3.0)])
@virtual
async def test_the_last_words_get_their_time_and_no_more(takes_s: float, ends_s: float) -> None:
    class Slow(Dealer):
        async def flush(self) -> None:
            await trio.sleep(takes_s)

    began_s = trio.current_time()
    async with open_client(ADDRESS, network=Network(Slow), wire=WireLimits(flush_s=3)):
        pass
    assert trio.current_time() - began_s == ends_s
