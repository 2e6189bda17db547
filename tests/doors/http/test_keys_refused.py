"""What is no key by HTTP, and who may not ask for one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.doors.http.door import asking, open_door, raw
from tests.doors.http.keyed import ASYNC, AT, Runs, post


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


async def test_a_token_is_needed_for_keys_too(tmp_path: Any):
    path = tmp_path / "tokens"
    path.write_text("0123456789abcdef")
    path.chmod(0o600)
    async with open_door(Runs(), token_file=path) as door, asking(door) as client:
        for method in ("GET", "DELETE"):
            answer = await client.request(method, AT)
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
