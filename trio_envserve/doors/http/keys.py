"""Keys of requests, and the calls about them.

Theory of operation
-------------------
The header is ``Idempotency-Key`` as draft-ietf-httpapi-idempotency-key-header has it: a
String of structured fields (RFC 9651), so ASCII in double quotes.  A path names the same key
percent-encoded, and may name any that is text.  What is no key is refused here; how long one
may be is the server's to say.

Callers by HTTP come and go with their connections.  So their calls are shared
(:mod:`~trio_envserve.client.driver`): the same request under the same key, sent again, joins
the call, which goes on when all of them have hung up.  Another input is a call of its own, of
which the server says what it is.  The door remembers nothing.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple, TypeAlias, final
from urllib.parse import quote, unquote_to_bytes, urlencode

import trio

from ...client import Client, KeyEnded, Outcome, shell
from ...client.options import DEFAULT_NAMESPACE
from ...core.errors import UnknownKey
from ...net import unwrap_single
from ..limits import HttpLimits
from .guard import Headers
from .operations import SECONDS, checked_text
from .problems import LATER, Problem

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
    """A digest that a request has again when it is sent again."""
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


Call: TypeAlias = Callable[[], Awaitable[Outcome]]
"""A call of the client, which is made before this waits for anything."""


@final
class KeyedCalls:
    """The calls about keys of one door."""

    def __init__(self, client: Client, limits: HttpLimits) -> None:
        self._client = client
        self._limits = limits

    async def look(self, named: Named, wait_s: float) -> Outcome | None:
        """The outcome of what was asked under a key, by whomever; None if there is none
        after ``wait_s``.  Problem as :meth:`wait`."""
        attach = partial(self._client.attach, named.key, namespace=named.namespace)
        return await self.wait(attach, named, wait_s)

    async def forget(self, named: Named) -> KeyEnded:
        """Cancel what runs under a key, and drop its outcome.  Problem if the server does
        not answer."""
        with trio.move_on_after(self._limits.answer_s):
            try:
                return await shell.release(self._client, named.key, namespace=named.namespace)
            except UnknownKey:
                raise Problem("not-ready", _LOST, LATER) from None
        raise Problem("not-ready", _SILENT, LATER)

    async def wait(self, call: Call, named: Named, wait_s: float) -> Outcome | None:
        """The outcome of a call; None if there is none after ``wait_s``.  None also says that the
        server has taken it, or has no room for it yet: else it would have refused it by now.
        Problem if the server does not answer."""
        found: list[Outcome] = []
        ended = trio.Event()

        async def run() -> None:
            found.append(await call())
            ended.set()

        with unwrap_single():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run)
                with trio.move_on_after(wait_s):
                    await ended.wait()
                if not found:
                    await trio.lowlevel.checkpoint()  # the call is made by then
                    with trio.move_on_after(self._limits.answer_s) as late:
                        # The server takes what one client asks in order.  When it has said that
                        # it knows nothing of a key that nobody has, it has seen what was asked
                        # before.
                        await self._client.attach(secrets.token_hex(), namespace=named.namespace)
                        # The refusals of both may have come together: that task has its turn
                        # first.
                        await trio.lowlevel.checkpoint()
                    if late.cancelled_caught and not found:
                        raise Problem("not-ready", _SILENT, LATER)
                nursery.cancel_scope.cancel()
        return found[0] if found else None
