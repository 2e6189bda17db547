"""A program that asks under keys is killed in the middle, and started again."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path

import pytest
import trio

from tests.cli.commands import HANG_S, check_nothing_left, command, until

pytest.importorskip("h11")

pytestmark = pytest.mark.real

ENVIRONMENT = """
import os
import trio

async def environment(rollout):
    log = os.open("starts", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(log, b"%d\\n" % rollout.input["index"])
    os.close(log)
    while not os.path.exists("go"):
        await trio.sleep(0.1)
    return rollout.input["index"] + 1000
"""

BY_HTTP = """
import json
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

def ask(index):
    headers = {"Content-Type": "application/json", "Idempotency-Key": f'"step-1/{index}"'}
    body = json.dumps({"input": {"index": index}}).encode()
    request = urllib.request.Request(sys.argv[1] + "/v1/rollouts", body, headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        try:
            with opener.open(request, timeout=600) as answer:
                return index, json.load(answer)["value"]
        except urllib.error.HTTPError as error:  # the door is not ready yet
            if error.code != 503:
                raise

number = int(sys.argv[2])
with ThreadPoolExecutor(number) as pool:
    print(json.dumps(sorted(pool.map(ask, range(number)))))
"""


BY_ZMQ = """
import json
import sys
import trio
from trio_envserve import open_client

async def ask(address, number, caller):
    inputs = [{"index": index} for index in range(number)]
    async with open_client(address, caller=caller) as client:
        async with client.run_many(inputs, key="step-1") as outcomes:
            found = [[index, outcome.unwrap()] async for index, outcome in outcomes]
    print(json.dumps(sorted(found)))

trio.run(ask, sys.argv[1], int(sys.argv[2]), sys.argv[3])
"""


@pytest.mark.parametrize("number", [60, pytest.param(500, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("where", "program"), [("http", BY_HTTP), ("address", BY_ZMQ)])
async def test_g2_a_caller_that_is_killed_and_started_again_runs_nothing_twice(
    tmp_path: Path, where: str, program: str, number: int
):
    """It gets the outcomes of all that it had asked for, and so does another one that asks
    for the same at the same time."""
    (tmp_path / "env.py").write_text(ENVIRONMENT)
    starts = tmp_path / "starts"

    def started() -> list[int]:
        return [int(line) for line in starts.read_text().split()] if starts.exists() else []

    with trio.fail_after(HANG_S):
        async with command(
            tmp_path, "serve", "env.py:environment", "--bind", "tcp://127.0.0.1:0", "--http",
            "127.0.0.1:0", "--workers", "2", "--json",
        ) as serving:  # fmt: skip
            address = (await serving.event("serving"))[where]
            await serving.event("ready")
            asking = [sys.executable, "-c", program, address, str(number)]
            async with trio.open_nursery() as nursery:
                start = functools.partial(trio.run_process, [*asking, "a"], check=False)
                killed = await nursery.start(start)
                await until(lambda: len(started()) >= number // 3)
                killed.kill()
            found = []

            async def again(caller: str) -> None:
                ended = await trio.run_process([*asking, caller], capture_stdout=True)
                found.append(json.loads(ended.stdout))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(again, "a")
                nursery.start_soon(again, "b")
                await until(lambda: len(started()) >= number)
                (tmp_path / "go").touch()
    expected = [[index, index + 1000] for index in range(number)]
    assert found == [expected, expected]
    assert sorted(started()) == list(range(number))
    await check_nothing_left(tmp_path)
