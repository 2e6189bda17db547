"""What ``serve`` does besides serving: secrets that it hides, what it sets in its process, spans
that it sends."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest
import trio

from tests.cli.commands import check_nothing_left, forked, lines, run, served
from tests.endpoint import Ask, Endpoint, Reply, serve
from tests.otlp_receiver import Received, Receiver, receiving
from trio_envserve import Client, RolloutFailed, open_client

pytestmark = pytest.mark.real

KEY = "sk-proj-S3CR3T/0123456789"
LEAKY = """
import logging
import os
import sys
import trio


class Leaky:
    async def run_rollout(self, rollout):
        key = os.environ["SANDBOX_KEY"]
        rollout.note(url=f"https://sandbox/?key={key}")
        logging.getLogger("leaky").warning("asks with %s", key)
        print("prints", key, file=sys.stderr)
        with rollout.span("create", url=f"https://sandbox/?key={key}"):
            if rollout.input == "wait":
                await trio.sleep_forever()
        error = RuntimeError(f"401 for Bearer {key}")
        error.add_note(f"with {key!r}")
        raise error
"""


async def test_a_key_that_is_named_is_shown_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "leaky.py").write_text(LEAKY)
    (tmp_path / "inputs.jsonl").write_text('"fail"')
    monkeypatch.setenv("SANDBOX_KEY", KEY)
    texts = []
    hidden = ("--secret-env", "SANDBOX_KEY")
    async with served(tmp_path, "leaky:Leaky", *hidden) as (serving, address):
        async with open_client(address) as client, trio.open_nursery() as nursery:
            with pytest.raises(RolloutFailed) as failed:
                await client.run_rollout("fail")
            texts += [str(failed.value), repr(failed.value.info)]
            nursery.start_soon(client.run_rollout, "wait")
            running: list[object] = []
            while not any("url" in repr(each) for each in running):
                running = list((await client.list_running()).running)
            texts.append(repr(running))
            shown = await run(tmp_path, "status", address, "--slow", "5", "--json")
            texts.append(shown.out)
            nursery.cancel_scope.cancel()
        evaluated = await run(
            tmp_path, "eval", "leaky:Leaky", "--address", address, "--inputs", "inputs.jsonl",
            "--output", "r.jsonl",
        )  # fmt: skip
        texts += [evaluated.out, evaluated.err, (tmp_path / "r.jsonl").read_text()]
        serving.signal(signal.SIGTERM)
        finished = await serving.wait()
    texts += [finished.out, finished.err]
    assert "asks with $SANDBOX_KEY" in finished.err
    assert "prints $SANDBOX_KEY" in finished.err
    assert "$SANDBOX_KEY" in texts[0]
    for text in texts:
        assert "S3CR3T" not in text


@pytest.mark.parametrize(
    ("name", "why"),
    [("NOT_SET", "is not set here"), ("SHORT", "too short"), ("sk-proj-1/2", "takes the name")],
)
async def test_a_variable_that_cannot_be_hidden_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, why: str
):
    monkeypatch.setenv("SHORT", "x")
    done = await run(tmp_path, "eval", "arithmetic", "-n", "1", "--secret-env", name)
    assert why in done.err
    assert "sk-proj" not in done.err


# -- what serve sets in its own process -----------------------------------------------


WATCHED = '''
"""Runs the command, and writes down what it sets for the whole process."""

import ctypes, gc, sys
from trio_envserve.cli import main

set_threshold, CDLL = gc.set_threshold, ctypes.CDLL


def write(what):
    with open("settings", "a") as file:
        file.write(what + "\\n")


def collect(*thresholds):
    write(f"gc {thresholds[2:]}")
    set_threshold(*thresholds)


class Library(CDLL):
    def __getattr__(self, name):
        if name == "mallopt":
            write(name)
        return super().__getattr__(name)


gc.set_threshold, ctypes.CDLL = collect, Library
sys.exit(main())
'''


async def test_serve_keeps_freed_memory_and_leaves_full_collections_to_a_task(tmp_path: Path):
    """Nobody noticed when it stopped doing either: servers would only be slower."""
    (tmp_path / "watched.py").write_text(WATCHED)
    settings = tmp_path / "settings"
    async with forked(tmp_path, "serve", "arithmetic", module="watched") as serving:
        await serving.said("ready at")
        assert settings.read_text().split("\n")[:2] == ["mallopt", "gc (2147483647,)"]


# -- serve --otlp: spans of server and workers, sent to a real receiver ---------------


ENVIRONMENT = '''
import logging

class Clock:
    """Asks a tool, and answers."""

    def reset(self, index: int) -> str:
        logging.getLogger("clock").info("begins %d", index)
        return f"What time is it in {index}?"

    def tell_time(self, place: int) -> str:
        """Tell the time.

        Args:
            place: Where.
        """
        return "noon"

    def get_reward(self) -> float:
        return 1.0
'''


def span_of(number: int) -> str:
    """A caller's span, kept."""
    return f"00-{number + 1:032x}-{number + 1:016x}-01"


