"""Running environments: attempts, groups, hooks, what they may raise, and cancelling, which
reaches the code and ends the execution when the code has ended."""

import asyncio
import contextlib
import contextvars
import signal
import threading
from typing import Any

import pytest
import trio
import trio.testing

from tests.memory import virtual
from tests.worker.helpers import BACKENDS, on_asyncio, opened, request
from trio_envserve.core.errors import ConfigError
from trio_envserve.envs import RolloutCancelled, load
from trio_envserve.models import ModelError, open_models
from trio_envserve.worker.failures import EnvironmentFailure


def environment(backend, body, **members):
    """An environment whose code is the plain function ``body(rollout)``."""

    def sync(self, rollout):
        return body(rollout)

    async def coroutine(self, rollout):
        return body(rollout)

    members["run_rollout"] = sync if backend == "thread" else coroutine
    return load(type("Made", (), {"backend": backend, **members})())


async def run(env, asked=None, **more):
    async with opened(env, threads=4, **more) as runner:
        return await runner.run(asked or request(), request_id="ab#0")


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_rollout_gets_what_was_asked(backend):
    names = ("input", "model_name", "sampling_args", "attempt", "request", "member")
    threads = []

    def body(rollout):
        threads.append(threading.get_ident())
        assert rollout.cancelled() is False
        return {**{name: getattr(rollout, name) for name in names}, "state": {"a": 1, "b": 2}}

    asked = request([1], sampling_args={"seed": 3}, state_columns=("b", "c"))
    assert await run(environment(backend, body), asked) == {
        "input": [1], "model_name": "m", "sampling_args": {"seed": 3}, "attempt": 1,
        "request": "ab#0", "member": 0, "state": {"b": 2, "c": None},
    }  # fmt: skip
    assert (threads == [threading.get_ident()]) == (backend == "trio")


async def trio_ask(rollout):
    return (await rollout.ask([], reference="5")).text


def thread_ask(rollout):
    return rollout.ask_sync([], reference="5").text


@on_asyncio
async def asyncio_ask(rollout):
    await asyncio.sleep(0)
    return (await rollout.ask([], reference="5")).text


@pytest.mark.parametrize("function", [trio_ask, thread_ask, asyncio_ask])
async def test_every_backend_can_ask_the_model(function):
    assert await run(load(function)) == "5"


@pytest.mark.parametrize("function", [trio_ask, thread_ask, asyncio_ask])
async def test_an_error_of_the_model_is_raised_in_the_rollout(function):
    class NoAnswer:
        async def complete(self, *args, **kwargs):
            raise ModelError("quota")

        async def aclose(self):
            await trio.lowlevel.checkpoint()

    async with open_models({"mine": lambda endpoint: NoAnswer()}) as models:
        with pytest.raises(EnvironmentFailure) as caught:
            await run(load(function), request(endpoint="mine"), models=models)
    assert isinstance(caught.value.exception, ModelError)


async def test_a_rollouts_own_threads_can_ask_too():
    def body(rollout):
        answers = []
        thread = threading.Thread(target=lambda: answers.append(thread_ask(rollout)))
        thread.start()
        thread.join()
        return answers

    assert await run(environment("thread", body)) == ["5"]


async def test_asking_in_the_wrong_way_says_how():
    def wrong_in_thread(rollout):
        with pytest.raises(StopIteration):
            rollout.ask([]).send(None)

    async def wrong_in_trio(rollout):
        rollout.ask_sync([])

    async def wrong_in_thread_of_trio(rollout):
        await trio.to_thread.run_sync(rollout.ask_sync, [])

    async def right_in_thread_of_trio(rollout):
        return (await trio.to_thread.run_sync(trio.from_thread.run, rollout.ask, [])).text

    with pytest.raises(EnvironmentFailure, match=r"TypeError: .* in a thread, .* ask_sync\(\)"):
        await run(load(wrong_in_thread))
    with pytest.raises(EnvironmentFailure, match=r"such as trio.from_thread.run\(rollout.ask,"):
        await run(load(wrong_in_thread_of_trio))
    with pytest.raises(EnvironmentFailure, match="the environment's reference"):
        await run(load(right_in_thread_of_trio))
    with pytest.raises(EnvironmentFailure, match=r"await the call without _sync, such as ask\(\)"):
        await run(load(wrong_in_trio))


async def test_an_unknown_endpoint_is_refused_before_anything_runs():
    ran: list[object] = []
    env = environment("trio", ran.append)
    with pytest.raises(ConfigError, match="unknown model endpoint"):
        await run(env, request(endpoint="nowhere", max_retries=3))
    assert ran == []


