"""Changes the core and the shells in every small way there is, and looks which change no
test sees.

    python tests/mutation/run.py [MODULE ...] [--list] [--only TEXT] [--share N]

For each module (by default those of the dedup cache) every mutation of :mod:`mutate` is
tried in a process of its own: the module is loaded from the changed source, the tests that
are named for it run until one fails, and then, if none did and it is a module of the core,
the simulator with some seeds.  Exit status 0 only if each mutation that survives is listed
in ``survivors.toml`` with the reason why a reader agrees that it changes nothing that
matters, and each of those does survive.  With ``--share N`` only each N-th mutation is
tried, the same ones each time; of the modules in SHARES that is so without the option.

A module of the core has its name alone (``dedup``), one of a shell that of its layer, too
(``client.driver``).  ``shells`` stands for those of the shells whose survivors were read
(READ); the others are tried by their names until somebody has read theirs.

The tests of shells that judge here are those that start no processes and wait for nobody:
in memory, with a virtual clock.  Modules are left out that no such test reaches, because
what they do is done by the system:

- what speaks to sockets and waits for them: ``net.libzmq``, ``net.zeromq``, ``net.sockets``,
  ``net.binding``, and all of ``net.zmtp`` but ``engine`` and ``mechanism``;
- what starts, guards, signals or forks processes: ``host.processes``, ``host.workers``,
  ``host.interpreters``, ``host.allocator``, ``net.forks``, ``worker.main``, ``worker.forks``,
  ``worker.guard``, ``worker.heartbeat``;
- the client's other faces, which have a thread each: ``client.thread``, ``client.plain``,
  ``client.aio``.

Others have such tests and are not named yet: ``net.monitor``, ``host.collector``,
``host.served``, ``server.curve``, ``server.hosts`` and ``worker.failures``.

A mutation that makes a test hang, or take memory without end, is caught by the clock, far
beyond what the tests take without it: by that of the processor, so that a busy machine
catches nothing, or, if the test sleeps, by that of the room.  Tests of shells that take no
processor time at all for ASLEEP_S wait for what does not come: they start nothing that could
wake them later.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import resource
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT))

from tests.mutation.mutate import Mutation, mutations, shipped  # noqa: E402  # not on the path before

PROCESSOR_S, PROCESSOR_TIMES = 5, 3
SECONDS, TIMES = 60, 10
"""A mutation has so many seconds, and so many times what the tests take without it: of a
processor, and of any kind."""

ASLEEP_S = 10
"""The tests of a shell sleep for less than this."""

MEMORY_BYTES = 4 << 30
SEEDS = 40
"""How many seeds the simulator gets, in each mode."""

CACHE = (
    "tests/core/test_dedup.py",
    "tests/core/test_dedup_bounds.py",
    "tests/core/test_dedup_machine.py",
    "tests/core/test_dedup_sessions.py",
    "tests/core/test_dedup_shares.py",
    "tests/core/test_dedup_sync.py",
    "tests/core/test_dispatcher_routes.py",
)
TESTS = {
    "dedup": CACHE,
    "request_table": CACHE,
    "ranges": ("tests/core/test_ranges.py",),
    "executions": ("tests/core/test_executions.py", "tests/core/test_workforce.py"),
    "scheduler": ("tests/core/test_scheduler.py",),
    "worker": ("tests/core/test_worker.py", "tests/core/test_worker_machine.py"),
}
"""The tests of each module of the core that may be mutated."""

CLIENT = ("tests/client/test_shell.py", "tests/client/test_shell_calls.py")
MEMORY = ("tests/net/test_memory.py", "tests/net/test_conformance.py")
SERVER = (
    "tests/server/test_shell.py",
    "tests/server/test_shell_failures.py",
    "tests/server/test_shell_portions.py",
    "tests/server/test_shell_closing.py",
    "tests/server/test_opening.py",
    *CLIENT,
    "tests/server/test_shell_hosts.py",
    "tests/server/journal/test_server.py",
)
WORKER = (
    "tests/worker/test_shell_deltas.py",
    "tests/worker/test_shell_left_behind.py",
    "tests/worker/test_shell.py",
    "tests/worker/test_shell_beats.py",
    "tests/worker/test_shell_notes.py",
    "tests/worker/test_shell_large_values.py",
)
SHELLS = {
    "net.outbox": ("tests/net/test_outbox.py",),
    "net.framing": ("tests/net/test_framing.py",),
    "net.zmtp.engine": ("tests/net/test_zmtp_engine.py",),
    "net.zmtp.mechanism": ("tests/net/test_zmtp_engine.py",),
    "net.stream": ("tests/net/test_stream.py", "tests/net/test_shared.py"),
    "net.memory_stream": ("tests/net/test_stream.py",),
    "net.pump": ("tests/net/test_stream.py", "tests/net/test_conformance.py"),
    "net.address": ("tests/net/test_address.py",),
    "net.large": ("tests/net/test_large.py", "tests/net/test_spare.py"),
    "net.shared": ("tests/net/test_shared.py",),
    "net.spare": ("tests/net/test_spare.py",),
    "net.memory": MEMORY,
    "net.memory_sockets": MEMORY,
    "client.driver": ("tests/client/test_driver.py", *CLIENT),
    "client.opening": (
        "tests/client/test_opening.py",
        "tests/client/test_shell.py",
        "tests/client/test_shell_calls.py",
    ),
    "client.shell": (
        *CLIENT,
        "tests/client/test_keys.py",
        "tests/client/test_running.py",
        "tests/worker/test_stacks.py",
        "tests/client/test_shell_large_values.py",
    ),
    "client.many": ("tests/client/test_many.py", "tests/client/test_notes.py"),
    "client.options": ("tests/client/test_options.py",),
    "client.outcome": ("tests/client/test_outcome.py", *CLIENT),
    "client.crowding": ("tests/client/test_crowding.py",),
    "client.keys": ("tests/client/test_keys.py",),
    "host.locks": ("tests/host/test_locks.py",),
    "worker.parking": ("tests/worker/test_parking.py",),
    "worker.stacks": ("tests/worker/test_stacks.py",),
    "worker.tracebacks": ("tests/worker/test_tracebacks.py",),
    "worker.traced": ("tests/worker/test_traced.py",),
    "worker.runners": ("tests/worker/test_runners.py", "tests/worker/test_runners_cancel.py"),
    "worker.deltas": ("tests/worker/test_deltas.py", "tests/worker/test_shell_deltas.py"),
    "worker.outcomes": ("tests/worker/test_outcomes.py",),
    "worker.left_behind": ("tests/worker/test_shell_left_behind.py",),
    "worker.execution_tasks": WORKER,
    "worker.shell": WORKER,
    "server.opening": ("tests/server/test_opening.py",),
    "server.traces": ("tests/server/test_traces.py",),
    "server.earlier": SERVER,
    "server.left_over": SERVER,
    "server.portions": ("tests/server/test_portions.py",),
    "server.shell": SERVER,
}
"""The same of each module of a shell, the quickest first."""

READ = (
    "net.outbox",
    "net.address",
    "net.large",
    "net.framing",
    "net.shared",
    "net.stream",
    "net.zmtp.engine",
    "net.zmtp.mechanism",
    "net.pump",
    "net.memory_stream",
    "net.memory",
    "net.memory_sockets",
    "net.spare",
    "client.opening",
    "client.driver",
    "client.options",
    "client.outcome",
    "client.crowding",
    "client.many",
    "client.keys",
    "worker.runners",
    "worker.deltas",
    "worker.outcomes",
    "worker.left_behind",
    "worker.parking",
    "worker.stacks",
    "worker.tracebacks",
    "host.locks",
    "server.portions",
    "server.traces",
)
"""The modules of shells whose survivors were read: each is agreed, or a test sees it now."""

SHARES = {
    "net.pump": 4,
    "net.memory_sockets": 2,
    "client.options": 2,
    "worker.runners": 3,
    "host.locks": 4,
}
"""Of these modules each so many-th mutation was tried and read so far; ``--share 1`` tries
all."""

ALL = TESTS | SHELLS
NO_PROCESSES = "not soak and not slow and not real"

SURVIVED, BY_TESTS, BY_SIMULATOR, BY_CLOCK = 0, 1, 2, 3
WHO = {BY_TESTS: "tests", BY_SIMULATOR: "simulator", BY_CLOCK: "clock"}


class Limits(NamedTuple):
    """What a mutation may take."""

    seconds: float
    processor_s: float


class Sleeper:
    """Whether a process sleeps, and has done nothing else for a while."""

    def __init__(self, pid: int) -> None:
        self._stat = Path(f"/proc/{pid}/stat")
        self._last: list[str] = []
        self._since_s = self._look_s = time.monotonic()

    def is_stuck(self) -> bool:
        """Looked at once a second.  Never, where the system has no such file."""
        now_s = time.monotonic()
        if now_s < self._look_s or not self._stat.exists():
            return False
        self._look_s = now_s + 1
        fields = self._stat.read_text(encoding="utf-8").rpartition(")")[2].split()
        # One that waits for a processor is in the state R.
        seen = [fields[0], *fields[11:13]]
        if seen != self._last or fields[0] != "S":
            self._last, self._since_s = seen, now_s
        return now_s - self._since_s > ASLEEP_S


class Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module from changed source; all others as ever."""

    def __init__(self, name: str, path: Path, source: str) -> None:
        self.name = name
        self.path = path
        self.source = source

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.name:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        # Under its own path, by which the frames of this package are known in tracebacks.
        exec(compile(self.source, self.path, "exec"), module.__dict__)


