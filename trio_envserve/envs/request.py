"""The body of a request, as the client sends it to the worker.

Theory of operation
-------------------
The body is a plain encodable mapping, opaque to the router.  Its shape::

    {"kind": "rollout" | "group" | "rescore",
     "input": any value; for a group a list, one item for each member; to rescore the result of
              a rollout {"input": any value, "value": any value},
     "model": {"endpoint": str, "name": str},
     "sampling_args": {str: any value},
     "max_retries": int >= 0,
     "state_columns": [str, ...],
     "roles": {str: str},
     "working_s": float > 0}

All fields are required but ``roles``, the endpoints of further models by their roles, and
``working_s``.  Other fields are refused: client and worker speak the same protocol version, and a
field that one of them ignores would be an unseen bug.
A :class:`RolloutRequest` is always valid: a caller's mistake raises
:class:`ConfigError`, a mistake in a received body :class:`ProtocolError`; both name
the field.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Set
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from ..core.errors import ConfigError, ProtocolError

Kind: TypeAlias = Literal["rollout", "group", "rescore"]

_FIELDS = dict.fromkeys(("kind", "input", "model", "sampling_args", "max_retries", "state_columns"))
_OPTIONAL = frozenset({"roles", "working_s"})
_MODEL_FIELDS = dict.fromkeys(("endpoint", "name"))
"""Dicts, because their keys are a set and have an order."""

NO_ROLES: Mapping[str, str] = MappingProxyType({})

_MAPPING = (dict, Mapping)
"""Types of mappings; dict is tested first, because Mapping takes long to test."""

_STR = frozenset({str})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRequest:
    """One rollout, or a group of them, to be run with one model; or the stored result of a rollout,
    to be scored anew.

    Raises :class:`ConfigError` if a field is wrong.
    """

    kind: Kind
    input: Any
    endpoint: str
    model_name: str
    sampling_args: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    max_retries: int = 0
    state_columns: tuple[str, ...] = ()
    roles: Mapping[str, str] = dataclasses.field(default_factory=lambda: NO_ROLES)
    """Endpoints of further models, by the roles in which the environment asks them."""
    working_s: float | None = None
    """Longest time of the execution in seconds, less the time in which its rollouts waited for
    the model's endpoint; None: there is no such limit."""

    def __post_init__(self) -> None:
        kind, endpoint = self.kind, self.endpoint
        if kind == "group":
            check_members(self.input)
        elif kind == "rescore":
            check_stored(self.input)
        elif kind != "rollout":
            raise _wrong("kind", "'rollout', 'group' or 'rescore'", kind)
        if not endpoint:
            raise _wrong("model.endpoint", "a string that is not empty", endpoint)
        if not isinstance(endpoint, str):
            raise _wrong("model.endpoint", "a string", endpoint)
        if not isinstance(self.model_name, str):
            raise _wrong("model.name", "a string", self.model_name)
        arguments, retries, columns = self.sampling_args, self.max_retries, self.state_columns
        if not (isinstance(arguments, _MAPPING) and _all_strings(arguments)):
            raise _wrong("sampling_args", "a mapping with string keys", arguments)
        if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
            raise _wrong("max_retries", "an integer >= 0", retries)
        if not (isinstance(columns, (list, tuple)) and _all_strings(columns)):
            raise _wrong("state_columns", "a list of strings", columns)
        if self.roles is not NO_ROLES:
            check_roles(self.roles)
        working_s = self.working_s
        if working_s is not None and not _is_positive(working_s):
            raise _wrong("working_s", "a positive number", working_s)
        if type(columns) is not tuple:
            # Frozen: a list becomes a tuple.
            object.__setattr__(self, "state_columns", tuple(columns))

    @property
    def inputs(self) -> tuple[Any, ...]:
        """The inputs of the members; one for a single rollout."""
        return tuple(self.input) if self.kind == "group" else (self.input,)

    def to_body(self) -> dict[str, Any]:
        """The mapping to encode.  It shares the input and does not copy it."""
        more: dict[str, Any] = {} if self.working_s is None else {"working_s": self.working_s}
        if self.roles:
            more["roles"] = dict(self.roles)
        return {
            "kind": self.kind,
            "input": list(self.input) if self.kind == "group" else self.input,
            "model": {"endpoint": self.endpoint, "name": self.model_name},
            "sampling_args": dict(self.sampling_args),
            "max_retries": self.max_retries,
            "state_columns": list(self.state_columns),
            **more,
        }

    @classmethod
    def from_body(cls, body: object) -> RolloutRequest:
        """The request in a decoded body.  Raises :class:`ProtocolError`."""
        fields = dict(_exactly(body, _FIELDS, "", _OPTIONAL))
        model = _exactly(fields.pop("model"), _MODEL_FIELDS, "model.")
        try:
            return cls(**fields, endpoint=model["endpoint"], model_name=model["name"])
        except ConfigError as exc:
            raise ProtocolError(f"request body: {exc}") from None


def check_members(inputs: object) -> None:
    """Raise :class:`ConfigError` unless a group can have these inputs."""
    if not (isinstance(inputs, (list, tuple)) and inputs):
        raise _wrong("input", "a list with an input for each member", inputs)


def check_stored(stored: object) -> None:
    """Raise :class:`ConfigError` unless this is the input of a rollout and its result."""
    if not (isinstance(stored, _MAPPING) and stored.keys() == {"input", "value"}):
        raise _wrong("input", "a mapping with the fields input and value", stored)


def check_roles(roles: object) -> None:
    """Raise :class:`ConfigError` unless these are roles and their endpoints."""
    texts = (*roles.keys(), *roles.values()) if isinstance(roles, Mapping) else ("",)
    if not (_all_strings(texts) and all(texts)):
        raise _wrong("roles", "a mapping of roles to endpoints, strings that are not empty", roles)


def _all_strings(items: Iterable[object]) -> bool:
    # The set is quick for plain strings; a subclass of str is a string too.
    return _STR.issuperset(map(type, items)) or all(isinstance(item, str) for item in items)


def _is_positive(seconds: Any) -> bool:
    return type(seconds) in (int, float) and 0 < seconds < math.inf


def _wrong(field: str, wanted: str, value: object) -> ConfigError:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
    return ConfigError(f"{field} must be {wanted}, not {shown}")


def _exactly(
    value: object, names: Mapping[str, None], prefix: str, optional: Set[str] = frozenset()
) -> Mapping[str, Any]:
    if not isinstance(value, _MAPPING):
        what = prefix.rstrip(".") or "request body"
        raise ProtocolError(f"{what} must be a mapping, not {type(value).__name__}")
    if value.keys() - optional != names.keys():
        for name in names:
            if name not in value:
                raise ProtocolError(f"request body: field '{prefix}{name}' is missing")
        for name in value:
            if name not in names and name not in optional:
                raise ProtocolError(f"request body: unknown field {prefix + str(name)[:64]!r}")
    return value
