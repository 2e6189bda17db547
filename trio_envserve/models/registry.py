"""From an endpoint string to a model client.

Theory of operation
-------------------
A request names its model by an endpoint string.  :class:`Models` makes one
client for each endpoint at its first use and keeps it, so all rollouts of a worker
share connections; :func:`open_models` closes them all.  Tried in this order:

1. a factory for the whole string (``oracle``) or for the part before ``://`` (``http``);
2. a name in the file of endpoints (:mod:`.endpoints`);
3. an entry point of the group ``trio_envserve.models``, a factory for its name, or for
   strings that begin with its name and ``://``.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from types import MappingProxyType
from typing import TypeAlias, cast, final
from urllib.parse import urlsplit

import trio

from .. import foreign
from ..core.errors import ConfigError
from .endpoints import Endpoint, endpoints_file, near, read_endpoints
from .interface import Model, RolloutModel
from .offline import OracleModel, RandomModel

_log = logging.getLogger("trio_envserve.models")

ModelFactory: TypeAlias = Callable[[str], Model]
"""Makes the client for an endpoint string.  Must not block."""

MAX_ENDPOINTS = 64
"""Most clients of one worker: each holds connections, and requests choose them."""

CLOSE_S = 5.0
"""Time that one client may take to close, in seconds; then it is left behind."""

_ADDRESS = re.compile(r"https?:|[\w.-]+:\d+(/|$)|localhost(/|$)|[\w.-]+\.[\w.-]+/")
"""Addresses without ``://``."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
"""Names of TOML without quotes."""

MODEL_GROUP = "trio_envserve.models"
"""Entry points that are factories of models."""


def _over_http(url: str) -> Model:
    return _http_model(Endpoint(url=url), url)


def _http_model(endpoint: Endpoint, label: str) -> Model:
    from .http import HttpModel

    return HttpModel(endpoint, label)


BUILT_IN: Mapping[str, ModelFactory] = MappingProxyType(
    {
        "oracle": lambda endpoint: OracleModel(),
        "random": lambda endpoint: RandomModel(),
        "http": _over_http,
        "https": _over_http,
    }
)
"""The built-in endpoints and schemes."""


@final
class Models:
    """The model clients of one worker.  Made by :func:`open_models`."""

    def __init__(self, factories: Mapping[str, ModelFactory]) -> None:
        self._factories = factories
        self._clients: dict[str, Model] = {}
        self._in_file: set[str] = set()
        """Roles that the file of endpoints has."""
        self._closed = False

    def get(self, endpoint: str) -> Model:
        """The client for ``endpoint``, made on first use.

        Raises :class:`ConfigError` if no factory knows the endpoint, if its factory
        fails, if there are too many endpoints, or after the models were closed.
        """
        client = self._clients.get(endpoint)
        if client is not None:
            return client
        if self._closed:
            raise ConfigError("the models of this worker are closed")
        if len(self._clients) >= MAX_ENDPOINTS:
            raise ConfigError(f"more than {MAX_ENDPOINTS} model endpoints in one worker")
        made = foreign.call(_factory(self._factories, endpoint), endpoint)
        if isinstance(made.error, ConfigError):
            raise made.error
        if made.error is not None:
            raise _not_made(endpoint, made.error) from made.error
        client = self._clients[endpoint] = cast(Model, made.value)
        return client

    def in_role(self, role: str, roles: Mapping[str, str]) -> tuple[str, Model]:
        """The endpoint that plays a role, and its client: that which ``roles`` names, or else the
        endpoint of that name in the file.  Raises :class:`ConfigError`."""
        if role not in roles and role not in self._in_file:
            _check_in_file(role, roles)
            self._in_file.add(role)
        endpoint = roles.get(role, role)
        with _named(role):
            return endpoint, self.get(endpoint)

    def tell_waits(self) -> None:
        """Called with each beat of the worker: rollouts say what they wait for."""
        for client in self._clients.values():
            if isinstance(client, RolloutModel):
                client.tell_waits()

    async def _aclose(self) -> None:
        clients, self._clients, self._closed = self._clients, {}, True
        for endpoint, client in clients.items():
            with trio.move_on_after(CLOSE_S, shield=True) as scope:
                # One client that cannot close must not keep the others open.
                closed = await foreign.acall(client.aclose)
                if closed.error is not None and not scope.cancel_called:
                    _log.warning("closing the model %s failed: %s", endpoint, _told(closed.error))
            if scope.cancel_called:
                _log.warning("the model %s did not close in %g s", endpoint, CLOSE_S)


