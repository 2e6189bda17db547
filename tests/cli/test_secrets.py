"""``--secret-env``: an environment that puts a key into everything it says."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import trio

from tests.cli.commands import run, served
from trio_envserve import RolloutFailed, open_client

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
