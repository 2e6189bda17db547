"""From an endpoint string to a model client.

Theory of operation
-------------------
A request names its model by an endpoint string.  :class:`Models` makes one
client for each endpoint at its first use and keeps it, so all rollouts of a worker
share connections; :func:`open_models` closes them all.  A factory is found by the
whole string (``oracle``) or by the part before ``://``.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import TypeAlias, cast, final

import trio

from .. import foreign
from ..core.errors import ConfigError
from .interface import Model
from .offline import OracleModel, RandomModel

_log = logging.getLogger("trio_envserve.models")

ModelFactory: TypeAlias = Callable[[str], Model]
"""Makes the client for an endpoint string.  Must not block."""

MAX_ENDPOINTS = 64
"""Most clients of one worker: each holds connections, and requests choose them."""

CLOSE_S = 5.0
"""How long one client may take to close; then it is left behind."""

BUILT_IN: Mapping[str, ModelFactory] = MappingProxyType(
    {"oracle": lambda endpoint: OracleModel(), "random": lambda endpoint: RandomModel()}
)
"""The built-in endpoints."""


@final
class Models:
    """The model clients of one worker.  Made by :func:`open_models`."""

    def __init__(self, factories: Mapping[str, ModelFactory]) -> None:
        self._factories = factories
        self._clients: dict[str, Model] = {}
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
        factory = self._factories.get(endpoint)
        scheme, separator, _ = endpoint.partition("://")
        if factory is None and separator:
            factory = self._factories.get(scheme)
        if factory is None:
            raise ConfigError(self._unknown(endpoint))
        if len(self._clients) >= MAX_ENDPOINTS:
            raise ConfigError(f"more than {MAX_ENDPOINTS} model endpoints in one worker")
        made = foreign.call(factory, endpoint)
        if made.error is not None:
            raise _not_made(endpoint, made.error) from made.error
        client = self._clients[endpoint] = cast(Model, made.value)
        return client

    def _unknown(self, endpoint: str) -> str:
        known = sorted(self._factories)
        near = difflib.get_close_matches(endpoint, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"unknown model endpoint {endpoint!r}{hint} (known: {', '.join(known)})"

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
