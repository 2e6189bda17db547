"""A program that asks by HTTP under keys is killed in the middle, and started again."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path

import pytest
import trio

from tests.cli.commands import HANG_S, check_nothing_left, command

pytest.importorskip("hypercorn")

pytestmark = pytest.mark.real

NUMBER = 60

ENVIRONMENT = """
import os
import trio

async def environment(rollout):
    log = os.open("starts", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(log, b"%d\\n" % rollout.input["index"])
    os.close(log)
    while not os.path.exists("go"):
        await trio.sleep(0.02)
    return rollout.input["index"] + 1000
"""

CLIENT = """
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


async def test_a_client_that_is_killed_and_started_again_runs_nothing_twice(tmp_path: Path):
    (tmp_path / "env.py").write_text(ENVIRONMENT)
    starts = tmp_path / "starts"

    def started() -> list[int]:
        return [int(line) for line in starts.read_text().split()] if starts.exists() else []

    with trio.fail_after(HANG_S):
        async with command(
            tmp_path, "serve", "env.py:environment", "--bind", "tcp://127.0.0.1:0", "--http",
            "127.0.0.1:0", "--workers", "2", "--json",
        ) as serving:  # fmt: skip
            url = (await serving.event("serving"))["http"]
            await serving.event("ready")
            client = [sys.executable, "-c", CLIENT, url, str(NUMBER)]
            start = functools.partial(trio.run_process, client, check=False)
            async with trio.open_nursery() as nursery:
                killed = await nursery.start(start)
                while len(started()) < NUMBER // 3:
                    await trio.sleep(0.05)
                killed.kill()
            found = []

            async def again() -> None:
                ended = await trio.run_process(client, capture_stdout=True)
                found.append(json.loads(ended.stdout))

            async with trio.open_nursery() as nursery:  # two of them at once
                nursery.start_soon(again)
                nursery.start_soon(again)
                while len(started()) < NUMBER:
                    await trio.sleep(0.05)
                (tmp_path / "go").touch()
    expected = [[index, index + 1000] for index in range(NUMBER)]
    assert found == [expected, expected]
    assert sorted(started()) == list(range(NUMBER))
    await check_nothing_left(tmp_path)
