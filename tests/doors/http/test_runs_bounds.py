"""Many rows at ``POST /run``: they wait for room in order, and a network cuts them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
import trio.testing

from tests.doors.http.cutting import cutting_proxy, request_like_nemo_gym
from tests.doors.http.door import HANG_S, asking, open_door, raw
from tests.doors.http.rows import ID, KINDS, NEVER, NUMBER, Runs, nobody_is_connected, post
from trio_envserve import open_server
from trio_envserve.doors.http import open_http_door
from trio_envserve.net import MemoryNetwork

# -- bounds -------------------------------------------------------------------------


async def test_rows_wait_for_room_in_order_and_who_hangs_up_leaves():
    runs = Runs(go_on=False)
    async with open_door(runs, {"calls": 1}) as door, asking(door) as client:
        async with trio.open_nursery() as nursery:

            async def ask(number: int) -> None:
                answer = await client.post("/run", json={"_ng_rollout_index": number})
                assert answer.status_code == 200

            nursery.start_soon(ask, 0)
            await runs.have_started(1)
            async with raw(door) as peer:
                await post(peer, {"_ng_rollout_index": 99})
                while door.connections < 2:
                    await trio.testing.wait_all_tasks_blocked()
                await trio.testing.wait_all_tasks_blocked(0.01)
            for number in range(1, 4):
                nursery.start_soon(ask, number)
            # Who may be told to come again is told so, meanwhile.
            refused = await client.post("/v1/rollouts", json={"input": 0})
            assert (refused.status_code, refused.json()["code"]) == (429, "busy")
            runs.may_end.set()
    assert [row["_ng_rollout_index"] for row in runs.started].count(99) == 0
    assert len(runs.started) == 4


async def test_a_row_waits_for_workers():
    may_set_up, began = trio.Event(), trio.Event()

    class Slow:
        async def setup(self) -> None:
            began.set()
            await may_set_up.wait()

        async def run_rollout(self, rollout: Any) -> Any:
            return {"reward": 1.0}

    network = MemoryNetwork()
    with trio.fail_after(HANG_S):
        async with (
            trio.open_nursery() as nursery,
            open_server(Slow(), bind="memory:s", workers=0, network=network) as server,
            open_http_door(server, network=network) as door,
            asking(door) as client,
        ):

            async def ask() -> None:
                assert (await client.post("/run", json=ID)).status_code == 200

            nursery.start_soon(ask)
            await began.wait()
            refused = await client.post("/v1/rollouts", json={"input": 0})
            assert (refused.status_code, refused.json()["code"]) == (503, "not-ready")
            may_set_up.set()
            await door.wait_ready()


async def test_the_same_row_twice_in_the_queue_runs_once():
    runs = Runs(go_on=False)
    async with open_door(runs, {"calls": 1}) as door, asking(door) as client:
        async with trio.open_nursery() as nursery:

            async def ask(row: dict[str, Any]) -> None:
                assert (await client.post("/run", json=row)).status_code == 200

            nursery.start_soon(ask, ID)
            await runs.have_started(1)
            for _ in range(3):
                nursery.start_soon(ask, NUMBER)
            await trio.testing.wait_all_tasks_blocked(0.05)
            runs.may_end.set()
    assert runs.started == [ID, NUMBER]


async def test_rows_wait_for_the_room_of_their_bodies():
    runs = Runs(go_on=False)
    rows = [{"_ng_rollout_index": number, "x": "x" * 600} for number in range(4)]
    async with open_door(runs, {"bodies_bytes": 1_000}) as door, asking(door) as client:
        async with trio.open_nursery() as nursery:

            async def ask(row: dict[str, Any]) -> None:
                assert (await client.post("/run", json=row)).status_code == 200

            nursery.start_soon(ask, rows[0])
            await runs.have_started(1)
            for row in rows[1:]:
                nursery.start_soon(ask, row)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert len(runs.started) == 1
            runs.may_end.set()
    assert len(runs.started) == 4


async def test_a_row_waits_only_so_long_for_the_room_of_its_body():
    runs = Runs(go_on=False)
    limits = {"bodies_bytes": 1_000, "body_s": 0.05}
    async with open_door(runs, limits) as door, asking(door) as client:
        async with raw(door) as peer:
            await post(peer, {**ID, "x": "x" * 600})
            await runs.have_started(1)
            answer = await client.post("/run", json={**NUMBER, "x": "x" * 600})
            assert (answer.status_code, answer.json()["code"]) == (429, "busy")
        runs.may_end.set()


# -- through a network that cuts ------------------------------------------------------


@pytest.mark.parametrize("row", KINDS)
async def test_a_request_that_was_cut_anywhere_starts_one_rollout_at_most(row: dict[str, Any]):
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
    number = 20
    runs = Runs(go_on=False)
    rows: list[dict[str, Any]] = [
        {"_ng_task_index": index, "_ng_rollout_index": 0} for index in range(number)
    ]
    rows += [{"_ng_rollout_id": f"r{index}"} for index in range(number)]
    found = []
    async with open_door(runs) as door, cutting_proxy(door.url) as proxy:

        async def ask(row: dict[str, Any]) -> None:
            answer = await request_like_nemo_gym(proxy.url, row)
            assert answer.status == 200
            found.append(json.loads(answer.body))

        async with trio.open_nursery() as nursery:
            for row in rows:
                nursery.start_soon(ask, row)
            for share in (0.25, 0.5, 1):
                await runs.have_started(int(len(rows) * share))
                proxy.cut()
            proxy.swallows = 10  # written to the end, and lost all the same
            runs.may_end.set()
        assert proxy.swallows == 0
        assert proxy.cuts > number
    assert len(found) == len(rows)
    assert len(runs.started) == len(rows)


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
    assert answered == number
    assert len(runs.started) == number
