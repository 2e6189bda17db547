"""A bound that several share: in order, never more than there is, never lost."""

from __future__ import annotations

import trio
import trio.testing

from trio_envserve.doors.bounds import Bound


def test_a_name_takes_its_share_of_what_the_others_leave_and_one_in_any_case():
    bound = Bound(4, 0.5)
    bound.take(2, "full")
    assert not bound.allows(1, "full")
    assert bound.allows(1, "other")
    assert not bound.allows(2, "other")
    bound.take(1, "other")
    assert bound.allows(1)
    assert bound.allows(1, "third")  # less than one is left of its share
    bound.take(1)
    assert not bound.allows(1, "fourth")
    bound.give(2, "full")
    assert bound.allows(1, "fourth")


async def test_who_waits_comes_in_order_and_before_who_does_not_wait():
    bound, came = Bound(2), list[int]()
    bound.take(2)
    async with trio.open_nursery() as nursery:

        async def wait(number: int) -> None:
            await bound.wait(1, "rows")
            came.append(number)
            await trio.lowlevel.checkpoint()
            assert not bound.allows(2)
            bound.give(1, "rows")

        for number in range(4):
            nursery.start_soon(wait, number)
            await trio.testing.wait_all_tasks_blocked()
        bound.give(2)
        assert not bound.allows(1)
    assert [set(came[:2]), set(came[2:])] == [{0, 1}, {2, 3}]  # two come at once
    assert bound.taken == 0


async def test_who_waits_for_its_share_is_in_nobodys_way():
    bound, came = Bound(4, 0.5), list[str]()
    bound.take(2, "full")
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            await bound.wait(1, "full")
            came.append("full")

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        for name in ("other", ""):
            bound.take(1, name)
            bound.give(1, name)
        assert came == []
        bound.give(2, "full")
    assert came == ["full"]


async def test_who_wants_little_does_not_wait_behind_who_wants_more_than_there_is():
    bound, came = Bound(4), list[int]()
    bound.take(3)

    async def wait(size: int) -> None:
        await bound.wait(size, "rows")
        came.append(size)

    async with trio.open_nursery() as nursery:
        gives_up = trio.CancelScope()

        async def want_all() -> None:
            with gives_up:
                await wait(3)

        nursery.start_soon(want_all)
        await trio.testing.wait_all_tasks_blocked()
        await wait(1)
        nursery.start_soon(wait, 2)
        await trio.testing.wait_all_tasks_blocked()
        bound.give(2)
        await trio.testing.wait_all_tasks_blocked()
        assert came == [1, 2]
        gives_up.cancel()
    assert bound.taken == 4


async def test_who_is_cancelled_when_it_has_its_room_already_has_it():
    bound = Bound(1)
    bound.take(1)

    async def wait() -> None:
        await bound.wait(1, "rows")
        bound.give(1, "rows")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        bound.give(1)
        nursery.cancel_scope.cancel()
    assert bound.taken == 0
