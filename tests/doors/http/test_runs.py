"""``POST /run``: NeMo Gym's rows, whose answers are joined and replayed by their own text."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import trio
import trio.testing

from tests.doors.http.door import asking, open_door, raw
from tests.doors.http.rows import (
    AT_ONCE,
    ID,
    KINDS,
    NEMO_RL,
    NEVER,
    NOTHING,
    NUMBER,
    TOLD,
    Runs,
    nobody_is_connected,
    post,
)
from trio_envserve.doors.http.exchange import WIRE, Exchange
from trio_envserve.doors.http.keys import body_digest
from trio_envserve.doors.http.turns import Turns

# -- what is answered ---------------------------------------------------------------


@pytest.mark.parametrize("row", KINDS)
async def test_the_answer_is_the_row_with_response_and_reward(row: dict[str, Any]):
    runs = Runs()
    sent = {"responses_create_params": {"input": []}, "agent_ref": {"name": "a"}, **row}
    async with open_door(runs) as door, asking(door) as client:
        answer = await client.post("/run", json=sent)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    response = {"output": [], "number": 1}
    assert answer.json() == {**sent, "reward": 0.5, "response": response}
    assert runs.started == [sent]


async def test_messages_are_the_response_of_an_environment_that_returns_none():
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}

    async def environment(rollout: Any) -> Any:
        completion = [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "Paris"},
            {"role": "user", "content": "Sure?"},
            {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]},
            "no message",
        ]
        return {"reward": 1, "completion": completion}

    async with open_door(environment) as door, asking(door) as client:
        response = (await client.post("/run", json=ID)).json()["response"]
    assert response["object"] == "response"
    called, said, asked, answered = response["output"]
    assert (called["type"], called["name"], called["call_id"]) == ("function_call", "look", "c1")
    assert said == {"type": "function_call_output", "call_id": "c1", "output": "Paris"}
    assert asked == {"type": "message", "role": "user", "content": "Sure?"}
    assert answered["content"][0]["text"] == "Yes."


async def test_the_answer_is_plain_json():
    numpy = pytest.importorskip("numpy")

    async def environment(rollout: Any) -> Any:
        ids = numpy.arange(3, dtype="int32")
        item = {"generation_token_ids": ids, "generation_log_probs": [math.nan, -1.0]}
        return {"reward": numpy.float32(0.25), "response": {"output": [item]}}

    async with open_door(environment) as door, asking(door) as client:
        found = (await client.post("/run", json={**ID, "kept": {"$bytes": "as it is"}})).json()
    item = {"generation_token_ids": [0, 1, 2], "generation_log_probs": [None, -1.0]}
    assert found["response"] == {"output": [item]}
    assert found["reward"] == 0.25
    assert found["kept"] == {"$bytes": "as it is"}


async def test_the_model_is_the_doors_and_the_sampling_is_the_rows():
    found = []

    async def environment(rollout: Any) -> Any:
        found.append((rollout.endpoint, dict(rollout.sampling_args)))
        return {"reward": 0}

    asked: dict[str, Any] = {"temperature": 0.5, "top_p": None, "max_output_tokens": 9, "input": []}
    async with (
        open_door(environment, run_model="random", run_model_name="r") as door,
        asking(door) as client,
    ):
        for params in (asked, None, "none"):
            answer = await client.post("/run", json={**ID, "responses_create_params": params})
            assert answer.status_code == 200
    assert [args for _, args in found] == [{"temperature": 0.5, "max_tokens": 9}, {}, {}]


# -- the same again -----------------------------------------------------------------


@pytest.mark.parametrize("row", TOLD)
async def test_the_same_row_again_gets_the_same_answer_and_runs_nothing(row: dict[str, Any]):
    runs = Runs()
    async with open_door(runs, NEVER) as door, asking(door) as client:
        answers = [(await client.post("/run", json=row)).content for _ in range(3)]
    assert len(set(answers)) == 1
    assert len(runs.started) == 1


@pytest.mark.parametrize("row", KINDS)
async def test_who_hangs_up_cancels_nothing_and_finds_it_again(row: dict[str, Any]):
    runs = Runs(go_on=False)
    async with open_door(runs, NEVER) as door:
        for _ in range(3):
            async with raw(door) as peer:
                await post(peer, row)
                await runs.have_started(1)
            await nobody_is_connected(door)
        runs.may_end.set()
        async with raw(door) as peer:
            await post(peer, row)
            assert json.loads((await peer.answer()).body)["response"]["number"] == 1
    assert (len(runs.started), runs.cancelled) == (1, 0)


async def test_another_body_or_attempt_under_an_id_is_another_rollout():
    runs = Runs()
    async with open_door(runs) as door, asking(door) as client:
        for more in ({}, {"x": 1}, {"_ng_attempt_index": 1}, {"_ng_attempt_index": 2}):
            for _ in range(2):
                assert (await client.post("/run", json={**ID, **more})).status_code == 200
    assert len(runs.started) == 4


async def test_a_row_with_an_id_is_a_key_like_any_other():
    async with open_door(Runs(), AT_ONCE) as door, asking(door) as client:
        await client.post("/run", json={**ID, "_ng_attempt_index": 1})
        sent = client.build_request("POST", "/run", json={**ID, "_ng_attempt_index": 1})
        digest = body_digest(sent.content, "application/json").hex()
        place = f"/v1/rollouts/step-1.task_2-a1/{digest}?namespace=nemo-gym"
        assert (await client.get(place)).json()["value"]["reward"] == 0.5
        assert (await client.delete(place)).json() == {"known": True, "started": True}


# -- the exception: rows without an id ----------------------------------------------


@pytest.mark.parametrize("row", [NUMBER, NEMO_RL])
async def test_a_row_without_an_id_is_run_anew_some_time_after_it_was_delivered(row: Any):
    runs = Runs()
    async with open_door(runs, AT_ONCE) as door, asking(door) as client:
        numbers = []
        while len(runs.started) < 3:
            numbers.append((await client.post("/run", json=row)).json()["response"]["number"])
            await client.post("/run", json=ID)  # which is never forgotten
        assert numbers == sorted(numbers)
    assert runs.started.count(ID) == 1


@pytest.mark.parametrize("row", KINDS)
async def test_what_was_not_delivered_is_retained(row: dict[str, Any]):
    runs = Runs(go_on=False)
    other = {**NUMBER, "other": True}
    async with open_door(runs, AT_ONCE) as door, asking(door) as client:
        async with raw(door) as peer:
            await post(peer, row)
            await runs.have_started(1)
        await nobody_is_connected(door)
        runs.may_end.set()
        while runs.started.count(other) < 2:  # that one was forgotten meanwhile
            await client.post("/run", json=other)
        answer = await client.post("/run", json=row)
        assert answer.json()["response"]["number"] == 1
    assert runs.started.count(row) == 1


async def test_an_answer_that_nobody_took_is_not_delivered():
    class Large(Runs):
        async def __call__(self, rollout: Any) -> Any:
            found = await super().__call__(rollout)
            return {**found, "large": "x" * 4_000_000 if rollout.input == NUMBER else ""}

    runs = Large()
    limits = {**AT_ONCE, "write_s": 0.05, "linger_s": 0.05}
    async with open_door(runs, limits) as door, asking(door) as client:
        async with raw(door) as peer:
            await post(peer, NUMBER)
            await runs.have_started(1)
            await nobody_is_connected(door)  # it was cut off, having read nothing
        other = {**NUMBER, "other": True}
        while runs.started.count(other) < 2:
            await client.post("/run", json=other)
        answer = await client.post("/run", json=NUMBER)
        assert answer.json()["response"]["number"] == 1
    assert runs.started.count(NUMBER) == 1


async def test_what_was_deleted_and_asked_anew_does_not_end_with_the_first():
    """The end of the first life of its key came in the second."""
    runs = Runs()
    async with open_door(runs, {"delivered_s": 0.2}) as door, asking(door) as client:
        sent = client.build_request("POST", "/run", json=NUMBER)
        await client.post("/run", json=NUMBER)
        digest = body_digest(sent.content, "application/json").hex()
        ended = await client.delete(f"/v1/rollouts/1-2/{digest}?namespace=nemo-gym")
        assert ended.json() == {"known": True, "started": True}
        runs.may_end = trio.Event()
        connected = door.connections
        async with raw(door) as peer:
            await post(peer, NUMBER)
            await runs.have_started(2)
        while door.connections > connected:
            await trio.testing.wait_all_tasks_blocked()
        runs.may_end.set()
        other = {**NUMBER, "other": True}
        while runs.started.count(other) < 2:  # the time of the first has come
            await client.post("/run", json=other)
        answer = await client.post("/run", json=NUMBER)
        assert answer.json()["response"]["number"] == 2
    assert (runs.started.count(NUMBER), runs.cancelled) == (2, 0)


async def test_rows_that_nothing_tells_apart_are_rollouts_of_their_own():
    runs = Runs(go_on=False)
    numbers = []
    async with open_door(runs, NEVER) as door, asking(door) as client:

        async def ask() -> None:
            answer = await client.post("/run", json=NOTHING)
            numbers.append(answer.json()["response"]["number"])

        async with trio.open_nursery() as nursery:
            async with raw(door) as peer:
                await post(peer, NOTHING)
                await runs.have_started(1)
            await nobody_is_connected(door)
            for _ in range(5):  # one of them takes what was left behind
                nursery.start_soon(ask)
            await runs.have_started(5)
            runs.may_end.set()
        assert sorted(numbers) == [1, 2, 3, 4, 5]
        await ask()
        assert numbers[-1] == 6
    assert len(runs.started) == 6


@pytest.mark.parametrize(
    ("wrote", "lost", "delivered"), [(1, False, True), (1, True, False), (0, False, False)]
)
async def test_an_answer_is_delivered_if_all_of_it_was_written_to_a_peer_that_was_there(
    wrote: int, lost: bool, delivered: bool
):
    class Wire:
        written_bytes = 0
        lost = False

        def hold(self) -> None:
            pass

    wire = Wire()

    async def send(event: Any) -> None:
        if event["type"] == "http.response.body":
            wire.written_bytes += wrote * (100 + len(event["body"]))
            wire.lost = lost

    async def receive() -> Any:
        raise AssertionError

    scope = {
        "method": "POST", "raw_path": b"/run", "query_string": b"", "headers": [],
        "extensions": {WIRE: wire},
    }  # fmt: skip
    exchange = Exchange(scope, receive, send, Turns())
    await exchange.answer(200, "application/json", b"{}" * 60)
    assert exchange.delivered is delivered


# -- errors -------------------------------------------------------------------------


async def test_an_error_has_its_verdict_in_words_and_is_replayed():
    starts = []

    async def fails(rollout: Any) -> Any:
        starts.append(rollout.input)
        raise LookupError("no such riddle")

    async with open_door(fails, NEVER) as door, asking(door) as client:
        for _ in range(2):
            answer = await client.post("/run", json=NUMBER)
            problem = answer.json()
            assert (answer.status_code, problem["code"]) == (500, "rollout-failed")
            assert (problem["verdict"], problem["ran"]) == ("it ran and failed", True)
            assert "_ng_attempt_index" in problem["advice"]
        await client.post("/run", json={**NUMBER, "_ng_attempt_index": 1})
    assert len(starts) == 2


@pytest.mark.parametrize(
    "result",
    [None, 1.0, {}, {"reward": None}, {"reward": "1"}, {"reward": math.nan}, {"reward": [1, 2]}],
)
async def test_a_result_without_a_reward_is_an_error_and_no_zero(result: Any):
    async def environment(rollout: Any) -> Any:
        return result

    async with open_door(environment) as door, asking(door) as client:
        answer = await client.post("/run", json=ID)
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (500, "no-reward")
        assert problem["verdict"] == "it ran and failed"


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"", {}, 400),
        (b"{", {}, 400),
        (b"[]", {}, 400),
        (b"null", {}, 400),
        (b'{"a": NaN}', {}, 400),
        (b'{"a": 1, "a": 2}', {}, 400),
        (b'{"a": "\xff"}', {}, 400),
        (b'{"a": "\\ud800"}', {}, 400),
        (b'{"a": ' + b"[" * 5_000 + b"]" * 5_000 + b"}", {}, 400),
        (b'{"_ng_rollout_id": 7}', {}, 400),
        (b'{"_ng_rollout_id": ""}', {}, 400),
        (b'{"_ng_rollout_id": "a/b"}', {}, 400),
        (b'{"_ng_rollout_id": ".."}', {}, 400),
        (b'{"_ng_rollout_id": "a\\n"}', {}, 400),
        (b'{"_ng_rollout_id": {"a": 1}}', {}, 400),
        (b"{}", {"idempotency-key": '"a"'}, 400),
        (b"\xa0", {"content-type": "application/cbor"}, 415),
        (b"{}", {"content-type": "text/plain"}, 415),
        (b"{}", {"accept": "application/cbor"}, 406),
        (b'{"a": "%s"}' % (b"x" * 4_000), {}, 413),
    ],
)
async def test_what_is_no_row_is_refused_and_did_not_run(
    body: bytes, headers: dict[str, str], status: int
):
    runs = Runs()
    async with open_door(runs, {"body_bytes": 2**20 if len(body) > 5_000 else 2_000}) as door:
        async with asking(door) as client:
            sent = {"content-type": "application/json", **headers}
            answer = await client.post("/run", content=body, headers=sent)
            assert answer.status_code == status, answer.text
            assert answer.json()["verdict"] == "it did not run"
            assert (await client.post("/run?namespace=a", json={})).status_code == 400
            assert (await client.get("/run")).status_code == 405
    assert runs.started == []


@pytest.mark.parametrize(
    "row",
    [
        {"_ng_rollout_id": "a" * 1_000},
        {"_ng_rollout_id": "a", "_ng_attempt_index": -1},
        {"_ng_rollout_id": "a", "_ng_attempt_index": "two"},
        {"_ng_rollout_id": None, "_ng_task_index": None, "_ng_rollout_index": None},
        {"_ng_task_index": "a/b\n", "_ng_rollout_index": [1]},
        {"_ng_task_index": 10**400, "_ng_rollout_index": True},
        {"_ng_rollout_index": 0},
        {"_rowidx": {"a": None}},
        {"": ""},
        {},
    ],
)
async def test_strange_numbers_are_only_told_apart(row: dict[str, Any]):
    runs = Runs()
    async with open_door(runs, NEVER) as door, asking(door) as client:
        answer = await client.post("/run", json=row)
        assert answer.status_code == 200
    assert runs.started == [row]
