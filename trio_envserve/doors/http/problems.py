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


class Kind(NamedTuple):
    """The common part of all problems of one code."""

    status: int
    title: str
    advice: str
    """The next step for the caller."""


_MEND = "Fix the request and send it again."
_LATER = "Nothing was started: send it again after the time in Retry-After."
_ASK_AGAIN = "Asking again runs it anew; nothing of the first run is known to be left."
_MAY_TWICE = "Asking again may run it twice."

KINDS: Final[Mapping[str, Kind]] = {
    # what the door itself refuses; nothing of it has reached the server
    "bad-request": Kind(400, "The request is wrong", _MEND),
    "unauthorized": Kind(401, "A token is needed", "Send Authorization: Bearer TOKEN."),
    "origin-refused": Kind(
        403, "The request is from another site", "Ask from a page of this very address, or "
        "without a browser.",
    ),
    "not-found": Kind(404, "There is nothing at this path", "See GET /v1/openapi.json."),
    "method-not-allowed": Kind(405, "This path has no such method", "See the header Allow."),
    "not-acceptable": Kind(
        406, "No form of the answer is acceptable", "Send an Accept that allows one."
    ),
    "body-too-slow": Kind(408, "The body did not come in time", "Send it again, faster."),
    "body-too-large": Kind(
        413, "The body is too large",
        "Send less at once (large arrays take less as CBOR), or let the server take more: "
        "serve --http-limit body_bytes=NUMBER."
    ),
    "unsupported-media-type": Kind(
        415, "The body is in no form that is read here",
        "Send application/json or application/cbor, without a Content-Encoding.",
    ),
    "host-refused": Kind(
        421, "The server does not know itself by this host", "Use the address that the server "
        "was told, or start it with --http-host NAME.",
    ),
    "headers-too-large": Kind(431, "The headers are too large", "Send fewer, or shorter ones."),
    "busy": Kind(429, "The door has no room for now", _LATER),
    "internal": Kind(500, "The door made a mistake", _MAY_TWICE),
    "extra-missing": Kind(
        501, "The server was installed without this", "Install the extra, and start it anew."
    ),
    "not-ready": Kind(503, "The server is not ready", _LATER),
    # calls that did not run
    "not-encodable": Kind(400, "The input has no encoding", _MEND),
    "too-large": Kind(413, "The input is too large for the server", "Send less at once."),
    "conflict": Kind(409, "The id was used for another request", _MEND),
    "key-conflict": Kind(
        422, "The key was used for another input", "Take another key, or DELETE this one first."
    ),
    "key-deleted": Kind(409, "The key was deleted", "Asking again under the key is new work."),
    "refused": Kind(400, "The server refuses the request for good", _MEND),
    "malformed": Kind(
        500, "The server refuses it as malformed", "Give door and server the same version."
    ),
    "foreign-version": Kind(
        500, "The server speaks another version of the protocol",
        "Give door and server the same version.",
    ),
    "never-started": Kind(429, "It did not start within timeout_s", _LATER),
    "server-unreachable": Kind(503, "The server cannot be reached", _LATER),
    "stopping": Kind(503, "The server stops", _LATER),
    "environment-broken": Kind(
        503, "The environment cannot be set up", "Fix the environment, then send the request again."
    ),
    # calls that ran, and failed
    "rollout-failed": Kind(500, "The environment raised", _ASK_AGAIN),
    "scorer-failed": Kind(500, "The environment raised while it computed the reward", _ASK_AGAIN),
    "context-full": Kind(
        500, "The conversation is longer than the model's context",
        "Let the environment end its rollouts earlier, or give the model a longer context.",
    ),
    "model-unavailable": Kind(500, "The model could not be asked", _ASK_AGAIN),
    "model-aborted": Kind(500, "The engine cut its answer off, or refused to give one", _ASK_AGAIN),
    "model-broken-numbers": Kind(
        500, "The engine gave log-probabilities that are no finite numbers", _ASK_AGAIN
    ),
    "environment-unavailable": Kind(
        500, "Something that the environment needs is down", _ASK_AGAIN
    ),
    "deadline": Kind(500, "It was stopped at timeout_s", "Give it more time. " + _ASK_AGAIN),
    "execution-limit": Kind(
        500, "Its execution was stopped at execution_s", "Give it more time. " + _ASK_AGAIN
    ),
    "outcome-not-encodable": Kind(
        500, "The environment's result has no encoding", "Fix the environment."
    ),
    "outcome-not-decodable": Kind(500, "The outcome could not be read", _ASK_AGAIN),
    "no-reward": Kind(
        500, "The environment's result has no reward", "Fix the environment: for POST /run it "
        "returns a mapping with a reward.",
    ),
    "outcome-too-large": Kind(500, "The outcome is too large", "Let the environment return less."),
    # calls that may have run
    "unknown-key": Kind(
        404, "Nothing is known under the key", "Asking under it runs it anew. What was asked "
        "earlier may have run: it was deleted, its retention is over, or its server has ended.",
    ),
    "worker-lost": Kind(
        500, "The worker died", "With rerun: true the server itself runs it again. " + _MAY_TWICE
    ),
    "server-lost": Kind(500, "The server has lost the request", _MAY_TWICE),
    "not-durable": Kind(
        500, "The server's journal has failed", "Ask the next server under the same key."
    ),
    "no-answer": Kind(500, "The server did not answer", _MAY_TWICE),
    "abandoned": Kind(500, "The door was closed", _MAY_TWICE),
    "cancelled": Kind(500, "The server cancelled it", _MAY_TWICE),
    "unreadable": Kind(500, "The record of the error could not be read", _MAY_TWICE),
}  # fmt: skip

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

