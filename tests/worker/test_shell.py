"""The worker's shell: what it says of itself, how it begins and ends, and that executions
beside each other do not hurt each other.

What each may do to its own outcome is in test_runners.py.
"""

import asyncio
import logging
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from tests.worker import hostile_code
from tests.worker.helpers import BACKENDS
from trio_envserve import ConfigError, foreign, tracing
from trio_envserve.core import error_records, messages, values
from trio_envserve.core import worker as worker_core
from trio_envserve.core.limits import ServerLimits, WireLimits
from trio_envserve.core.messages import rows_claimed
from trio_envserve.core.terms import Status, Verdict
from trio_envserve.core.worker import OutcomeMade
from trio_envserve.envs import LoadedEnvironment, RolloutRequest, load
from trio_envserve.net import MessageStream, open_memory_streams
from trio_envserve.worker.execution_tasks import TURN_S
from trio_envserve.worker.shell import run_worker

WIRE = WireLimits()
INCARNATION = b"i" * 16


class Router:
    """The other end of the worker's link."""

    def __init__(self, stream, theirs):
        self.stream = stream
        self.theirs = theirs
        self.number = 0
        self.traceparent = None
        """Of the dispatches that it makes."""

    def send(self, message, *body):
        self.stream.send_nowait((INCARNATION, messages.encode(message), *body))

    def dispatch(self, given, late_s=None, **more):
        self.number += 1
        asked = RolloutRequest(
            kind=more.pop("kind", "rollout"), input=given, endpoint="oracle", model_name="m", **more
        )
        body = values.encode(asked.to_body(), root="input", limits=WIRE)
        dispatch = messages.Dispatch(
            b"s" * 16, self.number, self.number, "c", self.traceparent, late_s
        )
        self.send(dispatch, body)
        return self.number

    async def heard(self):
        """The messages that come next, each with its body."""
        return [
            each for frames in await self.stream.receive()
            for each in messages.read(
                frames[2 if len(frames) == 4 else 1 :], most_bytes=WIRE.header_bytes
            )
        ]  # fmt: skip

    async def outcomes(self, count):
        """By number: the status, and the value of a result or the error record."""
        found: dict[int, tuple[Status, Any]] = {}
        while len(found) < count:
            for header, body in await self.heard():
                if isinstance(header, messages.Announced):
                    self.send(messages.Fetch([header.number, header.number + 1], []))
                elif isinstance(header, messages.WorkerOutcome):
                    assert body is not None
                    is_result = header.status == Status.RESULT
                    value = values.decode(body, limits=WIRE) if is_result else None
                    found[header.number] = (
                        Status(header.status), value if is_result else error_records.decode(body)
                    )  # fmt: skip
        return found


@asynccontextmanager
async def opened(function, patience_s=600, around=lambda stream: stream, **limits):
    """A router with one worker that has said hello; the worker's nursery."""
    ours, theirs = open_memory_streams(WIRE)
    theirs = around(theirs)
    with trio.fail_after(patience_s):
        async with trio.open_nursery() as nursery:

            async def work():
                await run_worker(
                    theirs, worker=b"w", incarnation=INCARNATION,
                    load=lambda: load(function), limits=ServerLimits(**limits), wire=WIRE,
                )  # fmt: skip

            nursery.start_soon(work)
            await ours.receive()
            router = Router(ours, theirs)
            yield router, nursery
            if nursery.child_tasks:
                router.send(messages.Retire())


NEIGHBOURS = 8


class Beside:
    """Rollouts that wait for their neighbour, which does what it was given to do."""

    def __init__(self, backend, strange):
        self.backend = backend
        self.strange = strange
        self.over = threading.Event()
        self.run_rollout = self.plain if backend == "thread" else self.coroutine

    async def coroutine(self, rollout):
        if rollout.input != "wait":
            return self.strange(rollout.input)
        while not self.over.is_set():
            await (trio if self.backend == "trio" else asyncio).sleep(0.01)
        return "waited"

    def plain(self, rollout):
        if rollout.input != "wait":
            return self.strange(rollout.input)
        self.over.wait()
        return "waited"


