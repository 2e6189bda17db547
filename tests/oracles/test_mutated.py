"""Recorded runs: given to today's judges again, they show what the world showed them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation.mutate import mutations
from tests.oracles.mutated import MUTANT_EACH, Found, Recorded, drawn, found_by, record, shows
from trio_envserve.core import messages
from trio_envserve.lab.mutants import MUTANTS
from trio_envserve.lab.simulation import judges
from trio_envserve.lab.simulation.simulator import run
from trio_envserve.retrylab.judges import Event

KEYED_ON_DISK = 28
"""Number of a run with keys and a journal."""
SEEN = 94
"""Number of a run of a mutant that is seen."""


def found(recorded: Recorded) -> Found:
    """What today's judges find."""
    return found_by(judges.Judges(recorded.plan), recorded.events)


@pytest.mark.parametrize("number", [0, 1, 4, KEYED_ON_DISK, SEEN, 39])
def test_replayed_events_give_the_recorded_findings(number: int):
    recorded = record(number)
    assert found(recorded) == recorded.found
    assert bool(recorded.found) == (number == SEEN)


def test_a_recorded_run_is_that_of_its_seed():
    recorded, (seed, mutant) = record(KEYED_ON_DISK), drawn(KEYED_ON_DISK)
    ran = run(seed, plan=recorded.plan)
    assert mutant == ""
    assert recorded.events[-1].at_s <= ran.virtual_s
    assert sum(each.kind == "began" for each in recorded.events) == ran.executions


def is_hello(event: Event) -> bool:
    """Whether a server hears a hello, which comes again if it is lost."""
    return event.kind == "heard" and isinstance(event.what[1], messages.Hello)


@pytest.mark.parametrize(
    ("number", "kind"),
    [(0, kind) for kind in ("told", "received", "ended", "breaks", "heard", "said")]
    + [(KEYED_ON_DISK, "wrote")],
)
def test_a_lost_event_is_judged_otherwise(number: int, kind: str):
    recorded = record(number)
    recorded.events.insert(0, Event(0.0, "breaks", "", "", ("G8", "said by the world")))
    before = found(recorded)
    recorded.events.remove(
        next(each for each in recorded.events if each.kind == kind and not is_hello(each))
    )
    assert found(recorded) != before


@pytest.mark.parametrize(
    ("change", "is_seen"),
    [
        ("Book.violation: self.found.append", True),
        ("Wires._promised_gone: text = f'{each.key} runs, and", False),  # it never is, here
    ],
)
def test_changed_judges_are_told_from_those_that_no_run_shows(change: str, is_seen: bool):
    source = Path(judges.__file__).read_text(encoding="utf-8")
    mutation = next(each for each in mutations(source) if each.name.startswith(change))
    assert shows(mutation, [record(SEEN)]) == is_seen


def test_every_fifth_run_is_of_a_mutant_and_all_take_turns():
    runs = [drawn(number) for number in range(MUTANT_EACH * len(MUTANTS))]
    assert [mutant for _, mutant in runs if mutant] == [mutant.name for mutant in MUTANTS]
    plain = [seed for seed, mutant in runs if not mutant]
    assert plain == [*range(len(plain))]
