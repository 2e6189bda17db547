"""The cost of one request in the pure machines, counted instead of timed.

Theory of operation
-------------------
Seconds on a shared machine are noise; counts are not.  A client, a router and
a worker of the pure core are joined in memory, with time and ids as arguments,
and while a steady number of requests is in flight, the Python instructions that
each machine executes for a request are counted (bytecodes, by a trace function).
The same inputs always give the same counts, on one minor version of Python.

Bytecodes do not see what C code does (the CBOR codec, dictionaries).  Where
valgrind is installed, the router's machine instructions are counted, too: its
recorded inputs are replayed by a process under callgrind, once few and once
many of them, and the difference is what the further ones cost.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.cost.joined import BATCH, MACHINES, Counter, Joined, new_router
from trio_envserve.core.router import Router

EXPECTED = Path(__file__).with_name("counted.json")
"""The counts that hold, and by how much they may grow."""

SAMPLE = 320
"""Requests whose bytecodes are counted."""

LONG_SAMPLE = 640
"""Requests whose machine instructions are counted: enough for collections of garbage
to be a part of each."""


def bytecodes(in_flight: int = 64, *, done: int = 0, keyed: bool = False) -> dict[str, float]:
    """Bytecodes for each request, by machine, with so many in flight and so many
    done before in the session."""
    counter = Counter()
    machines = Joined(counter, keyed=keyed)
    machines.keep_in_flight(in_flight)
    for _ in range(max(4, done // BATCH)):
        machines.turn()
    machines.inputs.clear()
    counter.on = True
    collects = gc.isenabled()
    gc.disable()  # what others have it call is no cost of a request, and comes at any time
    try:
        machines.turn()  # since 3.12 a function is prepared when it is first traced
        counter.counts = dict.fromkeys(MACHINES, 0)
        for _ in range(SAMPLE // BATCH):
            machines.turn()
    finally:
        if collects:
            gc.enable()
    return {name: count / SAMPLE for name, count in counter.counts.items()}


# -- machine instructions -----------------------------------------------------


def instructions(in_flight: int = 64) -> float | None:
    """The router's machine instructions for each request, under callgrind; None
    where that is not installed or does not work."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        return None
    machines = Joined(Counter())
    machines.keep_in_flight(in_flight)
    for _ in range(SAMPLE // BATCH):
        machines.turn()  # until the interpreter has specialized what is run often
    few = len(machines.inputs)
    for _ in range(LONG_SAMPLE // BATCH):
        machines.turn()
    with tempfile.TemporaryDirectory(prefix="trio-envserve-bench-") as folder:
        inputs = Path(folder) / "inputs"
        inputs.write_bytes(pickle.dumps(machines.inputs))
        less = _callgrind(valgrind, inputs, few)
        more = _callgrind(valgrind, inputs, len(machines.inputs))
    return None if less is None or more is None else (more - less) / LONG_SAMPLE


def _callgrind(valgrind: str, inputs: Path, count: int) -> int | None:
    command = [
        valgrind, "--tool=callgrind", f"--callgrind-out-file={inputs}.out",
        sys.executable, "-m", "tests.cost.counted", str(inputs), str(count),
    ]  # fmt: skip
    environ = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, capture_output=True, env=environ, check=False)
    if done.returncode:
        return None
    for line in Path(f"{inputs}.out").read_text().splitlines():
        if line.startswith(("summary:", "totals:")):
            return int(line.split()[1])
    return None


def replay(inputs: Path, count: int) -> Router:
    """Give the first ``count`` recorded inputs to a new router; returns it."""
    recorded = pickle.loads(inputs.read_bytes())  # made by this very module, a moment ago
    router = new_router()  # which draws the same ids again
    gc.collect()
    gc.freeze()  # the recording itself is no part of a server
    for given in recorded[:count]:
        router.take(type(given)(*given))  # to make the input is a part of it
    return router


# -- expectations -------------------------------------------------------------


def platform_key() -> str:
    """The name of all that machine instructions depend on, apart from this project."""
    import importlib.metadata

    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{python} {platform.machine()}, cbor2 {importlib.metadata.version('cbor2')}"


def counted(*, with_instructions: bool = True) -> dict[str, Any]:
    """All counts for each request, what was expected, and what is too much."""
    expected = json.loads(EXPECTED.read_text())
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    found = bytecodes()
    record: dict[str, Any] = {
        "python": version,
        "bytecodes": found,
        "bytecodes_1000_in_flight": bytecodes(1000),
        "bytecodes_10000_in_flight": bytecodes(10_000),
        "bytecodes_after_20000": bytecodes(done=20_000),
        "bytecodes_keyed": bytecodes(keyed=True),
        "bytecodes_keyed_after_20000": bytecodes(done=20_000, keyed=True),
        "instructions": instructions() if with_instructions else None,
        "instructions_of": platform_key(),
        "tolerance": expected["tolerance"],
        "expected": expected["bytecodes"].get(version),
        "expected_keyed": expected["bytecodes_keyed"].get(version),
        "expected_instructions": expected["instructions"].get(platform_key()),
    }
    record["problems"] = problems(record)
    return record


def problems(record: dict[str, Any]) -> list[str]:
    """The costs that are higher than they may be."""
    most = 1 + record["tolerance"]
    found = []
    for counts, wanted, kind in (
        ("bytecodes", "expected", "request"),
        ("bytecodes_keyed", "expected_keyed", "keyed request"),
    ):
        for machine, expected in (record[wanted] or {}).items():
            if record[counts][machine] > most * expected:
                found.append(
                    f"the {machine} executes {record[counts][machine]:.0f} bytecodes for a "
                    f"{kind}, {expected:.0f} expected"
                )
    for name, what, other, beside in (
        # Past the worker's capacity, a request waits: with 64 in flight none does.
        ("bytecodes_10000_in_flight", "with 10,000 in flight", "bytecodes_1000_in_flight",
         "with 1,000"),
        ("bytecodes_after_20000", "after 20,000 requests", "bytecodes", "before"),
        ("bytecodes_keyed_after_20000", "after 20,000 with keys", "bytecodes_keyed", "before"),
    ):  # fmt: skip
        for machine in MACHINES:
            got, few = record[name][machine], record[other][machine]
            if got > most * few:
                found.append(
                    f"the {machine} executes {got:.0f} bytecodes for a request {what}, "
                    f"{few:.0f} {beside}"
                )
    expected, executed = record["expected_instructions"], record["instructions"]
    if expected and executed and executed > most * expected:
        found.append(
            f"the router executes {executed:.0f} instructions for a request, "
            f"{expected:.0f} expected"
        )
    return found


def accept(record: dict[str, Any]) -> None:
    """Make these counts the expected ones."""
    expected = json.loads(EXPECTED.read_text())
    for counts in ("bytecodes", "bytecodes_keyed"):
        rounded = {name: round(count, 1) for name, count in record[counts].items()}
        expected[counts][record["python"]] = rounded
    if record["instructions"]:
        expected["instructions"][record["instructions_of"]] = round(record["instructions"])
    EXPECTED.write_text(json.dumps(expected, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    replay(Path(sys.argv[1]), int(sys.argv[2]))
