"""The log that judges runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

import trio_envserve.envs.recorder as recorder
from tests.envs.scripted import a_rollout
from trio_envserve.envs import RunLog, read_run_log


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
    processes = [subprocess.Popen([sys.executable, "-c", code, path], cwd=root) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    lines = path.read_text().splitlines()
    by_process: dict[int, list[int]] = {}
    for line in lines:
        record = json.loads(line)
        by_process.setdefault(record["pid"], []).append(record["i"])
    assert sorted(by_process.values()) == [list(range(200))] * 3


def test_a_line_cut_short_is_an_error(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:10]))
    with pytest.raises(OSError, match="only 10 of"):
        RunLog(tmp_path / "log").write("start", a_rollout())
