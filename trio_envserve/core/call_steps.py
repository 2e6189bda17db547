"""The inputs of a call, and the actions that follow."""

from __future__ import annotations

import enum


class CallInput(enum.Enum):
    """An input of a call."""

    SEND = "a session has room for it"
    MISSING = "the server has never seen it"
    HOLD = "refused for now"
    KEY_HELD = "refused for now, for its key"
    DUE = "tried again after a refusal for now"
    REFUSED = "refused for good"
    STOPPING = "it did not run, and the server stops"
    OUTCOME = "outcome"
    RECEIVED = "the caller has the outcome"
    CANCEL = "cancelled by its caller"
    LIMIT = "its limit has passed"
    TIME = "time, and its limit has not passed"
    CANCELLED = "cancelled, says the server"
    PROVEN = "its session is lost, and nothing of it runs any more"
    UNPROVEN = "its session is lost, and nobody says what still runs"
    SETTLED = "its session is lost, and it never ran there"
    CLOSED = "the client was closed"

    __hash__ = object.__hash__  # they are looked up with each step, and Enum's own is slow


class CallAction(enum.Enum):
    """An action after a step; they are done in order."""

    TRANSMIT = "send the request"
    ASK = "cancel at the server, and ask whether it ever ran"
    ANSWER = "give the outcome to the caller"
    FAIL = "give the error to the caller"
    STOPPING = "take the server for one that stops"
    TELL = "tell the server at once what is finished"
    TELL_SOON = "tell it with others, within finish_flush_s"
    TELL_NEXT = "tell it with the next tick or request"