def check_endpoint(endpoint: str) -> None:
    """Raise :class:`ConfigError` if a worker beside this process could not make the client
    for ``endpoint``.  Reads the file of endpoints, and looks for the key."""
    if endpoint in BUILT_IN:
        return  # whatever the file says
    factory = _factory(BUILT_IN, endpoint)
    if "://" in endpoint or endpoint in read_endpoints():
        factory(endpoint)  # opens nothing before its first call


def check_roles(roles: Mapping[str, str], needed: Iterable[str] = ()) -> None:
    """:func:`check_endpoint` for the endpoint of each role, those that are needed among them."""
    for role in {**roles, **dict.fromkeys(needed)}:
        if role not in roles:
            _check_in_file(role, roles)
        with _named(role):
            check_endpoint(roles.get(role, role))


@contextmanager
def _named(role: str) -> Iterator[None]:
    """Let a :class:`ConfigError` of this block name the role."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"the role {role!r:.200}: {error}") from error


def _check_in_file(role: str, roles: Mapping[str, str]) -> None:
    """Raise :class:`ConfigError`, which says what to write, if the file has no endpoint of a
    role's name."""
    named = read_endpoints()
    if role in named:
        return
    known = {*roles, *named}
    hint = near(role, known) if known else ""
    table = role if _BARE_KEY.fullmatch(role) else json.dumps(role)
    raise ConfigError(
        f"no model has the role {role!r:.200}{hint}: name one in the request "
        f"(roles={{{role!r:.200}: NAME_OR_URL}}, --role {role:.200}=NAME_OR_URL), or write "
        f"[{table:.200}] into {endpoints_file()}"
    )


def _factory(factories: Mapping[str, ModelFactory], endpoint: str) -> ModelFactory:
    """The factory of the client for ``endpoint``.  Raises :class:`ConfigError`."""
    names = _names(endpoint)
    for name in names:
        if name in factories:
            return factories[name]
    named = read_endpoints()
    if endpoint in named:
        return lambda name: _http_model(named[name], name)
    # Imported here: it costs more than this whole package.
    from importlib.metadata import entry_points

    points = {point.name: point for point in entry_points(group=MODEL_GROUP)}
    for name in names:
        if name in points:
            loaded = foreign.call(points[name].load)
            if loaded.error is not None:
                raise _not_made(endpoint, loaded.error) from loaded.error
            return cast(ModelFactory, loaded.value)
    if _ADDRESS.match(endpoint):
        address = re.sub("^(https?):/*", r"\1://", endpoint)
        wanted = address if "://" in address else f"http://{address}"
        if not urlsplit(wanted).path.strip("/"):
            wanted = f"{wanted.rstrip('/')}/v1"
        raise ConfigError(
            f"the address of a model begins with http:// or https://: did you mean {wanted!r:.200}?"
        )
    known = {*factories, *named, *points} - {"http", "https"}
    raise ConfigError(
        f"unknown model endpoint {endpoint!r:.200}{near(endpoint, known)}; others are "
        f"http://HOST:PORT/v1, or names in {endpoints_file()}"
    )


def _names(endpoint: str) -> list[str]:
    scheme, separator, _ = endpoint.partition("://")
    return [endpoint, scheme] if separator else [endpoint]


def _not_made(endpoint: str, error: BaseException) -> ConfigError:
    return ConfigError(f"the model endpoint {endpoint!r} cannot be made: {_told(error)}")


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {foreign.text(error) or '(no message)'}"


@asynccontextmanager
async def open_models(
    factories: Mapping[str, ModelFactory] | None = None,
) -> AsyncIterator[Models]:
    """The model clients of one worker, closed at the end of the block.

    ``factories``, by endpoint or by URL scheme, add to the built-in ones and
    override them.
    """
    models = Models({**BUILT_IN, **(factories or {})})
    try:
        yield models
    finally:
        await models._aclose()  # noqa: ASYNC102
