"""Permits in environment code of every backend: they wait, hold, and come back."""

from __future__ import annotations

import asyncio
import threading
import types
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from tests.worker.helpers import BACKENDS, on_asyncio, opened, request, served, until
from trio_envserve import Rollout, RolloutFailed
from trio_envserve.core.permits import EXECUTION_CLAIMS
from trio_envserve.core.worker import ClaimMade, ClaimOver, WorkerCore
from trio_envserve.envs import load
from trio_envserve.envs.permits import Permit, claimed_limit, claimed_rate
from trio_envserve.models.offline import OracleModel
from trio_envserve.worker.failures import EnvironmentFailure
from trio_envserve.worker.permits import LATE_S, WorkerPermits, _Pace
from trio_envserve.worker.runners import ExecutionContext


class Log:
    """What rollouts of any backend hold, and the most that was held at once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.held = self.most = self.entered = 0
        self.free = threading.Event()
        """Set once those that hold a permit may go on."""

    def enter(self) -> None:
        with self.lock:
            self.held += 1
            self.entered += 1
            self.most = max(self.most, self.held)

    def leave(self) -> None:
        with self.lock:
            self.held -= 1


class Limited:
    """Holds a permit until it is let go, on any backend."""

    def __init__(self, backend: str, log: Log, most: int = 2) -> None:
        self.backend = backend
        self.log = log
        self.most = most
        self.run_rollout: Any = self._plain if backend == "thread" else self._coroutine

    async def _coroutine(self, rollout: Rollout) -> str:
        async with rollout.limit("places", self.most):
            self.log.enter()
            try:
                while not self.log.free.is_set():  # noqa: ASYNC110  # it is set in any thread
                    await (trio if self.backend == "trio" else asyncio).sleep(0.01)
            finally:
                self.log.leave()
        return "done"

    def _plain(self, rollout: Rollout) -> str:
        with rollout.limit("places", self.most):
            self.log.enter()
            while not (self.log.free.wait(0.01) or rollout.cancelled()):
                pass
            self.log.leave()
        return "done"


@pytest.mark.parametrize("backend", BACKENDS)
async def test_limits_hold_over_the_rollouts_of_a_process_without_a_router(backend: str):
    log = Log()
    environment = load(Limited(backend, log))
    async with opened(environment, threads=8) as runner, trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(partial(runner.run, request(), request_id=f"ab#{number}"))
        await until(lambda: log.entered == 2)
        log.free.set()
    assert (log.entered, log.most, log.held) == (8, 2, 0)


@pytest.mark.parametrize("backend", BACKENDS)
async def test_limits_hold_over_all_rollouts_of_a_server(backend: str):
    """In one process: those over processes are in tests/real."""
    log = Log()
    async with served(Limited(backend, log)) as (server, client), trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(client.run_rollout, {})
        await until(lambda: [each.waiting for each in server.stats().permits] == [6])
        (permits,) = server.stats().permits
        assert (permits.name, permits.held, permits.limit) == ("limit:places", 2, 2)
        await until(lambda: log.held == 2)  # the code hears of it later
        log.free.set()
    assert (log.entered, log.most, log.held) == (8, 2, 0)


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_claim_that_is_cancelled_while_it_waits_comes_back_at_once(backend: str):
    log = Log()
    environment = load(Limited(backend, log, most=1))
    async with opened(environment, threads=8) as runner, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: runner.run(request(), request_id="ab#0"))
        await until(lambda: log.entered == 1)
        machine = runner._permits
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as waiting:
                waiting.start_soon(lambda: runner.run(request(), request_id="ab#1"))
                await until(lambda: machine._waiting)
                scope.cancel()
        assert not machine._waiting
        log.free.set()
    assert log.entered == 1


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_permit_that_the_code_has_left_comes_back_with_its_end(backend: str):
    def leave(rollout: Rollout) -> str:
        rollout.limit("places", 1).__enter__()
        return "left"

    async def leave_on_a_loop(rollout: Rollout) -> str:
        await rollout.limit("places", 1).__aenter__()
        return "left"

    if backend == "asyncio":
        on_asyncio(leave_on_a_loop)
    environment = load(leave if backend == "thread" else leave_on_a_loop)
    async with opened(environment, threads=2) as runner:
        for number in range(3):
            assert await runner.run(request(), request_id=f"ab#{number}") == "left"


async def test_permit_for_a_task_that_was_cancelled_twice_was_kept_to_the_end_of_the_rollout():
    """Of asyncio, whose limits of time cancel a task each."""
    granted = trio.Event()
    given_back: list[str] = []

    async def claim() -> Callable[[], object]:
        with trio.CancelScope(shield=True):
            await granted.wait()
        return partial(given_back.append, "permit")

    @on_asyncio
    async def cancelled_twice(rollout: Rollout) -> str:
        assert rollout._services is not None
        carrier = rollout._services.carrier
        task = asyncio.ensure_future(Permit((carrier, claim), is_rate=False).__aenter__())
        for _ in range(2):
            await asyncio.sleep(0.01)
            task.cancel()
        await asyncio.sleep(0.01)
        carrier.soon(granted.set)
        await asyncio.wait((task,))
        await carrier.call(trio.lowlevel.checkpoint)  # what came before it is done
        return f"{task.cancelled()} {given_back}"

    async with opened(load(cancelled_twice), threads=1) as runner:
        assert await runner.run(request(), request_id="ab#0") == "True ['permit']"


async def test_a_permit_may_be_used_again_and_by_several_tasks():
    async def reuse(rollout: Rollout) -> int:
        permit, most, held = rollout.limit("places", 2), 0, 0

        async def use() -> None:
            nonlocal most, held
            async with permit:
                held += 1
                most = max(most, held)
                await trio.lowlevel.checkpoint()
                held -= 1

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(use)
        return most

    async with opened(load(reuse), threads=1) as runner:
        assert await runner.run(request(), request_id="ab#0") == 2


async def test_blocks_of_a_rate_begin_apart(autojump_clock: trio.testing.MockClock):
    async def create(rollout: Rollout) -> float:
        async with rollout.rate("creates", per_s=2):
            return trio.current_time()

    began_s = []
    async with opened(load(create), threads=1) as runner, trio.open_nursery() as nursery:
        for number in range(5):
            asked = {"request_id": f"ab#{number}"}

            async def run(asked: Any = asked) -> None:
                began_s.append(await runner.run(request(), **asked))

            nursery.start_soon(run)
    began_s.sort()
    assert [each - began_s[0] for each in began_s] == pytest.approx([0.0, 0.5, 1.0, 1.5, 2.0])


async def test_g12_blocks_of_a_rate_begin_apart_after_the_loop_was_held_up(
    autojump_clock: trio.testing.MockClock,
):
    """Those that the router had granted meanwhile began together."""
    permits = WorkerPermits(lambda given: None)
    began_s: list[float] = []

    async def begin() -> None:
        claimed = claimed_rate("creates", per_s=10)
        begun = await permits.of(0).acquire(claimed, lambda text: None)
        began_s.append(trio.current_time())
        begun()

    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(begin)
        await trio.testing.wait_all_tasks_blocked()
        permits.go_on(0, 0.0)
        permits.go_on(1, 0.1)
        await trio.testing.wait_all_tasks_blocked()
        autojump_clock.jump(3.0)  # the loop is held up
        permits.tell_waits()
        for claim in range(2, 6):
            permits.go_on(claim, 0.0)
    after_s = [each - began_s[1] for each in began_s[2:]]
    assert began_s[0] == 0.0
    assert after_s == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=LATE_S + 0.001)
    autojump_clock.jump(1.0)
    permits.tell_waits()
    assert permits._paces == {}


@pytest.mark.parametrize("how", ["begun", "closed", "cancelled"])
async def test_g12_block_of_a_rate_waits_until_the_code_of_the_last_one_has_begun(
    how: str, autojump_clock: trio.testing.MockClock
):
    """The code of many began together if it was on a loop of asyncio that was held up."""
    permits = WorkerPermits(lambda given: None)
    one, began_s = permits.of(0), []
    claimed = claimed_rate("creates", per_s=10)

    async def begin() -> None:
        (await permits.of(1).acquire(claimed, lambda text: None))()
        began_s.append(trio.current_time())

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery, trio.open_nursery() as first:
            permits_of: list[Any] = []

            async def hold() -> None:
                permits_of.append(await one.acquire(claimed, lambda text: None))

            first.start_soon(hold)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(begin)
            await trio.testing.wait_all_tasks_blocked()
            if how == "cancelled":  # while it has its turn, and waits
                permits._paces[claimed.name] = _Pace(begin_s=trio.current_time() + 6.0)
            permits.go_on(0, 0.0)
            permits.go_on(1, 1.0)
            await trio.sleep(5.0)
            permits.tell_waits()
            assert began_s == []
            match how:
                case "begun":
                    permits_of[0]()
                case "closed":
                    one.close()
                case "cancelled":
                    first.cancel_scope.cancel()
    assert began_s == pytest.approx([6.0 if how == "cancelled" else 5.1], abs=LATE_S + 0.001)


async def test_g9_rollout_that_holds_permits_where_the_worker_has_no_place_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
):
    """It waited for ever, and no note said for what: all others waited for it."""
    monkeypatch.setattr("trio_envserve.worker.permits.CLAIMS_MOST", 2)
    permits = WorkerPermits(lambda given: None)
    notes: list[Any] = []
    one, other = permits.of(1), permits.of(2)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for number, execution in enumerate((one, other)):
                nursery.start_soon(execution.acquire, claimed_limit("a", 9), notes.append)
                await trio.testing.wait_all_tasks_blocked()
                permits.go_on(number, None)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(RuntimeError, match="'b' is not claimed, since all might wait for"):
                await one.acquire(claimed_limit("b", 9), notes.append)
            with pytest.raises(RuntimeError, match="'policy' is not claimed"):
                async with one.of_endpoint("policy", 9):
                    raise AssertionError
            nursery.start_soon(permits.of(3).acquire, claimed_limit("b", 9), notes.append)
            await trio.testing.wait_all_tasks_blocked()
            monkeypatch.setattr("trio_envserve.models.waits.TELL_AFTER_S", 0.0)
            permits.tell_waits()
            assert [each.partition(",")[0] for each in notes] == ["for a permit of b"]
            one.close()
            await trio.testing.wait_all_tasks_blocked()
            permits.go_on(2, None)


async def test_g9_requests_of_a_group_beyond_the_places_of_a_worker_wait(
    monkeypatch: pytest.MonkeyPatch,
):
    """A request failed as one that all might wait for, since another member's was under way."""
    monkeypatch.setattr("trio_envserve.worker.permits.CLAIMS_MOST", 2)
    permits = WorkerPermits(lambda given: None)
    group, done, asked = permits.of(1), trio.Event(), []

    async def ask(member: int) -> None:
        async with group.of_endpoint("policy", 9):
            asked.append(member)
            await done.wait()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for member in range(3):
                nursery.start_soon(ask, member)
                await trio.testing.wait_all_tasks_blocked()
                permits.go_on(member, None)
            await trio.testing.wait_all_tasks_blocked()
            assert asked == [0, 1]
            done.set()
            await trio.testing.wait_all_tasks_blocked()
            permits.go_on(2, None)
    assert asked == [0, 1, 2]


