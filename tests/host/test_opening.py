"""A host is opened and ends: the lock of its name, and its socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from trio_envserve import ConfigError, WireLimits, open_host
from trio_envserve.host import opening
from trio_envserve.host.opening import _open_lock, _take
from trio_envserve.net import MemoryNetwork


async def test_what_is_damaged_in_the_file_of_a_lock_proves_nothing(
    tmp_path: Path, monkeypatch
) -> None:
    """The host ended with a traceback, and so did each later one of its name."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    first = _open_lock("a")
    with trio.fail_after(60):
        assert await _take(first, "a") == []
        first.append(f"{b'1' * 16!r}\n{'zz' * 16}\n{'11' * 15}\n{'11' * 16}\n")
        first.close()
        second = _open_lock("a")
        assert await _take(second, "a") == [b"\x11" * 16]
        second.close()


async def test_a_host_needs_workers() -> None:
    with pytest.raises(ConfigError, match="workers"):
        async with open_host("tcp://127.0.0.1:1", "arithmetic", workers=0):
            raise AssertionError("it was opened")


class Listened:
    """The socket of a host, which knows whether somebody listened when it was closed."""

    def __init__(self, dealer: Any) -> None:
        self.is_gone = False
        self.heard_when_gone = False
        self._dealer = dealer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dealer, name)

    async def receive(self) -> Any:
        try:
            return await self._dealer.receive()
        finally:
            self.heard_when_gone |= self.is_gone


async def test_nobody_listens_to_the_socket_of_a_host_any_more_when_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host to which its router spoke just when it ended raised ClosedResourceError."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    memory, opened = MemoryNetwork(), []

    class Network:
        @asynccontextmanager
        async def open_dealer(self, address: str, **options: Any) -> AsyncIterator[Any]:
            limits, on_event = options["limits"], options["on_event"]
            async with memory.open_dealer(address, limits=limits, on_event=on_event) as dealer:
                opened.append(Listened(dealer))
                try:
                    yield opened[0]
                finally:
                    opened[0].is_gone = True

    @asynccontextmanager
    async def open_network() -> AsyncIterator[Network]:
        yield Network()

    monkeypatch.setattr(opening, "open_zmtp_network", open_network)
    with trio.fail_after(60):
        async with (
            memory.open_router("memory:r", limits=WireLimits()),
            open_host("memory:r", name="a"),
        ):
            await trio.testing.wait_all_tasks_blocked()
    (socket,) = opened
    assert not socket.heard_when_gone
