"""The verbs ``key`` and ``journal``, with a server of another process."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.cli.commands import forked, gated, run, served, until
from tests.server.journal.folders import a_run, journal, opened, write
from trio_envserve import Client, RolloutFailed, ServerStartError, WorkerLost, open_client
from trio_envserve.cli.key import _tell
from trio_envserve.core.journal import (
    Record,
    ResourceCreated,
    ResourceGiven,
    ResourceGone,
    ResourceOpened,
)
from trio_envserve.pages.tables import duration
from trio_envserve.server.journal import tools

pytestmark = pytest.mark.real

HERE = ("--workers", "0")


@asynccontextmanager
async def asked(folder: Path, address: str, *keys: str, **how: object) -> AsyncIterator[Client]:
    """While the block lasts somebody waits for these keys, and each of them runs."""
    async with open_client(address) as client, trio.open_nursery() as nursery:
        for key in keys:

            async def ask(key: str = key) -> None:
                await client.outcome({"name": key, "gate": True, **how}, key=key)

            nursery.start_soon(ask)
        await until(lambda: all((folder / f"{key}.started").exists() for key in keys))
        yield client
        nursery.cancel_scope.cancel()


async def test_the_keys_of_a_server_are_shown_to_people_and_to_programs(tmp_path: Path):
    async with (
        served(tmp_path, gated(tmp_path), *HERE) as (_, address),
        asked(tmp_path, address, "one", "two") as client,
    ):
        (tmp_path / "two.open").touch()
        await client.attach("two")
        await client.run_rollout({"name": "x", "gate": False}, key="else", namespace="other")
        at = ("--address", address)
        people = await run(tmp_path, "key", "list", *at)
        assert people.code == 0
        title, headings, *rows = people.out.splitlines()
        first, second = sorted(rows, key=lambda row: row.split()[-1])  # they were asked at once
        assert title == "2 of 2 keys in namespace default"
        # The key is last: a long one made every row as long.
        assert headings.split() == ["state", "waiters", "lost", "age", "left", "size", "key"]
        assert (first.split()[:2], first.split()[-1]) == (["running", "1"], "one")
        assert (second.split()[0], second.split()[-1]) == ("completed", "two")
        found = (await run(tmp_path, "key", "list", "--all", *at, "--json")).last
        assert {(each["namespace"], each["key"]) for each in found["keys"]} == {
            ("default", "one"), ("default", "two"), ("other", "else"),
        }  # fmt: skip
        assert (found["next"], found["generations"], found["exit"]) == (None, 3, 0)
        (only,) = (await run(tmp_path, "key", "list", "tw", *at, "--json")).last["keys"]
        assert (only["key"], only["state"]) == ("two", "completed")


async def test_list_of_keys_goes_on_where_the_last_one_ended(tmp_path: Path):
    async with (
        served(tmp_path, gated(tmp_path), *HERE) as (_, address),
        open_client(address) as client,
    ):
        async with client.run_many([{"name": "a", "gate": False}] * 250, key="step") as outcomes:
            async for _outcome in outcomes:
                pass
        at = ("--address", address)
        part = await run(tmp_path, "key", "list", *at, "--most", "120", "--json")
        assert len(part.last["keys"]) == 120
        first = str(part.last["next"])
        rest = (await run(tmp_path, "key", "list", *at, "--first", first, "--json")).last
        found = [each["key"] for each in part.last["keys"] + rest["keys"]]
        assert sorted(found) == sorted(f"step/{number}" for number in range(250))
        shown = await run(tmp_path, "key", "list", *at, "--most", "120")
        assert f"go on with --first {first}" in shown.err
        none = await run(tmp_path, "key", "list", "missing", *at)
        assert "no key of the 250 in namespace default begins with missing" in none.out
        nowhere = await run(tmp_path, "key", "list", *at, "--namespace", "nobody")
        assert "no keys are known in namespace nobody" in nowhere.out
        assert "--all" in nowhere.err


async def test_key_that_is_unknown_or_failed_says_what_to_do_next_and_none_is_wrong(tmp_path: Path):
    async with (
        served(tmp_path, gated(tmp_path), *HERE) as (_, address),
        asked(tmp_path, address, "one", raises=True),
    ):
        at = ("--address", address)
        found = await run(tmp_path, "key", "attach", "missing", *at, "--json")
        assert (found.code, found.last["error"]["code"]) == (4, "unknown-key")
        assert f"`trio-envserve key list --all --address {address}`" in found.err
        found.check_no_traceback()
        (tmp_path / "one.open").touch()
        found = await run(tmp_path, "key", "attach", "one", *at, "--json")
        assert (found.code, found.last["error"]["exception"]) == (4, "LookupError")
        assert "no such riddle" in found.err
        assert "`trio-envserve key forget`" in found.err
        assert (await run(tmp_path, "key", "attach", "", *at)).code == 2
        assert (await run(tmp_path, "key", "list", "--namespace", "", *at)).code == 2
        long = await run(tmp_path, "key", "forget", "x" * 300, *at)
        assert (long.code, "1 to 256 bytes" in long.err) == (4, True)


async def test_attach_waits_for_the_outcome_and_prints_it(tmp_path: Path):
    async with (
        served(tmp_path, gated(tmp_path), *HERE) as (_, address),
        asked(tmp_path, address, "one") as client,
    ):
        attach = ("key", "attach", "one", "--address", address)
        late = await run(tmp_path, *attach, "--timeout", "0.2", "--json")
        assert (late.code, late.last["error"]["code"]) == (6, "no-answer")
        assert "attach again" in late.err
        async with forked(tmp_path, *attach) as left, forked(tmp_path, *attach) as attaching:
            for watchers in (2, 1):
                while (await client.list_keys()).keys[0].watchers != watchers:
                    await trio.lowlevel.checkpoint()
                if watchers == 2:  # an interrupted one leaves the work alone
                    left.signal(signal.SIGINT)
                    ended = await left.wait()
                    assert (ended.code, "the work goes on" in ended.err) == (130, True)
            (known,) = (await client.list_keys()).keys
            assert (known.state, known.waiters) == ("running", 1)
            (tmp_path / "one.open").touch()
            done = await attaching.wait()
        assert done.code == 0
        assert json.loads(done.out) == {"reward": 1.0, "name": "one"}
        again = await run(tmp_path, *attach, "--json")
        assert (again.last["ok"], again.last["value"]["reward"]) == (True, 1.0)
        assert again.last["executions"] == 1
    assert (tmp_path / "one.started").read_text() == "x"


async def test_keys_are_cancelled_and_forgotten(tmp_path: Path):
    async with (
        served(tmp_path, gated(tmp_path), *HERE) as (_, address),
        asked(tmp_path, address, "one") as client,
    ):
        at = ("--address", address)
        cancelled = await run(tmp_path, "key", "cancel", "one", "two", *at, "--json")
        assert (cancelled.code, cancelled.last["keys"]) == (
            0,
            [
                {"key": "one", "known": True, "started": True, "finished": False},
                {"key": "two", "known": False, "started": True, "finished": False},
            ],
        )
        # A cancel ends nothing that is asked for later.
        assert (await client.outcome({"name": "two", "gate": False}, key="two")).ok
        await client.run_rollout({"name": "three", "gate": False}, key="three")
        late = await run(tmp_path, "key", "cancel", "three", *at)
        assert late.out == "three: had finished before, and keeps its outcome, a result\n"
        late = await run(tmp_path, "key", "cancel", "three", *at, "--json")
        (three,) = late.last["keys"]
        assert (three["finished"], three["outcome"]["executions"]) == (True, 1)
        forgotten = await run(tmp_path, "key", "forget", "two", "three", "four", *at)
        assert forgotten.out.splitlines() == [
            # "It may have run" was said of what had its outcome.
            "two: forgotten; it had been started", "three: forgotten; it had been started",
            "four: nothing was known under it",
        ]  # fmt: skip
        assert (await client.list_keys()).keys == ()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (99, "99 s"), (3540, "59 min"), (9000, "2.5 h")]
)
def test_an_age_is_short(seconds: float, text: str):
    assert duration(seconds) == text


def test_the_next_step_after_a_retained_error_is_told(capsys: pytest.CaptureFixture[str]):
    # A rollout whose worker died is retained like one that failed.
    for error in (RolloutFailed("text"), WorkerLost("text")):
        _tell(error, "tcp://127.0.0.1:9", "default")
        assert "`trio-envserve key forget` drops it" in capsys.readouterr().err


# -- a journal: what a person sees and mends -------------------------------------------


async def test_what_a_server_has_left_is_shown(tmp_path: Path):
    async with served(tmp_path, gated(tmp_path), "--journal", "runs") as (serving, address):
        async with open_client(address) as client:
            await client.run_rollout({"name": "a", "gate": False}, key="run/a")
            await client.outcome({"name": "b", "gate": False, "raises": True}, key="run/b")
            await client.run_rollout({"name": "c", "gate": False}, key="c", namespace="other")
            beside = await run(tmp_path, "journal", "list", "runs", "run/")
            assert beside.out.splitlines()[0] == "2 keys in runs"
            columns = ["namespace", "state", "executions", "bytes", "key"]
            assert beside.out.splitlines()[1].split() == columns
            for action in ("check", "compact", "adopt"):
                busy = await run(tmp_path, "journal", action, "runs")
                assert busy.code == 3
                assert f"(pid {serving.pid}) uses the journal" in busy.err
    listed = await run(tmp_path, "journal", "list", "runs", "--all", "--json")
    assert [(row["key"], row["state"], row["executions"]) for row in listed.last["keys"]] == [
        ("run/a", "completed", 1), ("run/b", "completed", 1), ("c", "completed", 1),
    ]  # fmt: skip
    shown = json.loads((await run(tmp_path, "journal", "show", "runs", "run/a")).out)
    assert shown["input"]["input"] == {"name": "a", "gate": False}
    assert shown["outcome"]["value"]["reward"] == 1.0
    failed = (await run(tmp_path, "journal", "show", "runs", "run/b", "--json")).last
    assert failed["outcome"]["error"]["exception"] == "LookupError"
    none = await run(tmp_path, "journal", "show", "runs", "run/c", "--json")
    assert (none.code, none.last["key"]) == (1, "run/c")
    exported = await run(tmp_path, "journal", "export", "runs", "--all")
    assert [json.loads(line)["key"] for line in exported.out.splitlines()] == [
        "run/a", "run/b", "c",
    ]  # fmt: skip
    whole = await run(tmp_path, "journal", "check", "runs")
    assert (whole.code, whole.out) == (0, "runs is whole\n")
    assert (await run(tmp_path, "journal", "compact", "runs", "--json")).last["exit"] == 0


async def test_resources_that_a_journal_holds_are_listed(tmp_path: Path):
    """Nothing showed what is left to be destroyed, and by what."""
    boxes: list[Record] = [
        ResourceOpened(number, f"ab-{number}", "box", "destroy|boxes", b"", 7, b"w" * 16, 0, number)
        for number in range(5)
    ]
    made: list[Record] = [ResourceCreated(number, b"handle") for number in (1, 2, 3, 4)]
    given = ResourceGiven(2, b"", 0), ResourceGiven(3, b"v" * 16, 1)
    write(tmp_path / "runs", a_run(0), boxes, made, given, [ResourceGone(4)])
    listed = await run(tmp_path, "journal", "list", "runs")
    title, columns, *rows = listed.out.split("\n\n")[1].splitlines()
    assert title == "4 resources"
    assert columns.split() == ["name", "kind", "state", "age", "destroy", "request"]
    assert [row.split()[:6] for row in rows] == [
        [name, "box", state, "0", "s", "destroy,"]
        for name, state in (
            ("ab-0", "intended"), ("ab-1", "held"), ("ab-2", "waiting"), ("ab-3", "cleaning"),
        )
    ]  # fmt: skip
    told = (await run(tmp_path, "journal", "list", "runs", "--json")).last["resources"]
    assert (told[1]["name"], told[1]["destroy"], told[1]["age_s"]) == ("ab-1", "destroy, boxes", 0)
    keys = (await run(tmp_path, "journal", "list", "runs", "key-", "--json")).last
    assert (len(keys["keys"]), keys["resources"]) == (1, [])


async def test_copied_journal_is_taken_over_by_a_person_only(tmp_path: Path):
    write(tmp_path / "original", a_run(0))
    shutil.copytree(tmp_path / "original", tmp_path / "runs")
    refused = await run(tmp_path, "serve", "--journal", "runs", "--bind", "tcp://127.0.0.1:0")
    assert refused.code == 3
    assert "was copied or moved here" in refused.err
    adopted = await run(tmp_path, "journal", "adopt", "runs", "--json")
    assert adopted.last["adopted"] == 1
    with journal(tmp_path / "runs") as (_, found):
        assert len(found.entries) == 3
    (tmp_path / "runs" / "journal.db").write_bytes(b"?" * 5000)
    assert tools.check(tmp_path / "runs") == ["journal.db: file is not a database"]
    with pytest.raises(ServerStartError, match="damaged"):
        tools.adopt(tmp_path / "runs")


async def test_a_damaged_journal_is_told_and_mended(tmp_path: Path):
    folder = tmp_path / "runs"
    box = ResourceOpened(0, "ab-0", "box", "destroy|boxes", b"a" * 16, 0, b"w" * 16, 0, 0)
    write(folder, a_run(0), [opened(1)], [box, ResourceCreated(1, b"handle")])
    connection = sqlite3.connect(folder / "journal.db")
    connection.execute("DELETE FROM records WHERE row = 1")
    connection.commit()
    connection.close()
    refused = await run(tmp_path, "serve", "--journal", "runs", "--bind", "tcp://127.0.0.1:0")
    assert refused.code == 3
    assert "rows were removed or added" in refused.err
    refused.check_no_traceback()
    found = await run(tmp_path, "journal", "check", "runs")
    assert found.code == 1
    assert "journal check runs --repair" in found.err
    assert "damaged" in (await run(tmp_path, "journal", "list", "runs")).err
    mended = await run(tmp_path, "journal", "check", "runs", "--repair")
    assert mended.code == 0
    assert "key 'key-1' in namespace 'default': it may have run" in mended.out
    assert "1 keys have lost their names" in mended.out
    assert "resource ab-0: it is destroyed, perhaps once more" in mended.out
    assert "1 resources have lost their names: nobody destroys them" in mended.out
    assert (await run(tmp_path, "journal", "check", "runs", "--json")).last["problems"] == []