async def ends_beside(backend, strange, names, **more):
    """How each of these ended, with eight neighbours that must end as they would have.

    Whatever ends the worker itself fails an assertion."""
    environment = Beside(backend, strange)
    lost: list[str] = []
    ends: dict[int, tuple[Status, Any]] = {}
    neighbours: dict[int, tuple[Status, Any]] = {}
    waiting: list[int] = []
    found: dict[int, str] = {}
    try:
        async with opened(environment, patience_s=60) as (router, _):
            try:
                waiting += [router.dispatch("wait") for _ in range(NEIGHBOURS)]
                for name in names:
                    found |= {router.dispatch(name, **more): name}
                    await trio.testing.wait_all_tasks_blocked()
                ends = await router.outcomes(len(found))
            finally:
                environment.over.set()
            neighbours = await router.outcomes(NEIGHBOURS)
    except BaseException as error:
        lost = [str(leaf) for leaf in foreign.leaves(error)]
    assert lost == []
    assert neighbours == dict.fromkeys(waiting, (Status.RESULT, "waited"))
    return {found[number]: end for number, end in ends.items()}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("raised", hostile_code.RAISED)
async def test_a_value_whose_code_raises_anything_takes_no_neighbour_down(raised, backend):
    """A lazy mapping that raised asyncio.CancelledError took the worker, and all on it."""
    made = hostile_code.values(hostile_code.RAISED[raised])
    ends = await ends_beside(backend, made.get, made, state_columns=("a",))
    for name, (status, info) in ends.items():
        assert status is Status.ERROR, name
        assert info.code in ("rollout-failed", "outcome-not-encodable"), name
        assert info.verdict is Verdict.RAN_AND_FAILED
    status, info = ends["a lazy mapping inside"]
    assert info.code == "outcome-not-encodable"
    assert type(hostile_code.RAISED[raised]()).__name__ in info.message


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("raised", hostile_code.RAISED)
async def test_an_exception_whose_code_raises_anything_takes_no_neighbour_down(
    raised, backend, caplog
):
    """While its text was asked for, or its traceback logged."""
    made = hostile_code.exceptions(hostile_code.RAISED[raised])
    caplog.set_level("DEBUG", "trio_envserve.worker")

    def fail(name):
        raise made[name]

    ends = await ends_beside(backend, fail, made)
    for name, (status, info) in ends.items():
        assert (status, info.code) == (Status.ERROR, "rollout-failed"), name
        assert "Hostile" in info.type or "ExceptionGroup" in info.type, name
        assert info.traceback, name
    assert "Traceback" in caplog.text


async def test_a_log_handler_that_raises_takes_no_neighbour_down(monkeypatch):
    """Environments bring handlers of their own, for services that watch them."""

    class Handler(logging.Handler):
        def emit(self, record):
            raise asyncio.CancelledError

    def fail(name):
        raise ValueError(name)

    logger = logging.getLogger("trio_envserve.worker")
    monkeypatch.setattr(logger, "handlers", [*logger.handlers, Handler()])
    monkeypatch.setattr(logger, "level", logging.DEBUG)
    ends = await ends_beside("trio", fail, ["x"])
    assert ends["x"][1].code == "rollout-failed"


async def test_memory_that_ends_while_a_value_is_encoded_or_a_request_decoded(monkeypatch):
    encode, decode = values.encode_to_send, values.decode

    def no_memory_for(value, **more):
        if value == "large":
            raise MemoryError
        return encode(value, **more)

    def no_memory_from(body, **more):
        value = decode(body, **more)
        if isinstance(value, dict) and value["input"] == "too large":
            raise MemoryError
        return value

    monkeypatch.setattr(values, "encode_to_send", no_memory_for)
    monkeypatch.setattr(values, "decode", no_memory_from)
    ends = await ends_beside("trio", str, ["large", "too large"])
    assert ends["large"][1].code == "outcome-not-encodable"
    assert ends["large"][1].verdict is Verdict.RAN_AND_FAILED
    assert ends["too large"][1].code == "refused"
    assert ends["too large"][1].verdict is Verdict.DID_NOT_RUN


