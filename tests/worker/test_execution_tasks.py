"""Executions: how many start in one turn, and that what their code leaves behind ends with them.

An environment that leaves a nursery open in its task (an ``__aenter__`` without its
``__aexit__``, an async generator with one inside) makes trio itself complain, outside of
everything that catches what environments raise: the worker ended, with all executions on it.
"""

from __future__ import annotations

import asyncio
import contextvars
import tempfile
import threading
import types
from collections import Counter
from typing import Any

import pytest
import trio
import trio.testing

from tests.worker import hostile_code
from tests.worker.test_shell import WIRE, opened
from trio_envserve.core import messages, values
from trio_envserve.core.limits import MIB
from trio_envserve.core.terms import RequestId, Status, Verdict
from trio_envserve.core.worker import BeginRun
from trio_envserve.envs import RolloutRequest, load
from trio_envserve.models import registry
from trio_envserve.models.interface import Completion, RolloutModel
from trio_envserve.worker.execution_tasks import PORTION, TURN_S, ExecutionTasks
from trio_envserve.worker.outcomes import OutcomeMaker
from trio_envserve.worker.parking import Parking
from trio_envserve.worker.runners import ExecutionContext, open_runner
from trio_envserve.worker.saves import Saves
from trio_envserve.worker.stacks import tasks_below

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


async def fail_beside_its_task(rollout):
    async def fail():
        raise ValueError("x")

    nursery = trio.lowlevel.current_task().parent_nursery
    assert nursery is not None
    nursery.start_soon(fail)
    return "left"


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
        fail_in_a_cancelled_scope, fail_with_a_nursery, fail_beside_its_task, leak_cancelled,
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
        else:
            assert (status, value.code) == (Status.ERROR, "rollout-failed")
            is_told = value.message == "the code left a nursery open in its task"
            assert is_told == what.startswith("leave_nursery")


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


async def test_interrupt_beside_executions_is_passed_on(autojump_clock):
    async def interrupted():
        raise KeyboardInterrupt

    async def body(rollout):
        nursery = trio.lowlevel.current_task().parent_nursery
        assert nursery is not None
        nursery.start_soon(interrupted)

    with pytest.RaisesGroup(KeyboardInterrupt, flatten_subgroups=True):
        async with opened(body) as (router, _):
            router.dispatch(None)
            await trio.sleep_forever()


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


# -- their beginnings -----------------------------------------------------------------------


class Turns(trio.abc.Instrument):
    """Counts the turns of the loop."""

    now = 0

    def before_io_wait(self, timeout):
        self.now += 1


@pytest.mark.parametrize(
    ("blocked_s", "starts"),
    [
        (0.0, [1, 2, 4, 8, 16, 32, 64, 128, PORTION, PORTION, 5]),
        (TURN_S / 5.5, [1, 2, 4, 5, 5, 5]),
        (2 * TURN_S, [1] * 5),
    ],
)
async def test_executions_start_in_portions_so_that_the_loop_goes_on(
    blocked_s, starts, autojump_clock
):
    turns = Turns()
    began: Counter[int] = Counter()

    async def body(rollout):
        began[turns.now] += 1
        autojump_clock.jump(blocked_s)

    trio.lowlevel.add_instrument(turns)
    async with opened(body) as (router, _):
        for _ in range(sum(starts)):
            router.dispatch(None)
        await router.outcomes(sum(starts))
    trio.lowlevel.remove_instrument(turns)
    assert list(began.values()) == starts


@pytest.mark.parametrize("closes", [True, False])
async def test_dispatch_that_comes_when_the_worker_ends_is_not_run(closes, autojump_clock):
    """Without a word of the worker that it ends, an execution goes on to its outcome."""
    began, ended = [], []

    async def body(rollout):
        began.append(rollout.input)
        await trio.sleep(5.0)

    async with open_runner(load(body), threads=1) as runner, trio.open_nursery() as nursery:
        outcomes = OutcomeMaker(runner, worker="w", incarnation=b"i" * 16, wire=WIRE)
        saves = Saves(lambda number, save: None, WIRE, 1000)
        tasks = ExecutionTasks(
            outcomes, Parking(lambda number, view: None, MIB),
            lambda run: ExecutionContext(saves=saves.begin(run)),
            lambda *end: ended.append(end), trio.Event(),
        )  # fmt: skip
        nursery.start_soon(tasks.run)
        for number in range(2):
            asked = RolloutRequest(kind="rollout", input=number, endpoint="oracle", model_name="m")
            run = BeginRun(
                number, RequestId(b"s" * 16, number), "c", values.encode(asked.to_body())
            )
            tasks.add(run)
            await trio.testing.wait_all_tasks_blocked()
            if closes:
                tasks.close()
        if closes:
            tasks.cancel(1)  # it never began
        nursery.cancel_scope.cancel()
    assert began == ([0] if closes else [0, 1])
    told = [(run.number, outcome and outcome[0]) for run, outcome, _ in ended]
    assert sorted(told) == ([(0, None)] if closes else [(0, Status.RESULT), (1, Status.RESULT)])


