"""What a rollout made is gone when it is over, whatever ended it."""

from __future__ import annotations

import json
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from tests.proc import is_alive
from tests.real.judge import Judge
from tests.real.support import (
    ANY_PORT,
    PATIENCE_S,
    QUICK,
    QUICK_CLIENT,
    SOON_S,
    assert_gone,
    is_doomed,
    open_server_process,
    serving,
    serving_process,
    until,
)
from trio_envserve import (
    ClientLimits,
    RolloutFailed,
    ServerLimits,
    WorkerLost,
    open_client,
    open_host,
    open_server,
)
from trio_envserve.worker import folders

MAKING = "tests.real.making:Making"


class Made(NamedTuple):
    """What a rollout has made, and where it ran."""

    folder: Path
    pids: list[int]
    worker: int
    guard: int

    def is_there(self) -> bool:
        return self.folder.exists() or any(map(is_alive, self.pids))


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files of all workers."""
    made = tmp_path / "temporary"
    made.mkdir()
    monkeypatch.setenv("TMPDIR", str(made))
    return made


async def made_by(judge: Judge, key: str) -> Made:
    """What the rollout with this key has made, once it has."""
    folder, *more = json.loads(await judge.wait_for(f"{key}.made")).values()
    return Made(Path(folder), *more)


async def assert_over(made: Made, temporary: Path) -> None:
    """All of it goes, and so does the base folder."""
    await assert_gone(*made.pids)
    await until(lambda: not list(temporary.iterdir()))


async def test_things_of_a_rollout_are_gone_before_it_has_an_outcome(judge, temporary):
    async with serving(judge, environment=MAKING) as (_, calls):
        await calls.value(calls.start("a", value="returns"))
        assert not (await made_by(judge, "a")).is_there()
        await calls.error(calls.start("b", value="raises"), RolloutFailed)
        assert not (await made_by(judge, "b")).is_there()
    assert not list(temporary.iterdir())


async def test_things_of_a_cancelled_rollout_are_gone_and_its_neighbours_are_not(judge, temporary):
    async with serving(judge, environment=MAKING) as (_, calls):
        for key in "ab":
            calls.start(key, value="waits")
        one, other = await made_by(judge, "a"), await made_by(judge, "b")
        calls.cancel("b")
        await assert_gone(*other.pids)
        await until(lambda: not other.folder.exists())
        assert one.folder.exists()
        assert all(map(is_alive, one.pids))


async def test_things_of_a_killed_worker_are_gone_and_those_of_another_are_not(judge, temporary):
    async with serving(judge, environment=MAKING, workers=2) as (_, calls):
        for key in "ab":
            calls.start(key, value="waits", rerun=False)
        one, other = await made_by(judge, "a"), await made_by(judge, "b")
        os.kill(one.worker, signal.SIGKILL)
        await calls.error("a", WorkerLost)
        assert all(map(is_doomed, one.pids))  # at once: the proof of death covers it
        await until(lambda: not one.folder.exists())
        assert other.folder.exists()
        assert all(map(is_alive, other.pids))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_things_of_rollouts_are_gone_when_their_server_is(judge, temporary, how):
    async with serving_process(
        judge, environment=MAKING, stop_s=0.2, drain_s=0.2
    ) as (server, calls):  # fmt: skip
        calls.start("a", value="waits")
        made = await made_by(judge, "a")
        server.signal(how)
        await server.wait()
        await assert_over(made, temporary)


async def test_folder_that_nobody_is_left_to_remove_is_gone_at_the_next_start(judge, temporary):
    async with serving_process(judge, environment=MAKING) as (server, calls):
        calls.start("a", value="waits")
        made = await made_by(judge, "a")
        for pid in (server.pid, made.guard):
            os.kill(pid, signal.SIGKILL)
        await assert_gone(made.worker, *made.pids)
        assert made.folder.exists()
    async with open_server_process(judge, environment=MAKING):
        await assert_over(made, temporary)


async def test_folder_of_a_killed_program_is_gone_once_a_server_without_processes_starts(
    tmp_path, monkeypatch
):
    """With ``workers=0`` there is no guard that would have it removed."""
    monkeypatch.setattr(folders, "place", lambda: str(tmp_path))
    left = tmp_path / (folders.PREFIX + "0" * 16)
    (left / "0").mkdir(parents=True)
    (left / folders.LOCK).touch()
    async with open_server("arithmetic", workers=0):
        with trio.fail_after(SOON_S):
            await until(lambda: not left.exists())


async def test_g13_resource_of_a_killed_worker_is_destroyed_by_one_of_the_same_host(tmp_path: Path):
    """A worker of the other host found nothing, and the resource was told as destroyed."""
    made = [tmp_path / name for name in ("h0", "h1")]
    for each in made:
        each.mkdir()
    with trio.fail_after(PATIENCE_S):
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(
                open_server(
                    "tests.real.making:held_here", workers=0, hosts_bind=ANY_PORT,
                    limits=ServerLimits(**QUICK),
                )
            )  # fmt: skip
            assert server.hosts_address is not None
            for each in made:
                environ = [{"HOST_FOLDERS": str(each)}]
                await stack.enter_async_context(
                    open_host(
                        server.hosts_address, workers=1, name=each.name, worker_environ=environ
                    )
                )
            client = await stack.enter_async_context(
                open_client(server.address, limits=ClientLimits(**QUICK_CLIENT))
            )
            await until(lambda: server.status().ready == 2)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.outcome, {})
                await until(lambda: [each for host in made for each in host.iterdir()])
                (busy,) = [each for each in server.stats().per_worker if each.pending]
                assert busy.pid is not None
                os.kill(busy.pid, signal.SIGKILL)
            await until(lambda: server.stats().resources_destroyed == 1)
            assert [each for host in made for each in host.iterdir()] == []