# Attempts


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_failed_rollout_is_repeated(backend):
    def body(rollout):
        if rollout.attempt < 3:
            raise ValueError(rollout.attempt)
        return rollout.attempt

    assert await run(environment(backend, body), request(max_retries=2)) == 3
    with pytest.raises(EnvironmentFailure) as caught:
        await run(environment(backend, body), request(max_retries=1))
    assert caught.value.attempts == 2
    assert caught.value.exception.args == (2,)
    assert caught.value.__cause__ is caught.value.exception


async def test_each_attempt_has_its_own_copy_of_the_input():
    def body(rollout):
        rollout.input.append(1)
        rollout.sampling_args["seed"].append(1)
        assert rollout.attempt == 3, "again"
        return [rollout.input, rollout.sampling_args]

    asked = request([], sampling_args={"seed": []}, max_retries=2)
    assert await run(environment("trio", body), asked) == [[1], {"seed": [1]}]


async def test_sampling_arguments_that_a_member_changed_were_changed_for_the_others():
    def body(rollout):
        rollout.sampling_args["stop"].append("x")
        return rollout.sampling_args

    asked = request([1, 2], "group", sampling_args={"stop": []})
    records = await run(environment("trio", body), asked)
    assert [record["value"] for record in records] == [{"stop": ["x"]}] * 2


# What environments may raise


class Strange(BaseException):
    pass


@pytest.mark.parametrize(
    "exc",
    [
        ValueError("x"),
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        StopIteration(),
        StopAsyncIteration(),
        asyncio.CancelledError(),
        MemoryError(),
        Strange(),
        BaseExceptionGroup("g", [SystemExit(1), ValueError("y")]),
    ],
    ids=lambda exc: type(exc).__name__,
)
@pytest.mark.parametrize("backend", BACKENDS)
async def test_whatever_is_raised_is_a_failure(backend, exc):
    def body(rollout):
        if rollout.input == "raise":
            raise exc
        return 1

    async with opened(environment(backend, body), threads=1) as runner:
        with pytest.raises(EnvironmentFailure) as caught:
            await runner.run(request("raise"), request_id="r")
        # A coroutine cannot raise StopIteration: Python makes it a RuntimeError.
        if not isinstance(caught.value.exception, RuntimeError):
            assert caught.value.exception is exc
        assert await runner.run(request("return"), request_id="r") == 1
    exc.__traceback__ = None


async def test_a_nursery_left_open_by_a_member_is_nothing_to_the_others():
    async def leaves(rollout):
        if rollout.member == 0:
            await trio.open_nursery().__aenter__()
        return rollout.member

    _, good = await run(load(leaves), request([1, 2], "group"))
    assert good == {"ok": True, "value": 1}


variable = contextvars.ContextVar("variable", default=0)


@pytest.mark.parametrize("backend", BACKENDS)
async def test_context_variables_come_in_and_do_not_leak_out(backend):
    def body(rollout):
        before = variable.get()
        variable.set(2)
        return before

    variable.set(1)
    assert await run(environment(backend, body)) == 1
    assert variable.get() == 1


def test_a_real_ctrl_c_is_not_taken_for_a_failure():
    seen = []

    async def body(rollout):
        signal.raise_signal(signal.SIGINT)
        await trio.lowlevel.checkpoint()
        seen.append("went on")

    async def main():
        await run(load(body))

    with pytest.RaisesGroup(KeyboardInterrupt, flatten_subgroups=True, allow_unwrapped=True):
        trio.run(main)


@pytest.mark.parametrize("exc", [SystemExit, KeyboardInterrupt])
async def test_an_exit_in_a_stray_asyncio_task_does_not_stop_the_loop(exc, caplog):
    async def boom():
        raise exc

    @on_asyncio
    async def body(rollout):
        if rollout.input == "stray":
            task = asyncio.ensure_future(boom())
            await asyncio.wait([task])
            return type(task.exception()).__name__
        await asyncio.sleep(0)
        return 1

    async with opened(load(body), threads=1) as runner:
        assert await runner.run(request("stray"), request_id="r") == exc.__name__
        assert await runner.run(request(), request_id="r") == 1
    assert "stopped its loop" in caplog.text


@pytest.mark.parametrize("exits", [False, True])
async def test_stray_asyncio_tasks_are_cancelled_at_the_end(exits, caplog):
    ended, kept = [], []

    async def stray():
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(True)
            if exits:
                raise SystemExit(3)

    @on_asyncio
    async def body(rollout):
        kept.append(asyncio.ensure_future(stray()))
        await asyncio.sleep(0)
        return 1

    assert await run(load(body)) == 1
    assert ended == [True]
    assert ("closing the environment's asyncio loop failed" in caplog.text) is exits


