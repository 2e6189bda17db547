"""Environments for tests with real processes: they do what their input says.

An input is ``{"key": str, "do": [step, ...], "value": any}``, a step a list of
its name and arguments (see :class:`Steps`).  Nothing here waits for time: a
rollout waits for *gates*, which are files that the test makes, and tells how
far it is by *marks*, which are files that it makes.

Whether two lives of one key overlap is not concluded from times either.  A life
holds a lock of the kernel's, which nobody but the end of its code, or of all
processes that ran it, releases; who does not get it writes that down.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import trio

from trio_envserve.core.terms import whole
from trio_envserve.envs.interface import Rollout
from trio_envserve.envs.recorder import RunLog
from trio_envserve.lab.simulation.junk import KINDS, spoilt
from trio_envserve.net.stream import Stream

POLL_S = 0.01
MIB = 1 << 20
NOISE = "noise of the environment"
FORK_LIFE_S = 120.0
"""A process that a test leaves behind by its own failure ends after so long."""


class Stage:
    """The directory through which a test and its environments talk."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)

    @property
    def log(self) -> Path:
        return self.directory / "run.log"

    def file(self, name: str) -> Path:
        return self.directory / name

    def exists(self, name: str) -> bool:
        return self.file(name).exists()

    def put(self, name: str, text: str = "") -> None:
        """Open a gate, or set a mark.  Whole at once."""
        draft = self.directory / f".{name}.{os.getpid()}.{threading.get_ident()}"
        draft.write_text(text)
        draft.rename(self.file(name))

    def first(self, name: str) -> bool:
        """Set a mark; whether nobody had."""
        try:
            os.close(os.open(self.file(name), os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))
        except FileExistsError:
            return False
        return True

    @contextlib.contextmanager
    def life(self, key: str) -> Iterator[bool]:
        """One life of a key; whether another one is still alive."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(self.directory / f"{key}.life", flags, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield False
            except BlockingIOError:
                yield True
        finally:
            os.close(descriptor)


class BadBase(BaseException):
    """No Exception."""


class BadText(Exception):
    """Cannot even be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def raised(name: str) -> BaseException:
    """The exception of a step "raise"."""
    known = {
        "group": ExceptionGroup("several", [ValueError("one"), TypeError("two")]),
        "base": BadBase("no exception"), "text": BadText(), "surrogate": ValueError("\ud800"),
        "exit": SystemExit(7), "interrupt": KeyboardInterrupt(), "generator": GeneratorExit(),
        "stop": StopAsyncIteration("stop"), "memory": MemoryError("no memory"),
    }  # fmt: skip
    return known.get(name, ValueError(name))


def fork_in_silence() -> int:
    """Fork, of which Python is not told.

    A thread that waits for the interpreter asks for it after some milliseconds, and who has it
    gives it away then, until that thread has had it: in the child, which has no other thread, for
    ever.  So nobody may ask meanwhile.
    """
    every_s = sys.getswitchinterval()
    sys.setswitchinterval(1e6)
    time.sleep(POLL_S)  # who waits already has it now
    forked: int = ctypes.PyDLL(None).fork()
    if forked:
        sys.setswitchinterval(every_s)
    return forked


