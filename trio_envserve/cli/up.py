"""The verb ``up``: a server here, and hosts that Ray or Slurm starts for it.

Theory of operation
-------------------
It is ``serve --workers 0 --hosts-bind``, with keys that are made for this run, and a task
beside it that keeps hosts (:mod:`~trio_envserve.launchers.hosts`).  The key of the hosts
stays in memory, or in a file of the run's folder for Slurm; that of the clients is written
to a file, which is removed at the end.
"""

from __future__ import annotations

import dataclasses
import secrets
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import trio

from ..core.errors import ConfigError
from ..core.lease import FENCE_S
from ..core.limits import ServerLimits
from ..core.worker_range import WorkerRange
from ..envs.loading import DEFAULT_ENVIRONMENT
from ..launchers import slurm
from ..launchers.hosts import Start, keep_hosts
from ..net.keypairs import ClientCurve, KeyPair, write_whole
from ..options import argument, option
from ..server import Server
from ..server.curve import ClientRight, ServerCurve
from ..server.options import completed, pairs
from .common import NOT_BEGUN, NOT_STARTED, SERVICE, Result, StopRequest, nothing
from .options import DEFAULT_ADDRESS
from .render import say
from .serve import serve_until_asked
from .service import ServiceOptions
from .verbs import server_options, verb

LAUNCHERS = ("ray", "slurm")


def _hosts(value: Any) -> WorkerRange:
    found = WorkerRange.of(str(value))
    return WorkerRange(found, found) if isinstance(found, int) else found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Up(ServiceOptions):
    """The options of ``up``."""

    launcher: str = argument("What starts hosts.", choices=LAUNCHERS, metavar="ray|slurm")
    environment: str = argument("What is served.", DEFAULT_ENVIRONMENT, metavar="[ENV]")
    hosts: WorkerRange = option(
        WorkerRange(1, 1), "How many hosts there are. 2..8: as many as there is work for.",
        metavar="N|A..B", shown="1", make=_hosts, common=True,
    )  # fmt: skip
    workers: int = option(1, "Worker processes of each host.", least=1, common=True)
    resource: Mapping[str, Any] = option(
        dict, "ray: what a host takes of its node, e.g. CPU=8 or GPU=1.",
        metavar="NAME=AMOUNT", shown="a CPU for each worker", parse=pairs, common=True,
    )  # fmt: skip
    ray_address: str | None = option(
        None, "ray: the cluster.", metavar="ADDRESS", shown="that of this machine"
    )
    sbatch: tuple[str, ...] = option(
        (), "slurm: an option for each job, e.g. --sbatch=--time=04:00:00.", metavar="OPTION",
        common=True,
    )  # fmt: skip
    leave_s: int = option(
        120, "slurm: how long before its wall time a host begins to leave.", metavar="SECONDS",
        least=20,
    )  # fmt: skip
    hosts_bind: str | None = option(
        None, "Where hosts connect to. By default any port of this machine's address in the "
        "cluster; slurm: must be given.", metavar="ADDRESS", common=True,
    )  # fmt: skip
    key_file: Path = option(
        Path("up.key"), "Write the keys for clients there.",
        shown="up.key", metavar="FILE", make=Path, common=True,
    )  # fmt: skip
    server: Mapping[str, Any] = server_options(
        "args", "limits", "bind", "fence_s", bind=DEFAULT_ADDRESS, fence_s=FENCE_S
    )