async def test_a_rollout_that_claims_too_many_is_told_so():
    async def greedy(rollout: Rollout) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(1_000_000):
                await trio.lowlevel.checkpoint()
                nursery.start_soon(rollout.limit("places", 1).__aenter__)

    async with opened(load(greedy), threads=1) as runner:
        with pytest.raises(EnvironmentFailure) as caught:
            await runner.run(request(), request_id="ab#0")
        assert not runner._permits._waiting
    text = repr(caught.value.exception) + repr(getattr(caught.value.exception, "exceptions", ""))
    assert f"an execution has at most {EXECUTION_CLAIMS} permits at once, all members" in text
    assert "'places' is not claimed" in text


async def test_a_task_that_goes_on_after_its_rollout_gets_no_permit():
    held: list[Rollout] = []

    async def leave(rollout: Rollout) -> None:
        await trio.lowlevel.checkpoint()
        held.append(rollout)

    async with opened(load(leave), threads=1) as runner:
        await runner.run(request(), request_id="ab#0")
        with pytest.raises(RuntimeError, match="the rollout has ended"):
            await held[0].limit("places", 1).__aenter__()


@pytest.mark.parametrize("backend", BACKENDS)
async def test_the_wrong_kind_of_block_says_how(backend: str):
    async def wrong_on_a_loop(rollout: Rollout) -> None:
        with rollout.limit("places", 1):
            pass

    def wrong_in_a_thread(rollout: Rollout) -> None:
        rollout.limit("places", 1).__aenter__().send(None)

    if backend == "asyncio":
        on_asyncio(wrong_on_a_loop)
    environment = load(wrong_in_a_thread if backend == "thread" else wrong_on_a_loop)
    async with opened(environment, threads=1) as runner:
        with pytest.raises(EnvironmentFailure, match="async with"):
            await runner.run(request(), request_id="ab#0")


