"""The HTTP door: what it does for each request, over an ordinary client.

Theory of operation
-------------------
A request is looked at before its body is read: where it is from, its token, its path,
its form, whether there is room.  Then it becomes calls of the one client, in the task of
the request; a caller who hangs up cancels that task's calls.  The door decides nothing
about running.  Each error that a caller can see is a :class:`~.problems.Problem`.

A request with a key is another thing: its caller may hang up, and come back.  So its call is
shared, and goes on in the client (:mod:`.keys`).

Nothing is kept between two scrapes of ``GET /metrics``.  A server that does not answer in time is a
metric, too (``trio_envserve_server_up``), since the scrape that fails says less.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack
from functools import partial
from itertools import starmap
from typing import Any, Final, TypeAlias, TypeVar, final

import trio

from ...client import Client, Outcome, Outcomes
from ...client.options import Encoded, checked
from ...client.shell import is_shared, open_many, run_encoded
from ...core.errors import CallError, ConfigError, EnvServeError
from ...core.health import Health, ServerStatus
from ...core.limits import WireLimits
from ...core.status import RunningPage, ServerStats
from ...extras import needs_extra
from ..bounds import Bound
from ..limits import HttpLimits
from ..options import HttpDoorOptions
from .answers import encoded, later, line, record, refuse
from .bodies import CBOR, JSON, LINES, Codec, accepted, body_type, to_json
from .connections import Connections, Exchange, HungUp
from .guard import Guard
from .keys import (
    KeyedCalls,
    Named,
    asynchronous,
    key_of_header,
    key_of_path,
)
from .live import Live
from .metrics import DoorCounts, ScrapedValues
from .operations import BATCH, KEY_PATH, PATHS, ROLLOUT, BodyField, check_fields, document
from .problems import LATER, Problem
from .rows import Rows
from .turns import REQUEST_US, RUNNING_US, SCRAPE_US, SCRAPED_WORKER_US, Turns

_log = logging.getLogger("trio_envserve.http")

T = TypeVar("T")

READY_S: Final = 0.5
"""The most that a probe waits for the server's word."""

_OPEN: Final = ("/livez", "/readyz", "/")
"""Paths for probes and browsers, which carry no token, and say nothing of what runs."""

_UNDER: Final = KEY_PATH.removesuffix("{key}")
"""The part of a path before a key."""

Handler: TypeAlias = Callable[[Exchange], Awaitable[None]]


