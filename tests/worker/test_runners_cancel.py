"""Cancelling: it reaches the code, and the execution ends when the code does."""

import asyncio
import threading

import pytest
import trio
import trio.testing

from tests.worker.helpers import on_asyncio, opened, request
from trio_envserve.envs import RolloutCancelled, load
from trio_envserve.models import open_models
from trio_envserve.worker.failures import EnvironmentFailure


class Witness:
    """What a rollout, wherever it runs, and its test tell each other."""

    def __init__(self):
        self._token = trio.lowlevel.current_trio_token()
        self.begun = trio.Event()
        self.cleaning = trio.Event()
        self.ended = threading.Event()
        self.go_on = threading.Event()
        self.attempts = []

    def begin(self, rollout):
        self.attempts.append(rollout.attempt)
        self._token.run_sync_soon(self.begun.set)

    def clean(self):
        self._token.run_sync_soon(self.cleaning.set)


class Cancelling:
    """Runs a request and cancels it once its code has begun."""

    def __init__(self):
        self.scope = trio.CancelScope()
        self.done = trio.Event()
        self.value = None
        self.error = None

    async def run(self, runner, asked):
        try:
            with self.scope:
                self.value = await runner.run(asked, request_id="r")
        except EnvironmentFailure as failure:
            self.error = failure
        self.done.set()


async def cancelled(env, witness, asked=None, models=None, then=lambda: None):
    """How a request ended that was cancelled after ``witness.begun``."""
    async with opened(env, threads=2, models=models) as runner, trio.open_nursery() as nursery:
        call = Cancelling()
        nursery.start_soon(call.run, runner, asked or request(max_retries=3))
        await witness.begun.wait()
        call.scope.cancel()
        result = then()
        if result is not None:
            await result
        await call.done.wait()
    return call


async def awaited(function, witness):
    """The clean-up of a cancelled rollout is awaited."""

    async def check():
        # The clean-up is under way, and run() has not returned.
        await witness.cleaning.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert not witness.ended.is_set()
        witness.go_on.set()

    call = await cancelled(load(function), witness, then=check)
    assert call.scope.cancelled_caught
    assert call.error is None
    assert witness.ended.is_set()
    assert witness.attempts == [1]


async def test_trio_code_is_cancelled_and_its_clean_up_awaited():
    witness = Witness()

    async def body(rollout):
        witness.begin(rollout)
        try:
            await trio.sleep_forever()
        finally:
            assert rollout.cancelled()
            with trio.CancelScope(shield=True):
                await trio.lowlevel.checkpoint()
            witness.ended.set()

    call = await cancelled(load(body), witness)
    assert call.scope.cancelled_caught
    assert witness.ended.is_set()
    assert witness.attempts == [1]


async def test_asyncio_code_is_cancelled_once_and_its_clean_up_awaited():
    witness = Witness()

    @on_asyncio
    async def body(rollout):
        witness.begin(rollout)
        try:
            await asyncio.sleep(3600)
        finally:
            assert rollout.cancelled()
            witness.clean()
            while not witness.go_on.is_set():  # noqa: ASYNC110  # it is set in another thread
                await asyncio.sleep(0.001)
            witness.ended.set()

    await awaited(body, witness)


async def test_asyncio_code_cancelled_before_its_first_step():
    ran = []
    release = threading.Event()
    token = trio.lowlevel.current_trio_token()
    is_blocked = trio.Event()

    @on_asyncio
    async def body(rollout):
        if rollout.input == "block":
            token.run_sync_soon(is_blocked.set)
            release.wait()  # holds the whole loop, as bad code does
        ran.append(rollout.input)

    async with opened(load(body), threads=1) as runner, trio.open_nursery() as nursery:
        nursery.start_soon(Cancelling().run, runner, request("block"))
        await is_blocked.wait()
        late = Cancelling()
        nursery.start_soon(late.run, runner, request("late"))
        await trio.testing.wait_all_tasks_blocked()
        late.scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        release.set()
        await late.done.wait()
        assert late.scope.cancelled_caught
    assert ran == ["block"]


async def test_a_thread_is_waited_for_and_can_notice():
    witness = Witness()

    def body(rollout):
        witness.begin(rollout)
        while not rollout.cancelled():
            witness.go_on.wait(0.001)
        witness.clean()
        witness.go_on.wait()
        witness.ended.set()
        raise ValueError("stopped")

    await awaited(body, witness)


async def test_a_rollout_that_waits_for_a_thread_never_starts():
    witness = Witness()
    ran = []

    def body(rollout):
        ran.append(rollout.input)
        if rollout.input == "first":
            witness.begin(rollout)
            witness.go_on.wait()

    async with opened(load(body), threads=1) as runner, trio.open_nursery() as nursery:
        nursery.start_soon(Cancelling().run, runner, request("first"))
        await witness.begun.wait()
        waiting = Cancelling()
        nursery.start_soon(waiting.run, runner, request("second"))
        await trio.testing.wait_all_tasks_blocked()
        waiting.scope.cancel()
        await waiting.done.wait()
        assert waiting.scope.cancelled_caught
        witness.go_on.set()
    assert ran == ["first"]


# Work that was done is not thrown away


def finishes_trio(witness):
    async def body(rollout):
        witness.begin(rollout)
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            return "done"

    return body


