"""The door at a server that has less room than the door."""

from __future__ import annotations

from typing import Any

from tests.doors.verifiers.door import asking, open_door
from trio_envserve.client import Client
from trio_envserve.core.limits import KIB, KeyLimits

UNREAD = b"unread"


async def environment(rollout: Any) -> Any:
    """What was asked as ``unread`` has a large outcome."""
    run = rollout.input["run"]
    size = 200 * KIB if run == UNREAD else 1
    return {"state": {"deltas": [], "reply": bytes(size), "traces": []}}


async def test_outcomes_that_nobody_reads_held_up_all_runs_until_their_lease_was_over():
    keys = KeyLimits(retained_bytes=300 * KIB)
    async with open_door(environment, keys=keys) as door:
        async with asking(door) as lost:
            for number in range(4):
                lost.run(b"%d" % number, UNREAD)
            for _ in range(4):
                await lost.hear()
        async with asking(door) as peer:
            peer.run(b"a")
            heard: list[bytes] = []
            while heard[:1] != [b"a"]:
                heard = await peer.hear()
            assert heard == [b"a", b"reply", b"\0"]


async def test_what_was_cancelled_when_it_had_just_ended_was_retained_for_nobody(monkeypatch: Any):
    forgotten: list[str] = []
    forget = Client.forget

    async def seen(client: Client, key: str, **options: Any) -> Any:
        forgotten.append(key)
        return await forget(client, key, **options)

    monkeypatch.setattr(Client, "forget", seen)
    async with open_door(environment) as door, asking(door) as peer:
        peer.run(b"a")
        peer.cancel(b"a")
        for _ in range(2):
            await peer.hear()
        peer.run(b"b")
        await peer.hear()
    assert forgotten[:1] == ["a"]