class SearchesLast:
    """Of the tests of a module those that try many examples run last: they take the longest,
    and most mutations are seen by others."""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items.sort(key=lambda item: getattr(item.obj, "is_hypothesis_test", False))


def full_name(module: str) -> str:
    """A module's name below the package."""
    return module if module in SHELLS else f"core.{module}"


def path_of(module: str) -> Path:
    """Where a module's source is."""
    return ROOT.joinpath("trio_envserve", *full_name(module).split(".")).with_suffix(".py")


def judge(module: str, mutation: Mutation) -> int:
    """In a process of its own: who catches this mutation."""
    import pytest

    os.chdir(ROOT)
    name = f"trio_envserve.{full_name(module)}"
    sys.meta_path.insert(0, Changed(name, path_of(module), mutation.source))
    importlib.import_module(name)  # now: pytest rewrites the asserts of what it finds itself
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist"]
    options += ["-p", "no:anyio"]  # no test needs it
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # imported before: see main
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    if module in SHELLS:
        options += ["-m", NO_PROCESSES]
    if pytest.main([*options, *ALL[module]], plugins=[SearchesLast()]) != 0:
        return BY_TESTS
    if module in SHELLS:
        return SURVIVED  # the simulator runs none of them
    from trio_envserve.lab.simulation.simulator import run

    for seed in range(SEEDS):
        if any(run(seed, harsh=harsh).violations for harsh in (False, True)):
            return BY_SIMULATOR
    return SURVIVED


