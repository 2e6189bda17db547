"""What answers whom: the connection that asked, or the session's newest."""

from __future__ import annotations

from typing import Any

from tests.regressions.bench import System
from trio_envserve.core import messages
from trio_envserve.core.health import Health
from trio_envserve.core.limits import PROTOCOL_VERSION
from trio_envserve.core.messages import Hello, Outcome, Sync, Synced, Welcome
from trio_envserve.core.request_table import RequestAction, RequestInput
from trio_envserve.core.requests import Ask, RetainedOutcome
from trio_envserve.core.router import Router
from trio_envserve.core.router_effects import RouterEffect, ToClient
from trio_envserve.core.router_inputs import ClientMessage, PoolOpened, Tick

from .helpers import START_S, identifier

SESSION, NONCE, EPOCH, DIGEST = b"s" * 16, b"n" * 16, b"e" * 16, b"d" * 16
MOST = 1 << 20


def answers(router: Router, route: bytes, message: Any, *body: bytes) -> list[tuple[str, bytes]]:
    """What is sent for a message, and over which routes."""
    effects = router.take(ClientMessage(route, [messages.encode(message), *body], 0.0))
    sent = [each for each in effects if isinstance(each, ToClient)]
    return [
        (type(messages.decode(each.frames[0], most_bytes=MOST)).__name__, each.route)
        for each in sent
    ]


def test_a_refusal_goes_to_its_asker_and_an_answer_to_the_newest_connection():
    router = Router(epoch=EPOCH, slots=1, now_s=0.0, new_id=lambda: SESSION)
    first, second = (messages.Hello(1, NONCE, number, "test", MOST) for number in (1, 2))
    assert answers(router, b"old", first) == [("Welcome", b"old")]
    assert answers(router, b"new", second) == [("Welcome", b"new")]
    assert answers(router, b"new", messages.Finish(SESSION, [0, 1])) == []
    request = messages.Request(SESSION, 0, DIGEST, None, 1, None)
    assert answers(router, b"old", request, b"body") == [("Refused", b"old")]
    assert answers(router, b"old", messages.Cancel(SESSION, 0)) == [("Cancelled", b"new")]
    sync = messages.Sync(SESSION, EPOCH, 1, 1, 1, [])
    assert answers(router, b"old", sync) == [("Synced", b"new")]
    assert answers(router, b"old", first) == [("Welcome", b"old")]


# -- outcomes that a connection has swallowed ------------------------------------
# A client that said hello first on its next connection got the outcomes that the old
# one had swallowed a ping later than one that said sync: the hello had moved the session,
# so the sync behind it was no news, and what was sent over the old connection counted as
# under way.
#
# Found by `trio-envserve conform`: the-same-nonce-gets-the-same-session.


class Served:
    """A router without workers, and a session with one kept outcome."""

    def __init__(self) -> None:
        self.router = Router(epoch=b"e" * 16, slots=1, now_s=START_S, new_id=lambda: identifier(1))
        self.effects: list[RouterEffect] = []
        self.hello(b"old", 1)
        (self.session,) = self.router.cache.sessions.values()
        cache = self.router.cache
        cache.request(self.session, 0, Ask(b"d" * 16, b"body", False, 1))
        cache.step(self.session, 0, RequestInput.DISPATCH, object())
        kept = RetainedOutcome.made(Outcome(self.session.id, 0, 0, "w", 0.1, 1), b"value")
        effects = cache.step(self.session, 0, RequestInput.OUTCOME, kept)
        assert [do for do, _ in effects] == [RequestAction.ANSWER]
        self.router.dispatcher.do(self.session, effects)
        self.effects = self.router.take(Tick(START_S))
        assert self.said() == [(b"old", Outcome)]

    def say(self, route: bytes, message: messages.Message) -> None:
        self.effects = self.router.take(ClientMessage(route, (messages.encode(message),), START_S))

    def hello(self, route: bytes, connection: int) -> None:
        self.say(route, Hello(1, NONCE, connection, "test", 1 << 20))
        assert self.said() == [(route, Welcome)]

    def sync(self, route: bytes, connection: int, probe: int) -> list[tuple[bytes, type]]:
        epoch = self.router.epoch
        self.say(route, Sync(self.session.id, epoch, connection, probe, 1, [0, 1]))
        return self.said()

    def said(self) -> list[tuple[bytes, type]]:
        sent = [each for each in self.effects if isinstance(each, ToClient)]
        decoded = [messages.decode(bytes(each.frames[0]), most_bytes=1 << 20) for each in sent]
        return [(each.route, type(one)) for each, one in zip(sent, decoded, strict=True)]


def test_after_a_hello_the_first_sync_has_them_replayed():
    served = Served()
    served.hello(b"new", 2)
    assert served.sync(b"new", 2, 1) == [(b"new", Outcome), (b"new", Synced)]
    assert served.sync(b"new", 2, 1) == [(b"new", Synced)]  # said twice: it is under way


def test_a_hello_of_the_same_connection_has_nothing_replayed():
    served = Served()
    served.hello(b"old", 1)
    assert served.sync(b"old", 1, 1) == [(b"old", Synced)]


# -- a conflict is told to who caused it -----------------------------------------
# A refusal went to the session's own client, whoever had caused it: that client
# took its running call for one that did not run.


def test_g6_a_conflict_from_elsewhere_does_not_reach_the_sessions_client() -> None:
    ids = iter(bytes([n]) * 16 for n in range(1, 100))
    router = Router(epoch=b"e" * 16, slots=1, now_s=0.0, new_id=lambda: next(ids))
    router.take(PoolOpened((), 0.0))
    hello = messages.Hello(PROTOCOL_VERSION, b"n" * 16, 1, "mine", 10**6)
    effects = router.take(ClientMessage(b"mine", [messages.encode(hello)], 0.1))
    (welcome,) = [e for e in effects if isinstance(e, ToClient)]
    message = messages.decode(welcome.frames[0], most_bytes=10**6)
    assert isinstance(message, messages.Welcome)
    request = messages.Request(message.session, 0, b"d" * 16, None, 1, None)
    router.take(ClientMessage(b"mine", [messages.encode(request), b"body"], 0.2))
    other = request._replace(digest=b"x" * 16)
    effects = router.take(ClientMessage(b"stranger", [messages.encode(other), b"evil"], 0.3))
    (refused,) = [e for e in effects if isinstance(e, ToClient)]
    assert refused.route == b"stranger"


# -- failures that servers of this kind are known for ----------------------------


def test_failure_11_answer_goes_to_the_identity_before_the_cut_and_is_lost():
    """The connection is cut for an instant; the answer goes to the identity that the
    client had before; pings under the new one are fine; the caller waits for ever.

    Here the client states at once what it holds, answers go to its newest connection,
    and what is completed is replayed there.
    """
    system = System()
    call = system.submit()
    system.route = b"route 2"  # it is connected anew, and has not said so yet
    system.end()
    assert system.ended == {}
    system.reconnect(b"route 2")
    system.advance(5.0)
    assert system.client.link.health(system.now_s)[0] is Health.HEALTHY
    assert system.result(call) == b"outcome"

    # And one that completes later goes there at once.
    later = system.submit()
    system.end()
    assert system.result(later) == b"outcome"