class Steps:
    """What a rollout can be told to do.

    Those that must wait are written down as what they wait for; the backends
    below know how to wait.
    """

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._held: list[Any] = []

    def block(self, gate: str) -> None:
        """Hold up the thread, which may be the event loop's, until a gate opens."""
        while not self.stage.exists(gate):
            time.sleep(POLL_S)

    def block_once(self, gate: str, mark: str) -> None:
        """The same, but only who is the first to come here."""
        if self.stage.first(mark):
            self.block(gate)

    def hold(self, mark: str) -> None:
        """Hold the interpreter itself: no Python code runs in this process any more."""
        self.stage.put(mark)
        ctypes.PyDLL(None).sleep(int(FORK_LIFE_S))

    def hang(self, mark: str) -> None:
        """The same by an expression, which does not end."""
        self.stage.put(mark)
        re.match(r"(a+)+$", "a" * 40 + "b")

    def spin(self, cpu_s: float) -> None:
        """Compute for so long, in code that gives the interpreter to others."""
        until_s = time.thread_time() + cpu_s
        while time.thread_time() < until_s:
            pass

    def die(self, name: str = "SIGKILL") -> None:
        os.kill(os.getpid(), getattr(signal, name))

    def die_once(self, mark: str) -> None:
        if self.stage.first(mark):
            self.die()

    def exit(self, status: int) -> None:
        os._exit(status)

    def fail(self, name: str) -> None:
        """Raise (the step is called "raise")."""
        raise raised(name)

    def mark(self, name: str) -> None:
        self.stage.put(name, str(os.getpid()))

    def spawn(self, mark: str) -> None:
        """Start a process that stays in the worker's process group."""
        process = subprocess.Popen(
            [sys.executable, "-c", f"import time; time.sleep({FORK_LIFE_S})"]
        )
        self.stage.put(mark, str(process.pid))
        process.returncode = 0  # never waited for; no warning about it

    def leave_group(self) -> None:
        """Leave the process group that the worker was started in, for its server's."""
        os.setpgid(0, os.getpgid(os.getppid()))

    def escape(self, mark: str) -> None:
        """Fork a process that keeps every descriptor, in a session of its own, and stays there."""
        self._stay_apart(os.fork(), mark)

    def _stay_apart(self, forked: int, mark: str) -> None:
        """In the process that was forked, lead a session, and stay."""
        if forked:
            self.block(mark)
            return
        os.setsid()
        self.stage.put(mark, str(os.getpid()))
        time.sleep(FORK_LIFE_S)
        os._exit(0)

    def speak_junk(self, kind: str) -> None:
        """Spoil what this worker's process speaks with, in one of :data:`KINDS`."""
        assert kind in KINDS
        send_many_nowait, rng = Stream.send_many_nowait, random.Random(1)

        def junk(stream: Stream, messages: Sequence[Sequence[Any]]) -> bool:
            said = (spoilt([*map(whole, frames)], kind, rng) for frames in messages)
            return send_many_nowait(stream, [frames for frames in said if frames])

        Stream.send_many_nowait = junk  # type: ignore[method-assign,assignment]

    def leave_a_thread(self) -> None:
        """A thread that is no daemon: the interpreter waits for it at its end."""
        threading.Thread(target=time.sleep, args=(FORK_LIFE_S,)).start()

    def crash_the_loop(self) -> None:
        """A system task that fails ends trio itself."""

        async def fail() -> None:
            raise ValueError("a system task of the environment")

        trio.lowlevel.spawn_system_task(fail)

    def close_streams(self) -> None:
        sys.stdout.close()
        sys.stderr.close()

    def print(self) -> None:
        """By Python, and beside it."""
        print(NOISE, flush=True)
        os.write(1, NOISE.encode())

    def starve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def feed(self) -> None:
        while self._held:
            os.close(self._held.pop())

    def swell(self, mib: int) -> None:
        """Hold so much memory while it is written to; its peak stays."""
        b"x" * (mib * MIB)

    def grow(self, mib: int) -> None:
        """Hold so much more memory for good, every page of it written to."""
        self._held.append(b"x" * (mib * MIB))

    def use_up_descriptors(self) -> None:
        """No file can be opened in this worker's process any more."""
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))

    def haunt(self, mark: str) -> None:
        """The same, with the worker's own sockets, too: Python is not told of the fork."""
        self._stay_apart(fork_in_silence(), mark)


class Actor:
    """Trio environment.  ``setup`` are steps for the set-up of each worker."""

    def __init__(
        self, directory: str, rerun: bool = False, setup: list[list[Any]] | None = None
    ) -> None:
        self.stage = Stage(directory)
        self.steps = Steps(self.stage)
        self.rerun = rerun
        self._log = RunLog(self.stage.log)
        self._setup = setup or []

    async def setup(self) -> None:
        self.stage.first(f"setup-{os.getpid()}")
        await self._all(self._setup)

    async def run_rollout(self, rollout: Rollout) -> Any:
        asked = rollout.input
        with self.stage.life(asked["key"]) as overlap:
            with self._log.record(rollout, key=asked["key"], overlap=overlap):
                await self._all(asked.get("do", []))
                return await self._value(asked)

    async def _all(self, steps: list[list[Any]]) -> None:
        for name, *arguments in steps:
            match name:
                case "wait":
                    await self._wait(*arguments)
                case "sleep":  # for what is about how long something takes
                    await trio.sleep(*arguments)
                case "ignore cancel":
                    with trio.CancelScope(shield=True):
                        await self._wait(*arguments)
                case "clean up slowly":
                    await self._clean_up_slowly(*arguments)
                case "raise":
                    self.steps.fail(*arguments)
                case _:
                    getattr(self.steps, name.replace(" ", "_"))(*arguments)

    async def _wait(self, gate: str) -> None:
        while not self.stage.exists(gate):
            await trio.sleep(POLL_S)

    async def _clean_up_slowly(self, mark: str, gate: str) -> None:
        """Wait to be cancelled, and then for a gate, before it ends by that."""
        try:
            await trio.sleep_forever()
        finally:
            self.stage.put(mark)
            with trio.CancelScope(shield=True):
                await self._wait(gate)

    async def _value(self, asked: dict[str, Any]) -> Any:
        match asked.get("value"):
            case {"bytes": int(size)}:
                return os.urandom(size)
            case {"keys": int(count)}:  # whose hashes can be chosen
                return {(number,): number for number in range(count)}
            case {"variable": str(name)}:
                return {"key": asked["key"], "variable": os.environ.get(name)}
            case {"unencodable": _}:
                return {"state": None, "completion": [1, {"inner": object()}]}
            case value:
                # The random part tells two executions of the same input apart.
                return {"key": asked["key"], "value": value, "random": os.urandom(8).hex()}


