"""Keys by HTTP whose callers delete them, hang up or are cut off."""

from __future__ import annotations

import json
from typing import Any

import trio

from tests.doors.http.door import HANG_S, asking, open_door, raw
from tests.doors.http.keyed import ASYNC, AT, KEY, Runs, post
from trio_envserve import KeyLimits, ServerLimits, open_server
from trio_envserve.doors.http import HttpLimits, open_http_door
from trio_envserve.net import MemoryNetwork

# -- DELETE -----------------------------------------------------------------------------


async def test_delete_cancels_what_runs_and_the_next_ask_is_new_work():
    runs = Runs(go_on=False)
    answers = []
    async with open_door(runs) as door, asking(door) as client:
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                answers.append(await client.post("/v1/rollouts", json={"input": 1}, headers=KEY))

            nursery.start_soon(ask)
            await runs.began.wait()
            assert (await client.delete(AT)).json() == {"known": True, "started": True}
        problem = answers[0].json()
        assert (answers[0].status_code, problem["code"]) == (500, "cancelled")
        assert problem["ran"] is None
        await runs.was_cancelled.wait()
        runs.may_end.set()
        answer = await client.post("/v1/rollouts", json={"input": 1}, headers=KEY)
        assert answer.json()["value"] == {"of": 1}
        for known in (True, False):  # the second finds nothing, and does no harm
            answer = await client.delete(AT)
            assert (answer.status_code, answer.json()["known"]) == (200, known)
        assert (await client.get(AT)).status_code == 404
    assert (runs.started, runs.cancelled) == ([1, 1], [1])


async def test_a_post_whose_key_was_deleted_was_told_to_send_it_again_which_libraries_do():
    network = MemoryNetwork()
    runs = Runs(go_on=False)
    answers = []
    other = {"idempotency-key": '"other"'}
    with trio.fail_after(HANG_S):
        async with (
            open_server(
                runs, bind="memory:s", workers=0, network=network,
                limits=ServerLimits(worker_capacity=1),
            ) as server,
            open_http_door(server, network=network) as door,
            asking(door) as client,
        ):  # fmt: skip
            await door.wait_ready()
            await client.post("/v1/rollouts", json={"input": 1}, headers=ASYNC)
            await runs.began.wait()

            async def ask() -> None:
                answers.append(await client.post("/v1/rollouts", json={"input": 2}, headers=other))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                while (await client.get("/v1/rollouts/other")).status_code == 404:
                    pass
                answer = await client.delete("/v1/rollouts/other")
                assert answer.json() == {"known": True, "started": False}
            problem = answers[0].json()
            assert (answers[0].status_code, problem["code"]) == (409, "key-deleted")
            assert "retry-after" not in answers[0].headers
            assert (problem["verdict"], problem["ran"]) == ("it did not run", False)
            runs.may_end.set()
    assert runs.started == [1]


async def test_a_few_deletes_left_no_room_for_more():
    """The server remembered each of them for minutes."""
    network = MemoryNetwork()
    with trio.fail_after(HANG_S):
        async with (
            open_server(
                Runs(), bind="memory:s", workers=0, network=network, keys=KeyLimits(commands=1)
            ) as server,
            open_http_door(server, network=network) as door,
            asking(door) as client,
        ):
            await door.wait_ready()
            for known in (True, False, True, False):
                if known:
                    await client.post("/v1/rollouts", json={"input": 1}, headers=KEY)
                answer = await client.delete(AT)
                assert (answer.status_code, answer.json()["known"]) == (200, known)
            assert not server._router.keys.commands.said