async def test_a_stop_that_comes_with_its_dispatch(autojump_clock):
    seen = []

    async def body(rollout):
        seen.append(rollout.cancelled())
        await trio.sleep_forever()

    async with opened(body) as (router, _):
        number = router.dispatch("x")
        router.send(messages.Stop([number, number + 1]))
        ((status, error),) = (await router.outcomes(1)).values()
    assert status is Status.CANCELLED
    assert error.verdict is Verdict.DID_NOT_RUN
    assert seen == []


class Wrapped:
    """The worker's end of a stream."""

    def __init__(self, stream):
        self.stream = stream

    def __getattr__(self, name):
        return getattr(self.stream, name)


class LateStream(Wrapped):
    """Its worker takes these frames in the instant in which its receiver is cancelled."""

    def __init__(self, stream):
        super().__init__(stream)
        self.late: list[tuple[bytes, ...]] = []

    async def receive(self):
        try:
            return await self.stream.receive()
        except trio.Cancelled:
            late, self.late = self.late, []
            if not late:
                raise
            return late


class Watched(Wrapped):
    """It notes the messages that were sent, those of one call together."""

    def __init__(self, stream):
        super().__init__(stream)
        self.sent: list[list[Any]] = []

    def send_many_nowait(self, together):
        self.sent.append(list(together))
        return self.stream.send_many_nowait(together)


async def test_a_dispatch_that_arrives_while_the_worker_ends_is_not_run(autojump_clock):
    """Nothing would ever stop it, and the worker would not end before it."""
    ended = []

    async def body(rollout):
        try:
            await trio.sleep(500)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(10)  # so long the worker is ending
            ended.append(rollout.input)

    asked = RolloutRequest(kind="rollout", input="late", endpoint="oracle", model_name="m")
    header = messages.encode(messages.Dispatch(b"s" * 16, 9, 9, "c"))
    began_s = trio.current_time()
    async with opened(body, around=LateStream) as (router, _):
        router.dispatch("in time")
        await trio.testing.wait_all_tasks_blocked()
        router.theirs.late = [(INCARNATION, header, values.encode(asked.to_body()))]
    assert router.theirs.late == []  # it was taken
    assert trio.current_time() - began_s < 100
    assert ended == ["in time"]


async def test_an_error_of_the_shell_itself_ends_the_worker(monkeypatch, autojump_clock):
    def broken(*args, **kwargs):
        raise ZeroDivisionError

    async def body(rollout):
        if rollout.input == "wait":
            await trio.sleep_forever()
        monkeypatch.setitem(worker_core._INPUTS, OutcomeMade, broken)

    began_s = trio.current_time()
    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with opened(body) as (router, _):
            router.dispatch("wait")
            router.dispatch("x")
            await trio.sleep_forever()
    assert trio.current_time() - began_s < 100  # it waits for no other execution


async def test_outcomes_of_one_turn_are_sent_together_and_a_lone_one_at_once(autojump_clock):
    async def answer(rollout):
        return rollout.input

    async with opened(answer, around=Watched) as (router, _):
        for number in range(7):  # so many that as many as 4 start in one turn
            router.dispatch(number)
        await router.outcomes(7)
        router.theirs.sent.clear()
        router.dispatch(1)
        await router.outcomes(1)
        for number in (2, 3, 4):
            router.dispatch(number)
        await router.outcomes(3)
        rows = [[rows_claimed(frames[-2]) for frames in each] for each in router.theirs.sent]
        assert rows == [[1], [3]]


async def test_a_worker_ends_with_its_stream(autojump_clock):
    """Whose server is gone: it tears down, and nobody is left to be told."""
    ended = []

    class Environment:
        async def run_rollout(self, rollout):
            try:
                await trio.sleep_forever()
            finally:
                ended.append("rollout")

        async def teardown(self):
            ended.append("teardown")

    async with opened(Environment()) as (router, nursery):
        router.dispatch(1)
        await trio.testing.wait_all_tasks_blocked()
        router.stream.close()
        while nursery.child_tasks:  # noqa: ASYNC110  # it is not told
            await trio.sleep(1)
    assert ended == ["rollout", "teardown"]


