"""The address of a model: given by a request, or named in a file.

Theory of operation
-------------------
A request names its model by a URL or by a name.  The name travels, and nothing else: the
worker looks it up in a TOML file of its own machine, which has the URL and the *name* of
the environment variable with the key.  The worker reads the variable itself.  So a key is
in no request, no file and no log: from then on it is hidden in texts (:mod:`..redaction`).

The file is the one that ``TRIO_ENVSERVE_ENDPOINTS`` names, or ``endpoints.toml`` in the
working directory.  Workers inherit both from their server.  A URL in a request is used
without a key, since whoever may send a request could otherwise have the key sent anywhere.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from ..core.errors import ConfigError
from ..core.limits import MIB
from ..near import did_you_mean
from ..options import option, options_of
from ..redaction import hide, hide_named
from ..regular_files import parse_toml, read_regular

FILE_VARIABLE = "TRIO_ENVSERVE_ENDPOINTS"
"""The environment variable with the path of the file."""

DEFAULT_FILE = "endpoints.toml"

MAX_FILE_BYTES = 1 * MIB

HEADER_FIELDS = ("rollout", "request", "member", "attempt")
"""Fields of the rollout that may stand in a header, as ``{rollout}``."""

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OWN_HEADERS = frozenset(
    {
        "accept-encoding", "connection", "content-length", "content-type", "host", "traceparent",
        "transfer-encoding",
    }
)  # fmt: skip

MOST_S = 1e9
"""Longest time of a request, in seconds."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEY_FIELDS = frozenset({"key", "api_key", "apikey", "token", "secret"})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An OpenAI-compatible endpoint.  Raises :class:`ConfigError` if a field is wrong."""

    url: str = option("", "the address, required unless there are `urls`")
    urls: tuple[str, ...] = option((), "several addresses of one model, see below")
    model: str = option("", "the model's name there, for requests without `model_name`")
    key_env: str = option("", "the name of the environment variable with the key", shown="no key")
    ca_file: str = option(
        "", "certificates to trust (PEM), for an authority of your own", shown="the system's"
    )
    body: Mapping[str, Any] = option(
        dict, "further fields of each request; sampling arguments override them"
    )
    headers: Mapping[str, str] = option(dict, "further headers of each request, see below")
    stream: bool = option(False, "whether answers are streamed")
    keep: str = option(
        "tools",
        "which thoughts of the model are sent back to it: `tools` (those since the last message of "
        "the user), `always` or `never`",
        choices=("tools", "always", "never"),
    )
    finish_reasons: tuple[str, ...] = option((), "further reasons to finish that end an answer")
    per_token: tuple[str, ...] = option(
        ("routed_experts",),
        "fields of an answer's choice with an item for each sampled token, which go into "
        "[segments](#tokens-for-training)",
    )
    concurrency: int = option(
        512, "most requests at a time for each worker; further calls wait", least=1
    )
    concurrency_total: int | None = option(
        None,
        "most requests at a time over all workers and hosts; further calls wait",
        least=1,
        shown="no limit",
    )
    retries: int = option(10, "how often a call may be sent again", least=0)
    connect_s: float = option(10.0, "how long connecting may take", above=0, most=MOST_S)
    first_token_s: float = option(
        600.0, "how long the first event of a streamed answer may take", above=0, most=MOST_S
    )
    whole_s: float = option(
        3600.0, "how long one request may take to its last byte", above=0, most=MOST_S
    )

    def __post_init__(self) -> None:
        for name, each in options_of(self).items():
            given = getattr(self, name)
            if given is not None or each.default is not None:
                object.__setattr__(self, name, each.value_of(given, name))
        if bool(self.url) == bool(self.urls):
            raise ConfigError("an endpoint has a url, or a list of urls")
        urls = tuple(map(_checked_url, self.urls or (self.url,)))
        object.__setattr__(self, "urls", urls)
        object.__setattr__(self, "url", urls[0])
        for header, value in self.headers.items():
            _check_header(header, value)
        if self.key_env:
            hide_key(self.key_env)

    def key(self) -> str:
        """The key, or the empty string.  Raises :class:`ConfigError`, which does not show
        it."""
        return key_of(self.key_env) if self.key_env else ""


def hide_secrets() -> None:
    """Hide the secrets that variables and the file of endpoints name, in a process that is to load
    an environment."""
    hide_named()
    with suppress(ConfigError):  # a malformed file is reported when a model is asked
        if os.path.exists(endpoints_file()):
            read_endpoints()


