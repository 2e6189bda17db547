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
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import click
import trio

from ..core.errors import ConfigError
from ..core.lease import FENCE_S
from ..core.worker_range import WorkerRange
from ..envs.loading import DEFAULT_ENVIRONMENT
from ..launchers import slurm
from ..launchers.hosts import Start, keep_hosts
from ..net.keypairs import ClientCurve, KeyPair, write_whole
from ..server import Server
from ..server.curve import ClientRight, ServerCurve
from .common import (
    Result,
    Stop,
    epilog_of_service,
    run_verb,
    say,
    start_logging,
)
from .doors import ServeDoors
from .options import (
    arg_option,
    drain_option,
    json_option,
    key_limits,
    log_options,
    logs_of,
    pairs,
    server_limits,
    workers_of,
)
from .serving import Serving, serve_until_asked

LAUNCHERS = ("ray", "slurm")


@click.command(
    epilog=epilog_of_service("could not start: the address is in use, the environment is broken")
)
@click.argument("launcher", type=click.Choice(LAUNCHERS))
@click.argument("environment", metavar="[ENV]", required=False)
@click.option(
    "--hosts", type=workers_of, default=1, show_default=True, metavar="N|A..B",
    help="How many hosts there are; 2..8: as many as there is work for.",
)  # fmt: skip
@click.option(
    "--workers", type=click.IntRange(min=1), default=1, show_default=True,
    help="Worker processes of each host.",
)  # fmt: skip
@click.option(
    "--resource", "resources", multiple=True, metavar="NAME=AMOUNT",
    help="ray: what a host takes of its node, e.g. CPU=8 or GPU=1. Repeatable. "
    "[default: a CPU for each worker]",
)  # fmt: skip
@click.option(
    "--ray-address", metavar="ADDRESS", help="ray: the cluster.  [default: that of this machine]"
)
@click.option(
    "--sbatch", "sbatch", multiple=True, metavar="OPTION",
    help="slurm: an option for each job, e.g. --sbatch=--time=04:00:00. Repeatable.",
)  # fmt: skip
@click.option(
    "--leave-s", type=click.IntRange(min=20), default=120, show_default=True,
    help="slurm: how long before its wall time a host begins to leave.",
)  # fmt: skip
@click.option(
    "--bind", default="tcp://127.0.0.1:5555", show_default=True, metavar="ADDRESS",
    help="Where clients connect to.",
)  # fmt: skip
@click.option(
    "--hosts-bind", metavar="ADDRESS",
    help="Where hosts connect to.  [default: any port of this machine's address in the cluster; "
    "slurm: must be given]",
)  # fmt: skip
@click.option(
    "--key-file", default="up.key", show_default=True, metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the keys for clients there: --curve FILE of eval and others.",
)  # fmt: skip
@click.option(
    "--fence-s", type=click.FloatRange(min=0, min_open=True), default=FENCE_S, show_default=True,
    metavar="SECONDS", help="A host that has no answer for this long kills its workers.",
)  # fmt: skip
@arg_option
@click.option("--limit", "limits", multiple=True, metavar="NAME=VALUE", help="A limit. Repeatable.")
@drain_option
@log_options("INFO")
@json_option
def up(
    launcher: str, environment: str | None, hosts: int | WorkerRange, workers: int,
    resources: tuple[str, ...], ray_address: str | None, sbatch: tuple[str, ...], leave_s: int,
    bind: str, hosts_bind: str | None, key_file: Path, fence_s: float, args: tuple[str, ...],
    limits: tuple[str, ...], drain_s: float, as_json: bool, **given: Any,
) -> int:  # fmt: skip
    """Serve ENV on hosts that LAUNCHER (ray, slurm) starts.

    \b
    Examples:
      trio-envserve up ray arithmetic --hosts 2..8 --workers 8
      trio-envserve up slurm arithmetic --hosts 4 --workers 16 \\
        --hosts-bind tcp://login1:5556 --sbatch=--time=04:00:00
      trio-envserve eval arithmetic -n 1000 --address tcp://127.0.0.1:5555 --curve up.key

    The server runs here. Clients and hosts need keys, which are made for this run: those
    for clients are in --key-file, and are worth nothing when it has ended. A host that dies
    is replaced by another one; whether what it ran may run again is its caller's decision.

    Ctrl-C or SIGTERM stops the server as `serve` does, and then all hosts.
    """  # noqa: D301  # click wants the character itself

    async def main(stop: Stop) -> Result:
        count = WorkerRange(hosts, hosts) if isinstance(hosts, int) else hosts
        named = environment or DEFAULT_ENVIRONMENT
        serves = {"environment": named, "args": pairs("--arg", args)}
        start_logging(logs_of(given), "server")
        keys = Keys.new()
        server_limits_ = server_limits(limits)
        with tempfile.TemporaryDirectory(prefix=".envserve-", dir=Path.cwd()) as folder:
            if launcher == "ray":
                where, make = await _ray(ray_address, resources, workers, keys)
                at = hosts_bind or f"tcp://{where}:0"
            elif hosts_bind is None:
                raise ConfigError("up slurm needs --hosts-bind: an address that its nodes reach")
            else:
                at = hosts_bind
                make = _slurm(sbatch, leave_s, workers, keys, Path(folder))

            async def beside(server: Server) -> None:
                start = await make(server)
                await keep_hosts(
                    server, start, count, workers=workers, limits=server_limits_,
                    name=f"{launcher}-{secrets.token_hex(4)}",
                )  # fmt: skip

            options = Serving(
                named, as_json, drain_s, True, None, ServeDoors(None, None),
                {
                    **serves, "bind": bind, "workers": 0, "limits": server_limits_,
                    "keys": key_limits(limits), "hosts_bind": at, "fence_s": fence_s,
                    "curve": keys.of_server, "transport": "zmtp",
                },
                beside,
            )  # fmt: skip
            with _written(key_file, keys.of_client):
                return await serve_until_asked(options, stop)

    return run_verb(main, as_json=as_json)


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
"""Says how hosts of a server are started, once it has an address."""


@dataclasses.dataclass(frozen=True, slots=True)
class Keys:
    """Those of one run."""

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
    address: str | None, given: Sequence[str], workers: int, keys: Keys
) -> tuple[str, Make]:
    """The address of this machine in the cluster, and how a host is started there."""
    from ..launchers.ray import RayHosts, connect

    resources = {"CPU": float(workers)}
    for name, amount in pairs("--resource", given).items():
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
    """How a host is started by a job of Slurm."""
    slurm.check_installed()
    key = folder / "host.key"
    write_whole(key, keys.of_host.to_text(), 0o600)

    async def make(server: Server) -> Start:
        join = [server.hosts_address, "--workers", str(workers), "--curve", str(key)]
        jobs = slurm.SlurmHosts(join, sbatch, folder=Path.cwd(), leave_s=leave_s)
        say(await jobs.test())
        return jobs.start

    return make
