"""Keys by HTTP: a request that is sent again runs nothing a second time."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import cbor2
import pytest
import trio

from tests.doors.http.door import HANG_S, Raw, asking, open_door, raw
from trio_envserve import KeyLimits, ServerLimits, open_client, open_server
from trio_envserve.doors.http import HttpLimits, open_http_door
from trio_envserve.net import MemoryNetwork

KEY = {"idempotency-key": '"step-12/7"'}
ASYNC = {**KEY, "prefer": "respond-async"}
AT = "/v1/rollouts/step-12%2F7"


class Runs:
    """An environment that notes what was started, and waits until it may go on."""

    def __init__(self, *, go_on: bool = True) -> None:
        self.started: list[Any] = []
        self.cancelled: list[Any] = []
        self.began = trio.Event()
        self.may_end = trio.Event()
        self.was_cancelled = trio.Event()
        if go_on:
            self.may_end.set()

    async def __call__(self, rollout: Any) -> Any:
        self.started.append(rollout.input)
        self.began.set()
        try:
            await self.may_end.wait()
        except trio.Cancelled:
            self.cancelled.append(rollout.input)
            self.was_cancelled.set()
            raise
        return {"of": rollout.input}


async def post(peer: Raw, body: object, *headers: str, path: str = "/v1/rollouts") -> None:
    data = json.dumps(body).encode()
    await peer.send(
        f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json",
        f"Content-Length: {len(data)}", *headers, body=data,
    )  # fmt: skip


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


async def test_a_delete_for_which_there_was_no_room_was_said_to_have_no_answer():
    network = MemoryNetwork()
    with trio.fail_after(HANG_S):
        async with (
            open_server(
                Runs(), bind="memory:s", workers=0, network=network, keys=KeyLimits(commands=1)
            ) as server,
            open_http_door(server, network=network, limits=HttpLimits(answer_s=0.5)) as door,
            asking(door) as client,
        ):
            await door.wait_ready()
            while (answer := await client.delete(AT)).status_code == 200:
                pass  # there was room for it
            problem = answer.json()
            assert (answer.status_code, problem["code"]) == (503, "not-ready")
            assert problem["detail"].endswith("has no room for the question for now")


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


# -- what is no key -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [
        b"step-12", b"", b'""', b'"', b'"a', b'a"', b'"a" b', b'"a"b"', b'"a";x=1', b'"a", "b"',
        b"'a'", b'"a\\b"', b'"a\\"', b'"a\tb"', b'"\xc3\xbc"', b'"\xff"', b'%"a"', b":YQ==:",
        b"1", b"?1", b'("a")', b'"."', b'".."', b"a b", b'"' + b"k" * 4096 + b'"',
    ],
    ids=range(25),
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/rollouts", "/v1/batches"])
async def test_a_header_that_is_no_key_is_refused(header: bytes, path: str):
    runs = Runs()
    async with open_door(runs) as door, asking(door) as client:
        body = {"inputs": [1]} if path == "/v1/batches" else {"input": 1}
        answer = await client.post(path, json=body, headers={"idempotency-key": header})
        if path == "/v1/batches" and len(header) > 4096:  # each of its inputs has a key
            problem = json.loads(answer.text)["problem"]
        else:
            problem = answer.json()
            assert answer.status_code == 400
        assert problem["status"] == 400
        assert problem["ran"] is False
        assert "key" in problem["detail"].lower()
    assert runs.started == []


async def test_a_key_may_have_what_a_string_of_structured_fields_may():
    runs = Runs()
    key = 'a b/%2F?#&+~"\\'
    header = key.replace("\\", "\\\\").replace('"', '\\"')
    async with open_door(runs) as door, asking(door) as client:
        headers = {"idempotency-key": f'"{header}"', "prefer": "respond-async, wait=300"}
        answer = await client.post("/v1/rollouts", json={"input": 1}, headers=headers)
        assert answer.status_code == 200
        quoted = "a%20b%2F%252F%3F%23%26%2B~%22%5C"
        assert (await client.get(f"/v1/rollouts/{quoted}")).json()["value"] == {"of": 1}


async def test_two_headers_are_refused_as_two_keys():
    runs = Runs()
    async with open_door(runs) as door:
        for second in ('"a"', '"b"'):
            async with raw(door) as peer:
                await post(peer, {"input": 1}, 'Idempotency-Key: "a"', f"Idempotency-Key: {second}")
                answer = await peer.answer()
                assert (answer.status, answer.problem["code"]) == (400, "bad-request")
    assert runs.started == []


@pytest.mark.parametrize(
    "line",
    [
        'Idempotency-Key: "a\x00b"',
        'Idempotency-Key: "a\x1bb"',
        'Idempotency-Key: "a\x7fb"',
        'Idempotency-Key: "a\rX-Evil: 1"',
        'Idempotency-Key: "a\r\n b"',
        'Idempotency-Key : "a"',
    ],
    ids=range(6),
)
async def test_a_key_cannot_smuggle_anything(line: str):
    runs = Runs()
    async with open_door(runs) as door, raw(door) as peer:
        await post(peer, {"input": 1}, line)
        said = await peer.answer() if "\r\n b" in line else None
        if said is None:
            assert (await peer.rest()).startswith(b"HTTP/1.1 400 ")
        else:  # a folded line is one line with a space
            assert said.status in (200, 400)
            assert "x-evil" not in said.headers


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/rollouts/%zz", 400),
        ("/v1/rollouts/%", 400),
        ("/v1/rollouts/%ff", 400),
        ("/v1/rollouts/a%00", 400),
        ("/v1/rollouts/a%0d%0aX-Evil:%201", 400),
        ("/v1/rollouts/" + "k" * 4096, 400),
        ("/v1/rollouts/a?namespace=", 400),
        ("/v1/rollouts/a?namespace=%00", 400),
        ("/v1/rollouts/a?namespace=" + "n" * 4096, 400),
        ("/v1/rollouts/a?namespace=%ff", 400),
        ("/v1/rollouts/a?namespace=a&namespace=b", 400),
        ("/v1/rollouts/a?namespce=a", 400),
        ("/v1/rollouts/a?", 0),
        ("/v1/rollouts/a?&&&", 400),
        ("/v1/rollouts/" + "k" * 20_000, 431),
    ],
    ids=range(15),
)
async def test_a_path_that_names_no_key_is_refused(method: str, path: str, status: int):
    async with open_door(Runs()) as door, raw(door) as peer:
        await peer.send(f"{method} {path} HTTP/1.1", "Host: localhost")
        if status == 431:
            assert b" 431 " in (await peer.rest()).splitlines()[0]
            return
        answer = await peer.answer()
        assert answer.status == (status or (404 if method == "GET" else 200))
        assert "x-evil" not in answer.headers


@pytest.mark.parametrize("query", ["wait=", "wait=-1", "wait=nan", "wait=1e3", "kind=many"])
async def test_a_wrong_parameter_is_refused(query: str):
    async with open_door(Runs()) as door, asking(door) as client:
        answer = await client.get(f"{AT}?{query}")
        assert (answer.status_code, answer.json()["code"]) == (400, "bad-request")


async def test_a_namespace_without_a_key_is_refused():
    """It would have run, and a retry would have run it again."""
    async with open_door(Runs()) as door, asking(door) as client:
        for path in ("/v1/rollouts", "/v1/batches"):
            answer = await client.post(f"{path}?namespace=a", json={"input": 1})
            assert answer.status_code == 400
            assert "Idempotency-Key" in answer.json()["detail"]


async def test_a_wait_is_bounded():
    runs = Runs(go_on=False)
    async with open_door(runs, {"wait_s": 0.01}) as door, asking(door) as client:
        await client.post("/v1/rollouts", json={"input": 1}, headers=ASYNC)
        assert (await client.get(f"{AT}?wait=999999")).status_code == 202


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


async def test_a_token_is_needed_for_keys_too(tmp_path: Any):
    path = tmp_path / "tokens"
    path.write_text("0123456789abcdef")
    path.chmod(0o600)
    async with open_door(Runs(), token_file=path) as door, asking(door) as client:
        for method in ("GET", "DELETE"):
            answer = await client.request(method, AT)
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
