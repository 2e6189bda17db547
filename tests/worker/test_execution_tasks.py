"""The tasks that run executions, without a worker around them."""

from __future__ import annotations

import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from trio_envserve.worker.execution_tasks import TURN_S, ExecutionTasks

Code = Callable[["Rig"], Awaitable[Any]]
CLEAN, UNCLEAN = "clean", "unclean"


async def at_once(_: Rig) -> str:
    """An execution that does not wait."""
    return CLEAN


class Rig:
    """Execution tasks whose executions are functions of a test."""

    def __init__(self) -> None:
        self.parking = SimpleNamespace(is_behind=False)
        self.done = trio.Event()
        parking: Any = self.parking
        self.tasks = ExecutionTasks(self.execute, parking, self.done)
        self.ran: list[trio.lowlevel.Task] = []
        """The task of each execution that has begun."""
        self.gate = trio.Event()

    async def execute(
        self, task: trio.lowlevel.Task, context: contextvars.Context, now_s: float, until_s: float
    ) -> float | None:
        """As a shell does: others are woken before an execution begins."""
        assert task is trio.lowlevel.current_task()
        assert until_s - trio.current_time() == pytest.approx(TURN_S)
        code: Any = self.tasks.arrived.popleft()
        self.tasks.wake()
        self.ran.append(task)
        task.name = "busy"
        how = await code(self)
        if how == UNCLEAN:
            return None
        return float(how) if isinstance(how, float) else now_s

    def arrive(self, *codes: Code) -> None:
        """These executions are dispatched together."""
        given: Any = codes
        self.tasks.arrived.extend(given)
        self.tasks.wake()

    async def run(self, *codes: Code) -> list[trio.lowlevel.Task]:
        """The tasks that ran these, as far as they have begun when nothing goes on by itself."""
        before = len(self.ran)
        self.arrive(*codes)
        await trio.testing.wait_all_tasks_blocked()
        return self.ran[before:]

    async def wait(self, _: Rig) -> str:
        """An execution that waits, as each does, in a scope of its own."""
        with trio.CancelScope(shield=True):
            await self.gate.wait()
        return CLEAN


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[Rig, trio.Nursery]]:
    rig = Rig()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            rig.tasks.open(nursery)
            yield rig, nursery
            nursery.cancel_scope.cancel()


def executing(nursery: trio.Nursery) -> list[trio.lowlevel.Task]:
    """The tasks of all execution nurseries in this one."""
    inner = [each for task in nursery.child_tasks for each in task.child_nurseries]
    return [task for each in inner for task in each.child_tasks]


async def test_a_task_is_woken_for_what_has_arrived_and_for_nothing_else(autojump_clock):
    async with opened() as (rig, nursery):
        rig.tasks.wake()
        await trio.testing.wait_all_tasks_blocked()
        assert not nursery.child_tasks
        rig.parking.is_behind = True
        assert await rig.run(at_once) == []
        assert not nursery.child_tasks
        rig.parking.is_behind = False
        rig.tasks.wake()
        rig.tasks.wake()  # one is coming
        await trio.testing.wait_all_tasks_blocked()
        assert len(rig.ran) == len(executing(nursery)) == 1


async def test_one_task_runs_what_does_not_wait_and_is_used_again(autojump_clock):
    async with opened() as (rig, nursery):
        first = (await rig.run(at_once, at_once, at_once))[0]
        assert rig.ran == [first] * 3
        assert first.name == "idle"
        # Another one was woken, and found nothing: the last one in is the first one out.
        assert len(executing(nursery)) == 2
        (again,) = await rig.run(at_once)
        assert again in executing(nursery)
        assert len(executing(nursery)) == 2


async def test_what_waits_keeps_no_other_waiting(autojump_clock):
    async with opened() as (rig, nursery):
        ran = await rig.run(rig.wait, rig.wait, at_once, rig.wait)
        assert len(ran) == 4
        assert len({ran[0], ran[1], ran[3]}) == 3
        assert len({task.parent_nursery for task in ran}) == 1
        # One that has waited is not the intake any more, and leaves the rest to it.
        busy = len(executing(nursery))
        rig.gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert {task.name for task in executing(nursery)} == {"idle"}
        assert len(await rig.run(at_once)) == 1
        assert len(executing(nursery)) == busy


async def test_whether_a_task_goes_on(autojump_clock):
    asked: list[bool] = []

    async def ask(rig: Rig) -> str:
        task, tasks = trio.lowlevel.current_task(), rig.tasks
        asked.append(tasks.may_take(task, 1.0, 2.0))  # nothing has arrived
        tasks.arrived.append(at_once)  # type: ignore[arg-type]  # as of this test
        asked.append(tasks.may_take(task, 1.0, 2.0))
        asked.append(tasks.may_take(task, 2.0, 2.0))
        parent = trio.lowlevel.current_root_task()
        assert parent is not None
        asked.append(tasks.may_take(parent, 1.0, 2.0))
        rig.parking.is_behind = True
        asked.append(tasks.may_take(task, 1.0, 2.0))
        rig.parking.is_behind = False
        tasks.closing = True
        asked.append(tasks.may_take(task, 1.0, 2.0))
        tasks.arrived.clear()
        return CLEAN

    async with opened() as (rig, _):
        await rig.run(ask)
    assert asked == [False, True, False, False, False, False]


# -- what fails an execution nursery --------------------------------------------------------


async def fails_its_nursery(error: BaseException, rig: Rig) -> str:
    """As code that leaves a nursery open does, when its task has ended."""

    async def fail() -> None:
        raise error

    nursery = trio.lowlevel.current_task().parent_nursery
    assert nursery is not None
    nursery.start_soon(fail)
    return CLEAN


async def breaks(rig: Rig) -> str:
    return await fails_its_nursery(ValueError("left"), rig)


async def test_a_failed_execution_nursery_keeps_its_executions_and_another_takes_the_next(
    autojump_clock,
):
    async def looks(_: Rig) -> str:
        await trio.lowlevel.checkpoint()  # raises where all are cancelled
        return CLEAN

    async with opened() as (rig, _):
        (idle,) = await rig.run(at_once)
        waits, breaking = await rig.run(rig.wait, breaks)
        assert waits.name == "busy"
        (after,) = await rig.run(looks)
        assert after.parent_nursery is not waits.parent_nursery
        assert after.name == "idle"
        assert after not in (idle, breaking)
        rig.gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert not rig.done.is_set()


async def test_an_interrupt_in_an_execution_nursery_is_passed_on(autojump_clock):
    async def interrupted(rig: Rig) -> str:
        return await fails_its_nursery(KeyboardInterrupt(), rig)

    with pytest.RaisesGroup(KeyboardInterrupt, flatten_subgroups=True):
        async with opened() as (rig, _):
            await rig.run(interrupted)


async def test_an_error_of_the_worker_itself_ends_it(autojump_clock):
    async def broken(_: Rig) -> str:
        raise ZeroDivisionError

    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with opened() as (rig, _):
            rig.arrive(rig.wait, broken)
            # The nursery waits for the others, which are shielded: so all is told by this.
            await rig.done.wait()
            rig.gate.set()
            await trio.sleep_forever()
