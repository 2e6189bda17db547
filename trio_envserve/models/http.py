"""Models behind OpenAI-compatible endpoints: vLLM, SGLang, llama.cpp, hosted ones.

Theory of operation
-------------------
One :class:`HttpModel` serves all rollouts of a worker that use one endpoint.  It has a
pool of connections and lets at most ``concurrency`` requests at it; further calls wait in
order.  With ``concurrency_total`` each request has a permit besides, which the rollout that asks
brings along.  A call sends its request, and sends it again while ``patience`` allows.  Between
two requests it holds no place.

The pool is made of parts, since the library looks at every connection of its pool for each
request: at 1,000 connections that is most of what a call costs.

An endpoint with several addresses has one for each rollout, chosen by a hash of its id, whose
engine has the rollout's prompts in its cache.  An address that cannot be connected is the last
choice for a while.

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
import zlib
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Unpack, final

import trio

from ..core.errors import ConfigError
from ..core.limits import MIB, PERMIT_NAME_BYTES
from ..extras import needs_extra
from ..regular_files import read_regular
from ..tracing import here
from ..turns import Threads
from . import chat, patience
from .endpoints import HEADER_FIELDS, Endpoint
from .interface import Asking, AskingRollout, Completion, Messages, ModelError, RolloutModel
from .patience import EndpointFailure, failure_of_status
from .waits import WaitNote

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    import httpx2

_log = logging.getLogger("trio_envserve.models")

MAX_ANSWER_BYTES = 16 * MIB
"""Most bytes of a whole answer, and of one event of a stream.  32,000 tokens with
log-probabilities have some 5 MiB."""

AT_ONCE_BYTES = MIB
"""Size of the largest whole answer that is read in the loop, which takes some 10 ms."""

MAX_STREAM_BYTES = 256 * MIB
"""Most bytes of a streamed answer."""

MAX_ERROR_BYTES = 64 * 1024

MAX_CA_BYTES = 16 * MIB
"""Most bytes of a file of certificates."""

_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")
"""OpenSSL's names, in its versions, of an answer that is not of TLS."""

TOLD_CHARS = 400
"""Most characters of an error's text about what an endpoint said."""

TELL_EVERY_S = 60.0
"""The pause between lines of the log about calls that are sent again."""

PART_CONNECTIONS = 64
"""Most connections of a part of the pool."""

IDLE_S = 4.0
"""Time for which an idle connection is kept, in seconds: less than the 5 s after which uvicorn,
which serves most of these endpoints, closes it."""


AWAY_S = 10.0
"""Time for which an address that could not be connected is tried last, in seconds."""

PROBE_S = 5.0
"""Longest time to connect an address that is only probed, in seconds."""

_TRIES = "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"


