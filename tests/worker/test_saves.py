"""The saves of rollouts: on every backend, in attempts and groups, and what cannot be saved."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from tests.worker.helpers import BACKENDS, SavesRouter, on_asyncio, opened, request
from trio_envserve import EncodingError, ModelUsage, RolloutCancelled, SavedTurn, SaveRefused
from trio_envserve.core import values
from trio_envserve.core.limits import KIB, MIB, ServerLimits, WireLimits
from trio_envserve.core.terms import RequestId
from trio_envserve.core.values import DecodingError
from trio_envserve.core.worker import ENDED, BeginRun
from trio_envserve.envs import load
from trio_envserve.worker.failures import EnvironmentFailure
from trio_envserve.worker.runners import ExecutionContext
from trio_envserve.worker.saves import SaveCodec, Saves

WIRE, SAVE_BYTES = WireLimits(), ServerLimits().save_bytes


def record(state: Any, doing: str | None = None) -> dict[str, Any]:
    """What a rollout that has asked nothing saves."""
    usage = ModelUsage().to_record()
    return {"state": state, "doing": doing, "usage": usage, "asked": [], "answered_by": []}


async def run(env: Any, router: SavesRouter, asked: Any = None) -> Any:
    async with opened(load(env), threads=4) as runner:
        context = ExecutionContext(saves=router.saves)
        return await runner.run(asked or request(), request_id="ab#0", context=context)


def saving(backend: str, body: Callable[..., Any]) -> Any:
    """An environment of this backend that saves each item of what ``body`` makes of the rollout."""
    if backend == "thread":

        def plain(rollout):
            for state, doing in body(rollout):
                rollout.save_sync(state, doing=doing)
            return rollout.saved

        return plain

    async def coroutine(rollout):
        for state, doing in body(rollout):
            await rollout.save(state, doing=doing)
        return rollout.saved

    return on_asyncio(coroutine) if backend == "asyncio" else coroutine


@pytest.mark.parametrize("backend", BACKENDS)
async def test_every_backend_can_save_and_goes_on_from_there(backend: str):
    first = SavesRouter()
    states = [({"turn": 1}, None), ({"turn": 2}, "books seat 3")]
    assert await run(saving(backend, lambda rollout: states), first) is None
    assert first.states(first.sent[0]) == {0: record({"turn": 1})}
    second = SavesRouter(first.sent[-1])
    begins = await run(saving(backend, lambda rollout: []), second)
    assert begins == SavedTurn({"turn": 2}, "books seat 3")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("refusal", ["it is too large", ""])
async def test_save_that_is_refused_raises_in_words(backend: str, refusal: str):
    router = SavesRouter()
    router.refusal = refusal
    if not refusal:
        assert await run(saving(backend, lambda rollout: [(1, None)]), router) is None
        return
    with pytest.raises(EnvironmentFailure) as failed:
        await run(saving(backend, lambda rollout: [(1, None)]), router)
    assert isinstance(failed.value.exception, SaveRefused)
    assert str(failed.value.exception) == f"the state was not saved: {refusal}"


@pytest.mark.parametrize("backend", BACKENDS)
async def test_what_cannot_be_encoded_is_not_sent(backend: str):
    router = SavesRouter()
    with pytest.raises(EnvironmentFailure) as failed:
        await run(saving(backend, lambda rollout: [({"a": [object()]}, None)]), router)
    assert isinstance(failed.value.exception, EncodingError)
    assert str(failed.value.exception).startswith("save.state.a[0]: ")
    assert router.sent == []


async def test_what_it_does_next_is_text():
    with pytest.raises(EnvironmentFailure, match="doing must be text, not int"):
        await run(saving("trio", lambda rollout: [(1, 2)]), SavesRouter())


async def test_without_a_server_a_rollout_saves_in_vain():
    async with opened(load(saving("trio", lambda rollout: [(1, None)])), threads=1) as runner:
        assert await runner.run(request(), request_id="ab#0") is None


async def test_an_attempt_goes_on_from_the_last_save_of_the_one_before():
    began = []

    async def body(rollout):
        began.append((rollout.attempt, rollout.saved))
        done = 0 if rollout.saved is None else rollout.saved.state["done"]
        await rollout.save({"done": done + 1}, doing=f"attempt {rollout.attempt}")
        if rollout.attempt < 3:
            raise ValueError("no")
        return done

    assert await run(body, SavesRouter(), request(max_retries=5)) == 2
    assert began == [
        (1, None), (2, SavedTurn({"done": 1}, "attempt 1")),
        (3, SavedTurn({"done": 2}, "attempt 2")),
    ]  # fmt: skip


async def test_an_attempt_after_a_save_of_none_begins_anew():
    """It found a saved turn without a state, which code that goes on from one cannot read."""
    began = []

    async def body(rollout):
        began.append(rollout.saved)
        await rollout.save({"done": 1})
        if rollout.attempt < 3:
            await rollout.save(None, doing="books" if rollout.attempt == 2 else None)
            raise ValueError("no")

    await run(body, SavesRouter(), request(max_retries=5))
    assert began == [None, None, SavedTurn(None, "books")]


async def test_no_attempt_sees_what_another_has_done_to_its_state():
    async def body(rollout):
        if rollout.saved is None:
            await rollout.save({"list": []})
        else:
            assert rollout.saved.state == {"list": []}
            rollout.saved.state["list"].append(1)
        if rollout.attempt < 4:
            raise ValueError("no")

    await run(body, SavesRouter(), request(max_retries=3))


async def test_an_attempt_waits_for_the_answer_to_a_save_that_its_caller_gave_up():
    router = SavesRouter(at_once=False)
    began = []
    given_up = trio.Event()

    async def body(rollout):
        began.append(rollout.saved)
        if rollout.attempt == 1:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(rollout.save, "late")
                await given_up.wait()
                nursery.cancel_scope.cancel()
            raise ValueError("no")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, body, router, request(max_retries=1))
        await trio.testing.wait_all_tasks_blocked()
        assert began == [None]
        given_up.set()
        await trio.testing.wait_all_tasks_blocked()
        assert began == [None]
        router.answer()
    assert began == [None, SavedTurn("late")]


async def test_a_result_says_of_all_executions_what_the_model_was_asked():
    first = SavesRouter()

    async def asks(rollout):
        messages = [{"role": "user", "content": "one"}]
        if rollout.saved is not None:
            messages = [*rollout.saved.state, {"role": "user", "content": "two"}]
        answer = await rollout.ask(messages, reference="yes")
        await rollout.save([*messages, answer.message])
        return {"reward": 1.0}

    before = await run(asks, first)
    result = await run(asks, SavesRouter(first.sent[-1]))
    assert result["prompt"] == before["prompt"] == [{"role": "user", "content": "one"}]
    assert (before["usage"]["calls"], result["usage"]["calls"]) == (1, 2)


# -- groups ------------------------------------------------------------------------


async def test_members_of_a_group_have_states_of_their_own():
    async def body(rollout):
        before = rollout.saved
        await rollout.save(f"{rollout.input}{rollout.member}")
        return None if before is None else before.state

    router = SavesRouter()
    asked = request(["a", "b"], kind="group")
    members = await run(body, router, asked)
    assert [each["value"] for each in members] == [None, None]
    states = router.states()
    assert {member: each["state"] for member, each in states.items()} == {0: "a0", 1: "b1"}
    again = await run(body, SavesRouter(router.sent[-1]), asked)
    assert [each["value"] for each in again] == ["a0", "b1"]


async def test_members_save_one_after_the_other_and_each_save_has_all():
    router = SavesRouter(at_once=False)

    async def body(rollout):
        await rollout.save(rollout.member)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, body, router, request([1, 2, 3], kind="group"))
        for count in (1, 2, 3):
            await trio.testing.wait_all_tasks_blocked()
            assert len(router.sent) == count
            assert len(router.states()) == count
            router.answer()


async def test_a_group_that_the_environment_runs_has_the_states_of_its_members():
    class Together:
        async def run_rollout(self, rollout):
            raise AssertionError("alone")

        async def run_group(self, rollouts):
            for each in rollouts:
                await each.save(each.member)
            return [each.saved and each.saved.state for each in rollouts]

    router = SavesRouter()
    asked = request([1, 2], kind="group")
    await run(Together(), router, asked)
    members = await run(Together(), SavesRouter(router.sent[-1]), asked)
    assert [each["value"] for each in members] == [0, 1]


# -- cancellation and ends ---------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_save_that_waits_is_cancelled_with_its_rollout(backend: str):
    router, raised = SavesRouter(at_once=False), list[type[BaseException]]()

    def plain(rollout):
        try:
            rollout.save_sync("state")
        except RolloutCancelled as error:
            raised.append(type(error))
            raise

    async def coroutine(rollout):
        try:
            await rollout.save("state")
        except (trio.Cancelled, asyncio.CancelledError) as error:
            raised.append(type(error))
            raise

    env: Any = plain if backend == "thread" else coroutine
    if backend == "asyncio":
        on_asyncio(env)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, env, router)
            while not router.sent:  # noqa: ASYNC110
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    kinds = {"thread": RolloutCancelled, "trio": trio.Cancelled, "asyncio": asyncio.CancelledError}
    assert raised == [kinds[backend]]


async def test_what_saves_after_the_end_of_its_execution_is_refused():
    router = SavesRouter(at_once=False)
    async with trio.open_nursery() as nursery:

        async def saves() -> None:
            with pytest.raises(SaveRefused, match=ENDED):
                await router.saves.save(0, record("state"))

        nursery.start_soon(saves)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(saves)
        await trio.testing.wait_all_tasks_blocked()
        router.saves.close()
    assert len(router.sent) == 1
    router.answer()  # nobody waits for it


async def test_answers_go_to_the_execution_that_saves():
    sent: list[tuple[int, bytes]] = []
    saves = Saves(lambda number, save: sent.append((number, save)), WIRE, SAVE_BYTES)
    saves.answered(7, "")
    saves.end(7)
    first, second = (
        saves.begin(BeginRun(number, RequestId(bytes(16), number), "c", b"")) for number in (0, 1)
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.save, 0, record("a"))
        nursery.start_soon(second.save, 0, record("b"))
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(number for number, _ in sent) == [0, 1]
        saves.answered(0, "")
        saves.answered(1, "")
    assert await first.saved(0) == record("a")
    assert await second.saved(0) == record("b")


# -- what is large, and what is none -----------------------------------------------


async def test_a_large_state_is_encoded_and_decoded_in_a_thread(monkeypatch: pytest.MonkeyPatch):
    threads: dict[str, set[str]] = {"encode_to_send": set(), "decode": set()}
    for name in threads:
        code = getattr(values, name)

        def watched(*args: Any, code: Any = code, name: str = name, **how: Any) -> Any:
            threads[name].add(threading.current_thread().name)
            return code(*args, **how)

        monkeypatch.setattr(values, name, watched)
    codec = SaveCodec(WIRE, SAVE_BYTES)
    saved = record([{"n": number} for number in range(20_000)], "counts")
    assert await codec.decoded(await codec.encoded(saved)) == saved
    assert all(len(each) == 2 for each in threads.values())


@pytest.mark.parametrize(
    "save",
    [b"", b"\xff", values.encode([1]), values.encode({"a": b""}), values.encode({0: 1}),
     values.encode({0: b""}), values.encode({0: values.encode(7)}),
     values.encode({0: values.encode({"state": 1})}),
     values.encode({0: values.encode({**record(1), "usage": {"calls": 1}})})],
)  # fmt: skip
async def test_bytes_that_are_no_save_fail_the_rollout_and_nothing_else(save: bytes):
    with pytest.raises(EnvironmentFailure) as failed:
        await run(saving("trio", lambda rollout: []), SavesRouter(save))
    assert isinstance(failed.value.exception, DecodingError)


async def test_a_state_has_its_bounds():
    codec = SaveCodec(WireLimits(depth=3), SAVE_BYTES)
    with pytest.raises(EncodingError, match="nested"):
        await codec.encoded(record([[[[1]]]]))
    assert len(await codec.encoded(record(bytes(64 * KIB)))) > 64 * KIB


async def test_g8_a_state_of_100_mb_is_refused_before_it_is_copied():
    router = SavesRouter()
    with pytest.raises(EnvironmentFailure) as failed:
        await run(saving("trio", lambda rollout: [(bytes(100 * MIB), None)]), router)
    assert isinstance(failed.value.exception, SaveRefused)
    assert failed.match(rf"it has 10485\d\d\d\d bytes, and {SAVE_BYTES} are allowed \(save_bytes\)")
    assert router.sent == []


async def test_g8_a_state_counts_by_what_its_value_costs():
    codec = SaveCodec(WIRE, 100 * KIB)
    with pytest.raises(SaveRefused, match="save_bytes"):
        await codec.encoded(record([[] for _ in range(50_000)]))
