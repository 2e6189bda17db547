"""What a rollout makes, on each backend: it works, and it is gone when the attempt is over."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.proc import is_alive
from tests.real.making import FAMILY
from tests.real.support import assert_gone
from tests.worker.helpers import BACKENDS, opened, request
from trio_envserve import ProcessFailed, ProcessNotStarted, ProcessTimeout, redaction
from trio_envserve.envs import load
from trio_envserve.envs.made import TAIL_BYTES
from trio_envserve.worker import made as made_module
from trio_envserve.worker.failures import EnvironmentFailure
from trio_envserve.worker.folders import Folders

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("nothing_left", "place")]

FOREVER = ["sleep", "120"]


class Both:
    """A process, or a rollout, by the same words on each backend: what is plain in a thread is
    awaited elsewhere, as if it were."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found) or name == "kill":
            return found

        async def call(*args: Any, **options: Any) -> Any:
            value = found(*args, **options)
            return await value if inspect.isawaitable(value) else value

        return call


class Block:
    """``rollout.process`` by the same words on each backend."""

    def __init__(self, block: Any, backend: str) -> None:
        self._block = block
        self._plain = backend == "thread"

    async def __aenter__(self) -> Both:
        block = self._block
        return Both(block.__enter__() if self._plain else await block.__aenter__())

    async def __aexit__(self, *raised: Any) -> None:
        left = self._block.__exit__(*raised) if self._plain else self._block.__aexit__(*raised)
        if inspect.isawaitable(left):
            await left


class Code:
    """An environment on any backend whose code is ``body(rollout, process, run)``.  In a thread,
    what it awaits has happened already."""

    def __init__(self, backend: str, body: Callable[..., Any]) -> None:
        self.backend, self._body = backend, body
        self.run_rollout: Any = self._in_thread if backend == "thread" else self._on_loop

    async def _on_loop(self, rollout: Any) -> Any:
        run = rollout.run_sync if self.backend == "thread" else rollout.run

        async def ran(*args: Any, **options: Any) -> Any:
            value = run(*args, **options)
            return await value if inspect.isawaitable(value) else value

        def process(*args: Any, **options: Any) -> Block:
            return Block(rollout.process(*args, **options), self.backend)

        return await self._body(rollout, process, ran)

    def _in_thread(self, rollout: Any) -> Any:
        coroutine = self._on_loop(rollout)
        try:
            coroutine.send(None)
        except StopIteration as ended:
            return ended.value
        raise AssertionError("it waits for a loop")


async def ran(body: Callable[..., Any], backend: str = "trio", **more: Any) -> Any:
    """The value of a rollout."""
    async with opened(load(Code(backend, body)), threads=2) as runner:
        return await runner.run(request(**more), request_id="r")


def written(text: str) -> list[str]:
    return ["sh", "-c", text]


@pytest.mark.parametrize("backend", BACKENDS)
async def test_process_is_talked_to_by_pipes_and_waited_for(backend, place):
    async def body(rollout, process, run):
        line = "echo here; pwd; cat; echo bad >&2; exit 3"
        async with process(written(line)) as talk:
            assert await talk.receive_line() == b"here\n"
            assert await talk.receive_line() == os.fsencode(rollout.folder) + b"\n"
            await talk.send(b"one\ntwo")
            assert await talk.receive_line() == b"one\n"
            await talk.end_input()
            assert await talk.wait() == 3
            assert [await talk.receive(1), await talk.receive(), await talk.receive()] == [
                b"t", b"wo", b"",
            ]  # fmt: skip
            assert talk.returncode == 3
            assert talk.pid > 1
        assert talk.stderr == b"bad\n"
        async with process(FOREVER, stdin="null", stdout="null", stderr="null") as talk:
            for number in (0, 65):
                with pytest.raises(ValueError, match="from 1 to 64"):
                    talk.kill(number)
            talk.kill(signal.SIGINT)
            with pytest.raises(ProcessFailed, match="'sleep': it was ended by SIGINT"):
                await talk.wait(check=True)
        return "done"

    assert await ran(body, backend) == "done"
    assert not list(place.iterdir())


