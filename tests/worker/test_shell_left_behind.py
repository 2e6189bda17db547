"""What code leaves behind in its task is not felt by others.

An environment that leaves a nursery open in its task (an ``__aenter__`` without its
``__aexit__``, an async generator with one inside) makes trio itself complain, outside of
everything that catches what environments raise: the worker ended, with all executions on it.
"""

from __future__ import annotations

import asyncio
import contextvars

import pytest
import trio
import trio.testing

from tests.worker import hostile_code
from tests.worker.test_shell import opened
from trio_envserve.core import messages
from trio_envserve.core.terms import Status

TRIO_NOTICES = tuple(map(int, trio.__version__.split(".")[:2])) >= (0, 31)
"""Earlier ones take a task that leaves its nursery open for one that is done."""


variable = contextvars.ContextVar("variable", default=0)


async def leave_scope(rollout):
    trio.CancelScope(shield=True).__enter__()
    return "left"


async def leave_cancelled_scope(rollout):
    trio.CancelScope().__enter__().cancel()
    return "left"


strays: list[str] = []
"""Requests whose nursery has a task that has not ended."""


async def leave_nursery(rollout):
    async def stray():
        try:
            await trio.sleep_forever()
        finally:
            strays.remove(rollout.request)

    strays.append(rollout.request)
    nursery = await trio.open_nursery().__aenter__()
    nursery.start_soon(stray)
    return "left"


async def leave_nursery_without_its_scope(rollout):
    nursery = await trio.open_nursery().__aenter__()
    nursery.start_soon(trio.sleep_forever)
    nursery.cancel_scope.__exit__(None, None, None)
    return "left"


async def leave_nursery_with_a_group(rollout):
    """trio asks groups to split, when they pass a nursery that is cancelled."""

    async def fail():
        raise hostile_code.exceptions(asyncio.CancelledError)["a group's parts"]

    nursery = await trio.open_nursery().__aenter__()
    nursery.start_soon(fail)
    return "left"


async def leave_variable(rollout):
    before = variable.get()
    variable.set(1)
    return before


async def fail_in_a_cancelled_scope(rollout):
    trio.CancelScope().__enter__().cancel()
    raise ValueError("x")


async def fail_with_a_nursery(rollout):
    await trio.open_nursery().__aenter__()
    raise ValueError("x")


async def leak_cancelled(rollout):
    """Raises a Cancelled that is of no scope that is still there."""
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.sleep_forever()
        except trio.Cancelled as exc:
            leaked = exc
    raise leaked


LEAVES = {
    each.__name__: each
    for each in (
        leave_scope, leave_cancelled_scope, leave_nursery,
        leave_nursery_without_its_scope, leave_nursery_with_a_group, leave_variable,
        fail_in_a_cancelled_scope, fail_with_a_nursery, leak_cancelled,
    )
}  # fmt: skip


@pytest.mark.parametrize("retries", [0, 1])
@pytest.mark.parametrize("what", LEAVES)
async def test_what_one_leaves_behind_is_not_felt_by_others(what, retries, autojump_clock):
    gate = trio.Event()

    async def body(rollout):
        if rollout.input == "wait":
            await gate.wait()
            await trio.sleep(1)
            return "waited"
        return await LEAVES[rollout.input](rollout)

    async with opened(body) as (router, _):
        waiting = [router.dispatch("wait")]
        strange = [router.dispatch(what, max_retries=retries)]
        waiting.append(router.dispatch("wait"))
        strange_ends = await router.outcomes(1)
        await trio.testing.wait_all_tasks_blocked()
        # What it held has ended: an execution leaves nothing running.
        assert not strays or not TRIO_NOTICES
        waiting.append(router.dispatch("wait"))
        strange.append(router.dispatch(what, max_retries=retries))
        strange_ends |= await router.outcomes(1)
        waiting.append(router.dispatch("wait"))
        gate.set()
        ends = await router.outcomes(len(waiting))

    assert ends == dict.fromkeys(waiting, (Status.RESULT, "waited"))
    assert sorted(strange_ends) == strange
    for status, value in strange_ends.values():
        if what == "leave_variable":
            assert (status, value) == (Status.RESULT, 0)
        elif what in ("leave_scope", "leave_cancelled_scope"):
            assert (status, value) == (Status.RESULT, "left")
        elif not what.startswith("leave_nursery") or TRIO_NOTICES:
            assert (status, value.code) == (Status.ERROR, "rollout-failed")


async def test_a_cancel_is_seen_through_what_the_code_left_open(autojump_clock):
    async def body(rollout):
        trio.CancelScope(shield=rollout.input == "shielded").__enter__()
        if rollout.input == "shielded":
            while not gate.is_set():
                await gate.wait()
            raise ValueError("after the cancel")
        await trio.sleep_forever()

    gate = trio.Event()
    async with opened(body) as (router, _):
        numbers = [router.dispatch("shielded"), router.dispatch("")]
        await trio.testing.wait_all_tasks_blocked()
        router.send(messages.Stop([numbers[0], numbers[-1] + 1]))
        ends = await router.outcomes(1)
        gate.set()
        ends |= await router.outcomes(1)
    assert {status for status, _ in ends.values()} == {Status.CANCELLED}


async def test_a_task_in_which_something_was_left_behind_takes_no_other_execution():
    async with opened(leave_variable) as (router, _):
        for _ in range(20):
            router.dispatch(None)
        ends = await router.outcomes(20)
    assert set(ends.values()) == {(Status.RESULT, 0)}


async def test_a_cancel_is_not_felt_by_the_next_execution_in_the_same_task(autojump_clock):
    """They share a scope while none of them is cancelled."""

    async def body(rollout):
        if rollout.input == "cancelled":
            with trio.CancelScope(shield=True):
                await gate.wait()
        else:
            await trio.lowlevel.checkpoint()
        return id(trio.lowlevel.current_task())

    tasks_together = 0
    async with opened(body) as (router, _):
        for _ in range(40):  # the order in which tasks of one turn run is drawn
            gate = trio.Event()
            first = router.dispatch("cancelled")
            await trio.testing.wait_all_tasks_blocked()
            router.send(messages.Stop([first, first + 1]))
            second = router.dispatch("next")
            gate.set()
            ends = await router.outcomes(2)
            assert ends[first][0] is ends[second][0] is Status.RESULT
            tasks_together += ends[first] == ends[second]
    assert tasks_together


@pytest.mark.parametrize("how", ["retire", "cancel"])
@pytest.mark.parametrize("first", ["", "leave_nursery"])
async def test_all_are_cancelled_when_the_worker_ends(how, first, autojump_clock):
    ended = []

    async def body(rollout):
        if rollout.input:
            return await LEAVES[rollout.input](rollout)
        try:
            await trio.sleep_forever()
        finally:
            ended.append(rollout.request)

    async with opened(body) as (router, nursery):
        for what in ("", first, ""):
            router.dispatch(what)
            await trio.testing.wait_all_tasks_blocked()
        router.dispatch("")
        await trio.testing.wait_all_tasks_blocked()
        if how == "cancel":
            nursery.cancel_scope.cancel()
    assert len(ended) == (3 if first else 4)
