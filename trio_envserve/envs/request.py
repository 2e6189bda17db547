"""The body of a request: what travels from a client to the worker.

Theory of operation
-------------------
The body is a plain encodable mapping, opaque to the router.  Its shape::

    {"kind": "rollout" | "group",
     "input": any value; for a group a list, one item for each member,
     "model": {"endpoint": str, "name": str},
     "sampling_args": {str: any value},
     "max_retries": int >= 0,
     "state_columns": [str, ...]}

All fields are required and others are refused: client and worker speak the
same protocol version, and a field that one of them ignores is a bug that
nobody sees.  :class:`RolloutRequest` cannot be built wrong: a mistake on the
caller's side is a :class:`ConfigError`, one found in a received body a
:class:`ProtocolError`; both name the field.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, cast

from ..core.errors import ConfigError, ProtocolError

Kind: TypeAlias = Literal["rollout", "group"]

_FIELDS = ("kind", "input", "model", "sampling_args", "max_retries", "state_columns")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRequest:
    """One rollout, or a group of them, to be run with one model.

    Raises :class:`ConfigError` when it is made of wrong parts.
    """

    kind: Kind
    input: Any
    endpoint: str
    model_name: str
    sampling_args: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    max_retries: int = 0
    state_columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check(self.kind in ("rollout", "group"), "kind", "'rollout' or 'group'", self.kind)
        if self.kind == "group":
            is_list = isinstance(self.input, (list, tuple)) and len(self.input) > 0
            _check(is_list, "input", "a list with an input for each member", self.input)
        _check(bool(self.endpoint), "model.endpoint", "a string that is not empty", self.endpoint)
        _check(isinstance(self.endpoint, str), "model.endpoint", "a string", self.endpoint)
        _check(isinstance(self.model_name, str), "model.name", "a string", self.model_name)
        named = isinstance(self.sampling_args, Mapping) and _all_strings(self.sampling_args)
        _check(named, "sampling_args", "a mapping with string keys", self.sampling_args)
        count = isinstance(self.max_retries, int) and not isinstance(self.max_retries, bool)
        _check(count and self.max_retries >= 0, "max_retries", "an integer >= 0", self.max_retries)
        columns = isinstance(self.state_columns, (list, tuple)) and _all_strings(self.state_columns)
        _check(columns, "state_columns", "a list of strings", self.state_columns)
        # Frozen: lists are accepted and kept as tuples.
        object.__setattr__(self, "state_columns", tuple(self.state_columns))

    @property
    def inputs(self) -> tuple[Any, ...]:
        """The inputs of the members; one for a single rollout."""
        return tuple(self.input) if self.kind == "group" else (self.input,)

    def to_body(self) -> dict[str, Any]:
        """The mapping to encode.  Shares the input, does not copy it."""
        return {
            "kind": self.kind,
            "input": list(self.input) if self.kind == "group" else self.input,
            "model": {"endpoint": self.endpoint, "name": self.model_name},
            "sampling_args": dict(self.sampling_args),
            "max_retries": self.max_retries,
            "state_columns": list(self.state_columns),
        }

    @classmethod
    def from_body(cls, body: object) -> RolloutRequest:
        """The request in a decoded body.  Raises :class:`ProtocolError`."""
        fields = _exactly(body, _FIELDS, "")
        model = _exactly(fields["model"], ("endpoint", "name"), "model.")
        try:
            return cls(
                kind=cast(Kind, fields["kind"]),
                input=fields["input"],
                endpoint=model["endpoint"],
                model_name=model["name"],
                sampling_args=fields["sampling_args"],
                max_retries=fields["max_retries"],
                state_columns=fields["state_columns"],
            )
        except ConfigError as exc:
            raise ProtocolError(f"request body: {exc}") from None


def _all_strings(items: Any) -> bool:
    return all(isinstance(item, str) for item in items)


def _check(right: bool, field: str, wanted: str, value: object) -> None:
    if not right:
        shown = repr(value)
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        raise ConfigError(f"{field} must be {wanted}, not {shown}")


def _exactly(value: object, names: tuple[str, ...], prefix: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        what = prefix.rstrip(".") or "request body"
        raise ProtocolError(f"{what} must be a mapping, not {type(value).__name__}")
    for name in names:
        if name not in value:
            raise ProtocolError(f"request body: field '{prefix}{name}' is missing")
    for name in value:
        if name not in names:
            raise ProtocolError(f"request body: unknown field {prefix + str(name)[:64]!r}")
    return value
