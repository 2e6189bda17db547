"""Hosts as actors of Ray, one in each placement group.

Theory of operation
-------------------
Each host asks Ray for what it needs by a placement group of its own; where no node has
that, it is what Ray's autoscaler adds nodes for.  Ray restarts nothing and tries nothing
again (``max_restarts=0``, ``max_task_retries=0``): whether a rollout may run again is not
its decision.  When a host has left, its placement group is removed, and the node may go.

Ray is imported when it is needed: it is large.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, final

import trio

from ..core.errors import ConfigError
from ..extras import needs_extra
from .ray_actor import HostActor


def connect(address: str | None) -> str:
    """Join the cluster at ``address`` (None: the one of this machine, or of the variable
    RAY_ADDRESS), and say the address of this machine in it.  Raises ConfigError."""
    try:
        import ray
    except ImportError:
        raise ConfigError(needs_extra("up ray", "ray")) from None
    try:
        if not ray.is_initialized():
            ray.init(address=address or "auto", log_to_driver=False)
    except ConnectionError as error:
        raise ConfigError(f"there is no cluster of Ray at {address or 'auto'}: {error}") from None
    return str(ray.util.get_node_ip_address())


@final
class RayHosts:
    """Starts hosts in the cluster that this process has joined."""

    def __init__(self, options: Mapping[str, Any], resources: Mapping[str, float]) -> None:
        self._options = dict(options)
        """Arguments of :func:`~trio_envserve.open_host`."""
        self._resources = dict(resources)

    async def start(self, name: str) -> RayHost:
        """Ask for a host; it is there when Ray has a place for it."""
        return await trio.to_thread.run_sync(self._start, name)

    def _start(self, name: str) -> RayHost:
        import ray
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        group = placement_group([self._resources], strategy="STRICT_PACK")
        more = dict(self._resources)
        strategy = PlacementGroupSchedulingStrategy(group)
        actor_class = ray.remote(HostActor).options(
            max_restarts=0, max_task_retries=0, max_concurrency=2, scheduling_strategy=strategy,
            num_cpus=more.pop("CPU", 0), num_gpus=more.pop("GPU", 0), resources=more,
        )  # fmt: skip
        actor = actor_class.remote({**self._options, "name": name})
        return RayHost(actor, group, actor.run.remote())


@final
class RayHost:
    """A host that Ray has started."""

    def __init__(self, actor: Any, group: Any, run: Any) -> None:
        self._actor = actor
        self._group = group
        self._run = run

    async def ended(self) -> str:
        """See :class:`~.hosts.LaunchedHost`."""
        return await trio.to_thread.run_sync(self._ended)

    def _ended(self) -> str:
        import ray

        done, _ = ray.wait([self._run], timeout=0)
        if not done:
            return ""
        try:
            return str(ray.get(self._run))
        except ray.exceptions.RayError as error:  # the actor or its node died, or it raised
            return str(error).strip().splitlines()[0] or type(error).__name__

    async def leave(self) -> None:
        """See :class:`~.hosts.LaunchedHost`."""
        await trio.to_thread.run_sync(partial(self._actor.leave.remote))

    async def kill(self) -> None:
        """See :class:`~.hosts.LaunchedHost`."""
        await trio.to_thread.run_sync(self._kill)

    def _kill(self) -> None:
        import ray
        from ray.util.placement_group import remove_placement_group

        ray.kill(self._actor, no_restart=True)
        remove_placement_group(self._group)
