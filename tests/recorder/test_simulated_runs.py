"""Any history of a server, replayed: the same effects and the same state."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.recorder.taped import recorded_simulations, written
from trio_envserve.lab.recording import Player
from trio_envserve.lab.simulation import simulator
from trio_envserve.lab.simulation.plan import brings
from trio_envserve.lab.simulation.target import Protocol
from trio_envserve.server.recording import Tape, records, tape
from trio_envserve.server.recording.records import state_digest

ELASTIC = next(seed for seed in range(1000) if brings("range", seed))
WITH_A_JOURNAL = next(seed for seed in range(1000) if brings("journal", seed))

A_THIRD = max(1, settings().max_examples // 3)


@settings(max_examples=A_THIRD)  # each is a whole run
@given(seed=st.integers(0, 2**32), harsh=st.booleans())
@example(seed=WITH_A_JOURNAL, harsh=True)
@example(seed=ELASTIC, harsh=True)
@example(seed=422, harsh=False)  # pauses, by errors of which only the length was recorded
def test_a_replay_is_identical(seed: int, harsh: bool):
    with pytest.MonkeyPatch.context() as patch, recorded_simulations() as tapes:
        patch.setattr(tape, "STATE_STEPS", 64)
        simulator.run(seed, harsh=harsh)
    assert_replayed(tapes)


@settings(max_examples=A_THIRD)
@given(seed=st.integers(0, 2**32))
def test_a_replay_of_a_server_with_hosts_is_identical(seed: int):
    with pytest.MonkeyPatch.context() as patch, recorded_simulations() as tapes:
        patch.setattr(tape, "STATE_STEPS", 64)
        Protocol(hosts=True).run(seed)
    assert_replayed(tapes)


def assert_replayed(tapes: list[Tape]) -> None:
    """A replay of each does what it did."""
    for each in tapes:
        final, step = state_digest(each.router), each.step
        with tempfile.TemporaryDirectory() as folder:
            player = Player(written(each, Path(folder) / "run.rec"))
            moments = list(player.moments())
        assert player.difference is None
        assert player.ended
        assert player.identical
        assert [moment.input.step for moment in moments] == list(range(1, step + 1))
        assert player.checked == step
        assert state_digest(player.router) == final
        assert all(moment.router is player.router for moment in moments)


def test_it_is_played_up_to_a_moment(tmp_path: Path):
    with recorded_simulations() as tapes:
        simulator.run(7)
    path = written(tapes[0], tmp_path / "run.rec")
    every = [moment.input for moment in Player(path).moments()]
    half = every[len(every) // 2]
    by_step = Player(path)
    assert [m.input.step for m in by_step.moments(until_step=half.step)][-1] == half.step
    by_time = Player(path)
    last = [m.input for m in by_time.moments(until_s=half.at_s)][-1]
    assert last.at_s <= half.at_s < every[last.step].at_s
    assert by_time.identical
    none = Player(path)
    assert list(none.moments(until_step=0)) == []
    assert none.identical is None


def test_a_state_that_differs_without_an_effect_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with recorded_simulations() as tapes:
        simulator.run(7)
    path = written(tapes[0], tmp_path / "run.rec")
    shipped = records.state_digest
    monkeypatch.setattr(records, "state_digest", lambda router: shipped(router)[::-1])
    player = Player(path)
    for _ in player.moments():
        pass
    assert player.difference is not None
    assert player.difference.what == "the state differs"