def finishes_asyncio(witness):
    @on_asyncio
    async def body(rollout):
        witness.begin(rollout)
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return "done"

    return body


def finishes_thread(witness):
    def body(rollout):
        witness.begin(rollout)
        while not rollout.cancelled():
            witness.go_on.wait(0.001)
        return "done"

    return body


@pytest.mark.parametrize("make", [finishes_trio, finishes_thread, finishes_asyncio])
async def test_a_value_in_spite_of_the_cancel_is_kept(make):
    witness = Witness()
    assert (await cancelled(load(make(witness)), witness)).value == "done"


@pytest.mark.parametrize("exc", [ValueError, SystemExit, asyncio.CancelledError])
async def test_an_error_on_the_way_out_is_still_a_cancellation(exc):
    witness = Witness()

    async def body(rollout):
        witness.begin(rollout)
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            raise exc from None

    call = await cancelled(load(body), witness)
    assert call.scope.cancelled_caught
    assert call.error is None
    assert witness.attempts == [1]


async def test_all_members_of_a_group_are_cancelled():
    witness = Witness()
    ended = []

    async def body(rollout):
        try:
            if rollout.member == 2:
                witness.begin(rollout)
            await trio.sleep_forever()
        finally:
            ended.append(rollout.member)

    call = await cancelled(load(body), witness, request([1, 2, 3], "group", max_retries=2))
    assert call.scope.cancelled_caught
    assert sorted(ended) == [0, 1, 2]


# Calls of the model


class SlowModel:
    """Never answers; knows whether its call was cancelled, and takes time for it."""

    def __init__(self, witness):
        self.witness = witness
        self.cancelled = 0

    async def complete(self, messages, *, name, sampling_args, reference=None):
        self.witness.begun.set()
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.lowlevel.checkpoint()
            self.cancelled += 1

    async def aclose(self):
        await trio.lowlevel.checkpoint()


def thread_ask(rollout):
    try:
        rollout.ask_sync([])
    except Exception:
        return "swallowed"


@on_asyncio
async def asyncio_ask(rollout):
    try:
        await rollout.ask([])
    finally:
        for _ in range(100):  # a second cancel would come out here
            await asyncio.sleep(0.0001)
        rollout.input.append("clean")


async def trio_ask(rollout):
    await rollout.ask([])


@pytest.mark.parametrize("function", [trio_ask, thread_ask, asyncio_ask])
async def test_the_cancel_reaches_the_model_call(function):
    witness = Witness()
    model = SlowModel(witness)
    async with open_models({"slow": lambda endpoint: model}) as models:
        asked = request([], endpoint="slow")
        call = await cancelled(load(function), witness, asked, models)
    if function is asyncio_ask:
        assert asked.input == ["clean"]
    assert call.scope.cancelled_caught
    assert call.value is None
    assert model.cancelled == 1


async def test_model_calls_of_stray_asyncio_tasks_end_with_the_rollout():
    witness = Witness()
    model = SlowModel(witness)
    strays = []

    @on_asyncio
    async def body(rollout):
        if rollout.input == "stray":
            strays.append(asyncio.ensure_future(rollout.ask([])))
            while not witness.begun.is_set():  # noqa: ASYNC110  # a trio event
                await asyncio.sleep(0.001)
            return rollout
        await asyncio.wait(strays)
        with pytest.raises(asyncio.CancelledError):
            await rollout.input.ask([])  # too late: that rollout has ended
        return strays[0].cancelled()

    async with (
        open_models({"slow": lambda endpoint: model}) as models,
        opened(load(body), threads=1, models=models) as runner,
    ):
        ended = await runner.run(request("stray", endpoint="slow"), request_id="r")
        assert model.cancelled == 1
        assert await runner.run(request(ended), request_id="r")


async def test_an_asyncio_timeout_cancels_the_model_call_only():
    witness = Witness()
    model = SlowModel(witness)

    @on_asyncio
    async def body(rollout):
        asking = asyncio.ensure_future(rollout.ask([]))
        while not witness.begun.is_set():  # noqa: ASYNC110  # a trio event
            await asyncio.sleep(0.001)
        try:
            await asyncio.wait_for(asking, 0.01)
        except TimeoutError:
            return model.cancelled  # its clean-up is over when the timeout comes out

    async with (
        open_models({"slow": lambda endpoint: model}) as models,
        opened(load(body), threads=1, models=models) as runner,
    ):
        assert await runner.run(request(endpoint="slow"), request_id="r") == 1


@pytest.mark.parametrize("outlives_loop", [False, True])
def test_threads_that_outlive_their_rollout_get_no_answer(outlives_loop):
    go_on, threads, told = threading.Event(), [], []

    def late(rollout):
        go_on.wait()
        try:
            rollout.ask_sync([], reference="5")
        except RolloutCancelled:
            told.append(rollout.cancelled())

    def body(rollout):
        threads.append(threading.Thread(target=late, args=(rollout,)))
        threads[0].start()

    async def main():
        async with opened(load(body), threads=1) as runner:
            await runner.run(request(), request_id="r")
            if not outlives_loop:
                go_on.set()
                await trio.to_thread.run_sync(threads[0].join)

    trio.run(main)
    go_on.set()
    threads[0].join(60)
    assert told == [True]
