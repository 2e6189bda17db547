"""What callers and lookers-on hear while a server drains, and when another one follows."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cli.commands import check_nothing_left, forked, gated, run, served, until

pytest.importorskip("hypercorn")
httpx2 = pytest.importorskip("httpx2")

pytestmark = pytest.mark.real


async def test_a_drain_is_watched_answered_and_followed(tmp_path: Path) -> None:
    (tmp_path / "slow.jsonl").write_text('"slow"\n')
    (tmp_path / "next.jsonl").write_text('"next"\n')
    bind = f"ipc://{tmp_path}/s" if len(str(tmp_path)) < 90 else "tcp://127.0.0.1:0"
    (tmp_path / "next.open").touch()
    serve = (gated(tmp_path), "--http", "127.0.0.1:0", "--drain-s", "300")
    async with served(tmp_path, *serve, "--bind", bind) as (first, address):
        probe = ("status", address, "--ready")
        done = await run(tmp_path, *probe)
        assert (done.code, done.out, done.err) == (0, "ready\n", "")
        done = await run(tmp_path, *probe, "--json")
        assert (done.code, done.last["exit"], done.last["status"]) == (0, 0, "ready")
        ask = ("eval", "gated:gated", "--address", address, "--json", "--inputs")
        async with (
            httpx2.AsyncClient(base_url=first.serving["http"], timeout=None) as http,
            forked(tmp_path, *ask, "slow.jsonl") as slow,
        ):
            await until((tmp_path / "slow.started").exists)
            first.signal(signal.SIGTERM)
            await first.said("taking no new work")
            async with forked(tmp_path, *ask, "next.jsonl") as following:
                # Who looks on sees what is left, and for how long.
                seen = (await run(tmp_path, "status", address, "--json")).last
                assert (seen["status"], seen["running"]) == ("stopping", 1)
                assert (seen["closing"]["stage"], seen["closing"]["running"]) == ("draining", 1)
                assert 0 < seen["closing"]["left_s"] <= 300
                done = await run(tmp_path, *probe)
                assert done.code == 1
                assert done.out.startswith("stopping: the server is stopping (draining)")
                assert "1 executions" in done.out
                done = await run(tmp_path, *probe, "--json")
                assert (done.code, done.last["exit"], done.last["status"]) == (1, 1, "stopping")
                shown = await run(tmp_path, "status", address)
                assert "1 executions, 0 outcomes" in shown.out
                await first.said("s more at most")
                # HTTP hears that it did not run, why, and when to come again.
                while (await http.get("/readyz")).status_code == 200:
                    pass  # the door itself hears of it a moment later
                answer = await http.post("/v1/rollouts", json={"input": "http"})
                assert answer.status_code == 503
                assert "stopping" in answer.json()["detail"]
                assert answer.json()["verdict"] == "it did not run"
                assert answer.headers["retry-after"]
                # What runs ends as if nothing had happened.
                (tmp_path / "slow.open").touch()
                done = await slow.wait()
                assert (done.code, done.last["results"]) == (0, 1)
                stopped = await first.wait()
                assert (stopped.code, stopped.last["drained"]) == (0, True)
                done = await run(tmp_path, *probe, "--wait-s", "1")
                assert (done.code, done.out) == (3, "")
                assert "no answer from" in done.err
                # What came meanwhile runs at the next server, once.
                assert following.process.poll() is None
                async with served(tmp_path, *serve, "--bind", address) as (second, _):
                    done = await following.wait()
                    assert (done.code, done.last["results"]) == (0, 1)
                    second.signal(signal.SIGTERM)
                    await second.wait()
    assert (tmp_path / "slow.started").read_text() == "x"
    assert (tmp_path / "next.started").read_text() == "x"
    assert not (tmp_path / "http.started").exists()
    await check_nothing_left(tmp_path)
