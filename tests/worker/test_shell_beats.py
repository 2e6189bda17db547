"""The worker's shell: what it says of itself, and how it begins and ends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from tests.worker.test_shell import INCARNATION, WIRE, Router, opened
from trio_envserve import ConfigError, tracing
from trio_envserve.core import messages
from trio_envserve.core.limits import WorkerLimits
from trio_envserve.envs import LoadedEnvironment, load
from trio_envserve.net import MessageStream, open_memory_streams
from trio_envserve.worker.shell import run_worker

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
    limits = WorkerLimits(beat_s=2.0)
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


async def test_a_worker_says_hello_with_each_beat_until_it_has_an_answer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ours, theirs = open_memory_streams(WIRE)
    ends: list[bool] = []
    touched: list[float] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(work, theirs, lambda: load(echo), ends, touch=touched.append))
        began_s = trio.current_time()
        for number in range(2):
            hello, beat = await heard(ours)
            assert trio.current_time() == began_s + 2 * number
            assert isinstance(hello, messages.WorkerHello)
            assert (hello.environment, hello.rerun) == ("echo", False)
            assert beat.beat == number + 1
            assert beat.stats["loop_lag_max_s"] < 1e-6
        assert 20 <= len(touched) <= 21
        assert {*touched} == {0.1}
        autojump_clock.jump(1.0)  # the loop is held up
        router = Router(ours, theirs)
        router.send(messages.Statement(0, 0, [], []))
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


@pytest.mark.parametrize(
    ("make", "code", "text"),
    [
        (not_found, messages.UNLOADABLE, "there is no such environment"),
        (lambda: load(Broken()), "broken", "no disk"),
    ],
)
async def test_a_worker_whose_environment_cannot_be_set_up_says_why_and_ends(
    make: Callable[[], LoadedEnvironment], code: str, text: str, autojump_clock: object
) -> None:
    ours, theirs = open_memory_streams(WIRE)
    ends: list[bool] = []
    with trio.fail_after(60):
        await work(theirs, make, ends)
        (broken,) = await heard(ours)
    assert ends == [False]
    assert isinstance(broken, messages.WorkerBroken)
    assert broken.error["code"] == code
    assert text in broken.error["message"]


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
