"""Calls by HTTP: what goes in, what comes out, and what is said where it did not work."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import cbor2
import numpy
import pytest
import trio

from tests.doors.http.door import asking, httpx2, open_door, raw
from trio_envserve import CallOptions, Client, open_server
from trio_envserve.core.health import Health, ServerHealth, ServerStatus
from trio_envserve.core.status import ServerStats
from trio_envserve.core.terms import Verdict
from trio_envserve.doors.http import open_http_door
from trio_envserve.doors.http.bodies import Codec
from trio_envserve.doors.http.fields import BATCH, ROLLOUT
from trio_envserve.net import MemoryNetwork

CBOR = {"content-type": "application/cbor", "accept": "application/cbor"}


async def echo(rollout: Any) -> Any:
    return rollout.input


async def fails(rollout: Any) -> Any:
    raise LookupError("no such riddle")


async def test_a_rollout_is_run_and_its_outcome_comes_back():
    async with open_door("arithmetic") as door, asking(door) as client:
        answer = await client.post("/v1/rollouts", json={"input": {"index": 0}, "model": "oracle"})
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        record = answer.json()
        assert record["value"]["reward"] == 1.0
        assert record["executions"] == 1
        assert set(record) == {"value", "worker", "executions", "duration_s", "took_s"}


async def test_a_group_has_members():
    async with open_door("arithmetic") as door, asking(door) as client:
        body = {"kind": "group", "input": [{"index": 0}, {"index": 1}]}
        record = (await client.post("/v1/rollouts", json=body)).json()
        assert [member["value"]["reward"] for member in record["members"]] == [1.0, 1.0]


async def test_what_json_lacks_has_one_form_both_ways():
    value = {"a": {"$bytes": "AAE="}, "b": [{"$float": "nan"}], "c": {"$map": [[1, 2]]}}
    array = {"$array": {"dtype": "float32", "shape": [1, 2], "data": "AACAPwAAAEA="}}
    async with open_door(echo) as door, asking(door) as client:
        answer = await client.post("/v1/rollouts", json={"input": [value, array]})
        assert answer.json()["value"] == [value, array]


async def test_cbor_in_and_out():
    async with open_door(echo) as door, asking(door) as client:
        body = cbor2.dumps({"input": {"bytes": b"\x00", 1: float("inf")}})
        answer = await client.post("/v1/rollouts", content=body, headers=CBOR)
        assert answer.headers["content-type"] == "application/cbor"
        assert cbor2.loads(answer.content)["value"] == {"bytes": b"\x00", 1: float("inf")}


@pytest.mark.parametrize("media", ["application/json", "application/cbor"])
async def test_what_takes_long_to_write_is_written_all_the_same(media: str):
    async def large(rollout: Any) -> Any:
        return [{"text": str(number)} for number in range(30_000)]

    async with open_door(large) as door, asking(door) as client:
        answer = await client.post("/v1/rollouts", json={"input": 0}, headers={"accept": media})
        read = json.loads if media == "application/json" else cbor2.loads
        assert read(answer.content)["value"][-1] == {"text": "29999"}


async def test_arrays_come_back_as_they_were_made():
    async def zeros(rollout: Any) -> Any:
        return numpy.zeros((2, 3), "int16")

    async with open_door(zeros) as door, asking(door) as client:
        record = (await client.post("/v1/rollouts", json={"input": 0})).json()
        assert record["value"]["$array"]["shape"] == [2, 3]


async def test_a_rollout_that_failed_says_that_it_ran():
    async with open_door(fails) as door, asking(door) as client:
        answer = await client.post("/v1/rollouts", json={"input": 0})
        problem = answer.json()
        assert answer.headers["content-type"] == "application/problem+json"
        assert (answer.status_code, problem["code"]) == (500, "rollout-failed")
        assert (problem["verdict"], problem["ran"]) == ("it ran and failed", True)
        assert problem["exception"] == "LookupError"
        assert "no such riddle" in problem["detail"]
        assert "in fails" in problem["traceback"]
        assert problem["advice"]


# -- fields ---------------------------------------------------------------------


def test_the_table_of_fields_has_all_options_of_a_call():
    of_headers = {"key", "namespace", "traceparent"}
    options = set(CallOptions.__annotations__) - of_headers
    assert set(ROLLOUT) == options | {"input", "kind"}
    assert set(BATCH) == options | {"inputs", "in_flight"}


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"input": 0, "sampling_arg": {}}, "sampling_arg"),
        ({"model": "oracle"}, "input"),
        ([1], "a list"),
        (None, "null"),
        ({"input": 0, "rerun": 1}, "rerun"),
        ({"input": 0, "max_executions": 0}, "max_executions"),
        ({"input": 0, "timeout_s": -1}, "timeout_s"),
        ({"input": 0, "execution_s": 0}, "execution_s"),
        ({"input": 0, "max_retries": "1"}, "max_retries"),
        ({"input": 0, "state_columns": "answer"}, "state_columns"),
        ({"input": 0, "sampling_args": 1}, "sampling_args"),
        ({"input": 0, "kind": "many"}, "kind"),
        ({"input": 0, "model": None}, "model"),
        ({"input": 0, "kind": "group"}, "input"),
        ({"input": {"$bytes": "%"}}, "$bytes"),
    ],
)
async def test_a_wrong_field_is_refused_by_name_before_anything_runs(body: Any, named: str):
    ran = []

    async def environment(rollout: Any) -> Any:
        ran.append(rollout.input)

    async with open_door(environment) as door, asking(door) as client:
        headers = {"content-type": "application/json"}
        content = json.dumps(body)
        answer = await client.post("/v1/rollouts", content=content, headers=headers)
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (400, "bad-request")
        assert named in problem["detail"]
        assert problem["verdict"] == "it did not run"
    assert ran == []


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b'{"input": NaN}', b'{"input": 1e999}', b'{"input": 0, "input": 1}',
        b'{"input": "\xff"}', b'{"input": 0} {}', b"[" * 5_000 + b"]" * 5_000,
        b'{"input": ' + b"9" * 5_000 + b"}", '{"input": 0}'.encode("utf-16"),
        b"\xef\xbb\xbf{}", b'{"input": "\\ud800"}',
    ],
    ids=range(12),
)  # fmt: skip
async def test_broken_json_is_refused(body: bytes):
    async with open_door(echo) as door, asking(door) as client:
        headers = {"content-type": "application/json"}
        answer = await client.post("/v1/rollouts", content=body, headers=headers)
        assert answer.status_code == 400, answer.text
        assert answer.json()["ran"] is False


@pytest.mark.parametrize(
    "body",
    [
        b"", b"\xff", b"\xa1\x65input", cbor2.dumps({"input": 0}) + b"\x00",
        b"\xa2\x65input\x00\x65input\x01", b"\x9f", b"\x9b" + b"\xff" * 8, b"\xc1\xc1\x00",
    ],
    ids=range(8),
)  # fmt: skip
async def test_broken_cbor_is_refused(body: bytes):
    async with open_door(echo) as door, asking(door) as client:
        answer = await client.post("/v1/rollouts", content=body, headers=CBOR)
        assert answer.status_code == 400
        assert answer.json()["code"] == "bad-request"


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"content-type": "text/plain"}, 415, "unsupported-media-type"),
        ({"content-type": "application/json; charset=latin-1"}, 415, "unsupported-media-type"),
        ({"content-encoding": "gzip"}, 415, "unsupported-media-type"),
        ({"content-type": ""}, 415, "unsupported-media-type"),
        ({"accept": "text/html"}, 406, "not-acceptable"),
        ({"accept": "application/json;q=0"}, 406, "not-acceptable"),
        ({"idempotency-key": "k"}, 400, "bad-request"),
        ({"host": "evil.example"}, 421, "host-refused"),
        ({"origin": "http://evil.example"}, 403, "origin-refused"),
        ({"origin": "http://127.0.0.1:1"}, 403, "origin-refused"),
        ({"origin": "null"}, 403, "origin-refused"),
    ],
)
async def test_what_is_asked_wrongly_is_refused_before_anything_runs(
    headers: dict[str, str], status: int, code: str
):
    ran = []

    async def environment(rollout: Any) -> Any:
        ran.append(rollout.input)

    async with open_door(environment) as door, asking(door) as client:
        headers = {"content-type": "application/json", **headers}
        answer = await client.post("/v1/rollouts", content=b'{"input": 0}', headers=headers)
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (status, code)
        assert (problem["verdict"], problem["ran"]) == ("it did not run", False)
    assert ran == []


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        ("*/*", "application/json"),
        ("", "application/json"),
        ("application/*", "application/json"),
        ("application/cbor", "application/cbor"),
        ("application/json;q=0.5, application/cbor", "application/cbor"),
        ("*/*;q=0.1, application/cbor;q=0.2", "application/cbor"),
        ("application/json;q=0, */*", "application/cbor"),
        ("text/html, */*;q=0.8, x;q=many", "application/json"),
    ],
)
async def test_the_form_that_the_caller_likes_best_is_given(accept: str, media: str):
    async with open_door(echo) as door, asking(door) as client:
        answer = await client.post("/v1/rollouts", json={"input": 0}, headers={"accept": accept})
        assert answer.headers["content-type"] == media


# -- batches --------------------------------------------------------------------


async def test_a_batch_is_a_line_for_each_input_in_order_of_finishing():
    second = trio.Event()

    async def environment(rollout: Any) -> Any:
        if rollout.input == "first":
            await second.wait()
        if rollout.input == "bad":
            raise ValueError("no")
        return rollout.input

    async with open_door(environment) as door, asking(door) as client:
        body = {"inputs": ["first", "second", "bad"]}
        found = []
        async with client.stream("POST", "/v1/batches", json=body) as answer:
            assert answer.headers["content-type"] == "application/x-ndjson"
            async for line in answer.aiter_lines():
                found.append(json.loads(line))
                if len(found) == 2:
                    second.set()
        assert found[-1]["index"] == 0
        by_index = {line["index"]: line for line in found}
        assert [by_index[index].get("value") for index in range(3)] == ["first", "second", None]
        assert by_index[2]["problem"]["verdict"] == "it ran and failed"


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"inputs": 3}, "inputs"),
        ({"inputs": [], "in_flight": 0}, "in_flight"),
        ({"inputs": [], "in_flight": True}, "in_flight"),
        ({"inputs": [0, 0, 0]}, "inputs"),
        ({"input": 0}, "input"),
        ({"inputs": [0], "rerun": "yes"}, "rerun"),
    ],
)
async def test_a_wrong_batch_is_refused(body: Any, named: str):
    async with open_door(echo, {"batch_inputs": 2}) as door, asking(door) as client:
        answer = await client.post("/v1/batches", json=body)
        assert answer.status_code == 400
        assert named in answer.json()["detail"]


async def test_an_empty_batch_has_no_lines():
    async with open_door(echo) as door, asking(door) as client:
        answer = await client.post("/v1/batches", json={"inputs": []})
        assert (answer.status_code, answer.content) == (200, b"")


# -- hanging up, and bounds -------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/rollouts", {"input": 0}), ("/v1/batches", {"inputs": [0, 1]})]
)
async def test_who_hangs_up_cancels_what_runs(path: str, body: Any):
    began, ended = trio.Event(), trio.Event()

    async def environment(rollout: Any) -> Any:
        began.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async with open_door(environment) as door:
        async with raw(door) as peer:
            data = json.dumps(body).encode()
            await peer.send(
                f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json",
                f"Content-Length: {len(data)}", body=data,
            )  # fmt: skip
            await began.wait()
        await ended.wait()


async def test_past_its_bound_of_calls_the_door_refuses_for_now():
    began, go_on = trio.Event(), trio.Event()

    async def environment(rollout: Any) -> Any:
        began.set()
        await go_on.wait()
        return 1

    async with open_door(environment, {"calls": 1}) as door, asking(door) as client:

        async def first() -> None:
            assert (await client.post("/v1/rollouts", json={"input": 0})).status_code == 200

        async with trio.open_nursery() as nursery:
            nursery.start_soon(first)
            await began.wait()
            for path, body in (("rollouts", {"input": 0}), ("batches", {"inputs": [0]})):
                answer = await client.post(f"/v1/{path}", json=body)
                assert answer.status_code == 429
                assert answer.headers["retry-after"] == "1"
                assert answer.json()["code"] == "busy"
            go_on.set()
        answer = await client.post("/v1/rollouts", json={"input": 0})
        assert answer.status_code == 200, "the room was given back"
        answer = await client.post("/v1/batches", json={"inputs": [0, 0], "in_flight": 2})
        assert answer.status_code == 429


async def test_bodies_take_no_more_than_their_share_together():
    async with open_door(echo, {"bodies_bytes": 1000}) as door, asking(door) as client:
        for _ in range(2):  # what was refused is given back
            answer = await client.post("/v1/rollouts", json={"input": "x" * 1000})
            assert (answer.status_code, answer.json()["code"]) == (429, "busy")
        assert (await client.post("/v1/rollouts", json={"input": "x" * 900})).status_code == 200
        assert (await client.post("/v1/rollouts", json={"input": "x" * 900})).status_code == 200


async def test_too_many_items_of_json_are_refused():
    async with open_door(echo, {"json_items": 100}) as door, asking(door) as client:
        answer = await client.post("/v1/rollouts", json={"input": [[]] * 60})
        assert (answer.status_code, answer.json()["code"]) == (413, "body-too-large")


async def test_a_server_that_is_not_ready_is_told():
    network = MemoryNetwork()
    async with open_http_door("memory:nobody", network=network) as door, asking(door) as client:
        assert (await client.get("/livez")).json() == {"status": "alive"}
        for answer in (
            await client.get("/readyz"),
            await client.post("/v1/rollouts", json={"input": 0}),
            await client.post("/v1/batches", json={"inputs": [0]}),
        ):
            assert (answer.status_code, answer.json()["code"]) == (503, "not-ready")
            assert answer.headers["retry-after"] == "1"


async def test_a_door_whose_server_is_gone_says_that_it_is_not_ready():
    network = MemoryNetwork()
    async with open_server(echo, bind="memory:s", workers=0, network=network) as server:
        pass
    async with open_http_door(server.address, network=network) as door, asking(door) as client:
        assert (await client.get("/readyz")).status_code == 503


async def test_answers_under_way_are_given_when_the_door_closes():
    began, go_on = trio.Event(), trio.Event()

    async def environment(rollout: Any) -> Any:
        began.set()
        await go_on.wait()
        return "given"

    network = MemoryNetwork()
    answers = []
    async with open_server(environment, bind="memory:s", workers=0, network=network) as server:
        async with trio.open_nursery() as nursery:
            async with open_http_door(server, network=network) as door:
                await door.wait_ready()

                async def ask() -> None:
                    async with asking(door) as client:
                        answers.append(await client.post("/v1/rollouts", json={"input": 0}))

                nursery.start_soon(ask)
                await began.wait()
                go_on.set()
    assert answers[0].json()["value"] == "given"


async def test_probes_and_the_document():
    async with open_door("arithmetic") as door, asking(door) as client:
        assert (await client.get("/readyz")).json() == {"status": "ready"}
        assert (await client.head("/livez")).status_code == 200
        document = (await client.get("/v1/openapi.json")).json()
        schema = document["paths"]["/v1/rollouts"]["post"]["requestBody"]["content"]
        assert set(schema["application/json"]["schema"]["properties"]) == set(ROLLOUT)
        verdicts = document["components"]["schemas"]["Problem"]["properties"]["verdict"]["enum"]
        assert verdicts == [verdict.value for verdict in Verdict]


# -- mistakes of the door itself ----------------------------------------------------


async def test_a_mistake_of_the_door_is_told_without_its_inside(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async def write(*_: object) -> bytes:
        raise RuntimeError("a secret")

    monkeypatch.setattr(Codec, "write", write)
    async with open_door(echo) as door, asking(door) as client:
        answer = await client.post("/v1/rollouts", json={"input": 0})
        assert (answer.status_code, answer.json()["code"]) == (500, "internal")
        assert answer.json()["ran"] is None, "the rollout had ended"
        assert "a secret" not in answer.text
        with pytest.raises(httpx2.RemoteProtocolError):  # 200 was said: only the end can tell
            await client.post("/v1/batches", json={"inputs": [0]})
        assert (await client.get("/livez")).status_code == 200
    assert "a secret" in caplog.text


async def test_status_said_ready_before_the_door_did(monkeypatch: pytest.MonkeyPatch):
    """The door hears it with its client's next ping, up to a second later."""
    async with open_door(echo) as door, asking(door) as client:
        unheard = ServerHealth(Health.STARTING, "no worker is ready yet")
        monkeypatch.setattr(Client, "health", lambda _: unheard)
        assert (await client.get("/readyz")).json() == {"status": "ready"}
        answer = await client.post("/v1/rollouts", json={"input": 1})
        assert (answer.status_code, answer.json()["value"]) == (200, 1)

        ask = Client.stats

        async def starting(self: Client, timeout_s: float | None = None) -> ServerStats:
            found = await ask(self, timeout_s)
            return dataclasses.replace(found, status=ServerStatus.STARTING)

        monkeypatch.setattr(Client, "stats", starting)
        assert (await client.get("/readyz")).status_code == 503
        answer = await client.post("/v1/rollouts", json={"input": 1})
        assert (answer.status_code, answer.json()["code"]) == (503, "not-ready")