@final
class HttpModel(RolloutModel):
    """A model at an endpoint.  ``label`` is its name in messages.

    Raises :class:`ConfigError` if the extra is missing, or the key is.
    """

    def __init__(self, endpoint: Endpoint, label: str) -> None:
        if find_spec("httpx2") is None:
            raise ConfigError(needs_extra("a model over HTTP", "models"))
        is_name = label.isprintable() and 0 < len(label.encode()) <= PERMIT_NAME_BYTES
        if endpoint.concurrency_total is not None and not is_name:
            raise ConfigError(
                "an endpoint with concurrency_total has a printable name of at most "
                f"{PERMIT_NAME_BYTES} bytes, not {label!r:.80}"
            )
        self._endpoint = endpoint
        self._label = label
        self._key = endpoint.key()
        self._jitter = random.Random()
        self._free = trio.Semaphore(endpoint.concurrency)
        self._threads = Threads()
        self._opening = trio.Lock()
        self._pool: list[_Part] = []
        self._untold = 0
        self._tell_at_s = -math.inf
        self._away_until_s: dict[str, float] = {}
        """Addresses that could not be connected."""
        self._answered = False
        """Whether it has ever answered, with whatever status."""
        self._first_asked_s = math.inf
        self._waits: dict[int, _Wait] = {}

    def tell_waits(self) -> None:
        """Tell rollouts that wait how long they have."""
        now_s = trio.current_time()
        for wait in self._waits.values():
            wait.tell(now_s, wait.what, wait.tries)

    async def complete(self, messages: Messages, **how: Unpack[Asking]) -> Completion:
        """The endpoint's answer.  Raises :class:`ModelError`, which says what it answered
        and how often it was asked."""
        return await self.complete_for(None, messages, **how)

    async def complete_for(
        self, asker: AskingRollout | None, messages: Messages, **how: Unpack[Asking]
    ) -> Completion:
        """The endpoint's answer for one attempt of a rollout: with its headers, its address, its
        note."""
        request = chat.request_body(self._endpoint, messages, how["name"], how["sampling_args"])
        if not self._pool:
            await self._open()
        wait = _Wait(asker, trio.current_time())
        self._waits[id(wait)] = wait
        if asker is not None:
            asker.endpoint_waits.begin(wait)
        try:
            return await self._ask_on(request, wait)
        finally:
            del self._waits[id(wait)]
            wait.over()
            if asker is not None:
                asker.endpoint_waits.end(wait, trio.current_time())

    async def _ask_on(self, request: chat.ChatRequest, wait: _Wait) -> Completion:
        """Send the request until it is answered, or must not be sent again."""
        asker = wait.asker
        urls, headers = self._urls(asker), _headers(self._endpoint, asker)
        requests = untried = 0
        while True:
            untried = untried or len(urls)
            url = urls[-untried]
            untried -= 1
            is_free = self._free.value > 0 and self._endpoint.concurrency_total is None
            at_once = is_free and not requests
            async with self._free, self._permit(wait):
                requests += 1
                wait.requests = requests
                wait.sent_s = wait.since_s if at_once else trio.current_time()
                part = min(self._pool, key=_busy)
                part.busy += 1
                try:
                    answer = await self._ask(part.client, request, url, headers)
                finally:
                    part.busy -= 1
            if isinstance(answer, Completion):
                other = "" if answer.answered_by == request.model else answer.answered_by
                return dataclasses.replace(answer, requests=requests, answered_by=other)
            wait.sent_s = None
            pause_s = patience.pause_s(requests, answer, self._jitter.random())
            if answer.unconnected:
                self._away_until_s[url] = trio.current_time() + AWAY_S
                if untried:
                    pause_s = 0.0  # the next address may be there
                elif not self._answered and pause_s > self._first_left_s():
                    hint = f"; it has never answered: is it running, at {url} as workers see it?"
                    answer = dataclasses.replace(answer, text=answer.text + hint, again=False)
            else:
                untried = 0
                urls = [url, *(other for other in urls if other != url)]
            if not answer.again or requests > self._endpoint.retries:
                raise self._error(answer, requests)
            self._tell(answer)
            await trio.sleep(pause_s)

    @asynccontextmanager
    async def _permit(self, wait: _Wait) -> AsyncIterator[None]:
        """A permit for one request, if the endpoint has a limit over all workers."""
        most, asker = self._endpoint.concurrency_total, wait.asker
        if most is None or asker is None or asker.permit is None:
            yield
            return
        wait.what = f"concurrency_total of {self._label}"
        async with asker.permit(self._label, most):
            wait.what = asker.model
            yield

    def _urls(self, asker: AskingRollout | None) -> list[str]:
        """The addresses in the order of a rollout's choice."""
        urls = list(self._endpoint.urls)
        if len(urls) > 1:
            chosen = self._jitter.randrange(len(urls))
            if asker is not None:
                # hash() differs from process to process, crc32 does not.
                chosen = zlib.crc32(asker.rollout.encode()) % len(urls)
            urls = urls[chosen:] + urls[:chosen]
            now_s = trio.current_time()
            urls.sort(key=lambda url: self._away_until_s.get(url, -math.inf) > now_s)
        return urls

    def _first_left_s(self) -> float:
        """Time for which an endpoint that has never answered is still asked, in seconds."""
        now_s = trio.current_time()
        self._first_asked_s = min(self._first_asked_s, now_s)
        return self._first_asked_s + patience.FIRST_ANSWER_S - now_s

    async def unreachable(self) -> str:
        """The reason for which no address of the endpoint can be connected; empty if one can,
        whatever it answers.  It takes at most :data:`PROBE_S` for each."""
        import httpx2

        if not self._pool:
            await self._open()
        why = ""
        for url in self._endpoint.urls:
            client = self._pool[0].client
            asked = client.build_request("GET", f"{url}/models", timeout=httpx2.Timeout(PROBE_S))
            try:
                response = await client.send(asked, stream=True)
                await response.aclose()
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                why = why or f"the model {url} {self._told(_unanswered(error))}"
                continue
            except httpx2.HTTPError:
                pass  # something is there
            return ""
        return why

    async def aclose(self) -> None:
        """Close the connections."""
        for part in self._pool:
            await part.client.aclose()

    async def _open(self) -> None:
        async with self._opening:
            if not self._pool:
                self._pool = await trio.to_thread.run_sync(_make_pool, self._endpoint, self._key)

    async def _ask(
        self,
        client: httpx2.AsyncClient,
        request: chat.ChatRequest,
        url: str,
        headers: dict[str, str],
    ) -> Completion | EndpointFailure:
        """One request to its end."""
        import httpx2

        limits = self._endpoint
        first_s = limits.first_token_s if request.stream else math.inf
        try:
            with trio.move_on_after(limits.whole_s), trio.move_on_after(first_s) as first:
                return await self._exchange(client, request, url, headers, first)
        except (httpx2.NetworkError, httpx2.RemoteProtocolError, httpx2.ConnectTimeout) as error:
            return _unanswered(error)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            return EndpointFailure(f"cannot be asked: {shown(error)}", again=False)
        except chat.ChatProblem as problem:
            return problem.failure
        if first.cancelled_caught:
            return EndpointFailure(f"sent no token within {first_s:g} s", again=False)
        return EndpointFailure(f"did not end its answer within {limits.whole_s:g} s", again=False)

    async def _exchange(
        self, client: httpx2.AsyncClient, request: chat.ChatRequest, url: str,
        headers: dict[str, str], first: trio.CancelScope,
    ) -> Completion | EndpointFailure:  # fmt: skip
        import httpx2

        span = here()
        if span is not None:
            headers = {**headers, "traceparent": span}
        connect_s = self._endpoint.connect_s
        if not self._answered:
            connect_s = min(connect_s, max(self._first_left_s(), 1.0))
        asked = client.build_request(
            "POST", f"{url}/chat/completions", content=request.body, headers=headers,
            timeout=httpx2.Timeout(None, connect=connect_s),
        )  # fmt: skip
        response = await client.send(asked, stream=True)
        self._answered = True
        try:
            if response.status_code != 200:
                failure = await _refused(response)
                hint = self._hint(response.status_code, request, url)
                return dataclasses.replace(failure, text=f"{failure.text}{hint}")
            if "text/event-stream" in response.headers.get("content-type", ""):
                return await self._streamed(response, first, asks_ids=request.asks_ids)
            parts: list[bytes] = []
            await read_body(response, MAX_ANSWER_BYTES, parts.append)
            data = b"".join(parts)
            if len(data) <= AT_ONCE_BYTES:
                return chat.read_answer(data, self._endpoint)
            return await self._threads.run(
                lambda pause: chat.read_answer(data, self._endpoint, pause)
            )
        finally:
            await response.aclose()  # noqa: ASYNC102  # httpx2 shields what it must

    async def _streamed(
        self, response: httpx2.Response, first: trio.CancelScope, *, asks_ids: bool
    ) -> Completion:
        reader = chat.StreamReader(self._endpoint, MAX_ANSWER_BYTES, asks_ids=asks_ids)

        def take(part: bytes) -> None:
            if reader.feed(part):
                first.deadline = math.inf

        await read_body(response, MAX_STREAM_BYTES, take)
        return reader.completion()

    def _hint(self, status: int, request: chat.ChatRequest, url: str) -> str:
        """The usual causes of a status."""
        causes = []
        if status == 404 and not url.endswith("/v1"):
            causes.append(f"it was asked at {url}/chat/completions; most addresses end with /v1")
        if status in (400, 404, 422) and not request.model:
            causes.append(
                "the request names no model: --model-name, or model_name; or model, in the file "
                "of endpoints"
            )
        return f" ({'; or '.join(causes)})" if causes else ""

    def _error(self, failure: EndpointFailure, requests: int) -> ModelError:
        times = f" ({requests} requests)" if requests > 1 else ""
        error = failure.error(f"the model {self._label} {self._told(failure)}{times}")
        error.requests = requests
        error.status = failure.status
        error.endpoint_code = self._hidden(failure.code)
        return error

    def _tell(self, failure: EndpointFailure) -> None:
        """Log that a call is sent again, seldom enough for an endpoint that fails often."""
        self._untold += 1
        now_s = trio.current_time()
        if now_s < self._tell_at_s:
            return
        text = self._told(failure)
        more = f" ({self._untold} times since the last such line)" if self._untold > 1 else ""
        _log.warning("the model %s %s; sending again%s", self._label, text, more)
        self._untold, self._tell_at_s = 0, now_s + TELL_EVERY_S

    def _told(self, failure: EndpointFailure) -> str:
        """The failure in words, without the key: an endpoint may repeat it."""
        # Before it is shortened, which could leave a part of the key.
        text = self._hidden(failure.text)
        return text if len(text) <= TOLD_CHARS else f"{text[: TOLD_CHARS - 3]}..."

    def _hidden(self, text: str) -> str:
        return text.replace(self._key, "[key]") if self._key else text