def answer(ask: Ask) -> Reply:
    return Reply(tools=[("tell_time", {"place": 1})]) if not ask.turn else Reply("noon")


def check_tree(spans: list[Received], caller: str) -> None:
    """One rollout, with an execution, two model calls and a tool call, and no orphan."""
    assert Counter(span.name for span in spans) == {
        "rollout": 1, "execution": 1, "chat clock-model": 2, "execute_tool tell_time": 1,
    }  # fmt: skip
    (rollout,) = [span for span in spans if span.name == "rollout"]
    (execution,) = [span for span in spans if span.name == "execution"]
    assert rollout.parent == caller
    assert execution.parent == rollout.id
    assert rollout.attributes["envserve.request"] == execution.attributes["envserve.request"]
    for span in spans:
        assert not span.failed
        if span not in (rollout, execution):
            assert span.parent == execution.id
            assert execution.began_ns <= span.began_ns <= span.ended_ns


async def ask_all(client: Client, url: str, spans: list[str | None]) -> None:
    async def one(index: int, span: str | None) -> None:
        result = await client.run_rollout(
            {"index": index}, model=url, model_name="clock-model", traceparent=span
        )
        assert result["reward"] == 1.0

    async with trio.open_nursery() as nursery:
        for index, span in enumerate(spans):
            nursery.start_soon(one, index, span)


def trees(receiver: Receiver) -> dict[str, list[Received]]:
    found: dict[str, list[Received]] = {}
    for span in receiver.spans:
        found.setdefault(span.trace, []).append(span)
    return found


async def test_each_rollout_is_a_tree_without_orphans(tmp_path: Path):
    """Half of the callers have spans.  Their ids are in the workers' logs, and reach the
    model; the trees of the others begin at the server."""
    (tmp_path / "clocks.py").write_text(ENVIRONMENT)
    spans = [span_of(index) if index < 10 else None for index in range(20)]
    endpoint = Endpoint(answer)
    with receiving() as receiver:
        async with serve(endpoint) as url:
            options = ("--otlp", receiver.url, "--log-dir", "logs", "--log-json", "--workers", "2")
            async with served(tmp_path, "class:clocks:Clock", *options) as (server, address):
                async with open_client(address) as client:
                    await ask_all(client, url, spans)
                server.signal(signal.SIGTERM)
                assert (await server.wait()).code == 0
    found = trees(receiver)
    assert len(found) == 20
    for trace, of_trace in found.items():
        number = int(trace, 16) - 1
        check_tree(of_trace, f"{number + 1:016x}" if number < 10 else "")
    logged = {
        int(line["message"].split()[1]): line
        for file in (tmp_path / "logs").glob("worker-*.log")
        for line in lines(file)
        if line["logger"] == "clock"
    }
    assert len(logged) == 20
    executions = {span.id: span.trace for span in receiver.named("execution")}
    assert {line["span_id"]: line["trace_id"] for line in logged.values()} == executions
    assert all(int(logged[index]["trace_id"], 16) == index + 1 for index in range(10))
    chats = {f"00-{span.trace}-{span.id}" for span in receiver.named("chat")}
    assert {ask.headers["traceparent"][:52] for ask in endpoint.asks} == chats
    who = {span.service["service.instance.id"].split()[0] for span in receiver.spans}
    assert {"server", "w0-1", "w1-1"} >= who > {"server"}
    assert {span.service["service.name"] for span in receiver.spans} == {"trio-envserve"}
    await check_nothing_left(tmp_path)
