"""The options of the doors, declared once: the keyword arguments of :func:`.open_http_door` and
:func:`.open_verifiers_door`, tables of a file of configuration, and options of ``serve``.

A door's extra need not be installed for that.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

from ..core.limits import WireLimits
from ..net import DEFAULT_TRANSPORT, Network, Transport
from ..net.keypairs import ClientCurve
from ..options import option
from ..server.options import limits_by_name, pairs, table_of_limits
from .limits import HttpLimits, VerifiersLimits


def _limits(kind: Any) -> Callable[[Any], Any]:
    """Makes limits of a table.  Raises ConfigError for what it cannot have."""
    return lambda value: limits_by_name(table_of_limits(value), kind)[0]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DoorOptions:
    """The options of every door that only a program gives."""

    insecure: bool = option(False, "Whether everybody may be let in.", in_program=True)
    wire: WireLimits | None = option(
        None, "Bounds on what is read from the server.", in_program=True
    )
    network: Network | None = option(
        None, "Sockets for the connection to the server.", in_program=True
    )
    transport: Transport = option(
        DEFAULT_TRANSPORT, "Implementation of ZMTP for the connection to the server.",
        in_program=True,
    )  # fmt: skip
    curve: ClientCurve | None = option(
        None, "Keys for a server elsewhere that needs some.", in_program=True
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HttpDoorOptions(DoorOptions):
    """The options of the HTTP door; see :func:`.open_http_door`."""

    bind: str = option(
        "127.0.0.1:0",
        "Address for callers of HTTP. Port 0 is any free one. Needs the extra http.",
        flag="--http", metavar="HOST:PORT", common=True, group="HTTP",
    )  # fmt: skip
    hosts: Sequence[str] = option(
        (), "A further name by which callers of HTTP know this server.", flag="--http-host",
        metavar="NAME", group="HTTP",
    )  # fmt: skip
    token_file: str | os.PathLike[str] | None = option(
        None, "Accept only callers of HTTP that send a token of this file. One a line, chmod 600. "
        "Without it only this machine may be let in.", metavar="FILE", group="HTTP",
    )  # fmt: skip
    run_model: str = option(
        "oracle", "The model of rollouts that come as POST /run. It is oracle, random, a name of "
        "an endpoint, or its URL.", metavar="MODEL", group="HTTP",
    )  # fmt: skip
    run_model_name: str = option(
        "", "The name of that model at its endpoint.", metavar="NAME", group="HTTP"
    )
    run_failures: Literal["problems", "rows"] = option(
        "problems", "How a POST /run that failed is answered. By a problem, whose status ends the "
        "collection of NeMo Gym, or by a row with 200, _ng_failure_class and mask_sample.",
        choices=("problems", "rows"), group="HTTP",
    )  # fmt: skip
    run_rerun: bool | None = option(
        None, "Consent, for rows that come as POST /run, to a further execution. It comes after a "
        "worker's proven death; without it, as the environment declares.", group="HTTP",
    )  # fmt: skip
    run_execution_s: float | None = option(
        None, "How long one execution of such a row may last, in seconds. By default as long as "
        "the server lets any.", above=0, group="HTTP",
    )  # fmt: skip
    limits: HttpLimits | None = option(
        None, "Any limit of the HTTP door, e.g. body_bytes=67108864.", flag="--http-limit",
        metavar="NAME=VALUE", parse=pairs, make=_limits(HttpLimits), group="HTTP",
    )  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VerifiersDoorOptions(DoorOptions):
    """The options of the door for verifiers; see :func:`.open_verifiers_door`."""

    bind: str = option(
        "tcp://127.0.0.1:5000",
        "Address for clients of verifiers 0.4, tcp://HOST:PORT or ipc://PATH. They cannot show "
        "who they are. Needs the extra verifiers.",
        flag="--verifiers-bind", metavar="ADDRESS", group="Clients of verifiers",
    )  # fmt: skip
    redeliver: bool = option(
        False, "Offer the outcomes of a lost connection to later ones of the same machine. Over "
        "a unix socket it is the same user; whoever they are, they see those of each other. At an "
        "address that only this machine reaches that is always done.",
        group="Clients of verifiers",
    )  # fmt: skip
    limits: VerifiersLimits | None = option(
        None, "Any limit of the door for verifiers, e.g. frame_bytes=268435456.",
        flag="--verifiers-limit", metavar="NAME=VALUE", parse=pairs,
        make=_limits(VerifiersLimits), group="Clients of verifiers",
    )  # fmt: skip
