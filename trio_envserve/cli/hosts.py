"""The options of ``serve`` that are about hosts of other machines."""

from __future__ import annotations

from typing import Any, NamedTuple

import click

from ..core.lease import FENCE_S
from .doors import check_keys, others_reach
from .options import decorate, pairs

hosts_options = decorate(
    [
        click.option(
            "--hosts-bind", metavar="ADDRESS",
            help="Let hosts of other machines join there with their workers: see join. With "
            "--workers 0 there are none here.",
        ),
        click.option(
            "--fence-s", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
            help="A host that has no answer for this long kills its workers; some seconds later "
            f"the server takes their work for over. [default: {FENCE_S:g}]",
        ),
        click.option(
            "--no-lease", is_flag=True,
            help="Hosts keep their workers however long they do not hear the server. Work on a "
            "silent host is never known to be over, and its calls wait for it.",
        ),
        click.option(
            "--needs", multiple=True, metavar="NAME=AMOUNT",
            help="What each worker of a host needs of its --offers, e.g. gpu=1. Repeatable.",
        ),
    ]
)  # fmt: skip


class HostsAsked(NamedTuple):
    """The options of ``serve`` that concern hosts."""

    bind: str | None
    fence_s: float | None
    """None: there is no lease."""
    needs: tuple[str, ...]

    @property
    def open(self) -> dict[str, Any]:
        """Arguments of :func:`~trio_envserve.open_server`."""
        return {
            "hosts_bind": self.bind, "fence_s": self.fence_s, "needs": pairs("--needs", self.needs)
        }  # fmt: skip

    def check_keys(self, curve: str | None, *, insecure: bool) -> None:
        """ConfigError if others reach the address of hosts, and nothing keeps them out."""
        if self.bind is not None:
            needed = curve is None and others_reach(self.bind)
            check_keys(self.bind, needed=needed, insecure=insecure, who="own workers for this one")


def hosts_asked(given: dict[str, Any]) -> HostsAsked:
    """Take them out of all options.  Raises UsageError."""
    bind, fence_s, needs = (given.pop(name) for name in ("hosts_bind", "fence_s", "needs"))
    no_lease = given.pop("no_lease")
    for option, value in (("--fence-s", fence_s), ("--no-lease", no_lease), ("--needs", needs)):
        if bind is None and value:
            raise click.UsageError(f"{option} needs --hosts-bind ADDRESS")
    if no_lease and fence_s is not None:
        raise click.UsageError(
            "--fence-s says how long a lease is, and --no-lease that there is none"
        )
    return HostsAsked(bind, None if no_lease else fence_s or FENCE_S, needs)
