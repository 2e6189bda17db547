"""The requests about keys that a client's calls make.

Theory of operation
-------------------
A waiter whose lease has ended goes on counting at the server until its caller is back
(:mod:`.work`).  A call that is issued again takes its old place.  One that is given up
instead has left it behind: then the client *withdraws*, by a call of its own, unless
another of its calls asks for the same key and will take that place.  A call whose limit
passes is not given up: its wait ends, and the work of its key goes on.
"""

from __future__ import annotations

import dataclasses

from . import messages
from .calls import Call, ClientSession, Stage
from .client_inputs import CallKey, CallSubmitted
from .errors import ErrorInfo
from .key_records import CallerToken, KeyAct, KeyName
from .terms import Verdict, quick

_ANSWERED = Stage.ANSWERED


class Asking:
    """The keys that calls of this client ask for, and where it may count without them."""

    def __init__(self) -> None:
        self._calls: dict[KeyName, int] = {}
        """How many calls ask for each."""
        self._left: set[KeyName] = set()
        """Those of them for which a lost session may go on counting it."""
        self._given_up: dict[KeyName, tuple[Call, int]] = {}
        """Calls that were given up in the session in use, which may be lost by now, and the
        last probe that was sent before."""
        self.probe = 0
        """The last one that was sent."""

    def begin(self, name: KeyName) -> None:
        """There is one more call that asks for a key."""
        self._calls[name] = self._calls.get(name, 0) + 1

    def placed(self, call: Call, name: KeyName) -> None:
        """The server has dealt with it, in the session where it is."""
        if self._left and not _is_lost(call):
            self._left.discard(name)

    def end(self, call: Call, name: KeyName) -> bool:
        """It is over.  Whether its key must be withdrawn, since no call is left for it."""
        left = self._calls[name] - 1
        if left:
            self._calls[name] = left
        else:
            del self._calls[name]
        if call.stays:
            if not left:
                self._left.discard(name)
            return False
        answered, is_lost = call.stage is _ANSWERED, _is_lost(call)
        if answered and not is_lost and not self._left:
            return False  # as most are
        if is_lost or (call.may_have_run and not answered):
            self._left.add(name)
        if not left and name in self._left:
            self._left.remove(name)
            return True
        if call.session is not None and not answered:
            self._given_up[name] = call, self.probe
        return False

    def heard(self, probe: int) -> None:
        """The server has answered this probe, with which it was told of what was over."""
        for name, (_, after) in list(self._given_up.items()):
            if after < probe:
                del self._given_up[name]

    def lose(self) -> list[Call]:
        """The session in use is lost.  Calls given up in it whose keys must be withdrawn."""
        given_up, self._given_up = self._given_up, {}
        self._left.update(name for name in given_up if name in self._calls)
        return [call for name, (call, _) in given_up.items() if name not in self._calls]


def _is_lost(call: Call) -> bool:
    return call.session is not None and call.session.lost_s is not None


def withdrawal(call: Call, now_s: float) -> CallSubmitted:
    """The call by which a client withdraws what this one has asked for.  Its number is
    negative, as no caller's is: nobody waits for what comes of it."""
    assert call.key is not None
    key = CallKey(KeyAct.WITHDRAW, call.key.name)
    return CallSubmitted(~call.number, b"", now_s, key=key)


def of_key(call: Call, error: ErrorInfo) -> ErrorInfo:
    """The error of a call whose limit has passed: what its server knows is of the work of
    its key, which may be that of others."""
    if not call.waits_for_key or error.verdict is Verdict.DID_NOT_RUN:
        return error
    why = f"the server refused it for now ({call.held_as})" if call.held_as else "it waited"
    text = f"the limit passed while {why}; the work of its key may go on: ask for it again"
    return dataclasses.replace(error, message=text)


def keyed_request(
    call: Call, session: ClientSession, caller: CallerToken, now_s: float
) -> messages.KeyedRequest:
    """How a call asks for its key.  The allowance is the key's: it is not divided here, but
    by the server, in the same way."""
    assert call.key is not None
    act, (namespace, key), digest, tag = call.key
    earlier = call.earlier if call.may_have_run else None
    return _keyed_request((
        session.id, call.sequence, digest, call.rerun, call.most, call.left_s(now_s),
        caller, act, namespace, key, tag, earlier, call.proven, call.execution_s,
        call.traceparent,
    ))  # fmt: skip


_keyed_request = quick(messages.KeyedRequest)
