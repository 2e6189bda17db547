"""Doors beside a server, and apart (``serve --door-only``) whose server comes, goes and comes
back; what callers and lookers-on hear while a server drains, and when another one follows."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.cli.commands import Running, check_nothing_left, forked, gated, run, served, until
from tests.connections import held_port
from tests.doors.verifiers.door import asking

pytest.importorskip("h11")
httpx2 = pytest.importorskip("httpx2")

pytestmark = pytest.mark.real


class Place:
    """A folder with an environment, and the address of its server."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder
        self.address = address

    def starts(self, name: str) -> int:
        file = self.folder / f"{name}.started"
        return len(file.read_text()) if file.exists() else 0

    def open(self, name: str) -> None:
        (self.folder / f"{name}.open").touch()

    def server(self) -> AbstractAsyncContextManager[tuple[Running, str]]:
        return served(self.folder, gated(self.folder), "--bind", self.address)

    @asynccontextmanager
    async def door(self, *options: str) -> AsyncIterator[tuple[Running, Any]]:
        arguments = ("--door-only", self.address, "--http", "127.0.0.1:0", "--json", *options)
        async with forked(self.folder, "serve", *arguments) as door:
            url = (await door.event("serving"))["http"]
            async with httpx2.AsyncClient(base_url=url, timeout=None) as client:
                yield door, client


@pytest.fixture
def place(tmp_path: Path) -> Any:
    with held_port() as port:
        yield Place(tmp_path, f"tcp://127.0.0.1:{port}")


async def ask(client: Any, name: str, key: str = "", **fields: Any) -> Any:
    headers = {"Idempotency-Key": f'"{key}"'} if key else {}
    return await client.post("/v1/rollouts", json={"input": name, **fields}, headers=headers)


async def ready(client: Any, *, is_ready: bool) -> None:
    """Ask for its readiness until it is so."""
    while ((await client.get("/readyz")).status_code == 200) is not is_ready:  # noqa: ASYNC110  # another process
        await trio.sleep(0.05)


async def test_a_door_may_be_opened_before_its_server(place: Place):
    async with AsyncExitStack() as stack:
        door, client = await stack.enter_async_context(place.door())
        assert (await client.get("/livez")).status_code == 200
        assert (await client.get("/readyz")).status_code == 503
        refused = await ask(client, "a")
        assert (refused.status_code, refused.json()["code"]) == (503, "not-ready")
        assert refused.json()["ran"] is False
        of_key = await ask(client, "a", "key")
        assert (of_key.status_code, of_key.json()["ran"]) == (503, None)
        assert "retry-after" in of_key.headers
        await door.said("waiting for the server")
        assert "nothing listens" in door.err
        await stack.enter_async_context(place.server())
        await door.event("ready")
        place.open("a")
        assert (await ask(client, "a")).json()["value"]["reward"] == 1.0
        door.signal(signal.SIGTERM)
        ended = await door.wait()
    assert (ended.code, ended.last["event"], ended.last["why"]) == (0, "stopped", "SIGTERM")
    ended.check_no_traceback()
    assert place.starts("a") == 1


async def test_who_waited_for_a_server_that_was_killed_is_told_the_truth(place: Place):
    quick = ("--http-limit", "answer_s=0.5")
    async with place.door(*quick) as (_, client), trio.open_nursery() as nursery:
        answers: dict[str, Any] = {}

        async def record(name: str, *arguments: Any, **fields: Any) -> None:
            answers[name] = await ask(client, name, *arguments, **fields)

        async with place.server() as (serving, _):
            await ready(client, is_ready=True)
            nursery.start_soon(record, "bare")
            nursery.start_soon(record, "named", "key")
            nursery.start_soon(lambda: record("consents", rerun=True))
            await until(lambda: all(map(place.starts, ("bare", "named", "consents"))))
            nursery.start_soon(lambda: record("bounded", timeout_s=10.0))
            await until(lambda: place.starts("bounded"))
            serving.signal(signal.SIGKILL)
            await serving.wait()
            # Not known to be gone yet, so it is taken; and it was never sent, unless the door had
            # not seen yet that its connection had ended.
            answer = await ask(client, "short", timeout_s=0.5)
            told = (answer.status_code, answer.json()["ran"])
            assert told in ((429, False), (503, False), (500, None))
            await ready(client, is_ready=False)
            late = await ask(client, "late")
            assert (late.status_code, late.json()["ran"]) == (503, False)
            looked = await client.get("/v1/rollouts/key")
            assert (looked.status_code, looked.json()["ran"]) == (503, None)
            assert (await client.delete("/v1/rollouts/key")).status_code == 503
            assert answers.keys() <= {"bounded"}, "one was answered while nothing was known"
        place.open("consents")
        async with place.server():
            await ready(client, is_ready=True)
            await until(lambda: len(answers) == 4)
            assert answers["bounded"].json()["verdict"] == "it may have run"
            assert (answers["bounded"].status_code, place.starts("short")) == (500, 0)
            assert (answers["bare"].status_code, answers["bare"].json()["ran"]) == (500, None)
            named = answers["named"]
            assert (named.status_code, named.json()["code"]) == (404, "unknown-key")
            assert named.json()["ran"] is None
            assert answers["consents"].status_code == 200
            assert [place.starts(name) for name in ("bare", "named", "consents", "late")] == [
                1, 1, 2, 0,
            ]  # fmt: skip
            place.open("named")
            again = await ask(client, "named", "key")
            assert (again.status_code, place.starts("named")) == (200, 2)


async def test_the_end_of_a_door_cancels_its_calls_and_not_its_server(place: Place):
    async with place.server() as (serving, _):
        async with place.door() as (door, client), trio.open_nursery() as nursery:
            await ready(client, is_ready=True)

            async def cut() -> None:
                with pytest.raises(httpx2.RemoteProtocolError):
                    await ask(client, "a")

            nursery.start_soon(cut)
            await until(lambda: place.starts("a"))
            door.signal(signal.SIGTERM)
            await door.said("what is under way is answered")
            door.signal(signal.SIGINT)  # another one: the same twice in a moment is one
            assert (await door.wait()).code == 1
        place.open("b")
        async with place.door() as (_, client):
            await ready(client, is_ready=True)
            assert (await ask(client, "b")).status_code == 200
        assert serving.process.poll() is None
    await check_nothing_left(place.folder)


async def test_address_of_a_door_that_is_in_use_is_said(tmp_path: Path):
    with held_port() as port:
        of = ("serve", "--door-only", "tcp://127.0.0.1:5555", "--http", f"127.0.0.1:{port}")
        async with forked(tmp_path, *of) as first:
            await first.line()
            second = await run(tmp_path, *of, "--json")
    assert (second.code, "cannot listen" in second.last["error"]["message"]) == (3, True)


# -- doors beside the server ----------------------------------------------------------


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
        'environment = "answering.py:make"\nbind = "tcp://127.0.0.1:0"\n[http]\n'
        f'bind = "127.0.0.1:0"\ntoken_file = "{tokens}"\nhosts = ["a.example"]\n'
        'limits = {body_bytes = 1000}\n[verifiers]\nbind = "tcp://127.0.0.1:0"\n'
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
        "import sys\nsys.modules['h11'] = None\n"
        "from trio_envserve.cli import main\nsys.exit(main())\n"
    )
    door = ("--http", "127.0.0.1:0")
    async with forked(tmp_path, "serve", *BIND, *door, module="without") as serving:
        finished = await serving.wait()
    assert finished.code == 2
    assert "trio-envserve[http]" in finished.err
    finished.check_no_traceback()


# -- what callers and lookers-on hear while a server drains ---------------------------


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
