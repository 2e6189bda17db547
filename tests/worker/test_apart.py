"""Calls apart: whatever a function does in its process, its caller is told, and nobody else is
held up."""

from __future__ import annotations

import functools
import math
import os
import pickle
import re
import signal
import sys
import threading
import types
from pathlib import Path
from typing import Any

import numpy
import pytest
import trio

from tests.proc import children, is_alive
from tests.worker import scorers
from tests.worker.helpers import BACKENDS, on_asyncio, opened, request
from trio_envserve import ApartDied, ApartOutOfMemory, ApartTimeout, foreign
from trio_envserve.envs import load
from trio_envserve.envs.apart import ApartCall, ApartReply, call_of, checked, value_of
from trio_envserve.worker import apart as apart_module
from trio_envserve.worker.apart import ApartPool, open_apart
from trio_envserve.worker.failures import EnvironmentFailure, code_of

pytestmark = [pytest.mark.real]

LONG_S = 120.0
SHORT_S = 0.3
"""For what never ends."""


async def called(pool: ApartPool, function: Any, *args: Any, **limits: Any) -> Any:
    given = {"timeout_s": LONG_S, "memory_bytes": None, **limits}
    call = call_of(function, args, checked(**given))
    with trio.fail_after(LONG_S):
        return value_of(call.name, await pool.run(call))


async def overdue(
    pool: ApartPool, function: Any, *args: Any, at: str
) -> tuple[ApartTimeout, float]:
    """The error of a call that never ends, and its limit: one for which it has come there."""
    limit_s, where = SHORT_S, ""
    while at not in where:
        assert limit_s < LONG_S, where
        with pytest.raises(ApartTimeout) as caught:
            await called(pool, function, *args, timeout_s=limit_s)
        where, limit_s = caught.value.where, 4 * limit_s
    return caught.value, limit_s / 4


async def gone(pid: int) -> None:
    """Until a process has ended."""
    with trio.fail_after(30):
        while is_alive(pid):  # noqa: ASYNC110  # nothing tells it
            await trio.sleep(0.01)


def number_in(path: Path) -> int:
    """The process id in a file; 0 if it is not there yet."""
    return int((path.exists() and path.read_text()) or 0)


async def written(path: Path) -> int:
    """The process id in a file, once it is there."""
    with trio.fail_after(30):
        while not number_in(path):  # noqa: ASYNC110  # nothing tells it
            await trio.sleep(0.01)
    return number_in(path)


async def on_trio(rollout):
    return await rollout.apart(*rollout.input, timeout_s=LONG_S)


def in_thread(rollout):
    return rollout.apart_sync(*rollout.input, timeout_s=LONG_S)


@on_asyncio
async def in_asyncio(rollout):
    return await rollout.apart(*rollout.input, timeout_s=LONG_S)


FUNCTIONS = {"trio": on_trio, "thread": in_thread, "asyncio": in_asyncio}


@pytest.mark.parametrize("backend", BACKENDS)
async def test_call_apart_has_the_value_or_the_error_of_its_function_on_each_backend(backend: str):
    async with opened(load(FUNCTIONS[backend]), threads=2) as runner:
        assert await runner.run(request((scorers.doubled, 21)), request_id="ab#0") == 42
        pid = await runner.run(request((scorers.own_pid,)), request_id="ab#1")
        assert pid != os.getpid()
        assert await runner.run(request((scorers.own_pid,)), request_id="ab#2") == pid
        with pytest.raises(EnvironmentFailure, match="ValueError: a wrong answer") as caught:
            await runner.run(request((scorers.raise_value_error,)), request_id="ab#3")
        [note] = caught.value.exception.__notes__
        assert "in raise_value_error" in note
        assert "apart_process.py" not in note


@pytest.mark.parametrize("backend", BACKENDS)
async def test_cancelling_a_rollout_kills_the_process_of_its_call(backend: str, tmp_path: Path):
    paths = tmp_path / "pid", tmp_path / "child"
    async with (
        opened(load(FUNCTIONS[backend]), threads=2) as runner, trio.open_nursery() as nursery
    ):  # fmt: skip
        for function, path in zip(
            (scorers.write_pid_and_hang, scorers.fork_and_hang), paths, strict=True
        ):
            run = functools.partial(runner.run, request_id="ab#0")
            nursery.start_soon(run, request((function, str(path))))
        pids = [await written(path) for path in paths]
        nursery.cancel_scope.cancel()
    for pid in pids:
        await gone(pid)


