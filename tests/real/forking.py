"""Rollouts that fork, and neighbours that write down each of their steps."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import trio

from trio_envserve import open_client, open_server
from trio_envserve.net import MemoryNetwork

SEVEN = [sys.executable, "-c", "raise SystemExit(7)"]
TICKS = 60
TICK_S = 0.02
PATIENCE_S = 30.0
"""So long a child may take to be gone; it takes milliseconds."""


class Forking:
    """Does what its input says: ``{"key": str, "how": name of a method}``."""

    def __init__(self, directory: str, backend: str) -> None:
        self.log = Path(directory) / f"{backend}.log"
        self.backend = backend
        self.run_rollout = self.plain if backend == "thread" else self.coroutine

    # -- neighbours --------------------------------------------------------------

    def write(self, key: str, step: int) -> None:
        with self.log.open("ab", buffering=0) as log:
            log.write(json.dumps([key, step, os.getpid()]).encode() + b"\n")

    async def coroutine(self, rollout: Any) -> Any:
        key, how = rollout.input["key"], rollout.input["how"]
        if how != "tick":
            result = getattr(self, how)(rollout)
            return await result if hasattr(result, "__await__") else result
        for step in range(TICKS):
            self.write(key, step)
            await self.sleep(TICK_S)
        return "ticked"

    def plain(self, rollout: Any) -> Any:
        key, how = rollout.input["key"], rollout.input["how"]
        if how != "tick":
            return getattr(self, how)(rollout)
        for step in range(TICKS):
            self.write(key, step)
            time.sleep(TICK_S)
        return "ticked"

    async def sleep(self, seconds: float) -> None:
        await (trio if self.backend == "trio" else asyncio).sleep(seconds)

    # -- children that come back -------------------------------------------------

    def exec_fails(self, rollout: Any) -> Any:
        return forked(lambda: os.execv("/no/such/program", ["program"]))

    def pty_child_returns(self, rollout: Any) -> Any:
        pid, descriptor = pty.fork()
        if pid == 0:
            return "from the child"
        try:
            return ended(pid)
        finally:
            os.close(descriptor)

    def exits_as_if_alone(self, rollout: Any) -> Any:
        return forked(lambda: sys.exit(0))

    async def awaits(self, rollout: Any) -> Any:
        pid = os.fork()
        if pid == 0:
            while True:
                await self.sleep(0.01)
        return ended(pid)

    async def catches_all(self, rollout: Any) -> Any:
        pid = os.fork()
        if pid == 0:
            while True:
                with contextlib.suppress(BaseException):
                    await self.sleep(0)
        return ended(pid)

    async def in_a_task(self, rollout: Any) -> Any:
        found = []

        async def child() -> None:
            pid = os.fork()
            if pid == 0:
                raise ValueError("in the child")
            found.append(ended(pid))

        if self.backend == "trio":
            # That it is another task is what matters.
            async with trio.open_nursery() as nursery:  # noqa: ASYNC112
                nursery.start_soon(child)
        else:
            task = asyncio.create_task(child())
            await task
        return found[0]

    async def in_an_executor(self, rollout: Any) -> Any:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as executor:
            said = loop.run_in_executor(executor, self.exec_fails, rollout)
            await loop.run_in_executor(executor, self.write, rollout.input["key"], 0)
            return await said

    def asks_the_model(self, rollout: Any) -> Any:
        def ask() -> None:
            while True:
                rollout.ask_sync([], reference="x")

        return forked(ask)

    def forks_twice(self, rollout: Any) -> Any:
        """As a daemon does; then comes back."""
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            if os.fork():
                os._exit(0)
            return "from the grandchild"  # its end of the pipe closes with it
        os.close(write)
        assert ended(pid) == ["exited", 0]
        try:
            return "gone" if select.select([read], [], [], PATIENCE_S)[0] else "it lives"
        finally:
            os.close(read)

    # -- children that do not ----------------------------------------------------

    def exits(self, rollout: Any) -> Any:
        def end() -> None:
            time.sleep(0.2)
            os._exit(7)

        return forked(end)

    def executes(self, rollout: Any) -> Any:
        return forked(lambda: os.execv(sys.executable, SEVEN))

    def runs_a_program(self, rollout: Any) -> Any:
        done = subprocess.run(SEVEN, check=False)
        other = subprocess.run(SEVEN, check=False, preexec_fn=lambda: None)  # this kind forks
        return ["exited", done.returncode if done.returncode == other.returncode else -1]

    def multiprocesses(self, rollout: Any) -> Any:
        def target() -> None:
            async def main() -> None:
                await asyncio.sleep(0.05)

            if self.backend != "trio":
                asyncio.run(main())
            raise SystemExit(7)

        process = multiprocessing.get_context("fork").Process(target=target)
        process.start()
        process.join(PATIENCE_S)
        return ["exited", process.exitcode]

    def descriptors(self, rollout: Any) -> Any:
        """What a child has in the place of the descriptors by which a worker lives."""
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            numbers = *sys.argv[1:4], sys.argv[5]  # between them: where it says where it stands
            files = [Path(f"/proc/self/fd/{number}") for number in numbers]
            found = [str(file.readlink()) if file.exists() else "closed" for file in files]
            os.write(write, json.dumps(found).encode())
            os._exit(7)
        os.close(write)
        try:
            return [json.loads(os.read(read, 4096)), ended(pid)]
        finally:
            os.close(read)


def forked(child: Callable[[], Any]) -> Any:
    """How a child has ended; in the child, what that returns, if it does."""
    pid = os.fork()
    return ended(pid) if pid else child()


def ended(pid: int) -> Any:
    """How a child has ended, or that it has not; then it is killed."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            code = os.waitstatus_to_exitcode(status)
            return ["exited", code] if code >= 0 else ["killed", -code]
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "it lives"


async def main(directory: str) -> None:
    """A server that runs its rollouts here; and afterwards a child of this process."""
    environment = Forking(directory, "trio")
    async with (
        open_server(
            environment, bind="memory:forks", workers=0, network=(network := MemoryNetwork())
        ),
        open_client("memory:forks", network=network) as client,
    ):
        print("found", await client.run_rollout({"key": "x", "how": "exec_fails"}), flush=True)
    pid = os.fork()
    if pid == 0:
        await trio.sleep(0.01)
        os._exit(3)
    print("after", ended(pid), flush=True)


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
