"""Process 1 reaps what nobody else does, and never a worker."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from tests.cli.commands import HANG_S, ROOT, until
from tests.proc import children, stats

pytestmark = pytest.mark.real

REAPING = """
import os
from trio_envserve.host.orphans import reap_ended

def ended(status):
    pid = os.fork()
    if not pid:
        os._exit(status)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid

print(reap_ended(set()))  # there is no child at all
first, second = ended(1), ended(2)
print(reap_ended(set()), reap_ended(set()))
own = ended(3)
print(reap_ended({own}), os.waitstatus_to_exitcode(os.waitpid(own, 0)[1]))
"""


def test_a_worker_is_left_to_its_supervisor() -> None:
    done = subprocess.run(
        [sys.executable, "-c", REAPING], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.split() == ["0", "2", "0", "0", "3"]


LEAVING = """
import os, subprocess, sys
async def leaving(rollout):
    # Its parent ends at once, so process 1 inherits it; it leaves the group, too.
    code = "import os, time; os.setsid(); os.fork() and os._exit(0)"
    subprocess.run([sys.executable, "-c", code])
    return 1
"""


def zombies() -> list[int]:
    """Those in the namespace of process 1 that are not reaped, asked from outside."""
    return [int(parent) for _, (state, parent, *_) in stats() if state == "Z"]


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or shutil.which("unshare") is None,
    reason="needs root and unshare to have a process 1 of its own",
)
async def test_as_process_1_it_reaps_drains_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "leaving.py").write_text(LEAVING)
    (tmp_path / "in.jsonl").write_text("1\n" * 20)
    serve = ["serve", "leaving:leaving", "--bind", f"ipc://{tmp_path}/s", "--json"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": str(tmp_path)}
    own = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    with subprocess.Popen(  # noqa: ASYNC220  # started at once
        [*own, sys.executable, "-m", "trio_envserve", *serve],
        cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True,
    ) as outer:  # fmt: skip
        try:
            with trio.fail_after(HANG_S):
                assert outer.stdout is not None
                lines = outer.stdout
                serving = json.loads(await trio.to_thread.run_sync(lines.readline))
                assert serving["pid"] == 1
                (first,) = children(outer.pid)
                ask = ["eval", "leaving:leaving", "--inputs", "in.jsonl", "--json"]
                asked = await trio.run_process(
                    [sys.executable, "-m", "trio_envserve", *ask, "--address",
                     f"ipc://{tmp_path}/s"],
                    cwd=tmp_path, env=environ, capture_stdout=True,
                )  # fmt: skip
                assert json.loads(asked.stdout.splitlines()[-1])["results"] == 20
                await until(lambda: first not in zombies())
                os.kill(first, signal.SIGTERM)
                said = await trio.to_thread.run_sync(lines.read)
            last = json.loads(said.splitlines()[-1])
            assert (last["event"], last["why"], last["drained"]) == ("stopped", "SIGTERM", True)
            assert outer.wait() == 0
        finally:
            outer.kill()
