"""The options that several verbs have, and the values of those that take pairs."""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import click

from .. import redaction
from ..core.errors import ConfigError
from ..core.limits import MIB, KeyLimits, ServerLimits
from ..core.worker_range import WorkerRange, most_of
from ..logs import LogSetup
from ..net import DEFAULT_TRANSPORT, TRANSPORTS
from ..net.keypairs import ClientCurve

HOST_SLOTS = 1024
"""Slots of a host for which a router may name variables."""


_Limits = TypeVar("_Limits")


def pairs(option: str, given: Sequence[str]) -> dict[str, Any]:
    """``key=value`` options as a mapping; a value is JSON, or else text.  Raises
    ConfigError."""
    found: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"{option} takes key=value, not {text!r}")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found


def server_limits(
    given: Sequence[str],
    *,
    capacity: int | None = None,
    worker_memory_mib: int | None = None,
    recycle: int | None = None,
    pause_after_errors: int | None = None,
) -> ServerLimits:
    """Limits by ``name=value``; those of keys are left out.  Raises ConfigError with the
    near names."""
    values = _limits(given, ServerLimits)
    if capacity is not None:
        values["worker_capacity"] = capacity
    if worker_memory_mib is not None:
        values["worker_memory_bytes"] = worker_memory_mib * MIB
    if recycle is not None:
        values["recycle_executions"] = recycle
    if pause_after_errors is not None:
        values["pause_after_errors"] = pause_after_errors
    return ServerLimits(**values)


def key_limits(given: Sequence[str]) -> KeyLimits:
    """Those of keys among the same options."""
    return KeyLimits(**_limits(given, KeyLimits))


def _limits(given: Sequence[str], kind: Any) -> dict[str, Any]:
    """The limits of one class, of options that are for both."""
    fields = ServerLimits.__dataclass_fields__ | KeyLimits.__dataclass_fields__
    values = _checked_limits("--limit", given, fields)
    return {name: value for name, value in values.items() if name in kind.__dataclass_fields__}


def door_limits(option: str, given: Sequence[str], kind: type[_Limits]) -> _Limits:
    """The limits of a door by ``name=value``.  Raises ConfigError with the near names."""
    fields: Any = kind.__dataclass_fields__  # type: ignore[attr-defined]  # of dataclasses only
    return kind(**_checked_limits(option, given, fields))


