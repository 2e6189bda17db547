"""The verb ``join``: a host that owns workers on this machine for a router elsewhere.

Theory of operation
-------------------
The host joins, keeps its lease, and joins again whatever happens to the router.  A line on
standard error says what it waits for, whenever that changes and then every few seconds.
The first signal lets it leave: its workers are drained by the router.  The second one kills
them.  What does not pass by waiting (another version, a key that may not come in) ends it.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from functools import partial
from typing import Any

import trio

from ..core.worker_range import WorkerRange
from ..host.collector import collect_seldom
from ..host.joined import JoinedHost
from ..host.opening import open_host
from ..logs import set_title
from ..net.keypairs import ClientCurve
from ..options import argument, option
from ..server.options import check_slots, pairs
from .common import NOT_BEGUN, NOT_STARTED, SERVICE, Result, StopRequest
from .options import curve_option
from .render import say
from .service import SAY_EVERY_S, Service, ServiceOptions, ServiceState, open_service
from .verbs import server_options, verb

SAY_FIRST_S = 0.5
"""A router that is there has answered by then."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Join(ServiceOptions):
    """The options of ``join``."""

    address: str = argument("The router's address for hosts.")
    environment: str | None = argument("In the place of the router's.", None, metavar="[ENV]")
    workers: int | WorkerRange | None = option(
        None, "Worker processes of this host. 2..64: as many as the router has work for.",
        metavar="N|A..B", shown="one for each processor", make=WorkerRange.of, common=True,
    )  # fmt: skip
    name: str = option(
        "", "The id of this host, which no other host has.", shown="the machine's", common=True
    )
    offers: Mapping[str, Any] = option(
        dict, "What this machine has for the needs of workers, e.g. gpu=8.",
        metavar="NAME=AMOUNT", parse=pairs, common=True,
    )  # fmt: skip
    server: Mapping[str, Any] = server_options(
        "worker_command", "worker_python", "args", "worker_environ"
    )
    curve: str | None = curve_option(common=True)


@verb(
    Join,
    {**SERVICE, NOT_STARTED: "cannot join, however long it waits: its key, version or --offers"},
    interrupted=NOT_BEGUN,
)
async def join(asked: Join, stop: StopRequest) -> Result:
    """Own workers on this machine for the router that `serve --hosts-bind` opened at ADDRESS.

    The router says what they run: its ENV with its --arg, its --worker-python, its
    --worker-env for the slots of each host. What is given here counts more:
      ENV (or --worker-command), with its --arg, takes the place of the router's;
      --arg without ENV, --worker-python and --worker-env are laid over it.

    Examples:
      trio-envserve join tcp://router:5556 --workers 16 --curve node1.key
      trio-envserve join tcp://router:5556 --worker-env 0:CUDA_VISIBLE_DEVICES=0
      trio-envserve join tcp://router:5556 my_envs:Maze --arg level=3

    It waits for a router that is not there yet, and comes back to one that was gone. If
    the router does not answer for its --fence-s, all workers here are killed: then the
    router knows that what ran on them is over.

    Ctrl-C or SIGTERM lets the host leave: it takes no new work, waits for running work
    (--drain-s), and ends the workers. A second signal kills the workers and ends at once.

    With --json, standard output has one object a line:
      {"event": "joining", "host": ..., "address": ..., "pid": ...}   it asks
      {"event": "joined", "environment": ..., ...}                    it is in: again after
                                                                      each new router
      {"event": "apart", "reason": ...}                               the router is gone
      {"event": "stopped", ..., "exit": 0}                            the last line
    """
    count = len(os.sched_getaffinity(0)) if asked.workers is None else asked.workers
    check_slots(asked.server.get("worker_environ", ()), count)
    options = {
        **asked.server, "address": asked.address, "environment": asked.environment,
        "workers": count, "name": asked.name, "offers": asked.offers,
        "curve": None if asked.curve is None else ClientCurve.from_file(asked.curve),
    }  # fmt: skip
    options |= asked.start_logging("host")
    return await _join(asked, options, stop)


async def _join(asked: Join, opened: dict[str, Any], stop: StopRequest) -> Result:
    drained, count = False, opened["workers"]
    async with open_service(asked, stop) as service, open_host(**opened) as host:
        stop.kill = host.kill
        set_title(f"trio-envserve host {host.name} of {host.address}")
        service.look = partial(_seen, host, count, stop)
        about = {"host": host.name, "address": host.address}
        workers = count if isinstance(count, int) else str(count)
        line = f"host {host.name} joins {host.address} with {count} workers"
        service.announce("joining", line, **about, workers=workers)
        with stop.hurry:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(collect_seldom)
                nursery.start_soon(_follow, host, service, {**about, "workers": workers})
                await stop.asked.wait()
                nursery.cancel_scope.cancel()

            async def leave(drain_s: float) -> bool:
                with trio.move_on_after(drain_s) as waiting:
                    await host.leave()
                return not waiting.cancelled_caught

            drained = await service.drained(f"{host.workers} workers", partial(_left, host), leave)
    return service.stopped("; no worker of this host is left", **about, drained=drained)


async def _follow(host: JoinedHost, service: Service, about: Mapping[str, Any]) -> None:
    """Say when the router has it and when not, and raise what makes it hopeless."""
    shown, shown_at, joined = "", trio.current_time() - SAY_EVERY_S + SAY_FIRST_S, False
    while True:
        host.check_hopeless()
        now_s = trio.current_time()
        if host.is_joined and host.holds_lease and host.serves:
            if not joined:
                line = f"joined {host.address}: {about['workers']} workers run {host.serves}"
                service.announce("joined", line, **about, environment=host.serves)
                service.tell()
            joined, shown = True, ""
        elif trouble := host.trouble:
            if joined:
                service.announce("apart", "", **about, reason=trouble)
                joined, shown = False, "joined"
            if (shown and trouble != shown) or now_s >= shown_at + SAY_EVERY_S:
                left = f"; {host.workers} workers go on as long as the lease holds"
                say(f"waiting for the router: {trouble}{left if host.workers else ''}")
                shown, shown_at = trouble, now_s
        await host.wait_changed()


def _left(host: JoinedHost) -> str:
    apart = f"; {host.trouble}" if host.trouble else ""
    return f"{host.workers} workers have not ended{apart}"


def _seen(host: JoinedHost, workers: object, stop: StopRequest) -> ServiceState:
    """The state of the host for a service manager."""
    ready = host.is_joined and host.holds_lease
    text = f"joined: {host.workers} of {workers} workers" if ready else host.trouble
    return ServiceState(ready, stop.asked.is_set(), text or "joining")
