"""The worker in JavaScript conforms, and serves a real server."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import trio

from trio_envserve import RolloutFailed, open_client, open_server
from trio_envserve.lab.conformance.cases import VECTORS
from trio_envserve.lab.conformance.workers import Subject, WorkerOptions, conform_worker

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLE = ROOT / "examples" / "node_worker"
JUDGE = re.compile(r"^trio-envserve (conform --worker-command .*)$", re.MULTILINE)

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with its package installed; skips the tests where that cannot be had."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node or npm is not installed")
    folder = tmp_path_factory.mktemp("node") / "worker"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("node_modules"))
    install = [npm, "install", "--omit=optional", "--no-audit", "--no-fund", "--no-package-lock"]
    done = subprocess.run(install, cwd=folder, capture_output=True, timeout=120, check=False)
    if done.returncode:
        pytest.skip(f"npm cannot install cbor-x: {done.stderr.decode()[-300:]}")
    return folder


async def test_it_serves_a_real_server(example: Path):
    command = ["node", str(example / "worker.mjs")]
    inputs = [{"text": f"one two {'  ' * (i % 2)}{i}"} for i in range(100)]
    failure = None
    with trio.fail_after(120):
        async with (
            open_server(worker_command=command, workers=2, args={"pause_s": 0.01}) as server,
            open_client(server.address) as client,
        ):
            async with client.run_many(inputs) as outcomes:
                rewards = {index: outcome.value["reward"] async for index, outcome in outcomes}
            try:
                await client.run_rollout({"nothing": 1})
            except RolloutFailed as error:
                failure = error
            with trio.move_on_after(0.2) as cut:
                await client.run_rollout({"text": "", "pause_s": 1000})
            # Larger than a message that is sent at once, and dearer than its length allows.
            large = {"text": "word " * 200_000, "also": [{"x": i} for i in range(20_000)]}
            answer = await client.run_rollout(large)
            stats = server.stats()
    assert rewards == {i: 1.0 - i % 2 for i in range(100)}
    assert "the input has no text" in str(failure)
    assert cut.cancelled_caught
    assert answer["completion"] == "200001"
    assert stats.environment == "count-words"
    assert (stats.worker_restarts, stats.malformed, stats.fenced) == (0, 0, 0)


async def test_large_outcomes_of_many_small_things_are_padded(example: Path):
    (example / "many.mjs").write_text(
        'import { serve } from "./envserve.mjs";\n'
        'serve({ name: "many", rollout: (n) => Array.from({ length: n }, (_, x) => ({ x })) });\n'
    )
    command = ["node", str(example / "many.mjs")]
    with trio.fail_after(120):
        async with (
            open_server(worker_command=command) as server,
            open_client(server.address) as client,
        ):
            value = await client.run_rollout(100_000)
    assert value == [{"x": x} for x in range(100_000)]


async def test_a_rollout_is_told_that_it_is_late(example: Path):
    (example / "late.mjs").write_text(
        'import { serve } from "./envserve.mjs";\n'
        'serve({ name: "late", rollout: (input, { late }) => new Promise((give) => {\n'
        '  const end = () => give("late");\n'
        '  if (late.aborted) end(); else late.addEventListener("abort", end);\n'
        "}) });\n"
    )
    command = ["node", str(example / "late.mjs")]
    with trio.fail_after(120):
        async with (
            open_server(worker_command=command) as server,
            open_client(server.address) as client,
        ):
            assert await client.run_rollout(1, timeout_s=0.3, grace_s=100) == "late"
            assert await client.run_rollout(1, execution_s=0.3, grace_s=100) == "late"


READ = """
import { decode } from "./bodies.mjs";
const values = JSON.parse(process.argv[1]).values.filter((each) => "json" in each.value);
for (const { bytes, meaning, value } of values) {
  const found = JSON.stringify(decode(Buffer.from(bytes, "hex")));
  if (found !== JSON.stringify(value.json)) throw new Error(`${meaning}: ${found}`);
}
console.log(values.length);
"""


async def test_it_reads_the_values_of_the_vectors(example: Path):
    known = json.dumps({"values": VECTORS["values"]})
    read = ["node", "--input-type=module", "-e", READ, known]
    done = await trio.run_process(read, cwd=example, capture_stdout=True)
    assert int(done.stdout) >= 7


async def test_it_conforms(example: Path):
    """By the command of its own page, and of the page about judging."""
    (ours,) = JUDGE.findall((EXAMPLE / "README.md").read_text(encoding="utf-8"))
    (theirs,) = JUDGE.findall((ROOT / "docs" / "conformance.md").read_text(encoding="utf-8"))
    assert shlex.split(ours) == shlex.split(theirs)
    with trio.fail_after(300):
        done = await trio.run_process(
            ["trio-envserve", *shlex.split(ours), "--patience-s", "60"],
            cwd=example, capture_stdout=True, capture_stderr=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    assert "conforms" in done.stdout.decode()


async def test_a_worker_without_an_environment_is_told_of(example: Path):
    (example / "broken.mjs").write_text(
        'import { serve } from "./envserve.mjs";\n'
        'serve({ name: "broken", setup() { throw new Error("there is no data"); } });\n'
    )
    subject = Subject(["node", str(example / "broken.mjs")], None, {}, {"input": 1})
    with trio.fail_after(300):
        report = await conform_worker(WorkerOptions(subject, patience_s=60))
    assert len(report.failed) > 20
    assert {"exited with status 3" in each.seen for each in report.failed} == {True}
    assert "there is no data" in report.failed[0].seen
