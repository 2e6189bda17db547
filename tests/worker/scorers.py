"""Functions that are called apart."""

from __future__ import annotations

import builtins
import collections
import ctypes
import dataclasses
import datetime
import decimal
import enum
import fractions
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
import types
import uuid
import zoneinfo
from pathlib import Path
from typing import Any, NamedTuple, NoReturn


def doubled(number: int) -> int:
    return 2 * number


def own_pid() -> int:
    return os.getpid()


def hang() -> object:
    """Holds the interpreter for ever."""
    return re.match(r"(a+)+$", "a" * 40 + "b")


HANG = f'tests/worker/scorers.py", line {hang.__code__.co_firstlineno + 2}, in hang'
"""The line where it stands, as stacks have it."""


def hang_with(array: object) -> object:
    return hang()


def write_pid_and_hang(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    hang()


def never_ending_child(path: str) -> int:
    """Forks a process that does not end; returns its id, which it writes down, too."""
    child = os.fork()
    if child == 0:
        while True:
            signal.pause()
    Path(path).write_text(str(child))
    return child


def fork_and_hang(path: str) -> None:
    never_ending_child(path)
    hang()


def fork_and_return_twice() -> int:
    os.fork()
    return os.getpid()


def fork_and_leave(path: str) -> NoReturn:
    never_ending_child(path)
    os._exit(7)


def start_a_session(path: str) -> None:
    started = subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path(path).write_text(str(started.pid))


def start_a_session_and_hang(path: str) -> None:
    start_a_session(path)
    hang()


def start_a_session_and_leave(path: str) -> NoReturn:
    start_a_session(path)
    os._exit(7)


def become_another_program(path: str) -> NoReturn:
    start_a_session(path)
    os.execvp("sleep", ["sleep", "600"])


def close_all_files() -> None:
    os.closerange(3, 1000)
    hang()


def allocate() -> None:
    taken = []
    while True:
        taken.append(bytearray(1 << 22))


def print_much() -> str:
    for _ in range(16):
        print("x" * (1 << 20))
    os.write(1, b"y" * 1024)
    return "printed"


class OddError(Exception):
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("very odd")
        self.lock = threading.Lock()


class OneArgument(Exception):
    """Can be pickled, and not be read."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class Liar(Exception):
    """Has text that raises."""

    def __str__(self) -> str:
        raise SystemExit("no text")


def raise_value_error() -> NoReturn:
    raise ValueError("a wrong answer")


def raise_odd_error() -> NoReturn:
    raise OddError


def raise_one_argument() -> NoReturn:
    raise OneArgument(1, 2)


def raise_liar() -> NoReturn:
    raise Liar


def leave() -> NoReturn:
    os._exit(3)


def leave_within_the_answer() -> NoReturn:
    frame: Any = sys._getframe()
    while "send_pipe" not in frame.f_locals:
        frame = frame.f_back
    os.write(frame.f_locals["send_pipe"].fileno(), struct.pack("!i", 1000) + b"the first of these")
    os._exit(0)


def leave_politely() -> NoReturn:
    sys.exit("politely")


def crash() -> None:
    ctypes.string_at(0)


def stop_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def stop_the_reaper(path: str) -> None:
    Path(path).write_text(str(os.getppid()))
    os.kill(os.getppid(), signal.SIGSTOP)
    hang()


def stop_those_above(path: str) -> None:
    """Stop the first process, and the reaper between."""
    status = Path(f"/proc/{os.getppid()}/status").read_text()
    os.kill(int(status.partition("PPid:")[2].split()[0]), signal.SIGSTOP)
    stop_the_reaper(path)


def return_a_lambda() -> object:
    return lambda: None


class ReadBy:
    """Is read by a call of some function."""

    def __init__(self, *called: object) -> None:
        self.called = called

    def __reduce__(self) -> tuple[Any, ...]:
        return self.called[0], self.called[1:]


class RaisedBy(Exception):
    """Is read by a call of a function."""

    def __reduce__(self) -> tuple[Any, ...]:
        return raised_by, ()


def raised_by() -> RaisedBy:
    return RaisedBy("made by a function")


def return_sleep() -> object:
    return ReadBy(time.sleep, 1e6)


def return_exit() -> object:
    return ReadBy(os._exit, 3)


def return_plain_object() -> object:
    return Plain()


def raise_raised_by() -> NoReturn:
    raise raised_by()


class Plain:
    """Is no data."""


@dataclasses.dataclass
class Scored:
    reward: float
    parts: dict[str, Any]


class Pair(NamedTuple):
    first: int
    second: int


class Grade(enum.Enum):
    GOOD = "good"


class Scores(dict[str, float]):
    """Scores by their names."""


def data() -> list[Any]:
    """Of each kind of value that a call may return."""
    import numpy  # here: each process for calls imports this module

    return [
        None, True, 1 << 70, 1.5, "ä", b"b", bytearray(b"c"), (1, [2]), {1}, frozenset({2}), 2j,
        Scored(1.0, {"a": Scored(0.5, {})}), Pair(1, 2), Grade.GOOD, Scores(a=1.0),
        collections.OrderedDict(a=1), collections.Counter("aab"), collections.deque([1]),
        collections.defaultdict(int, a=1), decimal.Decimal("1.50"), fractions.Fraction(1, 3),
        uuid.UUID(int=7), Path("a/b"), datetime.timedelta(1), datetime.date(2026, 1, 1),
        datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
        datetime.datetime(2026, 1, 1, tzinfo=zoneinfo.ZoneInfo("UTC")), range(3), slice(1, 2),
        types.SimpleNamespace(a=1),
        numpy.float32(0.5), numpy.int64(3), numpy.arange(6).reshape(2, 3)[:, 1].tolist(),
    ]  # fmt: skip


def return_much() -> bytes:
    return bytes(1000)


def leave_a_thread() -> int:
    threading.Thread(target=time.sleep, args=(1e6,)).start()
    return os.getpid()


async def a_coroutine() -> None:
    """Not to be called apart."""


KEPT: list[object] = []
"""Of calls before, in one process."""


def keep(value: object) -> int:
    KEPT.append(value)
    return os.getpid()


def kept() -> object:
    return KEPT[0]


def shared_state() -> dict[str, object]:
    """What all calls in one process share."""
    return {
        "pid": os.getpid(),
        "folder": os.getcwd(),
        "variables": dict(os.environ),
        "path": sys.path.copy(),
        "handler": signal.getsignal(signal.SIGALRM),
        "timers": (signal.getitimer(signal.ITIMER_REAL), signal.getitimer(signal.ITIMER_PROF)),
        "mask": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "limits": [*map(resource.getrlimit, (resource.RLIMIT_NOFILE, resource.RLIMIT_AS))],
        "umask": os.umask(0o22),
        "recursion": sys.getrecursionlimit(),
    }


def change_shared_state(folder: str) -> int:
    os.chdir(folder)
    os.rmdir(folder)
    os.environ["ADDED"] = "by a call"
    del os.environ["PATH"]
    sys.path.insert(0, folder)
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 1e6)
    signal.setitimer(signal.ITIMER_PROF, 1e6)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    resource.setrlimit(resource.RLIMIT_NOFILE, (50, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    os.umask(0o777)
    sys.setrecursionlimit(100)
    return os.getpid()


def guard_against_code() -> int:
    """As harnesses do that run code of a model."""
    pid = os.getpid()
    builtins.exit = builtins.help = None  # type: ignore[assignment]
    os.kill = os.write = os.getpid = None  # type: ignore[assignment]
    shutil.rmtree = None  # type: ignore[assignment]
    subprocess.Popen = None  # type: ignore[misc, assignment]
    return pid


def lower_memory_for_good() -> int:
    return lower_a_limit_for_good(resource.RLIMIT_AS, 1 << 40)


def lower_a_limit_for_good(limit: int = resource.RLIMIT_CORE, most: int = 0) -> int:
    """As harnesses do that run code of a model, for a user who is not root."""
    if sys.platform == "linux":
        libc, head = ctypes.CDLL(None), struct.pack("Ii", 0x20080522, 0)
        held = ctypes.create_string_buffer(24)
        assert libc.capget(head, held) == 0
        rights = [each & ~(1 << 24) for each in struct.unpack("3I12x", held.raw)]
        # Without CAP_SYS_RESOURCE.
        assert libc.capset(head, struct.pack("3I12x", *rights)) == 0
    resource.setrlimit(limit, (most, most))
    return os.getpid()


class EqualToAll:
    """Is equal to whatever it is compared with, as ``mock.ANY`` is."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = object.__hash__

    def __call__(self, *args: object) -> float:
        return 99.0


def replace_by_equals() -> int:
    time.time = os.kill = EqualToAll()  # type: ignore[assignment]
    return os.getpid()


def handle_a_signal_by_an_equal() -> int:
    signal.signal(signal.SIGALRM, EqualToAll())
    return os.getpid()


def remove_a_builtin() -> int:
    del builtins.hex
    return os.getpid()


def forbid_a_module() -> int:
    sys.modules["a_module_of_another_scorer"] = None  # type: ignore[assignment]
    return os.getpid()


def handle_all_signals() -> int:
    for each in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(each, signal.SIG_IGN)
    return os.getpid()


def close_standard_output() -> int:
    sys.stdout.close()
    return os.getpid()


def is_whole() -> bool:
    return (
        callable(os.kill) and callable(shutil.rmtree) and callable(subprocess.Popen)
        and not isinstance(time.time, EqualToAll)
    )  # fmt: skip