def fork(module: str, mutation: Mutation, limits: Limits) -> int:
    """Judge in a child of this process, which has imported what takes long; its pid."""
    pid = os.fork()
    if pid == 0:
        code = BY_TESTS  # whatever breaks at import was seen by a test
        with contextlib.suppress(BaseException):
            os.setsid()  # a signal to its group is for nobody else
            processor_s = int(limits.processor_s)
            resource.setrlimit(resource.RLIMIT_CPU, (processor_s, processor_s))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            code = judge(module, mutation)
        os._exit(code)
    return pid


def limits_of(module: str, source: str) -> Limits:
    """What its mutations may take: the tests take a fraction of it.  They must pass."""
    began_s = time.monotonic()
    pid = fork(module, shipped(source), Limits(0.0, 600.0))
    _, status, usage = os.wait4(pid, 0)
    if os.waitstatus_to_exitcode(status) != SURVIVED:
        raise SystemExit(f"{module}: its tests fail without any mutation")
    used_s = usage.ru_utime + usage.ru_stime
    seconds = time.monotonic() - began_s
    return Limits(SECONDS + TIMES * seconds, PROCESSOR_S + PROCESSOR_TIMES * used_s)


def try_all(
    module: str, chosen: list[Mutation], limits: Limits, jobs: int
) -> list[tuple[Mutation, int]]:
    """Every mutation and who caught it; progress goes to standard error."""
    left = list(enumerate(chosen))[::-1]
    running: dict[int, tuple[int, float, Sleeper]] = {}
    codes: dict[int, int] = {}
    try:
        while left or running:
            while left and len(running) < jobs:
                index, mutation = left.pop()
                pid = fork(module, mutation, limits)
                running[pid] = index, time.monotonic() + limits.seconds, Sleeper(pid)
            time.sleep(0.01)
            for pid, (index, until_s, sleeper) in list(running.items()):
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    codes[index] = os.waitstatus_to_exitcode(status)
                    if codes[index] == SURVIVED:
                        sys.stderr.write(f"survives: {chosen[index].name}\n")
                    elif codes[index] < 0:
                        codes[index] = BY_CLOCK  # its limit of processor time has killed it
                elif time.monotonic() > until_s or (module in SHELLS and sleeper.is_stuck()):
                    kill(pid)
                    codes[index] = BY_CLOCK
                else:
                    continue
                del running[pid]
            if sys.stderr.isatty():
                sys.stderr.write(f"\r{module}: {len(codes)} of {len(chosen)} ")
    finally:
        for pid in running:
            kill(pid)
    return [(mutation, codes[index]) for index, mutation in enumerate(chosen)]