async def test_delete_ends_what_the_server_has_no_room_for():
    """The server refuses it for now, so the call goes on asking: it came back to life."""
    network = MemoryNetwork()
    runs = Runs(go_on=False)
    other = {"idempotency-key": '"other"'}
    with trio.fail_after(HANG_S):
        async with (
            open_server(
                runs, bind="memory:s", workers=0, network=network,
                keys=KeyLimits(generations=1, namespace_share=1.0),
            ) as server,
            open_http_door(server, network=network) as door,
            asking(door) as client,
        ):  # fmt: skip
            await door.wait_ready()
            await client.post("/v1/rollouts", json={"input": 1}, headers=ASYNC)
            headers = {**ASYNC, **other}
            answer = await client.post("/v1/rollouts", json={"input": 2}, headers=headers)
            assert answer.status_code == 202
            assert (await client.delete("/v1/rollouts/other")).json()["known"] is True
            runs.may_end.set()
            await client.get(f"{AT}?wait=300")
            await client.delete(AT)
            answer = await client.post("/v1/rollouts", json={"input": 3}, headers=other)
            assert answer.json()["value"] == {"of": 3}
    assert runs.started == [1, 3]


# -- hanging up -------------------------------------------------------------------------


async def test_who_hangs_up_with_a_key_finds_the_outcome_later():
    runs = Runs(go_on=False)
    async with open_door(runs) as door, asking(door) as client:
        async with raw(door) as peer:
            await post(peer, {"input": 1}, 'Idempotency-Key: "step-12/7"')
            await runs.began.wait()
        async with raw(door) as peer:
            await peer.send(f"GET {AT}?wait=300 HTTP/1.1", "Host: localhost")
            await trio.testing.wait_all_tasks_blocked(0.01)
        while door.connections:
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert (await client.get(AT)).status_code == 202
        runs.may_end.set()
        assert (await client.get(f"{AT}?wait=300")).json()["value"] == {"of": 1}
        answer = await client.post("/v1/rollouts", json={"input": 1}, headers=KEY)
        assert answer.json()["value"] == {"of": 1}
    assert (runs.started, runs.cancelled) == ([1], [])


async def test_calls_whose_callers_hung_up_count_and_are_joined_for_nothing():
    runs = Runs(go_on=False)
    async with open_door(runs, {"calls": 1}) as door, asking(door) as client:
        for _ in range(5):
            async with raw(door) as peer:
                await post(peer, {"input": 1}, 'Idempotency-Key: "step-12/7"')
                await runs.began.wait()
        headers = {**ASYNC, "content-type": "application/json"}
        answer = await client.post("/v1/rollouts", content=b'{"input": 1}', headers=headers)
        assert answer.status_code == 202
        other = {"idempotency-key": '"other"'}
        answer = await client.post("/v1/rollouts", json={"input": 1}, headers=other)
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (429, "busy")
        # An earlier transmission of it may have run: the door cannot know.
        assert (problem["verdict"], problem["ran"]) == ("it may have run", None)
        runs.may_end.set()
        assert (await client.get(f"{AT}?wait=300")).status_code == 200
        while answer.status_code == 429:
            answer = await client.post("/v1/rollouts", json={"input": 2}, headers=other)
        assert answer.status_code == 200, "the room was given back"
    assert runs.started == [1, 2]


async def test_the_calls_of_one_namespace_took_all_room_of_the_door():
    """They go on when nobody is connected any more: everybody else was told to come later
    until their keys had room with the server."""
    runs = Runs(go_on=False)
    async with open_door(runs, {"calls": 8}) as door, asking(door) as client:

        async def ask(key: str, namespace: str = "default") -> Any:
            headers = {"idempotency-key": f'"{key}"', "prefer": "respond-async"}
            where = f"/v1/rollouts?namespace={namespace}"
            return await client.post(where, json={"input": 1}, headers=headers)

        answers = [await ask(str(number)) for number in range(8)]
        assert [answer.status_code for answer in answers] == [202] * 4 + [429] * 4
        assert "namespace default" in answers[-1].json()["detail"]
        assert [(await ask("0", other)).status_code for other in "ab"] == [202, 202]
        async with trio.open_nursery() as nursery:

            async def without_a_key() -> None:
                answer = await client.post("/v1/rollouts", json={"input": 2})
                assert answer.status_code == 200

            nursery.start_soon(without_a_key)
            while 2 not in runs.started:
                await trio.testing.wait_all_tasks_blocked(0.01)
            runs.may_end.set()
    assert sorted(runs.started) == [1] * 6 + [2]


