"""Room for calls: in order, never more than there is, never lost."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import trio
import trio.testing

pytest.importorskip("hypercorn")

from trio_envserve.doors.http.problems import Problem  # needs the extra
from trio_envserve.doors.http.rooms import Rooms  # needs the extra
from trio_envserve.doors.http.runs import Numbers  # needs the extra


async def test_who_waits_comes_in_order_and_before_who_does_not_wait():
    rooms, came, held = Rooms(2, 1.0), list[int](), ExitStack()
    rooms.take(2, held)
    async with trio.open_nursery() as nursery:

        async def wait(number: int) -> None:
            with ExitStack() as mine:
                await rooms.wait(mine, "rows")
                came.append(number)
                await trio.lowlevel.checkpoint()
                with pytest.raises(Problem, match="2 calls"):
                    rooms.check(2)

        for number in range(4):
            nursery.start_soon(wait, number)
            await trio.testing.wait_all_tasks_blocked()
        held.close()
        with pytest.raises(Problem, match="2 calls"):
            rooms.take(1, ExitStack())
    assert [set(came[:2]), set(came[2:])] == [{0, 1}, {2, 3}]  # two come at once
    rooms.check(2)


async def test_who_waits_for_the_share_of_its_namespace_is_in_nobodys_way():
    rooms, held, came = Rooms(4, 0.5), ExitStack(), list[str]()
    rooms.take(2, held, "full")
    with pytest.raises(Problem, match="namespace full"):
        rooms.check(1, "full")
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            with ExitStack() as mine:
                await rooms.wait(mine, "full")
                came.append("full")

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        with ExitStack() as others:
            rooms.take(1, others, "other")
            rooms.take(1, others)
        assert came == []
        held.close()
    assert came == ["full"]
    rooms.check(4)


async def test_who_gives_up_waiting_takes_no_room_along():
    rooms, held = Rooms(1, 1.0), ExitStack()
    rooms.take(1, held)
    with trio.move_on_after(0):
        await rooms.wait(ExitStack(), "rows")

    async def wait() -> None:
        with ExitStack() as mine:
            await rooms.wait(mine, "rows")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        held.close()  # it has the room already when it is cancelled
        nursery.cancel_scope.cancel()
    rooms.check(1)


def test_the_lowest_number_that_is_free_comes_next():
    numbers = Numbers()
    assert [numbers.take() for _ in range(3)] == [0, 1, 2]
    assert [numbers.give_back(number) for number in (2, 0)] == [False, False]
    assert [numbers.take(), numbers.take(), numbers.take()] == [0, 2, 3]
    assert [numbers.give_back(number) for number in range(4)] == [False, False, False, True]