async def test_a_rollout_that_nobody_runs_has_no_limits():
    rollout = Rollout(
        input=1, model=OracleModel(), model_name="m", sampling_args={}, state_columns=(),
        attempt=1, request="ab#0",
    )  # fmt: skip
    async with rollout.limit("places", 1), rollout.limit("places", 1):
        with rollout.rate("creates", 0.001), rollout.rate("creates", 0.001):
            await trio.lowlevel.checkpoint()


async def test_what_a_rollout_waits_for_is_noted(autojump_clock: trio.testing.MockClock):
    notes: list[bytes] = []

    async def wait(rollout: Rollout) -> None:
        async with rollout.limit("places", 1):
            await trio.sleep(5.0)

    async with opened(load(wait), threads=1) as runner, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: runner.run(request(), request_id="ab#0"))
        await trio.sleep(0.1)
        noted = ExecutionContext(noted=notes.append)
        nursery.start_soon(lambda: runner.run(request(), request_id="ab#1", context=noted))
        for _ in range(4):
            await trio.sleep(1.0)
            runner._permits.tell_waits()
    assert b"for a permit of places, 2.0 s" in b"".join(notes)
    assert b"waits" not in notes[-1]


@pytest.mark.parametrize(
    ("name", "most", "text"),
    [
        ("a", 0, "from 1 to"), ("a", -1, "from 1 to"), ("a", 2**40, "from 1 to"),
        ("a", 1.0, "a whole number"), ("a", True, "a whole number"), ("a", "3", "a whole number"),
        ("a", None, "a whole number"), pytest.param("a", 10**5000, "of digits", id="huge"),
        ("", 1, "1 to 128 bytes"), ("x" * 129, 1, "1 to 128 bytes"), ("ü" * 65, 1, "1 to 128"),
        ("a\nb", 1, "printable"), ("\ud800", 1, "printable"), (b"a", 1, "is text, not bytes"),
        (None, 1, "is text, not NoneType"),
    ],
)  # fmt: skip
def test_a_limit_that_is_none_says_what_is_wrong(name: Any, most: Any, text: str):
    with pytest.raises((TypeError, ValueError), match=text):
        claimed_limit(name, most)


