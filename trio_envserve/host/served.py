"""The environment of a host's workers: as its router says, and by its own options.

The router says it in its welcome, so that a host need not be told anything.  The settings of the
host itself win: an environment, with its arguments, replaces the router's; single arguments,
variables, an interpreter and limits replace the router's one by one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, final

from ..core.errors import ConfigError
from ..core.limits import ServerLimits, ToldTo, limits_of_peer, limits_to_tell
from ..envs.loading import check_spec
from ..worker.config import check_args
from .interpreters import check_interpreter, find_interpreter


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """An environment and how to run it; an empty field was not said."""

    environment: str | None = None
    args: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    command: Sequence[str] = ()
    """Command that is started instead of this package's own worker."""
    python: str | None = None
    environ: Sequence[Mapping[str, str]] = ()
    """Environment variables for each of the host's places."""
    limits: ServerLimits | None = None

    def to_record(self) -> dict[str, Any]:
        """The record that a router tells its hosts."""
        return {
            "environment": self.environment,
            "args": dict(self.args),
            "command": list(self.command),
            "python": self.python,
            "environ": [dict(each) for each in self.environ],
            "limits": {} if self.limits is None else limits_to_tell(self.limits, ToldTo.HOST),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Served:
        """Read a router's statement.  ConfigError if it makes no sense here."""
        given: dict[str, Any] = {
            "environment": None, "args": {}, "command": [], "python": None, "environ": [],
            "limits": {},
        }  # fmt: skip
        given |= {name: record[name] for name in given if name in record}
        command, environ, limits = given["command"], given["environ"], given["limits"]
        right = (
            all(_is_text_or_none(given[name]) for name in ("environment", "python"))
            and _is_record(given["args"])
            and isinstance(command, list)
            and all(isinstance(word, str) for word in command)
            and isinstance(environ, list)
            and all(map(_is_variables, environ))
            and _is_record(limits)
        )
        if not right:
            raise ConfigError(
                "the router's record of what to run cannot be read: it may be of another version"
            )
        return cls(
            environment=given["environment"], args=given["args"], command=tuple(command),
            python=given["python"], environ=environ, limits=limits_of_peer(limits, ToldTo.HOST),
        )  # fmt: skip

    def under(self, own: Served) -> Served:
        """These settings of a router with the settings that the host itself was given on top."""
        replaced = own.environment is not None or bool(own.command)
        what = own if replaced else self
        return Served(
            environment=what.environment,
            args=own.args if replaced else {**self.args, **own.args},
            command=what.command,
            python=None if what.command else own.python or self.python,
            environ=[
                {**(theirs or {}), **(ours or {})}
                for theirs, ours in zip_longest(self.environ, own.environ)
            ],
            limits=own.limits or self.limits,
        )

    async def check(self) -> Served:
        """These settings with the interpreter's full path; ConfigError if they cannot be run on
        this machine."""
        if self.environment is None and not self.command:
            raise ConfigError("neither this host nor its router says which environment to run")
        check_args(self.args)
        if self.python is None:
            if self.environment is not None and not self.command:
                check_spec(self.environment, self.args)
            return self
        python = find_interpreter(self.python)
        await check_interpreter(python)
        return dataclasses.replace(self, python=python)


def _is_text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_record(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(name, str) for name in value)


def _is_variables(value: Any) -> bool:
    return _is_record(value) and all(isinstance(text, str) for text in value.values())
