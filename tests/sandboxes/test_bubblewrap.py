"""Sandboxes by bubblewrap: what they hold off, and what they leave."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.proc import stats
from tests.sandboxes.provided import (
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
from trio_envserve.sandboxes import bubblewrap
from trio_envserve.sandboxes.interface import SandboxDied, SandboxSpec, SandboxUnavailable

pytestmark = pytest.mark.real
NAME = "bubblewrap"


async def test_home_of_the_machine_is_not_seen_and_only_the_own_one_and_tmp_are_written(
    tmp_path: Path,
):
    (tmp_path / "secret").write_text("hidden")
    async with created(NAME) as (sandbox, _, _):
        for path in (tmp_path, Path.home(), Path("/root"), Path("/etc/shadow"), Path("/var")):
            assert (await sandbox.run(command("ls", str(path)))).returncode != 0, path
        seen = await told(sandbox, "ls /home /home/sandbox")
        assert seen == "/home:\nsandbox\n\n/home/sandbox:\n"
        for folder in ("/", "/usr", "/etc", "/dev", "/proc/sys", "/home", "/bin"):
            ended = await sandbox.run(shell(f"echo x > {folder}/written"))
            assert ended.returncode != 0, folder
        await told(sandbox, "echo x > ~/written; echo x > /tmp/written; echo x > /dev/shm/written")


@pytest.fixture
def readable() -> Iterator[Path]:
    """A file that all users may read.  It is not below pytest's folders, which are root's: the
    sandboxes of root run as nobody."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        data = Path(folder, "data")
        data.write_text("for all")
        yield data
        assert data.read_text() == "for all"


async def test_readable_paths_are_seen_and_not_written(readable: Path):
    async with created(NAME, readable=[str(readable.parent)]) as (sandbox, _, _):
        assert await told(sandbox, f"cat {readable}") == "for all"
        assert (await sandbox.run(shell(f"echo x > {readable}"))).returncode != 0


async def test_a_server_on_the_machine_is_not_reached():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        connect = f"import socket; socket.create_connection(('127.0.0.1', {port}), 5)"
        async with created(NAME) as (sandbox, _, _):
            ended = await sandbox.run(command("python3", "-c", connect))
            assert b"refused" in ended.stderr
        async with created(NAME, network=True) as (sandbox, _, _):
            assert (await sandbox.run(command("python3", "-c", connect))).returncode == 0


async def test_no_further_user_namespace_and_no_right_is_had():
    async with created(NAME) as (sandbox, _, _):
        assert (await sandbox.run(command("unshare", "--user", "true"))).returncode != 0
        assert "CapBnd:\t0000000000000000" in await told(sandbox, "cat /proc/self/status")


async def test_process_1_cannot_be_killed_from_within():
    async with created(NAME) as (sandbox, _, _):
        await sandbox.run(shell("kill -9 1; kill -STOP 1; kill -9 -1"))
        assert await told(sandbox, "echo alive") == "alive\n"


async def test_a_child_in_a_session_of_its_own_is_killed_at_the_limit_of_time_too():
    async with created(NAME) as (sandbox, _, _):
        ended = await sandbox.run(shell("setsid sleep 9877 & wait", timeout_s=1.0))
        assert ended.limit == "timeout"
        assert "987" not in await told(sandbox, RUNNING)


async def test_memory_of_many_processes_counts_together():
    each = "python3 -c 'x = b\"x\" * (40 << 20); import time; time.sleep(60)'"
    async with created(NAME, memory_bytes=100 << 20) as (sandbox, _, _):
        ended = await sandbox.run(shell(f"{each} & {each} & {each} & {each} & wait"))
        assert (ended.returncode, ended.limit) == (-9, "memory")
        assert await told(sandbox, "echo alive") == "alive\n"


async def test_memory_that_is_shared_counts():
    code = "import mmap; m = mmap.mmap(-1, 1 << 28); [m.write(bytes(1 << 20)) for _ in range(256)]"
    async with created(NAME, memory_bytes=64 << 20) as (sandbox, _, _):
        ended = await sandbox.run(command("python3", "-c", f"{code}; import time; time.sleep(60)"))
        assert ended.limit == "memory"