@final
class _Wait(WaitNote):
    """A call under way (:class:`~.waits.CallWait`)."""

    def __init__(self, asker: AskingRollout | None, since_s: float) -> None:
        super().__init__(None if asker is None else asker.waits, since_s)
        self.asker = asker
        self.sent_s: float | None = None
        self.requests = 1
        self.what = "" if asker is None else asker.model

    @property
    def tries(self) -> str:
        """The number of the request in words, from the second on."""
        if self.requests < 2:
            return ""
        words = _TRIES[self.requests - 2 : self.requests - 1]
        return f", {words[0]} try" if words else f", try {self.requests}"


def _headers(endpoint: Endpoint, asker: AskingRollout | None) -> dict[str, str]:
    """The endpoint's headers for a rollout; without one, those that have no fields."""
    found = {}
    for name, value in endpoint.headers.items():
        if asker is not None:
            for field in HEADER_FIELDS:
                value = value.replace(f"{{{field}}}", str(getattr(asker, field)))
        if "{" not in value:
            found[name] = value
    return found


@final
@dataclasses.dataclass(slots=True)
class _Part:
    """A part of the pool."""

    client: httpx2.AsyncClient
    busy: int = 0
    """Number of requests that use it."""


def _busy(part: _Part) -> int:
    return part.busy