@final
class HttpApp:
    """The application.  It serves one client."""

    def __init__(
        self, client: Client, behind: trio.Nursery, guard: Guard, options: HttpDoorOptions
    ) -> None:
        self._client = client
        self._guard = guard
        self._limits = limits = options.limits or HttpLimits()
        self._keyed = KeyedCalls(client, limits)
        turns = Turns()
        self._codec = codec = Codec(limits, options.wire or WireLimits(), turns)
        self._calls = Bound(limits.calls, limits.namespace_share)
        """A call under a key goes on without a caller, and may have to wait for the room that its
        namespace has with the server.  So a namespace has its share: else it would hold all room,
        and nobody else could call (G10)."""
        self._bodies = Bound(limits.bodies_bytes)
        self._rows = Rows(
            client, behind, self._keyed, codec, self._calls, self._bodies, limits, options
        )
        self._asks_ready = trio.Lock()
        self._write_metrics = _writer()
        self._answers: Counter[int] = Counter()
        """Number of answers, by status."""
        self.connections = Connections(self, limits, turns)
        self.live = live = Live(client, limits, turns, tokens=guard.wants_tokens)
        behind.start_soon(turns.run)
        behind.start_soon(live.run)
        self._handlers: Mapping[tuple[str, str], Handler] = {
            ("/livez", "GET"): self._livez,
            ("/readyz", "GET"): self._readyz,
            ("/", "GET"): live.page,
            ("/v1/events", "GET"): live.events,
            ("/v1/running", "GET"): self._running,
            ("/v1/stack", "GET"): self._stack,
            ("/v1/openapi.json", "GET"): self._openapi,
            ("/v1/rollouts", "POST"): self._rollout,
            (KEY_PATH, "GET"): self._attach,
            (KEY_PATH, "DELETE"): self._forget,
            ("/v1/batches", "POST"): self._batch,
            ("/run", "POST"): self._rows.answer,
            ("/metrics", "GET"): self._metrics,
        }
        assert {(path, method) for path in PATHS for method in PATHS[path]} == set(self._handlers)

    async def __call__(self, exchange: Exchange) -> None:
        """Answer a request."""
        await exchange.take_turn(REQUEST_US)
        try:
            try:
                await self._handler(exchange)(exchange)
            except Problem as problem:
                await refuse(exchange, problem)
        except HungUp:
            raise
        except Exception:
            # A mistake of this module: the caller is told that, and nothing of its inside.  If
            # the answer has begun, the connection ends in the middle of it.
            _log.exception("the HTTP door made a mistake")
            if not exchange.status:
                await refuse(exchange, Problem("internal", "the log of the server says more"))
        finally:
            if exchange.status:
                self._answers[exchange.status] += 1

    def _counts(self) -> DoorCounts:
        connections = self.connections
        return DoorCounts(
            connections=len(connections), calls=self._calls.taken, bodies_bytes=self._bodies.taken,
            answers_bytes=connections.unread.bytes, bounds=dataclasses.asdict(self._limits),
            answers=self._answers,
        )  # fmt: skip

    def _handler(self, exchange: Exchange) -> Handler:
        """The handler of a request; Problem if there is none, or it is not allowed."""
        if exchange.header_bytes > self._limits.header_bytes:
            close = (b"connection", b"close")
            most = self._limits.header_bytes
            raise Problem("headers-too-large", f"headers may have {most} bytes", close)
        self._guard.check_host(exchange.headers)
        if exchange.path not in _OPEN:
            self._guard.check_token(exchange.headers)
        path = exchange.path
        if path.startswith(_UNDER) and path != _UNDER:
            path, exchange.of_key = KEY_PATH, True
        methods = PATHS.get(path)
        if methods is None:
            raise Problem("not-found", "there is nothing at this path")
        method = "GET" if exchange.method == "HEAD" else exchange.method
        if method not in methods:
            allowed = [*methods, *(["HEAD"] if "GET" in methods else [])]
            allow = (b"allow", ", ".join(allowed).encode())
            raise Problem("method-not-allowed", f"it has {' and '.join(allowed)}", allow)
        exchange.parameters = methods[method].read_query(exchange.query)
        return self._handlers[path, method]

    # -- what is asked of the server itself -----------------------------------

    async def _livez(self, exchange: Exchange) -> None:
        await exchange.answer(200, JSON, to_json({"status": "alive"}))

    async def _readyz(self, exchange: Exchange) -> None:
        if await self._is_ready():
            await exchange.answer(200, JSON, to_json({"status": "ready"}))
        else:  # why, says the log, or an answer to who may ask for more
            raise Problem("not-ready", "no worker is ready", LATER)

    async def _is_ready(self) -> bool:
        """Whether a worker is ready, as ``status --ready`` says it.  The server is asked if it
        did not say so last; it says it only with the next ping."""
        if self._client.health().health is Health.HEALTHY:
            return True
        with trio.move_on_after(READY_S):
            async with self._asks_ready:  # whoever else asks needs no token
                if self._client.health().health is Health.HEALTHY:
                    return True
                stats = await self._stats()
                return stats is not None and stats.status is ServerStatus.READY
        return False

    async def _openapi(self, exchange: Exchange) -> None:
        await exchange.answer(200, JSON, to_json(document()))

    async def _metrics(self, exchange: Exchange) -> None:
        """All metrics, in the form that is asked for."""
        if self._write_metrics is None:
            raise Problem("extra-missing", needs_extra("/metrics", "metrics"))
        stats = await exchange.unless_hung_up(self._stats)
        workers = 0 if stats is None else len(stats.per_worker)
        await exchange.take_turn(SCRAPE_US + workers * SCRAPED_WORKER_US)
        accept = b", ".join(exchange.headers.get(b"accept", ())).decode("latin-1")
        media, body = self._write_metrics(ScrapedValues(self._counts(), stats), accept)
        await exchange.answer(200, media, body)

    async def _stats(self) -> ServerStats | None:
        """The server's statistics; None if it does not answer in time."""
        try:
            return await self._client.stats(self._limits.scrape_s)
        except EnvServeError:
            return None  # it is gone, or no server of this kind: the door's own are told

    async def _running(self, exchange: Exchange) -> None:
        """A page of what runs, the oldest first, as :meth:`.Client.list_running` returns it."""
        ask = partial(self._client.list_running, first=exchange.parameters["first"])
        page: RunningPage = await self._told(exchange, ask)
        await exchange.take_turn(len(page.running) * RUNNING_US)
        await exchange.answer(200, JSON, to_json(dataclasses.asdict(page)))

    async def _stack(self, exchange: Exchange) -> None:
        """Where one of them stands, as :meth:`.Client.stack` returns it."""
        ask = partial(self._client.stack, exchange.parameters["number"])
        text: str | None = await self._told(exchange, ask)
        await exchange.answer(200, JSON, to_json({"stack": text}))

    async def _told(self, exchange: Exchange, ask: Callable[..., Awaitable[T]]) -> T:
        """The server's answer.  Problem if it does not come in time."""
        try:
            return await exchange.unless_hung_up(partial(ask, timeout_s=self._limits.scrape_s))
        except EnvServeError as error:
            raise Problem(
                "not-ready", f"the server or its worker does not say it ({error})", LATER
            ) from None

    # -- calls ----------------------------------------------------------------

    async def _rollout(self, exchange: Exchange) -> None:
        named = await self._check_call(exchange)
        media = accepted(exchange.headers, (JSON, CBOR))
        with ExitStack() as held:
            body = await exchange.read_body(self._bodies, held)
            kind, asked = await self._asked(exchange, body, named)
            del body
            if named is None:
                self._take_calls(1, held)
                await self._check_ready()
                run = partial(run_encoded, self._client, asked)
                outcome = await exchange.unless_hung_up(run)
            else:
                found = await self._ask(exchange, named, asked, held)
                if found is None:
                    await later(exchange, named, kind, (b"preference-applied", b"respond-async"))
                    return
                outcome = found
                del found
            written = await self._written(outcome, kind, media)
            del outcome  # a slow caller's answer is held without its value
            await exchange.answer(200, media, written)

    async def _asked(
        self, exchange: Exchange, body: bytes, named: Named | None
    ) -> tuple[str, Encoded]:
        """The request in a body.  Its value goes with this."""
        async with self._codec.alone(body):
            fields = await self._fields(exchange, body, ROLLOUT)
            kind: str = fields.get("kind", "rollout")
            fields |= {"traceparent": exchange.traceparent}
            if named is not None:
                fields |= {"key": named.key, "namespace": named.namespace}
            asked = await encoded(self._client, **fields)
            del fields  # before another one comes
            return kind, asked

    async def _ask(
        self, exchange: Exchange, named: Named, asked: Encoded, held: ExitStack
    ) -> Outcome | None:
        """The outcome under a key; None if the caller prefers not to wait for it."""
        if not is_shared(self._client, asked):
            self._take_calls(1, held, named.namespace)
            await self._check_ready()
        call = partial(run_encoded, self._client, asked, held.pop_all)
        wait_s = asynchronous(exchange.headers, self._limits.wait_s)
        if wait_s is None:
            return await exchange.unless_hung_up(call)
        return await exchange.unless_hung_up(lambda: self._keyed.wait(call, named, wait_s))

    async def _written(self, outcome: Outcome, kind: object, media: str) -> bytes:
        if outcome.error is not None:
            raise Problem.of(outcome.error)
        return await self._codec.write(record(outcome, kind), media)

    async def _batch(self, exchange: Exchange) -> None:
        named = await self._check_call(exchange)
        accepted(exchange.headers, (LINES, "application/jsonl", JSON))
        with ExitStack() as held:
            body = await exchange.read_body(self._bodies, held)
            fields = await self._fields(exchange, body, BATCH)
            del body
            inputs, in_flight = fields.pop("inputs"), fields.pop("in_flight", 64)
            fields |= {"traceparent": exchange.traceparent}
            most = self._limits.batch_inputs
            if not isinstance(inputs, list) or len(inputs) > most:
                raise Problem("bad-request", f"inputs is a list of at most {most} inputs")
            if not isinstance(in_flight, int) or isinstance(in_flight, bool) or in_flight < 1:
                raise Problem("bad-request", "in_flight is a whole number, and at least 1")
            in_flight = min(in_flight, len(inputs)) or 1
            if named is not None:
                fields |= {"key": named.key, "namespace": named.namespace}
            try:
                asked = checked(None, **fields)
            except ConfigError as error:
                raise Problem("bad-request", str(error)) from None
            self._take_calls(in_flight, held, "" if named is None else named.namespace)
            await self._check_ready()
            calls, hold = starmap(asked.member, enumerate(inputs)), None
            if named is not None:
                hold = held.pop_all
            batch = open_many(self._client, calls, in_flight, hold=hold)
            await exchange.unless_hung_up(lambda: self._lines(exchange, batch))

    async def _lines(
        self, exchange: Exchange, batch: AbstractAsyncContextManager[Outcomes]
    ) -> None:
        """The outcomes of a batch as they come, each in a line."""
        async with batch as outcomes:
            await exchange.begin(200, LINES)
            async for index, outcome in outcomes:
                written = await self._line(exchange, index, outcome)
                del outcome  # as above
                await exchange.send_piece(written, more=True)
            await exchange.send_piece(b"", more=False)

    async def _line(self, exchange: Exchange, index: int, outcome: Outcome) -> bytes:
        found = {"index": index, **line(outcome, of_key=exchange.of_key)}
        return await self._codec.write(found, JSON) + b"\n"

    # -- keys -----------------------------------------------------------------

    async def _attach(self, exchange: Exchange) -> None:
        named, kind = _named_by_path(exchange), exchange.parameters["kind"]
        wait_s = min(exchange.parameters["wait"], self._limits.wait_s)
        media = accepted(exchange.headers, (JSON, CBOR))
        outcome = await exchange.unless_hung_up(lambda: self._keyed.look(named, wait_s))
        if outcome is None:
            await later(exchange, named, kind)
            return
        written = await self._written(outcome, kind, media)
        del outcome  # as above
        await exchange.answer(200, media, written)

    async def _forget(self, exchange: Exchange) -> None:
        named = _named_by_path(exchange)
        try:
            ended = await exchange.unless_hung_up(lambda: self._keyed.forget(named))
        except CallError as error:
            raise Problem.of(error) from None
        self._rows.forgotten(named)
        body = to_json({"known": ended.known, "started": ended.started})
        await exchange.answer(200, JSON, body)

    # -- before a call --------------------------------------------------------

    async def _check_call(self, exchange: Exchange) -> Named | None:
        """The key that a request for calls names, if it does."""
        key = key_of_header(exchange.headers)
        if key is None and exchange.query:
            raise Problem("bad-request", "a namespace is that of a key: send Idempotency-Key, too")
        exchange.of_key = key is not None
        exchange.media = body_type(exchange.headers)
        if key is not None:
            return Named(key, exchange.parameters["namespace"])
        # Before the body is read; and again when the calls are made.
        self._check_calls(1)
        await self._check_ready()
        return None

    def _check_calls(self, calls: int, namespace: str = "") -> None:
        """Problem if there is no room for so many calls.  ``namespace``: empty without a key."""
        most = self._calls.most
        if not self._calls.allows(calls):
            raise Problem("busy", f"the door has {most} calls at once", LATER)
        if not self._calls.allows(calls, namespace):
            text = f"the calls of namespace {namespace} take their share of {most} at once"
            raise Problem("busy", text, LATER)

    def _take_calls(self, calls: int, held: ExitStack, namespace: str = "") -> None:
        """Room for so many calls while ``held`` is open.  Problem if there is none."""
        self._check_calls(calls, namespace)
        self._calls.take(calls, namespace)
        held.callback(self._calls.give, calls, namespace)

    async def _check_ready(self) -> None:
        if not await self._is_ready():
            health = self._client.health()
            raise Problem("not-ready", health.reason or health.health.value, LATER)

    async def _fields(
        self, exchange: Exchange, body: bytes, known: Mapping[str, BodyField]
    ) -> dict[str, Any]:
        return check_fields(await self._codec.read(body, exchange.media), known)


def _named_by_path(exchange: Exchange) -> Named:
    raw = exchange.path.removeprefix(_UNDER).encode("ascii")
    return Named(key_of_path(raw), exchange.parameters["namespace"])


def _writer() -> Callable[[ScrapedValues, str], tuple[str, bytes]] | None:
    """None without the extra.  Loaded when a door opens: it takes longer than a turn may."""
    try:
        from .exposition import write
    except ImportError:
        return None
    return write
