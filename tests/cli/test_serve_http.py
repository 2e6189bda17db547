"""``serve --http``: the door beside the server."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from tests.cli.commands import check_nothing_left, command, forked, run

pytest.importorskip("hypercorn")
httpx2 = pytest.importorskip("httpx2")

pytestmark = pytest.mark.real

BIND = ("--bind", "tcp://127.0.0.1:0")
TOKEN = "0123456789abcdef"


async def test_serve_opens_a_door_and_closes_it(tmp_path: Path):
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKEN)
    tokens.chmod(0o600)
    door = ("--http", "127.0.0.1:0", "--token-file", str(tokens), "--http-host", "a.example")
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
            serving.signal(signal.SIGTERM)  # with the connection still open
            finished = await serving.wait()
    assert (finished.code, finished.last["event"]) == (0, "stopped")
    finished.check_no_traceback()
    await check_nothing_left(tmp_path)


async def test_the_largest_body_of_a_request_is_set_by_the_command(tmp_path: Path):
    door = ("--http", "127.0.0.1:0", "--http-limit", "body_bytes=1000")
    async with forked(tmp_path, "serve", "arithmetic", *BIND, *door, "--json") as serving:
        url = (await serving.event("serving"))["http"]
        await serving.event("ready")
        async with httpx2.AsyncClient(base_url=url, timeout=None) as client:
            status = 503
            while status == 503:  # the door itself hears of it a moment later
                answer = await client.post("/v1/rollouts", json={"input": "x" * 1000})
                status = answer.status_code
    assert status == 413
    problem = answer.json()
    assert problem["detail"].startswith("the body may have 1000 bytes")
    assert "--http-limit body_bytes=" in problem["advice"]


@pytest.mark.parametrize("option", ["--http", "--verifiers-bind"])
async def test_an_address_in_use_is_found_before_a_worker_is_started(tmp_path: Path, option: str):
    with socket.create_server(("127.0.0.1", 0)) as other:
        where = f"{'tcp://' * (option != '--http')}127.0.0.1:{other.getsockname()[1]}"
        finished = await run(
            tmp_path, "serve", "arithmetic", *BIND, option, where, "--log-level", "DEBUG"
        )
    assert finished.code == 3
    assert "in use; nothing was started" in finished.err
    assert "worker" not in finished.err


async def test_the_address_of_the_door_is_printed(tmp_path: Path):
    async with forked(tmp_path, "serve", *BIND, "--http", "127.0.0.1:0") as serving:
        assert " and http://127.0.0.1:" in await serving.line()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--token-file", "x"], "--token-file needs --http"),
        (["--http-host", "x"], "--http-host needs --http"),
        (["--run-model", "random"], "--run-model needs --http"),
        (["--run-model-name", "x"], "--run-model-name needs --http"),
        (["--http-limit", "body_bytes=1"], "--http-limit needs --http"),
        (["--verifiers-limit", "runs=1"], "--verifiers-limit needs --verifiers-bind"),
        (["--http", "127.0.0.1:0", "--http-limit", "body=1"], "did you mean body_"),
        (["--http", "127.0.0.1:0", "--http-limit", "body_bytes=0"], "must be a positive"),
        (["--verifiers-bind", "tcp://127.0.0.1:0", "--verifiers-limit", "x=1"], "no limit 'x'"),
        (["--http", "127.0.0.1:0", "--insecure", "--token-file", "x"], "give one"),
        (["--http", "0.0.0.0:0"], "may be reached from other machines"),
        (["--http", "8080"], "HOST:PORT expected"),
        (["--http", "127.0.0.1:0", "--token-file", "missing"], "cannot read the tokens"),
    ],
)
async def test_a_wrong_door_is_a_wrong_usage(tmp_path: Path, options: list[str], why: str):
    finished = await run(tmp_path, "serve", "arithmetic", *BIND, *options)
    assert finished.code == 2
    assert why in finished.err
    finished.check_no_traceback()


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
