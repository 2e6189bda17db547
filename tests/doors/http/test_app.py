"""Calls by HTTP: what goes in, what comes out, and what is said where it did not work."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import cbor2
import pytest
import trio

from tests.doors.http.door import (
    ASYNC,
    AT,
    CBOR,
    JSON,
    KEY,
    Runs,
    asking,
    echo,
    httpx2,
    open_all,
    open_door,
    open_nowhere,
    raw,
    told,
)
from tests.spans import Kept, kept, parent_of
from trio_envserve import CallOptions, Client
from trio_envserve.core.health import Health, ServerHealth, ServerStatus
from trio_envserve.core.status import ServerStats
from trio_envserve.core.terms import Verdict
from trio_envserve.core.values import TAG_PAIRS
from trio_envserve.doors.http import app
from trio_envserve.doors.http.bodies import Codec
from trio_envserve.doors.http.operations import BATCH, ROLLOUT


async def test_rollout_is_run_and_its_outcome_comes_back():
    async with open_door("arithmetic") as door, asking(door) as client:
        answer = await client.post("/v1/rollouts", json={"input": {"index": 0}, "model": "oracle"})
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
        record = answer.json()
        assert record["value"]["reward"] == 1.0
        assert record["executions"] == 1
        assert set(record) == {"value", "worker", "executions", "duration_s", "took_s"}


async def test_values_that_json_lacks_come_back_in_json_and_in_cbor():
    value = {"a": {"$bytes": "AAE="}, "b": [{"$float": "nan"}], "c": {"$map": [[1, 2]]}}
    array = {"$array": {"dtype": "float32", "shape": [1, 2], "data": "AACAPwAAAEA="}}
    plain = {"bytes": b"\x00", "pairs": cbor2.CBORTag(TAG_PAIRS, (1, float("inf")))}
    async with open_door(echo) as door, asking(door) as client:
        answer = await client.post("/v1/rollouts", json={"input": [value, array]})
        assert answer.json()["value"] == [value, array]
        body = cbor2.dumps({"input": plain})
        answer = await client.post("/v1/rollouts", content=body, headers=CBOR)
        assert answer.headers["content-type"] == "application/cbor"
        assert cbor2.loads(answer.content)["value"] == plain


async def test_cbor_that_takes_long_to_write_is_written_all_the_same():
    async def large(rollout: Any) -> Any:
        return [{"text": str(number)} for number in range(30_000)]  # its body has a header

    async with open_door(large) as door, asking(door) as client:
        accept = {"accept": "application/cbor"}
        answer = await client.post("/v1/rollouts", json={"input": 0}, headers=accept)
        assert cbor2.loads(answer.content)["value"][-1] == {"text": "29999"}


async def test_rollout_that_failed_says_that_it_ran():
    async def fails(rollout: Any) -> Any:
        raise LookupError("no such riddle")

    async with open_door(fails) as door, asking(door) as client:
        answer = await client.post("/v1/rollouts", json={"input": 0})
        problem = answer.json()
        assert answer.headers["content-type"] == "application/problem+json"
        assert told(answer) == (500, "rollout-failed")
        assert (problem["verdict"], problem["ran"]) == ("it ran and failed", True)
        assert problem["exception"] == "LookupError"
        assert "no such riddle" in problem["detail"]
        assert "in fails" in problem["traceback"]
        assert problem["advice"]


# -- what is asked wrongly --------------------------------------------------------------


def test_table_of_fields_has_all_options_of_a_call():
    of_headers = {"key", "namespace", "traceparent"}
    options = set(CallOptions.__annotations__) - of_headers
    assert set(ROLLOUT) == options | {"input", "kind"}
    assert set(BATCH) == options | {"inputs", "in_flight"}


WRONG_FIELDS = [
    ({"input": 0, "sampling_arg": {}}, "field 'sampling_arg'; did you mean 'sampling_args'"),
    ({"input": 0, "key": "step-12"}, "the header Idempotency-Key"),
    ({"input": 0, "namespace": "nightly"}, "?namespace=NAME"),
    ({"inputs": [0]}, "POST /v1/batches"),
    ({"input": 0, "xyz": 0}, "(known: input, kind, model"),
    ({"model": "oracle"}, "input"),
    ([1], "a list"),
    (None, "null"),
    ({"input": 0, "rerun": 1}, "rerun"),
    ({"input": 0, "grace_s": 5}, "give timeout_s or execution_s"),
    ({"input": 0, "kind": "many"}, "kind"),
    ({"input": 0, "kind": "rescore"}, "input"),
    ({"input": 0, "roles": {"judge": 1}}, "roles"),
    ({"input": 0, "kind": "group"}, "input"),
    ({"input": {"$bytes": "%"}}, "$bytes"),
]
BROKEN_JSON = [
    b"", b"{", b'{"input": NaN}', b'{"input": 1e999}', b'{"input": 0, "input": 1}',
    b'{"input": "\xff"}', b'{"input": 0} {}', b"[" * 5_000 + b"]" * 5_000,
    b'{"input": ' + b"9" * 5_000 + b"}", '{"input": 0}'.encode("utf-16"),
    b"\xef\xbb\xbf{}",
]  # fmt: skip
BROKEN_CBOR = [
    b"", b"\xff", b"\xa1\x65input", cbor2.dumps({"input": 0}) + b"\x00",
    b"\xa2\x65input\x00\x65input\x01", b"\x9f", b"\x9b" + b"\xff" * 8, b"\xc1\xc1\x00",
]  # fmt: skip
WRONG_HEADERS = [
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
]


async def test_call_that_is_asked_wrongly_is_refused_before_anything_runs():
    rows: list[tuple[bytes, dict[str, str], int, str, str]] = [
        *((json.dumps(body).encode(), {}, 400, "bad-request", named)
          for body, named in WRONG_FIELDS),
        *((body, {}, 400, "bad-request", "") for body in BROKEN_JSON),
        *((body, CBOR, 400, "bad-request", "") for body in BROKEN_CBOR),
        (b'{"input": "\\ud800"}', {}, 400, "not-encodable", ""),
        *((b'{"input": 0}', headers, status, code, "") for headers, status, code in WRONG_HEADERS),
    ]  # fmt: skip
    runs = Runs()
    async with open_door(runs) as door, asking(door) as client:
        for body, headers, status, code, named in rows:
            answer = await client.post("/v1/rollouts", content=body, headers=JSON | headers)
            assert told(answer) == (status, code), (body, headers)
            assert named in answer.json()["detail"]
            assert answer.json()["verdict"] == "it did not run"
            assert answer.json()["ran"] is False
    assert runs.started == []


LIKED = {
    "*/*": "application/json",
    "": "application/json",
    "application/*": "application/json",
    "application/cbor": "application/cbor",
    "application/json;q=0.5, application/cbor": "application/cbor",
    "*/*;q=0.1, application/cbor;q=0.2": "application/cbor",
    "application/json;q=0, */*": "application/cbor",
    "text/html, */*;q=0.8, x;q=many": "application/json",
}


async def test_form_that_the_caller_likes_best_is_given():
    async with open_door(echo) as door, asking(door) as client:
        for accept, media in LIKED.items():
            headers = {"accept": accept}
            answer = await client.post("/v1/rollouts", json={"input": 0}, headers=headers)
            assert answer.headers["content-type"] == media, accept


# -- batches --------------------------------------------------------------------


async def test_batch_is_a_line_for_each_input_in_order_of_finishing():
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
        answer = await client.post("/v1/batches", json={"inputs": []})
        assert (answer.status_code, answer.content) == (200, b"")


WRONG_BATCHES: list[tuple[Any, str]] = [
    ({"inputs": 3}, "inputs"),
    ({"inputs": [], "in_flight": 0}, "in_flight"),
    ({"inputs": [], "in_flight": True}, "in_flight"),
    ({"inputs": [0, 0, 0]}, "inputs"),
    ({"input": 0}, "input"),
    ({"inputs": [0], "rerun": "yes"}, "rerun"),
]


async def test_wrong_batch_is_refused():
    async with open_door(echo, {"batch_inputs": 2}) as door, asking(door) as client:
        for body, named in WRONG_BATCHES:
            answer = await client.post("/v1/batches", json=body)
            assert answer.status_code == 400, body
            assert named in answer.json()["detail"]


# -- hanging up, and bounds -------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/rollouts", {"input": 0}), ("/v1/batches", {"inputs": [0, 1]})]
)
async def test_work_of_who_hangs_up_is_cancelled(path: str, body: Any):
    runs = Runs(go_on=False)
    async with open_door(runs) as door:
        async with raw(door) as peer:
            await peer.post(body, path=path)
            await runs.have_started()
        await runs.are_cancelled()


async def test_door_refuses_for_now_past_its_bound_of_calls():
    runs = Runs(go_on=False)
    async with open_door(runs, {"calls": 1}) as door, asking(door) as client:
        async with raw(door) as peer:
            await peer.post({"input": 0})
            await runs.have_started()
            for path, body in (("rollouts", {"input": 0}), ("batches", {"inputs": [0]})):
                answer = await client.post(f"/v1/{path}", json=body)
                assert told(answer) == (429, "busy")
                assert answer.headers["retry-after"] == "1"
            runs.may_end.set()
            assert (await peer.answer()).status == 200
        answer = await client.post("/v1/rollouts", json={"input": 0})
        assert answer.status_code == 200, "the room was given back"
        answer = await client.post("/v1/batches", json={"inputs": [0, 0], "in_flight": 2})
        assert answer.status_code == 429


async def test_bodies_take_no_more_than_their_share_together():
    async with open_door(echo, {"bodies_bytes": 1000}) as door, asking(door) as client:
        for size, status in ((1000, 429), (1000, 429), (900, 200), (900, 200)):
            answer = await client.post("/v1/rollouts", json={"input": "x" * size})
            assert answer.status_code == status, "what was taken is given back"


async def test_too_many_items_of_json_are_refused():
    async with open_door(echo, {"json_items": 100}) as door, asking(door) as client:
        answer = await client.post("/v1/rollouts", json={"input": [[]] * 60})
        assert told(answer) == (413, "body-too-large")


async def test_server_that_is_not_there_is_told_and_nothing_is_said_of_keys(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(app, "READY_S", 0.01)
    async with open_nowhere(answer_s=0.05) as client:
        assert (await client.get("/livez")).json() == {"status": "alive"}
        one = {"json": {"input": 1}}
        for ask, ran in (
            (client.get("/readyz"), False),
            (client.post("/v1/rollouts", **one), False),
            (client.post("/v1/batches", json={"inputs": [0]}), False),
            (client.get(AT), None),
            (client.get(f"{AT}?wait=0.01"), None),
            (client.delete(AT), None),
            (client.post("/v1/rollouts", **one, headers=KEY), None),
            (client.post("/v1/rollouts", **one, headers=ASYNC), None),
        ):
            answer = await ask
            assert told(answer) == (503, "not-ready")
            assert answer.json()["ran"] is ran
            assert answer.headers["retry-after"] == "1"


async def test_answers_under_way_are_given_when_the_door_closes():
    runs = Runs(go_on=False)
    answers = []
    async with trio.open_nursery() as nursery:
        async with open_door(runs) as door:

            async def ask() -> None:
                async with asking(door) as client:
                    answers.append(await client.post("/v1/rollouts", json={"input": 0}))

            nursery.start_soon(ask)
            await runs.have_started()
            runs.may_end.set()
    assert answers[0].json()["value"]["of"] == 0


async def test_probes_and_the_document():
    async with open_door("arithmetic") as door, asking(door) as client:
        assert (await client.get("/readyz")).json() == {"status": "ready"}
        assert (await client.head("/livez")).status_code == 200
        document = (await client.get("/v1/openapi.json")).json()
        schema = document["paths"]["/v1/rollouts"]["post"]["requestBody"]["content"]
        assert set(schema["application/json"]["schema"]["properties"]) == set(ROLLOUT)
        problem = (await client.get("/nowhere")).json()
        assert set(problem) <= set(document["components"]["schemas"]["Problem"]["properties"])
        verdicts = document["components"]["schemas"]["Problem"]["properties"]["verdict"]["enum"]
        assert verdicts == [verdict.value for verdict in Verdict]


# -- mistakes of the door itself ----------------------------------------------------


async def test_mistake_of_the_door_is_told_without_its_inside(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async def write(*_: object) -> bytes:
        raise RuntimeError("a secret")

    monkeypatch.setattr(Codec, "write", write)
    async with open_door(echo) as door, asking(door) as client:
        answer = await client.post("/v1/rollouts", json={"input": 0})
        assert told(answer) == (500, "internal")
        assert answer.json()["ran"] is None, "the rollout had ended"
        assert "a secret" not in answer.text
        with pytest.raises(httpx2.RemoteProtocolError):  # 200 was said: only the end can tell
            await client.post("/v1/batches", json={"inputs": [0]})
        assert (await client.get("/livez")).status_code == 200
    assert "a secret" in caplog.text


async def test_status_said_ready_before_the_door_did(monkeypatch: pytest.MonkeyPatch):
    """The door hears it with its client's next ping, up to a second later."""
    async with open_all(echo) as opened:
        unheard = ServerHealth(Health.STARTING, "no worker is ready yet")
        monkeypatch.setattr(Client, "health", lambda _: unheard)
        assert (await opened.http.get("/readyz")).json() == {"status": "ready"}
        answer = await opened.http.post("/v1/rollouts", json={"input": 1})
        assert (answer.status_code, answer.json()["value"]) == (200, 1)

        ask = Client.stats

        async def starting(self: Client, timeout_s: float | None = None) -> ServerStats:
            found = await ask(self, timeout_s)
            return dataclasses.replace(found, status=ServerStatus.STARTING)

        monkeypatch.setattr(Client, "stats", starting)
        assert (await opened.http.get("/readyz")).status_code == 503
        answer = await opened.http.post("/v1/rollouts", json={"input": 1})
        assert told(answer) == (503, "not-ready")


