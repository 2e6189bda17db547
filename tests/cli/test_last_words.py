"""The relay behind standard error: each line an object, and nobody waits for the reader."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import ROOT
from trio_envserve.cli.last_words import Lines, as_object


def read_all(lines: Lines, read: int) -> list[bytes]:
    """What it writes, line by line."""
    while lines.waiting:
        assert lines.write()
    return os.read(read, 1 << 20).splitlines()


@pytest.fixture
def pipe() -> tuple[int, int]:
    return os.pipe()


def test_a_line_is_an_object_and_an_object_stays_as_it_is() -> None:
    record = json.loads(as_object(b"free(): invalid pointer \xff"))
    assert (record["level"], record["logger"]) == ("info", "stderr")
    assert record["message"] == "free(): invalid pointer \\xff"
    assert as_object(b'{"level": "info"}') == b'{"level": "info"}'
    assert json.loads(as_object(b'{"torn": '))["message"] == '{"torn": '


def test_words_that_end_no_line_cost_no_object(pipe: tuple[int, int]) -> None:
    read, write = pipe
    lines = Lines(write)
    whole = b'{"time": "now", "message": "a worker\'s"}'
    lines.take(b"half" + whole[:9])
    lines.take(whole[9:] + b"\n\n \nthe ")
    lines.take(b"end")
    lines.end()
    half, same, end = read_all(lines, read)
    assert json.loads(half)["message"] == "half"
    assert same == whole
    assert json.loads(end)["message"] == "the end"


def test_a_line_without_an_end_takes_no_memory(pipe: tuple[int, int]) -> None:
    read, write = pipe
    lines = Lines(write)
    for _ in range(40):
        lines.take(b"x" * 65536)
        if lines.waiting:
            break
    assert lines.waiting
    assert sum(map(len, lines.waiting)) < 1 << 20
    assert lines.write()
    assert len(os.read(read, 1 << 20)) == select.PIPE_BUF


def test_what_nobody_reads_any_more_is_dropped(pipe: tuple[int, int]) -> None:
    read, write = pipe
    os.close(read)
    lines = Lines(write)
    lines.take(b"one\ntwo\n")
    assert not lines.write()
    assert not lines.waiting


def test_what_waits_is_bounded(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trio_envserve.cli.last_words._MOST_WAITING", 1000)
    lines = Lines(pipe[1])
    lines.take(b"line\n" * 1000)
    assert len(lines.waiting) < 20


WRITES = """
import os
from trio_envserve.cli.last_words import relay_standard_error
real = relay_standard_error()
for _ in range(20):
    os.write(2, b"x" * 65536 + b"\\n")  # far more than a pipe holds
os.write(real, b"")
"""


@pytest.mark.real
def test_a_reader_that_reads_nothing_holds_nobody_up(tmp_path: Path) -> None:
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", WRITES], stderr=write, stdout=subprocess.PIPE, cwd=ROOT
    )
    os.close(write)
    process.communicate()  # it hangs if the writer waits, and if the relay keeps standard output
    assert process.returncode == 0
    while os.read(read, 1 << 20):  # to the end of the relay
        pass
    os.close(read)


@pytest.mark.real
def test_the_last_words_before_a_kill_are_read(tmp_path: Path) -> None:
    code = WRITES + "os.write(2, b'the last words'); os.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert json.loads(done.stderr.splitlines()[-1])["message"] == "the last words"
