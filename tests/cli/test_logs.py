"""Logs of the command and of workers: they hold up nobody, and lose nothing unsaid.  And what
lists of processes call these."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.commands import (
    ROOT,
    check_nothing_left,
    command,
    forked,
    process_restored,
    run,
)
from trio_envserve import logs
from trio_envserve.cli.last_words import Lines, as_object
from trio_envserve.logs import LogSetup, Writer, configure

QUICK_S = 10.0
"""Far more than what does not wait takes; far less than a hang."""

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs its pipes and devices")


def full_pipe() -> tuple[int, int]:
    """A pipe that takes no more."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(write, False)
    try:
        while True:
            os.write(write, b".")
    except BlockingIOError:
        os.set_blocking(write, True)
    return read, write


def in_time(act: Callable[[], object]) -> bool:
    """Whether it ends, in a thread of its own."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(QUICK_S)
    return not thread.is_alive()


def put_all(writer: Writer) -> None:
    for number in range(100):
        writer.put(f"line {number}\n")


@contextmanager
def configured(setup: LogSetup, monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    """A logger of a process that logs so, as far as this one can be one."""
    with process_restored(monkeypatch):
        logging.getLogger().handlers.clear()
        configure(setup, "server")
        yield logging.getLogger("trio_envserve.server")


# -- nobody waits for a log -------------------------------------------------------


@needs_linux
def test_b8_a_log_that_nobody_reads_holds_nobody_up_and_says_what_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "WAITING_BYTES", 100)
    read, write = full_pipe()
    writer = Writer(write)
    assert in_time(lambda: put_all(writer))
    assert not writer.flush(0.0)
    os.read(read, 4096)
    assert writer.flush(QUICK_S)
    assert writer.lost == 0
    first, told, *others = os.read(read, 4096).decode().splitlines()
    assert first.endswith("line 0")
    assert others == [f"line {n}" for n in range(1, len(others) + 1)]
    assert told.startswith(f"{99 - len(others)} lines of this log were lost: ")


@needs_linux
def test_b8_a_log_on_a_full_disk_ends_nothing() -> None:
    writer = Writer(os.open("/dev/full", os.O_WRONLY))
    writer.put("one\n")
    writer.put("two\n")
    assert writer.flush(QUICK_S)
    assert writer.lost == 2


def test_what_is_written_in_part_costs_no_other_line(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    real_write, room = os.write, [4, -1]

    def limited(descriptor: int, data: bytes) -> int:
        if descriptor != write or not room:
            return real_write(descriptor, data)
        if (most := room.pop(0)) < 0:
            raise OSError(28, "no space")
        return real_write(descriptor, data[:most])

    writer = Writer(write)
    monkeypatch.setattr(os, "write", limited)
    writer.put("the first\n")
    writer.put("the second\n")
    assert writer.flush(QUICK_S)
    lost = "1 lines of this log were lost"
    assert os.read(read, 4096).decode().startswith(f"the \nthe second\n{lost}")


@needs_linux
def test_a_forked_child_writes_by_itself() -> None:
    read, write = os.pipe()
    writer = Writer(write)
    if not (child := os.fork()):
        writer.put("from the child\n")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100) == b"from the child\n"


@pytest.mark.real
@needs_linux
async def test_b8_a_server_whose_stderr_nobody_reads_serves_and_stops(tmp_path: Path) -> None:
    read, write = full_pipe()
    serve = ("serve", "--bind", "tcp://127.0.0.1:0", "--json", "--log-level", "DEBUG")
    async with forked(tmp_path, *serve, streams={"stderr": write}) as server:
        os.close(write)
        address = (await server.event("serving"))["address"]
        await server.event("ready")
        done = await run(tmp_path, "eval", "arithmetic", "-n", "20", "--address", address, "--json")
        assert done.last["results"] == 20
        server.signal(signal.SIGTERM)
        stopped = await server.wait()
        assert (stopped.code, stopped.last["event"]) == (0, "stopped")
        await check_nothing_left(tmp_path)
    os.close(read)


# -- whatever is logged -----------------------------------------------------------


def test_b11_a_lone_surrogate_is_logged_to_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with configured(LogSetup(directory=str(tmp_path)), monkeypatch) as log:
        log.warning("it raised %s", ValueError("bad \ud800 text"))
        log.warning("and it goes on")
    text = (tmp_path / "server.log").read_text()
    assert "it raised bad \\ud800 text\n" in text
    assert text.endswith("and it goes on\n")


def test_a_record_that_cannot_be_formatted_says_where_it_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Odd:
        def __str__(self) -> str:
            raise KeyError("odd")

    with configured(LogSetup(directory=str(tmp_path), json=True), monkeypatch) as log:
        log.warning("%s", Odd())
    (line,) = (tmp_path / "server.log").read_text().splitlines()
    message = json.loads(line)["message"]
    assert message.endswith("cannot be formatted: KeyError")
    assert "test_logs.py" in message
    assert capfd.readouterr().err == ""


def test_with_json_everything_on_stderr_is_json(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with configured(LogSetup(json=True), monkeypatch) as log:
        log.info("a record")
        print("a line\nand half a", file=sys.stderr, end="")
        logging.getLogger("py.warnings").warning("a warning")
        sys.excepthook(ValueError, ValueError("uncaught"), None)
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line["message"] for line in lines] == [
        "a record", "a line", "a warning", "ValueError", "ZeroDivisionError", "and half a",
    ]  # fmt: skip
    assert "ValueError: uncaught" in lines[3]["traceback"]
    assert "1 / 0" in lines[4]["traceback"]


NOISY = """
import ctypes, os, subprocess, sys, warnings
async def noisy(rollout):
    print('printed'); print('said', file=sys.stderr); warnings.warn('careful')
    if rollout.input == 'raises':
        raise ValueError('bad \\ud800 text')
    sys.stderr.writer.flush(60)  # a thread writes it; a crash does not wait for that
    os.write(2, b'past Python')  # it ends no line
    subprocess.run(['sh', '-c', 'echo; echo from a child >&2; printf "{no object" >&2; echo >&2'])
    ctypes.string_at(0)
