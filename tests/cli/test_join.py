"""``serve --hosts-bind`` and ``join``, each as a process of its own."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.cli.commands import Running, check_nothing_left, forked, run, until
from tests.cli.test_notify import heard_with, manager_socket
from trio_envserve import ClientCurve, MayHaveRun, open_client

pytestmark = pytest.mark.real

HOSTS = ("--workers", "0", "--hosts-bind", "tcp://127.0.0.1:0")
TOLD = '''
import os

import trio


class Told:
    """Says what its worker was told; or waits."""

    def __init__(self, **args):
        self.args = args

    async def run_rollout(self, rollout):
        if "wait" in rollout.input:
            open(rollout.input["wait"], "w").close()
            await trio.sleep_forever()
        return {"args": self.args, "gpu": os.environ.get("GPU"), "reward": 1.0}
'''


@asynccontextmanager
async def router(folder: Path, *arguments: str) -> AsyncIterator[tuple[Running, str, str]]:
    """A server whose hosts join, its address, and the one for them."""
    (folder / "told.py").write_text(TOLD)
    given = (*arguments, "--bind", "tcp://127.0.0.1:0", *HOSTS, "--json")
    async with forked(folder, "serve", *given) as running:
        event = await running.event("serving")
        yield running, event["address"], event["hosts"]


@asynccontextmanager
async def host(
    folder: Path, address: str, *arguments: str, **environ: str
) -> AsyncIterator[Running]:
    """A host of one worker that has joined."""
    given = (address, *arguments, "--workers", "1", "--json")
    async with forked(folder, "join", *given, **environ) as running:
        await running.event("joined")
        yield running


async def asked(address: str, **options: Any) -> Any:
    async with open_client(address, **options) as client:
        return await client.run_rollout({})


async def test_a_host_runs_what_its_router_says_and_leaves_at_a_signal(tmp_path: Path) -> None:
    async with router(tmp_path, "arithmetic") as (server, address, hosts):
        async with forked(tmp_path, "join", address, "--workers", "1") as joining:
            await joining.said("is it the address of --hosts-bind?")
            assert "malformed" not in joining.err
        async with forked(tmp_path, "join", hosts, "--workers", "2", "--name", "a") as joining:
            assert "host a joins" in await joining.line()
            async with open_client(address) as client:
                await client.run_rollout({"index": 0}, model="oracle")
            joining.signal(signal.SIGTERM)
            left = await joining.wait()
            assert left.code == 0, left.err
            left.check_no_traceback()
            assert "2 workers run arithmetic" in left.err
            assert "no worker of this host is left" in left.err
            await server.said("host a is gone: it has left")
            server.signal(signal.SIGTERM)
            assert (await server.wait()).code == 0
    await check_nothing_left(tmp_path)


@pytest.mark.parametrize("drain_s", ["0.1", "300"])
async def test_work_is_killed_after_the_drain_or_at_a_second_signal(
    tmp_path: Path, drain_s: str
) -> None:
    async with router(tmp_path, "told:Told") as (_, address, hosts):
        async with (
            host(tmp_path, hosts, "--name", "a", "--drain-s", drain_s) as joined,
            open_client(address) as client,
            trio.open_nursery() as nursery,
        ):

            async def ask() -> None:
                with pytest.raises(MayHaveRun):
                    await client.run_rollout({"wait": "started"})

            nursery.start_soon(ask)
            await until((tmp_path / "started").exists)
            joined.signal(signal.SIGINT)
            await joined.said("SIGINT: taking no new work")
            if drain_s == "300":
                joined.signal(signal.SIGTERM)  # the same one so soon would be one with the first
            ended = await joined.wait()
            assert ended.code == (drain_s == "300"), ended.err
            assert ("not drained after 0.1 s" in ended.err) is (drain_s == "0.1")
            assert ended.last["drained"] is False
    await check_nothing_left(tmp_path)


async def test_a_host_is_seen_and_one_that_does_not_fit_is_told_why(tmp_path: Path) -> None:
    async with router(tmp_path, "told:Told", "--needs", "gpu=1") as (_, address, hosts):
        refused = await run(tmp_path, "join", hosts, "--workers", "1", "--name", "poor")
        assert refused.code == 3
        assert "it offers less than one worker needs: gpu=1" in refused.err
        given = ("join", hosts, "--workers", "5", "--name", "rich", "--offers", "gpu=1", "--json")
        async with forked(tmp_path, *given) as rich:
            await rich.event("joined")
            await asked(address)
            seen = await run(tmp_path, "status", address, "--json")
            (here,) = seen.last["hosts"]
            assert (here["host"], here["state"], here["slots"]) == ("rich", "ready", 1)
            assert here["memory_bytes"] > 0
            assert [worker["worker"] for worker in seen.last["per_worker"]] == ["w0-1@rich"]
            assert [past["state"] for past in seen.last["past_hosts"]] == ["refused"]
            shown = await run(tmp_path, "status", address)
            assert "hosts that are not here" in shown.out
            assert "w0-1@rich" in shown.out
            rich.signal(signal.SIGKILL)
            await rich.wait()


async def test_a_router_that_stops_without_its_host_says_what_the_next_one_waits_for(
    tmp_path: Path,
) -> None:
    """It ended with exit code 1, as if something were left on its own machine."""
    quick = ("--limit", "reap_s=0.1", "--limit", "stop_s=0.1")
    async with router(tmp_path, "told:Told", *quick) as (server, address, hosts):
        async with host(tmp_path, hosts, "--name", "a") as joined:
            await asked(address)
            joined.signal(signal.SIGKILL)
            await joined.wait()
            server.signal(signal.SIGTERM)
            stopped = await server.wait()
            assert stopped.code == 0, stopped.err
            assert "of host a are not known to have ended" in stopped.err


async def test_what_the_router_says_counts_less_than_what_the_host_was_told(
    tmp_path: Path,
) -> None:
    theirs = ("told:Told", "--arg", "level=1", "--arg", "size=2", "--worker-env", "0:GPU=three")
    async with router(tmp_path, *theirs) as (_, address, hosts):
        async with host(tmp_path, hosts, "--arg", "level=9", "--worker-env", "0:GPU=four"):
            said = await asked(address)
            assert (said["args"], said["gpu"]) == ({"level": 9, "size": 2}, "four")


async def test_a_host_waits_for_its_router_and_comes_back_to_the_next(
    tmp_path: Path, folder: str
) -> None:
    (tmp_path / "told.py").write_text(TOLD)
    at = f"ipc://{folder}/hosts"
    serving = ("serve", "told:Told", "--bind", f"ipc://{folder}/s", "--json", "--workers", "0")
    async with forked(tmp_path, "join", at, "--workers", "1", "--json") as joining:
        await joining.said("nothing listens at")
        for _ in range(2):
            # The second one waits until the host has ended the workers that the first one had.
            more = ("--hosts-bind", at, "--fence-s", "1000")
            async with forked(tmp_path, *serving, *more) as server:
                event = await server.event("serving")
                assert (await joining.event("joined"))["environment"] == "told:Told"
                await asked(event["address"])
                server.signal(signal.SIGKILL)
                await server.wait()
            assert (await joining.event("apart"))["reason"]


async def test_who_may_not_join_is_told_and_ends(tmp_path: Path) -> None:
    for name, role in (("node", "work"), ("trainer", "submit")):
        made = await run(tmp_path, "curve", "new", "keys", name, "--role", role)
        assert made.code == 0, made.err
    async with router(tmp_path, "told:Told", "--curve", "keys") as (_, address, hosts):
        keyless = await run(tmp_path, "join", hosts, "--workers", "1")
        assert keyless.code == 3
        assert "it wants the mechanism CURVE" in keyless.err
        wrong = await run(tmp_path, "join", hosts, "--workers", "1", "--curve", "trainer.key")
        assert wrong.code == 3
        assert "the key trainer may not work: that needs the role work" in wrong.err
        async with host(tmp_path, hosts, "--curve", "node.key") as joined:
            trainer = ClientCurve.from_file(tmp_path / "trainer.key")
            assert (await asked(address, curve=trainer))["reward"] == 1.0
            same = await run(tmp_path, "curve", "revoke", "keys", "node")
            assert same.code == 0
            # What has run there is over with the lease, which is not to be waited for here.
            await joined.said("the key node was revoked")
            assert joined.process.poll() is None


async def test_host_without_the_environment_is_told_and_ends_and_one_with_a_range_says_it(
    tmp_path: Path,
) -> None:
    async with router(tmp_path, "nowhere:Here") as (_, _, hosts):
        nothing = await run(tmp_path, "join", hosts, "--workers", "1", "--json")
        assert nothing.code == 2
        assert "nowhere" in nothing.last["error"]["message"]
        given = ("join", hosts, "told:Told", "--workers", "1..3", "--json")
        async with forked(tmp_path, *given) as joining:
            assert (await joining.event("joined"))["workers"] == "1..3"


async def test_a_service_manager_hears_when_a_host_is_in(tmp_path: Path, folder: str) -> None:
    place = f"{folder}/notify"
    with manager_socket(place) as listening:
        async with router(tmp_path, "told:Told") as (_, _, hosts):
            async with host(tmp_path, hosts, NOTIFY_SOCKET=place) as joined:
                told = await heard_with(listening, "READY")
                assert told["STATUS"].startswith("joined: ")
                joined.signal(signal.SIGTERM)
                assert (await heard_with(listening, "STOPPING"))["STOPPING"] == "1"