RAISED: dict[str, tuple[Any, type[BaseException], str]] = {
    "an exception": (scorers.raise_value_error, ValueError, "a wrong answer"),
    "one that cannot be pickled": (scorers.raise_odd_error, RuntimeError, "OddError: very odd"),
    "one that cannot be read": (scorers.raise_one_argument, RuntimeError, "OneArgument: 1 and 2"),
    "one whose text raises": (scorers.raise_liar, scorers.Liar, ""),
    "an exit": (scorers.leave_politely, RuntimeError, "SystemExit: politely"),
    "a lambda": (scorers.return_a_lambda, TypeError, "it returned what cannot be pickled"),
    "one whose code would run here": (
        scorers.raise_raised_by, RuntimeError, "RaisedBy: made by a function"
    ),
    "too much": (scorers.return_much, TypeError, " bytes, of 1000 at most"),
}  # fmt: skip


async def test_ends_of_functions_that_raise_keep_the_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(apart_module, "MOST_BYTES", 1000)
    async with open_apart() as pool:
        pid = await called(pool, scorers.own_pid)
        for what, (function, kind, text) in RAISED.items():
            with pytest.raises(kind) as caught:
                await called(pool, function)
            assert text in (foreign.text(caught.value) or ""), what
            assert await called(pool, scorers.own_pid) == pid, what


async def test_function_that_holds_the_interpreter_is_ended_at_its_limit_with_its_line():
    async with open_apart() as pool:
        error, limit_s = await overdue(pool, scorers.hang, at=scorers.HANG)
        assert str(error) == (
            f"hang took longer than {limit_s:g} s (timeout_s), and its process was ended, at "
            f"{error.where}"
        )
        assert code_of(error) == "apart-timeout"
        assert "in match" in error.__notes__[0]  # the whole stack
        assert await called(pool, scorers.doubled, 1) == 2


async def test_process_that_is_stopped_is_killed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(apart_module, "START_S", 2.0)
    async with open_apart() as pool:
        with pytest.raises(ApartTimeout, match=r"had not ended 2\.3 s after it was called"):
            await called(pool, scorers.stop_itself, timeout_s=SHORT_S)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no reaper")
