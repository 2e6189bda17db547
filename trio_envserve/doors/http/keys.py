"""Keys of requests, and the calls under them, which go on when those who asked hang up.

Theory of operation
-------------------
The header is ``Idempotency-Key`` as draft-ietf-httpapi-idempotency-key-header has it: a
String of structured fields (RFC 9651), so ASCII in double quotes.  A path names the same key
percent-encoded, and may name any that is text.  What is no key is refused here; how long one
may be is the server's to say.

A call of the client is a waiter of its key, and the server cancels work that its last
waiter leaves.  Callers by HTTP come and go with their connections.  So it is not a request
that waits, but a :class:`KeyedCall`, a task of the door, until there is an outcome.  The same
bytes under the same key, sent again, join it; other bytes are a call of their own, of which
the server says whether they are another input.  After the outcome the server retains it, and
the door remembers nothing.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import re
import secrets
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Final, NamedTuple, TypeAlias, final
from urllib.parse import quote, unquote_to_bytes, urlencode

import trio

from ...client import Client, KeyEnded, Outcome, shell
from ...client.options import Encoded
from ...client.shell import run_encoded
from ...core.errors import ExecutionCancelled, NeverStarted, UnknownKey
from ...net import unwrap_single
from .guard import Headers
from .limits import HttpLimits
from .operations import DEFAULT_NAMESPACE, SECONDS, checked_text
from .problems import LATER, Problem

_log = logging.getLogger("trio_envserve.http")

_LOST: Final = "the server was lost meanwhile, and the key may have been forgotten, or not"
_SILENT: Final = "the server does not answer, or has no room for the question for now"

HEADER: Final = b"idempotency-key"
ROLLOUTS: Final = "/v1/rollouts"

_STRING: Final = re.compile(rb'"((?:[ !#-\[\]-~]|\\["\\])*)"')
_BROKEN_PERCENT: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")


class Named(NamedTuple):
    """A key in its namespace."""

    key: str
    namespace: str

    def location(self, kind: str) -> str:
        """Where its outcome is, as a relative URL."""
        found = {"namespace": self.namespace} if self.namespace != DEFAULT_NAMESPACE else {}
        if kind == "group":
            found["kind"] = kind
        query = f"?{urlencode(found)}" if found else ""
        return f"{ROLLOUTS}/{quote(self.key, safe='')}{query}"


def body_digest(body: bytes, media: str) -> bytes:
    """The same for the same request, sent again."""
    return hashlib.blake2b(media.encode() + b"\n" + body, digest_size=32).digest()


def key_of_header(headers: Headers) -> str | None:
    """The key that a request carries, or None.  Problem if it is none."""
    given = headers.get(HEADER)
    if given is None:
        return None
    if len(given) != 1:
        raise Problem("bad-request", "a request has one header Idempotency-Key")
    match = _STRING.fullmatch(given[0].strip(b" "))
    if match is None:
        raise Problem(
            "bad-request", "an Idempotency-Key is ASCII text in double quotes and nothing else, "
            'as in: Idempotency-Key: "step-12/7"',
        )  # fmt: skip
    key = checked_text("key", re.sub(rb"\\(.)", rb"\1", match[1]).decode("ascii"))
    if key in (".", ".."):
        raise Problem("bad-request", "a key is not . or .., which no URL can name")
    return key


def key_of_path(raw: bytes) -> str:
    """The key that a path names, percent-encoded.  Problem if it is none."""
    if _BROKEN_PERCENT.search(raw):
        raise Problem("bad-request", "a % in a path is followed by two hexadecimal digits")
    try:
        return checked_text("key", unquote_to_bytes(raw).decode())
    except UnicodeDecodeError:
        raise Problem("bad-request", "a key in a path is UTF-8, percent-encoded") from None


def asynchronous(headers: Headers, most_s: float) -> float | None:
    """After how long a caller prefers 202 to waiting on (``Prefer: respond-async, wait=10``,
    RFC 7240); None: never.  What cannot be read there is ignored, as that standard has it."""
    found: dict[str, str] = {}
    for each in b",".join(headers.get(b"prefer", ())).decode("latin-1").split(","):
        name, _, value = each.partition(";")[0].partition("=")
        found.setdefault(name.strip().lower(), value.strip().strip('"'))
    if "respond-async" not in found:
        return None
    wait = found.get("wait", "")
    return min(float(wait), most_s) if SECONDS.fullmatch(wait) else 0.0


# -- calls ----------------------------------------------------------------------------------


class RequestIdentity(NamedTuple):
    """The fields by which a request that is sent again is recognised."""

    named: Named
    digest: bytes
    """Of its body."""


Submitted: TypeAlias = Callable[[], object]
"""Called when a call has its place among all that the door asks of the server."""

Call: TypeAlias = Callable[[Submitted], Awaitable[Outcome]]


@final
class KeyedCall:
    """One call about a key."""

    def __init__(self) -> None:
        self.submitted = trio.Event()
        self.done = trio.Event()
        self.deleted = False
        """Somebody has asked that its key be forgotten."""
        self._scope = trio.CancelScope()
        self._outcome: Outcome | None = None
        self._error: Exception | None = None

    async def run(self, call: Call) -> None:
        """Make the call, for whoever waits."""
        try:
            with self._scope:
                self._outcome = await call(self.submitted.set)
            if self._scope.cancelled_caught:
                self._outcome = Outcome.failed(ExecutionCancelled("its key was deleted"))
        except Exception as error:
            # Whatever it is, it is raised where somebody waits; the door goes on.
            self._error = error
        finally:
            self.submitted.set()
            self.done.set()

    def cancel(self) -> None:
        """Nobody is to have it."""
        self._scope.cancel()

    async def outcome(self) -> Outcome:
        """The outcome, once there is one.  Who is cancelled here waits no more; the call
        goes on.  Problem if its key was deleted before anything was started: a status that
        says so, and not 429, by which libraries would ask for it again."""
        await self.done.wait()
        if self._error is not None:
            raise self._error
        assert self._outcome is not None
        if self.deleted and isinstance(self._outcome.error, NeverStarted):
            raise Problem("key-deleted", "its key was deleted before anything was started")
        return self._outcome


@final
class KeyedCalls:
    """The calls under keys of one door: tasks of its nursery."""

    def __init__(self, client: Client, nursery: trio.Nursery, limits: HttpLimits) -> None:
        self._client = client
        self._nursery = nursery
        self._limits = limits
        self._calls: dict[RequestIdentity, KeyedCall] = {}

    def find(self, identity: RequestIdentity) -> KeyedCall | None:
        """The call of the same request, if it is under way."""
        return self._calls.get(identity)

    def start(self, identity: RequestIdentity, asked: Encoded, held: ExitStack) -> KeyedCall:
        """Make a call; ``held`` is what it takes of the bounds, until it has ended."""
        started = self._calls[identity] = KeyedCall()

        async def run() -> None:
            with held:
                try:
                    await started.run(functools.partial(run_encoded, self._client, asked))
                finally:
                    if self._calls.get(identity) is started:
                        del self._calls[identity]

        self._nursery.start_soon(run)
        return started

    def go_on(self, act: Callable[[], Awaitable[None]], held: ExitStack) -> None:
        """Do something for which nobody need wait; ``held`` as for :meth:`start`."""

        async def run() -> None:
            with held:
                try:
                    await act()
                except Exception:
                    # It ends nothing else.
                    _log.exception("the HTTP door made a mistake")

        self._nursery.start_soon(run)

    async def look(self, named: Named, wait_s: float) -> Outcome | None:
        """The outcome of what was asked under a key, by whomever; None if there is none
        after ``wait_s``.  Problem as :meth:`wait`."""
        call = KeyedCall()

        async def attach(submitted: Submitted) -> Outcome:
            return await shell.attach(
                self._client, named.key, namespace=named.namespace, submitted=submitted
            )

        with unwrap_single():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call.run, attach)
                ended = await self.wait(call, named.namespace, wait_s)
                nursery.cancel_scope.cancel()
        return await call.outcome() if ended else None

    async def forget(self, named: Named) -> KeyEnded:
        """Cancel what runs under a key, and drop its outcome.  Problem if the server does
        not answer."""
        # From now on the same request is new work: its place among all that is asked is behind.
        here = [self._calls.pop(each) for each in list(self._calls) if each.named == named]
        for call in here:
            call.deleted = True
        ended = None
        with trio.move_on_after(self._limits.answer_s):
            try:
                ended = await shell.release(self._client, named.key, namespace=named.namespace)
            except UnknownKey:
                raise Problem("not-ready", _LOST, LATER) from None
        if ended is None:
            raise Problem("not-ready", _SILENT, LATER)
        known = ended.known
        for call in here:
            if not call.done.is_set():  # the server has had no room for it yet
                call.cancel()
                known = True
        return KeyEnded(known, ended.started)

    async def wait(self, call: KeyedCall, namespace: str, wait_s: float) -> bool:
        """Whether a call has ended after ``wait_s``.  False also says that the server has
        taken it, or has no room for it yet: else it would have refused it by now.
        Problem if the server does not answer."""
        with trio.move_on_after(wait_s):
            await call.done.wait()
        if call.done.is_set():
            return True
        with trio.move_on_after(self._limits.answer_s) as late:
            await call.submitted.wait()
            # The server takes what one client asks in order.  When it has said that it knows
            # nothing of a key that nobody has, it has seen what was asked before.
            await self._client.attach(secrets.token_hex(), namespace=namespace)
            # The refusals of both may have come together: that task has its turn first.
            await trio.lowlevel.checkpoint()
        if late.cancelled_caught and not call.done.is_set():
            raise Problem("not-ready", _SILENT, LATER)
        return call.done.is_set()
