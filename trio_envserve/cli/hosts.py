"""The options of ``serve`` that are about hosts of other machines."""

from __future__ import annotations

from typing import Any, NamedTuple

import click

from ..core.lease import FENCE_S
from .doors import check_keys, others_reach
from .options import decorate

hosts_options = decorate(
    [
        click.option(
            "--hosts-bind", metavar="ADDRESS",
            help="Let hosts of other machines join there with their workers: see join. With "
            "--workers 0 there are none here.",
        ),
        click.option(
            "--fence-s", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
            help="A host that has no answer for so long kills its workers; some time later what "
            f"ran there is over. [default: {FENCE_S:g}]",
        ),
    ]
)  # fmt: skip


class HostsAsked(NamedTuple):
    """What ``serve`` was told of hosts."""

    bind: str | None
    fence_s: float

    @property
    def open(self) -> dict[str, Any]:
        """Arguments of :func:`~trio_envserve.open_server`."""
        return {"hosts_bind": self.bind, "fence_s": self.fence_s}

    def check_keys(self, curve: str | None, *, insecure: bool) -> None:
        """ConfigError if others reach the address of hosts, and nothing keeps them out."""
        if self.bind is not None:
            needed = curve is None and others_reach(self.bind)
            check_keys(self.bind, needed=needed, insecure=insecure, who="own workers for this one")


def hosts_asked(given: dict[str, Any]) -> HostsAsked:
    """Take them out of all options.  Raises UsageError."""
    bind, fence_s = given.pop("hosts_bind"), given.pop("fence_s")
    if bind is None and fence_s is not None:
        raise click.UsageError("--fence-s needs --hosts-bind ADDRESS")
    return HostsAsked(bind, FENCE_S if fence_s is None else fence_s)
