"""The plugin, in sessions of its own: what users see of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from trio_envserve import Rollout, ServerStartError
from trio_envserve.testing.plugin import ClientFactory, ProxyFactory, ServerFactory

ROOT = Path(__file__).resolve().parent.parent.parent
PLUGIN = "trio_envserve.testing.plugin"

ENVIRONMENT = """
import os

class Here:
    def __init__(self, word="here"): self.word = word
    async def run_rollout(self, rollout):
        return {"word": self.word, "input": rollout.input, "pid": os.getpid()}

class Broken:
    def __init__(self): raise RuntimeError("no such disk")
    async def run_rollout(self, rollout): ...
"""


def session(
    folder: Path, tests: str, *arguments: str, ini: str = "",
    environ: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """A pytest session of its own, with warnings as errors."""
    (folder / "my_env.py").write_text(ENVIRONMENT)
    (folder / "test_mine.py").write_text(tests)
    (folder / "pytest.ini").write_text(f"[pytest]\n{ini}")
    ours = ("ENVSERVE", "FORCE_COLOR", "PY_COLORS")  # as CI may have it: the words are compared
    clean = {name: value for name, value in os.environ.items() if not any(map(name.count, ours))}
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
        env={**clean, "PYTHONPATH": str(ROOT), **(environ or {})},
    )  # fmt: skip


def passed(run: subprocess.CompletedProcess[str], count: int) -> None:
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{count} passed" in run.stdout, run.stdout
    assert "warning" not in run.stdout


# -- the factories, in this very session ------------------------------------------


async def test_several_servers_of_closures_and_their_clients(
    envserve_server: ServerFactory, envserve_client: ClientFactory
):
    with trio.fail_after(60):
        for word in ("one", "two"):

            async def say(rollout: Rollout, word: str = word) -> str:
                return word

            server = await envserve_server(say, ready=False)
            for given in (server, server.address):
                assert await (await envserve_client(given)).run_rollout(None) == word


@pytest.mark.real
async def test_a_server_with_workers_behind_a_proxy(
    envserve_server: ServerFactory, envserve_client: ClientFactory, envserve_proxy: ProxyFactory
):
    with trio.fail_after(120):
        server = await envserve_server("arithmetic", workers=2, args={"steps": 1})
        assert server.status().ready >= 1
        proxy = await envserve_proxy(server, seed=3)
        client = await envserve_client(proxy, name="tester")
        first = await client.run_rollout({"index": 0})
        assert proxy.cut_all() >= 1
        assert await client.run_rollout({"index": 0}) == first
        assert proxy.counters.cut >= 1


async def test_a_broken_environment_is_an_error_of_the_await(envserve_server: ServerFactory):
    def broken() -> Any:
        raise RuntimeError("no such disk")

    with trio.fail_after(60), pytest.raises(ServerStartError, match="no such disk"):
        await envserve_server(broken)


async def test_without_an_environment_it_is_said_what_to_write(
    envserve_server: ServerFactory, request: pytest.FixtureRequest
):
    with pytest.raises(pytest.fail.Exception, match="--envserve-env"):
        await envserve_server()
    with pytest.raises(pytest.fail.Exception, match="trio-envserve run-with ENV"):
        request.getfixturevalue("envserve_address")


# -- sessions of their own -----------------------------------------------------------

ASYNC_TESTS = """
import trio
from trio_envserve import MayHaveRun

async def test_default_and_named(envserve_server, envserve_client):
    client = await envserve_client(await envserve_server())
    assert (await client.run_rollout(1))["word"] == "here"
    other = await envserve_server("my_env:Here", args={"word": "there"}, workers=0)
    assert (await (await envserve_client(other)).run_rollout(1))["word"] == "there"
"""

CLOSING_TESTS = """
import trio
said = []

async def test_one(envserve_client, envserve_proxy, envserve_server):
    class Waits:
        async def run_rollout(self, rollout):
            await trio.sleep_forever()
        async def teardown(self): said.append("server closed")
    server = await envserve_server(Waits())
    proxy = await envserve_proxy(server)
    client = await envserve_client(proxy)
    end = client._driver.close
    def closed():
        said.append(f"client closed, {proxy.open_connections} open")
        end()
    client._driver.close = closed
    await proxy.wait_connections(1)

