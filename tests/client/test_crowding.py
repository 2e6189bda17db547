"""Which keys of a door would have room if less were retained."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tests.core.helpers import limit_keys
from tests.core.keyed import Keyed
from trio_envserve.client import Client
from trio_envserve.client.crowding import let_pass
from trio_envserve.core.key_records import KeyName


def crowded(pair: Keyed, namespace: str = "default", *may_wait: str) -> list[str]:
    client: Any = SimpleNamespace(_driver=SimpleNamespace(core=pair.client))
    return let_pass(cast(Client, client), namespace, may_wait.__contains__)


def held(pair: Keyed) -> dict[str, bool]:
    """The codes of what is refused for now, and whether it may wait."""
    return {call.held_as: call.may_wait for call in pair.client.calls.held.values()}


def test_retained_outcomes_leave_no_room():
    pair = Keyed()
    limit_keys(pair, generations=1, namespace_share=1.0)
    pair.call()
    pair.call(name=KeyName(b"default", b"another"))
    assert crowded(pair, "default", "another") == ["another"]
    assert crowded(pair, "other") == []
    assert held(pair) == {"keys-full": True}


def test_room_was_made_in_vain_where_the_queue_for_keyed_work_was_full():
    pair = Keyed()
    limit_keys(pair, namespaces=1)
    pair.call(name=KeyName(b"other", b"key"))
    pair.call()
    assert crowded(pair, "default", "key") == []
    assert held(pair) == {"key-queue-full": True}


def test_calls_held_for_another_reason_are_left_alone():
    pair = Keyed()
    limit_keys(pair, generations=1, namespace_share=1.0)
    pair.call()
    pair.call(name=KeyName(b"default", b"another"))
    [(number, call)] = pair.client.calls.held.items()
    call.held_as = "shutting-down"
    assert crowded(pair, "default", "another") == []
    pair.client.calls.held[number] = cast(Any, SimpleNamespace(asks_for=None, held_as="keys-full"))
    assert crowded(pair, "default", "another") == []
    assert not call.may_wait
