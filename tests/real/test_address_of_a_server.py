"""What a server says about its address: who can reach it, and who still holds it."""

import logging
import re
import socket

import pytest

from tests.connections import own_host
from tests.real.support import open_server, until
from trio_envserve import ServerStartError
from trio_envserve.host.locks import ServerLocks

REACHABLE = "is reachable from other machines"


@pytest.mark.parametrize("bind", ["tcp://*:0", "tcp://0.0.0.0:0"])
async def test_listening_beyond_this_machine_is_warned_of(judge, caplog, bind):
    async with open_server(judge, workers=0, bind=bind) as server:
        address = server.address
    (warning,) = [record for record in caplog.records if REACHABLE in record.getMessage()]
    assert (warning.name, warning.levelno) == ("trio_envserve.server", logging.WARNING)
    assert warning.getMessage().startswith(address)
    assert "no authentication" in warning.getMessage()


async def test_listening_on_this_machine_only_is_not_warned_of(judge, caplog, tmp_path):
    async with open_server(judge, workers=0):
        pass
    assert REACHABLE not in caplog.text


async def test_workers_of_an_earlier_server_that_never_end_are_told_with_how_to_find_them(judge):
    with socket.create_server((own_host(), 0)) as probe:
        address = f"tcp://{own_host()}:{probe.getsockname()[1]}"
    held = ServerLocks.of_address(address)
    said = ""
    try:
        assert held.epochs.acquire_nowait()  # as a worker does that lives on
        with pytest.raises(ServerStartError) as caught:
            async with open_server(judge, bind=address, lock_s=0.5) as server:
                await until(lambda: address in server.status().reason)
                said = server.status().reason
                await server.wait_ready()
    finally:
        held.close()
    waiting = f"waiting for the workers of an earlier server at {address} to end"
    assert said.startswith(waiting)
    expected = rf"{re.escape(waiting)} \(\d+ s\); find them with: fuser (\S+)"
    found = re.fullmatch(expected, str(caught.value))
    assert found, str(caught.value)
    assert found[1] == str(held.epochs.path)
    assert not judge.log.exists()
    assert not list(judge.directory.glob("setup-*"))  # no worker was started
