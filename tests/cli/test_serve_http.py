"""``serve --http``: the door beside the server."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cli.commands import check_nothing_left, command, forked

pytest.importorskip("hypercorn")
httpx2 = pytest.importorskip("httpx2")

pytestmark = pytest.mark.real

BIND = ("--bind", "tcp://127.0.0.1:0")
TOKEN = "0123456789abcdef"


async def test_serve_opens_a_door_and_closes_it(tmp_path: Path):
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKEN)
    tokens.chmod(0o600)
    door = ("--http", "127.0.0.1:0", "--token-file", str(tokens), "--http-host", "a.example",
            "--http-limit", "body_bytes=1000")  # fmt: skip
    async with forked(tmp_path, "serve", "arithmetic", *BIND, *door, "--json") as serving:
        url = (await serving.event("serving"))["http"]
        await serving.event("ready")
        shown = {"authorization": f"Bearer {TOKEN}", "host": "a.example"}
        async with httpx2.AsyncClient(base_url=url, headers=shown, timeout=None) as client:
            status = 503
            while status == 503:  # the door itself hears of it a moment later
                answer = await client.post("/v1/rollouts", json={"input": {"index": 0}})
                status = answer.status_code
            assert answer.json()["value"]["reward"] == 1.0
            answer = await client.post("/v1/rollouts", json={"input": "x" * 1000})
            assert answer.status_code == 413
            assert answer.json()["detail"].startswith("the body may have 1000 bytes")
            assert "--http-limit body_bytes=" in answer.json()["advice"]
            serving.signal(signal.SIGTERM)  # with the connection still open
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