async def test_files_have_no_more_room_than_the_limit():
    async with created(NAME, disk_bytes=1 << 20) as (sandbox, _, _):
        for folder in ("/tmp", "/home/sandbox", "/dev/shm"):
            ended = await sandbox.run(shell(f"for i in 1 2 3; do yes > {folder}/$i; done"))
            assert b"No space left" in ended.stderr or b"too large" in ended.stderr, folder


async def test_processor_time_has_its_limit():
    async with created(NAME, cpu_s=1) as (sandbox, _, _):
        ended = await sandbox.run(shell("while :; do :; done"))
        assert ended.returncode in (-signal.SIGXCPU, -signal.SIGKILL)


async def test_files_on_the_disk_go_whatever_their_rights():
    async with created(NAME, disk_bytes=None) as (sandbox, name, _):
        # What a removal must survive: a folder without rights, a link to the machine's files.
        await told(sandbox, "mkdir a a/b; echo x > a/b/c; chmod 0 a/b a; ln -s /usr u")
        assert bubblewrap.folder_of(name).exists()
    assert not bubblewrap.folder_of(name).exists()


async def test_tree_that_is_deeper_than_a_path_may_be_long_stayed_for_ever():
    """Its destroy failed each time: the path was too long."""
    dig = "import os\nfor _ in range(2000): os.mkdir('deeper'); os.chdir('deeper')"
    async with created(NAME, disk_bytes=None) as (sandbox, name, _):
        ended = await sandbox.run(command("python3", "-c", dig))
        assert ended.returncode == 0, ended
    assert not bubblewrap.folder_of(name).exists()
    assert os.stat("/usr").st_nlink > 0


async def test_a_killed_first_process_is_told_as_a_death():
    async with created(NAME) as (sandbox, name, _):
        os.kill(bubblewrap.processes_of(name)[0][0], signal.SIGKILL)
        with pytest.raises(SandboxDied, match="first process is gone"):
            while True:  # the kernel kills in its own time
                await sandbox.run(command("true"))


