"""Servers are opened, get ready or say why not, and end with their block."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from tests.memory import ADDRESS, Probe, echo, pair, virtual
from trio_envserve import (
    ConfigError,
    DidNotRun,
    KeyLimits,
    KeyPair,
    MayHaveRun,
    Server,
    ServerCurve,
    ServerLimits,
    ServerNotReady,
    ServerStartError,
    WireLimits,
    open_client,
    open_server,
    serve,
)
from trio_envserve.core.lease import NO_LEASE_S
from trio_envserve.core.messages import encode_record
from trio_envserve.net import MemoryNetwork
from trio_envserve.net.zmtp.sides import sealed_wire
from trio_envserve.server import opening
from trio_envserve.server.setup import Setup

HOSTS = "tcp://127.0.0.1:0"


@pytest.mark.parametrize(
    "value", [(1, 2), {1: "a"}, Path("a"), {"deep": [float("nan"), {2: 3}]}, b"a", {3}]
)
async def test_arguments_that_a_worker_would_get_changed_are_refused(value: Any) -> None:
    """Tuples became lists and numbers as keys text, and nobody was told."""
    with pytest.raises(ConfigError, match=r"args\['shape'\]"):
        async with open_server("arithmetic", args={"shape": value}, workers=1):
            pass


@virtual
async def test_serve_reports_the_server_once_bound() -> None:
    network = MemoryNetwork()
    async with trio.open_nursery() as nursery:

        async def start(task_status: trio.TaskStatus[Server]) -> None:  # noqa: ASYNC128
            await serve(Probe(), bind=ADDRESS, workers=0, network=network, task_status=task_status)

        server = await nursery.start(start)
        assert server.address == ADDRESS
        async with open_client(ADDRESS, network=network) as client:
            assert await client.run_rollout(["a", 1]) == {"did": 1}
        nursery.cancel_scope.cancel()


@virtual
async def test_an_exception_of_the_block_comes_out_as_it_is() -> None:
    with pytest.raises(KeyError, match="mine"):
        async with pair(Probe()):
            raise KeyError("mine")


@virtual
async def test_a_broken_environment_is_not_ready_with_its_traceback() -> None:
    def broken() -> Any:
        raise RuntimeError("no dataset here")

    async with pair(broken) as (server, client):
        with pytest.raises(ServerNotReady, match="no dataset here"):
            await client.wait_ready(60)
        assert server.status().status.value == "broken"
        # Pauses between the tries grow: no restart storm.
        assert server.stats().worker_restarts < 15


@virtual
async def test_an_unknown_model_did_not_run() -> None:
    probe = Probe()
    async with pair(probe) as (_, client):
        with pytest.raises(DidNotRun, match="oracle"):
            await client.run_rollout(["a", 1], model="orcale")
    assert not probe.started


@virtual
async def test_a_server_whose_block_is_cancelled_from_outside_still_closes_in_order() -> None:
    """Its closing awaited tasks that the same cancellation had ended: it hung."""
    probe = Probe()
    network = MemoryNetwork()
    outcomes: list[Any] = []

    async with open_client(ADDRESS, network=network) as client, trio.open_nursery() as nursery:

        async def call() -> None:
            outcomes.append(await client.outcome(["a", "wait"]))

        with trio.move_on_after(5):
            async with open_server(probe, bind=ADDRESS, workers=0, network=network):
                nursery.start_soon(call)
                await trio.sleep_forever()
        assert probe.ended == [("a", "cancelled")]
    assert isinstance(outcomes[0].error, MayHaveRun)


# -- a server that is closed -----------------------------------------------------
# Who waited for it to get ready went on waiting, for minutes, when it had been closed;
# or was told "ready" of one that is no more.


async def test_a_closed_server_does_not_get_ready(autojump_clock):
    network = MemoryNetwork()
    async with open_server(echo, bind="memory:s", workers=0, network=network) as server:
        await server.wait_ready()
    with trio.fail_after(5), pytest.raises(ServerStartError, match="stopping"):
        await server.wait_ready()


async def test_who_waits_while_the_server_is_killed_is_told(autojump_clock):
    class Slow:
        async def setup(self):
            await trio.sleep_forever()

        async def run_rollout(self, rollout):
            raise AssertionError("it was never set up")

    network = MemoryNetwork()
    told = trio.Event()

    async def wait(server):
        with pytest.raises(ServerStartError, match="stopping"):
            await server.wait_ready()
        told.set()

    async with trio.open_nursery() as nursery:
        async with open_server(Slow(), bind="memory:s", workers=0, network=network) as server:
            nursery.start_soon(wait, server)
            await trio.testing.wait_all_tasks_blocked()
            server.kill()
            with trio.fail_after(5):
                await told.wait()


# -- what the arguments come to, before anything is opened --------------------------


@pytest.fixture
def set_up(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What was to be opened, as ``setup``, and what was looked for, as ``looked``."""
    seen: dict[str, Any] = {"looked": []}

    @asynccontextmanager
    async def opened(setup: Setup) -> AsyncIterator[str]:
        seen["setup"] = setup
        yield "a server"

    def look(spec: str, args: object) -> None:
        seen["looked"].append(f"spec {spec}")

    def find(python: Any) -> str:
        seen["looked"].append(f"find {python}")
        return f"/bin/{python}"

    async def check(python: str) -> None:
        seen["looked"].append(f"check {python}")

    monkeypatch.setattr(opening, "open_setup", opened)
    monkeypatch.setattr(opening, "check_spec", look)
    monkeypatch.setattr(opening, "find_interpreter", find)
    monkeypatch.setattr(opening, "check_interpreter", check)
    return seen