async def test_an_outcome_is_sent_while_code_that_does_not_wait_keeps_the_others_waiting():
    """It waited until all that had arrived was done."""
    left: list[int] = []

    async def body(rollout):
        left.append(len(router.theirs.sent))
        began_s = time.perf_counter()
        while time.perf_counter() - began_s < 2 * TURN_S:
            pass
        return "done"

    async with opened(body, around=Watched) as (router, _):
        router.theirs.sent.clear()  # the hello, and the first beat
        for _ in range(5):
            router.dispatch(None)
        await router.outcomes(5)
    assert left[2] > 0


async def test_no_more_is_begun_while_too_many_outcomes_wait_for_the_disk(monkeypatch):
    """They took 785 MiB, on a machine whose disk had much to do."""
    slow, started = threading.Event(), []

    def held_up(**options):
        slow.wait()
        return opened_file(**options)

    opened_file = tempfile.TemporaryFile
    monkeypatch.setattr(tempfile, "TemporaryFile", held_up)

    async def large(rollout):
        started.append(rollout.input)
        return bytes(100_000)

    async with opened(large, patience_s=60, worker_held_bytes=1) as (router, _):
        for number in range(5):
            router.dispatch(number)
        await trio.testing.wait_all_tasks_blocked()
        begun = len(started)
        slow.set()
        ends = await router.outcomes(5)
    assert begun == 1
    assert {value for _, value in ends.values()} == {bytes(100_000)}


SPAN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def echo(rollout: Any) -> Any:
    return rollout.input


async def heard(stream: MessageStream) -> list[Any]:
    """The messages that come next."""
    return [
        messages.decode(bytes(frames[-1 if len(frames) == 2 else -2]), most_bytes=WIRE.header_bytes)
        for frames in await stream.receive()
    ]


async def work(
    stream: MessageStream, make: Callable[[], LoadedEnvironment], ends: list[bool], **more: Any
) -> None:
    limits = ServerLimits(beat_s=2.0)
    ends.append(
        await run_worker(
            stream,
            worker=b"w",
            incarnation=INCARNATION,
            load=make,
            limits=limits,
            wire=WIRE,
            **more,
        )
    )


async def test_a_worker_says_hello_once_and_beats(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ours, theirs = open_memory_streams(WIRE)
    ends: list[bool] = []
    touched: list[float] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(work, theirs, lambda: load(echo), ends, touch=touched.append))
        began_s = trio.current_time()
        for number in range(2):
            said = await heard(ours)
            assert trio.current_time() == began_s + 2 * number
            if not number:
                hello = said.pop(0)
                assert isinstance(hello, messages.WorkerHello)
                assert (hello.environment, hello.rerun) == ("echo", False)
            (beat,) = said
            assert beat[:4] == (b"", 0, 1, [])
            assert beat.stats["loop_lag_max_s"] < 1e-6
        assert 20 <= len(touched) <= 21
        assert {*touched} == {0.1}
        autojump_clock.jump(1.0)  # the loop is held up
        router = Router(ours, theirs)
        (beat,) = await heard(ours)
        assert 0.9 < beat.stats["loop_lag_max_s"] < 1.1
        assert beat.stats["running"] == beat.stats["fenced"] == beat.stats["malformed"] == 0
        router.send(messages.Retire())
    assert ends == [True]


def not_found() -> LoadedEnvironment:
    raise ConfigError("there is no such environment")


class Broken:
    async def setup(self) -> None:
        raise ValueError("no disk")

    async def run_rollout(self, rollout: Any) -> None:
        raise AssertionError("it was never set up")


class Misplaced:
    sandbox = "nonsense"

    def reset(self) -> str:
        raise AssertionError("it was never set up")

    def get_reward(self) -> float:
        return 0.0


@pytest.mark.parametrize(
    ("make", "code", "text", "has_traceback"),
    [
        (not_found, messages.UNLOADABLE, "there is no such environment", False),
        (lambda: load(Broken()), "broken", "no disk", True),
        # Each worker that started showed a traceback of this package, three times.
        (lambda: load(Misplaced), messages.UNLOADABLE, "no provider of sandboxes is called", False),
    ],
)
async def test_a_worker_whose_environment_cannot_be_set_up_says_why_and_ends(
    make: Callable[[], LoadedEnvironment], code: str, text: str, has_traceback: bool,
    autojump_clock: object,
) -> None:  # fmt: skip
    ours, theirs = open_memory_streams(WIRE)
    ends: list[bool] = []
    with trio.fail_after(60):
        await work(theirs, make, ends)
        (broken,) = await heard(ours)
    assert ends == [False]
    assert isinstance(broken, messages.WorkerBroken)
    assert broken.error["code"] == code
    assert text in broken.error["message"]
    assert bool(broken.error["traceback"]) == has_traceback


