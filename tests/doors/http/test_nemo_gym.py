"""``nemo_gym==0.4.0``'s own client, under an interpreter of its own, against ``POST /run``.

TRIO_ENVSERVE_NEMO_GYM_PYTHON is the path of one that has it (``nox -s nemo_gym`` makes one).
Both tests are about one claim: that client sends a row again when its connection is lost,
which is a second start unless the receiver knows better.
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

from tests.doors.http.cutting import CuttingProxy, cutting_proxy
from tests.doors.http.door import HANG_S, open_door

PYTHON = os.environ.get("TRIO_ENVSERVE_NEMO_GYM_PYTHON", "")
CLIENT = Path(__file__).with_name("nemo_gym_client.py")
NUMBER = 200
CUT_S = 1.0
LONGEST_S = 5.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.real,
    pytest.mark.skipif(not PYTHON, reason="TRIO_ENVSERVE_NEMO_GYM_PYTHON is not set"),
]


class Rollouts:
    """Work of up to some seconds, which notes what was started."""

    def __init__(self) -> None:
        self.starts: Counter[int] = Counter()
        self.more_than_one_each = trio.Event()
        self._random = random.Random(0)
        self._lasts_s = [self._random.uniform(0.1, LONGEST_S) for _ in range(NUMBER)]

    async def run(self, row: Any) -> dict[str, Any]:
        index = row["_ng_task_index"]
        self.starts[index] += 1
        if self.starts.total() > NUMBER:
            self.more_than_one_each.set()
        await trio.sleep(self._lasts_s[index])
        return {"reward": 1.0, "response": {"output": [], "start": self.starts[index]}}


async def collect(proxy: CuttingProxy, number: int) -> list[Any]:
    """What the client gets for its rows through a proxy that cuts every second."""
    async with trio.open_nursery() as nursery:

        async def cut() -> None:
            while True:
                await trio.sleep(CUT_S)
                proxy.cut()

        nursery.start_soon(cut)
        ended = await trio.run_process(
            [PYTHON, str(CLIENT), proxy.url, str(number)], capture_stdout=True
        )
        nursery.cancel_scope.cancel()
    found: list[Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


async def test_two_hundred_rows_through_a_proxy_that_cuts_start_two_hundred_times():
    rollouts = Rollouts()

    async def environment(rollout: Any) -> Any:
        return await rollouts.run(rollout.input)

    with trio.fail_after(HANG_S):
        async with open_door(environment) as door, cutting_proxy(door.url) as proxy:
            found = await collect(proxy, NUMBER)
    expected = [[index, 1.0, {"output": [], "start": 1}] for index in range(NUMBER)]
    assert sorted(found) == expected
    assert rollouts.starts == Counter(range(NUMBER))
    assert proxy.cuts >= NUMBER


async def test_without_a_key_at_the_receiver_rows_start_more_than_once():
    """What the door is for: the same against a bare ASGI handler."""
    import hypercorn.trio

    rollouts = Rollouts()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise ValueError("it has no start and no end")
        body, more = b"", True
        while more:
            event = await receive()
            body, more = body + event.get("body", b""), event.get("more_body", False)
        if event["type"] == "http.disconnect":
            return
        row = json.loads(body)
        answer = json.dumps(row | await rollouts.run(row)).encode()
        length = (b"content-length", str(len(answer)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": answer})

    config = hypercorn.Config()
    config.bind = ["127.0.0.1:0"]
    with trio.fail_after(HANG_S):
        async with trio.open_nursery() as nursery:
            (url,) = await nursery.start(hypercorn.trio.serve, app, config)
            async with cutting_proxy(url) as proxy:
                nursery.start_soon(collect, proxy, NUMBER)
                # That would never end: what is cut each second begins anew each second.
                await rollouts.more_than_one_each.wait()
            nursery.cancel_scope.cancel()
    assert rollouts.starts.total() > NUMBER
