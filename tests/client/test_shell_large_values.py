"""Values that take long: decoded and encoded beside the client's loop."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest
import trio

from tests.client.conftest import patient_pair
from trio_envserve import Client, NotEncodable, OutcomeNotDecodable
from trio_envserve.client.options import HASHED_AT_ONCE, Asked, checked
from trio_envserve.client.shell import encode, run_encoded
from trio_envserve.core import values
from trio_envserve.core.key_records import input_digest
from trio_envserve.core.limits import WireLimits

pytestmark = pytest.mark.usefixtures("eager")

LARGE = [[number / 3, f"{number}"] * 60 for number in range(1_000)]


async def large(rollout: Any) -> Any:
    return LARGE


async def test_a_large_outcome_was_decoded_on_the_callers_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    by_loop: list[bool] = []
    read, whole = values._Paused.read, values._value

    def by_piece(self: Any, size: int) -> Any:
        by_loop.append(threading.current_thread() is threading.main_thread())
        return read(self, size)

    def at_once(data: Any, accepted: Any, limits: Any, pause: Any) -> Any:
        by_loop.append(len(data) > 100_000 and pause is None)
        return whole(data, accepted, limits, pause)

    monkeypatch.setattr(values._Paused, "read", by_piece)
    monkeypatch.setattr(values, "_value", at_once)
    async with patient_pair() as client:
        assert await client.run_rollout(LARGE) == LARGE
    assert len(by_loop) > 10
    assert not any(by_loop)


async def test_an_outcome_is_received_when_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is cancelled meanwhile has not got it; the server need not keep it either."""
    decoding = trio.Event()
    real = values._Paused.read

    def read(self: Any, size: int) -> Any:
        trio.from_thread.run_sync(decoding.set)
        while True:
            self._pause()

    async with patient_pair(large) as client:
        core = client._driver.core
        kept = []
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                @nursery.start_soon
                async def call() -> None:
                    await client.run_rollout("x")

                monkeypatch.setattr(values._Paused, "read", read)
                await decoding.wait()
                kept.append(len(core.calls.live))
                scope.cancel()
        kept.append(len(core.calls.live))
        monkeypatch.setattr(values._Paused, "read", real)
        assert kept == [1, 0]
        assert await client.run_rollout("y") == LARGE


async def run_one(client: Client, input: Any, **options: Any) -> Any:
    return await client.run_rollout(input, **options)


async def run_many(client: Client, input: Any, **options: Any) -> Any:
    async with client.run_many([input], **options) as outcomes:
        return (await anext(outcomes))[1].unwrap()


async def run_for_a_door(client: Client, input: Any, **options: Any) -> Any:
    encoded = await encode(client, checked(input, **options))
    return (await run_encoded(client, encoded)).unwrap()


@pytest.mark.parametrize("run", [run_one, run_many, run_for_a_door])
async def test_a_large_input_was_found_to_be_large_again_and_again(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop was held for some 30 ms each time, twice or thrice for one call."""
    tries: list[bool] = []
    encoded = Asked.encoded

    def counted(self: Asked, limits: Any, **how: Any) -> Any:
        tries.append(how.get("at_once", False))
        return encoded(self, limits, **how)

    monkeypatch.setattr(Asked, "encoded", counted)
    async with patient_pair() as client:
        assert await run(client, LARGE) == LARGE
    assert tries == [True, False]


@pytest.mark.parametrize(("more", "on_loop"), [(-1, True), (0, False)])
async def test_only_inputs_of_keyed_calls_are_hashed_and_only_large_ones_in_a_thread(
    more: int, on_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[bool] = []
    encoded = Asked.encoded
    wire = WireLimits()
    form_bytes = len(checked(bytes(HASHED_AT_ONCE)).encoded(wire)) - HASHED_AT_ONCE
    input = bytes(HASHED_AT_ONCE - form_bytes + more)

    def counted(self: Asked, limits: Any, **how: Any) -> Any:
        body = encoded(self, limits, **how)
        assert len(body) == HASHED_AT_ONCE + more
        tries.append(how.get("at_once", False))
        return body

    monkeypatch.setattr(Asked, "encoded", counted)
    async with patient_pair() as client:
        await client.run_rollout(input, key="key")
        assert tries == ([True] if on_loop else [True, False])
        await client.run_rollout(input)
        assert tries.pop() is True


async def test_a_door_is_told_what_cannot_be_encoded_and_its_call_is_made_at_once() -> None:
    async with patient_pair() as client:
        for input in ([1, object()], [LARGE, object()]):
            with pytest.raises(NotEncodable, match=r"input\[1\]") as caught:
                await encode(client, checked(input))
            assert caught.value.path == "input[1]"
        encoded = await encode(client, checked("x"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_encoded, client, encoded)
            with trio.move_on_after(0):
                await trio.sleep_forever()
            await trio.lowlevel.checkpoint()  # it may have come first in that turn
            assert len(client._driver.core.calls.live) == 1


async def test_a_large_outcome_that_cannot_be_read_is_received_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read(self: Any, size: int) -> Any:
        raise RuntimeError("a bug")

    async with patient_pair(large) as client:
        outcome = await client.outcome("x")
        assert 0 <= outcome.took_s < 120
        with monkeypatch.context() as patched:
            patched.setattr(values._Paused, "read", read)
            broken = await client.outcome("x")
        assert isinstance(broken.error, OutcomeNotDecodable)
        assert "a bug" in str(broken.error)
        assert values.decode(broken.error.raw) == LARGE
        assert broken.value is None
        assert not client._driver.core.calls.live


async def test_g4_a_large_outcome_was_lost_where_no_thread_could_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was received, and its caller got the error of the thread."""

    async def refused(work: Any) -> None:
        raise RuntimeError("can't start new thread")

    async with patient_pair(large) as client:
        with monkeypatch.context() as patched:
            patched.setattr(client._threads, "run", refused)
            broken = await client.outcome("x")
        assert isinstance(broken.error, OutcomeNotDecodable)
        assert "can't start new thread" in str(broken.error)
        assert values.decode(broken.error.raw) == LARGE
        assert broken.executions == 1
        assert not client._driver.core.calls.live


@pytest.mark.parametrize("run", [run_one, run_many, run_for_a_door])
@pytest.mark.parametrize("made", [bytes, lambda size: [bytes(size), Record(5)]])
async def test_inputs_of_keyed_calls_were_hashed_on_the_callers_loop(
    run: Any, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In run_many."""
    on_loop: list[bool] = []

    def hashed(body: Any, rerun: Any) -> bytes:
        on_loop.append(threading.current_thread() is threading.main_thread())
        return input_digest(body, rerun)

    monkeypatch.setattr("trio_envserve.client.options.input_digest", hashed)
    size = HASHED_AT_ONCE
    async with patient_pair() as client:
        await run(client, made(size), key="large")
        assert on_loop == [False]
        await run(client, made(size // 2), key="small")
    assert on_loop == [False, True]


@dataclasses.dataclass
class Record:
    number: int


async def test_large_requests_of_any_kind_are_encoded() -> None:
    async with patient_pair() as client:
        assert await client.run_rollout([LARGE, Record(5)]) == [LARGE, {"number": 5}]
        for told in ([LARGE, object()], [Record(5), LARGE, object()]):
            with pytest.raises(NotEncodable, match=r"input\[\d\]"):
                await client.run_rollout(told)
