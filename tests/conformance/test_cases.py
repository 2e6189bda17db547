"""The cases as they stand: where they come from, and what the page says of them."""

from __future__ import annotations

import re

import pytest

from tests.conformance.pages import PAGE, headings
from trio_envserve.core import messages
from trio_envserve.core.errors import ConfigError, ProtocolError
from trio_envserve.lab.conformance import cases, workers
from trio_envserve.lab.conformance.cases import CASES, SECTIONS, select
from trio_envserve.lab.conformance.environment import OPERATIONS
from trio_envserve.lab.conformance.peer import ConformancePeer
from trio_envserve.lab.conformance.script import Script, cases_of

GUARANTEES = {"wire", *(f"G{n}" for n in range(1, 11))}


def test_each_case_is_from_a_section_of_the_protocol_document():
    assert {case.section for case in CASES} == set(SECTIONS)
    assert [heading for heading in headings() if heading in SECTIONS] == list(SECTIONS)


def test_each_case_says_what_is_right_in_one_sentence():
    assert len({case.name for case in CASES}) == len(CASES) >= 25
    for case in CASES:
        assert re.fullmatch(r"[A-Z][^\n]*[.]", case.line), case.name
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", case.name)
        assert case.guarantee in GUARANTEES
        assert set(case.needs) <= set(OPERATIONS)


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


def test_the_page_has_every_operation_of_the_environment():
    page = PAGE.read_text(encoding="utf-8")
    table = page.partition("| `op` | what it does |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \| ", table, re.MULTILINE) == list(OPERATIONS)


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
