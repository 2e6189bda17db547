"""Any history of a server, replayed: the same effects, the same state, from any file on."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.recorder.taped import files_of, recorded_simulations, write
from trio_envserve.lab.recording import Player
from trio_envserve.lab.simulation import simulator
from trio_envserve.server.recording import Tape
from trio_envserve.server.recording.masks import Masks
from trio_envserve.server.recording.snapshot import difference, freeze


def state_of(tape: Tape) -> list[object]:
    return freeze(tape.router, tape._masks)


@given(
    seed=st.integers(0, 2**32), harsh=st.booleans(),
    file_bytes=st.sampled_from([2**40, 20_000, 4_000]),
)  # fmt: skip
def test_a_replay_is_identical(seed: int, harsh: bool, file_bytes: int):
    with recorded_simulations(file_bytes) as tapes:
        simulator.run(seed, harsh=harsh)
    for tape in tapes:
        final = state_of(tape)
        step = tape.step
        tape.end()
        files = files_of(tape)
        with tempfile.TemporaryDirectory() as folder:
            path = write(files, Path(folder) / "run.rec")
            check(path, step, final, whole=True)
            for number in range(len(files) - 1, 0, -1):  # the oldest are removed
                path.with_name(f"run.rec.{number}").unlink()
            if len(files) > 1:
                check(path, step, final, whole=False)


def check(path: Path, step: int, final: list[object], *, whole: bool) -> None:
    player = Player(path)
    moments = list(player.moments())
    assert player.difference is None
    assert player.ended
    assert (player.step, player.lost) == (step, 0)
    if whole:
        assert player.identical or not step
        assert player.known_from == 0
        assert [moment.input.step for moment in moments] == list(range(1, step + 1))
    assert player.router is not None
    assert difference(freeze(player.router, Masks()), final) == ""
    assert all(moment.router is player.router for moment in moments)


@pytest.mark.parametrize("seed", [373, 541])
def test_a_malformed_message_with_an_id_inside(seed: int, tmp_path: Path):
    # Bytes that stood where an id does, and were read as something else once masked.
    with recorded_simulations() as tapes:
        simulator.run(seed, harsh=True)
    for tape in tapes:
        final, step = state_of(tape), tape.step
        tape.end()
        check(write(files_of(tape), tmp_path / "run.rec"), step, final, whole=True)


def test_it_is_played_up_to_a_moment(tmp_path: Path):
    with recorded_simulations() as tapes:
        simulator.run(7)
    tapes[0].end()
    path = write(files_of(tapes[0]), tmp_path / "run.rec")
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
    assert none.router is not None
