"""Recordings as they are read: a checked-in incident, and files that are damaged."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cbor2
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.recorder.taped import recorded_simulations, written
from trio_envserve import ConfigError
from trio_envserve.core import router as routing
from trio_envserve.core.router import Router
from trio_envserve.core.router_inputs import Exited, PoolOpened, Spawned, Tick
from trio_envserve.lab.recording import (
    BadRecording,
    Player,
    RequestName,
    RequestWatch,
    load,
    replay,
    sequence_text,
)
from trio_envserve.lab.simulation import simulator
from trio_envserve.lab.simulation.plan import brings
from trio_envserve.lab.simulation.target import Protocol
from trio_envserve.server.recording import Tape, records, tape
from trio_envserve.server.recording.records import state_digest

INCIDENT = Path(__file__).parent / "incident.rec"
MEANT = "if the router is meant to do something else now: python tests/recorder/make_incident.py"


def story(path: Path, sequence: int) -> list[tuple[str, str, str]]:
    player, session = Player(path), ""
    for moment in player.moments():
        if moment.router.sessions.known:
            session = next(iter(moment.router.sessions.known)).hex()
            break
    watch = RequestWatch(RequestName(session[:8], sequence))
    for moment in Player(path).moments():
        watch.see(moment)
    assert sequence_text(watch.events(), watch.name).count("\n") == len(watch.events()) + 1
    return [(each.what.partition(",")[0], each.target, each.state) for each in watch.events()]


# -- an incident -----------------------------------------------------------------


def test_an_incident_is_replayed():
    played = replay(INCIDENT)
    assert played.difference is None, (played.difference, MEANT)
    assert played.identical
    assert played.raised is None
    counters = played.router.works.counters
    assert (counters.entered, counters.reruns, counters.lost) == (3, 1, 1)
    assert counters.finished == 3
    assert played.router.pool.restarts == 1


def test_the_story_of_each_request():
    ran_twice, lost, cancelled = (story(INCIDENT, sequence) for sequence in range(3))
    how = "it was ended by SIGKILL"
    assert ran_twice[:7] == [
        ("request", "router", "running"),
        ("dispatch 0", "w0-1", "running"),
        (f"its process has ended: {how}", "router", "running"),
        (f"lost: {how}", "router", "waiting"),
        ("dispatch 0", "w0-2", "running"),
        ("outcome 0", "router", "completed"),
        ("outcome", "client", "completed"),
    ], MEANT
    assert lost[3:5] == [
        (f"lost: {how}", "router", "completed"),
        ("outcome", "client", "completed"),
    ]
    for each in (ran_twice, lost):  # by a finish, or by the next statement
        assert each[-1] in [(f"{what}", "router", "finished") for what in FINISHED]
    assert cancelled[-2:] == [("stop 1", "w0-2", "finished"), ("outcome 1", "router", "finished")]


FINISHED = ("finish", "sync: it is finished")


def test_inputs_are_loaded_without_playing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Router, "__init__", None)
    inputs = list(load(INCIDENT))
    assert [each.step for each in inputs] == list(range(1, len(inputs) + 1))
    assert type(inputs[0].given) is PoolOpened
    assert Spawned in {type(each.given) for each in inputs}
    assert inputs[0].drawn
    assert inputs[0].at_s < inputs[-1].at_s


def test_other_code_is_found_out_where_it_goes_apart(monkeypatch: pytest.MonkeyPatch):
    (lost,) = [each.step for each in load(INCIDENT) if isinstance(each.given, Exited)][:1]
    monkeypatch.setattr("trio_envserve.core.work.Works.may_rerun", lambda works, work: False)
    played = replay(INCIDENT)
    assert played.identical is False
    assert played.difference is not None
    assert played.difference.after <= lost + 20
    assert lost < played.difference.step
    assert "effects differ" in str(played.difference)
    # It goes on: what the other code comes to can be looked at.
    assert played.router.works.counters.lost == 2
    assert replay(INCIDENT, until_step=lost - 1).identical is not False


def draws_fewer_ids(router: Router, given: PoolOpened) -> None:
    router.starting = ""


def draws_more_ids(router: Router, given: Tick) -> None:
    router._time(given.now_s)
    router._new_id()


def raises(router: Router, given: Tick) -> None:
    raise RuntimeError("a flaw")


@pytest.mark.parametrize(
    ("kind", "code", "what"),
    [
        (PoolOpened, draws_fewer_ids, "the router draws fewer ids"),
        (Tick, draws_more_ids, "the router draws more ids"),
        (Tick, raises, "the router raises RuntimeError: a flaw"),
    ],
)
def test_code_that_draws_other_ids_or_raises_is_found_out(
    kind: type, code: Callable[[Router, Any], None], what: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(routing._INPUTS, kind, code)
    played = replay(INCIDENT)
    assert played.difference is not None
    assert played.difference.what == what
    assert isinstance(played.raised, RuntimeError) is (code is raises)


# -- damage ----------------------------------------------------------------------


def header_bytes(path: Path) -> int:
    with path.open("rb") as stream:
        cbor2.CBORDecoder(stream).decode()
        return stream.tell()


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with recorded_simulations() as tapes:
        simulator.run(3)
    return written(tapes[0], tmp_path_factory.mktemp("whole") / "a.rec")


@given(data=st.data())
def test_a_torn_end_is_no_damage(data: st.DataObject, recording: Path):
    whole = recording.read_bytes()
    cut = data.draw(st.integers(header_bytes(recording), len(whole)))
    torn = recording.with_name("torn.rec")
    torn.write_bytes(whole[:cut])
    player = Player(torn)
    count = sum(1 for _ in player.moments())
    assert player.difference is None
    assert player.identical or not player.checks
    assert count == player.step
    assert player.ended == (cut == len(whole))


@given(data=st.data())
def test_damaged_bytes_are_told_or_are_harmless(data: st.DataObject, recording: Path):
    whole = bytearray(recording.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    bad = recording.with_name("bad.rec")
    bad.write_bytes(whole)
    with contextlib.suppress(BadRecording):  # and nothing else is raised
        replay(bad)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"root:x:0:0\n", "is no recording"),
        (cbor2.dumps([1, 2.0, b"", []]), "is no recording"),
        (cbor2.dumps([0, "else", 1, {}]), "is no recording"),
        (
            cbor2.dumps([0, records.NAME, 99, {}]),
            f"has format 99, and this version reads {records.FORMAT}",
        ),
        (cbor2.dumps([0, records.NAME, records.FORMAT]), "its header has no description"),
        (
            cbor2.dumps([0, records.NAME, records.FORMAT, {"epoch": 3}]),
            "no right began_s, time",
        ),
        (cbor2.dumps(cbor2.CBORTag(99, [])), "is no recording"),
    ],
)
def test_what_is_no_recording_is_refused(content: bytes, said: str, tmp_path: Path):
    path = tmp_path / "a.rec"
    path.write_bytes(content)
    with pytest.raises(BadRecording, match=said):
        replay(path)
    with pytest.raises(ConfigError):
        load(path)


def test_a_file_that_is_not_there_or_a_folder_is_refused(tmp_path: Path):
    for path in (tmp_path, tmp_path / "no"):
        with pytest.raises(BadRecording, match="cannot read"):
            replay(path)


def test_damage_in_the_middle_says_where(recording: Path, tmp_path: Path):
    whole = recording.read_bytes()
    for odd in (
        cbor2.dumps([77]),
        cbor2.dumps([6, "no time"]),
        cbor2.dumps([103, 1]),
        cbor2.dumps([1.5]),
        b"\xff",
    ):
        path = tmp_path / "a.rec"
        path.write_bytes(whole + odd + whole)
        with pytest.raises(BadRecording, match=f"damaged at byte {len(whole)}"):
            replay(path)
    path.write_bytes(whole + whole)
    with pytest.raises(BadRecording, match="a second header"):
        replay(path)


# -- names of requests -----------------------------------------------------------


@pytest.mark.parametrize("text", ["1f2e/7", "1F2E#7"])
def test_a_request_is_named_as_in_logs(text: str):
    assert RequestName.parse(text) == ("1f2e", 7)


@pytest.mark.parametrize("text", ["", "7", "/7", "xy/7", "1f2e/", "1f2e/-1", "1f2e/x"])
def test_a_wrong_name_is_refused(text: str):
    with pytest.raises(ConfigError, match="SESSION/SEQUENCE"):
        RequestName.parse(text)


def test_a_request_that_is_not_there_and_one_that_is_two(recording: Path):
    watch = RequestWatch(RequestName("00" * 16, 0))
    with pytest.raises(ConfigError, match="was seen"):
        watch.events()
    watch = RequestWatch(RequestName("", 0))
    for moment in Player(recording).moments():
        watch.see(moment)
    with pytest.raises(ConfigError, match="give more digits"):
        watch.events()


# -- any history ---------------------------------------------------------------------


ELASTIC = next(seed for seed in range(1000) if brings("range", seed))
WITH_A_JOURNAL = next(seed for seed in range(1000) if brings("journal", seed))

A_THIRD = max(1, settings().max_examples // 3)
A_TENTH = max(1, settings().max_examples // 10)


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


@settings(max_examples=A_TENTH)  # each is several servers
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
