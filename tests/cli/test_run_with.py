"""The verb run-with: a command that finds a server, and whose exit code comes out."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import ROOT, check_nothing_left, forked, run, until

pytestmark = pytest.mark.real

HERE = ("--workers", "0")
"""The server is one process."""

ASK = """
import json, os, sys
import trio
from trio_envserve import open_client

async def main():
    async with open_client(os.environ["TRIO_ENVSERVE_ADDRESS"]) as client:
        with trio.fail_after(60):
            return await client.run_rollout(21)

print(trio.run(main))
print("said on stderr", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""

WAITS = """
import os, signal, sys
def caught(number, frame):
    count.append(number)
    with open("caught", "a") as file: file.write(f"{number}\\n")
    if sys.argv[1] != "stubborn": sys.exit(9)
count = []
signal.signal(signal.SIGINT, caught)
signal.signal(signal.SIGTERM, caught)
with open("started", "w") as file: file.write(str(os.getpid()))
while True: signal.pause()
"""


def write(folder: Path) -> None:
    (folder / "twice.py").write_text(
        "class Twice:\n"
        "    def __init__(self, factor=2): self.factor = factor\n"
        "    async def run_rollout(self, rollout): return self.factor * rollout.input\n"
    )
    (folder / "ask.py").write_text(ASK)
    (folder / "waits.py").write_text(WAITS)


async def test_the_command_finds_the_server_and_its_exit_code_comes_out(tmp_path: Path):
    write(tmp_path)
    asked = (sys.executable, "ask.py", "5")
    options = ("--workers", "2", "--arg", "factor=3", "--json")
    done = await run(tmp_path, "run-with", "twice:Twice", *options, "--", *asked)
    assert done.code == 5, done.err
    out = done.out.splitlines()
    assert out[0] == "63"
    assert len(out) == 2
    assert "said on stderr" in done.err
    last = done.last
    assert last["exit"] == 5
    assert last["seconds"] > 0
    assert last["address"].startswith("tcp://127.0.0.1:")
    assert last["environment"] == "twice:Twice"
    assert last["command"] == list(asked)
    assert last["stats"]["cache"]["completed"] == 1
    done.check_no_traceback()
    await check_nothing_left(tmp_path)


async def test_output_of_the_command_is_its_own_and_so_are_its_options(tmp_path: Path, folder: str):
    write(tmp_path)
    bind = ("--bind", f"ipc://{folder}/socket", "--workers", "0")
    asked = (sys.executable, "ask.py", "0", "--workers", "9", "--json", "--help", "--", "-x")
    done = await run(tmp_path, "run-with", "twice:Twice", *bind, "--", *asked)
    assert (done.code, done.out, done.err) == (0, "42\n", "said on stderr\n")
    await check_nothing_left(tmp_path)


async def test_command_that_a_signal_kills_or_that_is_no_program_ends_as_in_a_shell(tmp_path: Path):
    killed = (sys.executable, "-c", "import os; os.kill(os.getpid(), 9)")
    done = await run(tmp_path, "run-with", "arithmetic", *HERE, "--json", "--", *killed)
    assert (done.code, done.last["exit"]) == (137, 137)
    (tmp_path / "garbage").write_bytes(b"\0\1\2")
    (tmp_path / "garbage").chmod(0o755)
    done = await run(tmp_path, "run-with", "arithmetic", *HERE, "--", "./garbage")
    assert done.code == 126
    done.check_no_traceback()
    await check_nothing_left(tmp_path)


async def test_a_program_beside_this_python_is_found_without_a_path(tmp_path: Path):
    beside = Path(sys.executable).parent
    if not (beside / "trio-envserve").exists():
        pytest.skip("the command is not installed beside this Python")
    version = ("--", "trio-envserve", "--version")
    done = await run(tmp_path, "run-with", "arithmetic", *HERE, *version, PATH="/nowhere")
    assert done.code == 0, done.err
    assert "trio-envserve" in done.out


async def test_a_broken_environment_never_starts_the_command(tmp_path: Path):
    (tmp_path / "broken.py").write_text(
        "class Broken:\n"
        "    async def setup(self): raise RuntimeError('no such disk')\n"
        "    async def run_rollout(self, rollout): return 1\n"
    )
    options = ("--limit", "restart_pause_s=0.01", "--json")
    touch = (sys.executable, "-c", "open('started', 'w')")
    done = await run(tmp_path, "run-with", "broken:Broken", *options, "--", *touch)
    assert (done.code, done.last["exit"]) == (3, 3)
    assert done.err.rstrip().splitlines()[-1].endswith("RuntimeError: no such disk")
    assert not (tmp_path / "started").exists()
    await check_nothing_left(tmp_path)


# -- signals -----------------------------------------------------------------------


async def test_a_signal_goes_on_to_the_command_and_all_ends(tmp_path: Path):
    write(tmp_path)
    waits = ("--json", "--", sys.executable, "waits.py", "once")
    async with forked(tmp_path, "run-with", "arithmetic", *waits) as running:
        await until(lambda: (tmp_path / "started").exists())
        running.signal(signal.SIGINT)
        done = await running.wait()
    assert (done.code, done.last["exit"]) == (9, 9)
    assert (tmp_path / "caught").read_text() == f"{signal.SIGINT.value}\n"
    done.check_no_traceback()
    await check_nothing_left(tmp_path)


async def test_a_second_signal_kills_the_command(tmp_path: Path):
    write(tmp_path)
    waits = ("--json", "--", sys.executable, "waits.py", "stubborn")
    async with forked(tmp_path, "run-with", "arithmetic", *HERE, *waits) as running:
        await until(lambda: (tmp_path / "started").exists())
        running.signal(signal.SIGTERM)
        await until(lambda: (tmp_path / "caught").exists())
        running.signal(signal.SIGINT)
        done = await running.wait()
    assert (done.code, done.last["exit"]) == (1, 1)
    assert "the command was killed" in done.err
    done.check_no_traceback()
    await check_nothing_left(tmp_path)


async def test_a_signal_while_the_server_gets_ready(tmp_path: Path):
    (tmp_path / "late.py").write_text(
        "import trio\n"
        "class Late:\n"
        "    async def setup(self):\n"
        "        open('setup', 'w').close()\n"
        "        await trio.sleep_forever()\n"
        "    async def run_rollout(self, rollout): return 1\n"
    )
    touch = ("--json", "--", sys.executable, "-c", "open('started', 'w')")
    async with forked(tmp_path, "run-with", "late:Late", *touch) as running:
        await until(lambda: (tmp_path / "setup").exists())
        running.signal(signal.SIGINT)
        done = await running.wait()
    assert (done.code, done.last["exit"]) == (130, 130)
    assert "interrupted by SIGINT before the command was started" in done.err
    assert not (tmp_path / "started").exists()
    await check_nothing_left(tmp_path)


async def test_ctrl_c_in_a_terminal_reaches_the_command_once(tmp_path: Path):
    """The terminal has told the whole foreground group: it is not passed on again."""
    write(tmp_path)
    leader, follower = pty.openpty()
    arguments = ("run-with", "arithmetic", "--json", "--", sys.executable, "waits.py", "stubborn")
    # A session of its own, whose terminal becomes the pseudo terminal on being opened.
    program = (
        "import os, sys\n"
        "os.close(os.open(sys.argv[1], os.O_RDWR))\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'trio_envserve', *sys.argv[2:]])\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": str(tmp_path)}
    process = subprocess.Popen(  # noqa: ASYNC220  # starting blocks for no time
        [sys.executable, "-c", program, os.ttyname(follower), *arguments], cwd=tmp_path,
        env=environ, stdin=follower, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    try:
        await until(lambda: (tmp_path / "started").exists() or process.poll() is not None)
        os.write(leader, b"\x03")
        caught = tmp_path / "caught"
        await until(lambda: (caught.exists() and caught.read_text()) or process.poll() is not None)
        # Whatever it does about the signal it has done when it takes the next one.
        process.send_signal(signal.SIGTERM)
        await until(lambda: process.poll() is not None)
        out, err = process.communicate()
    finally:
        process.kill()
        process.communicate()
        os.close(leader)
        os.close(follower)
    assert process.returncode == 1, err
    assert json.loads(out.splitlines()[-1])["exit"] == 1
    assert (tmp_path / "caught").read_text() == f"{signal.SIGINT.value}\n"
    await check_nothing_left(tmp_path)
