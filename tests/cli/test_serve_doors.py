"""``serve --http --verifiers-bind``: doors beside the server."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cli.commands import check_nothing_left, command, forked
from tests.doors.verifiers.door import asking

pytest.importorskip("hypercorn")
httpx2 = pytest.importorskip("httpx2")

pytestmark = pytest.mark.real

BIND = ("--bind", "tcp://127.0.0.1:0")
TOKEN = "0123456789abcdef"
ENVIRONMENT = """
async def run_rollout(rollout):
    return {"reward": 1.0, "state": {"deltas": [b"d"], "reply": b"r", "traces": []}}

def make():
    return run_rollout
"""


async def test_serve_opens_the_doors_of_its_file_and_closes_them(tmp_path: Path):
    (tmp_path / "answering.py").write_text(ENVIRONMENT)
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKEN)
    tokens.chmod(0o600)
    (tmp_path / "serve.toml").write_text(
        'environment = "answering.py:make"\nbind = "tcp://127.0.0.1:0"\n[serve]\n'
        f'http = "127.0.0.1:0"\ntoken_file = "{tokens}"\nhttp_hosts = ["a.example"]\n'
        'http_limits = {body_bytes = 1000}\nverifiers_bind = "tcp://127.0.0.1:0"\n'
    )
    async with forked(tmp_path, "serve", "--config", "serve.toml", "--json") as serving:
        told = await serving.event("serving")
        await serving.event("ready")
        shown = {"authorization": f"Bearer {TOKEN}", "host": "a.example"}
        async with (
            httpx2.AsyncClient(base_url=told["http"], headers=shown, timeout=None) as client,
            asking(told["verifiers"]) as peer,
        ):
            status = 503
            while status == 503:  # the door itself hears of it a moment later
                answer = await client.post("/v1/rollouts", json={"input": {"index": 0}})
                status = answer.status_code
            assert answer.json()["value"]["reward"] == 1.0
            answer = await client.post("/v1/rollouts", json={"input": "x" * 1000})
            assert answer.status_code == 413
            assert answer.json()["detail"].startswith("the body may have 1000 bytes")
            assert "--http-limit body_bytes=" in answer.json()["advice"]
            peer.run(b"a")  # it waits until the door hears of it
            assert await peer.outcome(b"a") == [(b"delta", b"d"), (b"reply", b"r")]
            serving.signal(signal.SIGTERM)  # with the connections still open
            finished = await serving.wait()
    assert (finished.code, finished.last["event"]) == (0, "stopped")
    finished.check_no_traceback()
    await check_nothing_left(tmp_path)


async def test_the_extra_that_is_missing_is_named(tmp_path: Path):
    (tmp_path / "without.py").write_text(
        "import sys\nsys.modules['hypercorn'] = None\n"
        "from trio_envserve.cli import main\nsys.exit(main())\n"
    )
    door = ("--http", "127.0.0.1:0")
    async with command(tmp_path, "serve", *BIND, *door, module="without") as serving:
        finished = await serving.wait()
    assert finished.code == 2
    assert "trio-envserve[http]" in finished.err
    finished.check_no_traceback()
