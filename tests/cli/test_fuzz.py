"""The verb ``fuzz``: of ours and of other protocols, by seeds and in every order; figures, a
failure made small, replay, files, mutants, Ctrl-C."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cli.commands import ROOT, Finished, check_nothing_left, forked, run
from trio_envserve.lab.mutants import MUTANTS, NOT_BY_CHANCE
from trio_envserve.lab.simulation.coverage import POSSIBLE
from trio_envserve.lab.simulation.plan import FaultKind
from trio_envserve.retrylab import USUAL
from trio_envserve.retrylab import Fault as FaultOfOthers

pytestmark = pytest.mark.real

MUTANT = "sync-off-by-one"
EXAMPLE = ROOT / "examples" / "kv_store.py"
STORE, FORGETFUL = f"{EXAMPLE}:STORE", f"{EXAMPLE}:FORGETFUL"

NOISY = """
from trio_envserve.retrylab import Actor, Ask, Judge, System

print("imported")

class Noisy(Actor):
    def on_ask(self, request, what):
        print("asked", request)
        try:
            input()
        except EOFError:
            self.tell(request, what)

class Noting(Judge):
    def see(self, event):
        return [] if BROKEN is None else BROKEN[event]

BROKEN = None
NOISY = System(actors={"c0": Noisy}, asks=lambda random: [Ask(1.0, "c0", 7)], judges=[Noting])
"""

UNLIKE = """
import os
from trio_envserve.retrylab import Actor, Ask, Judge, System, Violation

class Unlike(Actor):
    def on_ask(self, request, what):
        self.tell(request, os.getpid())

class Never(Judge):
    def rest(self, at_s):
        return [Violation("nothing", 0.0, "holds")]

