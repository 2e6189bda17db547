"""The forms of messages: headers decoded, what is for people left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...core import error_records, messages
from ...core.errors import ProtocolError
from ...core.ranges import Ranges
from ...core.terms import Status
from ...retrylab.values import Counted
from . import names


class Frames(tuple[bytes, ...]):
    """Frames of a message."""

    __slots__ = ()


class Mail(NamedTuple):
    """Message between a client and a server."""

    route: bytes
    """Route of the connection that it was sent over."""
    frames: Frames


class WorkerMail(NamedTuple):
    """Message between a server and a worker."""

    worker: bytes
    life: int
    """Life of the server that started the worker."""
    frames: Frames


def mail_form(mail: Mail) -> Any:
    """Value to compare in the place of a message between a client and a server."""
    client, connection = names.client_of(mail.route), names.connection_of(mail.route)
    return Counted("connection", client, connection), frames_form(mail.frames)


def worker_mail_form(mail: WorkerMail) -> Any:
    """Value to compare in the place of a message between a server and a worker."""
    return mail.worker, mail.life, frames_form(mail.frames)


def frames_form(frames: Sequence[Any]) -> Any:
    """Value to compare in the place of frames: headers decoded, without texts for people."""
    parts: list[Any] = []
    status: Status | None = None
    for frame in frames:
        message = decoded(frame)
        if message is None:
            error = status is not None and status is not Status.RESULT
            parts.append(_error(frame) if error else bytes(frame))
            continue
        parts.append(_message(message))
        if isinstance(message, (messages.Outcome, messages.WorkerOutcome)):
            status = Status(message.status)
    return tuple(parts)


def decoded(frame: Any) -> Any:
    """The message of a header frame, or None if the frame is none."""
    if frame[:1] < b"\x80":  # no array; ids, keys and bodies of errors begin otherwise
        return None
    try:
        return messages.decode(frame, most_bytes=1 << 20)
    except ProtocolError:
        return None


def _error(body: bytes) -> Any:
    """An error record without its texts, which are for people."""
    info = error_records.decode(body)
    return ("error", info.code, info.verdict.name, info.worker.encode(), info.executions)


def _message(message: Any) -> Any:
    rules = _MESSAGE_RULES.get(type(message).__name__, {})
    fields = [
        rules[name](message, value) if name in rules else value
        for name, value in zip(message._fields, message, strict=True)
    ]
    return (type(message).__name__, *fields)


def _of_session(kind: str) -> Callable[[Any, int], Any]:
    return lambda message, number: Counted(kind, names.client_of(message.session), number)


def _nothing(message: Any, value: Any) -> None:
    return None


def _server(message: Any, record: dict[str, Any]) -> Any:
    return (record.get("status"), bool(record.get("environment")), bool(record.get("rerun")))


_MESSAGE_RULES: dict[str, dict[str, Callable[[Any, Any], Any]]] = {
    "Hello": {
        "connection": lambda message, number: Counted("connection", message.name, number),
        "message_bytes": _nothing,
    },
    "Request": {"digest": _nothing},  # the number of the call, which the body says, too
    "Sync": {"connection": _of_session("connection"), "probe": _of_session("probe")},
    "Synced": {"probe": _of_session("probe"), "server": _server},
    "Welcome": {"server": _server, "window": _nothing, "message_bytes": _nothing},
    "Refused": {"text": _nothing},
    "Error": {"text": _nothing},
    "Beat": {"stats": _nothing},
}


_HIDDEN = {
    "digest", "server", "stats", "epoch", "version", "message_bytes", "name", "client", "window",
    "pid", "environment", "duration_s", "nonce", "text",
}  # fmt: skip
_SPANS = {"finished", "pending", "missing", "numbers", "unwanted", "live"}


def describe(mail: Mail | WorkerMail) -> str:
    """Message as text, for people."""
    message = next(filter(None, map(decoded, mail.frames)), None)
    if message is None:
        return "something"
    fields = [
        f"{name}={_value(name, value)}"
        for name, value in zip(message._fields, message, strict=True)
        if name not in _HIDDEN and value is not None
    ]
    if isinstance(message, messages.Request):
        fields.append(f"body={mail.frames[-1].decode('ascii', 'replace')}")
    return f"{type(message).__name__}({', '.join(fields)})"


def _value(name: str, value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("ascii", "replace").rstrip(".-")
    if name in _SPANS and isinstance(value, list):
        return repr(list(Ranges.from_flat(value)))
    return repr(value)
