"""The one class of process: started, told, stopped, killed, started again where it was."""

import os
import signal
import sys

import pytest
import trio

from tests.rig import echo
from trio_envserve.core.errors import ServerStartError
from trio_envserve.lab.processes import Process, program, serve_process

pytestmark = pytest.mark.real

LIMIT_S = 120
ECHO = program(echo.__name__, {"greeting": "hello"})


def said(code: str) -> Process:
    return Process([sys.executable, "-c", code], "program of the test")


@pytest.fixture(autouse=True)
async def limited():
    with trio.fail_after(LIMIT_S):
        yield


async def test_program_of_the_tests_runs_in_any_folder_and_answers_orders(tmp_path):
    async with Process(ECHO, ready="begun", cwd=tmp_path, end_s=LIMIT_S) as process:
        assert process.said == {"event": "begun", "greeting": "hello", "cwd": str(tmp_path)}
        assert await process.ask({"do": "this"}) == {"event": "obeyed", "do": "this"}
        assert process.living
    assert process.status == 0


async def test_process_that_is_killed_starts_again_and_hears_the_next_order():
    async with Process(ECHO, ready="begun") as process:
        first = process.pid
        await process.kill()
        assert (process.living, process.killed, process.status) == (False, True, -signal.SIGKILL)
        await process.tell({"do": "nothing: it is dead"})
        await process.start()
        assert process.pid != first
        assert process.lives == 2
        assert (await process.ask({"do": "that"}))["do"] == "that"


async def test_server_that_is_killed_comes_back_at_its_address(tmp_path):
    async with serve_process("arithmetic", tmp_path, workers=0, cwd=tmp_path) as server:
        address = server.said["address"]
        await server.kill()
        await server.start()
        assert server.said["address"] == address
        assert server.said["pid"] == server.pid
        assert os.getpgid(server.pid) == server.pid, "it leads a group of its own"


async def test_process_that_is_stopped_ends_with_its_context():
    async with Process(ECHO, ready="begun", end_s=LIMIT_S) as process:
        process.signal(signal.SIGSTOP)
    assert process.status == 0


async def test_process_that_does_not_end_is_killed():
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('{}', flush=True)"
    process = Process([sys.executable, "-c", f"{code}; signal.pause()"], terminate=True, end_s=0.1)
    async with process:
        await process.line()
    assert process.status == -signal.SIGKILL


async def test_process_that_ends_before_it_has_begun_is_told_with_its_words():
    process = Process([sys.executable, "-c", "raise SystemExit('the disk is on fire')"], ready="up")
    with pytest.raises(ServerStartError, match=r"(?s)the program ended.*the disk is on fire"):
        await process.start()
    await process.end()


async def test_process_that_says_nothing_is_told_after_a_limit():
    code = "import sys; print('busy', file=sys.stderr, flush=True); print('{}', flush=True)"
    async with said(f"{code}; sys.stdin.read()") as process:
        await process.line()
        with pytest.raises(ServerStartError, match=r"(?s)said nothing for 0.1 s.*busy"):
            await process.line(0.1)


async def test_log_of_a_process_has_all_of_its_lives(tmp_path):
    log = tmp_path / "words.log"
    process = Process(
        [sys.executable, "-c", "import os, sys; sys.stderr.write(f'{os.getpid()}\\n')"], log=log
    )
    pids = []
    for _ in range(2):
        async with process:
            pids.append(str(process.pid))
            await process.listen(lambda _: None)
    assert log.read_text().split() == pids
    assert process.last_words().split() == pids