class ThreadActor:
    """The same in a thread, for the few steps that need one."""

    backend = "thread"

    def __init__(self, directory: str) -> None:
        self.stage = Stage(directory)
        self.steps = Steps(self.stage)
        self._log = RunLog(self.stage.log)

    def run_rollout(self, rollout: Rollout) -> Any:
        asked = rollout.input
        with self.stage.life(asked["key"]) as overlap:
            with self._log.record(rollout, key=asked["key"], overlap=overlap):
                for name, *arguments in asked.get("do", []):
                    if name == "until cancelled":
                        while not rollout.cancelled():
                            time.sleep(POLL_S)
                    else:
                        getattr(self.steps, name.replace(" ", "_"))(*arguments)
                return {"key": asked["key"], "cancelled": rollout.cancelled()}


class Unmakeable:
    def __init__(self, directory: str) -> None:
        pass

    async def setup(self) -> None:
        raise RuntimeError("the data set is not there")

    async def run_rollout(self, rollout: Rollout) -> Any:
        raise AssertionError("it was never set up")


class Locked:
    """Holds a permit of ``engine``, and one of so many locked files: there is one for each permit,
    and the kernel lets go of those of a dead process.  It never runs alone: each waits for a
    while."""

    rerun = True

    def __init__(self, directory: str, most: int) -> None:
        self._files = [Path(directory) / f"permit-{number}" for number in range(most)]
        self._most = most

    async def run_rollout(self, rollout: Rollout) -> dict[str, Any]:
        async with rollout.limit("engine", self._most):
            for path in self._files:
                descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(descriptor)
                    continue
                try:
                    await trio.sleep(0.05)
                finally:
                    os.close(descriptor)
                return {"reward": 1.0}
            raise RuntimeError(f"more than {self._most} permits are held at once")


class Bookings:
    """Books a seat with each turn, and says before each which one it will be.  At turn ``at`` of
    its input each of its first ``lives`` waits for ever, having booked (``booked``) or not."""

    TURNS = 40

    def __init__(self, directory: str) -> None:
        self.stage = Stage(directory)
        self._log = RunLog(self.stage.log)

    def booked(self, key: str) -> list[int]:
        """The seats that are booked, in order."""
        file = self.stage.file(f"{key}.seats")
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    async def run_rollout(self, rollout: Rollout) -> Any:
        asked = rollout.input
        key = asked["key"]
        with self.stage.life(key) as overlap:
            with self._log.record(rollout, key=key, overlap=overlap):
                return await self._book(rollout, key, asked["booked"])

    async def _book(self, rollout: Rollout, key: str, booked: bool) -> Any:
        done, doubts = 0, []
        if rollout.saved is not None:
            done, doubts = rollout.saved.state["done"], rollout.saved.state["doubts"]
        if rollout.saved is not None and rollout.saved.doing is not None:
            doubts.append(rollout.saved.doing)
            done += self.booked(key)[-1:] == [done + 1]  # only of this one it must look
        for turn in range(done + 1, self.TURNS + 1):
            await rollout.save({"done": turn - 1, "doubts": doubts}, doing=f"books seat {turn}")
            if not booked:
                await self._wait(rollout, key, turn)
            self._take(key, turn)
            if booked:
                await self._wait(rollout, key, turn)
        return {"key": key, "doubts": doubts}

    def _take(self, key: str, turn: int) -> None:
        with open(self.stage.file(f"{key}.seats"), "a", encoding="ascii") as seats:
            seats.write(f"{turn}\n")

    async def _wait(self, rollout: Rollout, key: str, turn: int) -> None:
        """Wait if it is the turn at which this life waits."""
        lives = [f"{key}.at-{life}" for life in range(rollout.input["lives"])]
        if turn != rollout.input["at"] or not any(map(self.stage.first, lives)):
            return
        while not self.stage.exists(f"{key}.on"):
            await trio.sleep(POLL_S)