@pytest.mark.parametrize("backend", BACKENDS)
async def test_process_that_runs_to_its_end_is_told_with_its_output(backend):
    async def body(rollout, process, run):
        done = await run(written("cat; echo bad >&2; kill -9 $$"), input=b"in")
        assert done == (-9, b"in", b"bad\n", 0, 0, "")
        assert done.how == "it was ended by SIGKILL"
        done = await run(written("echo out; echo bad >&2"), stderr="stdout", most_bytes=6)
        assert done == (0, b"outad\n", b"", 2, 0, "")
        done = await run(written("setsid sleep 120 &"))  # which holds the pipes
        assert done.returncode == 0
        done = await run(["true"], input=b"x" * 1_000_000)  # which it does not read
        assert done.returncode == 0
        with pytest.raises(ProcessFailed, match="status 4; its standard error ends so:\nbad"):
            await run(written("echo bad >&2; exit 4"), check=True)
        said, timeout_s = b"", 0.1
        while not said:  # a slow machine may not have begun it so soon
            timeout_s *= 2
            with pytest.raises(ProcessTimeout, match="had not ended") as late:
                await run(written("echo begun; sleep 600"), timeout_s=timeout_s)
            said = late.value.completed.stdout
        assert late.value.completed == (-9, b"begun\n", b"", 0, 0, "timeout")
        line = f"head -c {3 * TAIL_BYTES} /dev/zero >&2; echo end >&2"
        async with process(written(line)) as talk:
            await talk.wait()
        assert (len(talk.stderr), talk.stderr[-5:]) == (TAIL_BYTES, b"\0end\n")
        done = await run(written(line), input="text", most_bytes=6)
        assert (done.stderr, done.stderr_cut) == (b"\0\0\0nd\n", 3 * TAIL_BYTES - 2)
        return "done"

    assert await ran(body, backend) == "done"


@pytest.mark.parametrize("backend", BACKENDS)
async def test_family_of_a_process_is_dead_at_the_end_of_its_block(backend):
    async def body(rollout, process, run):
        async with process([sys.executable, "-c", FAMILY]) as talk:
            pids = [int(await talk.receive_line()) for _ in range(4)]
            talk.kill()
            await talk.wait()
            assert sum(map(is_alive, pids)) >= 2  # those that have left its group
        assert not any(map(is_alive, pids))
        return "done"

    assert await ran(body, backend) == "done"


async def test_bomb_that_forks_into_sessions_is_dead_at_the_end_of_its_block():
    bomb = (
        "import os, time\n"
        "for depth in range(4):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork():\n"
        "            os._exit(0)\n"
        "        continue\n"
        "    os.fork()\n"
        "os.write(1, b'%d\\n' % os.getpid())\n"
        "time.sleep(120)\n"
    )

    async def body(rollout, process, run):
        async with process([sys.executable, "-c", bomb]) as talk:
            pids = [int(await talk.receive_line()) for _ in range(3**4)]
        assert len(set(pids)) == 3**4
        assert not any(map(is_alive, pids))
        return "done"

    assert await ran(body) == "done"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_process_that_attacks_its_reaper_is_dead_at_the_end_of_its_block(
    number, monkeypatch, caplog
):
    monkeypatch.setattr(made_module, "KILL_S", 20.0)

    async def body(rollout, process, run):
        line = f"read line; kill -{int(number)} $PPID; echo done; sleep 120"
        async with process(written(line)) as talk:
            await talk.send(b"now\n")
            await talk.receive_line()
            if number == signal.SIGKILL:
                assert await talk.wait() == -9
        assert not is_alive(talk.pid)
        return "done"

    assert await ran(body) == "done"
    told = [each for each in caplog.records if "may be alive" in each.getMessage()]
    assert len(told) == (number == signal.SIGKILL)  # one that was stopped goes on


async def test_process_hears_the_signals_that_its_worker_ignores():
    async def body(rollout, process, run):
        async with process(FOREVER) as talk:
            talk.kill(signal.SIGINT)
            return await talk.wait()

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a worker
    try:
        assert await ran(body) == -signal.SIGINT
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("command", "options", "why"),
    [
        (["no such"], {}, "'no such' was not found"),
        (["./none"], {}, "'./none' was not found"),
        (["/etc/passwd"], {}, "this user may not run '/etc/passwd'"),
        (["true"], {"cwd": "/no/such"}, "the directory '/no/such' for 'true' does not exist"),
        (["true"], {"cwd": "/etc/passwd"}, "'/etc/passwd', the directory for 'true', is none"),
        (["true"], {"env": {"PATH": "/none"}}, "'true' was not found"),
        (["true", "x" * (1 << 20)], {}, "the words and variables of 'true' are too long"),
    ],
)
async def test_process_that_cannot_start_says_why(command, options, why):
    async def body(rollout, process, run):
        with pytest.raises(ProcessNotStarted, match=why) as raised:
            await run(command, **options)
        assert raised.value.errno
        return "done"

    assert await ran(body) == "done"


async def test_process_without_room_in_the_system_says_so(monkeypatch):
    async def full(*args: Any, **options: Any) -> Any:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(trio.lowlevel, "open_process", full)

    async def body(rollout, process, run):
        with pytest.raises(ProcessNotStarted, match="no room for another process, 'true'"):
            await run(["true"])
        return "done"

    assert await ran(body) == "done"


async def test_process_whose_folder_is_gone_is_not_started():
    async def body(rollout, process, run):
        rollout.folder.rmdir()
        with pytest.raises(ProcessNotStarted, match="does not exist"):
            await run(["true"])
        return "done"

    assert await ran(body) == "done"


