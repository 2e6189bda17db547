"""``journal``: what a person sees and mends, with the command as a process."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from tests.cli.commands import gated, run, served
from tests.server.journal.folders import a_run, journal, opened, write
from trio_envserve import ServerStartError, open_client
from trio_envserve.server.journal import tools

pytestmark = pytest.mark.real


async def test_what_a_server_has_left_is_shown(tmp_path: Path):
    async with served(tmp_path, gated(tmp_path), "--journal", "runs") as (serving, address):
        async with open_client(address) as client:
            await client.run_rollout({"name": "a", "gate": False}, key="run/a")
            await client.outcome({"name": "b", "gate": False, "raises": True}, key="run/b")
            await client.run_rollout({"name": "c", "gate": False}, key="c", namespace="other")
            beside = await run(tmp_path, "journal", "runs", "ls", "run/")
            assert beside.out.splitlines()[0] == "2 keys in runs"
            for action in ("check", "compact", "adopt"):
                busy = await run(tmp_path, "journal", "runs", action)
                assert busy.code == 3
                assert f"in use by process {serving.pid}" in busy.err
    listed = await run(tmp_path, "journal", "runs", "ls", "--all", "--json")
    assert [(row["key"], row["state"], row["executions"]) for row in listed.last["keys"]] == [
        ("run/a", "completed", 1), ("run/b", "completed", 1), ("c", "completed", 1),
    ]  # fmt: skip
    shown = json.loads((await run(tmp_path, "journal", "runs", "show", "run/a")).out)
    assert shown["input"]["input"] == {"name": "a", "gate": False}
    assert shown["outcome"]["value"]["reward"] == 1.0
    failed = (await run(tmp_path, "journal", "runs", "show", "run/b", "--json")).last
    assert failed["outcome"]["error"]["exception"] == "LookupError"
    none = await run(tmp_path, "journal", "runs", "show", "run/c", "--json")
    assert (none.code, none.last["key"]) == (1, "run/c")
    exported = await run(tmp_path, "journal", "runs", "export", "--all")
    assert [json.loads(line)["key"] for line in exported.out.splitlines()] == [
        "run/a", "run/b", "c",
    ]  # fmt: skip
    whole = await run(tmp_path, "journal", "runs", "check")
    assert (whole.code, whole.out) == (0, "runs is whole\n")
    assert (await run(tmp_path, "journal", "runs", "compact", "--json")).last["exit"] == 0


async def test_copied_journal_is_taken_over_by_a_person_only(tmp_path: Path):
    write(tmp_path / "original", a_run(0))
    shutil.copytree(tmp_path / "original", tmp_path / "runs")
    refused = await run(tmp_path, "serve", "--journal", "runs", "--bind", "tcp://127.0.0.1:0")
    assert refused.code == 3
    assert "was copied or moved here" in refused.err
    adopted = await run(tmp_path, "journal", "runs", "adopt", "--json")
    assert adopted.last["adopted"] == 1
    with journal(tmp_path / "runs") as (_, found):
        assert len(found.entries) == 3
    (tmp_path / "runs" / "journal.db").write_bytes(b"?" * 5000)
    assert tools.check(tmp_path / "runs") == ["journal.db: file is not a database"]
    with pytest.raises(ServerStartError, match="damaged"):
        tools.adopt(tmp_path / "runs")


async def test_a_damaged_journal_is_told_and_mended(tmp_path: Path):
    folder = tmp_path / "runs"
    write(folder, a_run(0), [opened(1)])
    connection = sqlite3.connect(folder / "journal.db")
    connection.execute("DELETE FROM records WHERE row = 1")
    connection.commit()
    connection.close()
    refused = await run(tmp_path, "serve", "--journal", "runs", "--bind", "tcp://127.0.0.1:0")
    assert refused.code == 3
    assert "rows were removed or added" in refused.err
    refused.check_no_traceback()
    found = await run(tmp_path, "journal", "runs", "check")
    assert found.code == 1
    assert "check --repair" in found.err
    assert "damaged" in (await run(tmp_path, "journal", "runs", "ls")).err
    mended = await run(tmp_path, "journal", "runs", "check", "--repair")
    assert mended.code == 0
    assert "key 'key-1' in namespace 'default': it may have run" in mended.out
    assert "1 keys have lost their names" in mended.out
    assert (await run(tmp_path, "journal", "runs", "check", "--json")).last["problems"] == []