async def test_a_first_process_that_answers_nothing_is_told_as_a_death(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(bubblewrap, "END_S", 0.5)
    async with created(NAME) as (sandbox, name, _):
        os.kill(bubblewrap.processes_of(name)[0][0], signal.SIGSTOP)
        for large in (1, 1 << 22):  # the second one is not even taken
            with pytest.raises(SandboxDied, match="does not answer"):
                await sandbox.run(command("true", "x" * large, timeout_s=0.1))


async def test_command_that_process_1_would_not_take_cannot_be_started():
    """It was told as the death of its sandbox."""
    async with created(NAME) as (sandbox, _, _):
        ended = await sandbox.run(command("true", "x" * (64 << 20)))
        assert (ended.returncode, ended.stderr) == (126, b"true: Argument list too long\n")
        assert await told(sandbox, "echo alive") == "alive\n"


async def test_a_first_process_that_answers_anything_is_told_as_a_death():
    for reply in (b"", b"{", b"[" * 4095 + b"\n", b"{}\n", b'{"status": "0", "limit": ""}\n'):
        with pytest.raises(SandboxDied):
            bubblewrap._told(reply, is_there=False)


@pytest.mark.parametrize("has_handle", [True, False])
async def test_destroyed_processes_are_gone(has_handle: bool):
    provider = provider_or_skip(NAME)
    seconds = 10**6 + os.getpid()  # is in the words of nobody else
    async with created(NAME) as (sandbox, name, handle):
        await sandbox.run(shell(f"sleep {seconds} >/dev/null 2>&1 & setsid sleep {seconds} &"))
        own = {pid for pid, _ in bubblewrap.processes_of(name)}
        assert own <= {pid for pid, _ in stats()}
        provider.destroy(name, handle if has_handle else None)
        assert not own & {pid for pid, _ in stats()}
        words = str(seconds).encode()
        assert not [pid for pid, _ in stats() if _has(Path(f"/proc/{pid}/cmdline"), words)]


@pytest.mark.parametrize(("later", "boot"), [(1, ""), (0, "of another life")])
def test_a_process_that_only_has_the_number_is_not_killed(later: int, boot: str):
    name = new_name()
    folder = bubblewrap._make_folder(name, on_disk=False)
    with subprocess.Popen(["sleep", "60"]) as other:
        pid, began = bubblewrap._identity(other.pid)
        noted = {"boot": boot or bubblewrap._boot(), "processes": [(pid, began + later)]}
        (folder / "processes").write_text(json.dumps(noted))
        bubblewrap.destroy(name, None)
        assert other.poll() is None
        other.kill()
    assert not folder.exists()


@pytest.mark.parametrize("after_s", [0.0, 0.005, 0.01, 0.02, 0.04, 0.08])
async def test_a_cancelled_create_leaves_no_process(after_s: float):
    provider, name = provider_or_skip(NAME), new_name()
    sign = os.getpid() * 1000 + round(after_s * 1000)  # is in the words of all of them
    with trio.move_on_after(after_s):
        await provider.create(name, spec_for(NAME, cpu_s=sign))
    await trio.to_thread.run_sync(provider.destroy, name, None)
    words = f'"RLIMIT_CPU": {sign}'.encode()
    assert not [pid for pid, _ in stats() if _has(Path(f"/proc/{pid}/cmdline"), words)]


def test_a_sandbox_dies_with_the_process_that_made_it():
    provider_or_skip(NAME)
    name = new_name()
    text = (
        "import sys, trio\n"
        "from trio_envserve.sandboxes import bubblewrap\n"
        "from trio_envserve.sandboxes.interface import SandboxSpec\n"
        f"trio.run(bubblewrap.create, {name!r}, SandboxSpec())\n"
        "print('made', flush=True)\n"
        "sys.stdin.read()\n"
    )
    words = [sys.executable, "-c", text]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as maker:
        assert maker.stdout is not None
        assert maker.stdout.readline() == b"made\n"
        numbers = [os.pidfd_open(pid) for pid, _ in bubblewrap.processes_of(name)]
        maker.kill()
    for number in numbers:
        assert select.select([number], [], [], 30)[0]
        os.close(number)
    bubblewrap.destroy(name, None)


def _has(path: Path, text: bytes) -> bool:
    try:
        return text in path.read_bytes()
    except OSError:  # it has ended
        return False


async def test_nothing_is_mounted_outside():
    """By the numbers of file systems: others may mount theirs meanwhile."""

    def mounted(process: str) -> set[str]:
        lines = Path(f"/proc/{process}/mountinfo").read_text().splitlines()
        return {line.split()[2] for line in lines}

    before = mounted("self")
    async with created(NAME) as (_, name, _):
        own = mounted(str(bubblewrap.processes_of(name)[0][0])) - before
        assert len(own) >= 4  # the root, home, /tmp and /dev/shm
        assert not own & mounted("self")


async def test_a_sandbox_that_does_not_start_says_why():
    provider, name = provider_or_skip(NAME), new_name()
    try:
        with pytest.raises(SandboxUnavailable, match="/nosuch"):
            await provider.create(name, spec_for(NAME, readable=["/nosuch"]))
    finally:
        provider.destroy(name, None)


async def test_a_folder_of_another_user_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    provider = provider_or_skip(NAME)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / f"trio-envserve-sandboxes-{os.geteuid()}").symlink_to("/usr")
    with pytest.raises(SandboxUnavailable, match="own"):
        await provider.create(new_name(), spec_for(NAME))


def test_an_image_is_refused():
    with pytest.raises(ConfigError, match="has no images"):
        bubblewrap.check(SandboxSpec(image="python"))


async def test_many_commands_run_at_once():
    ends = []
    async with created(NAME, processes=200) as (sandbox, _, _):

        async def run() -> None:
            ends.append(await sandbox.run(shell("sleep 0.2; echo x")))

        async with trio.open_nursery() as nursery:
            for _ in range(40):
                nursery.start_soon(run)
    assert [each.stdout for each in ends] == [b"x\n"] * 40