UNLIKE = System(actors={"c0": Unlike}, asks=lambda random: [Ask(1.0, "c0", 7)], judges=[Never])
"""


SOON = """
import sys
from trio_envserve.cli import main, render
render.PLAIN_EVERY_S = 0.1
sys.exit(main())
"""
"""The command, whose progress is told ten times a second."""


async def fuzz(folder: Path, *words: str, code: int = 0) -> Finished:
    done = await run(folder, "fuzz", *words)
    assert done.code == code, (done.out, done.err)
    done.check_no_traceback()
    if "--json" in words:
        assert len(done.out.splitlines()) == 1
    return done


# -- by seeds ---------------------------------------------------------------------------


async def test_many_runs_have_figures(tmp_path: Path):
    last = (await fuzz(tmp_path, "--runs", "12", "--seed", "0", "--jobs", "2", "--json")).last
    assert (last["runs"], last["violations"], last["seed"]) == (12, 0, 0)
    assert (last["harsh_runs"], last["failures"]) == (6, [])
    assert len(last["faults"]) == len(FaultKind)
    assert len(last["pairs"]) == len(POSSIBLE)
    least = {"clients": 2, "workers": 2, "requests": 50, "faults": 5}
    assert all(last["least"][name] >= count for name, count in least.items())
    assert last["runs_per_minute"] > 0
    assert last["simulated_hours"] > 0
    assert last["version"]
    assert "commit" in last
    await check_nothing_left(tmp_path)


async def test_a_time_and_a_table(tmp_path: Path):
    done = await fuzz(tmp_path, "--seconds", "0.5", "--harsh", "--jobs", "1")
    assert "fuzz passed" in done.out
    assert "runs a minute" in done.out
    assert "how often each input came to a work in each state" in done.out
    for fault in FaultKind:
        assert fault.value in done.out
    assert "all harsh" in done.err


async def test_seed_is_the_same_run_each_time_with_its_trace(tmp_path: Path):
    first = await fuzz(tmp_path, "--seed", "7", "--json")
    again = await fuzz(tmp_path, "--seed", "7", "--json", "--trace")
    other = await fuzz(tmp_path, "--seed", "8", "--trace")
    assert first.last["digest"] == again.last["digest"]
    assert first.last["digest"] not in other.out
    assert (first.last["harsh"], first.last["runs"], first.last["broken"]) == (True, 1, [])
    assert any("Welcome(" in line for line in again.last["log"])
    assert "Dispatch(" in other.out
    assert "seed 8" in other.out.splitlines()[-1]


@pytest.mark.parametrize(
    ("option", "traced"),
    [
        ("permits", "limit:a"),
        ("hosts", "HostWelcome("),
        ("saves", "SaveAnswer("),
        ("resources", "ResourceAnswer("),
    ],
)
async def test_what_a_seed_has_besides_makes_another_run_of_it(
    tmp_path: Path, option: str, traced: str
):
    done = await fuzz(tmp_path, "--seed", "8", f"--{option}", "--trace")
    assert traced in done.out
    assert f"seed 8 (usual, with {option})" in done.out.splitlines()[-1]
    done = await fuzz(tmp_path, f"--{option}", "--protocol", STORE, "--seed", "8", code=2)
    assert "none of --hosts, --permits" in done.err


async def test_a_mutant_is_caught_shown_kept_and_replayed(tmp_path: Path):
    done = await run(tmp_path, "fuzz", "--mutant", MUTANT, "--save", "kept")
    assert done.code == 0, done.err
    assert "The schedule, shrunk from" in done.out
    assert ": broken ~~~" in done.out
    assert f"--mutant {MUTANT}" in done.out
    assert f"{MUTANT}: caught after" in done.err
    (path,) = (tmp_path / "kept").iterdir()
    clean = await run(tmp_path, "fuzz", "--saved", str(path), "--json")
    assert (clean.code, clean.last["broken"]) == (0, [])
    broken = await run(tmp_path, "fuzz", "--saved", str(path), "--mutant", MUTANT, "--json")
    assert broken.code == 0, "it was caught, as it should be"
    assert broken.last["broken"]
    assert broken.last["failures"][0]["mutant"] == MUTANT
    seed = broken.last["failures"][0]["seed"]
    whole = await run(tmp_path, "fuzz", "--seed", str(seed), "--mutant", MUTANT, "--json")
    assert whole.code == 0
    assert whole.last["digest"] != clean.last["digest"]
    (failure,) = whole.last["failures"]
    assert failure["drawing"]
    assert failure["guarantee"] in ("G2", "G4", "G7", "G8", "G9")


@pytest.mark.slow
async def test_all_mutants_are_caught(tmp_path: Path):
    done = await run(tmp_path, "fuzz", "--mutant", "all", "--json")
    assert done.code == 0, done.err
    assert done.last["caught"] == done.last["count"] == len(MUTANTS) - len(NOT_BY_CHANCE)
    assert done.last["clean_without"]
    for each in done.last["mutants"]:
        assert each["digest"] != each["clean_digest"]


# -- another protocol -------------------------------------------------------------------


async def test_other_protocol_that_holds_has_figures_and_is_exhausted(tmp_path: Path):
    words = ("--protocol", STORE, "--seed", "0", "--runs", "60", "--jobs", "2")
    last = (await fuzz(tmp_path, *words, "--json")).last
    assert (last["runs"], last["violations"], last["failures"]) == (60, 0, [])
    assert (last["protocol"], last["seed"], last["jobs"]) == (STORE, 0, 2)
    assert last["faults"].keys() == {fault.value for fault in FaultOfOthers}
    assert all(last["faults"][fault.value] for fault in USUAL)
    assert last["least"]["requests"] >= 4
    assert last["average"]["faults"] > 0
    assert last["told"]["not told"] == 0
    table = await fuzz(tmp_path, "--protocol", STORE, "--seconds", "0.3")
    assert "fuzz passed (seeds from " in table.out
    assert "requests of a run: average, least" in table.out
    last = (await fuzz(tmp_path, "--protocol", STORE, "--exhaustive", "--json")).last
    assert last["exhausted"]
    assert last["states"] > 100
    assert last["failures"] == []
    await check_nothing_left(tmp_path)


async def test_failure_of_another_protocol_is_found_made_small_drawn_and_replayed(tmp_path: Path):
    words = ("--protocol", FORGETFUL, "--seed", "0", "--runs", "200")
    done = await fuzz(tmp_path, *words, "--save", "kept", code=1)
    (saved,) = (tmp_path / "kept").iterdir()
    assert f"Saved as kept/{saved.name}" in done.out
    assert "breaks at most once; shrinking it" in done.err
    assert done.out.startswith("at most once\n  broken: at ")
    assert "The schedule, shrunk from" in done.out
    assert "at most once: broken ~~~" in done.out
    assert f"trio-envserve fuzz --protocol {FORGETFUL} --seed" in done.out
    assert "fuzz FAILED (seeds from 0)" in done.out
    # It was said to be no saved failure of this system.
    nameless = await fuzz(tmp_path, "--saved", f"kept/{saved.name}", code=2)
    assert f"is a failure of {FORGETFUL}: give --protocol {FORGETFUL}, too" in nameless.err
    (failure,) = (await fuzz(tmp_path, *words, "--jobs", "1", "--json", code=1)).last["failures"]
    assert (failure["guarantee"], failure["requests"]) == ("at most once", 1)
    assert failure["drawing"]
    again = await fuzz(tmp_path, *failure["command"].split()[2:], "--json", code=1)
    assert again.last["failures"] == [failure]
    assert again.last["broken"][0].startswith("at most once at ")
    more = ("--protocol", FORGETFUL, "--seed", "0", "--runs", "40", "--keep-going", "--json")
    last = (await fuzz(tmp_path, *more, code=1)).last
    assert (last["runs"], len(last["failures"])) == (40, 1), "one of each guarantee"
    assert last["violations"] > 3


async def test_what_a_protocol_prints_and_reads_is_not_in_the_way(tmp_path: Path):
    (tmp_path / "noisy.py").write_text(NOISY)
    words = ("fuzz", "--protocol", "noisy:NOISY", "--seed", "1")
    done = await run(tmp_path, *words, "--runs", "3", "--jobs", "1", "--json")
    assert (done.code, done.last["runs"]) == (0, 3)
    assert len(done.out.splitlines()) == 1
    assert "imported" in done.err
    assert done.err.count("asked c0#1") == 4, "the first seed is run twice"


@pytest.mark.parametrize("judges", ["[Never]", "[]"])
async def test_seed_that_differs_in_another_process_is_said(tmp_path: Path, judges: str):
    """Where nothing was broken it was run once, whatever the page says."""
    (tmp_path / "unlike.py").write_text(UNLIKE.replace("[Never]", judges))
    words = ("--protocol", "unlike.py:UNLIKE", "--seed", "1", "--json")
    done = await fuzz(tmp_path, *words, code=2)
    assert "seed 1 is not the same run twice" in done.last["error"]["message"]


async def test_protocol_of_which_nobody_asks_anything_is_said(tmp_path: Path):
    (tmp_path / "idle.py").write_text(NOISY.replace('[Ask(1.0, "c0", 7)]', "[]"))
    for words in (("--seed", "1"), ("--runs", "3")):
        done = await fuzz(tmp_path, "--protocol", "idle.py:NOISY", *words)
        assert "nobody asked for anything: asks of idle.py:NOISY gave no Ask" in done.err


# -- in every order ---------------------------------------------------------------------


async def test_table_for_people_has_the_same_rows_for_ours_and_for_others(tmp_path: Path):
    done = await fuzz(tmp_path, "--exhaustive", "--config", "forged")
    assert "every order passed (forged)" in done.out
    assert "in how many states each input came to a work" in done.out
    assert "forged: every order; " in done.err
    theirs = await fuzz(
        tmp_path, "--exhaustive", "--protocol", f"{ROOT}/examples/kv_store.py:STORE"
    )
    assert theirs.code == 0, theirs.err
    for each in (done, theirs):
        assert "distinct states" in each.out
        assert "whether every state was visited" in each.out


async def test_configuration_has_figures_and_counts_of_pairs(tmp_path: Path):
    last = (await fuzz(tmp_path, "--exhaustive", "--config", "crash", "--json")).last
    assert (last["config"], last["exhausted"]) == ("crash", True)
    assert last["transitions"] > last["states"] > 200
    assert last["depth"] > 10
    assert last["bounds"]["crashes"]
    assert (last["mutant"], last["failures"]) == ("", [])
    assert last["pairs"]["running: outcome from its execution"] > 10
    assert "closed: request" in last["pairs_that_cannot_occur"]


async def test_mutant_is_caught_and_the_way_is_told(tmp_path: Path):
    done = await fuzz(tmp_path, "--exhaustive", "--mutant", "acknowledged-on-arrival")
    assert "crash: every order" in done.err
    assert "caught by G4, after" in done.err
    assert "* asks c0#1: run" in done.out
    assert "c0#1 is acknowledged, and its caller has nothing" in done.out
    assert "every order found a violation (crash)" in done.out
    done = await fuzz(tmp_path, "--exhaustive", "--mutant", "acknowledged-on-arrival", "--json")
    (failure,) = done.last["failures"]
    assert (failure["guarantee"], failure["mutant"]) == ("G4", "acknowledged-on-arrival")
    assert failure["command"].endswith("--config crash --mutant acknowledged-on-arrival")


async def test_mutant_that_does_not_show_is_a_failure(tmp_path: Path):
    done = await fuzz(
        tmp_path, "--exhaustive", "--mutant", "silence-is-death", "--config", "crash", code=1
    )
    assert "NOT CAUGHT" in done.err


# -- files ------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--mutant", MUTANT), 0),
        (("--protocol", FORGETFUL, "--exhaustive"), 1),
        (("--protocol", FORGETFUL, "--runs", "50", "--seed", "0"), 1),
    ],
)
async def test_failure_that_cannot_be_saved_is_shown_all_the_same(
    tmp_path: Path, words: tuple[str, ...], code: int
):
    (tmp_path / "full").symlink_to("/dev/full")
    done = await fuzz(tmp_path, *words, "--save", "full/x", code=code)
    assert "The schedule" in done.out
    assert "Not saved: " in done.out


# -- Ctrl-C ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--runs", "1000000"), "usual and harsh by turns"),
        (("--protocol", STORE, "--runs", "1000000"), "kv_store.py:STORE: seeds from"),
        (("--exhaustive", "--config", "nightly"), "transitions, "),
        (("--protocol", "many.py:STORE", "--exhaustive"), "many.py:STORE: every order"),
    ],
)
async def test_ctrl_c_ends_all_processes_with_the_figures_so_far(
    tmp_path: Path, words: tuple[str, ...], said: str
):
    many = EXAMPLE.read_text().replace("asks=1, seed=1", "asks=3, faults=3, seed=1")
    (tmp_path / "many.py").write_text(many)
    (tmp_path / "soon.py").write_text(SOON)
    async with forked(tmp_path, "fuzz", *words, "--json", module="soon") as fuzzing:
        await fuzzing.said(said)
        await fuzzing.has_taken_signals()
        fuzzing.signal(signal.SIGINT)
        done = await fuzzing.wait()
    assert (done.code, done.last["exit"]) == (130, 130)
    assert done.last["interrupted"]
    assert not done.last.get("exhausted")
    assert "interrupted" in done.err
    done.check_no_traceback()
    await check_nothing_left(tmp_path)
