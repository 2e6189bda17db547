"""Models behind OpenAI-compatible endpoints: vLLM, SGLang, llama.cpp, hosted ones.

Theory of operation
-------------------
One :class:`HttpModel` serves all rollouts of a worker that use one endpoint.  It has a
pool of connections and lets at most ``concurrency`` requests at it; further calls wait in
order.  A call sends its request, and sends it again while ``patience`` allows.  Between
two requests it holds no place.

The pool is made of parts, since the library looks at every connection of its pool for each
request: at 1,000 connections that is most of what a call costs.

Cancelling the calling scope closes the connection of its request at once, by which the
endpoint knows that nobody wants the answer.

The HTTP library is imported, and certificates are read, with the first call and in a
thread: both take longer than a worker's loop may be held.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
import random
import ssl
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, final

import trio

from ..core.errors import ConfigError
from ..core.limits import MIB
from ..tracing import here
from . import chat, patience
from .endpoints import Endpoint
from .interface import Completion, Messages, ModelError
from .patience import Failure, failure_of_status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import httpx2

_log = logging.getLogger("trio_envserve.models")

MAX_ANSWER_BYTES = 16 * MIB
"""Most bytes of a whole answer, and of one event of a stream.  32,000 tokens with
log-probabilities have some 5 MiB."""

MAX_STREAM_BYTES = 256 * MIB
"""Most bytes of a streamed answer."""

MAX_ERROR_BYTES = 64 * 1024

_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")
"""OpenSSL's names, in its versions, of an answer that is not of TLS."""

TOLD_CHARS = 400
"""Most characters of an error's text about what an endpoint said."""

TELL_EVERY_S = 60.0
"""The pause between lines of the log about calls that are sent again."""

PART_CONNECTIONS = 64
"""Most connections of a part of the pool."""

IDLE_S = 4.0
"""How long an idle connection is kept: less than the 5 s after which uvicorn, which serves
most of these endpoints, closes it."""


@final
class HttpModel:
    """A model at an endpoint.  ``label`` is its name in messages.

    Raises :class:`ConfigError` if the extra is missing, or the key is.
    """

    def __init__(
        self, endpoint: Endpoint, label: str, *, jitter: random.Random | None = None
    ) -> None:
        if find_spec("httpx2") is None:
            raise ConfigError(
                "models over HTTP need the extra models: pip install 'trio-envserve[models]'"
            )
        self._endpoint = endpoint
        self._label = label
        self._key = endpoint.key()
        self._jitter = jitter or random.Random()
        self._places = trio.Semaphore(endpoint.concurrency)
        self._opening = trio.Lock()
        self._pool: list[_Part] = []
        self._untold = 0
        self._tell_at_s = -math.inf

    async def complete(
        self,
        messages: Messages,
        *,
        name: str,
        sampling_args: Mapping[str, Any],
        reference: str | None = None,
    ) -> Completion:
        """The endpoint's answer.  Raises :class:`ModelError`, which says what it answered
        and how often it was asked."""
        request = chat.request_body(self._endpoint, messages, name, sampling_args)
        if not self._pool:
            await self._open()
        requests = 0
        while True:
            async with self._places:
                requests += 1
                part = min(self._pool, key=_busy)
                part.busy += 1
                try:
                    answer = await self._ask(part.client, request)
                finally:
                    part.busy -= 1
            if isinstance(answer, Completion):
                return dataclasses.replace(answer, requests=requests)
            if not answer.again or requests > self._endpoint.retries:
                raise self._error(answer, requests)
            self._tell(answer)
            await trio.sleep(patience.pause_s(requests, answer, self._jitter.random()))

    async def aclose(self) -> None:
        """Close the connections."""
        for part in self._pool:
            await part.client.aclose()

    async def _open(self) -> None:
        async with self._opening:
            if not self._pool:
                self._pool = await trio.to_thread.run_sync(_make_pool, self._endpoint, self._key)

    async def _ask(self, client: httpx2.AsyncClient, request: chat.Request) -> Completion | Failure:
        """One request to its end."""
        import httpx2

        limits = self._endpoint
        first_s = limits.first_token_s if request.stream else math.inf
        try:
            with trio.move_on_after(limits.whole_s), trio.move_on_after(first_s) as first:
                return await self._exchange(client, request, first)
        except (httpx2.NetworkError, httpx2.RemoteProtocolError, httpx2.ConnectTimeout) as error:
            return _unanswered(error)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            return Failure(f"cannot be asked: {_said(error)}", again=False)
        except chat.ChatProblem as problem:
            return problem.failure
        if first.cancelled_caught:
            return Failure(f"sent no token within {first_s:g} s", again=False)
        return Failure(f"did not end its answer within {limits.whole_s:g} s", again=False)

    async def _exchange(
        self, client: httpx2.AsyncClient, request: chat.Request, first: trio.CancelScope
    ) -> Completion | Failure:
        url = f"{self._endpoint.url}/chat/completions"
        span = here()
        headers = None if span is None else {"traceparent": span}
        asked = client.build_request("POST", url, content=request.body, headers=headers)
        response = await client.send(asked, stream=True)
        try:
            if response.status_code != 200:
                failure = await _refused(response)
                hint = self._hint(response.status_code, request)
                return dataclasses.replace(failure, text=f"{failure.text}{hint}")
            if "text/event-stream" in response.headers.get("content-type", ""):
                return await self._streamed(response, first)
            parts: list[bytes] = []
            await _read(response, MAX_ANSWER_BYTES, parts.append)
            return chat.read_answer(b"".join(parts), self._endpoint)
        finally:
            await response.aclose()  # noqa: ASYNC102  # httpx2 shields what it must

    async def _streamed(self, response: httpx2.Response, first: trio.CancelScope) -> Completion:
        reader = chat.StreamReader(self._endpoint, MAX_ANSWER_BYTES)

        def take(part: bytes) -> None:
            if reader.feed(part):
                first.deadline = math.inf

        await _read(response, MAX_STREAM_BYTES, take)
        return reader.completion()

    def _hint(self, status: int, request: chat.Request) -> str:
        """The usual cause of a status."""
        if status in (400, 404, 422) and not request.named:
            return " (the request names no model: --model-name, or model_name)"
        if status == 404 and not self._endpoint.url.endswith("/v1"):
            asked = f"{self._endpoint.url}/chat/completions"
            return f" (it was asked at {asked}; most addresses end with /v1)"
        return ""

    def _error(self, failure: Failure, requests: int) -> ModelError:
        times = f" ({requests} requests)" if requests > 1 else ""
        error = failure.error(f"the model {self._label} {self._told(failure)}{times}")
        error.requests = requests
        error.status = failure.status
        error.endpoint_code = self._hidden(failure.code)
        return error

    def _tell(self, failure: Failure) -> None:
        """Log that a call is sent again, seldom enough for an endpoint that fails often."""
        self._untold += 1
        now_s = trio.current_time()
        if now_s < self._tell_at_s:
            return
        text = self._told(failure)
        more = f" ({self._untold} times since the last such line)" if self._untold > 1 else ""
        _log.warning("the model %s %s; sending again%s", self._label, text, more)
        self._untold, self._tell_at_s = 0, now_s + TELL_EVERY_S

    def _told(self, failure: Failure) -> str:
        """The failure in words, without the key: an endpoint may repeat it."""
        # Before it is shortened, which could leave a part of the key.
        text = self._hidden(failure.text)
        return text if len(text) <= TOLD_CHARS else f"{text[: TOLD_CHARS - 3]}..."

    def _hidden(self, text: str) -> str:
        return text.replace(self._key, "[key]") if self._key else text


