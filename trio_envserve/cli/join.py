"""The verb ``join``: a host that owns workers on this machine for a router elsewhere.

Theory of operation
-------------------
The host joins, keeps its lease, and joins again whatever happens to the router.  A line on
standard error says what it waits for, whenever that changes and then every few seconds.
The first signal lets it leave: its workers are drained by the router.  The second one kills
them.  What does not pass by waiting (another version, a key that may not come in) ends it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import click
import trio

from ..core.worker_range import WorkerRange
from ..host.allocator import keep_freed_memory
from ..host.collector import collect_seldom
from ..host.joined import JoinedHost
from ..host.opening import open_host
from ..host.orphans import is_first, reap_orphans
from ..host.processes import STARTED
from ..logs import set_title
from .common import (
    AT_ONCE,
    OK,
    Result,
    Stop,
    emit,
    epilog_of_service,
    put,
    run_verb,
    say,
    start_logging,
)
from .notify import Manager, Seen
from .options import (
    arg_option,
    asked_curve,
    curve_option,
    drain_option,
    environ_option,
    json_option,
    log_options,
    logs_of,
    pairs,
    parent_option,
    python_option,
    worker_environ,
    workers_of,
)
from .parent import stop_with_parent

SAY_EVERY_S = 3.0
"""The pause between lines about what the command waits for."""
SAY_FIRST_S = 0.5
"""A router that is there has answered by then."""


class _Options(NamedTuple):
    as_json: bool
    drain_s: float
    workers: int | str
    """A number, or a range as text."""
    parent: int | None
    open: dict[str, Any]
    """Arguments of :func:`~trio_envserve.open_host`."""


@click.command(
    epilog=epilog_of_service("cannot join, however long it waits: its key, version or --offers")
)
@click.argument("address")
@click.argument("environment", metavar="[ENV]", required=False)
@click.option(
    "--workers", type=workers_of, metavar="N|A..B",
    help="Worker processes of this host; 2..64: as many as the router has work for. [default: "
    "one for each processor]",
)  # fmt: skip
@click.option(
    "--name", default="",
    help="The id of this host, which no other host of the router has. [default: that of the "
    "machine]",
)  # fmt: skip
@click.option(
    "--offers", multiple=True, metavar="NAME=AMOUNT",
    help="What this machine has for the needs of workers, e.g. gpu=8. Repeatable.",
)  # fmt: skip
@click.option(
    "--worker-command", metavar="COMMAND",
    help="Run COMMAND as each worker, in the place of what the router says.",
)  # fmt: skip
@python_option
@arg_option
@environ_option
@curve_option
@drain_option
@parent_option
@log_options("INFO", "host.log and worker-SLOT.log")
@json_option
def join(
    address: str, environment: str | None, workers: int | WorkerRange | None, name: str,
    offers: tuple[str, ...], worker_command: str | None, worker_python: str | None,
    args: tuple[str, ...], worker_env: tuple[str, ...], drain_s: float,
    exit_with_parent: bool, as_json: bool, **given: Any,
) -> int:  # fmt: skip
    """Own workers on this machine for the router that `serve --hosts-bind` opened at ADDRESS.

    \b
    The router says what they run: its ENV with its --arg, its --worker-python, its
    --worker-env for the slots of each host. What is given here counts more:
      ENV (or --worker-command), with its --arg, takes the place of the router's;
      --arg without ENV, --worker-python and --worker-env are laid over it.

    \b
    Examples:
      trio-envserve join tcp://router:5556 --workers 16 --curve node1.key
      trio-envserve join tcp://router:5556 --offers gpu=2 \\
        --worker-env 0:CUDA_VISIBLE_DEVICES=0 --worker-env 1:CUDA_VISIBLE_DEVICES=1
      trio-envserve join tcp://router:5556 my_envs:Maze --arg level=3

    It waits for a router that is not there yet, and comes back to one that was gone. If
    the router does not answer for its --fence-s, all workers here are killed: then the
    router knows that what ran on them is over.

    Ctrl-C or SIGTERM lets the host leave: it takes no new work, waits for running work
    (--drain-s), and ends the workers. A second signal kills the workers and ends at once.

    \b
    With --json, standard output has one object a line:
      {"event": "joining", "host": ..., "address": ..., "pid": ...}   it asks
      {"event": "joined", "environment": ..., ...}                    it is in: again after
                                                                      each new router
      {"event": "apart", "reason": ...}                               the router is gone
      {"event": "stopped", ..., "exit": 0}                            the last line
    """  # noqa: D301  # click wants the character itself
    # At once: a parent that ends meanwhile would be taken for another.
    parent = os.getppid() if exit_with_parent else None

    async def main(stop: Stop) -> Result:
        count = len(os.sched_getaffinity(0)) if workers is None else workers
        logs = logs_of(given)
        options = _Options(
            as_json, drain_s, count if isinstance(count, int) else str(count), parent,
            {
                "address": address,
                "environment": environment,
                "args": pairs("--arg", args),
                "workers": count,
                "name": name,
                "offers": pairs("--offers", offers),
                "worker_command": worker_command,
                "worker_python": worker_python,
                "worker_environ": worker_environ(worker_env, count),
                "worker_logging": dataclasses.asdict(logs),
                "curve": asked_curve(),
            },
        )  # fmt: skip
        start_logging(logs, "host")
        keep_freed_memory()
        return await _join(options, stop)

    return run_verb(main, as_json=as_json)


async def _join(options: _Options, stop: Stop) -> Result:
    began_s = trio.current_time()
    manager = Manager.of(os.environ)
    drained = False
    async with open_host(**options.open) as host:
        stop.kill = host.kill
        set_title(f"trio-envserve host {host.name} of {host.address}")
        async with trio.open_nursery() as background:
            if is_first():
                background.start_soon(reap_orphans, STARTED)
            if options.parent is not None:
                background.start_soon(stop_with_parent, options.parent, stop)
            tell = partial(_tell_manager, manager, host, options, stop)
            if manager is not None:
                background.start_soon(_keep_told, manager, tell)
            _announce(options, host, "joining")
            with stop.hurry:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(collect_seldom)
                    nursery.start_soon(_follow, options, host, tell)
                    await stop.asked.wait()
                    nursery.cancel_scope.cancel()
                tell()
                drained = await _leave(options, host, stop)
            background.cancel_scope.cancel()
    seconds = round(trio.current_time() - began_s, 3)
    summary = {
        "event": "stopped", "host": host.name, "address": host.address, "pid": os.getpid(),
        "why": stop.why or "parent ended", "drained": drained, "seconds": seconds,
    }  # fmt: skip
    if stop.at_once:
        say("stopped at once; the workers and their executions were killed")
        return Result(AT_ONCE, summary)
    say(f"stopped after {seconds:.1f} s; no worker of this host is left")
    return Result(OK, summary)


def _announce(options: _Options, host: JoinedHost, event: str, **more: str) -> None:
    about = {"host": host.name, "address": host.address, "pid": os.getpid()}
    if options.as_json:
        emit({"event": event, **about, "workers": options.workers, **more})
    elif event == "joining":
        pid, count = os.getpid(), options.workers
        put(f"host {host.name} joins {host.address} with {count} workers (pid {pid})")
    elif event == "joined":
        say(f"joined {host.address}: {options.workers} workers run {host.serves}")


async def _follow(options: _Options, host: JoinedHost, tell: Callable[[], None]) -> None:
    """Say when the router has it and when not, and raise what makes it hopeless."""
    said, said_s, joined = "", trio.current_time() - SAY_EVERY_S + SAY_FIRST_S, False
    while True:
        host.check_hopeless()
        now_s = trio.current_time()
        if host.is_joined and host.holds_lease and host.serves:
            if not joined:
                _announce(options, host, "joined", environment=host.serves)
                tell()
            joined, said = True, ""
        elif trouble := host.trouble:
            if joined:
                _announce(options, host, "apart", reason=trouble)
                joined, said = False, "joined"
            if (said and trouble != said) or now_s >= said_s + SAY_EVERY_S:
                left = f"; {host.workers} workers go on as long as the lease holds"
                say(f"waiting for the router: {trouble}{left if host.workers else ''}")
                said, said_s = trouble, now_s
        await host.wait_changed()


async def _leave(options: _Options, host: JoinedHost, stop: Stop) -> bool:
    """Let running work end, and say what it waits for; whether all of it has ended."""
    if host.workers:
        say(
            f"{stop.why or 'asked to stop'}: taking no new work; waiting up to "
            f"{options.drain_s:g} s for {host.workers} workers (again to stop at once)"
        )
    with trio.move_on_after(options.drain_s):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_tell_leaving, host)
            await host.leave()
            nursery.cancel_scope.cancel()
        return True
    say(f"not drained after {options.drain_s:g} s: {host.workers} workers are killed")
    return False


async def _tell_leaving(host: JoinedHost) -> None:
    while True:
        await trio.sleep(SAY_EVERY_S)
        apart = f"; {host.trouble}" if host.trouble else ""
        say(f"waiting: {host.workers} workers have not ended{apart}")


async def _keep_told(manager: Manager, tell: Callable[[], None]) -> None:
    """Until the host has left."""
    with contextlib.closing(manager):
        while True:
            tell()
            await trio.sleep(manager.beat_s)


def _tell_manager(manager: Manager | None, host: JoinedHost, options: _Options, stop: Stop) -> None:
    """Tell the service manager how it is."""
    if manager is None:
        return
    ready = host.is_joined and host.holds_lease
    text = f"joined: {host.workers} of {options.workers} workers" if ready else host.trouble
    manager.tell(Seen(ready, stop.asked.is_set(), text or "joining"))
