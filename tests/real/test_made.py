"""What a rollout made, sandboxes among it, is gone when it is over, whatever ended it."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio

from tests.proc import is_alive, stats
from tests.real.judge import Judge
from tests.real.making import BOXES
from tests.real.support import (
    PATIENCE_S,
    SOON_S,
    assert_gone,
    is_doomed,
    open_calls,
    open_server,
    open_server_process,
    serving,
    serving_process,
    until,
)
from trio_envserve import (
    Client,
    EnvironmentBroken,
    Fault,
    RolloutFailed,
    WorkerLost,
    open_client,
    open_host,
)
from trio_envserve import open_server as open_real_server
from trio_envserve.worker import folders

MAKING, BOXING = "tests.real.making:Making", "tests.real.making:Boxing"
boxed = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
each_kind = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(MAKING, id="a folder and processes"),
        pytest.param(BOXING, id="a sandbox", marks=boxed),
    ],
)


class Made(NamedTuple):
    """What a rollout has made, and where it ran."""

    folder: Path
    pids: list[int]
    worker: int
    guard: int

    def is_there(self) -> bool:
        return self.folder.exists() or any(map(is_alive, self.pids))

    def is_whole(self) -> bool:
        return self.folder.exists() and all(map(is_alive, self.pids))


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
    made = Made(Path(folder), *more)
    assert made.pids
    return made


@each_kind
async def test_things_of_a_rollout_are_gone_before_it_has_an_outcome(judge, temporary, kind):
    async with serving(judge, environment=kind) as (_, calls):
        await calls.value(calls.start("a", value="returns"))
        assert not (await made_by(judge, "a")).is_there()
        await calls.error(calls.start("b", value="raises"), RolloutFailed)
        assert not (await made_by(judge, "b")).is_there()
    assert kind is BOXING or not list(temporary.iterdir())


@each_kind
async def test_things_of_a_cancelled_rollout_are_gone_and_its_neighbours_are_not(
    judge, temporary, kind
):
    async with serving(judge, environment=kind) as (_, calls):
        for key in "ab":
            calls.start(key, value="waits")
        one, other = await made_by(judge, "a"), await made_by(judge, "b")
        calls.cancel("b")
        await assert_gone(*other.pids)
        await until(lambda: not other.folder.exists())
        assert one.is_whole()


@each_kind
async def test_things_of_a_killed_worker_are_gone_and_those_of_another_are_not(
    judge, temporary, kind
):
    one_each: dict[str, Any] = {"workers": 2, "worker_capacity": 1}
    async with serving(judge, environment=kind, **one_each) as (_, calls):
        for key in "ab":
            calls.start(key, value="waits", rerun=False)
        one, other = await made_by(judge, "a"), await made_by(judge, "b")
        os.kill(one.worker, signal.SIGKILL)
        await calls.error("a", WorkerLost)
        if kind is MAKING:
            assert all(map(is_doomed, one.pids))  # at once: the proof of death covers it
        await assert_gone(*one.pids)
        await until(lambda: not one.folder.exists())
        assert other.is_whole()


@each_kind
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_things_of_rollouts_are_gone_when_their_server_is(judge, temporary, kind, how):
    """Folders of sandboxes, which other servers share, at the start of the next one."""
    async with serving_process(
        judge, environment=kind, stop_s=0.2, drain_s=0.2
    ) as (server, calls):  # fmt: skip
        calls.start("a", value="waits")
        made = await made_by(judge, "a")
        server.signal(how)
        await server.wait()
        await assert_gone(*made.pids)
        await until(lambda: kind is BOXING or not list(temporary.iterdir()))


async def test_folder_that_nobody_is_left_to_remove_is_gone_at_the_next_start(judge, temporary):
    async with serving_process(judge, environment=MAKING) as (server, calls):
        calls.start("a", value="waits")
        made = await made_by(judge, "a")
        server.signal(signal.SIGSTOP)  # or the guard kills and removes until it is killed itself
        os.kill(made.guard, signal.SIGKILL)
        server.signal(signal.SIGKILL)
        await assert_gone(made.worker, *made.pids)
        assert made.folder.exists()
    async with open_server_process(judge, environment=MAKING):
        await until(lambda: not list(temporary.iterdir()))


async def test_folder_of_a_killed_program_is_gone_once_a_server_without_processes_starts(
    tmp_path, monkeypatch
):
    """With ``workers=0`` there is no guard that would have it removed."""
    monkeypatch.setattr(folders, "temporary", lambda: str(tmp_path))
    left = tmp_path / (folders.PREFIX + "0" * 16)
    (left / "0").mkdir(parents=True)
    (left / folders.LOCK).touch()
    async with open_real_server("arithmetic", workers=0):
        with trio.fail_after(SOON_S):
            await until(lambda: not left.exists())


async def test_g13_resource_of_a_killed_worker_is_destroyed_by_one_of_the_same_host(
    judge, tmp_path: Path
):
    """A worker of the other host found nothing, and the resource was told as destroyed."""
    made = [tmp_path / name for name in ("h0", "h1")]

    def there() -> list[Path]:
        return [each for host in made for each in host.iterdir()]

    async with AsyncExitStack() as stack:
        opened = open_server(judge, environment="tests.real.making:HeldHere", hosted=True)
        server = await stack.enter_async_context(opened)
        assert server.hosts_address is not None
        for each in made:
            each.mkdir()
            environ = [{"HOST_FOLDERS": str(each)}]
            await stack.enter_async_context(
                open_host(server.hosts_address, workers=1, name=each.name, worker_environ=environ)
            )
        calls = await stack.enter_async_context(open_calls(server.address))
        await until(lambda: server.status().ready == 2)
        calls.start("a", rerun=False)
        await until(there)
        (busy,) = [each for each in server.stats().per_worker if each.pending]
        assert busy.pid is not None
        os.kill(busy.pid, signal.SIGKILL)
        await calls.error("a", WorkerLost)
        await until(lambda: server.stats().resources_destroyed == 1)
        assert there() == []


# -- sandboxes ------------------------------------------------------------------------------


@pytest.fixture
def boxes(temporary: Path) -> Path:
    """The folder that has those of all sandboxes."""
    return temporary / BOXES


@asynccontextmanager
async def asked(environment: str) -> AsyncIterator[Client]:
    with trio.fail_after(PATIENCE_S):
        async with open_real_server(f"tests.real.making:{environment}", workers=1) as server:
            async with open_client(server.address) as client:
                yield client


@boxed
async def test_sandbox_whose_rollout_is_cancelled_while_it_starts_goes(judge, boxes):
    async with serving(judge, environment=BOXING) as (_, calls):
        calls.start("first", value="waits")
        first = await made_by(judge, "first")
        for key in "abcde":
            calls.start(key, value="waits")
            await until(lambda: len(list(boxes.iterdir())) > 1)
            calls.cancel(key)
            await until(lambda: len(list(boxes.iterdir())) == 1)
        below = {pid for pid, fields in stats() if int(fields[1]) == first.worker}
        assert below == {first.pids[1]}


@boxed
async def test_sandbox_that_dies_is_put_down_to_the_infrastructure(judge, boxes):
    async with serving(judge, environment=BOXING) as (_, calls):
        calls.start("a", value="runs")
        os.kill((await made_by(judge, "a")).pids[0], signal.SIGKILL)
        error = await calls.error("a", RolloutFailed)
        assert error.code == "sandbox-died"
        assert (error.fault, error.mask, error.again) == (Fault.INFRASTRUCTURE, True, True)
        assert not list(boxes.iterdir())


@boxed
@pytest.mark.parametrize(
    ("environment", "told"), [("AsyncioBoxing", "of asyncio"), ("in_a_thread", "of a thread")]
)
async def test_sandbox_is_had_on_asyncio_and_in_a_thread(boxes, environment: str, told: str):
    async with asked(environment) as client:
        assert (await client.run_rollout({}))["told"] == told
        assert not list(boxes.iterdir())


@boxed
async def test_command_of_a_cancelled_thread_ends(boxes):
    async with asked("in_a_thread") as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run_rollout, "waits")
            await until(lambda: len(list(boxes.glob("*/processes"))) == 1)
            nursery.cancel_scope.cancel()
        await until(lambda: not list(boxes.iterdir()))


@boxed
async def test_class_with_tools_has_a_sandbox_in_each_method(boxes):
    async with asked("Shell") as client:
        result: Any = await client.run_rollout({}, model="oracle")
        assert result["reward"] == 2.0
        said = [each["content"] for each in result["completion"] if each["role"] == "tool"]
        assert said == ["there", "2\n"]
        assert not list(boxes.iterdir())


@boxed
async def test_class_on_asyncio_has_a_sandbox(boxes):
    async with asked("AsyncioShell") as client:
        assert (await client.run_rollout({}, model="oracle"))["reward"] == 5.0


@boxed
async def test_class_whose_sandbox_cannot_be_made_is_refused_before_its_first_rollout():
    with pytest.raises(EnvironmentBroken, match="bubblewrap has no images"):
        async with asked("Imaged") as client:
            await client.run_rollout({})