def _checked_limits(option: str, given: Sequence[str], fields: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs(option, given).items():
        if name not in fields:
            near = difflib.get_close_matches(name, fields, n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else _all_of(fields)
            raise ConfigError(f"no limit {name!r}{hint}")
        if isinstance(value, float) and not isinstance(fields[name].default, float):
            raise ConfigError(f"the limit {name} is a whole number, not {value!r}")
        values[name] = value
    return values


def _all_of(names: Iterable[str]) -> str:
    return f" (known: {', '.join(sorted(names))})"


def workers_of(given: Any) -> int | WorkerRange:
    """The type of an option that is ``4`` or ``2..64``."""
    try:
        return WorkerRange.of(str(given))
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None


def worker_environ(
    given: Sequence[str], workers: int | WorkerRange, *, hosted: bool = False
) -> list[dict[str, str]]:
    """``SLOT:KEY=VALUE`` options as one mapping for each slot.  Raises ConfigError.
    ``hosted``: they are for hosts, too, which have their own numbers of slots."""
    most = most_of(workers)
    slots: list[dict[str, str]] = [{} for _ in range(most)]
    for text in given:
        slot, colon, setting = text.partition(":")
        key, equals, value = setting.partition("=")
        if not colon or not equals or not key or not slot.isdecimal():
            raise ConfigError(f"--worker-env takes SLOT:KEY=VALUE, not {text!r}")
        if hosted and most <= int(slot) < HOST_SLOTS:
            slots += [{} for _ in range(int(slot) + 1 - len(slots))]
        elif int(slot) >= most:
            raise ConfigError(
                f"--worker-env {text}: the slots of {most} workers are numbered from 0"
            )
        slots[int(slot)][key] = value
    return slots


# -- the options --------------------------------------------------------------


def decorate(options: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """One decorator for several options of click."""

    def decorate(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


json_option = click.option(
    "--json", "as_json", is_flag=True,
    help="Print one JSON object as the last line of standard output.",
)  # fmt: skip

arg_option = click.option(
    "--arg", "args", multiple=True, metavar="KEY=VALUE",
    help="An argument of the environment's class or factory; VALUE as JSON, or as text. "
    "Repeatable.",
)  # fmt: skip

workers_option = click.option(
    "--workers", type=workers_of, default=1, show_default=True, metavar="N|A..B",
    help="Worker processes; 2..64: as many as there is work for; 0 runs the environment inside "
    "the server.",
)  # fmt: skip

python_option = click.option(
    "--worker-python", metavar="PATH",
    help="Run the workers under another Python, which has ENV's framework and the same version "
    "of this package.",
)  # fmt: skip

environ_option = click.option(
    "--worker-env", multiple=True, metavar="SLOT:KEY=VALUE",
    help="An environment variable of one worker slot, e.g. 0:CUDA_VISIBLE_DEVICES=0. Repeatable.",
)  # fmt: skip

drain_option = click.option(
    "--drain-s", type=click.FloatRange(min=0), default=30.0, show_default=True,
    help="How long a stop waits for running work.",
)  # fmt: skip

parent_option = click.option(
    "--exit-with-parent", is_flag=True,
    help="Stop at once when the process that started this one has ended.",
)  # fmt: skip

transport_option = click.option(
    "--transport",
    type=click.Choice(TRANSPORTS),
    default=DEFAULT_TRANSPORT,
    show_default=True,
    help="The implementation of ZMTP on this side: trio's own, or libzmq. Both can talk to both.",
)


def _remember(context: click.Context, option: click.Parameter, value: str | None) -> None:
    context.meta["curve"] = value


curve_option = click.option(
    "--curve", metavar="FILE", expose_value=False, callback=_remember,
    help="The client's keys, for a server with --curve: the file that `curve new` wrote.",
)  # fmt: skip
"""Of every verb that asks a server; :func:`asked_curve` has what was given."""

client_options = decorate([transport_option, curve_option])

folder_option = click.option(
    "--curve", type=click.Path(file_okay=False), metavar="DIR",
    help="Accept only clients whose keys are in DIR: see curve.",
)  # fmt: skip
"""Of every verb that serves."""


def asked_curve() -> ClientCurve | None:
    """The keys that were given to this verb.  Raises ConfigError."""
    path = click.get_current_context().meta.get("curve")
    return None if path is None else ClientCurve.from_file(path)


def bind_option(address: str) -> Callable[[Any], Any]:
    """Where to serve, with the verb's default."""
    return click.option(
        "--bind", default=address, show_default=True, metavar="ADDRESS",
        help="tcp://HOST:PORT (port 0: any free one) or ipc:///PATH.",
    )  # fmt: skip


pool_options = decorate(
    [
        click.option(
            "--capacity", type=click.IntRange(min=1), metavar="N",
            help="At most N rollouts at once on each worker; the others wait. [default: as the "
            "environment declares, or by the kind of its code; status shows it]",
        ),
        click.option(
            "--worker-memory", type=click.IntRange(min=1), metavar="MIB",
            help="Drain and replace a worker that holds more memory.",
        ),
        click.option(
            "--recycle", type=click.IntRange(min=1), metavar="N",
            help="Drain and replace a worker after N executions.",
        ),
        click.option(
            "--pause-after-errors", type=click.IntRange(min=1), metavar="N",
            help="Pause after N failures in a row that are not the environment's: a model that "
            "cannot be asked, workers that died. Waiting requests go on waiting; one rollout a "
            "minute is tried, and a result ends the pause.",
        ),
        environ_option,
        click.option(
            "--limit", "limits", multiple=True, metavar="NAME=VALUE",
            help="Any limit of the server or of its keys, e.g. lease_s=60. Repeatable.",
        ),
    ]
)  # fmt: skip


def serving_args(
    given: Mapping[str, Any], workers: int | WorkerRange, *, hosted: bool = False
) -> dict[str, Any]:
    """The arguments of a server for what its verb was given by :data:`transport_option`,
    :data:`python_option`, :data:`arg_option`, :data:`pool_options` and :func:`log_options`.
    ``hosted``: it has hosts, too.  Raises ConfigError."""
    limits = given["limits"]
    return {
        "args": pairs("--arg", given["args"]),
        "workers": workers,
        "worker_python": given["worker_python"],
        "transport": given["transport"],
        "limits": server_limits(
            limits, capacity=given["capacity"], worker_memory_mib=given["worker_memory"],
            recycle=given["recycle"], pause_after_errors=given["pause_after_errors"],
        ),
        "keys": key_limits(limits),
        "worker_environ": worker_environ(given["worker_env"], workers, hosted=hosted),
        "worker_logging": dataclasses.asdict(logs_of(given)),
    }  # fmt: skip


def logs_of(given: Mapping[str, Any]) -> LogSetup:
    """The logging for what a verb was given by :func:`log_options`."""
    return LogSetup(
        level=given["log_level"].upper(), json=given["log_json"], directory=given["log_dir"]
    )


LEVELS = click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False)


def _hide_secrets(context: click.Context, option: click.Parameter, names: Sequence[str]) -> None:
    """Name the variables to workers, which inherit this process's."""
    if not names:
        return
    before = os.environ.get(redaction.VARIABLE)
    for name in names:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):  # not shown: it may be the value
            raise click.BadParameter("--secret-env takes the name of an environment variable")
        size = len(os.environ.get(name, "").strip())
        if size < redaction.LEAST_CHARACTERS:
            why = "is not set here" if not size else "is too short to be hidden"
            click.echo(f"trio-envserve: warning: --secret-env {name}: it {why}", err=True)
    os.environ[redaction.VARIABLE] = ",".join(filter(None, (before, *names)))
    redaction.hide_named()

    def restore() -> None:
        if before is None:
            os.environ.pop(redaction.VARIABLE, None)
        else:
            os.environ[redaction.VARIABLE] = before

    context.call_on_close(restore)


def log_options(level: str, files: str = "server.log and worker-SLOT.log") -> Callable[[Any], Any]:
    """Options for logging, with the verb's default level and its files."""
    return decorate(
        [
            click.option("--log-level", type=LEVELS, default=level, show_default=True),
            click.option(
                "--secret-env", multiple=True, metavar="NAME", expose_value=False,
                callback=_hide_secrets,
                help="Show the value of this environment variable as $NAME in errors, notes, "
                "logs, stacks and spans. The keys of endpoints (key_env) are always shown so. "
                "Repeatable.",
            ),
            click.option("--log-json", is_flag=True, help="Log JSON lines."),
            click.option(
                "--log-dir", default="", metavar="DIR",
                help=f"Log to {files} in DIR instead of standard error.",
            ),
        ]
    )  # fmt: skip
