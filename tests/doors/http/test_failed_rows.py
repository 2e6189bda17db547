"""``POST /run`` where a row that failed is answered as a row, so that a collection goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from tests.doors.http.door import HANG_S, asking, httpx2, open_door
from trio_envserve import EnvironmentUnavailable, ServerLimits, open_server
from trio_envserve.doors.http import open_http_door
from trio_envserve.envs.responses import response_of_messages

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

    options: dict[str, Any] = {"run_failures": "rows", "run_execution_s": 0.2}
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
            httpx2.AsyncClient(base_url=door.url, timeout=None) as client,
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