async def test_process_has_the_variables_of_the_worker_but_its_secrets(monkeypatch):
    monkeypatch.setenv("SEEN", "by all")
    monkeypatch.setenv("TOKEN", "a long secret")
    redaction.hide(["TOKEN"])
    line = "echo $SEEN $TOKEN $TMPDIR"

    async def body(rollout, process, run):
        folder = str(rollout.folder)
        assert (await run(written(line), env={"TMPDIR": None})).stdout == b"by all\n"
        named = {"SEEN": None, "TOKEN": os.environ["TOKEN"], "TMPDIR": folder}
        done = await run(written(line), env=named)
        assert done.stdout.decode() == f"a long secret {folder}\n"
        reaper = (await run(written("cat /proc/$PPID/environ"))).stdout  # empty elsewhere
        assert b"a long secret" not in reaper
        return "done"

    try:
        assert await ran(body) == "done"
    finally:
        redaction.forget()


async def test_broken_pipe_and_a_long_line_are_told():
    async def body(rollout, process, run):
        async with process(written("exec <&-; echo ready; sleep 120")) as talk:
            await talk.receive_line()
            with pytest.raises(BrokenPipeError, match="nobody reads"):
                await talk.send(b"x")
        with pytest.raises(BrokenPipeError):
            await talk.send(b"x")
        async with process(written("printf 12345678")) as talk:
            with pytest.raises(ValueError, match="longer than 4"):
                await talk.receive_line(4)
            assert await talk.receive_line() == b"12345678"
        return "done"

    assert await ran(body) == "done"


@pytest.mark.parametrize(
    ("command", "options", "error"),
    [
        ("true", {}, TypeError), ([], {}, ValueError), ([3], {}, TypeError),
        (["a\0b"], {}, ValueError), (["true"], {"timeout_s": 0}, ValueError),
        (["true"], {"most_bytes": 1.5}, TypeError), (["true"], {"input": 3}, TypeError),
        (["true"], {"stderr": "tail"}, ValueError), (["true"], {"env": {"": ""}}, ValueError),
        (["true"], {"env": {"a": 1}}, TypeError),
    ],
)  # fmt: skip
async def test_command_that_is_none_is_refused(command, options, error):
    async def body(rollout, process, run):
        with pytest.raises(error):
            await run(command, **options)
        return "done"

    assert await ran(body) == "done"


# -- the end of an attempt ------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("then", ["returns", "raises", "is cancelled"])
async def test_things_are_gone_when_the_attempt_is_over(backend, then, place):
    made: list[Any] = []
    scope, token = trio.CancelScope(), trio.lowlevel.current_trio_token()

    async def body(rollout, process, run):
        (rollout.folder / "file").touch()
        left = process([sys.executable, "-c", FAMILY])  # never closed
        talk = await left.__aenter__()
        made[:] = [rollout, *[int(await talk.receive_line()) for _ in range(4)]]
        if then == "raises":
            raise RuntimeError("it was told to")
        if then == "is cancelled":
            token.run_sync_soon(scope.cancel)
            await talk.wait()

    async with opened(load(Code(backend, body)), threads=2) as runner:
        with scope:
            try:
                await runner.run(request(), request_id="r")
            except EnvironmentFailure:
                assert then == "raises"
        rollout, *pids = made
        assert len(pids) == 4
        assert not any(map(is_alive, pids))
        [base] = place.iterdir()
        assert [each.name for each in base.iterdir()] == ["lock"]
    assert not list(place.iterdir())
    with pytest.raises(RuntimeError, match="has ended, and makes nothing any more"):
        rollout.folder  # noqa: B018


async def test_folder_is_each_attempts_and_each_members_own(place):
    seen: list[Path] = []

    async def body(rollout, process, run):
        assert rollout.folder is rollout.folder
        assert not list(rollout.folder.iterdir())
        assert not any(each.exists() for each in seen)
        seen.append(rollout.folder)
        (rollout.folder / "file").touch()
        if rollout.attempt == 1:
            raise RuntimeError("once")

    await ran(body, max_retries=1)
    assert len(set(seen)) == 2

    class Group:
        async def run_rollout(self, rollout):
            raise AssertionError("it runs groups")

        async def run_group(self, rollouts):
            seen[:] = [each.folder for each in rollouts]
            assert all(each.exists() for each in seen)
            return [{} for _ in rollouts]

    async with opened(load(Group()), threads=2) as runner:
        await runner.run(request([{}, {}, {}], "group"), request_id="r")
        assert len(set(seen)) == 3
        assert not any(each.exists() for each in seen)