def kill(pid: int) -> None:
    """End a child of this process."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def survivors(module: str) -> dict[str, str]:
    """The mutations that may survive, and why."""
    table = tomllib.loads((HERE / "survivors.toml").read_text(encoding="utf-8"))
    reasons: dict[str, str] = table.get(module, {})
    return reasons


def examine(module: str, options: argparse.Namespace) -> bool:
    """Try a module's mutations and say what survived; whether all is as agreed."""
    source = path_of(module).read_text(encoding="utf-8")
    chosen = [each for each in mutations(source) if options.only in each.name]
    share = options.share or SHARES.get(module, 1)
    chosen = chosen[::share]
    began_s = time.monotonic()
    judged = try_all(module, chosen, limits_of(module, source), options.jobs)
    agreed = survivors(module)
    alive = [mutation for mutation, code in judged if code == SURVIVED]
    unknown = [mutation for mutation in alive if mutation.name not in agreed]
    tried = {mutation.name for mutation in chosen}
    if not options.only and share == 1:
        tried |= agreed.keys()  # also those that are not there any more
    stale = sorted((agreed.keys() & tried) - {mutation.name for mutation in alive})
    caught = Counter(WHO.get(code, "tests") for _, code in judged if code != SURVIVED)
    figures = {
        "module": module, "share": share, "mutations": len(judged), "caught": dict(caught),
        "survived": len(alive), "agreed": len(alive) - len(unknown),
        "unknown": [mutation.name for mutation in unknown], "stale": stale,
        "seconds": round(time.monotonic() - began_s, 1),
    }  # fmt: skip
    if options.json:
        print(json.dumps(figures))
        return not unknown and not stale
    part = len(alive) / max(1, len(judged))
    print(
        f"{module}: {len(judged)} mutations{f' (1 of {share})' if share > 1 else ''}, caught by "
        + ", ".join(f"{who} {count}" for who, count in caught.most_common())
        + f"; {len(alive)} survived ({part:.1%}), {figures['agreed']} of them agreed; "
        f"{figures['seconds']} s"
    )
    for mutation in unknown:
        print(f"  survives, line {mutation.line}: {mutation.name}")
    for name in stale:
        print(f"  is caught, or is not there any more: {name}")
    return not unknown and not stale


def main() -> int:
    words = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=words)
    parser.add_argument("modules", nargs="*", default=["dedup", "request_table"], metavar="MODULE")
    parser.add_argument("--only", default="", help="mutations whose name contains this")
    parser.add_argument("--share", type=int, default=0, metavar="N", help="each N-th mutation")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at the same time")
    parser.add_argument("--list", action="store_true", help="name the mutations, try none")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each module")
    options = parser.parse_args()
    named = [each for name in options.modules for each in (READ if name == "shells" else [name])]
    unknown = [module for module in named if module not in ALL]
    if unknown:
        parser.error(f"no such module: {unknown[0]}; there are shells, {', '.join(ALL)}")
    if options.share < 0 or options.jobs < 1:
        parser.error("--share and --jobs are numbers >= 1")
    if options.list:
        for module in named:
            for mutation in mutations(path_of(module).read_text(encoding="utf-8")):
                print(f"{module}:{mutation.line}: {mutation.name}")
        return 0
    os.environ.setdefault("HYPOTHESIS_PROFILE", "mutation")
    # What takes long to import and is not the package, once for all children.
    for name in ("pytest", "hypothesis.stateful", "trio", "numpy", "cbor2"):
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as compiled:
        # Each child would compile all that it imports, where no compiled files are written.
        sys.dont_write_bytecode, sys.pycache_prefix = False, compiled
        good = [examine(module, options) for module in named]
    return 0 if all(good) else 1


if __name__ == "__main__":
    raise SystemExit(main())
