"""``nemo_gym==0.4.0``'s own client, under an interpreter of its own, against ``POST /run``.

TRIO_ENVSERVE_NEMO_GYM_PYTHON is the path of one that has it (``nox -s nemo_gym`` makes one).
That client sends a row again when its connection is lost, which is a second start unless the
receiver knows better.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.doors.http.door import HANG_S, open_door
from tests.doors.http.test_rows import cutting_proxy

PYTHON = os.environ.get("TRIO_ENVSERVE_NEMO_GYM_PYTHON", "")
CLIENT = Path(__file__).with_name("nemo_gym_client.py")
NUMBER = 200
CUT_S = 1.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.real,
    pytest.mark.skipif(not PYTHON, reason="TRIO_ENVSERVE_NEMO_GYM_PYTHON is not set"),
]


async def test_two_hundred_rows_through_a_proxy_that_cuts_start_two_hundred_times():
    starts: Counter[int] = Counter()
    lasts_s = [random.Random(number).uniform(0.1, 5.0) for number in range(NUMBER)]

    async def environment(rollout: Any) -> Any:
        index = rollout.input["_ng_task_index"]
        starts[index] += 1
        await trio.sleep(lasts_s[index])
        return {"reward": 1.0, "response": {"output": [], "start": starts[index]}}

    with trio.fail_after(HANG_S):
        async with (
            open_door(environment) as door, cutting_proxy(door.url) as proxy,
            trio.open_nursery() as nursery,
        ):  # fmt: skip

            async def cut() -> None:
                while True:
                    await trio.sleep(CUT_S)
                    proxy.cut_all()

            nursery.start_soon(cut)
            url = proxy.address.replace("tcp", "http", 1)
            program = [PYTHON, str(CLIENT), url, str(NUMBER)]
            ended = await trio.run_process(program, capture_stdout=True)
            nursery.cancel_scope.cancel()
    found = json.loads(ended.stdout.splitlines()[-1])
    expected = [[index, 1.0, {"output": [], "start": 1}] for index in range(NUMBER)]
    assert sorted(found) == expected
    assert starts == Counter(range(NUMBER))
    assert proxy.counters.cut >= NUMBER
