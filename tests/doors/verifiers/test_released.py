"""The server keeps nothing of a run once the door has its outcome, and has little room for it."""

from __future__ import annotations

from typing import Any

import trio
import trio.lowlevel

from tests.doors.verifiers.door import asking, open_door
from trio_envserve.client.shell import release
from trio_envserve.core.limits import KIB, KeyLimits
from trio_envserve.doors.verifiers import door

UNREAD, ENDLESS = b"unread", b"endless"


async def environment(rollout: Any) -> Any:
    """What was asked as ``unread`` has a large outcome, what is ``endless`` none."""
    run = rollout.input["run"]
    if run == ENDLESS:
        await trio.sleep_forever()
    size = 200 * KIB if run == UNREAD else 1
    return {"state": {"deltas": [], "reply": bytes(size), "traces": []}}


async def test_outcomes_that_nobody_reads_held_up_all_runs_until_their_lease_was_over():
    keys = KeyLimits(retained_bytes=300 * KIB)
    async with open_door(environment, keys=keys) as opened:
        async with asking(opened) as lost:
            for number in range(4):
                lost.run(b"%d" % number, UNREAD)
            for _ in range(4):
                await lost.hear()
        async with asking(opened) as peer:
            peer.run(b"a")
            heard: list[bytes] = []
            while heard[:1] != [b"a"]:
                heard = await peer.hear()
            assert heard == [b"a", b"reply", b"\0"]


async def test_what_was_cancelled_when_it_had_just_ended_was_retained_for_nobody(monkeypatch: Any):
    released: list[str] = []

    async def seen(client: Any, key: str, **options: Any) -> Any:
        released.append(key)
        return await release(client, key, **options)

    monkeypatch.setattr(door, "release", seen)
    async with open_door(environment) as opened, asking(opened) as peer:
        peer.run(b"a")
        peer.cancel(b"a")
        for _ in range(2):
            await peer.hear()
        peer.run(b"b")
        await peer.hear()
    assert released[:1] == ["a"]


async def test_what_the_door_had_forgotten_left_no_room_to_forget_more():
    keys = KeyLimits(generations=2, namespace_share=1.0, commands=1)
    async with open_door(environment, keys=keys) as opened, asking(opened) as peer:
        for number in range(8):  # the key of each makes room for the next but one
            peer.run(b"%d" % number)
            await peer.hear()


async def test_a_flood_of_cancels_held_up_what_was_to_be_forgotten(monkeypatch: Any):
    """Each cancelled run is released, too, and thousands of them were before others."""
    held, released = trio.Event(), []

    async def hold(client: Any, key: str, **options: Any) -> None:
        released.append(key)
        if key.startswith("cancelled"):
            await held.wait()

    monkeypatch.setattr(door, "release", hold)
    monkeypatch.setattr(door, "MOST_LATE", 8)
    async with open_door(environment) as opened, asking(opened) as peer:
        for number in range(20):
            peer.run(b"cancelled-%d" % number, ENDLESS)
            peer.cancel(b"cancelled-%d" % number)
        for _ in range(40):
            await peer.hear()
        peer.run(b"a")
        await peer.hear()
        while "a" not in released:
            await trio.lowlevel.checkpoint()
        assert len(released) == 9
        held.set()