@pytest.mark.parametrize(
    ("per_s", "text"),
    [
        (0, "from 1/3600"), (-1, "from 1/3600"), (float("nan"), "from 1/3600"),
        (float("inf"), "from 1/3600"), (1e300, "from 1/3600"),
        pytest.param(10**5000, "of digits", id="huge"),
        (True, "a number of grants"), ("5", "a number of grants"), (None, "a number of grants"),
    ],
)  # fmt: skip
def test_a_rate_that_is_none_says_what_is_wrong(per_s: Any, text: str):
    with pytest.raises((TypeError, ValueError), match=text):
        claimed_rate("a", per_s)


async def test_a_wrong_limit_fails_its_rollout_with_its_words():
    async def wrong(rollout: Rollout) -> None:
        async with rollout.rate("creates", per_s=0):
            pass

    async with served(wrong) as (_, client):
        with pytest.raises(RolloutFailed, match="from 1/3600"):
            await client.run_rollout({})


async def test_claim_of_a_task_that_outlives_its_rollout_ends_with_that():
    """It waited for ever, and its place was gone for the life of the worker."""
    told: list[Any] = []
    execution, said = WorkerPermits(told.append).of(0), []

    async def claim() -> None:
        with pytest.raises(RuntimeError, match="has ended, and gets no permit"):
            await execution.acquire(claimed_limit("x", 1), lambda text: None)
        said.append("told")

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(claim)
            await trio.testing.wait_all_tasks_blocked()
            execution.close()
    assert (said, told) == (["told"], [ClaimMade(0, 0, "limit:x", 1, None), ClaimOver(0)])


