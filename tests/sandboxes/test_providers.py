"""What every provider of sandboxes does: each test runs with each one that is here."""

from __future__ import annotations

import pytest
import trio

from tests.sandboxes.provided import (
    NAMES,
    RUNNING,
    command,
    created,
    new_name,
    provider_or_skip,
    shell,
    spec_for,
    told,
)
from trio_envserve.core.errors import ConfigError
from trio_envserve.sandboxes.interface import SandboxDied, SandboxUnavailable

pytestmark = [pytest.mark.real, pytest.mark.parametrize("name", NAMES)]


async def test_a_command_gives_status_and_outputs_or_says_why_it_cannot_start(name: str):
    async with created(name) as (sandbox, _, _):
        ended = await sandbox.run(shell("cat; echo of >&2; exit 3", input=b"\xff\0 in"))
        assert ended == (3, b"\xff\0 in", b"of\n", 0, 0, "")
        here = await told(sandbox, "pwd; echo $LAND", cwd="/tmp", env={"LAND": "ä b"})
        assert here == "/tmp\nä b\n"
        missing = await sandbox.run(command("nosuch"))
        nowhere = await sandbox.run(command("ls", cwd="/nosuch"))
        assert (missing.returncode, nowhere.returncode) in ((127, 126), (127, 127))
        assert b"nosuch" in missing.stderr
        assert b"nosuch" in nowhere.stderr


async def test_a_command_at_its_limit_of_time_is_killed_with_its_children(name: str):
    async with created(name) as (sandbox, _, _):
        line, limit_s = "echo begun; (sleep 9870 &); sleep 9871 & sleep 9872", 1.0
        ended = await sandbox.run(shell(line, timeout_s=limit_s))
        while not ended.stdout:  # on a slow machine it may not have begun by then
            limit_s *= 4
            ended = await sandbox.run(shell(line, timeout_s=limit_s))
        assert ended == (-9, b"begun\n", b"", 0, 0, "timeout")
        assert "987" not in await told(sandbox, RUNNING)


async def test_a_cancelled_command_is_killed(name: str):
    async with created(name) as (sandbox, _, _):
        with trio.move_on_after(1.0):
            await sandbox.run(shell("sleep 9873"))
        while "987" in await told(sandbox, RUNNING):
            await trio.sleep(0.05)  # its end is under way


async def test_a_process_in_the_background_holds_up_no_command_and_runs_on(name: str):
    async with created(name) as (sandbox, _, _):
        begun = await sandbox.run(shell("sleep 9874 >/dev/null 2>&1 & echo begun"))
        assert begun.stdout == b"begun\n"
        assert "9874" in await told(sandbox, RUNNING)


async def test_a_large_output_is_cut_in_its_middle(name: str):
    async with created(name) as (sandbox, _, _):
        ended = await sandbox.run(shell("echo a; yes | head -c 5000000; echo z", most_bytes=10))
        assert ended.stdout == b"a\ny\nyy\ny\nz\n"[:5] + b"\ny\nz\n"
        assert ended.stdout_cut == 5_000_004 - 10
        assert f"[... {ended.stdout_cut} bytes cut ...]" in ended.text


async def test_memory_at_its_limit_ends_a_command_and_is_told(name: str):
    async with created(name, memory_bytes=64 << 20) as (sandbox, _, _):
        ended = await sandbox.run(shell("x=x; while :; do x=$x$x; done"))
        # By bubblewrap a process is refused memory, and fails in its own way.
        assert ended.limit == "memory" or (name == "bubblewrap" and ended.returncode)
        assert await told(sandbox, "echo alive") == "alive\n"


async def test_a_fork_bomb_has_no_more_processes_than_the_limit(name: str):
    async with created(name, processes=16) as (sandbox, _, _):
        ended = await sandbox.run(shell("bomb() { bomb | bomb & }; bomb; sleep 1", timeout_s=10.0))
        assert b"fork" in ended.stderr
        alive = await sandbox.run(shell("ls -d /proc/[0-9]*", timeout_s=10.0))
        assert alive.stdout.count(b"\n") <= 16 + 3  # process 1, what it waits with, the last one


async def test_no_network_process_or_variable_of_the_machine_is_seen(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SECRET_OF_A_SERVER", "hidden-value")
    async with created(name) as (sandbox, _, _):
        devices = await told(sandbox, "cat /proc/net/dev")
        assert (devices.count(":"), devices.count("lo:")) == (1, 1)
        assert len((await told(sandbox, "ls -d /proc/[0-9]*")).split()) < 6
        assert "hidden-value" not in await told(sandbox, "env; cat /proc/*/environ")


async def test_a_sandbox_that_dies_ends_the_command_under_way(name: str):
    provider = provider_or_skip(name)
    async with created(name) as (sandbox, sandbox_name, handle):
        with pytest.RaisesGroup(SandboxDied):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(sandbox.run, shell("sleep 9875"))
                while "9875" not in await told(sandbox, RUNNING):
                    await trio.sleep(0.05)
                await trio.to_thread.run_sync(provider.destroy, sandbox_name, handle)


async def test_destroyed_sandbox_is_told_as_dead_and_may_be_destroyed_again(name: str):
    provider = provider_or_skip(name)
    async with created(name) as (sandbox, own, handle):
        await trio.to_thread.run_sync(provider.destroy, own, handle)
        with pytest.raises(SandboxDied):
            await sandbox.run(command("true"))
        for again in ((own, handle), (own, None), (new_name(), None)):  # the last never was
            await trio.to_thread.run_sync(provider.destroy, *again)


@pytest.mark.parametrize("turns", [0, 1, 3, 10])
async def test_a_cancelled_create_leaves_nothing_once_destroyed(name: str, turns: int):
    provider, sandbox_name = provider_or_skip(name), new_name()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(provider.create, sandbox_name, spec_for(name))
            for _ in range(turns):
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        await trio.to_thread.run_sync(provider.destroy, sandbox_name, None)
        # The name is free again, so nothing has it.
        handle = await provider.create(sandbox_name, spec_for(name))
        await trio.to_thread.run_sync(provider.destroy, sandbox_name, handle)


async def test_a_name_is_given_only_once(name: str):
    provider = provider_or_skip(name)
    async with created(name) as (sandbox, sandbox_name, _):
        with pytest.raises(SandboxUnavailable):
            await provider.create(sandbox_name, spec_for(name))
        assert await told(sandbox, "echo alive") == "alive\n"


def test_a_provider_whose_program_is_missing_says_what_to_install(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    from trio_envserve.sandboxes.finding import find_provider

    monkeypatch.setenv("PATH", "/nosuch")
    with pytest.raises(ConfigError, match="install"):
        find_provider(name).check(spec_for(name))
