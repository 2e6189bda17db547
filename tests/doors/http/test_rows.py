"""``POST /run``: NeMo Gym's rows, whose answers are joined and replayed by their own text."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from tests.doors.http.door import (
    HANG_S,
    JSON,
    Answer,
    Raw,
    Runs,
    asking,
    nobody_is_connected,
    open_all,
    open_door,
    raw,
    told,
)
from trio_envserve import EnvironmentUnavailable, ServerLimits, open_server
from trio_envserve.doors.http import HttpLimits, open_http_door
from trio_envserve.doors.http.connections import Connections, Exchange, HttpConnection
from trio_envserve.doors.http.keys import body_digest
from trio_envserve.doors.http.turns import Turns
from trio_envserve.envs.responses import response_of_messages
from trio_envserve.testing.proxy import FaultProxy, open_fault_proxy

ID = {"_ng_rollout_id": "step-1.task_2"}
NUMBER = {"_ng_task_index": 1, "_ng_rollout_index": 2}
NEMO_RL = {"_rowidx": 3}
NOTHING = {"seed": 4}
KINDS = [ID, NUMBER, NEMO_RL, NOTHING]
TOLD = [ID, NUMBER, NEMO_RL]
NEVER = {"delivered_s": 1e6}
AT_ONCE = {"delivered_s": 0.01}
OTHER = {**NUMBER, "other": True}
post = partial(Raw.post, path="/run")


async def number_of(client: Any, row: dict[str, Any]) -> int:
    """Which start of its environment has answered a row."""
    answer = await client.post("/run", json=row)
    assert answer.status_code == 200, answer.text
    found: int = answer.json()["response"]["number"]
    return found


async def ask_and_hang_up(door: Any, row: dict[str, Any], runs: Runs, started: int = 1) -> None:
    async with raw(door) as peer:
        await post(peer, row)
        await runs.have_started(started)
    await nobody_is_connected(door)


async def until_another_is_forgotten(client: Any, runs: Runs) -> None:
    """Until a row that was delivered, and has no id, is run anew."""
    while runs.started.count(OTHER) < 2:
        await client.post("/run", json=OTHER)


# -- what is answered ---------------------------------------------------------------


@pytest.mark.parametrize("row", KINDS)
async def test_answer_is_the_row_with_response_and_reward(row: dict[str, Any]):
    runs = Runs()
    sent = {"responses_create_params": {"input": []}, "agent_ref": {"name": "a"}, **row}
    async with open_door(runs) as door, asking(door) as client:
        answer = await client.post("/run", json=sent)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    response = {"output": [], "number": 1}
    assert answer.json() == {**sent, "of": sent, "reward": 0.5, "response": response}
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
    kinds = [item["type"] for item in response["output"]]
    assert kinds == ["function_call", "function_call_output", "message", "message"]


async def test_answer_is_plain_json():
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


async def test_sampling_is_that_of_the_row():
    found = []

    async def environment(rollout: Any) -> Any:
        found.append(dict(rollout.sampling_args))
        return {"reward": 0}

    asked: dict[str, Any] = {"temperature": 0.5, "top_p": None, "max_output_tokens": 9, "input": []}
    async with open_door(environment, run_model="random") as door, asking(door) as client:
        for params in (asked, None, "none"):
            answer = await client.post("/run", json={**ID, "responses_create_params": params})
            assert answer.status_code == 200
    assert found == [{"temperature": 0.5, "max_tokens": 9}, {}, {}]


# -- the same again -----------------------------------------------------------------


@pytest.mark.parametrize("row", KINDS)
async def test_row_is_found_again_after_a_hang_up_and_then_replayed(row: dict[str, Any]):
    runs = Runs(go_on=False)
    async with open_door(runs, NEVER) as door:
        for _ in range(3):
            await ask_and_hang_up(door, row, runs)
        runs.may_end.set()
        async with asking(door) as client:
            answers = [(await client.post("/run", json=row)).content for _ in range(3)]
    assert json.loads(answers[0])["response"]["number"] == 1
    if row in TOLD:
        assert len(set(answers)) == 1
    assert (len(runs.started), runs.cancelled) == (1 if row in TOLD else 3, [])


async def test_other_body_or_attempt_under_an_id_is_another_rollout():
    runs = Runs()
    async with open_door(runs) as door, asking(door) as client:
        for more in ({}, {"x": 1}, {"_ng_attempt_index": 1}, {"_ng_attempt_index": 2}):
            for _ in range(2):
                await number_of(client, {**ID, **more})
    assert len(runs.started) == 4


async def test_row_with_an_id_is_a_key_like_any_other():
    async with open_door(Runs(), AT_ONCE) as door, asking(door) as client:
        sent = client.build_request("POST", "/run", json={**ID, "_ng_attempt_index": 1})
        await client.send(sent)
        digest = body_digest(sent.content, "application/json").hex()
        place = f"/v1/rollouts/step-1.task_2-a1/{digest}?namespace=nemo-gym"
        assert (await client.get(place)).json()["value"]["reward"] == 0.5
        assert (await client.delete(place)).json() == {"known": True, "started": True}


# -- the exception: rows without an id ----------------------------------------------


@pytest.mark.parametrize("row", [NUMBER, NEMO_RL])
async def test_row_without_an_id_is_run_anew_some_time_after_it_was_delivered(row: Any):
    runs = Runs()
    async with open_door(runs, AT_ONCE) as door, asking(door) as client:
        numbers = []
        while len(runs.started) < 3:
            numbers.append(await number_of(client, row))
            await client.post("/run", json=ID)  # which is never forgotten
        assert numbers == sorted(numbers)
    assert runs.started.count(ID) == 1


@pytest.mark.parametrize("row", KINDS)
async def test_row_that_was_not_delivered_is_retained(row: dict[str, Any]):
    runs = Runs(go_on=False)
    async with open_door(runs, AT_ONCE) as door, asking(door) as client:
        await ask_and_hang_up(door, row, runs)
        runs.may_end.set()
        await until_another_is_forgotten(client, runs)
        assert await number_of(client, row) == 1
    assert runs.started.count(row) == 1


async def test_what_was_deleted_and_asked_anew_does_not_end_with_the_first():
    """The end of the first life of its key came in the second."""
    runs = Runs()
    async with open_door(runs, {"delivered_s": 0.2}) as door:
        async with asking(door) as client:
            sent = client.build_request("POST", "/run", json=NUMBER)
            await client.send(sent)
            digest = body_digest(sent.content, "application/json").hex()
            ended = await client.delete(f"/v1/rollouts/1-2/{digest}?namespace=nemo-gym")
            # On a machine that stands still its time has come already.
            assert ended.status_code == 200
        runs.may_end = trio.Event()
        await ask_and_hang_up(door, NUMBER, runs, started=2)
        runs.may_end.set()
        async with asking(door) as client:
            await until_another_is_forgotten(client, runs)  # the time of the first has come
            assert await number_of(client, NUMBER) == 2
    assert (runs.started.count(NUMBER), runs.cancelled) == (2, [])


async def test_rows_that_nothing_tells_apart_are_rollouts_of_their_own():
    runs = Runs(go_on=False)
    numbers = []
    async with open_door(runs, NEVER) as door:
        await ask_and_hang_up(door, NOTHING, runs)
        async with asking(door) as client:

            async def ask() -> None:
                numbers.append(await number_of(client, NOTHING))

            async with trio.open_nursery() as nursery:
                for _ in range(5):  # one of them takes what was left behind
                    nursery.start_soon(ask)
                await runs.have_started(5)
                runs.may_end.set()
            assert sorted(numbers) == [1, 2, 3, 4, 5]
            await ask()
    assert numbers[-1] == len(runs.started) == 6


@pytest.mark.parametrize("leaves", ["never", "before", "meanwhile"])
async def test_answer_is_delivered_if_all_of_it_was_written_to_a_peer_that_was_there(leaves: str):
    answered, left = trio.Event(), trio.Event()
    delivered = []

    async def app(exchange: Exchange) -> None:
        answered.set()
        if leaves == "before":
            await left.wait()
        try:
            await exchange.answer(200, "application/json", b"{}" * 10_000_000)
        finally:
            delivered.append(exchange.delivered)

    ours, theirs = map(trio.SocketStream, trio.socket.socketpair())
    connections = Connections(app, HttpLimits(), Turns())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(HttpConnection(connections, ours).run)
        async with theirs:
            await theirs.send_all(b"POST /run HTTP/1.0\r\n\r\n")
            await answered.wait()
            if leaves == "never":
                while await theirs.receive_some():
                    pass
            elif leaves == "before":
                await theirs.send_eof()
                left.set()
                while await theirs.receive_some():
                    pass
    assert delivered == [leaves == "never"]


# -- errors -------------------------------------------------------------------------


async def test_error_has_its_verdict_in_words_and_is_replayed():
    starts = []

    async def fails(rollout: Any) -> Any:
        starts.append(rollout.input)
        raise LookupError("no such riddle")

    async with open_door(fails, NEVER) as door, asking(door) as client:
        for _ in range(2):
            answer = await client.post("/run", json=NUMBER)
            problem = answer.json()
            assert told(answer) == (500, "rollout-failed")
            assert (problem["verdict"], problem["ran"]) == ("it ran and failed", True)
            assert "_ng_attempt_index" in problem["advice"]
        await client.post("/run", json={**NUMBER, "_ng_attempt_index": 1})
    assert len(starts) == 2


async def test_result_without_a_reward_is_an_error_and_no_zero():
    results: list[Any] = [
        None, 1.0, {}, {"reward": None}, {"reward": "1"}, {"reward": math.nan}, {"reward": [1, 2]},
    ]  # fmt: skip

    async def environment(rollout: Any) -> Any:
        return results[rollout.input["seed"]]

    async with open_door(environment) as door, asking(door) as client:
        for number in range(len(results)):
            answer = await client.post("/run", json={"seed": number})
            assert told(answer) == (500, "no-reward"), results[number]
            assert answer.json()["verdict"] == "it ran and failed"


NO_ROWS: list[tuple[bytes, dict[str, str], int]] = [
    (b"", {}, 400),
    (b"{", {}, 400),
    (b"[]", {}, 400),
    (b"null", {}, 400),
    (b'{"a": NaN}', {}, 400),
    (b'{"a": "\\ud800"}', {}, 400),
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
    (b'{"a": "%s"}' % (b"x" * 15_000), {}, 413),
]
STRANGE_NUMBERS: list[dict[str, Any]] = [
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
]


async def test_body_that_is_no_row_is_refused_and_did_not_run():
    runs = Runs()
    async with open_door(runs, {"body_bytes": 12_000}) as door, asking(door) as client:
        for body, headers, status in NO_ROWS:
            answer = await client.post("/run", content=body, headers=JSON | headers)
            assert answer.status_code == status, (body, answer.text)
            assert answer.json()["verdict"] == "it did not run"
        assert (await client.post("/run?namespace=a", json={})).status_code == 400
        assert (await client.get("/run")).status_code == 405
    assert runs.started == []


async def test_strange_numbers_are_only_told_apart():
    runs = Runs()
    async with open_door(runs, NEVER) as door, asking(door) as client:
        for row in STRANGE_NUMBERS:
            await number_of(client, row)
    assert runs.started == STRANGE_NUMBERS


# -- bounds -------------------------------------------------------------------------


@asynccontextmanager
async def asking_for_rows(client: Any, *rows: dict[str, Any]) -> AsyncIterator[None]:
    """Rows that are asked for at once, and answered by the end of the block."""
    async with trio.open_nursery() as nursery:
        for row in rows:
            nursery.start_soon(number_of, client, row)
        await trio.testing.wait_all_tasks_blocked(0.05)
        yield


async def test_rows_wait_for_room_and_who_hangs_up_leaves():
    runs = Runs(go_on=False)
    later = [{"_ng_rollout_index": number} for number in range(3)]
    async with open_door(runs, {"calls": 1}) as door, asking(door) as client:
        async with asking_for_rows(client, ID):
            async with raw(door) as peer:
                await post(peer, {"_ng_rollout_index": 99})
                await trio.testing.wait_all_tasks_blocked(0.05)
            async with asking_for_rows(client, *later, *later):
                # Who may be told to come again is told so, meanwhile.
                assert told(await client.post("/v1/rollouts", json={"input": 0})) == (429, "busy")
                assert runs.started == [ID]
                runs.may_end.set()
    assert runs.started[0] == ID
    assert sorted(row["_ng_rollout_index"] for row in runs.started[1:]) == [0, 1, 2]


async def test_row_waits_for_workers():
    may_set_up = trio.Event()

    class Slow:
        async def setup(self) -> None:
            await may_set_up.wait()

        async def run_rollout(self, rollout: Any) -> Any:
            return {"reward": 1.0, "response": {"number": 1}}

    async with open_all(Slow(), ready=False) as opened, asking_for_rows(opened.http, ID):
        refused = await opened.http.post("/v1/rollouts", json={"input": 0})
        assert told(refused) == (503, "not-ready")
        may_set_up.set()


async def test_rows_wait_for_the_room_of_their_bodies_but_not_for_ever():
    runs = Runs(go_on=False)
    rows = [{"_ng_rollout_index": number, "x": "x" * 600} for number in range(4)]
    async with open_door(runs, {"bodies_bytes": 1_000}) as door, asking(door) as client:
        async with asking_for_rows(client, *rows):
            assert len(runs.started) == 1
            runs.may_end.set()
    assert len(runs.started) == 4
    runs = Runs(go_on=False)
    async with open_door(runs, {"bodies_bytes": 1_000, "body_s": 0.05}) as door, raw(door) as peer:
        await post(peer, rows[0])
        await runs.have_started()
        async with asking(door) as client:
            assert told(await client.post("/run", json=rows[1])) == (429, "busy")


# -- through a network that cuts ------------------------------------------------------


async def request_like_nemo_gym(address: str, row: dict[str, Any]) -> Answer:
    """Send a row again for as long as the connection is lost, and take any status for the
    answer, as ``nemo_gym.server_utils.request`` does.  (That one pauses for half a second.)"""
    while True:
        try:
            port = int(address.rpartition(":")[2])
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                peer = Raw(stream)
                await post(peer, row)
                return await peer.answer()
        except (OSError, trio.BrokenResourceError, AssertionError):
            await trio.lowlevel.checkpoint()  # Raw says by AssertionError that it was closed


@asynccontextmanager
async def cutting_proxy(url: str) -> AsyncIterator[FaultProxy]:
    async with open_fault_proxy(url.replace("http", "tcp", 1)) as proxy:
        yield proxy


@pytest.mark.parametrize("row", KINDS)
async def test_request_that_was_cut_anywhere_starts_one_rollout_at_most(row: dict[str, Any]):
    runs = Runs()
    data = json.dumps(row).encode()
    head = (
        "POST /run HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    ).encode()
    sent = head + data
    async with open_door(runs, NEVER) as door:
        for end in range(0, len(sent), 7):
            async with raw(door) as peer:
                await peer.stream.send_all(sent[:end])
        await nobody_is_connected(door)
        assert runs.started == []
        async with raw(door) as peer:
            await peer.stream.send_all(sent)
            assert (await peer.answer()).status == 200
    assert runs.started == [row]


async def test_rows_that_are_sent_again_through_a_proxy_that_cuts_start_once():
    runs = Runs(go_on=False)
    rows: list[dict[str, Any]] = []
    for index in range(10):
        rows += [{"_ng_task_index": index, "_ng_rollout_index": 0}, {"_ng_rollout_id": f"r{index}"}]
    found = []
    async with open_door(runs, NEVER) as door, cutting_proxy(door.url) as proxy:

        async def ask(row: dict[str, Any]) -> None:
            answer = await request_like_nemo_gym(proxy.address, row)
            assert answer.status == 200
            found.append(json.loads(answer.body))

        async with trio.open_nursery() as nursery:
            for row in rows:
                nursery.start_soon(ask, row)
            cuts = 0
            for share in (0.25, 0.5, 1):
                await runs.have_started(int(len(rows) * share))
                cuts += proxy.cut_all()
            assert cuts > len(rows)
            runs.may_end.set()
            for _ in range(3):  # written to the end, and lost all the same
                await proxy.cut_before_receipt(lambda data: b"HTTP/1.1 200" in data)
    assert len(found) == len(runs.started) == len(rows)


@pytest.mark.slow
async def test_ten_thousand_rows_at_once_are_all_answered():
    number = 10_000
    runs = Runs()
    answered = 0
    async with open_door(runs) as door:
        limit = trio.CapacityLimiter(1_000)

        async def ask(index: int) -> None:
            nonlocal answered
            async with limit:
                answer = await request_like_nemo_gym(door.url, {"_ng_rollout_index": index})
            assert answer.status == 200, answer.body
            answered += 1

        async with trio.open_nursery() as nursery:
            for index in range(number):
                nursery.start_soon(ask, index)
    assert answered == len(runs.started) == number


# -- rows that failed, as rows -------------------------------------------------------


CASES = {
    "raises": (("rollout-failed",), False),
    "unavailable": (("environment-unavailable",), False),
    "hangs": (("execution-limit", "no-answer"), False),
    "no reward": (("no-reward",), True),
    "no encoding": (("outcome-not-encodable",), True),
}


async def test_row_that_failed_is_a_row_with_its_class_and_a_mask_and_runs_once():
    started = []

    async def failing(rollout: Any) -> Any:
        started.append(rollout.input)
        match rollout.input["how"]:
            case "raises":
                raise ValueError("the sandbox did not start")
            case "unavailable":
                raise EnvironmentUnavailable("the database is down")
            case "hangs":
                await trio.sleep_forever()
        return {"no reward": {}, "no encoding": {"reward": object()}}[rollout.input["how"]]

    options: dict[str, Any] = {"run_failures": "rows", "run_execution_s": 2.0}
    async with open_door(failing, **options) as door, asking(door) as client:
        for how, (codes, terminal) in CASES.items():
            row = {"how": how, "_ng_rollout_id": how.split()[-1], "instance_config": {"a": 1}}
            answer = await client.post("/run", json=row)
            assert answer.status_code == 200
            found = answer.json()
            code = found["_ng_failure_class"]
            assert code in codes
            problem = found.pop("problem")
            assert (problem["code"], problem["mask"]) == (code, True)
            assert problem["ran"] is True or how == "hangs"
            assert found == {
                **row, "response": response_of_messages(()), "reward": None, "mask_sample": True,
                "_ng_failure_class": code, "_ng_failure_terminal": terminal,
                "instance_config": {"a": 1, "mask_sample": True},
            }  # fmt: skip
            assert (await client.post("/run", json=row)).json() == answer.json()
        assert len(started) == len(CASES)
        await client.post("/run", json={**started[0], "_ng_attempt_index": 1})
        assert len(started) == len(CASES) + 1
        bodies: list[Any] = [[], {"_ng_rollout_id": 1}]
        assert [(await client.post("/run", json=body)).status_code for body in bodies] == [400] * 2


ENVIRONMENT = """
import os, trio

