"""``fuzz --exhaustive``: figures, configurations, mutants, a way to a violation, Ctrl-C."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cli.commands import ROOT, Finished, check_nothing_left, command, run

pytestmark = pytest.mark.real


async def search(folder: Path, *words: str) -> Finished:
    return await run(folder, "fuzz", "--exhaustive", *words)


async def test_configuration_has_figures(tmp_path: Path):
    done = await search(tmp_path, "--config", "rerun", "--json")
    assert done.code == 0, done.err
    assert len(done.out.splitlines()) == 1
    last = done.last
    assert (last["config"], last["exhausted"]) == ("rerun", True)
    assert last["transitions"] > last["states"] > 500
    assert last["depth"] > 10
    assert last["bounds"]["crashes"] == 2
    assert (last["mutant"], last["failures"]) == ("", [])
    assert "rerun: every order; clients 1" in done.err
    done.check_no_traceback()


async def test_table_for_people_has_the_same_rows_for_ours_and_for_others(tmp_path: Path):
    done = await search(tmp_path, "--config", "forged")
    assert done.code == 0, done.err
    assert "every order passed (forged)" in done.out
    theirs = await search(tmp_path, "--protocol", f"{ROOT}/examples/kv_store.py:STORE")
    assert theirs.code == 0, theirs.err
    for each in (done, theirs):
        assert "distinct states" in each.out
        assert "whether every state was visited" in each.out


async def test_callers_that_share_a_key_have_a_table_of_pairs(tmp_path: Path):
    done = await search(tmp_path, "--config", "keys-rerun")
    assert done.code == 0, done.err
    assert "in how many states each input came to a generation of the key" in done.out
    done = await search(tmp_path, "--config", "keys-rerun", "--json")
    assert done.last["key_pairs"]["running: its execution has ended"] > 10
    assert "closed: request" in done.last["key_pairs_that_cannot_occur"]


async def test_mutant_is_caught_and_the_way_is_told(tmp_path: Path):
    done = await search(tmp_path, "--mutant", "acknowledged-on-arrival")
    assert done.code == 0, done.err
    assert "crash: every order" in done.err
    assert "caught by G4, after" in done.err
    assert "* asks c0#1: run" in done.out
    assert "VIOLATED G4: c0#1 is acknowledged, and its caller has nothing" in done.out
    assert "every order found a violation (crash)" in done.out
    done = await search(tmp_path, "--mutant", "acknowledged-on-arrival", "--json")
    (failure,) = done.last["failures"]
    assert (done.code, failure["guarantees"]) == (0, ["G4"])
    assert failure["path"][-1].startswith("VIOLATED G4")


async def test_mutant_that_does_not_show_is_a_failure(tmp_path: Path):
    done = await search(tmp_path, "--mutant", "silence-is-death", "--config", "crash")
    assert done.code == 1
    assert "NOT CAUGHT" in done.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--config", "smal"), "did you mean small?"),
        (("--config", "xyz"), "there are lost, cut"),
        (("--mutant", "silence-is-deaf"), "did you mean silence-is-death"),
        (("--mutant", "window-is-not-kept"), "choose one with --config"),
        (("--mutant", "all"), "takes one mutant"),
        (("--seed", "1"), "--exhaustive has no seeds"),
        (("--config", "crash", "--protocol", "kv_store.py:STORE"), "without --protocol"),
    ],
)
async def test_wrong_usage(tmp_path: Path, arguments: tuple[str, ...], says: str):
    done = await search(tmp_path, *arguments, "--json")
    assert done.code == 2
    assert says in done.err
    assert done.last["exit"] == 2
    done.check_no_traceback()


async def test_ctrl_c_tells_how_far_it_was(tmp_path: Path):
    words = ("fuzz", "--exhaustive", "--config", "nightly", "--json")
    async with command(tmp_path, *words) as running:
        await running.said("transitions, ")
        running.signal(signal.SIGINT)
        done = await running.wait()
    assert done.code == 130
    done.check_no_traceback()
    last = done.last
    assert (last["interrupted"], last["exhausted"], last["failures"]) == (True, False, [])
    assert last["states"] > 0
    assert "interrupted; not every state" in done.err
    await check_nothing_left(tmp_path)
