"""The cases as they stand: their words, their steps, and which are chosen."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from trio_envserve.core import messages
from trio_envserve.core.errors import ConfigError, ProtocolError
from trio_envserve.lab.conformance import cases, workers
from trio_envserve.lab.conformance.cases import CASES, select
from trio_envserve.lab.conformance.environment import OPERATIONS
from trio_envserve.lab.conformance.findings import Case
from trio_envserve.lab.conformance.peer import ConformancePeer
from trio_envserve.lab.conformance.script import Script, cases_of
from trio_envserve.lab.conformance.workers import WORKER_CASES

GUARANTEES = {"wire", *(f"G{n}" for n in range(1, 11))}


@pytest.mark.parametrize(
    ("cases", "needs"), [(CASES, OPERATIONS), (WORKER_CASES, ("long", "failing"))]
)
def test_each_case_says_what_is_right_in_one_sentence(cases: Sequence[Case], needs: Sequence[str]):
    assert len({case.name for case in cases}) == len(cases) >= 20
    for case in cases:
        assert re.fullmatch(r"[A-Z][^\n]*[.]", case.line), case.name
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", case.name)
        assert case.guarantee in GUARANTEES
        assert set(case.needs) <= set(needs)


@pytest.mark.parametrize(
    ("table", "stage"), [(cases.SCRIPTS, cases.CaseStage), (workers.SCRIPTS, workers.WorkerBench)]
)
def test_each_step_of_a_script_is_a_word(table: str, stage: type):
    scripts = [each.main for each in cases_of(table)]
    assert scripts
    words = {step.word for each in scripts if isinstance(each, Script) for step in each.steps}
    assert {
        word for word in words if not (hasattr(stage, word) or hasattr(ConformancePeer, word))
    } == set()


def test_every_guarantee_has_cases_through_the_proxy_or_not():
    assert {case.guarantee for case in CASES} == GUARANTEES
    assert sum(case.faults for case in CASES) >= 5


@pytest.mark.parametrize("vector", cases.VECTORS["malformed"], ids=lambda each: each["why"])
def test_malformed_request_was_sent_without_a_body_which_alone_is_malformed(vector: dict[str, str]):
    frames = cases.malformed_frames(vector)
    with pytest.raises(ProtocolError) as raised:
        messages.read(frames, most_bytes=1 << 20)
    assert not str(raised.value).endswith("frames")


def test_cases_are_chosen_by_pattern():
    names = [case.name for case in select(["a-cancel-*", "*deadline*"])]
    assert "a-cancel-stops-what-runs" in names
    assert "a-deadline-stops-what-runs" in names
    assert "a-hello-gets-a-welcome" not in names
    assert list(select()) == list(CASES)
    assert not any(case.faults for case in select(faults=False))
    with pytest.raises(ConfigError, match="no case matches 'a-cancle'"):
        select(["*", "a-cancle"])
