"""Who holds an interpreter: found and asked from outside, without that interpreter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from tests.proc import stat_of
from trio_envserve.core.stack_frames import authors_line, dumped_stacks, holder_in
from trio_envserve.worker import held
from trio_envserve.worker.held import Question, ThreadWatch, make_answers

pytestmark = [pytest.mark.real, pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")]

HOLDER = Path(__file__).parent / "holder_main.py"
PATIENCE_S = 60.0


@contextmanager
def holding(answers: IO[bytes], *words: str) -> Iterator[int]:
    """A process that does as it is told; its id."""
    process = subprocess.Popen(
        [sys.executable, HOLDER, *words], stdout=subprocess.PIPE,
        pass_fds=[answers.fileno()],
    )  # fmt: skip
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def answer(question: Question) -> str:
    while not question.is_over():
        time.sleep(0.01)  # nothing tells it
    return question.answer()


def suspect(pid: int) -> int:
    """The first thread that is to be asked."""
    watch = ThreadWatch(pid)
    while not (threads := watch.look()):
        time.sleep(0.05)  # the watch is about time
    return threads[0]


def found(pid: int, answers: IO[bytes]) -> tuple[str, str]:
    """The first holder that is found: its request, and its stack."""
    watch, until_s = ThreadWatch(pid), time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        time.sleep(0.05)  # the watch is about time
        for thread in watch.look():
            request, stacks = holder_in(dumped_stacks(answer(Question(pid, thread, answers))))
            if stacks:
                return request, stacks[0]
    raise TimeoutError("nobody holds it")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "HELD_S", 0.2)


@pytest.mark.parametrize("words", [("hang", "main"), ("hang", "thread")])
def test_holder_of_an_interpreter_is_found_among_threads_that_wait(words: tuple[str, str]):
    with make_answers() as answers:
        what, where = words
        with holding(answers, what, str(answers.fileno()), where) as pid:
            request, stack = found(pid, answers)
    assert request == "ab#2"
    assert "holder_main.py" in authors_line(stack)


def test_thread_that_does_not_run_for_a_while_is_waited_for():
    """On a busy machine it had no turn for as long as an answer was waited for, each time."""
    with make_answers() as answers, holding(answers, "hang", str(answers.fileno()), "main") as pid:
        thread = suspect(pid)
        os.kill(pid, signal.SIGSTOP)
        question = Question(pid, thread, answers)
        while stat_of(pid)[0] != "T":
            time.sleep(0.01)  # nothing tells it
        assert (question.is_over(), question.answer()) == (False, "")
        os.kill(pid, signal.SIGCONT)
        assert holder_in(dumped_stacks(answer(question)))[0] == "ab#2"


def test_thread_that_waits_is_not_waited_for():
    """It has answered, or it takes no signal."""
    with make_answers() as answers, holding(answers, "hold", "-1", "main") as pid:
        while stat_of(pid)[0] != "S":
            time.sleep(0.01)  # nothing tells it
        assert answer(Question(pid, pid, answers)) == ""


def test_process_that_does_not_catch_the_signal_is_not_asked():
    """It would be ended by the signal: another program, say."""
    with make_answers() as answers, holding(answers, "hang", "-1", "main") as pid:
        assert answer(Question(pid, suspect(pid), answers)) == ""
        assert stat_of(pid)[0] in "RS"


def test_thread_that_sleeps_with_the_lock_is_not_woken():
    """A signal would end its sleep, and with that what is looked for."""
    with make_answers() as answers:
        with holding(answers, "hold", str(answers.fileno()), "main") as pid:
            watch = ThreadWatch(pid)
            while stat_of(pid)[0] != "S":
                time.sleep(0.01)  # nothing tells it
            assert [watch.look() for _ in range(3)] == [[], [], []]


def test_process_that_has_ended_has_no_threads():
    with make_answers() as answers:
        with holding(answers, "wait", str(answers.fileno()), "main") as pid:
            pass
        assert ThreadWatch(pid).look() == []
        assert answer(Question(pid, pid, answers)) == ""
