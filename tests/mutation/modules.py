"""The modules that may be mutated, and the tests that judge each.

A module of the core has its name alone (``work``), one of a shell that of its layer, too
(``client.driver``).

The tests of shells that judge here are those that start no processes and wait for nobody:
in memory, with a virtual clock.  Modules are left out that no such test reaches, because
what they do is done by the system:

- what speaks to sockets and waits for them: ``net.libzmq``, ``net.binding``, and all of
  ``net.zmtp`` but ``engine``;
- what starts, guards, signals or forks processes: ``host.processes``, ``host.workers``,
  ``host.interpreters``, ``host.allocator``, ``net.forks``, ``worker.main``, ``worker.forks``,
  ``worker.guard``, ``worker.heartbeat``;
- the client's other faces, which have a thread each: ``client.thread``, ``client.plain``,
  ``client.aio``.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

WORK = (
    "tests/core/test_account.py",
    "tests/core/test_work.py",
    "tests/core/test_work_saves.py",
    "tests/core/test_journal.py",
    "tests/core/test_sessions.py",
    "tests/core/test_scope.py",
    "tests/core/test_scope_links.py",
    "tests/core/test_status.py",
    "tests/core/test_closing.py",
    "tests/core/test_router.py",
    "tests/core/test_router_stats.py",
    "tests/core/test_executions_announced.py",
    "tests/core/test_rights.py",
    "tests/core/test_client_pings.py",
    "tests/simulation/test_simulation.py::test_no_seed_violates_a_guarantee",
)
TESTS = {
    "account": WORK,
    "work": WORK,
    "ranges": ("tests/core/test_ranges.py",),
    "executions": (
        "tests/core/test_executions.py",
        "tests/core/test_workforce.py",
    ),
    "gate": ("tests/core/test_gate.py", "tests/core/test_journal.py"),
    "permits": ("tests/core/test_permits.py", "tests/core/test_worker.py"),
    "scheduler": ("tests/core/test_scheduler.py", "tests/core/test_scheduler_suspects.py"),
    "worker": ("tests/core/test_worker.py", "tests/core/test_worker_machine.py"),
}
"""The tests of each module of the core that may be mutated."""

CLIENT = ("tests/client/test_shell.py", "tests/client/test_shell_calls.py")
MEMORY = (
    "tests/net/test_memory.py",
    "tests/net/test_conformance.py",
    "tests/net/test_stream.py",
)
SERVER = (
    "tests/server/test_shell.py",
    "tests/server/test_portions.py",
    "tests/server/test_opening.py",
    *CLIENT,
    "tests/server/test_shell_hosts.py",
    "tests/server/journal/test_server.py",
)
WORKER = (
    "tests/worker/test_deltas.py",
    "tests/worker/test_execution_tasks.py",
    "tests/worker/test_shell.py",
    "tests/worker/test_shell_notes.py",
    "tests/worker/test_shell_large_values.py",
)
SHELLS = {
    "net.framing": (
        "tests/net/test_framing.py",
        "tests/net/test_large.py",
        "tests/net/test_zmtp_curve.py",
    ),
    "net.zmtp.engine": ("tests/net/test_zmtp_engine.py",),
    "net.stream": ("tests/net/test_stream.py",),
    "net.connection": ("tests/net/test_outbox.py", "tests/net/test_stream.py"),
    "net.pump": ("tests/net/test_stream.py", "tests/net/test_conformance.py"),
    "net.address": ("tests/net/test_address.py",),
    "net.memory": MEMORY,
    "client.driver": ("tests/client/test_driver.py", "tests/client/test_shared.py", *CLIENT),
    "client.opening": (
        "tests/client/test_opening.py",
        "tests/client/test_shell.py",
        "tests/client/test_shell_calls.py",
    ),
    "client.shell": (
        *CLIENT,
        "tests/client/test_keys.py",
        "tests/client/test_many.py",
        "tests/client/test_shared.py",
        "tests/client/test_running.py",
        "tests/worker/test_stacks.py",
        "tests/client/test_shell_large_values.py",
        "tests/client/test_driver.py",
    ),
    "client.options": ("tests/client/test_options.py",),
    "client.outcome": CLIENT,
    "host.locks": ("tests/host/test_locks.py",),
    "host.collector": ("tests/host/test_collector.py",),
    "host.served": ("tests/host/test_served.py",),
    "worker.parking": ("tests/worker/test_parking.py",),
    "worker.stacks": ("tests/worker/test_stacks.py",),
    "worker.tracebacks": ("tests/worker/test_tracebacks.py",),
    "worker.model_calls": (
        "tests/worker/test_model_calls_traced.py",
        "tests/worker/test_model_calls_in_roles.py",
    ),
    "worker.runners": ("tests/worker/test_runners.py",),
    "worker.deltas": ("tests/worker/test_deltas.py",),
    "worker.long_values": ("tests/worker/test_long_values.py",),
    "worker.outcomes": (
        "tests/worker/test_outcomes.py",
        "tests/worker/test_shell_large_values.py",
        "tests/test_redaction.py",
    ),
    "worker.failures": ("tests/worker/test_failures.py",),
    "worker.execution_tasks": (
        "tests/worker/test_execution_tasks.py",
        "tests/worker/test_shell.py",
    ),
    "worker.shell": WORKER,
    "server.curve": ("tests/server/test_curve.py",),
    "server.hosts": ("tests/server/test_hosts_messages.py", "tests/server/test_shell_hosts.py"),
    "server.opening": ("tests/server/test_opening.py",),
    "server.traces": ("tests/server/test_traces.py",),
    "server.earlier": ("tests/server/test_earlier.py",),
    "server.left_over": ("tests/server/test_left_over.py",),
    "server.portions": ("tests/server/test_portions.py",),
    "server.statistics": ("tests/server/test_statistics.py", "tests/server/test_shell_hosts.py"),
    "server.shell": SERVER,
}
"""The same of each module of a shell, the quickest first."""

UNREAD = ("net.connection", "worker.shell", "server.shell")
READ = tuple(module for module in SHELLS if module not in UNREAD)
"""The modules of shells whose survivors were read: each is agreed, or a test sees it now."""

SHARES = {
    "net.pump": 4,
    "net.memory": 2,
    "client.options": 2,
    "worker.runners": 3,
    "host.locks": 4,
}
"""Of these modules each so many-th mutation was tried and read so far; ``--share 1`` tries
all."""

ALL = TESTS | SHELLS


def full_name(module: str) -> str:
    """A module's name below the package."""
    return module if "." in module else f"core.{module}"


def path_of(module: str) -> Path:
    """Where a module's source is."""
    return ROOT.joinpath("trio_envserve", *full_name(module).split(".")).with_suffix(".py")


def tests_of(module: str) -> tuple[str, ...]:
    """The tests that judge a module: of one that is not listed all of its folder."""
    return ALL.get(module, (f"tests/{full_name(module).partition('.')[0]}",))
