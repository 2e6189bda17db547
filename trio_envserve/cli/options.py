"""The options that several verbs have, and what is done with them."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from typing import Any

from .. import redaction
from ..core.errors import ConfigError
from ..logs import LogSetup, configure
from ..models.endpoints import FILE_VARIABLE, read_endpoints
from ..options import option
from .render import say
from .verbs import VerbOptions

LEVELS = "DEBUG", "INFO", "WARNING", "ERROR"
DEFAULT_ADDRESS = "tcp://127.0.0.1:5555"
ADDRESS_VARIABLE = "TRIO_ENVSERVE_ADDRESS"
"""Set by ``run-with``: the address of its server."""


def default_address() -> str:
    """The address of a server that is asked, where none is given."""
    return os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS


def _roles(flag: str, texts: Sequence[str]) -> dict[str, str]:
    """``ROLE=MODEL`` texts as a mapping.  Raises ConfigError."""
    found: dict[str, str] = {}
    for text in texts:
        role, _, endpoint = text.partition("=")
        if not role or not endpoint:
            raise ConfigError(f"{flag} takes ROLE=MODEL, such as judge=big, not {text!r}")
        if role in found:
            raise ConfigError(f"{flag} names two models for the role {role!r}: give one")
        found[role] = endpoint
    return found


def role_option(**about: Any) -> Any:
    """The models in further roles."""
    return option(
        None, "Who answers in a further role, such as judge. That is a model which the environment "
        "asks beside the first one. MODEL is as for --model. Default: what the file of endpoints "
        "has under the role's name.", flag="--role", metavar="ROLE=MODEL", parse=_roles, **about,
    )  # fmt: skip


def _level(given: Any) -> str:
    if str(given).upper() not in LEVELS:
        raise ConfigError(f"--log-level is one of {', '.join(LEVELS)}, not {given!r}")
    return str(given).upper()


def level_option(default: str) -> Any:
    """The least level, with the default of a verb."""
    return option(
        default, "Least level that is logged.", metavar="|".join(LEVELS), make=_level, group="Logs",
    )  # fmt: skip


def curve_option(**about: Any) -> Any:
    """The keys of a client."""
    text = "Keys for a server with --curve: the file that `curve new` wrote."
    return option(None, text, metavar="FILE", **about)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Logged(VerbOptions):
    """The options of verbs that log."""

    log_level: str = level_option("INFO")
    secret_env: tuple[str, ...] = option(
        (),
        "Show the value of this environment variable as $NAME in errors, notes, logs, stacks and "
        "spans. The keys of endpoints (key_env) are always shown so.",
        metavar="NAME", group="Logs",
    )  # fmt: skip
    log_json: bool = option(False, "Log JSON lines.", group="Logs")
    log_dir: str = option(
        "",
        "Log to files in this folder instead of standard error. They are server.log (host.log) "
        "and worker-SLOT.log.",
        metavar="DIR", group="Logs",
    )  # fmt: skip

    def start_logging(self, who: str) -> dict[str, Any]:
        """Hide secrets, and configure this process's logging.  Returns the option by which its
        workers log so.  Raises ConfigError."""
        self._hide_secrets()
        setup = LogSetup(level=self.log_level, json=self.log_json, directory=self.log_dir)
        try:
            configure(setup, who)
        except OSError as error:
            raise ConfigError(f"cannot log to {self.log_dir}: {error.strerror}") from error
        return {"worker_logging": dataclasses.asdict(setup)}

    def _hide_secrets(self) -> None:
        """Name the variables to workers, which inherit this process's."""
        for name in self.secret_env:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):  # not shown: it may be the value
                raise ConfigError("--secret-env takes the name of an environment variable")
            size = len(os.environ.get(name, "").strip())
            if size < redaction.LEAST_CHARACTERS:
                why = "is not set here" if not size else "is too short to be hidden"
                say(f"warning: --secret-env {name}: it {why}")
        named = [os.environ.get(redaction.VARIABLE, ""), *self.secret_env]
        if self.secret_env:
            os.environ[redaction.VARIABLE] = ",".join(filter(None, named))
            redaction.hide_named()


@dataclasses.dataclass(frozen=True, kw_only=True)
class WithEndpoints(Logged):
    """The options of verbs whose workers ask models."""

    endpoints: str = option(
        "",
        "A TOML file of named model endpoints. Default: endpoints.toml in the working directory, "
        "if it is there.",
        metavar="FILE",
    )  # fmt: skip

    def name_endpoints(self) -> None:
        """Name the file to workers, which inherit this process's variables and read it
        themselves: so its content, and the keys that it names, go nowhere.  Raises
        ConfigError."""
        if self.endpoints:
            path = os.path.abspath(self.endpoints)
            read_endpoints(path)
            os.environ[FILE_VARIABLE] = path