async def test_an_execution_stands_below_the_span_of_its_dispatch_and_no_other_does() -> None:
    async def where(rollout: Any) -> str | None:
        return tracing.here()

    async with opened(where) as (router, _):
        for traceparent in (None, SPAN, None):
            router.traceparent = traceparent
            router.dispatch(None)
        ends = await router.outcomes(3)
    assert [ends[number][1] for number in sorted(ends)] == [None, SPAN, None]


async def test_an_outcome_says_how_long_its_execution_took(autojump_clock: object) -> None:
    async def slow(rollout: Any) -> None:
        await trio.sleep(rollout.input)

    async with opened(slow, beat_s=1000.0) as (router, _):
        router.dispatch(3)
        (outcome,) = await heard(router.stream)
        assert outcome.duration_s == pytest.approx(3.0)


# -- late rollouts ----------------------------------------------------------------------


async def test_rollout_is_late_when_its_dispatch_says_and_others_are_never(autojump_clock):
    async def play(rollout):
        with trio.move_on_after(1000):
            await rollout.late.wait()
        return {"after_s": trio.current_time() - began_s, "left_s": rollout.late.left_s()}

    async with opened(play, patience_s=5000) as (router, _):
        began_s = trio.current_time()
        numbers = [router.dispatch(None, late_s) for late_s in (5.0, 0.0, None)]
        found = await router.outcomes(3)
    assert [found[number][1] for number in numbers] == [
        {"stop": "deadline", "after_s": 5.0, "left_s": 0.0},
        {"stop": "deadline", "after_s": 0.0, "left_s": 0.0},
        {"after_s": 1000.0, "left_s": float("inf")},
    ]


@pytest.mark.parametrize("backend", BACKENDS)
async def test_rollout_in_each_backend_sees_that_it_is_late(backend):
    class Waits:
        def __init__(self):
            self.backend = backend
            self.run_rollout = self.plain if backend == "thread" else self.coroutine

        def plain(self, rollout):
            while not rollout.late.is_set():
                time.sleep(rollout.late.left_s())
            return {"backend": "thread"}

        async def coroutine(self, rollout):
            await rollout.late.wait()
            assert rollout.late.is_set()
            return {"backend": backend}

    async with opened(Waits()) as (router, _):
        number = router.dispatch(None, 0.05)
        found = await router.outcomes(1)
    assert found[number] == (Status.RESULT, {"stop": "deadline", "backend": backend})


async def create(name: str) -> str:
    return "handle"


async def destroy(name: str, handle: str | None) -> None:
    pass


async def test_g9_an_outcome_waited_for_ever_as_its_resource_was_told_before_the_new_hello(
    autojump_clock: object,
) -> None:
    """An answer and a change of the router came in one batch: what the answer brought about was
    said behind the change, and sent before the hello that follows from it."""

    async def given_up(rollout: Any) -> str:
        with trio.move_on_after(1):
            async with rollout.resource("sandbox", create, destroy):
                raise AssertionError
        await trio.sleep(10)
        return "fine"

    epoch = b"e" * 16
    async with opened(given_up, patience_s=30) as (router, _):
        router.dispatch("x")
        current, status = b"", None
        while status is None:
            for message, _ in await router.heard():
                match message:
                    case messages.WorkerHello():
                        current = message.epoch
                    case messages.ResourceIntended(resource=place) if not current:
                        await trio.sleep(5)
                        router.send(messages.ResourceAnswer("name", 0, "", place))
                        router.send(messages.RouterChanged(epoch))
                    case messages.ResourceStated(name=name, state=state) if current == epoch:
                        router.send(messages.ResourceAnswer(name, state, ""))
                    case messages.WorkerOutcome():
                        status = Status(message.status)
        assert status is Status.RESULT
