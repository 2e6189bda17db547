from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from trio_envserve import ConfigError
from trio_envserve.trainers import calls
from trio_envserve.trainers.calls import (
    CallSettings,
    ask_rollout,
    close_clients,
    input_of,
    plain,
)
from trio_envserve.trainers.samples import NO_LOGPROBS


@pytest.fixture
def settings(address: str) -> CallSettings:
    return CallSettings(address=address, model="oracle")


async def ask(settings: CallSettings, case: str = "good") -> Any:
    return await ask_rollout(settings, {"case": case}, group="g", rollout="g/0")


@pytest.mark.parametrize(
    ("prompt", "more", "asked"),
    [
        ("2 + 2?", {"case": 1}, {"prompt": "2 + 2?", "case": 1}),
        ("2 + 2?", None, {"prompt": "2 + 2?"}),
        ("2 + 2?", {"prompt": "2 + 2?"}, {"prompt": "2 + 2?"}),
        (None, {"prompt": "3 + 3?"}, {"prompt": "3 + 3?"}),
        ("2 + 2?", {"prompt": None, "case": None}, {"prompt": "2 + 2?", "case": None}),
        (np.array([1, 2]), {"prompt": [1, 2]}, {"prompt": [1, 2]}),
        ("2 + 2?", {"prompt": "3 + 3?"}, None),
        (np.array([1, 2]), {"prompt": [1, 3]}, None),
    ],
)
def test_prompt_of_a_row_was_replaced_by_one_of_its_extras(prompt: Any, more: Any, asked: Any):
    row = {"prompt": prompt, "extra_info": more}
    if asked is not None:
        assert input_of(row, "extra_info") == asked
        return
    with pytest.raises(ConfigError, match=r"two values of 'prompt': .* in its extra_info"):
        input_of(row, "extra_info")


def client_threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name == "trio_envserve client"}


def check_ended(threads: set[threading.Thread]) -> None:
    """They have handed over what they had, and end; a thread that goes on hangs here."""
    for thread in threads:
        thread.join()


@pytest.mark.real
def test_one_client_serves_all_calls_of_an_event_loop_and_ends_with_it(settings: CallSettings):
    async def run() -> set[threading.Thread]:
        before = client_threads()
        await asyncio.gather(*[ask(settings) for _ in range(20)])
        return client_threads() - before

    for _ in range(2):
        opened = asyncio.run(run())
        assert len(opened) == 1
        check_ended(opened)


@pytest.mark.real
def test_segment_that_is_left_out_of_a_rollout_that_is_trained_on_was_not_logged(
    settings: CallSettings, caplog: pytest.LogCaptureFixture
):
    asyncio.run(ask(settings, "half"))
    assert caplog.messages == [f"1 of 2 segments of rollout g/0 are not trained on: {NO_LOGPROBS}"]


@pytest.mark.real
def test_closed_client_is_opened_again_by_the_next_call(settings: CallSettings):
    async def run() -> None:
        before = client_threads()
        await ask(settings)
        opened = client_threads() - before
        await close_clients()
        check_ended(opened)
        assert (await ask(settings)).counts
        await close_clients()
        assert not calls._openings

    asyncio.run(run())


@pytest.mark.real
def test_cancelled_caller_leaves_the_opening_client_to_the_others(settings: CallSettings):
    async def run() -> None:
        first = asyncio.create_task(ask(settings))
        others = [asyncio.create_task(ask(settings)) for _ in range(3)]
        await asyncio.sleep(0)
        first.cancel()
        assert [(await each).counts for each in others] == [True] * 3
        assert first.cancelled()

    asyncio.run(run())


def test_client_that_cannot_be_opened_is_tried_again():
    async def run() -> None:
        for _ in range(2):
            with pytest.raises(ValueError, match="got 'nowhere'"):
                await ask(CallSettings(address="nowhere"))
        assert not calls._openings

    asyncio.run(run())


def test_client_of_a_caller_that_tried_again_was_dropped_by_who_had_waited_with_it(
    monkeypatch: pytest.MonkeyPatch,
):
    """Nobody closed it, and the next call opened another one."""
    settings, opened = CallSettings(address="tcp://x:1"), list[str]()

    @asynccontextmanager
    async def opens_at_the_second_try(address: str, **_: Any) -> AsyncIterator[str]:
        opened.append(address)
        await asyncio.sleep(0)
        if len(opened) == 1:
            raise OSError("not yet")
        yield "client"

    monkeypatch.setattr(calls, "open_client_asyncio", opens_at_the_second_try)

    async def refused() -> None:
        with pytest.raises(OSError, match="not yet"):
            await calls._opening(settings)

    async def refused_and_opened() -> None:
        await refused()
        await calls._opening(settings)

    async def run() -> None:
        await asyncio.gather(refused_and_opened(), refused())
        await calls._opening(settings)
        await close_clients()

    asyncio.run(run())
    assert len(opened) == 2


@pytest.mark.parametrize(
    ("value", "made_plain"),
    [
        (np.float32(0.5), 0.5),
        (np.array([{"a": np.int64(1)}], dtype=object), [{"a": 1}]),
        ({"a": (1, np.array([2, 3]))}, {"a": [1, [2, 3]]}),
        ("text", "text"),
        (b"bytes", b"bytes"),
        (None, None),
    ],
)
def test_value_of_a_data_set_is_made_plain(value: Any, made_plain: Any):
    found = plain(value)
    assert found == made_plain
    assert type(found) is type(made_plain)
