"""Stored traces: replayed, they show today's judges what the world showed them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mutation.mutate import mutations
from tests.oracles.judge import Pair, all_compared, compared, found_today
from tests.oracles.mutated import prepared, shows
from tests.oracles.traces import (
    MUTANT_EACH,
    Trace,
    drawn,
    read_directory,
    record,
    write_file,
)
from trio_envserve.lab.mutants import MUTANTS
from trio_envserve.lab.simulation import judges
from trio_envserve.lab.simulation.plan import is_harsh
from trio_envserve.lab.simulation.simulator import run

KEYED_ON_DISK = 28
"""Number of a run with keys and a journal."""
SEEN = 94
"""Number of a run of a mutant that is seen."""


def test_a_recorded_run_is_that_of_its_seed():
    trace = record(drawn(KEYED_ON_DISK))
    ran = run(trace["seed"], harsh=is_harsh(trace["seed"]))
    assert trace["events"][-1][0] <= ran.virtual_s
    assert sum(kind == "began" for _, kind, *_ in trace["events"]) == ran.executions
    assert trace["violations"] == []


@pytest.mark.parametrize("number", [0, 1, 4, KEYED_ON_DISK, SEEN, 39])
def test_replayed_events_give_the_recorded_findings(number: int):
    trace = record(drawn(number))
    assert found_today(trace) == trace["violations"]


def test_files_hold_traces_as_they_were_recorded(tmp_path: Path):
    broken, size = write_file(tmp_path, SEEN - 1, 2)
    assert broken == 1
    assert 0 < size < 500_000
    one, mutant = read_directory(tmp_path)
    assert (one["run"], one["mutant"]) == (SEEN - 1, "")
    assert (mutant["run"], mutant["mutant"]) == (SEEN, "every-lost-session-was-settled")
    assert [each.text for each in all_compared(tmp_path, "", 1)] == ["", ""]


HELLO = b"\x87\x00"
"""How a hello begins on the wire."""


def is_hello(event: list[Any]) -> bool:
    """Whether a server hears a hello, which comes again if it is lost."""
    return event[1] == "heard" and bytes(event[4][1][1][:2]) == HELLO


def without(trace: Trace, name: str) -> Trace:
    """A trace that has lost its first event of this name, but for hellos."""
    events = trace["events"]
    at = next(at for at, e in enumerate(events) if e[1] == name and not is_hello(e))
    return {**trace, "events": events[:at] + events[at + 1 :]}


@pytest.mark.parametrize(
    ("number", "name"),
    [(0, name) for name in ("told", "received", "ended", "breaks", "heard", "said")]
    + [(KEYED_ON_DISK, "wrote")],
)
def test_a_lost_event_is_judged_otherwise(number: int, name: str):
    trace = record(drawn(number))
    trace["events"].insert(0, [0.0, "breaks", "", "", ["G8", "said by the world"]])
    trace["violations"].insert(0, ["G8", 0.0, "said by the world", ""])
    assert compared(trace, None).text == ""
    assert compared(without(trace, name), None).text != ""


@pytest.mark.parametrize(
    ("change", "is_seen"),
    [
        ("Book.violation: self.found.append", True),
        ("Wires._promised_gone: text = f'{each.key} runs, and", False),  # it never is, here
    ],
)
def test_changed_judges_are_told_from_those_that_no_trace_shows(change: str, is_seen: bool):
    source = Path(judges.__file__).read_text(encoding="utf-8")
    mutation = next(each for each in mutations(source) if each.name.startswith(change))
    assert shows(mutation, [prepared(record(drawn(SEEN)))]) == is_seen


def blind(trace: Trace) -> Iterator[Pair]:
    """Judges that find nothing but what is not there."""
    yield "G99", ""


def test_other_judges_are_compared_by_guarantee_and_key():
    trace = record(drawn(SEEN))
    text = compared(trace, blind).text
    assert "lost [('G" in text
    assert "new [('G99', '')]" in text
    same = compared(trace, lambda trace: [(each[0], each[3]) for each in trace["violations"]])
    assert same.text == ""


def test_every_fifth_run_is_of_a_mutant_and_all_take_turns():
    runs = [drawn(number) for number in range(MUTANT_EACH * len(MUTANTS))]
    mutants = [each.mutant for each in runs if each.mutant]
    assert mutants == [mutant.name for mutant in MUTANTS]
    plain = [each.seed for each in runs if not each.mutant]
    assert plain == [*range(len(plain))]