async def test_execution_that_waits_for_the_disk_can_be_cancelled(monkeypatch):
    """It was told of only when the disk had caught up."""
    slow, began = threading.Event(), []

    def held_up(**options):
        slow.wait()
        return opened_file(**options)

    async def large(rollout):
        began.append(rollout.input)
        return bytes(100_000)

    opened_file = tempfile.TemporaryFile
    monkeypatch.setattr(tempfile, "TemporaryFile", held_up)
    async with opened(large, patience_s=60, worker_held_bytes=1) as (router, _):
        try:
            router.dispatch("first")
            await trio.testing.wait_all_tasks_blocked()
            second = router.dispatch("second")
            await trio.testing.wait_all_tasks_blocked()
            router.send(messages.Stop([second, second + 1]))
            ends: dict[int, tuple[Status, Any]] = {}
            while second not in ends:
                ends |= await router.outcomes(1)
        finally:
            slow.set()
    status, error = ends[second]
    assert (status, error.verdict) == (Status.CANCELLED, Verdict.DID_NOT_RUN)
    assert began == ["first"]


# -- working time -----------------------------------------------------------------------


def limited(router, given, working_s, late_s=None):
    return router.dispatch(given, late_s, working_s=working_s)


async def test_execution_that_works_for_too_long_has_run_and_failed(autojump_clock):
    ended = []

    async def body(rollout):
        try:
            await trio.sleep(rollout.input)
        finally:
            ended.append(rollout.input)
        return "in time"

    async with opened(body, patience_s=5000) as (router, nursery):
        await trio.testing.wait_all_tasks_blocked()
        (worker,) = nursery.child_tasks
        before = Counter(task.name for task in tasks_below(worker))
        numbers = [limited(router, given_s, 10.0) for given_s in (9.0, 1000.0)]
        limited(router, 1.0, 4000.0)
        stopped = limited(router, 2000.0, 4000.0)
        await trio.testing.wait_all_tasks_blocked()
        router.send(messages.Stop([stopped, stopped + 1]))
        found = await router.outcomes(4)
        await trio.testing.wait_all_tasks_blocked()
        assert Counter(task.name for task in tasks_below(worker)) == before, "no limit is left"
    assert found[numbers[0]] == (Status.RESULT, "in time")
    status, error = found[numbers[1]]
    assert (status, error.code, error.verdict) == (
        Status.ERROR, "execution-limit", Verdict.RAN_AND_FAILED,
    )  # fmt: skip
    assert error.message.startswith("the 10 s that the call lets an execution work (its working_s)")
    assert error.duration_s == pytest.approx(10.0)
    assert ended == [2000.0, 1.0, 9.0, 1000.0]


class Waiting(RolloutModel):
    """A model whose calls wait for a minute, and are answered after a second."""

    async def complete_for(self, asker, messages, **how):
        wait = types.SimpleNamespace(since_s=trio.current_time(), sent_s=None)
        asker.endpoint_waits.begin(wait)
        try:
            await trio.sleep(60.0)
            wait.sent_s = trio.current_time()
            await trio.sleep(1.0)
        finally:
            asker.endpoint_waits.end(wait, trio.current_time())
        return Completion("x")

    async def aclose(self):
        await trio.lowlevel.checkpoint()


async def test_waits_for_the_endpoint_are_no_work(monkeypatch, autojump_clock):
    monkeypatch.setattr(registry, "BUILT_IN", {"oracle": lambda endpoint: Waiting()})

    async def body(rollout):
        for _ in range(rollout.input):
            await rollout.ask([{"role": "user", "content": "x"}])
            await trio.sleep(1.0)
        return {}

    async with opened(body, patience_s=1e9) as (router, _):
        await trio.sleep(100.0)
        numbers = [limited(router, calls, 10.5) for calls in (4, 9)]
        found = await router.outcomes(2)
    status, value = found[numbers[0]]
    assert (status, value["usage"]["waited_s"]) == (Status.RESULT, 4 * 60.0)
    status, error = found[numbers[1]]
    assert (status, error.code) == (Status.ERROR, "execution-limit")
    assert "(it has waited for the model's endpoint for 360.0 s besides)" in error.message
    assert error.duration_s == pytest.approx(5 * 62.0 + 60.5, abs=0.1)


LARGE = [[number / 3, f"{number}"] * 60 for number in range(1_000)]
"""Takes long to encode."""


@pytest.mark.parametrize("value", ["done", LARGE], ids=["small", "large"])
async def test_value_that_is_returned_all_the_same_counts(value, autojump_clock):
    """A large one was lost: its call was told that it was cancelled."""

    async def body(rollout):
        with trio.CancelScope(shield=True):
            await trio.sleep(20.0)
        return value

    async with opened(body, patience_s=1e9) as (router, _):
        number = limited(router, None, 10.0)
        found = await router.outcomes(1)
    assert found[number] == (Status.RESULT, value)


async def test_cancel_that_comes_before_the_limit_of_work_is_a_cancel(autojump_clock):
    async def body(rollout):
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(20.0)

    async with opened(body, patience_s=5000) as (router, _):
        number = limited(router, None, 10.0)
        await trio.sleep(5.0)
        router.send(messages.Stop([number, number + 1]))
        found = await router.outcomes(1)
    assert found[number][0] is Status.CANCELLED


async def test_limit_of_work_holds_beside_code_that_left_a_nursery_open(autojump_clock):
    """The nursery of all executions failed, and the limit must not end with it."""

    async def body(rollout):
        if rollout.input == "leave":
            return await leave_nursery(rollout)
        await trio.sleep_forever()

    async with opened(body, patience_s=5000) as (router, _):
        number = limited(router, "stay", 10.0)
        await trio.sleep(1.0)
        router.dispatch("leave")
        found = await router.outcomes(2)
    assert found[number][1].code == "execution-limit"