async def test_a_plain_function_that_returns_a_coroutine_is_a_failure():
    async def inner():
        return 1

    def outer(rollout):
        return inner()

    with pytest.raises(EnvironmentFailure, match="a plain function returned coroutine"):
        await run(load(outer))

    class Awaitable:
        def __await__(self):
            yield

    with pytest.raises(EnvironmentFailure, match="a plain function returned Awaitable"):
        await run(environment("thread", lambda rollout: Awaitable()))
    env = load(type("Made", (), {"backend": "trio", "run_rollout": staticmethod(outer)})())
    assert await run(env) == 1


# Groups


@pytest.mark.parametrize("backend", BACKENDS)
async def test_members_fail_and_are_repeated_one_by_one(backend):
    def body(rollout):
        if rollout.input == "bad" or (rollout.input == "second" and rollout.attempt == 1):
            raise ValueError(rollout.member)
        return {"member": rollout.member, "attempt": rollout.attempt, "state": {"x": 1}}

    asked = request(["good", "bad", "second"], "group", max_retries=1)
    good, bad, second = await run(environment(backend, body), asked)
    assert good == {"ok": True, "value": {"member": 0, "attempt": 1}}
    assert second == {"ok": True, "value": {"member": 2, "attempt": 2}}
    assert bad["ok"] is False
    assert set(bad["error"]) == {"type", "message", "traceback", "code", "attempts"}
    assert (bad["error"]["type"], bad["error"]["message"]) == ("ValueError", "1")
    assert bad["error"]["attempts"] == 2


def group_environment(backend, body):
    def sync(self, rollouts):
        return body(rollouts)

    async def coroutine(self, rollouts):
        return body(rollouts)

    members = {"run_group": sync if backend == "thread" else coroutine}
    return environment(backend, lambda rollout: pytest.fail("not alone"), **members)


@pytest.mark.parametrize("backend", BACKENDS)
async def test_an_environments_own_group(backend):
    def body(rollouts):
        assert [rollout.member for rollout in rollouts] == [0, 1]
        if rollouts[0].attempt == 1:
            raise ValueError("once more, all of you")
        return [{"input": rollouts[0].input, "state": {}}, ValueError("only me")]

    asked = request(["a", "b"], "group", max_retries=1)
    first, second = await run(group_environment(backend, body), asked)
    assert first == {"ok": True, "value": {"input": "a"}}
    assert second["ok"] is False
    assert (second["error"]["message"], second["error"]["attempts"]) == ("only me", 2)


async def test_a_member_with_a_wrong_state_failed_the_whole_group():
    def body(rollouts):
        return [{"reward": 1.0}, {"reward": 1.0, "state": 5}]

    first, second = await run(group_environment("trio", body), request([1, 2], "group"))
    assert first == {"ok": True, "value": {"reward": 1.0}}
    assert second["error"]["message"] == "the result's 'state' must be a mapping, not int"


@pytest.mark.parametrize(
    ("value", "what"), [([1], "not 1"), (None, "not NoneType"), ({}, "not dict")]
)
async def test_a_group_of_the_wrong_length_is_a_failure(value, what):
    with pytest.raises(EnvironmentFailure, match=f"for each of its 2 rollouts, {what}") as caught:
        await run(group_environment("trio", lambda rollouts: value), request([1, 2], "group"))
    assert caught.value.during == "group"


# Setup and teardown


def hooks(backend, kind, log):
    """``setup`` and ``teardown`` that log where they ran."""

    def place(event):
        log.append((event, threading.get_ident()))
        if backend == "asyncio":
            asyncio.get_running_loop()

    def sync(event):
        return lambda self: place(event)

    def coroutine(event):
        async def hook(self):
            place(event)

        return hook

    make = sync if kind == "sync" else coroutine
    return {"setup": make("setup"), "teardown": make("teardown")}


@pytest.mark.parametrize(
    ("backend", "kind"),
    [(b, k) for b in BACKENDS for k in ("sync", "async") if (b, k) != ("thread", "async")],
)
async def test_hooks_run_on_the_same_backend(backend, kind):
    log: list[tuple[str, int]] = []
    env = environment(
        backend, lambda r: log.append(("run", threading.get_ident())), **hooks(backend, kind, log)
    )
    await run(env)
    assert [event for event, _ in log] == ["setup", "run", "teardown"]
    if backend != "thread":
        assert len({ident for _, ident in log}) == 1
    else:
        assert threading.get_ident() not in {ident for _, ident in log}


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_setup_that_fails_opens_no_runner(backend):
    log: list[tuple[str, int]] = []

    def fail(self):
        raise SystemExit("no GPU")

    members = {**hooks(backend, "sync", log), "setup": fail}
    with pytest.raises(EnvironmentFailure, match="setup failed: SystemExit: no GPU"):
        await run(environment(backend, lambda rollout: 1, **members))
    assert log == []


