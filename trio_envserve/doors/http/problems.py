"""Problems: each error as ``application/problem+json`` (RFC 9457), with its verdict.

Theory of operation
-------------------
A status alone does not say whether anything ran, and clients retry by it.  So a status
that libraries retry by habit (408, 429, 502, 503, 504) is given only where it did not
run; what ran, or may have run, is 500.  The table below is the one that the OpenAPI
document is made from.  It has what HTTP needs of each code; verdict, fault, mask and
whether to ask again are those of :mod:`~trio_envserve.core.endings`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from ...core.endings import ENDINGS, Ending, ending_of
from ...core.errors import CallError
from ...core.terms import Verdict

Header = tuple[bytes, bytes]

RAN: Final[Mapping[Verdict, bool | None]] = {
    Verdict.DID_NOT_RUN: False, Verdict.RAN_AND_FAILED: True, Verdict.MAY_HAVE_RUN: None,
}  # fmt: skip


class ProblemKind(NamedTuple):
    """The common part of all problems of one code."""

    status: int
    title: str
    advice: str
    """The next step for the caller."""
    again: bool = False
    """Whether the same request can end otherwise."""


_MEND = "Fix the request and send it again."
_LATER = "Nothing was started: send it again after the time in Retry-After."
_ASK_AGAIN = "Asking again runs it anew; nothing of the first run is known to be left."
_MAY_TWICE = "Asking again may run it twice."
_SAME_VERSION = "Give door and server the same version."

_OF_DOOR: Final[Mapping[str, ProblemKind]] = {
    "bad-request": ProblemKind(400, "The request is wrong", _MEND),
    "unauthorized": ProblemKind(401, "A token is needed", "Send Authorization: Bearer TOKEN."),
    "origin-refused": ProblemKind(
        403, "The request is from another site", "Ask from a page of this very address, or "
        "without a browser.",
    ),
    "not-found": ProblemKind(404, "There is nothing at this path", "See GET /v1/openapi.json."),
    "method-not-allowed": ProblemKind(405, "This path has no such method", "See the header Allow."),
    "not-acceptable": ProblemKind(
        406, "No form of the answer is acceptable", "Send an Accept that allows one."
    ),
    "body-too-slow": ProblemKind(
        408, "The body did not come in time", "Send it again, faster.", again=True
    ),
    "body-too-large": ProblemKind(
        413, "The body is too large",
        "Send less at once (large arrays take less as CBOR), or let the server take more: "
        "serve --http-limit body_bytes=NUMBER."
    ),
    "unsupported-media-type": ProblemKind(
        415, "The body is in no form that is read here",
        "Send application/json or application/cbor, without a Content-Encoding.",
    ),
    "host-refused": ProblemKind(
        421, "The server does not know itself by this host", "Use the address that the server "
        "was told, or start it with --http-host NAME.",
    ),
    "headers-too-large": ProblemKind(
        431, "The headers are too large", "Send fewer, or shorter ones."
    ),
    "extra-missing": ProblemKind(
        501, "The server was installed without this", "Install the extra, and start it anew."
    ),
}  # fmt: skip
"""The problems that are no ends of calls: nothing of them has reached the server."""

_OF_VERDICT: Final[Mapping[Verdict, tuple[int, str]]] = {
    Verdict.DID_NOT_RUN: (503, _LATER),
    Verdict.RAN_AND_FAILED: (500, _ASK_AGAIN),
    Verdict.MAY_HAVE_RUN: (500, _MAY_TWICE),
}

_OF_CALL: Final[Mapping[str, tuple[int, str]]] = {
    # it did not run
    "not-encodable": (400, _MEND),
    "too-large": (413, "Send less at once."),
    "conflict": (409, _MEND),
    "key-conflict": (422, "Take another key, or DELETE this one first."),
    "key-deleted": (409, "Asking again under the key is new work."),
    "refused": (400, _MEND),
    "malformed": (500, _SAME_VERSION),
    "foreign-version": (500, _SAME_VERSION),
    "never-started": (429, _LATER),
    "busy": (429, _LATER),
    "environment-broken": (503, "Fix the environment, then send the request again."),
    # it ran and failed
    "context-full": (
        500, "Let the environment end its rollouts earlier, or give the model a longer context."
    ),
    "deadline": (500, "Give it more time. " + _ASK_AGAIN),
    "execution-limit": (500, "Give it more time. " + _ASK_AGAIN),
    "outcome-not-encodable": (500, "Fix the environment."),
    "no-reward": (
        500, "Fix the environment: for POST /run it returns a mapping with a reward."
    ),
    "outcome-too-large": (500, "Let the environment return less."),
    # it may have run
    "unknown-key": (
        404, "Asking under it runs it anew. What was asked earlier may have run: it was deleted, "
        "its retention is over, or its server has ended.",
    ),
    "worker-lost": (500, "With rerun: true the server itself runs it again. " + _MAY_TWICE),
    "not-durable": (500, "Ask the next server under the same key."),
}  # fmt: skip
"""Status and advice of the ends of calls that have not those of their verdict."""


def _kind(ending: Ending) -> ProblemKind:
    status, advice = _OF_CALL.get(ending.code, _OF_VERDICT[ending.verdict])
    title = ending.meaning[0].upper() + ending.meaning[1:]
    return ProblemKind(status, title, advice, ending.again)


KINDS: Final = {**_OF_DOOR, **{code: _kind(ending) for code, ending in ENDINGS.items()}}
"""Kinds of problems by code; the words of calls are those of
:data:`~trio_envserve.core.endings.ENDINGS`."""

_REPLAYED = (
    "Under this key the answer stays the same while it is retained. To run it anew, DELETE the "
    "key first."
)
_ROW_REPLAYED = (
    "The same row gets the same answer while that is retained. To run it anew, send another "
    "_ng_attempt_index with it."
)
_JOINS = "Send it again under the same key: that joins what runs, or gets the outcome."

WITH_KEY: Final[Mapping[str, str]] = {
    "busy": _JOINS, "not-ready": _JOINS, "body-too-slow": _JOINS, "internal": _JOINS,
    "server-unreachable": _JOINS,
    **{
        code: _REPLAYED for code, row in ENDINGS.items()
        if row.verdict is Verdict.RAN_AND_FAILED and code != "no-reward"
    },
    "worker-lost": _REPLAYED,
    "server-lost": _JOINS, "no-answer": _JOINS, "abandoned": _JOINS,
    "cancelled": "Asking again under the key runs it anew.",
}  # fmt: skip
"""The next step where a request names a key."""

_EARLIER: Final = ("busy", "not-ready", "body-too-slow", "server-unreachable")
"""Codes that say nothing of the same request that was sent earlier under its key."""

RETRY_AFTER_S: Final = 1
"""The value of Retry-After.  Nobody can know when there will be room."""

LATER: Final[Header] = (b"retry-after", str(RETRY_AFTER_S).encode())


class Problem(Exception):
    """An answer that is an error."""

    def __init__(self, code: str, detail: str, *headers: Header) -> None:
        verdict = ENDINGS[code].verdict if code in ENDINGS else Verdict.DID_NOT_RUN
        self._say(ending_of(code, verdict), KINDS[code], detail, headers)

    def _say(
        self, ending: Ending, kind: ProblemKind, detail: str, headers: Sequence[Header]
    ) -> None:
        super().__init__(detail)
        self.status, self.headers = kind.status, headers
        self.record: dict[str, Any] = {
            "type": f"urn:trio-envserve:{ending.code}", "title": kind.title,
            "status": kind.status, "detail": detail, "code": ending.code,
            "verdict": ending.verdict.value, "ran": RAN[ending.verdict],
            "fault": ending.fault.value, "mask": ending.mask, "again": kind.again,
            "advice": kind.advice,
        }  # fmt: skip

    @classmethod
    def of(cls, error: CallError) -> Problem:
        """The problem for an error that ended a call, with all that is known of it."""
        ending, again_s = error.ending._replace(code=error.code or "unknown"), error.retry_after_s
        kind = KINDS.get(ending.code) or _kind(ending)
        headers: tuple[Header, ...] = ()
        if kind.status in (429, 503):
            headers = (LATER,)
        elif again_s is not None:
            headers = ((b"retry-after", str(math.ceil(again_s)).encode()),)
        problem = cls.__new__(cls)
        problem._say(ending, kind, str(error.args[0]), headers)
        if (info := error.info) is not None:
            known = {
                "worker": info.worker, "executions": info.executions or None,
                "duration_s": info.duration_s, "retry_after_s": again_s, "exception": info.type,
                "traceback": info.traceback,
            }  # fmt: skip
            found = {name: value for name, value in known.items() if value not in ("", None)}
            problem.record |= found
        return problem

    def of_key(self, *, row: bool = False) -> Problem:
        """The problem of a request that names a key, or of a row, which is one: what was asked
        earlier under it counts."""
        code = self.record["code"]
        if code in WITH_KEY:
            replayed = row and WITH_KEY[code] is _REPLAYED
            self.record["advice"] = _ROW_REPLAYED if replayed else WITH_KEY[code]
        if code in _EARLIER:
            verdict = Verdict.MAY_HAVE_RUN
            self.record |= {"verdict": verdict.value, "ran": RAN[verdict]}
        return self
