"""The special case of keys: what calls take of a server with them, and of one without.

Theory of operation
-------------------
Two servers, each with a client of its own, take turns in short windows, as in
:mod:`.special_calls`.  What counts is the processor time of client and router: workers know
nothing of keys.  The ratio of a round is the median of its pairs, and its spread the least
and the largest of them.
"""

from __future__ import annotations

import statistics
from importlib.util import find_spec
from pathlib import Path

from ...net.keypairs import KeyPair, write_whole
from ...server.curve import CLIENTS, SERVER_FILE
from ..programs import Program, module, open_program
from .cases import Figures, Load, Size
from .judge import Judge
from .measure import cpu_s, spent
from .rigs import bench_server, open_server_program

CALLS = Load(64)


async def curve_64(judge: Judge, size: Size) -> Figures:
    """What 64 calls in flight take with keys, and over that without."""
    if find_spec("nacl") is None:  # the extra curve
        return {}
    folder, file = write_keys(judge.folder)
    sealed = [*bench_server(judge, 1), "--curve", str(folder)]
    async with (
        open_server_program(sealed) as (with_keys, address),
        open_server_program(bench_server(judge, 1)) as (without, other),
        open_program(module("bench.client", address, str(file))) as keyed,
        open_program(module("bench.client", other)) as keyless,
    ):
        pairs: list[tuple[float, float]] = []
        rigs = [(with_keys, keyed), (without, keyless)]
        for server, client in rigs:
            await client.line()
            await _cost_us(judge, server, client, size.window_s / 2)  # to warm it
        for number in range(size.pairs):
            took: dict[int, float] = {}
            for server, client in rigs if number % 2 else reversed(rigs):
                cost_us = await _cost_us(judge, server, client, size.window_s)
                if cost_us is None:
                    return {}
                took[server.pid] = cost_us
            pairs.append((took[with_keys.pid], took[without.pid]))
    ratios = [one / other for one, other in pairs]
    return {
        "curve_us": statistics.median(one for one, _ in pairs),
        "keyless_us": statistics.median(other for _, other in pairs),
        "curve_over_keyless": statistics.median(ratios),
        "least_over_keyless": min(ratios),
        "most_over_keyless": max(ratios),
    }


def write_keys(folder: Path) -> tuple[Path, Path]:
    """The folder of a server's keys with one client, and the file of that."""
    server, client = KeyPair.new(), KeyPair.new()
    keys, file = folder / "keys", folder / "bench.key"
    (keys / CLIENTS).mkdir(parents=True, exist_ok=True)
    write_whole(keys / SERVER_FILE, f'secret = "{server.secret}"\n', 0o600)
    right = f'public = "{client.public}"\nroles = ["submit"]\n'
    write_whole(keys / CLIENTS / "bench.toml", right, 0o644)
    own = f'server = "{server.public}"\nsecret = "{client.secret}"\n'
    write_whole(file, own, 0o600)
    return keys, file


async def _cost_us(judge: Judge, server: Program, client: Program, seconds: float) -> float | None:
    pids = [server.pid, client.pid]
    before = [cpu_s(pid) for pid in pids]
    figures = await client.ask(CALLS.record(seconds, judge.next_call))
    took_s = spent(before, [cpu_s(pid) for pid in pids])
    judge.load(figures)
    return None if took_s is None else 1e6 * took_s / figures["answered"]
