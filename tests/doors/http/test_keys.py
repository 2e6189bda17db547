"""Keys by HTTP: a request that is sent again runs nothing a second time."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import cbor2
import pytest
import trio
import trio.testing

from tests.doors.http.door import (
    ASYNC,
    AT,
    JSON,
    KEY,
    Runs,
    asking,
    nobody_is_connected,
    open_all,
    open_door,
    raw,
    told,
)
from trio_envserve import KeyLimits, ServerLimits

KEY_LINE = 'Idempotency-Key: "step-12/7"'
OTHER = {"idempotency-key": '"other"'}
AT_OTHER = "/v1/rollouts/other"


def of(answer: Any) -> Any:
    """The input of a rollout that was answered."""
    assert answer.status_code == 200, answer.text
    return answer.json()["value"]["of"]


# -- the same again -----------------------------------------------------------------


async def test_same_request_again_gets_the_same_outcome_and_runs_nothing():
    runs = Runs()
    async with open_door(runs) as door, asking(door) as client:
        for _ in range(3):
            assert of(await client.post("/v1/rollouts", json={"input": 1}, headers=KEY)) == 1
        # Other bytes of the same input, and the outcome alone, in whatever form.
        body = b'{ "input": 1, "timeout_s": 60 }'
        assert of(await client.post("/v1/rollouts", content=body, headers=KEY | JSON)) == 1
        answer = await client.get(AT, headers={"accept": "application/cbor"})
        assert cbor2.loads(answer.content)["value"]["of"] == 1
    assert runs.started == [1]


async def test_second_caller_joins_what_runs():
    runs = Runs(go_on=False)
    found = []
    async with open_door(runs) as door, asking(door) as client:

        async def ask(body: bytes) -> None:
            found.append(of(await client.post("/v1/rollouts", content=body, headers=KEY | JSON)))

        async def look() -> None:
            found.append(of(await client.get(f"{AT}?wait=300")))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, b'{"input": 1}')
            await runs.have_started()
            nursery.start_soon(ask, b'{"input": 1}')
            nursery.start_soon(ask, b'{"input":1}')
            nursery.start_soon(look)
            assert (await client.get(AT)).status_code == 202
            runs.may_end.set()
    assert found == [1] * 4
    assert runs.started == [1]


@pytest.mark.parametrize("runs_on", [True, False])
async def test_other_input_under_the_key_is_422_and_does_not_run(runs_on: bool):
    runs = Runs(go_on=not runs_on)
    async with open_door(runs) as door, asking(door) as client:
        await client.post("/v1/rollouts", json={"input": 1}, headers=ASYNC)
        for headers in (KEY, ASYNC):
            answer = await client.post("/v1/rollouts", json={"input": 2}, headers=headers)
            assert told(answer) == (422, "key-conflict")
            assert answer.json()["verdict"] == "it did not run"
            assert answer.json()["ran"] is False
        runs.may_end.set()
        assert of(await client.get(f"{AT}?wait=300")) == 1
    assert runs.started == [1]


async def test_same_key_in_another_namespace_is_another_one():
    runs = Runs()
    async with open_door(runs) as door, asking(door) as client:
        for namespace, input in (("default", 1), ("a/ü", 2)):
            where = {"namespace": namespace}
            asked = {"params": where, "json": {"input": input}, "headers": KEY}
            assert of(await client.post("/v1/rollouts", **asked)) == input
            assert of(await client.get(AT, params=where)) == input
        assert of(await client.get(AT)) == 1
    assert runs.started == [1, 2]


async def test_work_of_a_native_client_is_found_and_the_other_way():
    runs = Runs()
    async with open_all(runs) as opened:
        await opened.native.run_rollout({"b": 1, "a": 2}, key="schlüssel")
        assert of(await opened.http.get("/v1/rollouts/schl%C3%BCssel")) == {"b": 1, "a": 2}
        await opened.http.post("/v1/rollouts", json={"input": {"b": 1}}, headers=KEY)
        assert (await opened.native.run_rollout({"b": 1}, key="step-12/7"))["of"] == {"b": 1}
    assert len(runs.started) == 2


async def test_error_is_replayed_and_says_how_to_run_it_anew():
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
            assert told(answer) == (500, "rollout-failed")
            assert "DELETE" in answer.json()["advice"]
        assert (await client.delete(AT)).json() == {"known": True, "started": True}
        await client.post("/v1/rollouts", json={"input": 1}, headers=KEY)
    assert starts == [1, 1]


async def test_members_of_a_group_are_shown_where_its_location_says():
    async with open_door("arithmetic") as door, asking(door) as client:
        body = {"kind": "group", "input": [{"index": 0}, {"index": 1}]}
        answer = await client.post("/v1/rollouts", json=body, headers=ASYNC)
        if answer.status_code == 202:  # else it was there before the server had said so
            assert answer.headers["location"] == f"{AT}?kind=group"
            answer = await client.get(f"{answer.headers['location']}&wait=300")
        assert [each["value"]["reward"] for each in answer.json()["members"]] == [1.0, 1.0]


# -- later ----------------------------------------------------------------------------


async def test_caller_that_prefers_not_to_wait_is_told_where_the_outcome_will_be():
    runs = Runs(go_on=False)
    async with open_door(runs) as door, asking(door) as client:
        place = f"{AT}?namespace=a+b"
        asked: dict[str, Any] = {"url": "/v1/rollouts?namespace=a+b", "json": {"input": 1}}
        for _ in range(2):
            answer = await client.post(**asked, headers=ASYNC)
            assert (answer.status_code, answer.headers["location"]) == (202, place)
            assert answer.json() == {"status": "pending", "location": place}
            assert answer.headers["preference-applied"] == "respond-async"
        answer = await client.get(place)
        assert (answer.status_code, answer.headers["location"]) == (202, place)
        runs.may_end.set()
        assert of(await client.get(f"{place}&wait=300")) == 1
        assert of(await client.post(**asked, headers=ASYNC)) == 1, "it is there already"
        headers = {"prefer": "respond-async"}
        assert of(await client.post("/v1/rollouts", json={"input": 2}, headers=headers)) == 2
    assert runs.started == [1, 2], "without a key nothing is answered later"


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
async def test_answer_comes_when_the_caller_prefers(prefer: str, status: int):
    runs = Runs(go_on=False)
    async with open_door(runs) as door, raw(door) as peer:
        await peer.post({"input": 1}, KEY_LINE, f"Prefer: {prefer}")
        await runs.have_started()
        if status == 200:
            runs.may_end.set()
        assert (await peer.answer()).status == status


async def test_key_of_which_nothing_is_known_is_404_and_may_have_run():
    async with open_all(Runs(), keys=KeyLimits(retention_s=0.01)) as opened:
        client = opened.http
        await client.post("/v1/rollouts", json={"input": 1}, headers=KEY)
        while (await client.get(AT)).status_code == 200:  # until its retention is over
            await trio.testing.wait_all_tasks_blocked(0.01)
        for path in (AT, f"{AT}?wait=300"):
            answer = await client.get(path)
            assert told(answer) == (404, "unknown-key")
            assert answer.json()["verdict"] == "it may have run"
            assert answer.json()["ran"] is None


@pytest.mark.parametrize("key", ["a\u00a0b", "\U0001f469\u200d\U0001f680", "\u202e\u2028"])
async def test_a_key_that_is_text_was_said_to_have_control_characters(key: str):
    async with open_all(Runs()) as opened:
        await opened.native.run_rollout(1, key=key, namespace=key)
        quoted = quote(key, safe="")
        assert of(await opened.http.get(f"/v1/rollouts/{quoted}?namespace={quoted}")) == 1
        for name in ("%00", "%0D%0A", "%7F", "%C2%85"):
            answer = await opened.http.get(f"/v1/rollouts/{name}")
            assert answer.json()["detail"] == "a key has no control characters"


# -- DELETE -----------------------------------------------------------------------------


async def test_delete_cancels_what_runs_and_the_next_ask_is_new_work():
    runs = Runs(go_on=False)
    async with open_door(runs) as door, asking(door) as client:
        async with raw(door) as peer:
            await peer.post({"input": 1}, KEY_LINE)
            await runs.have_started()
            assert (await client.delete(AT)).json() == {"known": True, "started": True}
            answer = await peer.answer()
            assert (answer.status, answer.problem["code"]) == (500, "cancelled")
            assert answer.problem["ran"] is None
        await runs.are_cancelled()
        runs.may_end.set()
        assert of(await client.post("/v1/rollouts", json={"input": 1}, headers=KEY)) == 1
        for known in (True, False):  # the second finds nothing, and does no harm
            answer = await client.delete(AT)
            assert (answer.status_code, answer.json()["known"]) == (200, known)
        assert (await client.get(AT)).status_code == 404
    assert (runs.started, runs.cancelled) == ([1, 1], [1])


async def test_a_post_whose_key_was_deleted_was_told_to_send_it_again_which_libraries_do():
    runs = Runs(go_on=False)
    async with open_all(runs, limits=ServerLimits(worker_capacity=1)) as opened:
        client = opened.http
        await client.post("/v1/rollouts", json={"input": 1}, headers=ASYNC)
        await runs.have_started()
        async with raw(opened.door) as peer:
            await peer.post({"input": 2}, 'Idempotency-Key: "other"')
            while (await client.get(AT_OTHER)).status_code == 404:
                pass
            answer = await client.delete(AT_OTHER)
            assert answer.json() == {"known": True, "started": False}
            refused = await peer.answer()
        assert (refused.status, refused.problem["code"]) == (409, "key-deleted")
        assert "retry-after" not in refused.headers
        assert refused.problem["verdict"] == "it did not run"
        assert refused.problem["ran"] is False
        runs.may_end.set()
    assert runs.started == [1]


async def test_a_few_deletes_left_no_room_for_more():
    """The server remembered each of them for minutes."""
    async with open_all(Runs(), keys=KeyLimits(commands=1)) as opened:
        for known in (True, False, True, False):
            if known:
                await opened.http.post("/v1/rollouts", json={"input": 1}, headers=KEY)
            answer = await opened.http.delete(AT)
            assert (answer.status_code, answer.json()["known"]) == (200, known)
        assert not opened.server._router.works.commands


async def test_delete_ends_what_the_server_has_no_room_for():
    """The server refuses it for now, so the call goes on asking: it came back to life."""
    runs = Runs(go_on=False)
    keys = KeyLimits(generations=1, namespace_share=1.0)
    async with open_all(runs, keys=keys) as opened:
        client = opened.http
        await client.post("/v1/rollouts", json={"input": 1}, headers=ASYNC)
        answer = await client.post("/v1/rollouts", json={"input": 2}, headers=ASYNC | OTHER)
        assert answer.status_code == 202
        assert (await client.delete(AT_OTHER)).json()["known"] is True
        runs.may_end.set()
        await client.get(f"{AT}?wait=300")
        await client.delete(AT)
        assert of(await client.post("/v1/rollouts", json={"input": 3}, headers=OTHER)) == 3
    assert runs.started == [1, 3]


# -- hanging up -------------------------------------------------------------------------


async def test_caller_that_hangs_up_with_a_key_finds_the_outcome_later():
    runs = Runs(go_on=False)
    async with open_door(runs) as door:
        async with raw(door) as peer:
            await peer.post({"input": 1}, KEY_LINE)
            await runs.have_started()
        async with raw(door) as peer:
            await peer.send(f"GET {AT}?wait=300 HTTP/1.1", "Host: localhost")
            await trio.testing.wait_all_tasks_blocked(0.01)
        await nobody_is_connected(door)
        async with asking(door) as client:
            assert (await client.get(AT)).status_code == 202
            runs.may_end.set()
            assert of(await client.get(f"{AT}?wait=300")) == 1
            assert of(await client.post("/v1/rollouts", json={"input": 1}, headers=KEY)) == 1
    assert (runs.started, runs.cancelled) == ([1], [])


async def test_calls_whose_callers_hung_up_count_and_are_joined_for_nothing():
    runs = Runs(go_on=False)
    async with open_door(runs, {"calls": 1}) as door, asking(door) as client:
        for _ in range(5):
            async with raw(door) as peer:
                await peer.post({"input": 1}, KEY_LINE)
                await runs.have_started()
        answer = await client.post("/v1/rollouts", json={"input": 1}, headers=ASYNC)
        assert answer.status_code == 202
        answer = await client.post("/v1/rollouts", json={"input": 1}, headers=OTHER)
        assert told(answer) == (429, "busy")
        # An earlier transmission of it may have run: the door cannot know.
        assert answer.json()["verdict"] == "it may have run"
        assert answer.json()["ran"] is None
        runs.may_end.set()
        assert of(await client.get(f"{AT}?wait=300")) == 1
        while answer.status_code == 429:
            answer = await client.post("/v1/rollouts", json={"input": 2}, headers=OTHER)
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
        async with raw(door) as peer:
            await peer.post({"input": 2})
            await runs.have_started(7)
            runs.may_end.set()
            assert (await peer.answer()).status == 200
    assert sorted(runs.started) == [1] * 6 + [2]


async def test_door_that_closes_ends_what_it_has_asked_for():
    runs = Runs(go_on=False)
    async with open_door(runs, {"close_s": 0.01}) as door, raw(door) as peer:
        await peer.post({"input": 1}, KEY_LINE)
        await runs.have_started()
    assert runs.cancelled == [1]


# -- batches ----------------------------------------------------------------------------


async def test_each_input_of_a_batch_has_a_key_of_its_own():
    runs = Runs()
    async with open_door(runs) as door, asking(door) as client:

        async def ask(*inputs: int) -> dict[int, Any]:
            where, headers = "/v1/batches?namespace=n", {"idempotency-key": '"step-12"'}
            answer = await client.post(where, json={"inputs": inputs}, headers=headers)
            return {line["index"]: line for line in map(json.loads, answer.text.splitlines())}

        for _ in range(2):
            found = await ask(5, 6)
            assert {index: line["value"]["of"] for index, line in found.items()} == {0: 5, 1: 6}
        assert of(await client.get("/v1/rollouts/step-12/1?namespace=n")) == 6
        found = await ask(5, 7)
        assert found[0]["value"]["of"] == 5
        assert found[1]["problem"]["code"] == "key-conflict"
    assert sorted(runs.started) == [5, 6]


async def test_batch_that_is_cut_begins_nothing_more_and_is_taken_up_again():
    runs = Runs(go_on=False)
    body = {"inputs": list(range(6)), "in_flight": 2}
    async with open_door(runs) as door:
        async with raw(door) as peer:
            await peer.post(body, 'Idempotency-Key: "step-12"', path="/v1/batches")
            await runs.have_started(2)
        await nobody_is_connected(door)
        runs.may_end.set()
        async with asking(door) as client:
            for index in range(2):
                assert of(await client.get(f"/v1/rollouts/step-12/{index}?wait=300")) == index
            headers = {"idempotency-key": '"step-12"'}
            answer = await client.post("/v1/batches", json=body, headers=headers)
        assert len(answer.text.splitlines()) == 6
    assert (sorted(runs.started), runs.cancelled) == (list(range(6)), [])


# -- what is no key ------------------------------------------------------------------------

NO_KEYS = [
    b"step-12", b"", b'""', b'"', b'"a', b'a"', b'"a" b', b'"a"b"', b'"a";x=1', b'"a", "b"',
    b"'a'", b'"a\\b"', b'"a\\"', b'"a\tb"', b'"\xc3\xbc"', b'"\xff"', b'%"a"', b":YQ==:",
    b"1", b"?1", b'("a")', b'"."', b'".."', b"a b", b'"' + b"k" * 4096 + b'"',
]  # fmt: skip


@pytest.mark.parametrize("path", ["/v1/rollouts", "/v1/batches"])
async def test_header_that_is_no_key_is_refused(path: str):
    runs = Runs()
    body = {"inputs": [1]} if path == "/v1/batches" else {"input": 1}
    async with open_door(runs) as door, asking(door) as client:
        for header in NO_KEYS:
            answer = await client.post(path, json=body, headers={"idempotency-key": header})
            problem = answer.json()
            if path == "/v1/batches" and len(header) > 4096:  # each of its inputs has a key
                problem = problem["problem"]
            assert (problem["status"], problem["ran"]) == (400, False), header
            assert "key" in problem["detail"].lower()
    assert runs.started == []


async def test_key_may_have_what_a_string_of_structured_fields_may():
    key = 'a b/%2F?#&+~"\\'
    header = key.replace("\\", "\\\\").replace('"', '\\"')
    async with open_door(Runs()) as door, asking(door) as client:
        headers = {"idempotency-key": f'"{header}"', "prefer": "respond-async, wait=300"}
        assert of(await client.post("/v1/rollouts", json={"input": 1}, headers=headers)) == 1
        assert of(await client.get("/v1/rollouts/a%20b%2F%252F%3F%23%26%2B~%22%5C")) == 1


SMUGGLING = [
    'Idempotency-Key: "a\x00b"',
    'Idempotency-Key: "a\x1bb"',
    'Idempotency-Key: "a\x7fb"',
    'Idempotency-Key: "a\rX-Evil: 1"',
    'Idempotency-Key: "a\r\n b"',
    'Idempotency-Key : "a"',
    'Idempotency-Key: "a"\r\nIdempotency-Key: "a"',
    'Idempotency-Key: "a"\r\nIdempotency-Key: "b"',
]


async def test_key_cannot_smuggle_anything_and_two_keys_are_none():
    runs = Runs()
    async with open_door(runs) as door:
        for lines in SMUGGLING:
            async with raw(door) as peer:
                await peer.post({"input": 1}, lines, "Connection: close")
                said = await peer.rest()
                assert said.startswith(b"HTTP/1.1 400 "), lines
                assert b"x-evil" not in said.lower()
    assert runs.started == []


NO_PLACES = [
    ("/%zz", 400),
    ("/%", 400),
    ("/%ff", 400),
    ("/a%00", 400),
    ("/a%0d%0aX-Evil:%201", 400),
    ("/" + "k" * 4096, 400),
    ("/a?namespace=", 400),
    ("/a?namespace=%00", 400),
    ("/a?namespace=" + "n" * 4096, 400),
    ("/a?namespace=%ff", 400),
    ("/a?namespace=a&namespace=b", 400),
    ("/a?namespce=a", 400),
    ("/a?", 0),
    ("/a?&&&", 400),
    ("/" + "k" * 20_000, 431),
]
WRONG_WAITS = ["wait=", "wait=-1", "wait=nan", "wait=1e3", "kind=many"]


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_path_that_names_no_key_is_refused(method: str):
    of_get = [(f"/a?{query}", 400) for query in WRONG_WAITS] if method == "GET" else []
    async with open_door(Runs()) as door:
        for path, status in NO_PLACES + of_get:
            async with raw(door) as peer:
                await peer.send(f"{method} /v1/rollouts{path} HTTP/1.1", "Host: localhost")
                answer = await peer.answer()
            assert answer.status == (status or (404 if method == "GET" else 200)), path
            assert "x-evil" not in answer.headers


async def test_namespace_without_a_key_is_refused():
    """It would have run, and a retry would have run it again."""
    async with open_door(Runs()) as door, asking(door) as client:
        for path in ("/v1/rollouts", "/v1/batches"):
            answer = await client.post(f"{path}?namespace=a", json={"input": 1})
            assert answer.status_code == 400
            assert "Idempotency-Key" in answer.json()["detail"]


async def test_wait_is_bounded():
    async with open_door(Runs(go_on=False), {"wait_s": 0.01}) as door, asking(door) as client:
        await client.post("/v1/rollouts", json={"input": 1}, headers=ASYNC)
        assert (await client.get(f"{AT}?wait=999999")).status_code == 202