def test_two():
    assert said == ["client closed, 1 open", "server closed"]

async def test_three(envserve_server):
    server = await envserve_server(lambda rollout: None)
    def broken(given): raise ZeroDivisionError("a bug in the server")
    server._take = broken
    await trio.sleep_forever()
"""


@pytest.mark.real
def test_async_tests_in_trio_mode_close_what_was_opened_last_first_and_fail_with_their_server(
    tmp_path: Path,
):
    ini = "trio_mode = true\nenvserve_env = my_env:Here\n"
    run = session(tmp_path, ASYNC_TESTS + CLOSING_TESTS, "-p", "no:randomly", ini=ini)
    assert "1 failed, 3 passed" in run.stdout, run.stdout
    assert "ZeroDivisionError: a bug in the server" in run.stdout


SYNC_TESTS = """
import subprocess, sys
import pytest

pids = set()

def evaluate(address):
    from trio_envserve import open_client
    import trio
    async def main():
        async with open_client(address) as client:
            with trio.fail_after(60):
                return await client.run_rollout(5)
    return trio.run(main)

def test_one(envserve_address):
    result = evaluate(envserve_address)
    assert result["input"] == 5
    pids.add((envserve_address, result["pid"]))
    assert len(pids) == 1

def test_two(envserve_address):
    pids.add((envserve_address, evaluate(envserve_address)["pid"]))
    assert len(pids) == 1

@pytest.mark.trio
async def test_three(envserve_address, envserve_client):
    client = await envserve_client(envserve_address)
    assert (await client.run_rollout(6))["word"] == "set"
"""

OPTIONS = "envserve_env = my_env:Here\nenvserve_options = --arg word=set\n"


@pytest.mark.real
def test_with_xdist_each_process_has_one_server_for_sync_tests_and_async_ones_with_a_marker(
    tmp_path: Path,
):
    pytest.importorskip("xdist")
    passed(session(tmp_path, SYNC_TESTS, "-n", "1", "-p", "no:randomly", ini=OPTIONS), 3)


@pytest.mark.real
def test_without_pytest_trio_sync_tests_have_one_server(tmp_path: Path):
    tests = SYNC_TESTS.partition("@pytest.mark.trio")[0]
    passed(session(tmp_path, tests, "-p", "no:trio", ini=OPTIONS), 2)


@pytest.mark.real
def test_server_of_run_with_is_taken_unless_one_is_named_and_one_that_is_broken_is_told(
    tmp_path: Path,
):
    tests = "def test_it(envserve_address): assert envserve_address == 'tcp://127.0.0.1:1'\n"
    environ = {"TRIO_ENVSERVE_ADDRESS": "tcp://127.0.0.1:1"}
    passed(session(tmp_path, tests, ini="envserve_env = my_env:Here\n", environ=environ), 1)
    ini = "envserve_options = --limit restart_pause_s=0.01\n"
    named = session(tmp_path, tests, "--envserve-env", "my_env:Broken", ini=ini, environ=environ)
    assert named.returncode == 1
    assert "the server of my_env:Broken could not be started" in named.stdout
    assert "no such disk" in named.stdout


@pytest.mark.real
def test_a_server_of_the_session_that_ends_by_itself_is_told(tmp_path: Path):
    tests = """
import os, signal, subprocess
def test_it(envserve_address):
    (pid,) = map(int, open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read().split())
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
"""
    if sys.platform != "linux":
        pytest.skip("finds the server in /proc")
    run = session(tmp_path, tests, ini="envserve_env = my_env:Here\n")
    assert run.returncode == 1
    assert "ended by itself, with exit code -9" in run.stdout


def test_the_plugin_loads_nothing_of_weight():
    program = (
        f"import sys, {PLUGIN}\n"
        "heavy = ['trio', 'zmq', 'cbor2', 'numpy', 'hypothesis', 'click', 'rich',\n"
        "         'trio_envserve.core', 'trio_envserve.net', 'trio_envserve.server']\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120,
        check=True,
    )  # fmt: skip
    assert run.stdout.strip() == "[]"
