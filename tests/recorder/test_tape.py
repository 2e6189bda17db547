"""What a tape notes, and what it does when it cannot."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.recorder.taped import files_of, tape_of, write
from trio_envserve.core import messages
from trio_envserve.core.closing import ClosingStage
from trio_envserve.core.limits import ServerLimits, WireLimits
from trio_envserve.core.lives import Spawn
from trio_envserve.core.router import Router, ToClient
from trio_envserve.lab.recording import Player, load, replay
from trio_envserve.server.recording import Inputs, Tape, records

ROUTE = b"route"


class Bench:
    """A recorded router with one worker and one client, both played by hand."""

    def __init__(self, *, bodies: bool = False, **limits: Any) -> None:
        self.tape = tape_of(
            new_id=lambda: os.urandom(16), limits=ServerLimits(**limits), bodies=bodies,
            wire=WireLimits(header_bytes=4096),
        )  # fmt: skip
        self.now_s = 100.0
        self.sequence = 0
        self.tape.shell_stats = lambda: {"own": 1}
        self.tape.open_pool({b"d" * 16, b"c" * 16}, self.now_s)
        (self.spawn,) = [each for each in self.tape.take() if isinstance(each, Spawn)]
        self.tape.spawned(self.spawn.worker, 7)
        self.worker(messages.WorkerHello(1, 7, "e", False))
        self.told: list[Any] = []
        self.client(messages.Hello(1, b"n" * 16, 1, "me", 1 << 20))
        self.session = self.told[-1].session

    def client(self, message: messages.Message, *bodies: bytes) -> None:
        self.now_s += 0.001
        self.tape.client_message(ROUTE, [messages.encode(message), *bodies], self.now_s)
        self.take()

    def worker(self, message: messages.Message, *frames: bytes) -> None:
        self.now_s += 0.001
        start = [self.spawn.worker, self.spawn.incarnation]
        if frames:
            start.append(ROUTE)
        self.tape.worker_message([*start, messages.encode(message), *frames], self.now_s)
        self.take()

    def take(self) -> None:
        effects = self.tape.take()
        self.told = [
            messages.decode(each.frames[0], most_bytes=9999)
            for each in effects
            if isinstance(each, ToClient)
        ]

    def rollout(self, body: bytes = b"asked", answer: bytes = b"answered") -> None:
        number, self.sequence = self.sequence, self.sequence + 1
        self.client(messages.Request(self.session, number, b"D" * 16, None, 1, None), body)
        self.worker(messages.WorkerOutcome(self.session, number, number, 0, 0.5), answer)
        self.client(messages.Finish(self.session, [number, number + 1]))


def played(bench: Bench, folder: Path) -> Player:
    bench.tape.end()
    player = Player(write(files_of(bench.tape), folder / "a.rec"))
    for _ in player.moments():
        pass
    return player


def test_a_tape_offers_all_inputs_of_a_router_and_notes_each():
    # A new public method of the router must be told apart: an input, or a question.
    questions = {"status", "stats", "take"}
    methods = {
        name
        for name, member in vars(Router).items()
        if inspect.isfunction(member) and not name.startswith("_")
    }
    noted = {kind.name for kind in records.INPUTS.values()} - {"starting"}
    assert methods == noted | questions
    offered = {name for name in vars(Inputs) if not name.startswith("_")} | {"starting"}
    assert offered - {"shell_stats"} == noted | {"take", "starting"}
    for name in noted:
        own, routers = getattr(Tape, name), getattr(Router, name)
        assert list(inspect.signature(own).parameters) == list(
            inspect.signature(routers).parameters
        )


def test_every_kind_of_input_is_replayed(tmp_path: Path):
    bench = Bench()
    bench.tape.starting = "waiting for nobody"
    bench.rollout()
    bench.tape.pulse(bench.spawn.worker, bench.now_s, 9.0, 1 << 20, "where\nit is")
    bench.client(messages.AskStats(1))
    bench.tape.tick(bench.now_s + 1)
    bench.tape.close(bench.now_s + 2, drain_s=1.0)
    bench.tape.close(bench.now_s + 3, ClosingStage.KILLING)
    bench.tape.exited(bench.spawn.worker, bench.now_s + 4, "it was killed")
    bench.tape.tick(bench.now_s + 5)
    bench.tape.flushed(bench.now_s + 5)
    bench.take()
    player = played(bench, tmp_path)
    assert player.identical
    inputs = list(load(tmp_path / "a.rec"))
    assert {each.name for each in inputs} == {kind.name for kind in records.INPUTS.values()}
    (asked,) = [each for each in inputs if each.stats]
    assert asked.stats == {"own": 1}
    assert player.router is not None
    assert player.router.starting == "waiting for nobody"
    assert player.at_s == pytest.approx(bench.now_s + 5)


def test_bodies_are_lengths_unless_they_are_asked_for(tmp_path: Path):
    for bodies in (False, True):
        bench = Bench(bodies=bodies)
        bench.rollout(b"a prompt", b"its answer")
        assert played(bench, tmp_path).identical
        data = (tmp_path / "a.rec").read_bytes()
        assert (b"a prompt" in data) is bodies
        assert (b"its answer" in data) is bodies
        assert bench.session not in data
        assert bench.spawn.incarnation not in data
        assert b"n" * 16 not in data
        frames = [each.arguments[-1] for each in load(tmp_path / "a.rec")][4:6]
        expected = [b"a prompt", b"its answer"] if bodies else [8, 10]
        assert [each[-1] for each in frames] == expected


ODD: list[tuple[str, list[bytes]]] = [
    ("client_message", []),
    ("client_message", [b"\xff"]),
    ("client_message", [b"x" * 5000, b"y"]),
    ("client_message", [messages.encode(messages.AskStats(1)), b"a", b"b"]),
    ("client_message", [b"\x81\x18\x53"]),
    ("worker_message", [b"w0-1"]),
    ("worker_message", [b"who", b"i" * 16, b"\xff"]),
    ("worker_message", [b"w0-1", b"short", b"\xff"]),
    ("worker_message", [b"w0-1", b"", b"x" * 5000]),
    ("worker_message", [b"w0-1", b"i" * 16, b"c", b"\xff", b"body"]),
    ("worker_message", [b"w0-1", *[b""] * 30]),
]


def test_odd_messages_are_replayed_as_they_were_refused(tmp_path: Path):
    bench = Bench()
    for name, frames in ODD:
        given: Callable[..., None] = getattr(bench.tape, name)
        given(*([ROUTE] if name == "client_message" else []), frames, bench.now_s)
        bench.take()
    # Of this server's own worker, too.
    for frame in (b"\xff", b"x" * 5000, messages.encode(messages.Goodbye(b"s" * 16))):
        own: list[Any] = [
            bench.spawn.worker,
            memoryview(bench.spawn.incarnation),
            memoryview(frame),
        ]
        bench.tape.worker_message(own, bench.now_s)
        bench.take()
    player = played(bench, tmp_path)
    assert player.identical
    assert player.router is not None
    assert player.router.malformed == bench.tape.router.malformed > 5
    assert os.path.getsize(tmp_path / "a.rec") < 5000


def test_what_the_router_raised_is_raised_again(tmp_path: Path):
    bench = Bench()
    bench.rollout()
    with pytest.raises(KeyError):
        bench.tape.exited(b"nobody", bench.now_s, "how")
    player = played(bench, tmp_path)
    assert isinstance(player.raised, KeyError)
    assert player.difference is None
    assert player.step == bench.tape.step
    assert replay(tmp_path / "a.rec").raised is not None


def test_too_much_that_waits_makes_a_gap_and_a_new_beginning(tmp_path: Path):
    bench = Bench(record_buffer_bytes=2000)
    full = 0

    def count() -> None:
        nonlocal full
        full += 1

    bench.tape.full = count
    for _ in range(20):
        bench.rollout()
    assert full
    before = files_of(bench.tape)[0]
    for _ in range(3):
        bench.rollout()
    bench.tape.end()
    path = tmp_path / "a.rec"
    path.write_bytes(before + files_of(bench.tape)[0])
    player = Player(path)
    moments = list(player.moments())
    assert player.identical
    assert player.ended
    assert player.lost > 10
    assert player.inputs + player.lost == player.step == bench.tape.step
    assert moments[-1].router is not None
    assert moments[-1].router.cache.counters.finished == 23


def test_a_gap_that_lasts_to_the_end_is_told(tmp_path: Path):
    bench = Bench(record_buffer_bytes=2000)
    for _ in range(20):
        bench.rollout()
    player = played(bench, tmp_path)
    assert player.ended
    assert player.router is None
    assert player.step == bench.tape.step
    assert player.lost > 10


def test_files_are_turned_and_each_begins_with_a_state(tmp_path: Path):
    bench = Bench(record_file_bytes=1500)
    for _ in range(50):
        bench.rollout()
    bench.tape.end()
    files = files_of(bench.tape)
    assert len(files) > 5
    assert max(map(len, files)) < 1500 + 6000
    path = write(files, tmp_path / "a.rec")
    assert replay(path).inputs == bench.tape.step
    assert replay(path).identical
    alone = write(files[-1:], tmp_path / "b.rec")
    assert replay(alone).identical
    middle = Player(tmp_path / "a.rec.3")
    assert len(middle.files) == len(files) - 3
    assert all(moment.router is not None for moment in middle.moments())
    assert not middle.ended


def test_a_state_that_is_too_large_comes_later(tmp_path: Path):
    bench = Bench(record_file_bytes=1500, record_state_objects=3)
    for number in range(20):
        request = messages.Request(bench.session, number, b"D" * 16, None, 1, None)
        bench.client(request, b"body")
    files = files_of(bench.tape)
    bench.client(messages.Goodbye(bench.session))  # all are gone, but what still runs
    for number in range(20):
        bench.worker(messages.WorkerOutcome(bench.session, number, number, 0, 0.5), b"late")
    bench.tape.end()
    more = files_of(bench.tape)
    files = [*files[:-1], files[-1] + more[0], *more[1:]]
    assert replay(write(files, tmp_path / "a.rec")).identical
    alone = Player(write(files[-1:], tmp_path / "b.rec"))
    moments = list(alone.moments())
    assert moments[0].router is None
    assert moments[-1].router is not None
    assert alone.known_from
    assert alone.identical


def test_what_cannot_be_noted_ends_the_tape_and_not_the_server():
    bench = Bench()
    bench.tape.pulse(bench.spawn.worker, bench.now_s, 0.0, 1, "\ud800")
    assert "cannot be encoded" in bench.tape.failed
    step = bench.tape.step
    bench.rollout()
    assert bench.tape.router.cache.counters.finished == 1
    assert bench.tape.step - step <= 3
    bench.tape.end()

    bench = Bench(record_file_bytes=1000)
    bench.tape.router.force.stats[b"w"] = {"odd": object()}
    for _ in range(10):
        bench.rollout()
    assert "no place for" in bench.tape.failed
    assert bench.tape.router.cache.counters.finished == 10