# -- where spans belong --------------------------------------------------------------


__all__ = ["kept"]

SPAN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
PARENT = int(SPAN[36:52], 16)


async def gym(rollout: Any) -> Any:
    return {"reward": 0.5, "response": {"output": []}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/rollouts", {"input": 1}),
        ("/v1/rollouts", {"input": [1, 2], "kind": "group"}),
        ("/v1/batches", {"inputs": [1, 2]}),
        ("/run", {"responses_create_params": {}, "_ng_rollout_id": "one"}),
    ],
)
async def test_rollouts_are_below_the_span_of_who_asks(kept: Kept, path: str, body: Any):
    async with open_door(gym) as door, asking(door) as client:
        answer = await client.post(path, json=body, headers={"traceparent": SPAN})
        assert answer.status_code == 200
    assert {parent_of(span) for span in kept.named("rollout")} == {PARENT}
    assert kept.named("call") == [], "a door makes no spans of its own"


async def test_a_key_that_is_asked_for_below_another_span_is_the_same_request(kept: Kept):
    async with open_door(gym) as door, asking(door) as client:
        for span in (SPAN, OTHER):
            headers = {"idempotency-key": '"one"', "traceparent": span}
            answer = await client.post("/v1/rollouts", json={"input": 1}, headers=headers)
            assert answer.status_code == 200
    assert len(kept.named("execution")) == 1
    assert {parent_of(span) for span in kept.named("rollout")} == {PARENT, int(OTHER[36:52], 16)}


async def test_header_that_is_malformed_is_ignored_and_no_span_stands_in_a_body(kept: Kept):
    malformed = [["no span"], [SPAN, OTHER], ["\x80"], [SPAN.upper()]]
    async with open_door(gym) as door, asking(door) as client:
        for said in malformed:
            headers = [(b"traceparent", each.encode("latin-1")) for each in said]
            answer = await client.post("/v1/rollouts", json={"input": 1}, headers=headers)
            assert answer.status_code == 200
        answer = await client.post("/v1/rollouts", json={"input": 1, "traceparent": SPAN})
        assert answer.status_code == 400
    assert [parent_of(span) for span in kept.named("rollout")] == [None] * len(malformed)
