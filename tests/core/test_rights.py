"""Who may do what, where clients have keys."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest

from trio_envserve.core import messages
from trio_envserve.core.limits import ServerLimits
from trio_envserve.core.router import Router
from trio_envserve.core.router_effects import ToClient
from trio_envserve.core.router_inputs import ClientMessage, PeerKnown

ID = bytes(range(16))
ROUTE, OTHER = b"route one", b"route two"
ASK, ATTACH, CANCEL, FORGET = range(4)


class Desk:
    """A router with peers."""

    def __init__(self, **limits: Any) -> None:
        ids = iter(bytes([n]) * 16 for n in range(1, 100))
        self.router = Router(
            epoch=ID, slots=1, now_s=0.0, new_id=lambda: next(ids), limits=ServerLimits(**limits)
        )

    def know(self, roles: str, route: bytes = ROUTE, name: str = "it", spaces: str = "",
             share: float = 1.0) -> None:  # fmt: skip
        self.router.take(PeerKnown(route, name, roles, spaces, share))

    def say(self, message: Any, route: bytes = ROUTE, body: list[bytes] | None = None) -> list[Any]:
        effects = self.router.take(
            ClientMessage(route, [messages.encode(message), *(body or [])], 0.0)
        )
        return [
            messages.decode(each.frames[0], most_bytes=100_000)
            for each in effects
            if isinstance(each, ToClient)
        ]

    def session(self, route: bytes = ROUTE, nonce: bytes = ID) -> bytes:
        [welcome] = self.say(messages.Hello(2, nonce, 0, "client", 1 << 20, bytes(16)), route)
        assert isinstance(welcome, messages.Welcome)
        return welcome.session

    def ask(self, session: bytes, sequence: int = 0, route: bytes = ROUTE) -> list[Any]:
        request = messages.Request(session, sequence, ID, None, 1, None)
        return self.say(request, route, [b"body"])

    def ask_key(self, session: bytes, act: int, namespace: bytes = b"eval",
                route: bytes = ROUTE, tag: bytes | None = None) -> list[Any]:  # fmt: skip
        request = messages.Request(
            session, 0, bytes(32), None, 1, None, None, None, namespace, b"key", act or None, tag
        )
        return self.say(request, route, [b"body" if act == ASK else b""])


def refused_for(answers: list[Any]) -> str:
    """The words in which it was refused for good; empty if it was not."""
    for each in answers:
        if isinstance(each, messages.Error):
            assert each.code == "forbidden"
            return each.text
        if isinstance(each, messages.Refused) and each.delay_s is None and each.code == "refused":
            return each.text
    return ""


def test_a_peer_that_nobody_has_named_may_do_nothing():
    desk = Desk()
    desk.know("admin", OTHER)
    assert refused_for(desk.say(messages.Query(1, "statistics"))) == "no key is known for this peer"
    [error] = desk.say(messages.Hello(2, ID, 0, "client", 1 << 20, bytes(16)))
    assert error.text == "no key is known for this peer"
    assert not desk.router.sessions.known


def test_a_peer_that_has_gone_has_no_right_any_more():
    desk = Desk()
    desk.know("admin")
    desk.know("", name="")
    assert refused_for(desk.say(messages.Query(1, "running", 0)))


ASKS: list[Any] = [
    messages.Query(1, "statistics"), messages.Query(1, "keys", 0, b"eval"),
    messages.Query(1, "running", 0), messages.Query(1, "stack", 0),
]  # fmt: skip


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize(
    ("roles", "may"),
    [("watch", True), ("admin", True), ("submit watch", True), ("submit", False), ("work", False)],
)
def test_who_may_watch(ask, roles, may):
    desk = Desk()
    desk.know(roles)
    why = refused_for(desk.say(ask))
    assert bool(why) != may
    assert may or why == f"the key it (role {roles}) may not watch: that needs the role watch"


@pytest.mark.parametrize(
    ("roles", "may"), [("submit", True), ("admin", True), ("watch", False), ("work", False)]
)
def test_who_may_submit(roles, may):
    desk = Desk()
    desk.know(roles)
    session = desk.session()  # and is told the status, whoever has a key
    for answers in (desk.ask(session), desk.ask_key(session, ASK), desk.ask_key(session, ATTACH)):
        why = refused_for(answers)
        assert bool(why) != may
        assert may or why == f"the key it (role {roles}) may not submit: that needs the role submit"
    assert desk.router.works.counters.entered == 0 or may


@pytest.mark.parametrize("act", [CANCEL, FORGET])
@pytest.mark.parametrize(
    ("roles", "spaces", "why"),
    [
        ("submit", "", "may not end keys: that needs admin"),
        ("submit", "eval", ""),
        ("submit", "other", "may not use the namespace 'eval'"),
        ("admin", "", ""),
        ("admin", "other", ""),
        ("watch", "eval", "may not submit"),
    ],
)
def test_who_may_end_keys(act, roles, spaces, why):
    desk = Desk()
    desk.know(roles, spaces=spaces)
    said = refused_for(desk.ask_key(desk.session(), act))
    assert why in said
    assert bool(why) == bool(said)


@pytest.mark.parametrize("act", [ASK, ATTACH])
def test_who_has_namespaces_asks_in_no_other(act):
    desk = Desk()
    desk.know("submit", spaces="train\neval")
    assert not refused_for(desk.ask_key(desk.session(), act))
    desk.know("submit", OTHER, "that", spaces="train")
    desk = Desk()
    desk.know("submit", spaces="train\nevaluation")
    assert "may not use the namespace 'eval'" in refused_for(desk.ask_key(desk.session(), act))


def test_who_has_namespaces_sees_no_other():
    desk = Desk()
    desk.know("watch", spaces="eval")
    assert not refused_for(desk.say(messages.Query(1, "keys", 0, b"eval")))
    assert "namespace 'train'" in refused_for(desk.say(messages.Query(1, "keys", 0, b"train")))
    assert "namespace ''" in refused_for(desk.say(messages.Query(1, "keys", 0, b"")))
    for about in ("statistics", "running", "stack"):
        query = messages.Query(1, about, 0)
        assert "the keys of its namespaces only" in refused_for(desk.say(query))


def test_a_session_belongs_to_the_key_that_opened_it():
    desk = Desk()
    desk.know("submit", name="one")
    desk.know("admin", OTHER, "two")
    session = desk.session()
    desk.ask(session)
    for message, body in (
        (messages.Request(session, 1, ID, None, 1, None), [b"body"]),
        (messages.Cancel(session, 0), []),
        (messages.Finish(session, [0, 1]), []),
        (messages.Goodbye(session), []),
        (messages.Goodbye(ID), []),
        (messages.Hello(2, ID, 1, "client", 1 << 20, bytes(16)), []),
        (messages.Sync(session, ID, 1, 0, 1, []), []),
    ):
        [error] = desk.say(message, OTHER, body)
        assert error.text == "this session belongs to another key"
    assert 0 in desk.router.sessions.known[session].tickets
    assert desk.router.sessions.known[session].route == ROUTE


@pytest.mark.parametrize("act", [ASK, ATTACH])
def test_work_was_ended_by_whoever_named_its_caller(act):
    desk = Desk()
    desk.know("submit", name="one")
    desk.know("submit", OTHER, "two")
    session, other = desk.session(), desk.session(OTHER, bytes(16))
    desk.ask_key(session, ASK)
    desk.ask_key(other, act, route=OTHER)
    desk.say(messages.Cancel(other, 0), OTHER)
    (work,) = desk.router.works.open.values()
    assert [ticket.session.id for ticket in work.tickets if ticket.counts] == [session]


def test_g8_ids_of_commands_of_any_length_were_remembered():
    desk = Desk()
    session = desk.session()
    [refused] = desk.ask_key(session, CANCEL, tag=bytes(65))
    assert (refused.code, refused.text) == ("malformed", "Request.tag is not tag")
    [done] = desk.ask_key(session, CANCEL, tag=bytes(64))
    assert done.status == 0


def test_a_share_bounds_what_a_key_has_unfinished_in_all_of_its_sessions():
    desk = Desk(queue=10, queue_bytes=1 << 20)
    desk.know("submit", share=0.2)
    one, two = desk.session(), desk.session(nonce=bytes(16))
    assert not desk.ask(one)
    assert not desk.ask(two)
    [refused] = desk.ask(one, 1)
    assert refused.delay_s is not None
    assert refused.text == "the key it has its share, 2 unfinished requests"
    assert not [each for each in desk.ask(one, 0) if isinstance(each, messages.Refused)]
    desk.say(messages.Finish(two, [0, 1]))
    assert not desk.ask(one, 1)
    desk.know("submit", OTHER, "another")
    assert not desk.ask(desk.session(OTHER, b"x" * 16), route=OTHER)


def test_what_a_key_had_unfinished_was_counted_over_all_sessions_at_each_request(monkeypatch):
    desk = Desk(queue=10, queue_bytes=1 << 20)
    desk.know("submit", share=0.5)
    session, sessions = desk.session(), desk.router.sessions.known
    looked: list[str] = []

    class Watched(OrderedDict[Any, Any]):
        def values(self) -> Any:
            looked.append("at all of them")
            return super().values()

    monkeypatch.setattr(desk.router.sessions, "known", Watched(sessions))
    assert not desk.ask(session)
    assert not looked


def test_what_a_key_has_unfinished_is_what_all_of_its_sessions_hold():
    desk = Desk(queue=10, queue_bytes=1 << 20, window=3)
    desk.know("submit", share=0.9)

    def unfinished() -> int:
        sessions = [*desk.router.sessions.known.values()]
        owner = desk.router.rights.owner(ROUTE)
        assert {each.owner for each in sessions} <= {owner}
        assert owner.unfinished == sum(len(each.tickets) for each in sessions)
        return owner.unfinished

    one, two = desk.session(), desk.session(nonce=bytes(16))
    assert desk.session() == one, "of a second hello"
    for sequence in range(4):  # the window is smaller
        desk.ask(one, sequence)
        desk.ask(one, sequence)
    assert unfinished() == 3
    asked = messages.Request(two, 0, bytes(32), None, 1, None, None, None, b"eval", b"key")
    assert not desk.say(asked, body=[b"body"])
    assert desk.say(asked._replace(sequence=1, act=ATTACH, key=b""), body=[b""]), "no key"
    assert unfinished() == 4
    desk.say(messages.Finish(one, [1, 2]))
    assert unfinished() == 3
    desk.say(messages.Goodbye(one))
    assert unfinished() == 1
    desk.say(messages.Cancel(two, 0))
    assert not unfinished()


def test_g9_a_request_that_ran_was_said_not_to_run_once_its_key_had_lost_a_right():
    """Who sent it again was refused, as if it had never been seen."""
    desk = Desk()
    desk.know("submit")
    session = desk.session()
    desk.ask(session)
    desk.know("watch")
    assert desk.ask(session) == []
    assert "may not submit" in refused_for(desk.ask(session, 1))
    desk.say(messages.Finish(session, [0, 1]))
    (spent,) = desk.ask(session)
    assert (spent.code, spent.sequence) == ("finished", 0)
