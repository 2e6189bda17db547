"""The verb ``fuzz --protocol``: another protocol is searched, shown and told as ours is."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cli.commands import ROOT, check_nothing_left, command, run
from trio_envserve.retrylab import USUAL, Fault

pytestmark = pytest.mark.real

EXAMPLE = ROOT / "examples" / "kv_store.py"
STORE, FORGETFUL = f"{EXAMPLE}:STORE", f"{EXAMPLE}:FORGETFUL"

NOISY = """
from trio_envserve.retrylab import Actor, Ask, System, whole

print("imported")

class Noisy(Actor):
    def on_ask(self, request, what):
        print("asked", request)
        try:
            input()
        except EOFError:
            self.tell(request, what)

def judge(history):
    return [] if BROKEN is None else BROKEN[history]

BROKEN = None
NOISY = System(actors={"c0": Noisy}, asks=lambda random: [Ask(1.0, "c0", 7)], judges=[whole(judge)])
"""

SETS = """
from trio_envserve.retrylab import Actor, Ask, System, Violation, whole

class Sets(Actor):
    def on_ask(self, request, what):
        self.tell(request, tuple({str(n) for n in range(50)}))

def judge(history):
    return [Violation("nothing", 0.0, "holds")]

SETS = System(actors={"c0": Sets}, asks=lambda random: [Ask(1.0, "c0", 7)], judges=[whole(judge)])
"""


async def test_a_failure_is_found_made_small_and_drawn(tmp_path: Path):
    done = await run(tmp_path, "fuzz", "--protocol", FORGETFUL, "--seed", "0", "--runs", "200")
    assert done.code == 1, done.err
    assert "breaks at most once; shrinking it" in done.err
    assert done.out.startswith("at most once\n  broken: at ")
    assert "The schedule, shrunk from" in done.out
    assert "at most once: broken ~~~" in done.out
    assert f"trio-envserve fuzz --protocol {FORGETFUL} --seed" in done.out
    assert "fuzz FAILED (seeds from 0)" in done.out
    done.check_no_traceback()


async def test_what_holds_has_figures(tmp_path: Path):
    words = ("fuzz", "--protocol", STORE, "--seed", "0", "--runs", "60", "--jobs", "2")
    done = await run(tmp_path, *words, "--json")
    assert done.code == 0, done.err
    assert len(done.out.splitlines()) == 1
    last = done.last
    assert (last["runs"], last["violations"], last["failures"]) == (60, 0, [])
    assert (last["protocol"], last["seed"], last["jobs"]) == (STORE, 0, 2)
    assert last["faults"].keys() == {fault.value for fault in Fault}
    assert all(last["faults"][fault.value] for fault in USUAL)
    assert last["least"]["requests"] >= 4
    assert last["average"]["faults"] > 0
    assert last["told"]["not told"] == 0
    assert last["version"]
    table = await run(tmp_path, *words)
    assert "fuzz passed (seeds from 0)" in table.out
    assert "requests of a run: average, least" in table.out
    await check_nothing_left(tmp_path)


async def test_a_failure_as_data(tmp_path: Path):
    words = ("fuzz", "--protocol", FORGETFUL, "--seed", "0", "--runs", "200", "--jobs", "1")
    done = await run(tmp_path, *words, "--json")
    assert done.code == 1
    (failure,) = done.last["failures"]
    assert failure["guarantee"] == "at most once"
    assert failure["requests"] == 1
    assert failure["drawing"]
    again = await run(tmp_path, *failure["command"].split()[1:], "--json")
    assert again.code == 1
    assert again.last["failures"] == [failure]
    assert again.last["broken"][0].startswith("at most once at ")


async def test_a_seed_is_the_same_run_each_time_with_its_trace(tmp_path: Path):
    words = ("fuzz", "--protocol", STORE, "--seed", "7")
    first = await run(tmp_path, *words, "--json")
    again = await run(tmp_path, *words, "--json", "--trace")
    shown = await run(tmp_path, *words, "--trace")
    assert [each.code for each in (first, again, shown)] == [0, 0, 0]
    assert first.last["digest"] == again.last["digest"]
    assert any("Do('c" in line for line in again.last["log"])
    assert shown.out.splitlines()[:-1] == again.last["log"]
    assert f"trace {first.last['digest']}" in shown.out.splitlines()[-1]


async def test_a_time(tmp_path: Path):
    done = await run(tmp_path, "fuzz", "--protocol", STORE, "--seconds", "0.3", "--json")
    assert done.code == 0, done.err
    assert done.last["runs"] > 0


async def test_all_failures(tmp_path: Path):
    words = ("fuzz", "--protocol", FORGETFUL, "--seed", "0", "--runs", "40", "--keep-going")
    done = await run(tmp_path, *words, "--json")
    assert done.code == 1
    assert done.last["runs"] == 40
    assert done.last["violations"] > 3
    assert len(done.last["failures"]) == 1, "one of each guarantee"


async def test_what_a_protocol_prints_and_reads_is_not_in_the_way(tmp_path: Path):
    (tmp_path / "noisy.py").write_text(NOISY)
    words = ("fuzz", "--protocol", "noisy:NOISY", "--seed", "1")
    done = await run(tmp_path, *words, "--runs", "3", "--jobs", "1", "--json")
    assert (done.code, done.last["runs"]) == (0, 3)
    assert len(done.out.splitlines()) == 1
    assert "imported" in done.err
    assert done.err.count("asked c0#1") == 4, "the first seed is run twice"


async def test_a_judge_that_raises_is_said_with_its_traceback(tmp_path: Path):
    (tmp_path / "noisy.py").write_text(NOISY.replace("BROKEN = None", "BROKEN = {}"))
    for more in (["--runs", "9"], []):
        words = ("fuzz", "--protocol", "noisy.py:NOISY", "--seed", "1", *more, "--json")
        done = await run(tmp_path, *words)
        assert (done.code, done.last["exit"]) == (2, 2)
        said = done.last["error"]["message"]
        assert said.startswith("the judge raised (seed ")
        assert "noisy.py" in said
        assert "return [] if BROKEN is None else BROKEN[history]" in said
        assert "KeyError" in said or "TypeError" in said
        assert "error: the judge raised" in done.err


async def test_a_run_that_differs_in_another_process_is_said(tmp_path: Path):
    """An actor iterates over a set: hashes of text are others there."""
    (tmp_path / "sets.py").write_text(SETS)
    words = ("fuzz", "--protocol", "sets.py:SETS", "--seed", "1", "--json")
    done = await run(tmp_path, *words, PYTHONHASHSEED="random")
    assert (done.code, done.last["exit"]) == (2, 2)
    assert "seed 1 is not the same run twice" in done.last["error"]["message"]
    fixed = await run(tmp_path, *words, PYTHONHASHSEED="1")
    assert (fixed.code, len(fixed.last["failures"])) == (1, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--protocol", f"{EXAMPLE}:FORGETFULL"], "did you mean FORGETFUL?"),
        (["--protocol", "nosuch.py:STORE"], "no file nosuch.py"),
        (["--protocol", "nosuch:STORE"], "no module 'nosuch'"),
        (["--protocol", "kv_store"], "write file.py:NAME or package.module:NAME"),
        (["--protocol", STORE, "--harsh"], "--protocol has no"),
        (["--protocol", STORE, "--mutant", "all"], "--protocol has no"),
        (["--config", "crash"], "--config is for --exhaustive"),
        (["--protocol", STORE, "--exhaustive", "--seed", "1"], "--exhaustive has no seeds"),
        (["--protocol", STORE, "--runs", "1", "--seconds", "1"], "exclude each other"),
        (["--protocol", STORE, "--trace"], "one run"),
    ],
)
async def test_wrong_usage(tmp_path: Path, arguments: list[str], said: str):
    done = await run(tmp_path, "fuzz", *arguments, "--json")
    assert (done.code, done.last["exit"]) == (2, 2)
    assert said in done.last["error"]["message"]
    done.check_no_traceback()


async def test_ctrl_c_ends_all_processes_with_the_figures_so_far(tmp_path: Path):
    words = ("fuzz", "--protocol", STORE, "--runs", "1000000", "--json")
    async with command(tmp_path, *words) as fuzz:
        await fuzz.said("kv_store.py:STORE: seeds from")
        await fuzz.has_taken_signals()
        fuzz.signal(signal.SIGINT)
        done = await fuzz.wait()
    assert done.code == 130
    assert done.last["interrupted"]
    done.check_no_traceback()
    await check_nothing_left(tmp_path)


async def test_every_order_is_looked_at_and_a_failure_is_saved_and_replayed(tmp_path: Path):
    words = ("fuzz", "--protocol", FORGETFUL, "--exhaustive", "--save", str(tmp_path / "kept"))
    done = await run(tmp_path, *words)
    assert done.code == 1, done.err
    assert "The schedule, a shortest of all, found in" in done.out
    assert "at most once: broken ~~~" in done.out
    (saved,) = (tmp_path / "kept").iterdir()
    assert f"Saved as {saved}" in done.out
    again = await run(tmp_path, "fuzz", "--protocol", FORGETFUL, "--saved", str(saved), "--json")
    assert (again.code, again.last["failures"][0]["saved"]) == (1, str(saved))
    mended = await run(tmp_path, "fuzz", "--protocol", STORE, "--saved", str(saved))
    assert mended.code == 0, mended.err
    assert "at most once holds" in mended.out


async def test_a_system_that_holds_is_exhausted(tmp_path: Path):
    done = await run(tmp_path, "fuzz", "--protocol", STORE, "--exhaustive", "--json")
    assert done.code == 0, done.err
    assert done.last["exhausted"]
    assert done.last["states"] > 100
    assert done.last["failures"] == []


async def test_a_failure_of_a_seed_is_saved_and_one_of_another_version_is_refused(tmp_path: Path):
    words = ("fuzz", "--protocol", FORGETFUL, "--runs", "50", "--save", "kept", "--seed", "0")
    done = await run(tmp_path, *words, "--json")
    assert done.code == 1, done.err
    (failure,) = done.last["failures"]
    saved = tmp_path / failure["saved"]
    saved.write_text(saved.read_text().replace('"format": 2', '"format": 9'))
    again = await run(tmp_path, "fuzz", "--protocol", FORGETFUL, "--saved", str(saved), "--json")
    assert again.code == 2
    assert "it is of format 9, and this version reads 2" in again.last["error"]["message"]


async def test_failure_that_cannot_be_saved_is_shown_all_the_same(tmp_path: Path):
    (tmp_path / "full").symlink_to("/dev/full")
    for words in (("--exhaustive",), ("--runs", "50", "--seed", "0")):
        done = await run(tmp_path, "fuzz", "--protocol", FORGETFUL, *words, "--save", "full/x")
        assert done.code == 1, done.err
        assert "The schedule" in done.out
        assert "Not saved: " in done.out


async def test_ctrl_c_ends_a_search_of_every_order_with_what_it_has(tmp_path: Path):
    many = EXAMPLE.read_text().replace("asks=1, seed=1", "asks=3, faults=3, seed=1")
    (tmp_path / "many.py").write_text(many)
    async with command(tmp_path, "fuzz", "--protocol", "many.py:STORE", "--exhaustive") as fuzz:
        await fuzz.said("many.py:STORE: every order")
        await fuzz.has_taken_signals()
        fuzz.signal(signal.SIGINT)
        done = await fuzz.wait()
    assert done.code == 130
    assert "interrupted" in done.err
    assert "states" in done.out or "no state yet" in done.out
    done.check_no_traceback()
    await check_nothing_left(tmp_path)
