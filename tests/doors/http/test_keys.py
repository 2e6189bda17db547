"""Keys by HTTP: a request that is sent again runs nothing a second time."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import cbor2
import pytest
import trio

from tests.doors.http.door import HANG_S, asking, open_door
from tests.doors.http.keyed import ASYNC, AT, KEY, Runs
from trio_envserve import KeyLimits, open_client, open_server
from trio_envserve.doors.http import HttpLimits, open_http_door
from trio_envserve.net import MemoryNetwork

# -- the same again -----------------------------------------------------------------


async def test_the_same_request_again_gets_the_same_outcome_and_runs_nothing():
    runs = Runs()
    async with open_door(runs) as door, asking(door) as client:
        answers = [
            await client.post("/v1/rollouts", json={"input": 1}, headers=KEY) for _ in range(3)
        ]
        assert [answer.status_code for answer in answers] == [200] * 3
        assert {answer.json()["value"]["of"] for answer in answers} == {1}
        # Other bytes of the same input, and the outcome alone, in whatever form.
        answer = await client.post(
            "/v1/rollouts",
            content=b'{ "input": 1, "timeout_s": 60 }',
            headers={**KEY, "content-type": "application/json"},
        )
        assert answer.json()["value"] == {"of": 1}
        answer = await client.get(AT, headers={"accept": "application/cbor"})
        assert cbor2.loads(answer.content)["value"] == {"of": 1}
    assert runs.started == [1]


async def test_a_second_caller_joins_what_runs():
    runs = Runs(go_on=False)
    answers = []
    async with open_door(runs) as door, asking(door) as client:

        async def ask(body: bytes) -> None:
            headers = {**KEY, "content-type": "application/json"}
            answers.append(await client.post("/v1/rollouts", content=body, headers=headers))

        async def look() -> None:
            answers.append(await client.get(f"{AT}?wait=300"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, b'{"input": 1}')
            await runs.began.wait()
            nursery.start_soon(ask, b'{"input": 1}')
            nursery.start_soon(ask, b'{"input":1}')
            nursery.start_soon(look)
            assert (await client.get(AT)).status_code == 202
            runs.may_end.set()
        assert [answer.status_code for answer in answers] == [200] * 4
        assert {answer.json()["value"]["of"] for answer in answers} == {1}
    assert runs.started == [1]


@pytest.mark.parametrize("runs_on", [True, False])
async def test_another_input_under_the_key_is_422_and_does_not_run(runs_on: bool):
    runs = Runs(go_on=not runs_on)
    async with open_door(runs) as door, asking(door) as client:
        await client.post("/v1/rollouts", json={"input": 1}, headers=ASYNC)
        for headers in (KEY, ASYNC):
            answer = await client.post("/v1/rollouts", json={"input": 2}, headers=headers)
            problem = answer.json()
            assert (answer.status_code, problem["code"]) == (422, "key-conflict")
            assert (problem["verdict"], problem["ran"]) == ("it did not run", False)
        runs.may_end.set()
        assert (await client.get(f"{AT}?wait=300")).json()["value"] == {"of": 1}
    assert runs.started == [1]


async def test_the_same_key_in_another_namespace_is_another_one():
    runs = Runs()
    async with open_door(runs) as door, asking(door) as client:
        for namespace, input in (("default", 1), ("a/ü", 2)):
            answer = await client.post(
                "/v1/rollouts", params={"namespace": namespace}, json={"input": input}, headers=KEY
            )
            assert answer.json()["value"] == {"of": input}
        answer = await client.get(AT, params={"namespace": "a/ü"})
        assert answer.json()["value"] == {"of": 2}
        assert (await client.get(AT)).json()["value"] == {"of": 1}
    assert runs.started == [1, 2]


async def test_what_was_asked_by_another_client_is_found_and_the_other_way():
    runs = Runs()
    network = MemoryNetwork()
    with trio.fail_after(HANG_S):
        async with (
            open_server(runs, bind="memory:s", workers=0, network=network) as server,
            open_client(server.address, network=network) as native,
            open_http_door(server, network=network) as door,
            asking(door) as client,
        ):
            await door.wait_ready()
            await native.run_rollout({"b": 1, "a": 2}, key="schlüssel")
            answer = await client.get("/v1/rollouts/schl%C3%BCssel")
            assert answer.json()["value"] == {"of": {"b": 1, "a": 2}}
            await client.post("/v1/rollouts", json={"input": {"b": 1}}, headers=KEY)
            assert await native.run_rollout({"b": 1}, key="step-12/7") == {"of": {"b": 1}}
            assert len(runs.started) == 2


async def test_an_error_is_replayed_and_says_how_to_run_it_anew():
    starts = []

    async def fails(rollout: Any) -> Any:
        starts.append(rollout.input)
        raise LookupError("no such riddle")

    async with open_door(fails) as door, asking(door) as client:
        for ask in (
            client.post("/v1/rollouts", json={"input": 1}, headers=KEY),
            client.post("/v1/rollouts", json={"input": 1}, headers=KEY),
            client.get(AT),
        ):
            answer = await ask
            problem = answer.json()
            assert (answer.status_code, problem["code"]) == (500, "rollout-failed")
            assert "DELETE" in problem["advice"]
        assert (await client.delete(AT)).json() == {"known": True, "started": True}
        await client.post("/v1/rollouts", json={"input": 1}, headers=KEY)
    assert starts == [1, 1]


async def test_the_members_of_a_group_are_shown_where_its_location_says():
    async with open_door("arithmetic") as door, asking(door) as client:
        body = {"kind": "group", "input": [{"index": 0}, {"index": 1}]}
        answer = await client.post("/v1/rollouts", json=body, headers=ASYNC)
        if answer.status_code == 200:  # it was there before the server had said so
            answer = await client.post("/v1/rollouts", json=body, headers=KEY)
            record = answer.json()
        else:
            assert answer.headers["location"] == f"{AT}?kind=group"
            record = (await client.get(f"{answer.headers['location']}&wait=300")).json()
        assert [member["value"]["reward"] for member in record["members"]] == [1.0, 1.0]


# -- later ----------------------------------------------------------------------------


async def test_who_prefers_not_to_wait_is_told_where_the_outcome_will_be():
    runs = Runs(go_on=False)
    async with open_door(runs) as door, asking(door) as client:
        for _ in range(2):
            answer = await client.post(
                "/v1/rollouts?namespace=a+b", json={"input": 1}, headers=ASYNC
            )
            assert answer.status_code == 202
            place = answer.headers["location"]
            assert place == f"{AT}?namespace=a+b"
            assert answer.json() == {"status": "pending", "location": place}
            assert answer.headers["preference-applied"] == "respond-async"
        answer = await client.get(place)
        assert (answer.status_code, answer.headers["location"]) == (202, place)
        runs.may_end.set()
        answer = await client.get(f"{place}&wait=300")
        assert (answer.status_code, answer.json()["value"]) == (200, {"of": 1})
        # What is there already is answered at once, in whatever way it is asked.
        answer = await client.post("/v1/rollouts?namespace=a+b", json={"input": 1}, headers=ASYNC)
        assert answer.status_code == 200
    assert runs.started == [1]


async def test_without_a_key_nothing_is_answered_later():
    async with open_door(Runs()) as door, asking(door) as client:
        headers = {"prefer": "respond-async"}
        answer = await client.post("/v1/rollouts", json={"input": 1}, headers=headers)
        assert (answer.status_code, answer.json()["value"]) == (200, {"of": 1})


@pytest.mark.parametrize(
    ("prefer", "status"),
    [
        ("respond-async, wait=0", 202),
        ("respond-async,wait=0.01", 202),
        ('Respond-Async; x=y, wait="0"', 202),
        ("wait=0, respond-async", 202),
        ("respond-async, wait=soon", 202),
        ("respond-async, wait=300", 200),
        ("wait=0", 200),
        ("handling=lenient", 200),
        ("", 200),
        (",;=", 200),
    ],
)
async def test_what_a_caller_prefers(prefer: str, status: int):
    runs = Runs(go_on=False)
    async with open_door(runs) as door, asking(door) as client:
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                headers = {**KEY, "prefer": prefer}
                answer = await client.post("/v1/rollouts", json={"input": 1}, headers=headers)
                assert answer.status_code == status
                runs.may_end.set()

            nursery.start_soon(ask)
            await runs.began.wait()
            if status == 200:
                runs.may_end.set()


async def test_a_key_of_which_nothing_is_known_is_404_and_may_have_run():
    async with open_door(Runs()) as door, asking(door) as client:
        for path in (AT, f"{AT}?wait=300"):
            answer = await client.get(path)
            problem = answer.json()
            assert (answer.status_code, problem["code"]) == (404, "unknown-key")
            assert (problem["verdict"], problem["ran"]) == ("it may have run", None)


async def test_after_its_retention_a_key_is_unknown():
    network = MemoryNetwork()
    runs = Runs()
    with trio.fail_after(HANG_S):
        async with (
            open_server(
                runs, bind="memory:s", workers=0, network=network, keys=KeyLimits(retention_s=0.01)
            ) as server,
            open_http_door(server, network=network) as door,
            asking(door) as client,
        ):
            await door.wait_ready()
            await client.post("/v1/rollouts", json={"input": 1}, headers=KEY)
            while (await client.get(AT)).status_code == 200:
                await trio.testing.wait_all_tasks_blocked(0.01)
            assert (await client.get(AT)).status_code == 404


@pytest.mark.parametrize("key", ["a\u00a0b", "\U0001f469\u200d\U0001f680", "\u202e\u2028"])
async def test_a_key_that_is_text_was_said_to_have_control_characters(key: str):
    network = MemoryNetwork()
    with trio.fail_after(HANG_S):
        async with (
            open_server(Runs(), bind="memory:s", workers=0, network=network) as server,
            open_client("memory:s", network=network) as other,
            open_http_door(server, network=network) as door,
            asking(door) as client,
        ):
            await door.wait_ready()
            await other.run_rollout(1, key=key, namespace=key)
            place = f"/v1/rollouts/{quote(key, safe='')}?namespace={quote(key, safe='')}"
            answer = await client.get(place)
            assert (answer.status_code, answer.json()["value"]) == (200, {"of": 1})
            for name in ("%00", "%0D%0A", "%7F", "%C2%85"):
                answer = await client.get(f"/v1/rollouts/{name}")
                assert answer.json()["detail"] == "a key has no control characters"


# -- a server that is not there -------------------------------------------------------------


async def test_a_server_that_does_not_answer_is_told_and_nothing_is_said_of_the_key():
    network = MemoryNetwork()
    limits = HttpLimits(answer_s=0.05)
    with trio.fail_after(HANG_S):
        async with (
            open_http_door("memory:nobody", network=network, limits=limits) as door,
            asking(door) as client,
        ):
            for ask in (
                client.get(AT),
                client.get(f"{AT}?wait=0.01"),
                client.delete(AT),
                client.post("/v1/rollouts", json={"input": 1}, headers=KEY),
                client.post("/v1/rollouts", json={"input": 1}, headers=ASYNC),
            ):
                answer = await ask
                problem = answer.json()
                assert (answer.status_code, problem["code"]) == (503, "not-ready")
                assert problem["ran"] is None
                assert answer.headers["retry-after"] == "1"
