"""Redaction: values of secret variables, shown as ``$NAME`` in texts for people.

Theory of operation
-------------------
A secret is the value of an environment variable that ``TRIO_ENVSERVE_SECRET_ENV`` names
(``--secret-env``), or of an endpoint's ``key_env``.  The name travels to workers, and nothing
else: each process looks up its own variables (:func:`hide_named`, when it starts).

:func:`redacted` is applied where a text is made, not where it is read: errors, tracebacks,
notes, stacks, attributes of spans, lines of the log.  A text that is cut is redacted before.
Results are data, and are not changed; a worker says in its log if one holds a secret
(:func:`found_in`).

Beside the value itself its usual other forms are hidden: percent-encoded, in JSON, as Python
writes it, in hexadecimal digits, and in base64 at whatever place it stands.  A value of less
than :data:`LEAST_CHARACTERS` is not hidden: it would be found in every text.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, final
from urllib.parse import quote, quote_plus

VARIABLE: Final = "TRIO_ENVSERVE_SECRET_ENV"
"""The environment variable with the names of others, joined by commas."""

LEAST_CHARACTERS: Final = 8
"""Characters of the shortest value that is hidden."""


@final
class _Known:
    """The forms of this process's secrets.  Global, as its environment is."""

    values: dict[str, str] = {}  # noqa: RUF012  # replaced as a whole
    forms: tuple[tuple[str, str], ...] = ()


def hide_named() -> None:
    """Hide the values of the variables that :data:`VARIABLE` names."""
    hide(filter(None, os.environ.get(VARIABLE, "").split(",")))


def hide(names: Iterable[str]) -> None:
    """Hide the values of these variables in this process from now on."""
    found = {name: os.environ[name].strip() for name in names if os.environ.get(name)}
    if found.items() <= _Known.values.items():
        return
    _Known.values = {**_Known.values, **found}
    _Known.forms = forms_of(_Known.values)


def hidden_names() -> frozenset[str]:
    """Names of the variables whose values are hidden."""
    return frozenset(_Known.values)


def forget() -> None:
    """Hide nothing any more."""
    _Known.values, _Known.forms = {}, ()


def redacted(text: str) -> str:
    """A text without the secrets of this process."""
    return without(text, _Known.forms)


def found_in(data: Iterable[bytes | memoryview]) -> list[str]:
    """Names of the variables whose values, as they are, stand in some of these bytes."""
    if not _Known.values:
        return []
    held = [bytes(part) for part in data]
    return [
        name
        for name, value in _Known.values.items()
        if len(value) >= LEAST_CHARACTERS and any(value.encode() in part for part in held)
    ]


def forms_of(secrets: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Each form of the values, with what stands for it; longer ones first.  Pure."""
    forms: dict[str, str] = {}
    for name, value in secrets.items():
        if len(value) >= LEAST_CHARACTERS:
            for form in _forms(value):
                forms.setdefault(form, f"${name}")
    return tuple(sorted(forms.items(), key=lambda each: (-len(each[0]), each[0])))


def without(text: str, forms: Iterable[tuple[str, str]]) -> str:
    """A text in which these forms are replaced.  Pure."""
    for form, shown in forms:
        if form in text:
            text = text.replace(form, shown)
    return text


def _forms(value: str) -> Iterator[str]:
    yield value
    data = value.encode("utf-8", "surrogateescape")
    yield from (quote(data, safe=""), quote(data), quote_plus(data))
    yield from (quote(data, safe="").lower(), data.hex(), data.hex().upper())
    yield from (json.dumps(value)[1:-1], json.dumps(json.dumps(value))[3:-3], repr(value)[1:-1])
    for at in range(3):
        # The characters that belong to these bytes alone, whatever stands before and behind.
        encoded = base64.b64encode(bytes(at) + data).decode()
        inner = encoded[(0, 2, 3)[at] : (at + len(data)) * 8 // 6]
        yield from (inner, inner.translate({43: 45, 47: 95}))
    lines = [line.strip() for line in value.splitlines()]
    if len(lines) > 1:  # a key in PEM, of which a text may show single lines
        yield from (line for line in lines if len(line) >= 2 * LEAST_CHARACTERS)