"""


@pytest.mark.real
@needs_linux
async def test_log_json_is_json_to_the_last_line_also_past_python(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    serve = ("serve", "noisy:noisy", "--bind", "tcp://127.0.0.1:0", "--json", "--log-json")
    async with forked(tmp_path, *serve) as server:
        address = (await server.event("serving"))["address"]
        said = ""
        for each in ("raises", "crashes"):
            (tmp_path / "in.jsonl").write_text(json.dumps(each))
            ask = ("eval", "noisy:noisy", "--inputs", "in.jsonl", "--address", address, "--json")
            asked = await run(tmp_path, *ask, "--log-json", "--no-rerun")
            assert asked.last["errors"] == 1
            said += asked.err
        await server.said("died: it was ended by SIGSEGV")
        await server.said("Fatal Python error: Segmentation fault")
        server.signal(signal.SIGABRT)  # as the watchdog of systemd
        await server.wait()
        await check_nothing_left(tmp_path)  # the relay is gone, so all of it is there
        assert "Fatal Python error: Aborted" in server.err
        said += server.err
    texts = [json.loads(line)["message"] for line in said.splitlines()]
    for expected in ("printed", "said", "past Python", "from a child", "{no object"):
        assert expected in texts
    for part in ("careful", "bad", "1 errors", "noisy.py"):
        assert any(part in text for text in texts)


@pytest.mark.real
@needs_linux
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("serve", "--workers", "many"), "a number or a range such as 2..64, not 'many'"),
        (("serve", "broken:broken"), "on purpose"),
        (("serve", "--bind", "tcp://127.0.0.1:{port}"), "in use"),
    ],
)
async def test_the_last_words_of_a_command_that_cannot_start_are_json(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    (tmp_path / "broken.py").write_text("raise ValueError('on purpose')\n")
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        given = [each.format(port=port) for each in arguments]
        done = await run(tmp_path, *given, "--log-json")
    assert done.code in (2, 3)
    await check_nothing_left(tmp_path)
    err = (tmp_path / "err-0").read_text()
    texts = [json.loads(line)["message"] for line in err.splitlines()]
    assert any(said in text for text in texts), texts


FLAW = """
import sys
from trio_envserve.core.router import Router
from trio_envserve.cli import main
def flawed(*args, **given):
    raise ZeroDivisionError('a flaw')
Router.stats = flawed
sys.exit(main())
"""


@pytest.mark.real
async def test_a_flaw_of_the_server_ends_in_json(tmp_path: Path) -> None:
    (tmp_path / "flawed.py").write_text(FLAW)
    soon = ("--limit", "stats_line_s=0.1")  # the flaw is in the line of statistics
    serve = ("serve", "--bind", "tcp://127.0.0.1:0", "--log-json", *soon)
    async with forked(tmp_path, *serve, module="flawed") as server:
        done = await server.wait()
    assert done.code == 1
    await check_nothing_left(tmp_path)
    lines = [json.loads(line) for line in server.err.splitlines()]
    assert any("ZeroDivisionError: a flaw" in line.get("traceback", "") for line in lines)


@pytest.mark.real
@pytest.mark.parametrize("count", [1, 2, 3])
async def test_signals_end_in_json(tmp_path: Path, count: int) -> None:
    serve = ("serve", "--bind", "tcp://127.0.0.1:0", "--log-json", "--json")
    async with forked(tmp_path, *serve) as server:
        await server.event("ready")
        for number in [signal.SIGINT, signal.SIGTERM, signal.SIGHUP][:count]:
            server.signal(number)
        await server.wait()
        await check_nothing_left(tmp_path)
        for line in server.err.splitlines():
            assert json.loads(line)["level"]


@needs_linux
def test_the_short_name_of_a_process_has_no_space():
    """Slurm's proctrack/linuxproc did not find a host, could not kill it, and took the node for
    broken."""
    pytest.importorskip("setproctitle")
    program = (
        "from trio_envserve.logs import set_title; set_title('trio-envserve host a');"
        "print(open('/proc/self/comm').read())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.strip() == b"trio-envserve"


def title(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode()


@pytest.mark.real
@needs_linux
async def test_the_processes_of_a_server_have_titles(tmp_path: Path):
    pytest.importorskip("setproctitle")
    bind = ("--bind", "tcp://127.0.0.1:0", "--workers", "2", "--json")
    # A title has the room of the words that its process was started with.
    async with command(tmp_path, "serve", "arithmetic", *bind) as server:
        address = (await server.event("ready"))["address"]
        assert title(server.pid) == f"trio-envserve server of arithmetic at {address}"
        workers = (await run(tmp_path, "status", address, "--json")).last["per_worker"]
        assert sorted(worker["worker"] for worker in workers) == ["w0-1", "w1-1"]
        for worker in workers:
            if worker["phase"] == "ready":  # one that still starts has no title yet
                name = f"trio-envserve worker {worker['worker']} of {address}"
                assert title(worker["pid"]) == name
        assert "ready" in {worker["phase"] for worker in workers}


# -- the relay behind standard error --------------------------------------------------


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