@final
@dataclasses.dataclass(slots=True)
class _Part:
    """A part of the pool."""

    client: httpx2.AsyncClient
    busy: int = 0
    """How many requests use it."""


def _busy(part: _Part) -> int:
    return part.busy


def _make_pool(endpoint: Endpoint, key: str) -> list[_Part]:
    """The connections to an endpoint.  Takes long.  Raises :class:`ModelError`."""
    import httpx2

    headers = {"content-type": "application/json", "accept-encoding": "identity"}
    if key:
        headers["authorization"] = f"Bearer {key}"
    try:
        # Without a file: what the library trusts, which is the system's.
        trusted = (
            ssl.create_default_context(cafile=endpoint.ca_file)
            if endpoint.ca_file
            else httpx2.create_ssl_context()
        )
    except (OSError, ssl.SSLError) as error:
        raise ModelError(f"the certificates {endpoint.ca_file} cannot be read: {error}") from None
    parts = math.ceil(endpoint.concurrency / PART_CONNECTIONS)
    # The least busy part is used, so none has more requests than its share.
    most = math.ceil(endpoint.concurrency / parts)
    limits = httpx2.Limits(
        max_connections=most, max_keepalive_connections=most, keepalive_expiry=IDLE_S
    )
    timeout = httpx2.Timeout(None, connect=endpoint.connect_s)
    return [
        _Part(httpx2.AsyncClient(headers=headers, verify=trusted, timeout=timeout, limits=limits))
        for _ in range(parts)
    ]


async def _refused(response: httpx2.Response) -> Failure:
    parts: list[bytes] = []
    codes: tuple[str, ...] = ()
    try:
        await _read(response, MAX_ERROR_BYTES, parts.append)
        body = chat.parsed(b"".join(parts))
        text, codes = chat.error_text(body), chat.error_codes(body)
    except chat.ChatProblem:
        text = chat.excerpt(b"".join(parts))
    # Lower-case names, in which Python's own mapping finds them.
    headers = {name.lower(): value for name, value in response.headers.items()}
    return failure_of_status(response.status_code, headers, text, now_s=time.time(), codes=codes)


async def _read(
    response: httpx2.Response, most_bytes: int, take: Callable[[bytes], object]
) -> None:
    """Give all bytes of the body to ``take``.

    Raises :class:`.ChatProblem` of ``take``, or for a body of too many bytes.
    """
    problem: chat.ChatProblem | None = None
    left_bytes = most_bytes
    # Ended from inside: a generator of the library's that is left early complains.
    with trio.CancelScope() as reading:
        async for part in response.aiter_raw():
            left_bytes -= len(part)
            try:
                if left_bytes < 0:
                    raise chat.ChatProblem(f"the answer is larger than {most_bytes} bytes")
                take(part)
            except chat.ChatProblem as raised:
                problem = problem or raised
                reading.cancel()
    if problem is not None:
        raise problem


def _unanswered(error: Exception) -> Failure:
    """No connection, or it broke."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return Failure(f"has a certificate that is not trusted: {cause}", again=False)
        if isinstance(cause, ssl.SSLError) and cause.reason in _NO_TLS:
            return Failure("speaks no TLS: its address begins with http://", again=False)
    return Failure(f"did not answer: {_said(error)}", again=True)


def _said(error: Exception) -> str:
    """Its name, and the first text that it or one of its causes has."""
    texts = (str(cause) for cause in _causes(error))
    return ": ".join([type(error).__name__, *itertools.islice(filter(None, texts), 1)])


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__