@verb(
    Up, {**SERVICE, NOT_STARTED: "the address is in use, the environment is broken"},
    interrupted=NOT_BEGUN,
)  # fmt: skip
async def up(asked: Up, stop: StopRequest) -> Result:
    """Serve ENV on hosts that LAUNCHER (ray, slurm) starts.

    Examples:
      trio-envserve up ray arithmetic --hosts 2..8 --workers 8
      trio-envserve up slurm arithmetic --hosts 4 --hosts-bind tcp://login1:5556
      trio-envserve eval arithmetic -n 1000 --address tcp://127.0.0.1:5555 --curve up.key

    The server runs here. Clients and hosts need keys, which are made for this run: those
    for clients are in --key-file, and are worth nothing when it has ended. A host that dies
    is replaced by another one; whether what it ran may run again is its caller's decision.

    Ctrl-C or SIGTERM stops the server as `serve` does, and then all hosts.
    """
    stop.on_first = nothing
    asked.start_logging("server")
    keys = Keys.new()
    options = completed(**asked.server)
    limits = options.setdefault("limits", ServerLimits())
    with tempfile.TemporaryDirectory(prefix=".envserve-", dir=Path.cwd()) as folder:
        if asked.launcher == "ray":
            where, make = await _ray(asked.ray_address, asked.resource, asked.workers, keys)
            at = asked.hosts_bind or f"tcp://{where}:0"
        elif asked.hosts_bind is None:
            raise ConfigError("up slurm needs --hosts-bind: an address that its nodes reach")
        else:
            at = asked.hosts_bind
            make = _slurm(asked.sbatch, asked.leave_s, asked.workers, keys, Path(folder))

        async def beside(server: Server) -> None:
            start = await make(server)
            await keep_hosts(
                server, start, asked.hosts, workers=asked.workers, limits=limits,
                name=f"{asked.launcher}-{secrets.token_hex(4)}",
            )  # fmt: skip

        served = {
            "bind": DEFAULT_ADDRESS, **options, "environment": asked.environment, "workers": 0,
            "hosts_bind": at, "curve": keys.of_server,
        }  # fmt: skip
        with _written(asked.key_file, keys.of_client):
            return await serve_until_asked(asked, served, stop, keep_trying=True, beside=beside)


@contextmanager
def _written(path: Path, keys: ClientCurve) -> Iterator[None]:
    """The file for clients, until the block ends."""
    write_whole(path, keys.to_text(), 0o600)
    say(f"the keys for clients are in {path}")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


Make: TypeAlias = Callable[[Server], Awaitable[Start]]
"""Makes the function that starts the hosts of a server, once that has an address."""


@dataclasses.dataclass(frozen=True, slots=True)
class Keys:
    """The key files of one run."""

    of_server: ServerCurve
    of_host: ClientCurve
    of_client: ClientCurve

    @classmethod
    def new(cls) -> Keys:
        """Pairs that nobody else has.  ConfigError without the extra ``curve``."""
        server, host, client = KeyPair.new(), KeyPair.new(), KeyPair.new()
        rights = {
            "hosts": ClientRight(host.public, ("work",)),
            "clients": ClientRight(client.public, ("submit", "watch")),
        }
        return cls(
            ServerCurve(server, rights), ClientCurve(server.public, host),
            ClientCurve(server.public, client),
        )  # fmt: skip


async def _ray(
    address: str | None, given: Mapping[str, Any], workers: int, keys: Keys
) -> tuple[str, Make]:
    """The address of this machine in the cluster, and how a host is started there."""
    from ..launchers.ray import RayHosts, connect

    resources = {"CPU": float(workers)}
    for name, amount in given.items():
        if isinstance(amount, bool) or not isinstance(amount, int | float) or amount < 0:
            raise ConfigError(f"--resource {name}={amount}: an amount is a number, such as GPU=1")
        resources[name] = amount
    where = await trio.to_thread.run_sync(connect, address)

    async def make(server: Server) -> Start:
        options = {
            "address": server.hosts_address, "workers": workers, "curve": keys.of_host,
        }  # fmt: skip
        return RayHosts(options, resources).start

    return where, make


def _slurm(
    sbatch: Sequence[str], leave_s: int, workers: int, keys: Keys, folder: Path
) -> Make:  # fmt: skip
    """A function that starts a host by a job of Slurm."""
    slurm.check_installed()
    key = folder / "host.key"
    write_whole(key, keys.of_host.to_text(), 0o600)

    async def make(server: Server) -> Start:
        join = [server.hosts_address, "--workers", str(workers), "--curve", str(key)]
        jobs = slurm.SlurmHosts(join, sbatch, folder=Path.cwd(), leave_s=leave_s)
        say(await jobs.test())
        return jobs.start

    return make