def _make_pool(endpoint: Endpoint, key: str) -> list[_Part]:
    """The connections to an endpoint.  Takes long.  Raises :class:`ModelError`."""
    import httpx2

    headers = {"content-type": "application/json", "accept-encoding": "identity"}
    if key:
        headers["authorization"] = f"Bearer {key}"
    try:
        if endpoint.ca_file:
            read_regular(endpoint.ca_file, MAX_CA_BYTES)
            trusted = ssl.create_default_context(cafile=endpoint.ca_file)
        elif any(url.lower().startswith("https:") for url in endpoint.urls):
            trusted = httpx2.create_ssl_context()  # what the library trusts, which is the system's
        else:
            trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # nobody: no address has TLS
    except (ConfigError, OSError, ssl.SSLError) as error:
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


async def _refused(response: httpx2.Response) -> EndpointFailure:
    parts: list[bytes] = []
    codes: tuple[str, ...] = ()
    try:
        await read_body(response, MAX_ERROR_BYTES, parts.append)
        body = chat.parsed(b"".join(parts))
        text, codes = chat.error_text(body), chat.error_codes(body)
    except chat.ChatProblem:
        text = chat.excerpt(b"".join(parts))
    status, headers = response.status_code, response.headers
    return failure_of_status(status, headers, text, now_s=time.time(), codes=codes)


async def read_body(
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


def _unanswered(error: Exception) -> EndpointFailure:
    """No connection, or it broke."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return EndpointFailure(f"has a certificate that is not trusted: {cause}", again=False)
        if isinstance(cause, ssl.SSLError) and cause.reason in _NO_TLS:
            return EndpointFailure("speaks no TLS: its address begins with http://", again=False)
    import httpx2

    unconnected = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
    return EndpointFailure(f"did not answer: {shown(error)}", again=True, unconnected=unconnected)


def shown(error: Exception) -> str:
    """The name of an exception, and the first text that it or one of its causes has."""
    texts = (str(cause) for cause in _causes(error))
    return ": ".join([type(error).__name__, *itertools.islice(filter(None, texts), 1)])


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__
