"""What reading and writing a body takes of the loop."""

from __future__ import annotations

import gc
import json
import threading
from typing import Any

import cbor2
import numpy
import pytest
import trio
import trio.testing

from tests.doors.http.door import CBOR, JSON, Runs, asking, echo, open_all, open_door, raw
from trio_envserve import ServerLimits
from trio_envserve.core import values
from trio_envserve.core.limits import WireLimits
from trio_envserve.core.terms import COST_HEADER
from trio_envserve.core.values import written_head
from trio_envserve.doors.http import HttpLimits, bodies
from trio_envserve.doors.http.turns import Turns
from trio_envserve.json_values import restored

HEAVY = {
    "objects": b'{"input": [' + b'{"a":0},' * 12_000 + b"0]}",
    "numbers": b'{"input": [' + b"1.5e-300," * 25_000 + b"0]}",
    "long numbers": b'{"input": [' + b",".join([b"9" * 4000] * 150) + b"]}",
    "a long text": b'{"input": "' + b"x" * 600_000 + b'"}',
}


@pytest.fixture
def parsed_in(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads in which JSON was parsed."""
    found = []
    parse = bodies._plain_value

    def noted(body: bytes, pause: Any) -> Any:
        found.append(threading.get_ident())
        assert (pause is None) is (threading.get_ident() == threading.main_thread().ident)
        return parse(body, pause)

    monkeypatch.setattr(bodies, "_plain_value", noted)
    return found


async def test_json_that_takes_long_is_not_parsed_on_the_loop(parsed_in: list[int]):
    """Long numbers took 0.15 s of one turn."""
    this = threading.main_thread().ident
    sent = {each: ("/v1/rollouts", body) for each, body in HEAVY.items()}
    sent["a batch"] = "/v1/batches", b'{"inputs": [%b]}' % HEAVY["objects"]
    async with open_door(echo) as door, asking(door) as client:
        for what, (path, body) in sent.items():
            answer = await client.post(path, content=body, headers=JSON)
            assert answer.status_code == 200
            assert len(parsed_in) == 1
            assert parsed_in.pop() != this, what
        answer = await client.post("/v1/rollouts", json={"input": [{"a": 0}] * 100})
        assert answer.json()["value"] == [{"a": 0}] * 100
        assert parsed_in == [this], "a small one is parsed at once"


async def test_large_body_is_read_as_strictly(parsed_in: list[int]):
    async with open_door(echo) as door, asking(door) as client:
        for broken in (b'{"a": 1, "a": 2}', b"NaN", b"1e999", b"[", b"\xff"):
            body = b'{"input": [' + b"[]," * 30_000 + broken + b"]}"
            answer = await client.post("/v1/rollouts", content=body, headers=JSON)
            assert answer.status_code == 400, broken
    assert threading.main_thread().ident not in parsed_in


@pytest.mark.parametrize(
    ("item", "least"),
    [(b"1", 1), (b"1.5", 1), (b"{}", 1), (b'{"a": "b"}', 1), (b'{"a": [{"$bytes": ""}]}', 5)],
)
def test_parsing_pauses_at_each_part_that_takes_long(item: bytes, least: int):
    """Of the last one two objects are parsed, and two objects and a list restored."""
    pauses = []
    body = b"[" + b",".join([item] * 100) + b"]"
    found = bodies._json_value(body, lambda: pauses.append(1))
    assert len(pauses) >= 100 * least
    assert found == bodies._json_value(body, None)


LARGE = {
    "items": [1.5] * 100_000,
    "an object": {str(number): [number, None] for number in range(30_000)},
    "rows": [[0.25] * 300] * 300,
    "a text": "\u00e9" * 2_000_000,
    "an array": numpy.zeros(500_000),
}


@pytest.mark.parametrize("value", LARGE.values(), ids=LARGE)
@pytest.mark.parametrize("row", [False, True])
async def test_writing_json_kept_pythons_lock_until_all_was_written(
    value: Any, row: bool, monkeypatch: pytest.MonkeyPatch
):
    """An answer of 64 MB held the loop of the server for seconds."""
    pauses: list[int] = []

    async def run(work: Any) -> bytes:
        written: bytes = work(lambda: pauses.append(1))
        return written

    codec = bodies.Codec(HttpLimits(), WireLimits(), Turns())
    monkeypatch.setattr(codec._threads, "run", run)
    value = value[:100_000] if row and isinstance(value, numpy.ndarray) else value
    answer = {"value": value}
    written = await (codec.write_row(answer) if row else codec.write(answer, bodies.JSON))
    assert len(pauses) >= 5
    read = json.loads(written)["value"]
    if isinstance(value, numpy.ndarray):
        assert read == value.tolist() if row else restored(read).tolist() == value.tolist()
    else:
        assert read == value


# -- what the value of a body in CBOR costs -------------------------------------------------


async def test_many_short_texts_in_cbor_were_refused_for_want_of_a_header():
    """An answer could not be sent back, and who was told to send CBOR was refused again."""
    asked = {"input": ["word"] * 20_000}
    async with open_door(echo, {"json_items": 10_000}) as door, asking(door) as client:
        answer = await client.post("/v1/rollouts", content=json.dumps(asked), headers=JSON)
        assert answer.json()["detail"].endswith("send CBOR")
        for body in (cbor2.dumps(asked), values.encode(asked)):
            answer = await client.post("/v1/rollouts", content=body, headers=CBOR)
            assert answer.status_code == 200
            assert cbor2.loads(answer.content)["value"] == asked["input"]


@pytest.mark.parametrize("cost", [None, 1_000_000, 2**40])
async def test_value_that_costs_more_than_body_bytes_is_refused(cost: int | None):
    body = b"\xa1\x65input\x99" + (60_000).to_bytes(2, "big") + b"\x80" * 60_000
    if cost is not None:
        body = COST_HEADER + written_head(0, cost) + body
    async with open_door(echo, {"body_bytes": 100_000}) as door, asking(door) as client:
        answer = await client.post("/v1/rollouts", content=body, headers=CBOR)
        assert (answer.status_code, answer.json()["code"]) == (413, "body-too-large")
        whole = cbor2.dumps({"input": bytes(99_000)})
        answer = await client.post("/v1/rollouts", content=whole, headers=CBOR)
        assert answer.status_code == 200


# -- what the door holds of the values that its callers send -------------------------


CALLS = 20
MARK = "the mark of a value"


def values_here() -> set[int]:
    """Of the calls below, those whose values are in this process."""
    gc.collect()
    everything = gc.get_objects()
    return {each["call"] for each in everything if type(each) is dict and MARK in each}


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "call-%d"}], ids=["plain", "keyed"])
async def test_g10_values_of_calls_that_wait_took_thirty_times_their_bodies(
    headers: dict[str, str],
):
    runs = Runs(go_on=False)

    async def post(client: Any, call: int) -> None:
        sent = {name: json.dumps(value % call) for name, value in headers.items()}
        body = b'{"input": {"call": %d, "the mark of a value": []}}' % call  # is no value here
        got = await client.post("/v1/rollouts", content=body, headers=sent | JSON)
        assert got.status_code == 200

    async with open_all(runs, limits=ServerLimits(worker_capacity=1)) as opened:
        async with trio.open_nursery() as nursery:
            for call in range(CALLS):
                nursery.start_soon(post, opened.http, call)
            while opened.server.stats().cache.requests < CALLS:
                await trio.lowlevel.checkpoint()
            runs.started.clear()
            held = values_here()
            runs.may_end.set()
    assert len(held) <= 1  # that of the one that runs


async def test_g8_outcomes_of_a_batch_that_nobody_reads_are_not_decoded():
    """Each batch held the value of the outcome after the one that was under way."""
    is_read_no_more = trio.Event()

    async def environment(rollout: Any) -> dict[str, Any]:
        if rollout.input == 0:
            return {"pad": "x" * 20_000_000}  # far more than the kernel takes for a peer
        await is_read_no_more.wait()
        return {"call": rollout.input, MARK: []}

    async with open_door(environment) as door, raw(door) as peer, asking(door) as client:
        await peer.post({"inputs": [0, 1, 2]}, path="/v1/batches")
        begun = b""
        while len(begun) < 1000:  # the first line
            begun += await peer.stream.receive_some()
        is_read_no_more.set()
        await trio.testing.wait_all_tasks_blocked(0.01)
        await client.post("/v1/rollouts", json={"input": 3})  # comes after those
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert values_here() == set()