NODE = {"worker_command": "node a.js"}
PY = {"worker_python": "py"}
HOSTED = {"hosts_bind": HOSTS}
CURVE: dict[str, Any] = {"curve": ServerCurve(KeyPair.new(), {})}
SMALL = WireLimits(header_bytes=4096)
OBJECT = SimpleNamespace(an="environment")
"""An environment that is no name."""


@pytest.mark.parametrize(
    ("options", "environment", "name", "python", "looked"),
    [
        ({}, "arithmetic", "arithmetic", None, ["spec arithmetic"]),
        ({"workers": 0}, "arithmetic", "arithmetic", None, ["spec arithmetic"]),
        (HOSTED, "arithmetic", "arithmetic", None, ["spec arithmetic"]),
        ({**HOSTED, "workers": 0}, "arithmetic", "arithmetic", None, []),
        ({"workers": 0, "environment": OBJECT}, OBJECT, str(OBJECT), None, []),
        (NODE, None, "node a.js", None, []),
        ({**NODE, **HOSTED, "workers": 0}, None, "node a.js", None, []),
        ({**NODE, "environment": "x"}, "x", "x", None, []),
        (PY, "arithmetic", "arithmetic", "/bin/py", ["find py", "check /bin/py"]),
        ({**PY, **HOSTED}, "arithmetic", "arithmetic", "/bin/py", ["find py", "check /bin/py"]),
        (
            {"worker_python": Path("py"), **HOSTED, "workers": 0},
            "arithmetic", "arithmetic", "py", [],
        ),
    ],
)  # fmt: skip
async def test_what_is_run_is_looked_for_where_it_is_run(
    set_up: dict[str, Any], options: dict[str, Any], environment: Any, name: str,
    python: str | None, looked: list[str],
) -> None:  # fmt: skip
    async with open_server(**options) as server:
        assert str(server) == "a server"
    setup = set_up["setup"]
    assert (setup.environment, setup.name, setup.python) == (environment, name, python)
    assert set_up["looked"] == looked
    assert list(setup.command) == (["node", "a.js"] if "worker_command" in options else [])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"workers": -1}, "workers"),
        ({"workers": True}, "workers"),
        ({"workers": "2"}, "workers"),
        ({**HOSTED, "record": "file"}, "give record or hosts_bind"),
        ({**HOSTED, "fence_s": 0.0}, "fence_s"),
        ({**NODE, "workers": 0}, "worker_command starts processes"),
        ({**PY, "workers": 0}, "worker_python starts this package's own workers"),
        ({**PY, **NODE}, "worker_python starts this package's own workers"),
        ({**PY, **NODE, **HOSTED, "workers": 0}, "worker_python starts this package's own"),
        ({"environment": OBJECT}, "worker processes load their environment by name"),
        ({"environment": OBJECT, **HOSTED, "workers": 0}, "worker processes load their"),
        ({"environment": OBJECT, **NODE}, "worker processes load their environment by name"),
        ({"args": {"a": (1,)}}, r"args\['a'\]"),
        ({"args": {"a": (1,)}, **HOSTED, "workers": 0}, r"args\['a'\]"),
        ({"needs": {"gpu": "two"}}, "needs: gpu='two' is no amount"),
        ({"worker_command": ""}, "worker_command must be a command"),
        ({**CURVE, "network": MemoryNetwork()}, "curve needs transport"),
        ({**CURVE, "transport": "libzmq"}, "curve needs transport"),
        (
            {"keys": KeyLimits(key_bytes=3000), "wire": SMALL, "limits": ServerLimits(window=100)},
            r"KeyLimits.key_bytes \(3000\)",
        ),
    ],
)
async def test_what_cannot_be_run_together_is_refused(
    set_up: dict[str, Any], options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        async with open_server(**options):
            pass
    assert "setup" not in set_up


async def test_what_is_given_is_what_is_set_up(set_up: dict[str, Any]) -> None:
    given = {
        "args": {"a": 1}, "bind": "tcp://127.0.0.1:7", "workers": 3, "hosts_bind": HOSTS,
        "limits": ServerLimits(stop_s=3.0), "wire": WireLimits(flush_s=3.0),
        "keys": KeyLimits(retention_s=60.0), "worker_environ": [{"A": "1"}],
        "worker_logging": {"level": "info"}, "worker_otlp": {"endpoint": "e"}, "journal": "folder",
        "needs": {"gpu": 1.0}, "network": MemoryNetwork(), "transport": "libzmq",
    }  # fmt: skip
    async with open_server(**given, fence_s=5.0):  # type: ignore[arg-type]  # each of its own
        pass
    setup = set_up["setup"]
    assert {name: getattr(setup, name) for name in given} == given
    assert setup.lease.fence_s == 5.0
    async with open_server(
        record="file", record_bodies=True, fence_s=None, workers=0, args={"a": (1,)}
    ):
        pass
    setup = set_up["setup"]
    assert (setup.record, setup.record_bodies, setup.lease.fence_s) == ("file", True, NO_LEASE_S)
    assert (setup.limits, setup.wire, setup.keys) == (ServerLimits(), WireLimits(), KeyLimits())
    assert setup.args == {"a": (1,)}  # in this process any will do


async def test_keys_need_messages_of_sizes_that_can_be_sealed(set_up: dict[str, Any]) -> None:
    async with open_server(**CURVE):
        assert set_up["setup"].wire == sealed_wire(WireLimits()) != WireLimits()


def test_without_trio_it_is_said_what_is_needed() -> None:
    async def main() -> None:
        async with open_server():
            pass

    with pytest.raises(RuntimeError, match="open_server needs trio, and asyncio runs here"):
        asyncio.run(main())


@virtual
async def test_hosts_are_told_all_that_they_run_or_it_is_refused() -> None:
    setup = Setup(
        environment="env", name="env", args={"a": "x" * 1000}, bind=ADDRESS, workers=0,
        limits=ServerLimits(), wire=SMALL, hosts_bind="memory:hosts", network=MemoryNetwork(),
    )  # fmt: skip
    left = 2048 - len(encode_record(opening._serves(setup)))
    async with opening.open_setup(dataclasses.replace(setup, args={"a": "x" * (1000 + left)})):
        pass
    large = dataclasses.replace(setup, args={"a": "x" * (1001 + left)})
    with pytest.raises(ConfigError, match="bytes, and hosts can be told 2048"):
        async with opening.open_setup(large):
            pass
