"""``up``: what it refuses, and the keys of a run."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.cli.commands import run
from trio_envserve.cli.up import Keys
from trio_envserve.core.errors import ConfigError
from trio_envserve.net.keypairs import ClientCurve, write_whole


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is here")
async def test_ray_needs_its_extra(tmp_path: Path):
    done = await run(tmp_path, "up", "ray", "arithmetic")
    assert done.code == 2
    assert "pip install 'trio-envserve[ray]'" in done.err


def test_hosts_may_only_work_and_clients_only_ask_and_the_file_says_the_same(tmp_path: Path):
    keys = Keys.new()
    rights = {right.public: right.roles for right in keys.of_server.clients.values()}
    assert rights[keys.of_host.keys.public] == ("work",)
    assert rights[keys.of_client.keys.public] == ("submit", "watch")
    write_whole(tmp_path / "up.key", keys.of_client.to_text(), 0o600)
    assert ClientCurve.from_file(tmp_path / "up.key") == keys.of_client
    assert Keys.new().of_client != keys.of_client


def test_key_file_that_cannot_be_written_was_a_traceback(tmp_path: Path):
    with pytest.raises(ConfigError, match="nosuch/up: No such file"):
        write_whole(tmp_path / "nosuch" / "up", "", 0o600)
