"""Values that take long: decoded and encoded beside the worker's loop."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest
import trio

from tests.worker.test_shell import opened
from trio_envserve import turns
from trio_envserve.core import messages, values
from trio_envserve.core.terms import Status, Verdict
from trio_envserve.envs import RolloutRequest

LARGE = [[number / 3, f"{number}"] * 60 for number in range(1_000)]
"""Takes long to decode, and to encode."""


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads give the loop a turn after each piece, so that no test needs luck."""
    monkeypatch.setattr(turns, "_TURN_S", 0.0)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each piece that was decoded or encoded was so by the loop's own thread."""
    seen: list[bool] = []

    def watch(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def watched(self: Any, *args: Any, **options: Any) -> Any:
            seen.append(threading.current_thread() is threading.main_thread())
            return real(self, *args, **options)

        monkeypatch.setattr(owner, name, watched)

    watch(values._Paused, "read")
    watch(values._Written, "write")
    return seen


async def test_a_large_request_was_decoded_on_the_loop(threads: list[bool]) -> None:
    """Other rollouts and the worker's signs of life waited for seconds."""

    async def environment(rollout: Any) -> Any:
        return len(rollout.input)

    async with opened(environment, patience_s=60) as (router, _):
        threads.clear()  # of its own encoding
        number = router.dispatch(LARGE)
        threads.clear()
        assert await router.outcomes(1) == {number: (Status.RESULT, len(LARGE))}
    pieces = list(threads)
    assert len(pieces) > 10
    assert sum(pieces) <= 1  # the outcome itself


async def test_a_large_result_was_encoded_on_the_loop(threads: list[bool]) -> None:
    turns_of_others = 0

    async def environment(rollout: Any) -> Any:
        nonlocal turns_of_others
        if rollout.input == "large":
            return LARGE
        while "done" not in seen:
            turns_of_others += 1
            await trio.lowlevel.checkpoint()
        return None

    seen: list[str] = []
    async with opened(environment, patience_s=60) as (router, _):
        beside = router.dispatch("beside")
        large = router.dispatch("large")
        threads.clear()
        found = await router.outcomes(1)
        seen.append("done")
        found |= await router.outcomes(1)
    assert found == {large: (Status.RESULT, LARGE), beside: (Status.RESULT, None)}
    assert False in threads
    assert turns_of_others > 10


async def test_a_cancel_while_a_request_is_decoded_is_one_before_it_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began = []

    async def environment(rollout: Any) -> Any:
        began.append(rollout.input)

    decoding = trio.Event()
    real = values._Paused.read

    def read(self: Any, size: int) -> Any:
        trio.from_thread.run_sync(decoding.set)
        return real(self, size)

    async with opened(environment, patience_s=60) as (router, _):
        number = router.dispatch(LARGE)
        monkeypatch.setattr(values._Paused, "read", read)
        await decoding.wait()
        router.send(messages.Stop([number, number + 1]))
        ((status, info),) = (await router.outcomes(1)).values()
    assert (status, info.verdict) == (Status.CANCELLED, Verdict.DID_NOT_RUN)
    assert began == []


async def test_a_cancel_while_a_result_is_encoded_is_honoured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoding = trio.Event()
    real = values.encode_to_send

    def encode(*args: Any, **options: Any) -> Any:
        if options.get("pause"):
            trio.from_thread.run_sync(encoding.set)
            while True:
                options["pause"]()
        return real(*args, **options)

    async def environment(rollout: Any) -> Any:
        return LARGE

    async with opened(environment, patience_s=60) as (router, _):
        number = router.dispatch("large")
        monkeypatch.setattr(values, "encode_to_send", encode)
        await encoding.wait()
        router.send(messages.Stop([number, number + 1]))
        ((status, info),) = (await router.outcomes(1)).values()
    assert (status, info.verdict) == (Status.CANCELLED, Verdict.MAY_HAVE_RUN)


@dataclasses.dataclass
class Record:
    number: int


async def test_code_of_a_large_value_runs_on_its_loop() -> None:
    by_loop = []

    class Lazy(Record):
        @property
        def __dict__(self) -> Any:  # type: ignore[override]  # never asked for
            raise AssertionError

        def __getattribute__(self, name: str) -> Any:
            by_loop.append(threading.current_thread() is threading.main_thread())
            return object.__getattribute__(self, name)

    async def environment(rollout: Any) -> Any:
        return [LARGE, Lazy(5), LARGE]

    async with opened(environment, patience_s=60) as (router, _):
        number = router.dispatch("large")
        expected = [LARGE, {"number": 5}, LARGE]
        assert await router.outcomes(1) == {number: (Status.RESULT, expected)}
    assert by_loop
    assert all(by_loop)


async def test_a_large_request_that_is_broken_is_refused() -> None:
    async def environment(rollout: Any) -> Any:
        return [LARGE, {"model": object()}]

    asked = RolloutRequest(kind="rollout", input=LARGE, endpoint="oracle", model_name="m")
    async with opened(environment, patience_s=60) as (router, _):
        body = bytearray(values.encode(asked.to_body()))
        body[body.index(b"\xfb", 500_000)] = 0x1C
        router.number += 1
        router.send(messages.Dispatch(b"s" * 16, 1, router.number, "c"), bytes(body))
        ((status, info),) = (await router.outcomes(1)).values()
        assert (status, info.code) == (Status.ERROR, "refused")
        assert info.verdict is Verdict.DID_NOT_RUN
        assert "request: " in info.message
        # As is a large value that has no encoding.
        router.dispatch("large")
        ((status, info),) = (await router.outcomes(1)).values()
    assert (status, info.code) == (Status.ERROR, "outcome-not-encodable")
    assert "result[1].model" in info.message
