"""The special cases of a server with a journal.

Theory of operation
-------------------
``journal-calls`` and ``journal-beside`` compare two loads, or two servers (:mod:`.pairs`).
``journal-restart`` writes a journal with many retained keys, starts a server on it, kills
that, and starts another, and one more: what counts is how long the slowest takes, and how
much more memory it has than one with an empty journal.

What a journal costs is what its disk takes for a sync: so that is measured beside it.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

import trio

from tests.cost.cases import Figures, Size
from tests.cost.judge import Judge
from tests.cost.pairs import compared, in_turn, open_meter
from tests.cost.rigs import bench_server, open_server_program
from tests.cost.special_calls import KEYED_CALLS, PLAIN_CALLS
from trio_envserve.core.journal import Completed, Opened, Record, Started
from trio_envserve.core.messages import Outcome, encode
from trio_envserve.core.terms import ID_BYTES, Status
from trio_envserve.lab.proc import cpu_s, resident_bytes
from trio_envserve.lab.programs import open_program
from trio_envserve.server.journal.opening import open_folder

SYNCS = 50
STARTS = 3
GROUP = 20_000
BODY_BYTES = 200


async def journal_calls(judge: Judge, size: Size) -> Figures:
    """The rate of calls with keys, each safe on the disk, over that of calls without."""
    command = [*bench_server(judge, 1), "--journal", str(_new_folder(judge))]
    async with (
        open_server_program(command) as (server, address),
        open_meter(judge, server, address) as meter,
    ):
        pairs = await in_turn(
            size.pairs,
            lambda: meter.per_s(KEYED_CALLS, size.window_s),
            lambda: meter.per_s(PLAIN_CALLS, size.window_s),
        )
    found = compared(pairs, "keyed_per_s", "plain_per_s", "keyed_over_plain")
    return {**found, "fsync_ms": await trio.to_thread.run_sync(_sync_ms, judge.folder)}


async def journal_beside(judge: Judge, size: Size) -> Figures:
    """The costs of calls without a key at a server with a journal, and at one without."""
    with_one = [*bench_server(judge, 1), "--journal", str(_new_folder(judge))]
    async with (
        open_server_program(with_one) as (journaled, address),
        open_server_program(bench_server(judge, 1)) as (bare, other),
        open_meter(judge, journaled, address) as meter,
        open_meter(judge, bare, other) as bare_meter,
    ):
        pairs = await in_turn(
            size.pairs,
            lambda: meter.cost_us(PLAIN_CALLS, size.window_s),
            lambda: bare_meter.cost_us(PLAIN_CALLS, size.window_s),
        )
    return compared(pairs, "with_us", "without_us", "with_over_without")


async def journal_restart(judge: Judge, size: Size) -> Figures:
    """From a start on the journal of a server that was killed until it is ready."""
    folder, keys = _new_folder(judge), size.journal_keys
    empty, full = (
        [*bench_server(judge, 1), "--journal", str(each)] for each in (_new_folder(judge), folder)
    )
    async with open_server_program(empty) as (server, _):
        base_bytes = resident_bytes(server.pid)
    await trio.to_thread.run_sync(_write, folder, keys)
    ready_s: list[float] = []
    cpu: list[float] = []
    bytes_each: list[float] = []
    for _ in range(STARTS):
        began_s = time.monotonic()
        async with open_program(full, terminate=True) as server:
            await server.event("ready")
            ready_s.append(time.monotonic() - began_s)
            cpu.append(cpu_s(server.pid) or 0.0)
            bytes_each.append((resident_bytes(server.pid) - base_bytes) / keys)
            await server.kill()
    return {
        "ready_s": max(ready_s),
        "server_cpu_s": max(cpu),
        "bytes_each": max(bytes_each),
        "fsync_ms": await trio.to_thread.run_sync(_sync_ms, judge.folder),
    }


def _new_folder(judge: Judge) -> Path:
    """One that no other round has used: what that has left would count twice."""
    return Path(tempfile.mkdtemp(prefix="journal-", dir=judge.folder))


def _write(folder: Path, keys: int) -> None:
    """A journal with so many outcomes."""
    store, _, locks = open_folder(folder, 600.0)
    header = encode(Outcome(bytes(ID_BYTES), 0, Status.RESULT, "", None, 1))
    body = bytes(BODY_BYTES)
    for first in range(0, keys, GROUP):
        group: list[Record] = []
        for number in range(first, min(first + GROUP, keys)):
            digest = number.to_bytes(32, "little")
            key = b"run/%d/0" % number
            group += [
                Opened(number, b"bench", key, digest, None, 4, 0, bytes(ID_BYTES), body),
                Started(number),
                Completed(number, (header, body)),
            ]
        store.commit(group, 1.0)
    store.close()
    locks.close()


def _sync_ms(folder: Path) -> float:
    """The time of the disk for a sync of a little that was written."""
    took_ms: list[float] = []
    fd = os.open(folder / "sync", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        for _ in range(SYNCS):
            os.write(fd, bytes(4096))
            began_s = time.perf_counter()
            os.fdatasync(fd)
            took_ms.append(1000 * (time.perf_counter() - began_s))
    finally:
        os.close(fd)
    return statistics.median(took_ms)
