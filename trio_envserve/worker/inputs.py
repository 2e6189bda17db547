"""``main()`` of a process that makes an environment's inputs, or says whether it has a scorer,
under the workers' Python.

It reads what is wanted as JSON on standard input, and writes the answer in CBOR on standard
output: ``name``, ``roles`` and ``inputs`` (a body, encoded), or ``error`` and ``traceback``, and
whether the environment is ``broken``: it cannot be loaded or made.  Without ``n`` the scorer is
looked for, and no inputs are made.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, NoReturn

import cbor2

from .. import foreign
from ..core import values
from ..core.errors import ConfigError
from ..envs.loading import load
from ..envs.rescoring import scorer_of
from ..models.endpoints import hide_secrets
from ..redaction import redacted
from .failures import describe_exception, described_cause
from .reaper import die_with_parent


def main() -> NoReturn:
    """Answer what is wanted."""
    wanted = json.load(sys.stdin)
    die_with_parent(wanted["parent"])
    hide_secrets()
    sys.path[:] = [*wanted["path"], *sys.path]
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the environment prints is not the answer
    answer.write(cbor2.dumps(_made(wanted)))
    answer.close()
    os._exit(0)


def _made(wanted: dict[str, Any]) -> dict[str, Any]:
    n, seed = wanted.get("n"), wanted.get("seed")
    try:
        environment = load(wanted["environment"], wanted["args"])
    except ConfigError as error:
        return _failed(str(error), described_cause(error), broken=True)
    try:
        roles = environment.roles_of(wanted["roles"])
        if n is None:
            scorer_of(environment)
            return {"name": environment.name, "roles": roles}
        made = foreign.call(environment.inputs, n, seed)
        if isinstance(made.error, ConfigError):
            raise ConfigError(f"{made.error} (--inputs FILE)") from None
        if made.error is None and not made.value:
            raise ConfigError(f"{environment.name}: inputs({n}, {seed}) returned none")
    except ConfigError as error:
        return _failed(str(error), described_cause(error))
    if made.error is None:
        made = foreign.call(values.encode, made.value, root="inputs")
    if made.error is not None:
        about = describe_exception(made.error)
        text = f"inputs({n}, {seed}) failed: {about.type}: {about.message}"
        return _failed(text, about.traceback)
    return {"name": environment.name, "roles": roles, "inputs": made.value}


def _failed(error: str, traceback: str, *, broken: bool = False) -> dict[str, Any]:
    return {"error": redacted(error), "traceback": traceback, "broken": broken}
