"""Who began a key before, and whether that process is dead."""

import fcntl
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from tests.envs.scripted import a_rollout
from trio_envserve.envs.arithmetic import Arithmetic
from trio_envserve.envs.recorder import read_run_log
from trio_envserve.envs.witness import Witness, is_dead

PROGRAM = """
import sys
from trio_envserve.envs.witness import Witness
witness = Witness(sys.argv[1])
print(*[witness.begin(key) for key in sys.argv[2:]], witness.process, flush=True)
sys.stdin.read()
"""


@contextmanager
def begun_elsewhere(directory, *keys):
    """A process that has begun these keys and lives, what it has found, and its name."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(directory), *keys],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        *found, name = process.stdout.readline().split()
        yield process, found, name
        process.kill()


def test_witnesses_of_one_process_see_each_other_until_they_are_closed(tmp_path):
    first, second = Witness(tmp_path), Witness(tmp_path)
    assert first.process != second.process
    assert first.begin("a") == "none"
    assert first.begin("a") == "alive"
    assert second.begin("a") == "alive"
    assert second.begin("b") == "none"
    second.close()
    assert is_dead(tmp_path, second.process)
    assert not is_dead(tmp_path, first.process)
    assert first.begin("a") == "dead"
    first.close()
    with pytest.raises(FileNotFoundError):
        is_dead(tmp_path, "1-ffffffff")  # which nobody ever had


@pytest.mark.real
def test_another_process_is_alive_until_it_is_killed(tmp_path):
    witness, descriptors = Witness(tmp_path), []
    with begun_elsewhere(tmp_path, "a", "b") as (process, found, name):
        assert found == ["none", "none"]
        os.kill(process.pid, signal.SIGSTOP)  # stopped is not dead
        assert witness.begin("a") == "alive"
        assert not is_dead(tmp_path, name)
    assert witness.begin("b") == "dead"
    with begun_elsewhere(tmp_path, "a") as (_, found, _):
        assert found == ["alive"]
    witness.close()
    try:
        # Two who ask at once do not take each other for the process.
        for _ in range(2):
            descriptors.append(os.open(tmp_path / f"process-{name}", os.O_RDONLY))
            fcntl.flock(descriptors[-1], fcntl.LOCK_SH | fcntl.LOCK_NB)
        assert is_dead(tmp_path, name)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


async def test_the_built_in_environment_logs_key_process_and_predecessor(tmp_path):
    environment = Arithmetic(log_path=tmp_path / "log")
    await environment.run_rollout(a_rollout(input={"index": 0, "key": "k"}))
    await environment.run_rollout(a_rollout(input={"index": 0, "key": "k"}))
    await environment.run_rollout(a_rollout(input={"index": 0}))
    first, ended, second, _, bare, _ = read_run_log(tmp_path / "log")
    assert first["key"] == "k"
    assert first["predecessor"] == "none"
    assert second["predecessor"] == "alive"
    assert first["process"] == ended["process"] == second["process"]
    assert first["monotonic"] <= ended["monotonic"] <= second["monotonic"]
    assert "key" not in bare
    assert environment._witness is not None
    environment._witness.close()