async def test_all_connections_are_cut_in_the_middle_and_each_is_started_once():
    runs = Runs(go_on=False)
    number = 40
    rounds = 3
    async with open_door(runs) as door:
        for _ in range(rounds):
            async with trio.open_nursery() as nursery:

                async def cut(index: int) -> None:
                    async with raw(door) as peer:
                        await post(peer, {"input": index}, f'Idempotency-Key: "{index}"')
                        while len(runs.started) < number:
                            await trio.testing.wait_all_tasks_blocked(0.01)

                for index in range(number):
                    nursery.start_soon(cut, index)
        runs.may_end.set()
        values = {}
        async with asking(door) as client, trio.open_nursery() as nursery:

            async def retry(index: int) -> None:
                headers = {"idempotency-key": f'"{index}"'}
                answer = await client.post("/v1/rollouts", json={"input": index}, headers=headers)
                values[index] = answer.json()["value"]

            for index in range(number):
                nursery.start_soon(retry, index)
    assert values == {index: {"of": index} for index in range(number)}
    assert sorted(runs.started) == list(range(number))
    assert runs.cancelled == []


async def test_a_door_that_closes_ends_what_it_has_asked_for():
    runs = Runs(go_on=False)
    network = MemoryNetwork()
    with trio.fail_after(HANG_S):
        async with open_server(runs, bind="memory:s", workers=0, network=network) as server:
            limits = HttpLimits(close_s=0.01)
            async with open_http_door(server, network=network, limits=limits) as door:
                await door.wait_ready()
                async with raw(door) as peer:
                    await post(peer, {"input": 1}, 'Idempotency-Key: "step-12/7"')
                    await runs.began.wait()
            await runs.was_cancelled.wait()


# -- batches ----------------------------------------------------------------------------


async def test_each_input_of_a_batch_has_a_key_of_its_own():
    runs = Runs()
    async with open_door(runs) as door, asking(door) as client:
        for _ in range(2):
            answer = await client.post(
                "/v1/batches?namespace=n", json={"inputs": [5, 6]},
                headers={"idempotency-key": '"step-12"'},
            )  # fmt: skip
            lines = [json.loads(line) for line in answer.text.splitlines()]
            assert {line["index"]: line["value"]["of"] for line in lines} == {0: 5, 1: 6}
        answer = await client.get("/v1/rollouts/step-12/1?namespace=n")
        assert answer.json()["value"] == {"of": 6}
        answer = await client.post(
            "/v1/batches?namespace=n", json={"inputs": [5, 7]},
            headers={"idempotency-key": '"step-12"'},
        )  # fmt: skip
        found = {line["index"]: line for line in map(json.loads, answer.text.splitlines())}
        assert found[0]["value"] == {"of": 5}
        assert found[1]["problem"]["code"] == "key-conflict"
    assert sorted(runs.started) == [5, 6]


async def test_a_batch_that_is_cut_begins_nothing_more_and_is_taken_up_again():
    runs = Runs(go_on=False)
    async with open_door(runs) as door, asking(door) as client:
        body = {"inputs": list(range(6)), "in_flight": 2}
        async with raw(door) as peer:
            await post(peer, body, 'Idempotency-Key: "step-12"', path="/v1/batches")
            while len(runs.started) < 2:
                await trio.testing.wait_all_tasks_blocked(0.01)
        while door.connections:
            await trio.testing.wait_all_tasks_blocked(0.01)
        runs.may_end.set()
        for index in range(2):
            answer = await client.get(f"/v1/rollouts/step-12/{index}?wait=300")
            assert answer.json()["value"] == {"of": index}
        headers = {"idempotency-key": '"step-12"'}
        answer = await client.post("/v1/batches", json=body, headers=headers)
        assert len(answer.text.splitlines()) == 6
    assert sorted(runs.started) == list(range(6))
    assert runs.cancelled == []