@types.coroutine
def pause() -> Generator[Any, Any, None]:
    """Stop where the driver of the coroutine takes this for its end."""
    yield pause


@types.coroutine
def driven(coroutine: Coroutine[Any, Any, None]) -> Generator[Any, Any, None]:
    """Run a coroutine until it pauses."""
    given = None
    while (asked := coroutine.send(given)) is not pause:
        given = yield asked


async def test_permit_of_an_object_that_is_collected_while_a_beat_is_made_costs_no_worker(
    monkeypatch: pytest.MonkeyPatch,
):
    """Its end was sent before the beat, which had not counted it: that killed the worker."""
    left: list[Any] = []
    make_beat, collected = WorkerCore._beat, trio.Event()

    def beat_with_a_collection(core: WorkerCore, before: int = 0) -> Any:
        beat = make_beat(core, before)
        if left:
            left.clear()
            collected.set()
        return beat

    monkeypatch.setattr(WorkerCore, "_beat", beat_with_a_collection)

    async def holds(rollout: Rollout) -> None:
        async with rollout.limit("places", 1):
            await pause()

    async def leaves(rollout: Rollout) -> str:
        held = holds(rollout)
        await driven(held)
        left.append(held)
        del held
        await collected.wait()
        return "gone on"

    async with served(leaves, beat_s=0.05) as (server, client):
        assert await client.run_rollout({}) == "gone on"
        assert server.stats().differences == 0


async def test_input_that_the_core_cannot_take_fails_its_own_rollout_only(
    monkeypatch: pytest.MonkeyPatch,
):
    """All later inputs waited for its end, those of other rollouts and the beats, too."""
    real = WorkerCore.take
    wrong = [True]

    def take(core: WorkerCore, given: Any) -> Any:
        if isinstance(given, ClaimMade) and wrong.pop():
            raise ZeroDivisionError
        return real(core, given)

    monkeypatch.setattr(WorkerCore, "take", take)

    async def claims(rollout: Rollout) -> str:
        async with rollout.limit("places", 1):
            return "held"

    async with served(claims) as (_, client):
        with pytest.raises(RolloutFailed, match="ZeroDivisionError"):
            await client.run_rollout({})
        wrong.append(False)
        assert await client.run_rollout({}) == "held"