@pytest.mark.parametrize("function", [scorers.stop_the_reaper, scorers.stop_those_above])
async def test_processes_above_a_call_that_it_has_stopped_end_with_it(
    function: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The reaper was left behind, stopped for good, with all that was below it."""
    path = tmp_path / "pid"
    monkeypatch.setattr(apart_module, "START_S", 2.0)
    async with open_apart() as pool:
        with pytest.raises(ApartTimeout):
            await called(pool, function, str(path), timeout_s=SHORT_S)
        await gone(number_in(path))


async def test_deaths_of_processes_are_told_as_such():
    async with open_apart() as pool:
        with pytest.raises(ApartDied, match="leave ran died: it exited with status 3") as caught:
            await called(pool, scorers.leave)
        assert code_of(caught.value) == "apart-died"
        with pytest.raises(ApartDied, match="ended by SIGSEGV") as caught:
            await called(pool, scorers.crash, memory_bytes=1 << 28)
        assert 'scorers.py", line' in caught.value.where
        assert str(caught.value).endswith("it may have needed more than its memory_bytes")


async def test_process_that_dies_within_its_answer_is_told_as_a_death():
    """The rollout had failed by an OSError of a pipe, put down to its own code."""
    async with open_apart() as pool:
        with pytest.raises(ApartDied, match="leave_within_the_answer ran died within its answer"):
            await called(pool, scorers.leave_within_the_answer)


async def test_memory_of_a_call_is_limited_and_what_it_took_is_given_back():
    async with open_apart() as pool:
        with pytest.raises(ApartOutOfMemory, match="more than the 100000000 bytes") as caught:
            await called(pool, scorers.allocate, memory_bytes=100_000_000)
        assert code_of(caught.value) == "apart-memory"
        array = await called(pool, numpy.zeros, 1_000_000, memory_bytes=1 << 28)
        assert array.shape == (1_000_000,)


async def test_values_that_are_data_come_back_as_they_are():
    async with open_apart() as pool:
        found = await called(pool, scorers.data)
        assert found == scorers.data()
        assert [*map(type, found)] == [*map(type, scorers.data())]
        for array in (numpy.arange(6.0).reshape(2, 3)[:, 1], numpy.zeros((300, 300), "f4")):
            assert (await called(pool, numpy.add, array, 1) == array + 1).all()


async def test_value_whose_code_would_run_in_the_worker_is_refused():
    """It held up the worker's loop, or ended the worker, when it was read."""
    async with open_apart() as pool:
        for function, of in (
            (scorers.return_sleep, "time.sleep"), (scorers.return_exit, "posix._exit"),
            (scorers.return_plain_object, "tests.worker.scorers.Plain"),
        ):  # fmt: skip
            with pytest.raises(TypeError, match=rf"returned what is not read here: .*{of}"):
                await called(pool, function)


@pytest.mark.parametrize(
    ("asked", "of"),
    [
        (b"ctests.worker.scorers\nos._exit\n(I3\ntR.", r"tests\.worker\.scorers\.os\._exit"),
        (b"cantigravity\nBAR\n.", r"antigravity\.BAR"),
        (b"c_operator\nor_\n(I1\nI2\ntR.", r"operator\.or_ is no class of data"),
        (
            b"cbuiltins\ngetattr\n(ctests.worker.scorers\nGrade\nVmro\ntR.",
            r"getattr is no class of",
        ),
    ],
    ids=["by another module", "not imported", "flags that are none", "getattr"],
)
def test_value_that_names_code_is_refused(asked: bytes, of: str):
    with pytest.raises(TypeError, match=of):
        value_of("f", ApartReply(asked))
    assert "antigravity" not in sys.modules


def forged(name: str, args: tuple[Any, ...] | None, state: Any) -> bytes:
    """A pickle that makes an object by a call, or takes a class, and sets its state."""
    module, _, last = name.rpartition(".")
    made = f"c{module}\n{last}\n".encode()
    if args is not None:
        made += pickled(args) + pickle.REDUCE
    return b"\x80\x04" + made + pickled(state) + pickle.BUILD + pickle.STOP


def pickled(value: Any) -> bytes:
    """The inside of a pickle."""
    return pickle.dumps(value, 2)[2:-1]


FIELDS = (3, "|", None, ("a",), {"a": (numpy.dtype("O"), 0)}, 8, 1, 0)
"""State of a dtype that takes raw bytes for objects."""


@pytest.mark.parametrize(
    ("name", "args", "state"),
    [
        ("tests.worker.scorers.Grade", ("good",), {"_value_": "bad"}),
        ("tests.worker.scorers.Scored", None, (None, {"reward": 99.0})),
        ("numpy.dtype", ("V8", False, True), FIELDS),
        ("numpy.dtype", ("V8", False, True), (3, "|", None, None, None, 1 << 30, 1, 0)),
        ("numpy.dtype", ("O8", False, True), (3, "|", None, None, None, -1, -1, 0)),
        ("numpy.dtype", ("f8",), (3, ">", None, None, None, -1, -1, 0)),
    ],
)
def test_value_that_sets_the_state_of_what_others_share_is_refused(
    name: str, args: Any, state: Any
):
    """It changed an enum for all rollouts of a worker, or a class; a dtype ended the worker."""
    with pytest.raises(TypeError, match=r"the state of \w+ is not read"):
        value_of("f", ApartReply(forged(name, args, state)))
    assert scorers.Grade.GOOD.value == "good"
    assert not hasattr(scorers.Scored, "reward")
    assert numpy.dtype("f8").isnative


def test_array_over_memory_of_a_pickle_is_refused():
    """Its bytes were taken for objects, and the worker died."""
    made = b"cnumpy\nndarray\n(" + pickled((1,)) + pickled("O") + b"C\x08" + bytes(8) + b"tR."
    with pytest.raises(TypeError, match="f returned what is not read here"):
        value_of("f", ApartReply(b"\x80\x04" + made))


def test_reading_a_value_calls_no_getattr_of_a_module():
    """Modules that import others when a name is asked for did so."""
    module: Any = types.ModuleType("lazy_module")
    module.__getattr__ = lambda name: pytest.fail("it was called")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "lazy_module", module)
        with pytest.raises(TypeError, match=r"lazy_module\.later is not imported here"):
            value_of("f", ApartReply(b"clazy_module\nlater\n."))