def hide_key(variable: str) -> None:
    """Hide the key in an environment variable wherever a text is made.  Raises
    :class:`ConfigError` for what is no name of a variable, and does not show it: it may be the
    key."""
    if not _VARIABLE.fullmatch(variable):
        raise ConfigError("key_env takes the name of an environment variable, not the key")
    hide((variable,))


def key_of(variable: str) -> str:
    """The key in an environment variable.  Raises :class:`ConfigError`, which does not show
    it."""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ConfigError(
            f"the environment variable {variable} (key_env) is not set where the worker runs"
        )
    if not key.isascii() or not key.isprintable():
        raise ConfigError(f"the environment variable {variable} holds no key")
    return key


def parse_endpoints(text: bytes, source: str) -> dict[str, Endpoint]:
    """The endpoints of a TOML file by their names.

    Raises :class:`ConfigError`, which begins with ``source`` and names the table.
    """
    try:
        tables = parse_toml(text)
    except ValueError as error:
        raise ConfigError(f"{source} is not TOML: {error}") from None
    return {name: _endpoint(source, name, table) for name, table in tables.items()}


def endpoints_file() -> str:
    """The path of the file that a worker of this process would read."""
    return os.environ.get(FILE_VARIABLE) or DEFAULT_FILE


def read_endpoints(path: str | os.PathLike[str] | None = None) -> dict[str, Endpoint]:
    """The endpoints of the file; none, if there is no file and no name was given for it.

    Raises :class:`ConfigError`.
    """
    source = os.fspath(path or endpoints_file())
    try:
        data, _ = read_regular(source, MAX_FILE_BYTES)
    except FileNotFoundError:
        if source == DEFAULT_FILE:
            return {}
        raise ConfigError(f"the file of endpoints {source} does not exist") from None
    except OSError as error:
        raise ConfigError(f"the file of endpoints {source}: {error.strerror}") from None
    except ConfigError as error:
        raise ConfigError(f"the file of endpoints {error}") from None
    return parse_endpoints(data, source)


def _endpoint(source: str, name: str, table: object) -> Endpoint:
    where = f"{source}, [{name}]"
    if isinstance(table, list) and table and isinstance(table[0], dict):
        raise ConfigError(f"{source}: an endpoint is a table [NAME], not a list [[{name}]]")
    if not isinstance(table, dict):
        raise ConfigError(f"{source}: {name} stands outside of a table: write [NAME] above it")
    known = [field.name for field in dataclasses.fields(Endpoint)]
    for field in table:
        if field in _KEY_FIELDS:
            raise ConfigError(
                f"{where}: keys do not stand in this file: put the key into an environment "
                "variable, and its name here as key_env"
            )
        if field not in known:
            raise ConfigError(f"{where} has no field {field!r}{near(field, known)}")
    if "url" not in table and "urls" not in table:
        raise ConfigError(f"{where} needs a url")
    try:
        return Endpoint(**table)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def near(name: str, known: Iterable[str]) -> str:
    """A hint with the nearest of the known names, and all of them."""
    known = sorted(known)
    return f"{did_you_mean(name, known, 1)} (known: {', '.join(known)})"


def _check_header(name: str, value: object) -> None:
    if not _HEADER_NAME.fullmatch(name):
        raise ConfigError(f"headers: {name!r:.80} is no name of a header")
    if name.lower() == "authorization":
        raise ConfigError("headers: authorization is made of the key: see key_env")
    if name.lower() in _OWN_HEADERS:
        raise ConfigError(f"headers: {name} is set by this package")
    if not isinstance(value, str) or not value.isascii() or not value.isprintable():
        raise ConfigError(f"headers: the value of {name} must be printable ASCII text")
    for field in re.findall(r"\{([^{}]*)\}?|\}", value):
        if f"{{{field}}}" not in value or field not in HEADER_FIELDS:
            raise ConfigError(
                f"headers: {name} has the unknown field {{{field}}}{near(field, HEADER_FIELDS)}"
            )


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for what is no number
    except ValueError as error:
        raise ConfigError(f"the URL of a model is wrong: {error}") from None
    if parts.username is not None or parts.password is not None:
        raise ConfigError("the URL of a model must not have a user or password: see key_env")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"the URL of a model is http://HOST:PORT/v1, not {url!r:.200}")
    if parts.query or parts.fragment:
        raise ConfigError(f"the URL of a model ends with its path, unlike {url!r:.200}")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigError(f"the URL of a model has characters that none has: {url!r:.200}")
    return url.rstrip("/").removesuffix("/chat/completions")
