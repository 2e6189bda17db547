"""A strange server, and its processes as the system sees them: for tests of hosts and workers."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from tests.proc import stats
from tests.real.judge import Judge
from tests.real.support import ANY_PORT, QUICK, ROOT


@dataclasses.dataclass(frozen=True)
class OddServer:
    """A server that :func:`open_odd_server` has started, bound."""

    process: subprocess.Popen[bytes]
    address: str
    out: Path
    err: Path


@asynccontextmanager
async def open_odd_server(
    judge: Judge, *odd: str, bind: str = ANY_PORT
) -> AsyncIterator[OddServer]:
    """A server in a process that is odd in these ways; killed at the end."""
    out, err = judge.file("out.txt"), judge.file("err.txt")
    process = _start(judge, odd, bind, out, err)
    try:
        yield OddServer(process, await _address(judge, process), out, err)
    except BaseException:
        # Shown by pytest with the failure, whatever it is.
        print(f"--- exit status {process.poll()}:\n{err.read_text()}")
        raise
    finally:
        process.kill()
        process.wait()


def _start(
    judge: Judge, odd: Sequence[str], bind: str, out: Path, err: Path
) -> subprocess.Popen[bytes]:
    options = {
        "directory": str(judge.directory), "bind": bind, "odd": odd, "limits": QUICK,
    }  # fmt: skip
    with out.open("wb") as stdout, err.open("wb") as stderr:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.real.odd_server", json.dumps(options)],
            stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, cwd=ROOT,
        )  # fmt: skip


async def _address(judge: Judge, process: subprocess.Popen[bytes]) -> str:
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            while process.poll() is None:
                await trio.sleep(0.05)
            raise AssertionError("the server has ended")

        nursery.start_soon(watch)
        address = await judge.wait_for("address")
        nursery.cancel_scope.cancel()
    return address


def zombies_of(pid: int) -> list[int]:
    """The children of a process that have ended, and that it has not reaped."""
    return [each for each, (state, parent, *_) in stats() if parent == str(pid) and state == "Z"]
