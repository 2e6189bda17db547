"""``POST /run`` where a row that failed is answered as a row, so that a collection goes on."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.doors.http.door import HANG_S, asking, httpx2, open_door
from trio_envserve import EnvironmentUnavailable, ServerLimits, open_server
from trio_envserve.core.errors import ConfigError
from trio_envserve.doors.http import open_http_door
from trio_envserve.envs.responses import response_of_messages

EMPTY = response_of_messages(())


class Failing:
    """Ends as its row says, and counts what was started."""

    def __init__(self) -> None:
        self.started: Counter[str] = Counter()

    async def __call__(self, rollout: Any) -> Any:
        how = rollout.input["how"]
        self.started[how] += 1
        if how == "raises":
            raise ValueError("the sandbox did not start")
        if how == "unavailable":
            raise EnvironmentUnavailable("the database is down")
        return {"no reward": {}, "no encoding": {"reward": object()}}.get(how, {"reward": 1.0})


CASES = [
    ("raises", "rollout-failed", False),
    ("unavailable", "environment-unavailable", False),
    ("no reward", "no-reward", True),
    ("no encoding", "outcome-not-encodable", True),
]


@pytest.mark.parametrize(("how", "code", "terminal"), CASES)
async def test_row_that_failed_is_a_row_with_its_class_and_a_mask(
    how: str, code: str, terminal: bool
):
    row = {"how": how, "_ng_rollout_id": "r1", "instance_config": {"a": 1}}
    async with open_door(Failing(), run_failures="rows") as door, asking(door) as client:
        answer = await client.post("/run", json=row)
    assert answer.status_code == 200
    found = answer.json()
    problem = found.pop("problem")
    assert found == {
        **row, "response": EMPTY, "reward": None, "_ng_failure_class": code,
        "_ng_failure_terminal": terminal, "mask_sample": True,
        "instance_config": {"a": 1, "mask_sample": True},
    }  # fmt: skip
    assert (problem["code"], problem["ran"], problem["mask"]) == (code, True, True)


async def test_same_attempt_of_a_failed_row_runs_once_and_the_next_one_anew():
    failing = Failing()
    row = {"how": "raises", "_ng_rollout_id": "r1"}
    async with open_door(failing, run_failures="rows") as door, asking(door) as client:
        first = await client.post("/run", json=row)
        again = await client.post("/run", json=row)
        assert failing.started == {"raises": 1}
        assert first.json() == again.json()
        await client.post("/run", json={**row, "_ng_attempt_index": 1})
    assert failing.started == {"raises": 2}


async def test_body_that_is_no_row_is_refused_all_the_same():
    async with open_door(Failing(), run_failures="rows") as door, asking(door) as client:
        bodies: list[Any] = [[], {"_ng_rollout_id": 1}]
        answers = [await client.post("/run", json=body) for body in bodies]
    assert [answer.status_code for answer in answers] == [400, 400]


async def test_word_for_failures_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="run_failures is problems or rows, not 'row'"):
        async with open_http_door("tcp://127.0.0.1:1", run_failures="row"):  # type: ignore[arg-type]  # the mistake
            pass  # pragma: no cover


ENVIRONMENT = """
import os, trio

class Env:
    async def run_rollout(self, rollout):
        with open(os.path.join(os.path.dirname(__file__), "log"), "a") as log:
            log.write(f"{rollout.input['index']}\\n")
        if rollout.input["index"] % 10 == 5:
            os._exit(1)
        await trio.sleep(0.01)
        return {"reward": 1.0}
"""


async def test_a_row_that_lasts_for_longer_than_any_may_has_failed():
    async def hangs(rollout: Any) -> Any:
        await trio.sleep(math.inf if rollout.input["hangs"] else 0)
        return {"reward": 1.0}

    with trio.fail_after(HANG_S):
        async with (
            open_server(hangs, workers=0) as server,
            open_http_door(server, run_failures="rows", run_execution_s=0.2) as door,
            httpx2.AsyncClient(base_url=door.url, timeout=None) as client,
        ):
            await door.wait_ready()
            classes = []
            for hang in (True, False):
                row = {"_ng_rollout_id": f"r.{hang:d}", "hangs": hang}
                answer = await client.post("/run", json=row)
                classes.append(answer.json().get("_ng_failure_class"))
    assert classes[0] in ("execution-limit", "no-answer")
    assert classes[1] is None


async def test_a_limit_of_rows_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="run_execution_s"):
        async with open_http_door("tcp://127.0.0.1:1", run_execution_s=-1.0):
            pass


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
                for index in range(20):
                    nursery.start_soon(ask, client, index)
    lost = {index for index, row in found.items() if row["reward"] is None}
    assert lost == {5, 15}
    assert {found[index]["_ng_failure_class"] for index in lost} == {"worker-lost"}
    log = (await trio.Path(tmp_path / "log").read_text()).split()
    assert {*map(int, log)} == {*range(20)}
