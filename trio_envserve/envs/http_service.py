"""Rollouts that somebody's own service runs: ``http:URL``.

Theory of operation
-------------------
The input is posted as JSON, once, and the JSON that the service answers is the result.
A retry is never a second run here either, so what is known of a rollout that failed is
said by the exception:

:class:`ServiceNotReached`
    it did not run: its input cannot be sent.
:class:`ServiceUnavailable`, an :class:`.EnvironmentUnavailable`
    it did not run: no connection, or the service refused it for now (status 429).
:class:`ServiceFailed`
    the service has answered that it failed, or something that is no result.
:class:`ServiceDown`, a :class:`ServiceFailed` and an :class:`.EnvironmentUnavailable`
    a proxy has answered in its place that it is down (502, 503, 504).
:class:`ServiceLost`
    it may have run: the connection was lost, or the time was up, after the input, or some
    of it, was sent.  It is not sent again, even if the request allows for retries: a
    further attempt ends with the same error at once.

Each rollout has a connection of its own: one that is kept might be closed by the service
just when the next input is sent, and nobody could say what became of that.  A rollout that
is cancelled closes its connection.

The header ``Idempotency-Key`` has the request id, the group member and the attempt.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, final
from urllib.parse import urlsplit

import trio

from ..core.errors import ConfigError, EnvironmentUnavailable
from ..core.limits import MIB
from ..extras import needs_extra
from ..models.chat import ChatProblem
from ..models.endpoints import hide_key, key_of
from ..models.http import read_body, shown
from ..models.patience import retry_after_s
from .conversation import encodable
from .interface import Rollout

if TYPE_CHECKING:
    import httpx2

CONNECT_S = 10.0

_ERROR_BYTES = 2_000
"""Most bytes of an error answer that are shown."""

_LARGE_BYTES = 64 * 1024
"""Answers of more are read in a thread."""

_DOWN = (502, 503, 504)

_REMEMBERED = 10_000
"""Most rollouts that are remembered as lost; a worker runs fewer at once."""


class ServiceNotReached(Exception):
    """The rollout did not run."""


class ServiceUnavailable(ServiceNotReached, EnvironmentUnavailable):
    """The rollout did not run, since the service is down or has no room."""


class ServiceFailed(Exception):
    """The service has answered, and gave no result."""


class ServiceDown(ServiceFailed, EnvironmentUnavailable):
    """The service is down, as a proxy before it has answered (502, 503, 504)."""


class ServiceLost(Exception):
    """The rollout may have run."""


def from_url(
    url: str,
    *,
    timeout_s: float = 3600.0,
    max_answer_bytes: int = 8 * MIB,
    key_env: str | None = None,
    rerun: bool = False,
) -> HttpService:
    """The environment for a service; a URL that begins with ``//`` is one of http.

    ``timeout_s`` is for one whole rollout.  ``key_env`` names the environment variable of
    the workers with a key, which is sent as a bearer token.

    Raises :class:`ConfigError` for a wrong argument, or if the extra is missing.
    """
    url = f"http:{url}" if url.startswith("//") else url
    if find_spec("httpx2") is None:
        raise ConfigError(needs_extra("a service over HTTP", "models"))
    try:
        parts = urlsplit(url)
        right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        right = False
    if not right:
        raise ConfigError(f"{url!r} is no URL of a service: http://host:port/path")
    if parts.username is not None or parts.password is not None:
        raise ConfigError("a URL is shown in logs: name the key's variable with key_env instead")
    if type(timeout_s) not in (int, float) or not 0 < timeout_s < 1e9:
        raise ConfigError(f"timeout_s must be a number > 0, not {timeout_s!r}")
    if type(max_answer_bytes) is not int or max_answer_bytes < 1:
        raise ConfigError(f"max_answer_bytes must be an integer >= 1, not {max_answer_bytes!r}")
    if key_env is not None:
        hide_key(str(key_env))
        key_of(str(key_env))
    return HttpService(url, timeout_s, max_answer_bytes, key_env, rerun)


def from_https(rest: str, **options: Any) -> HttpService:
    """The service of a URL with ``https:``."""
    return from_url(f"https:{rest}" if rest.startswith("//") else rest, **options)


@final
class HttpService:
    """Posts inputs to one URL.  Made by :func:`from_url`."""

    def __init__(
        self,
        url: str,
        timeout_s: float,
        max_answer_bytes: int,
        key_env: str | None,
        rerun: bool,
    ) -> None:
        self.name = url
        self.rerun = rerun
        self._url = url
        self._timeout_s = timeout_s
        self._max_answer_bytes = max_answer_bytes
        self._key_env = key_env
        self._client: httpx2.AsyncClient | None = None
        self._lost: OrderedDict[tuple[str, int], str] = OrderedDict()

    async def setup(self) -> None:
        """Make the client, in a thread: reading certificates takes long."""
        self._client = await trio.to_thread.run_sync(self._make_client)

    async def teardown(self) -> None:
        """Close the client."""
        if self._client is not None:
            await self._client.aclose()

    async def run_rollout(self, rollout: Rollout) -> Any:
        """Post the input, and return the answer.  Raises the exceptions above."""
        rollout_id = (rollout.request, rollout.member)
        if rollout_id in self._lost:
            raise ServiceLost(f"{self._lost[rollout_id]} It was not sent again.")
        body = await trio.to_thread.run_sync(_body_of, rollout.input)
        key = f"{rollout.request}/{rollout.member}/{rollout.attempt}"
        try:
            return await self._post(body, key)
        except ServiceLost as error:
            self._lost[rollout_id] = str(error)
            while len(self._lost) > _REMEMBERED:
                self._lost.popitem(last=False)
            raise

    async def _post(self, body: bytes, key: str) -> Any:
        import httpx2

        assert self._client is not None  # set up
        request = self._client.build_request(
            "POST", self._url, content=body, headers={"idempotency-key": key}
        )
        try:
            with trio.move_on_after(self._timeout_s):
                return await self._exchange(request)
        except (
            httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError,
            httpx2.UnsupportedProtocol, httpx2.LocalProtocolError,
        ) as error:  # fmt: skip
            raise ServiceUnavailable(
                f"The rollout did not run: {self._url} was not reached ({shown(error)})."
            ) from error
        except httpx2.HTTPError as error:
            raise ServiceLost(
                f"The rollout may have run: the connection to {self._url} was lost after the "
                f"input was sent ({shown(error)})."
            ) from error
        raise ServiceLost(
            f"The rollout may have run: {self._url} did not answer within {self._timeout_s:g} s."
        )

    async def _exchange(self, request: httpx2.Request) -> Any:
        assert self._client is not None  # set up
        response = await self._client.send(request, stream=True)
        try:
            bound, content, whole = self._max_answer_bytes, bytearray(), True
            try:
                await read_body(response, bound, content.extend)
            except ChatProblem:
                whole = False
        finally:
            await response.aclose()  # noqa: ASYNC102  # httpx2 shields what it must
        status = response.status_code
        if status == 429:
            raise ServiceUnavailable(
                f"The rollout did not run: {self._url} refused it for now (status 429).",
                retry_after_s=retry_after_s(response.headers, time.time()),
            )
        if not 200 <= status < 300:
            kind = ServiceDown if status in _DOWN else ServiceFailed
            raise kind(f"{self._url} answered with status {status}: {_shown(content)}")
        if not whole:
            raise ServiceFailed(f"{self._url} answered with more than {bound} bytes")
        if len(content) > _LARGE_BYTES:
            return await trio.to_thread.run_sync(self._result_of, bytes(content))
        return self._result_of(bytes(content))

    def _result_of(self, content: bytes) -> Any:
        try:
            result = json.loads(content)
            # Lone surrogates, which JSON can write, cannot be encoded.
            return encodable(result) if b"\\ud" in content.lower() else result
        except (ValueError, RecursionError) as error:
            raise ServiceFailed(
                f"{self._url} answered with what is not JSON ({error}): {_shown(content)}"
            ) from None

    def _make_client(self) -> httpx2.AsyncClient:
        import httpx2

        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        if self._key_env is not None:
            headers["authorization"] = f"Bearer {key_of(self._key_env)}"
        return httpx2.AsyncClient(
            headers=headers,
            timeout=httpx2.Timeout(None, connect=CONNECT_S),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
            follow_redirects=False,
        )


def _body_of(given: Any) -> bytes:
    try:
        return json.dumps(given, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ServiceNotReached(
            f"The rollout did not run: its input cannot be sent as JSON ({error})."
        ) from error


def _shown(content: bytes | bytearray) -> str:
    return content[:_ERROR_BYTES].decode("utf-8", "replace").strip() or "(nothing)"