@pytest.mark.parametrize(
    ("asked", "value"),
    [
        (b"cbuiltins\ngetattr\n(ctests.worker.scorers\nGrade\nVGOOD\ntR.", scorers.Grade.GOOD),
        (b"c_operator\nor_\n(cre\nM\ncre\nI\ntR.", re.IGNORECASE | re.MULTILINE),
        (b"csignal\nSIG_DFL\n.", signal.SIG_DFL),
    ],
)
def test_members_of_enums_as_python_3_11_2_has_them_were_refused(asked: bytes, value: Any):
    assert value_of("f", ApartReply(asked)) is value


async def test_processes_that_a_call_has_started_end_with_it(tmp_path: Path):
    path = tmp_path / "child"
    async with open_apart() as pool:
        await gone(await called(pool, scorers.never_ending_child, str(path)))
        assert isinstance(await called(pool, scorers.fork_and_return_twice), int)
        with pytest.raises(ApartTimeout):
            await called(pool, scorers.fork_and_hang, str(path), timeout_s=SHORT_S)
        await gone(number_in(path))
        with pytest.raises(ApartDied, match="status 7"):  # at once: the child has no pipe
            await called(pool, scorers.fork_and_leave, str(path))
        await gone(number_in(path))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere orphans are not known")
async def test_processes_in_sessions_of_their_own_end_with_their_call(tmp_path: Path):
    """They lived on where their call was ended."""
    path = tmp_path / "pid"
    async with open_apart() as pool:
        await called(pool, scorers.start_a_session, str(path))
        assert not is_alive(number_in(path))
        with pytest.raises(ApartTimeout):
            await called(pool, scorers.start_a_session_and_hang, str(path), timeout_s=SHORT_S)
        assert not is_alive(number_in(path))
        with pytest.raises(ApartDied, match="status 7"):
            await called(pool, scorers.start_a_session_and_leave, str(path))
        assert not is_alive(number_in(path))
        path.unlink()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(called, pool, scorers.start_a_session_and_hang, str(path))
            pid = await written(path)
            nursery.cancel_scope.cancel()
        await gone(pid)


async def test_call_that_becomes_another_program_is_ended(tmp_path: Path):
    """That program had no limit, and the call never ended."""
    path = tmp_path / "pid"
    async with open_apart() as pool:
        with pytest.raises(ApartDied, match="made another program of its process") as caught:
            await called(pool, scorers.become_another_program, str(path))
        assert code_of(caught.value) == "apart-died"
        assert not is_alive(number_in(path))


async def test_call_that_closes_all_files_is_ended():
    """The worker's loop waited for that process to end."""
    async with open_apart() as pool:
        with pytest.raises(ApartDied, match="or closed all its files"):
            await called(pool, scorers.close_all_files)


async def test_large_arrays_are_what_they_were_though_later_calls_have_others():
    """They are mapped from files, and one that is used again would change them."""
    arrays = [numpy.full((300, 500), float(number)) for number in range(3)]
    async with open_apart() as pool:
        pids = {await called(pool, scorers.keep, array) for array in arrays}
        assert len(pids) == 1
        found = [await called(pool, numpy.add, array, 1.0) for array in arrays]
        assert (await called(pool, scorers.kept) == arrays[0]).all()
        for each, array in zip(found, arrays, strict=True):
            assert (each == array + 1.0).all()
        found[0][:] = 7.0  # they are the caller's own
        assert (found[1] == 2.0).all()
        await overdue(pool, scorers.hang_with, arrays[0], at="in hang")


async def test_prints_of_a_call_are_bounded(capfd: pytest.CaptureFixture[str]):
    async with open_apart() as pool:
        assert await called(pool, scorers.print_much) == "printed"
        assert await called(pool, print, "the next call") is None
    told = capfd.readouterr()
    assert told.out == ""
    assert 64 << 10 <= len(told.err) < 66 << 10
    assert "[what this call apart prints further is left out]\nthe next call\n" in told.err


async def test_process_with_threads_of_a_call_is_not_used_again():
    async with open_apart() as pool:
        pid = await called(pool, scorers.leave_a_thread)
        assert await called(pool, scorers.own_pid) != pid
        await gone(pid)


async def test_state_that_a_call_has_changed_is_as_before_in_the_next(tmp_path: Path):
    """An alarm that was left set ended calls of other rollouts.  A handler that is equal to all
    was compared with the one before, and was said to be that."""
    folder = tmp_path / "gone"
    folder.mkdir()
    async with open_apart() as pool:
        before = await called(pool, scorers.shared_state)
        changes = scorers.change_shared_state, str(folder)
        assert await called(pool, *changes, memory_bytes=1 << 30) == before["pid"]
        assert await called(pool, scorers.shared_state) == before
        assert await called(pool, scorers.handle_a_signal_by_an_equal) == before["pid"]
        assert await called(pool, scorers.shared_state) == before


