"""The verb ``explore``: figures, configurations, mutants, a way to a violation, Ctrl-C."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cli.commands import check_nothing_left, command, run
from trio_envserve.lab.exploration.configurations import ALL

pytestmark = pytest.mark.real


async def test_a_configuration_has_figures(tmp_path: Path):
    done = await run(tmp_path, "explore", "--config", "rerun", "--json")
    assert done.code == 0, done.err
    assert len(done.out.splitlines()) == 1
    last = done.last
    assert (last["config"], last["violations"], last["exhausted"]) == ("rerun", 0, True)
    assert last["transitions"] > last["states"] > 500
    assert last["depth"] > 10
    assert last["bounds"]["crashes"] == 2
    assert (last["mutant"], last["path"], last["violated"]) == ("", [], [])
    assert "exploring rerun: clients 1" in done.err
    done.check_no_traceback()


async def test_a_table_for_people(tmp_path: Path):
    done = await run(tmp_path, "explore", "--config", "forged")
    assert done.code == 0, done.err
    assert "explore passed (forged)" in done.out
    assert "distinct states" in done.out


async def test_callers_that_share_a_key(tmp_path: Path):
    done = await run(tmp_path, "explore", "--config", "keys-rerun")
    assert done.code == 0, done.err
    assert "in how many states each input came to a generation of the key" in done.out
    done = await run(tmp_path, "explore", "--config", "keys-rerun", "--json")
    assert done.last["key_pairs"]["running: its execution has ended"] > 10
    assert "closed: request" in done.last["key_pairs_that_cannot_occur"]


async def test_the_list(tmp_path: Path):
    done = await run(tmp_path, "explore", "--list")
    names = [line.split()[0] for line in done.out.splitlines()[1:]]
    assert names == [each.name for each in ALL]
    done = await run(tmp_path, "explore", "--list", "--json")
    assert (done.code, len(done.out.splitlines())) == (0, 1)
    assert done.last["configurations"]["ci"]["restarts"] == 1


async def test_a_mutant_is_caught_and_the_way_is_told(tmp_path: Path):
    done = await run(tmp_path, "explore", "--mutant", "acknowledged-on-arrival")
    assert done.code == 0, done.err
    assert "exploring crash" in done.err
    assert "caught by G4, after" in done.err
    assert "   1  c0 asks" in done.out
    assert "VIOLATED G4: c0r0 is acknowledged, and its caller has nothing" in done.out
    done = await run(tmp_path, "explore", "--mutant", "acknowledged-on-arrival", "--json")
    assert (done.code, done.last["violations"], done.last["violated"]) == (0, 1, ["G4"])
    assert done.last["path"][-1].startswith("VIOLATED G4")
    assert "the shortest way to it" in done.err


async def test_a_mutant_that_does_not_show_is_a_failure(tmp_path: Path):
    arguments = ("--mutant", "acknowledged-on-arrival", "--config")
    done = await run(tmp_path, "explore", "--mutant", "silence-is-death", "--config", "crash")
    assert done.code == 1
    assert "NOT CAUGHT" in done.err
    done = await run(tmp_path, "explore", *arguments, "no-such")
    assert done.code == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--config", "smal"), "did you mean small?"),
        (("--config", "xyz"), "there are lost, cut"),
        (("--mutant", "silence-is-deaf"), "did you mean silence-is-death"),
        (("--mutant", "window-is-not-kept"), "choose one with --config"),
    ],
)
async def test_wrong_usage(tmp_path: Path, arguments: tuple[str, ...], says: str):
    done = await run(tmp_path, "explore", *arguments, "--json")
    assert done.code == 2
    assert says in done.err
    assert done.last["exit"] == 2
    done.check_no_traceback()


async def test_ctrl_c_tells_how_far_it_was(tmp_path: Path):
    async with command(tmp_path, "explore", "--config", "nightly", "--json") as running:
        await running.said("not visited yet, depth")
        running.signal(signal.SIGINT)
        done = await running.wait()
    assert done.code == 130
    done.check_no_traceback()
    last = done.last
    assert (last["interrupted"], last["exhausted"], last["violations"]) == (True, False, 0)
    assert last["states"] > 0
    assert "interrupted after" in done.err
    await check_nothing_left(tmp_path)
