"""Three hosts of one router that are cut off, half cut off, and asleep: real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from trio_envserve.core.terms import Verdict
from trio_envserve.lab.apart.asleep import Boottime, may_build
from trio_envserve.lab.apart.environment import Apart, is_live, read_runs, ticks_of
from trio_envserve.lab.apart.judge import Told, judge
from trio_envserve.lab.apart.run import ASLEEP, NAMES, Options, run
from trio_envserve.lab.apart.wires import may_have_namespaces

HANG_S = 600.0
FENCE_S = 5.0
"""A host whose process gets no processor for so long is lost, though nothing cuts it: then it
is no problem, but where it goes on and on nobody is ever ready."""
VALUE = Told(None, "", rerun=False)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("namespaces", [False, True], ids=["relays", "namespaces"])
async def test_whatever_is_cut_or_asleep_no_request_runs_twice_at_once(
    tmp_path: Path, namespaces: bool
) -> None:
    if namespaces and not may_have_namespaces():
        pytest.skip("needs root and ip")
    options = Options(
        rollouts=200, cut_s=8.0, fence_s=FENCE_S, namespaces=namespaces, shimmed=may_build()
    )
    with trio.fail_after(HANG_S):
        judged, seen = await run(options, tmp_path)
    assert judged.problems == []
    assert seen.lost == seen.back == set(NAMES)
    assert judged.values + judged.may_have_run == 200
    assert judged.again


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.skipif(not may_build(), reason="needs a C compiler")
async def test_a_lease_by_a_clock_that_stands_still_in_sleep_is_found_out(tmp_path: Path) -> None:
    """What ran before the sleep is still there when it is started again elsewhere."""
    options = Options(
        rollouts=200, cut_s=30.0, fence_s=FENCE_S, shimmed=True, boottime=Boottime.STANDS_STILL,
        harmed=(ASLEEP,),
    )  # fmt: skip
    with trio.fail_after(HANG_S):
        judged, seen = await run(options, tmp_path)
    assert ASLEEP in seen.lost
    assert any("two live executions" in problem for problem in judged.problems)


def write(folder: Path, key: str, *runs: str) -> None:
    (folder / f"{key}.runs").write_text("".join(f"{run}\n" for run in runs))


def test_the_judge_finds_what_is_wrong(tmp_path: Path) -> None:
    once = '{"began": 0, "pid": 1, "ticks": 1, "live": []}'
    write(tmp_path, "twice", once, once)
    write(tmp_path, "both", once, '{"began": 1, "pid": 1, "ticks": 1, "live": [0]}')
    write(tmp_path, "ran", once)
    write(tmp_path, "good", once)
    told = {
        "twice": VALUE,
        "both": VALUE._replace(rerun=True),
        "ran": Told(Verdict.DID_NOT_RUN, "it did not", rerun=False),
        "never": VALUE,
        "whose": Told(Verdict.MAY_HAVE_RUN, "on worker w0-1@right", rerun=False),
        "lost": Told(Verdict.MAY_HAVE_RUN, "on worker w0-1@cut", rerun=False),
        "failed": Told(Verdict.RAN_AND_FAILED, "it raised", rerun=False),
        "good": VALUE,
    }
    judged = judge(tmp_path, told, 9, lost={"cut"})
    about = [problem.partition(":")[0] for problem in judged.problems]
    assert about == [
        "9 were asked, 8 were answered", "twice", "both", "ran", "never", "whose", "failed",
    ]  # fmt: skip
    assert (judged.values, judged.may_have_run, judged.again) == (4, 2, 2)


def test_a_line_that_a_death_has_cut_off_is_none(tmp_path: Path) -> None:
    path = tmp_path / "k.runs"
    path.write_text('{"ended": 0}\n{"beg')
    assert read_runs(path) == [{"ended": 0}]
    assert read_runs(tmp_path / "none.runs") == []


def test_a_process_is_live_until_it_is_reaped() -> None:
    assert is_live(1, ticks_of(1))
    assert not is_live(1, ticks_of(1) + 1), "another one that has its id"
    assert ticks_of(2**30) == -1
    assert Apart("x").rerun is False