async def test_process_in_which_a_call_has_taken_something_away_is_not_used_again():
    """All later calls in a process whose ``os.kill`` was None came to nothing.  The value of one
    that had lowered a limit was lost."""
    async with open_apart() as pool:
        for function in (
            scorers.guard_against_code, scorers.remove_a_builtin, scorers.forbid_a_module,
            scorers.handle_all_signals, scorers.close_standard_output,
            scorers.lower_a_limit_for_good, scorers.lower_memory_for_good,
            scorers.replace_by_equals,
        ):  # fmt: skip
            pid = await called(pool, function)
            assert await called(pool, scorers.own_pid) != pid, function
            assert await called(pool, scorers.is_whole), function


async def test_module_that_fails_on_import_says_why_in_each_call(tmp_path: Path):
    """A half of it stayed: the second call was told that the module has no such function."""
    file = tmp_path / "scorers_of_a_file.py"
    file.write_text("raise LookupError('there is no data')")
    name = "scorers_of_a_file@1"  # as modules of files are called
    job = f"c{name}\nscore\n.".encode()
    call = ApartCall("score", name, str(file), job, (), checked(60, None))
    async with open_apart() as pool:
        told = [(await pool.run(call)).told for _ in range(2)]
    assert told == ["LookupError: there is no data"] * 2


async def test_call_that_finds_an_idle_process_dead_has_another():
    async with open_apart() as pool:
        pid = await called(pool, scorers.own_pid)
        os.kill(pid, signal.SIGKILL)
        assert await called(pool, scorers.own_pid) != pid


async def test_processes_are_bounded_kept_and_end_with_the_pool(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(apart_module, "PROCESSES", 2)
    before = set(children(os.getpid()))
    async with open_apart() as pool:
        assert set(children(os.getpid())) == before  # nothing starts before the first call
        async with trio.open_nursery() as nursery:
            for number in range(3 * apart_module.PROCESSES):
                nursery.start_soon(called, pool, scorers.doubled, number)
        pids = set(children(os.getpid())) - before
        # One more keeps track of what processes share; it is the interpreter's own.
        assert len(pids) <= apart_module.PROCESSES + 1
        own = await called(pool, scorers.own_pid)
        assert own in [last for pid in pids for each in children(pid) for last in children(each)]
    await gone(own)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda: 1, r"<lambda> cannot be called in another process, .*top of a module"),
        (threading.Lock().acquire, r"acquire cannot be called in another process"),
        (scorers.a_coroutine, "a_coroutine is a coroutine function"),
        ("score", "calls a function, not str"),
    ],
)
async def test_what_cannot_travel_is_refused(function: Any, text: str):
    with pytest.raises(TypeError, match=text):
        call_of(function, (), checked(1.0, None))


async def test_arguments_that_cannot_travel_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trio_envserve.envs.apart.MOST_BYTES", 1000)
    with pytest.raises(TypeError, match=r"doubled cannot be .*an argument cannot be pickled"):
        call_of(scorers.doubled, (threading.Lock(),), checked(1.0, None))
    with pytest.raises(TypeError, match=r"take 1.* bytes, of 1000 at most"):
        call_of(scorers.doubled, (bytes(1000),), checked(1.0, None))


@pytest.mark.parametrize(
    ("value", "error", "told"),
    [
        *((value, ValueError, "number above zero") for value in (0, -1, math.inf, math.nan)),
        *((value, TypeError, "number, not") for value in ("1", True)),
    ],
)
def test_limits_that_are_none_are_refused(value: Any, error: type[Exception], told: str):
    with pytest.raises(error, match=f"timeout_s is a {told}"):
        checked(value, None)
    with pytest.raises(error, match=f"memory_bytes is a {told}"):
        checked(1.0, value)
    with pytest.raises(TypeError, match="timeout_s is a number, not NoneType"):
        checked(None, None)  # type: ignore[arg-type]  # as code that is not checked


def test_exit_that_travelled_is_no_exit_here():
    reply = ApartReply(None, (), pickle.dumps(SystemExit(1)), "SystemExit: 1")
    with pytest.raises(RuntimeError, match="SystemExit: 1"):
        value_of("f", reply)