async def test_outcome_does_not_wait_for_a_removal_that_takes_long(place, monkeypatch):
    """A cancelled rollout counted as one that ignores its cancel, and its worker was killed."""
    goes_on, remove = threading.Event(), Folders.remove

    def slowly(folders: Folders, folder: Path) -> None:
        goes_on.wait(20)  # who waits for it fails, and does not hang
        remove(folders, folder)

    monkeypatch.setattr(Folders, "remove", slowly)
    monkeypatch.setattr(made_module, "REMOVE_S", 0.01)

    async def body(rollout, process, run):
        rollout.folder  # noqa: B018

    async with opened(load(Code("trio", body)), threads=2) as runner:
        await runner.run(request(), request_id="r")
        [base] = place.iterdir()
        assert len(list(base.iterdir())) == 2
        goes_on.set()
    assert not list(place.iterdir())


async def test_folder_of_code_that_leaves_its_cancelled_scope_open_is_removed(place):
    async def body(rollout, process, run):
        rollout.folder  # noqa: B018
        scope = trio.CancelScope()
        scope.__enter__()
        scope.cancel()

    async with opened(load(Code("trio", body)), threads=2) as runner:
        await runner.run(request(), request_id="r")
        [base] = place.iterdir()
        assert [each.name for each in base.iterdir()] == ["lock"]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_process_that_is_cancelled_while_it_starts_is_not_left(when, monkeypatch):
    """Just before its reaper is started, and just after; its rollout goes on."""
    start = trio.lowlevel.open_process
    started: list[int] = []
    scope = trio.CancelScope()

    async def cancelling(*args: Any, **options: Any) -> trio.Process:
        if when == "before":
            scope.cancel()
        process = await start(*args, **options)
        started.append(process.pid)
        if when == "after":
            scope.cancel()
        return process

    monkeypatch.setattr(trio.lowlevel, "open_process", cancelling)

    async def body(rollout, process, run):
        with scope:
            async with process(FOREVER):
                raise AssertionError("it was cancelled")
        assert not any(map(is_alive, started))
        return "done"

    assert await ran(body) == "done"
    assert scope.cancelled_caught
    assert len(started) == 1


async def test_end_of_a_process_is_told_where_the_worker_blocks_all_signals() -> None:
    async def body(rollout: Any, process: Any, run: Any) -> Any:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            return (await run(["echo", "told"], timeout_s=60)).stdout
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    assert await ran(body) == b"told\n"


async def test_process_whose_reaper_ends_before_it_starts_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As without memory for it."""
    ending = tmp_path / "python"
    ending.write_text("#!/bin/sh\necho no memory >&2; exit 3\n")
    ending.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(ending))

    async def body(rollout: Any, process: Any, run: Any) -> Any:
        with pytest.raises(ProcessNotStarted, match=r"(?s)status 3.*no memory"):
            await run(["true"])

    await ran(body)
    assert not caplog.records


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the end of a worker is not told")
async def test_process_of_a_killed_worker_dies_though_a_fork_of_the_worker_lives(
    tmp_path: Path,
) -> None:
    """Without a guard: the worker is part of another program (``workers=0``)."""
    worker = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", FORKING], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    with worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        process, fork = map(int, worker.stdout.readline().split())
        worker.kill()
        await assert_gone(process)
        assert is_alive(fork)
        worker.stdin.close()  # ends it


FORKING = """
import os, trio
from tests.worker.test_made import FOREVER, ran

async def body(rollout, process, run):
    async with process(FOREVER) as running:
        fork = os.fork()
        if not fork:
            os.read(0, 1)
            os._exit(0)
        os.write(1, b"%d %d\\n" % (running.pid, fork))
        await trio.sleep_forever()

trio.run(ran, body)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_system_without_room_for_a_thread_fails_a_start_and_delays_a_removal_only() -> None:
    """The limit is that of a user; a container has such a one, too."""
    place = Path(tempfile.mkdtemp())  # pytest keeps its own to root
    place.chmod(0o777)
    environment = {**os.environ, "TMPDIR": str(place)}
    done = subprocess.run(
        [sys.executable, "-c", NO_ROOM], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "process-not-started 11\nwaits\n1\n", done.stderr
    place.rmdir()


NO_ROOM = """
import errno, os, resource, trio, trio.testing
from tests.worker.test_made import Code, ProcessNotStarted, load, opened, request

def room(soft):
    resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))

async def body(rollout, process, run):
    before = rollout.folder
    room(0)
    try:
        await run(["true"])
    except ProcessNotStarted as error:
        print(error.code, error.errno)
    return str(before)

async def main():
    async def rollout():
        folder = await runner.run(request(), request_id="r")
        assert not os.path.exists(folder)
        print(1)

    async with opened(load(Code("trio", body)), threads=2) as runner:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rollout)
            await trio.testing.wait_all_tasks_blocked()
            print("waits")
            room(hard)

hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
os.setgroups([]); os.setgid(65534); os.setuid(65534)
trio.run(main)
"""
