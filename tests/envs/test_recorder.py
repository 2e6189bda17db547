"""The log that judges runs, and what a process leaves of the keys that it has begun."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

import trio_envserve.envs.recorder as recorder
from tests.envs.scripted import a_rollout
from trio_envserve.envs import RunLog, read_run_log
from trio_envserve.lab.witness import Witness, is_dead


async def test_each_rollout_has_a_line_for_its_start_and_one_for_its_end(tmp_path):
    log = RunLog(tmp_path / "log")
    with log.record(a_rollout(attempt=2, member=3), note="x"):
        assert [record["event"] for record in read_run_log(log.path)] == ["start"]
    start, end = read_run_log(log.path)
    wanted = {"request": "ab#0", "attempt": 2, "member": 3, "pid": os.getpid(), "note": "x"}
    for record in (start, end):
        assert record.items() >= wanted.items()
    assert end["how"] == "result"
    assert "how" not in start
    with pytest.raises(SystemExit), log.record(a_rollout()):
        raise SystemExit(3)
    assert read_run_log(log.path)[-1]["how"] == "SystemExit"
    with trio.CancelScope() as scope:
        scope.cancel()
        with log.record(a_rollout()):
            await trio.sleep_forever()
    assert read_run_log(log.path)[-1]["how"] == "Cancelled"


def test_a_line_of_which_a_part_was_written_ended_who_read_the_log(tmp_path):
    """A write that crosses a page of the file is seen in two parts on a busy machine."""
    path = tmp_path / "log"
    assert read_run_log(path) == []
    path.write_text('{"event": "start"}\n{"eve')
    assert read_run_log(path) == [{"event": "start"}]
    path.write_text('{"eve')
    assert read_run_log(path) == []


def test_lines_of_many_processes_do_not_mix(tmp_path):
    code = (
        "import sys\n"
        "from trio_envserve.envs import Rollout, RunLog\n"
        "from trio_envserve.models.offline import OracleModel\n"
        "rollout = Rollout(None, OracleModel(), 'm', {}, (), 1, 'r')\n"
        "log = RunLog(sys.argv[1])\n"
        "for i in range(200): log.write('start', rollout, i=i, pad='x' * 500)\n"
    )
    root = Path(recorder.__file__).parents[2]
    path = tmp_path / "log"
    processes = [subprocess.Popen([sys.executable, "-c", code, path], cwd=root) for _ in range(2)]
    assert [process.wait(60) for process in processes] == [0, 0]
    lines = path.read_text().splitlines()
    by_process: dict[int, list[int]] = {}
    for line in lines:
        record = json.loads(line)
        by_process.setdefault(record["pid"], []).append(record["i"])
    assert sorted(by_process.values()) == [list(range(200))] * 2


def test_a_line_cut_short_is_an_error(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:10]))
    with pytest.raises(OSError, match="only 10 of"):
        RunLog(tmp_path / "log").write("start", a_rollout())


# -- who began a key before, and whether that process is dead -------------------------


PROGRAM = """
import sys
from trio_envserve.lab.witness import Witness
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
