"""What a request costs, counted: the same on any machine, and not more than before."""

import json
import pickle
import shutil
import sys

import pytest

from tests.cost import counted as counting
from tests.cost.counted import bytecodes, counted, instructions, problems, replay
from tests.cost.joined import BATCH, MACHINES, Counter, Joined
from trio_envserve.core.keys import Keys
from trio_envserve.core.router import Router


@pytest.fixture(scope="module")
def record():
    return counted(with_instructions=False)


def quick_record():
    """The same without what grows: its counts are those of a short session."""

    counts = {keyed: bytecodes(keyed=keyed) for keyed in (False, True)}

    def short(in_flight=64, *, done=0, keyed=False):
        return counts[keyed]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting, "bytecodes", short)
        return counted(with_instructions=False)


@pytest.mark.slow
def test_a_request_costs_no_more_than_expected_whatever_is_pending_or_done(record):
    assert record["expected"] is not None, "trio-envserve bench --counted --accept"
    assert record["problems"] == []
    for machine in MACHINES:
        assert (
            record["bytecodes_10000_in_flight"][machine]
            < 1.03 * record["bytecodes_1000_in_flight"][machine]
        )
        assert record["bytecodes_after_20000"][machine] < 1.1 * record["bytecodes"][machine]


def test_the_same_inputs_give_the_same_counts():
    assert bytecodes() == bytecodes()


def test_a_dearer_router_is_noticed(monkeypatch):
    plain = Router.take

    def dearer(self, given):
        for _ in range(50 * BATCH):
            pass
        return plain(self, given)

    as_it_was = quick_record()
    monkeypatch.setattr(Router, "take", dearer)
    found = problems({**as_it_was, "bytecodes": bytecodes()})
    assert any(problem.startswith("the router executes") for problem in found)


def test_dearer_keys_are_noticed(monkeypatch):
    plain = Keys.step

    def dearer(self, *given):
        for _ in range(50):
            pass
        return plain(self, *given)

    as_it_was = quick_record()
    monkeypatch.setattr(Keys, "step", dearer)
    dearest = {"bytecodes": bytecodes(), "bytecodes_keyed": bytecodes(keyed=True)}
    (problem,) = problems({**as_it_was, **dearest})
    assert problem.startswith("the router executes")
    assert "for a keyed request" in problem


@pytest.mark.slow
def test_a_cost_that_grows_with_what_is_pending_is_noticed(monkeypatch):
    plain = Router.take

    def looks_at_all(self, given):
        for session in self.cache.sessions.values():
            for _ in session.entries:
                pass
        return plain(self, given)

    monkeypatch.setattr(Router, "take", looks_at_all)
    found = counted(with_instructions=False)["problems"]
    assert any("with 10,000 in flight" in problem for problem in found)


@pytest.mark.slow
def test_dearer_machine_code_is_noticed(record):
    dearer = {**record, "instructions": 110_000.0, "expected_instructions": 100_000}
    assert problems(dearer) == [
        "the router executes 110000 instructions for a request, 100000 expected"
    ]
    assert problems({**dearer, "instructions": 102_000.0}) == []


def test_another_trace_function_is_given_back():
    def mine(frame, event, argument):
        return None

    before = sys.gettrace()
    sys.settrace(mine)
    try:
        bytecodes()
        assert sys.gettrace() is mine
    finally:
        sys.settrace(before)


def test_a_replayed_router_does_the_same(tmp_path):
    joined = Joined(Counter())
    joined.keep_in_flight(20)
    for _ in range(3):
        joined.turn()
    path = tmp_path / "inputs"
    path.write_bytes(pickle.dumps(joined.inputs))
    assert replay(path, len(joined.inputs)).stats() == joined.router.stats()


def test_accepted_counts_are_expected(monkeypatch, tmp_path):
    record = quick_record()
    path = tmp_path / "counted.json"
    nothing = {"bytecodes": {}, "bytecodes_keyed": {}, "instructions": {}, "tolerance": 0.03}
    path.write_text(json.dumps(nothing))
    monkeypatch.setattr(counting, "EXPECTED", path)
    counting.accept({**record, "instructions": 1234.4})
    again = quick_record()
    assert again["problems"] == []
    assert again["expected"] == pytest.approx(record["bytecodes"], rel=0.01)
    assert again["expected_keyed"] == pytest.approx(record["bytecodes_keyed"], rel=0.01)
    assert again["expected_instructions"] == 1234


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="counts under valgrind")
def test_machine_instructions_are_counted():
    found = instructions()
    assert found is not None
    assert found > 10_000