async def test_a_teardown_that_fails_is_logged(caplog):
    def fail(self):
        raise SystemExit("oops")

    assert await run(environment("trio", lambda rollout: 1, teardown=fail)) == 1
    assert "teardown failed" in caplog.text


@virtual
async def test_a_teardown_that_hangs_is_cancelled_and_logged(caplog):
    async def hang(self):
        await trio.sleep_forever()

    assert await run(environment("trio", lambda rollout: 1, teardown=hang), teardown_s=3) == 1
    assert "longer than 3 s" in caplog.text


@pytest.mark.parametrize("backend", BACKENDS)
async def test_teardown_also_when_the_worker_is_cancelled(backend):
    log: list[tuple[str, int]] = []
    env = environment(backend, lambda rollout: 1, **hooks(backend, "sync", log))
    with trio.CancelScope() as scope:
        async with opened(env, threads=1):
            scope.cancel()
            await trio.sleep_forever()
    assert [event for event, _ in log] == ["setup", "teardown"]


@pytest.mark.parametrize("backend", BACKENDS)
async def test_what_the_block_raises_comes_out_unwrapped(backend):
    with pytest.raises(KeyError):
        async with opened(environment(backend, lambda rollout: 1), threads=1):
            raise KeyError("mine")


# Cancelling


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


class Cleaning:
    """Its rollouts wait to be cancelled, clean up until their test lets them go, and end with
    a result, or by raising ``end``."""

    def __init__(self, backend, witness, end):
        self.backend = backend
        self.run_rollout = self._plain if backend == "thread" else self._coroutine
        self._witness, self._end = witness, end

    async def _coroutine(self, rollout):
        backend: Any = (asyncio, asyncio.CancelledError, contextlib.nullcontext())
        if self.backend == "trio":
            backend = (trio, trio.Cancelled, trio.CancelScope(shield=True))
        library, cancelled, shield = backend
        self._witness.begin(rollout)
        try:
            await library.sleep(3600)
        except cancelled:
            assert rollout.cancelled()
            self._witness.clean()
            with shield:
                while not self._witness.go_on.is_set():  # noqa: ASYNC110  # of another thread
                    await library.sleep(0.001)
            return self._over()

    def _plain(self, rollout):
        self._witness.begin(rollout)
        while not rollout.cancelled():
            self._witness.go_on.wait(0.001)
        self._witness.clean()
        self._witness.go_on.wait()
        return self._over()

    def _over(self):
        self._witness.ended.set()
        if self._end is not None:
            raise self._end
        return "done"


@pytest.mark.parametrize("end", [None, ValueError, SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_cancel_reaches_the_code_once_and_its_clean_up_is_awaited(backend, end):
    """Work that was done in spite of it is not thrown away; what is raised on the way out is
    no failure."""
    witness = Witness()

    async def check():
        # The clean-up is under way, and run() has not returned.
        await witness.cleaning.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert not witness.ended.is_set()
        witness.go_on.set()

    call = await cancelled(load(Cleaning(backend, witness, end)), witness, then=check)
    assert witness.ended.is_set()
    assert witness.attempts == [1]
    assert call.error is None
    assert call.value == (None if end else "done")
    assert call.scope.cancelled_caught is bool(end)


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


async def test_members_of_a_group_run_at_the_same_time_and_all_are_cancelled():
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


def thread_asks(rollout):
    try:
        rollout.ask_sync([])
    except Exception:
        return "swallowed"


@on_asyncio
async def asyncio_asks(rollout):
    try:
        await rollout.ask([])
    finally:
        for _ in range(100):  # a second cancel would come out here
            await asyncio.sleep(0.0001)
        rollout.input.append("clean")


async def trio_asks(rollout):
    await rollout.ask([])


@pytest.mark.parametrize("function", [trio_asks, thread_asks, asyncio_asks])
async def test_the_cancel_reaches_the_model_call(function):
    witness = Witness()
    model = SlowModel(witness)
    async with open_models({"slow": lambda endpoint: model}) as models:
        asked = request([], endpoint="slow")
        call = await cancelled(load(function), witness, asked, models)
    if function is asyncio_asks:
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