class Env:
    async def run_rollout(self, rollout):
        with open(os.path.join(os.path.dirname(__file__), "log"), "a") as log:
            log.write(f"{rollout.input['index']}\\n")
        if rollout.input["index"] == 5:
            os._exit(1)
        await trio.sleep(0.01)
        return {"reward": 1.0}
"""


@pytest.mark.real
async def test_rows_beside_one_that_ends_its_worker_are_not_lost_with_consent(tmp_path: Path):
    file = tmp_path / "exits.py"
    await trio.Path(file).write_text(ENVIRONMENT)
    limits = ServerLimits(worker_capacity=4)
    found: dict[int, dict[str, Any]] = {}

    async def ask(client: Any, index: int) -> None:
        answer = await client.post("/run", json={"_ng_rollout_id": f"r.{index}", "index": index})
        assert answer.status_code == 200
        found[index] = answer.json()

    with trio.fail_after(HANG_S):
        async with (
            open_server(f"{file}:Env", workers=2, limits=limits) as server,
            open_http_door(server, run_failures="rows", run_rerun=True) as door,
            asking(door) as client,
        ):
            await door.wait_ready()
            async with trio.open_nursery() as nursery:
                for index in range(10):
                    nursery.start_soon(ask, client, index)
    lost = {index for index, row in found.items() if row["reward"] is None}
    assert lost == {5}
    assert found[5]["_ng_failure_class"] == "worker-lost"
    log = (await trio.Path(tmp_path / "log").read_text()).split()
    assert {*map(int, log)} == {*range(10)}
