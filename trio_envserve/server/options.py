"""The options of a server, declared once: the keyword arguments of :func:`.open_server`, what a
file of configuration may say, and the options of the verbs that serve.

Limits are a table of their own in a file, and ``--limit NAME=VALUE`` for the command: those of the
server, of its keys and of the wire have names of their own, so one table has all three.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ..core.errors import ConfigError
from ..core.lease import FENCE_S, LeaseTerms
from ..core.limits import KeyLimits, ServerLimits, WireLimits
from ..core.terms import ID_BYTES
from ..core.worker_range import WorkerRange, most_of
from ..net import DEFAULT_TRANSPORT, TRANSPORTS, Network, Transport
from ..options import nearest, option, read_file, values_of
from .curve import ServerCurve

SERVE = "serve"
"""The table of a file that has options of the verb ``serve`` only."""

_OF_OTHERS = SERVE, "http", "verifiers"
"""The tables of a file for the verb: its own, and those of the doors that it opens."""

HOST_SLOTS = 1024
"""Slots of a host for which a router may name variables."""

_BY_NAME: Final = {"args", "limits"}
"""Tables of a file that what is given beside it replaces name by name."""

_RUN: Final = "environment", "worker_command"
"""Options that say what the workers run."""

_LIMITS = {"limits": ServerLimits, "keys": KeyLimits, "wire": WireLimits}


# -- from words ---------------------------------------------------------------


def pairs(flag: str, texts: Sequence[str]) -> dict[str, Any]:
    """``key=value`` texts as a mapping; a value is JSON, or else text.  Raises ConfigError."""
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"{flag} takes key=value, not {text!r}")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found


def limits_by_name(given: Mapping[str, Any], *kinds: Any) -> list[Any]:
    """Limits of these classes that a table has.  Raises ConfigError with the near names."""
    fields = {field.name: field for kind in kinds for field in dataclasses.fields(kind)}
    for name, value in given.items():
        if name not in fields:
            raise ConfigError(f"no limit {name!r}{nearest(name, fields)}")
        if isinstance(value, float) and not isinstance(fields[name].default, float):
            raise ConfigError(f"the limit {name} is a whole number, not {value!r}")
    names = [{field.name for field in dataclasses.fields(kind)} for kind in kinds]
    return [
        kind(**{name: given[name] for name in given if name in own})
        for kind, own in zip(kinds, names, strict=True)
    ]


def variables_by_slot(flag: str, texts: Sequence[str]) -> list[dict[str, str]]:
    """``SLOT:KEY=VALUE`` texts as one mapping for each slot.  Raises ConfigError."""
    slots: list[dict[str, str]] = []
    for text in texts:
        slot, colon, setting = text.partition(":")
        key, equals, value = setting.partition("=")
        if not colon or not equals or not key or not slot.isdecimal() or int(slot) >= HOST_SLOTS:
            raise ConfigError(f"{flag} takes SLOT:KEY=VALUE, not {text!r}")
        slots += [{} for _ in range(int(slot) + 1 - len(slots))]
        slots[int(slot)][key] = value
    return slots


def check_slots(environ: Sequence[object], workers: int | WorkerRange) -> None:
    """Raise ConfigError for variables of a slot that there is not."""
    most = most_of(workers)
    if len(environ) > most:
        raise ConfigError(
            f"there are variables of slot {len(environ) - 1} (--worker-env, worker_environ), and "
            f"the slots of {most} workers are numbered from 0"
        )


def _workers(value: Any) -> int | WorkerRange:
    return value if isinstance(value, WorkerRange) else WorkerRange.of(str(value))


def table_of_limits(value: Any) -> Any:
    """What a file says of limits, by their names.  Raises ConfigError if it is no table."""
    if not isinstance(value, (Mapping, ServerLimits)):
        raise ConfigError(f"limits is a table, not {value!r}")
    return value


def _curve(value: Any) -> ServerCurve:
    return value if isinstance(value, ServerCurve) else ServerCurve.from_folder(value)


def _fence_s(value: Any) -> float | None:
    if value in (None, "none"):
        return None
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if not seconds > 0:
        raise ConfigError(f"--fence-s (fence_s) is a number of seconds or none, not {value!r}")
    return seconds


# -- the options ----------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class ServerOptions:
    """The options of a server; see :func:`.open_server`."""

    environment: str | object | None = option(
        None,
        "Name or path, as for the command: ``arithmetic`` (the default), "
        "``package.module:factory``, ``reasoning-gym:countdown``. With ``workers=0`` it may also "
        "be an object, a class or a closure. It may be left out with ``worker_command``.",
        argument=True, metavar="[ENV]",
    )  # fmt: skip
    _: dataclasses.KW_ONLY
    args: Mapping[str, Any] | None = option(
        None,
        "Argument of the environment, e.g. level=3. VALUE is JSON, or text.",
        flag="--arg", metavar="KEY=VALUE", parse=pairs, common=True,
    )  # fmt: skip
    bind: str = option(
        "tcp://127.0.0.1:0",
        "Address for clients. It is tcp://HOST:PORT (port 0: any free one) or ipc:///PATH.",
        metavar="ADDRESS", common=True,
    )  # fmt: skip
    workers: int | WorkerRange = option(
        1,
        "Worker processes; 2..64: as many as needed. A range (``WorkerRange``) follows the work. "
        "0: the environment runs inside the server's own process, without isolation; with "
        "``hosts_bind``, there are no workers on this machine.",
        metavar="N|A..B", make=_workers, common=True,
    )  # fmt: skip
    capacity: int | None = option(
        None,
        "Rollouts at once on each worker; the others wait. By default as the environment "
        "declares, or by the kind of its code; ``status`` shows it. It is the limit "
        "``worker_capacity``.",
        metavar="N", least=1, common=True,
    )  # fmt: skip
    worker_command: str | Sequence[str] | None = option(
        None,
        "Program to run as each worker. It takes the place of this package's own, ``node "
        "worker.js`` or a list of words, and speaks the worker's protocol (the page on the "
        "protocol). The environment's name and ``args`` are told to it as they are, and nothing "
        "is looked for here.",
        metavar="COMMAND", group="Workers",
    )  # fmt: skip
    worker_python: str | os.PathLike[str] | None = option(
        None,
        "Another Python for the workers. It has the environment, and of this package the same "
        "version. The environment is then not imported here. For hosts it is a path of theirs.",
        metavar="PATH", group="Workers",
    )  # fmt: skip
    worker_environ: Sequence[Mapping[str, str]] = option(
        (),
        "Environment variables of each worker slot. They are laid over those of this process (on "
        "hosts too): for example one GPU each, 0:CUDA_VISIBLE_DEVICES=0.",
        flag="--worker-env", metavar="SLOT:KEY=VALUE", parse=variables_by_slot, group="Workers",
    )  # fmt: skip
    worker_logging: Mapping[str, Any] | None = option(
        None,
        "Arguments of :class:`~trio_envserve.logs.LogSetup` for the worker processes.",
        in_program=True,
    )  # fmt: skip
    worker_otlp: Mapping[str, Any] | None = option(
        None,
        "Arguments of :class:`~trio_envserve.otlp.OtlpSetup` for the worker processes (the page "
        "on traces).",
        in_program=True,
    )  # fmt: skip
    limits: ServerLimits | None = option(
        None,
        "Any bound or timer, e.g. lease_s=60. They are on the page on limits.",
        flag="--limit", metavar="NAME=VALUE", parse=pairs, make=table_of_limits, common=True,
    )  # fmt: skip
    keys: KeyLimits | None = option(None, "Bounds and timers of keys.", in_program=True)
    wire: WireLimits | None = option(
        None, "Bounds on what is read from a peer.", in_program=True
    )  # fmt: skip
    journal: str | os.PathLike[str] | None = option(
        None,
        "Folder in which keys outlive the server. It is made if it is not there, and one server "
        "has it at a time (the page on the journal).",
        metavar="DIR", common=True,
    )  # fmt: skip
    curve: ServerCurve | None = option(
        None,
        "Folder of the keys of clients (see `curve`). They are the server's own keys and those of "
        "its clients; nobody else is let in (the page on security).",
        metavar="DIR", make=_curve, common=True,
    )  # fmt: skip
    hosts_bind: str | None = option(
        None,
        "Address at which hosts of other machines join. They are told what to run: the "
        "environment or ``worker_command``, ``args``, ``worker_python`` and ``worker_environ`` "
        "(the page on hosts).",
        metavar="ADDRESS", common=True,
    )  # fmt: skip
    fence_s: float | None = option(
        FENCE_S,
        "Lease of a host in seconds. Without an answer for that long it has no workers any more, "
        "and some seconds later the server takes their work for over. None: there is no lease; "
        "work on a silent host is never known to be over, and its calls wait for it.",
        metavar="SECONDS|none", make=_fence_s, needs="hosts_bind", group="Hosts",
    )  # fmt: skip
    needs: Mapping[str, float] | None = option(
        None,
        "What each worker of a host needs of what the host offers, e.g. gpu=1.",
        metavar="NAME=AMOUNT", parse=pairs, needs="hosts_bind", group="Hosts",
    )  # fmt: skip
    record: str | os.PathLike[str] | None = option(
        None,
        "File for every input of the router (see `replay`). The server can be replayed from it "
        "(the page on the recorder).",
        metavar="FILE", group="Recording and transport",
    )  # fmt: skip
    record_bodies: bool = option(
        False,
        "Whether that file has the bodies; by default only their lengths.",
        needs="record",
        group="Recording and transport",
    )
    transport: Transport = option(
        DEFAULT_TRANSPORT,
        "Implementation of ZMTP for the clients: ``zmtp`` (trio) or ``libzmq``. Both can talk to "
        "both.",
        choices=TRANSPORTS, group="Recording and transport",
    )  # fmt: skip
    network: Network | None = option(
        None, "Sockets of another kind altogether, for clients and hosts.", in_program=True
    )
    config: str | os.PathLike[str] | None = option(
        None,
        "File of options in TOML, by these names. What is given beside it counts more. Limits of "
        "all three kinds are its table ``limits``; its tables ``http``, ``verifiers`` and "
        "``serve`` are for the verb.",
        metavar="FILE", common=True,
    )  # fmt: skip


def completed(**given: Any) -> dict[str, Any]:
    """The options that are given with those of their file, and limits by name as records.
    Raises ConfigError."""
    path = given.pop("config", None)
    if path is not None:
        table = {name: value for name, value in read_file(path).items() if name not in _OF_OTHERS}
        if "config" in table:
            other = table["config"]
            raise ConfigError(f"{path}: a file of options names no other file, not {other!r}")
        of_file = values_of(ServerOptions, table, path)
        named = {name: of_file.get(name) for name in _RUN}
        if any(named.values()) and named != {name: given.get(name, named[name]) for name in _RUN}:
            of_file.pop("args", None)  # they are those of another environment
        for name in _BY_NAME & of_file.keys():
            ours = given.get(name)
            if ours is None or isinstance(ours, Mapping):
                given[name] = {**of_file[name], **(ours or {})}
        given = {**of_file, **given}
    if isinstance(given.get("limits"), Mapping):
        made = limits_by_name(given.pop("limits"), *_LIMITS.values())
        given = {**dict(zip(_LIMITS, made, strict=True)), **given}
    return given


def _random_id() -> bytes:
    return os.urandom(ID_BYTES)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The options of a server, checked: all that :func:`.open_setup` needs."""

    options: ServerOptions
    name: str
    """The environment's name, for logs and recordings."""
    command: Sequence[str] = ()
    """The words of ``worker_command``."""
    python: str | None = None
    """The program of ``worker_python``."""
    limits: ServerLimits = dataclasses.field(default_factory=ServerLimits)
    wire: WireLimits = dataclasses.field(default_factory=WireLimits)
    keys: KeyLimits = dataclasses.field(default_factory=KeyLimits)
    lease: LeaseTerms = dataclasses.field(default_factory=LeaseTerms)
    new_id: Callable[[], bytes] = _random_id
    """Makes the ids of sessions, workers and the epoch.  A session's id is the right to use the
    session; a trial draws the ids from its seed."""
