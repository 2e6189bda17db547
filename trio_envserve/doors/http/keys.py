"""The key of a request: in a header, in its path, in its query.

Theory of operation
-------------------
The header is ``Idempotency-Key`` as draft-ietf-httpapi-idempotency-key-header has it: a
String of structured fields (RFC 9651), so ASCII in double quotes.  A path names the same key
percent-encoded, and may name any that is text.  What is no key is refused here; how long one
may be is the server's to say.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote_to_bytes, urlencode

from .guard import Headers
from .problems import Problem

HEADER: Final = b"idempotency-key"
ROLLOUTS: Final = "/v1/rollouts"
DEFAULT_NAMESPACE: Final = "default"

_STRING: Final = re.compile(rb'"((?:[ !#-\[\]-~]|\\["\\])*)"')
_BROKEN_PERCENT: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_SECONDS: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_MOST_QUERY: Final = 8


class Named(NamedTuple):
    """A key in its namespace."""

    key: str
    namespace: str

    def location(self, kind: str) -> str:
        """Where its outcome is, as a relative URL."""
        found = {"namespace": self.namespace} if self.namespace != DEFAULT_NAMESPACE else {}
        if kind != "rollout":
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
    key = _checked(re.sub(rb"\\(.)", rb"\1", match[1]).decode("ascii"), "key")
    if key in (".", ".."):
        raise Problem("bad-request", "a key is not . or .., which no URL can name")
    return key


def key_of_path(raw: bytes) -> str:
    """The key that a path names, percent-encoded.  Problem if it is none."""
    if _BROKEN_PERCENT.search(raw):
        raise Problem("bad-request", "a % in a path is followed by two hexadecimal digits")
    try:
        return _checked(unquote_to_bytes(raw).decode(), "key")
    except UnicodeDecodeError:
        raise Problem("bad-request", "a key in a path is UTF-8, percent-encoded") from None


def read_query(query: bytes, known: Collection[str]) -> Mapping[str, str]:
    """The parameters of a query.  Problem for one that nobody knows: a namespace that is
    spelt wrongly would be another one."""
    if not query:
        return {}
    try:
        pairs = parse_qsl(
            query.decode("ascii"), keep_blank_values=True, strict_parsing=True, errors="strict",
            max_num_fields=_MOST_QUERY,
        )  # fmt: skip
    except ValueError:
        raise Problem("bad-request", "the query of the URL cannot be read") from None
    found = dict(pairs)
    for name in found:
        if name not in known:
            names = ", ".join(known)
            raise Problem("bad-request", f"unknown parameter {name[:64]!r} (known: {names})")
    if len(found) < len(pairs):
        raise Problem("bad-request", "a parameter of the query is there twice")
    return found


def namespace_of(query: Mapping[str, str]) -> str:
    """The namespace of the keys.  Problem if that is no namespace."""
    return _checked(query.get("namespace", DEFAULT_NAMESPACE), "namespace")


def kind_of(query: Mapping[str, str]) -> str:
    """As what an outcome is to be shown.  Problem if it is neither of the two."""
    kind = query.get("kind", "rollout")
    if kind not in ("rollout", "group"):
        raise Problem("bad-request", "kind is rollout or group")
    return kind


def wait_of(query: Mapping[str, str], most_s: float) -> float:
    """How long to wait for an outcome.  Problem if that is no time."""
    text = query.get("wait", "0")
    if not _SECONDS.fullmatch(text):
        raise Problem("bad-request", "wait is a number of seconds, as in: ?wait=30")
    return min(float(text), most_s)


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
    return min(float(wait), most_s) if _SECONDS.fullmatch(wait) else 0.0


def _checked(text: str, what: str) -> str:
    if not text:
        raise Problem("bad-request", f"the {what} is empty")
    if _CONTROL.search(text):
        raise Problem("bad-request", f"a {what} has no control characters")
    return text