_UNKNOWN: Final[Mapping[Verdict, Kind]] = {
    Verdict.DID_NOT_RUN: Kind(503, "It did not run", _LATER),
    Verdict.RAN_AND_FAILED: Kind(500, "It ran and failed", _ASK_AGAIN),
    Verdict.MAY_HAVE_RUN: Kind(500, "It may have run", _MAY_TWICE),
}

RETRY_AFTER_S: Final = 1
"""The value of Retry-After.  Nobody can know when there will be room."""

LATER: Final[Header] = (b"retry-after", str(RETRY_AFTER_S).encode())


class Problem(Exception):
    """An answer that is an error."""

    def __init__(self, code: str, detail: str, *headers: Header) -> None:
        verdict = ENDINGS[code].verdict if code in ENDINGS else Verdict.DID_NOT_RUN
        self._say(ending_of(code, verdict), KINDS[code], detail, headers)

    def _say(self, ending: Ending, kind: Kind, detail: str, headers: Sequence[Header]) -> None:
        super().__init__(detail)
        self.status, self.headers = kind.status, headers
        self.record: dict[str, Any] = {
            "type": f"urn:trio-envserve:{ending.code}", "title": kind.title,
            "status": kind.status, "detail": detail, "code": ending.code,
            "verdict": ending.verdict.value, "ran": RAN[ending.verdict],
            "fault": ending.fault.value, "mask": ending.mask, "again": ending.again,
            "advice": kind.advice,
        }  # fmt: skip

    @classmethod
    def of(cls, error: CallError) -> Problem:
        """The problem for an error that ended a call, with all that is known of it."""
        code = error.code or "unknown"
        kind, again_s = KINDS.get(code, _UNKNOWN[error.verdict]), error.retry_after_s
        headers: tuple[Header, ...] = ()
        if kind.status in (429, 503):
            headers = (LATER,)
        elif again_s is not None:
            headers = ((b"retry-after", str(math.ceil(again_s)).encode()),)
        problem = cls.__new__(cls)
        problem._say(error.ending._replace(code=code), kind, str(error.args[0]), headers)
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
        """The same of a request that names a key, or of a row, which is one: what was asked
        earlier under it counts."""
        code = self.record["code"]
        if code in WITH_KEY:
            replayed = row and WITH_KEY[code] is _REPLAYED
            self.record["advice"] = _ROW_REPLAYED if replayed else WITH_KEY[code]
        if code in _EARLIER:
            verdict = Verdict.MAY_HAVE_RUN
            self.record |= {"verdict": verdict.value, "ran": RAN[verdict]}
        return self
