"""What a tape notes, and what it does when it cannot."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, get_args

import cbor2
import pytest
import trio

from tests.core.test_host_pool import first_hello
from tests.recorder.taped import tape_of, written
from trio_envserve import KeyConflict, Rollout, UnknownKey, open_client, open_server
from trio_envserve.cli.replay import state_of
from trio_envserve.core import messages
from trio_envserve.core.archive import pack
from trio_envserve.core.closing import ClosingStage
from trio_envserve.core.host_link import Item, ItemKind, to_frames
from trio_envserve.core.host_messages import encode
from trio_envserve.core.journal import (
    Closed,
    Commanded,
    Completed,
    Joined,
    Opened,
    Started,
)
from trio_envserve.core.lease import EpochWait, LeaseTerms
from trio_envserve.core.limits import KeyLimits, ServerLimits, WireLimits
from trio_envserve.core.messages import Request, decode
from trio_envserve.core.router_effects import Spawn, ToClient
from trio_envserve.core.router_inputs import (
    AtRest,
    ClientMessage,
    CloseAsked,
    Exited,
    Flushed,
    HeartbeatReceived,
    HolderFound,
    HostMessage,
    HostsBefore,
    HostsRecorded,
    HostsTick,
    Loaded,
    PeerKnown,
    PoolOpened,
    PoolWaits,
    Restored,
    Resume,
    RouterInput,
    Saved,
    SaveFailed,
    Spawned,
    StackTaken,
    Tick,
    TurnOver,
    WorkerMessage,
)
from trio_envserve.core.work import WorkState
from trio_envserve.lab.recording import (
    BadRecording,
    Player,
    RequestName,
    RequestWatch,
    load,
    replay,
)
from trio_envserve.net import MemoryNetwork
from trio_envserve.server.recording.records import state_digest

ROUTE = b"route"


class Bench:
    """A recorded router with one worker and one client, both played by hand."""

    def __init__(
        self, *, bodies: bool = False, hosts: dict[str, Any] | None = None, **limits: Any
    ) -> None:
        self.tape = tape_of(
            new_id=lambda: os.urandom(16), limits=ServerLimits(**limits), bodies=bodies,
            wire=WireLimits(header_bytes=4096), journaled=True, resting=True, **(hosts or {}),
        )  # fmt: skip
        self.now_s = 100.0
        self.sequence = 0
        effects = self.tape.take(PoolOpened({b"d" * 16, b"c" * 16}, self.now_s))
        (self.spawn,) = [each for each in effects if isinstance(each, Spawn)]
        self.tape.take(Spawned(self.spawn.worker, 7))
        self.worker(messages.WorkerHello(2, 7, "e", False, 256))
        self.told: list[Any] = []
        self.client(messages.Hello(2, b"n" * 16, 1, "me", 1 << 20, bytes(16)))
        self.session = self.told[-1].session

    def client(self, message: messages.Message, *bodies: bytes) -> None:
        self.now_s += 0.001
        self.give(ClientMessage(ROUTE, [messages.encode(message), *bodies], self.now_s))

    def worker(self, message: messages.Message, *frames: bytes) -> None:
        self.now_s += 0.001
        start = [self.spawn.worker, self.spawn.incarnation]
        if frames:
            start.append(ROUTE)
        self.give(WorkerMessage([*start, messages.encode(message), *frames], self.now_s))

    def give(self, given: RouterInput) -> None:
        effects = self.tape.take(given)
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
    player = Player(written(bench.tape, folder / "a.rec"))
    for _ in player.moments():
        pass
    return player


RECORDS = (
    Opened(0, b"default", b"a", b"digest", None, 4, 0, b"caller", b"body"),
    Opened(1, b"default", b"b", b"digest", None, 4, 0, b"caller", b"body"),
    Joined(0, b"another"),
    Started(0),
    Started(1),
    Completed(0, (b"header", b"payload")),
    Closed(0),
    Commanded(False, b"default", b"c", b"id", None, True),
)


AT_REST = pack(2, 0.0, 0.0, 9, 9, 1, None, bytes(32), b"default", b"rested") or b""


def test_every_kind_of_input_is_replayed(tmp_path: Path):
    claims = {b"node": "", b"other": "the name is another key's"}
    bench = Bench(
        hosts={
            "lease": LeaseTerms(20.0), "needs": {"gpu": 1.0}, "serves": {"environ": "secret"},
            "claim": lambda route, name: claims[route],
        }
    )  # fmt: skip
    bench.give(HostsBefore([EpochWait(b"b" * 16, 50.0, None)], bench.now_s))
    bench.give(HostsTick(bench.now_s))
    bench.give(TurnOver())
    bench.give(HostsRecorded(""))
    for route in claims:
        bench.give(HostMessage(route, [encode(first_hello("h0", route.ljust(16)))], bench.now_s))
    bench.give(HostMessage(b"node", [b"nonsense"], bench.now_s))
    bench.give(TurnOver())
    bench.give(HostsRecorded("the disk is full"))
    bench.give(Restored(RECORDS, bench.now_s))
    bench.give(AtRest([AT_REST], bench.now_s))
    bench.give(Loaded(0, (b"header", b"payload"), "", bench.now_s))
    bench.give(Loaded(1, (), "it is missing", bench.now_s))
    bench.give(PoolWaits("waiting for nobody"))
    bench.rollout()
    bench.give(HeartbeatReceived(bench.spawn.worker, bench.now_s, 9.0, 1 << 20, "where\nit is"))
    bench.give(HolderFound(bench.spawn.worker, bench.now_s, "ab#1", "where\nit is"))
    bench.client(messages.Query(1, "statistics"))
    bench.client(messages.Query(2, "stack", 0))
    bench.give(StackTaken(bench.spawn.worker, bench.now_s, 0, "where\nit is"))
    bench.give(Tick(bench.now_s + 1))
    bench.give(CloseAsked(bench.now_s + 2, drain_s=1.0))
    bench.give(CloseAsked(bench.now_s + 3, ClosingStage.KILLING))
    bench.give(Exited(bench.spawn.worker, bench.now_s + 4, "it was killed"))
    bench.give(Tick(bench.now_s + 5))
    bench.give(Flushed(bench.now_s + 5))
    bench.give(Resume(bench.now_s + 5))
    bench.give(Saved(0, bench.now_s + 5))
    bench.give(SaveFailed("the disk is full", False, bench.now_s + 5))
    bench.give(PeerKnown(b"route", "trainer", "submit watch", "eval", 0.5))
    player = played(bench, tmp_path)
    assert player.identical
    inputs = list(load(tmp_path / "a.rec"))
    assert {type(each.given) for each in inputs} == set(get_args(RouterInput))
    assert [each.claims for each in inputs if each.claims] == [[""], ["the name is another key's"]]
    assert b"secret" not in (tmp_path / "a.rec").read_bytes()
    assert player.router.starting == "waiting for nobody"
    assert player.at_s == pytest.approx(bench.now_s + 5)


def test_g8_what_a_stranger_sends_in_the_place_of_items_is_a_length(tmp_path: Path):
    """Frames of all kinds of items were written whole, also those of nobody's membership."""
    bench = Bench(hosts={"lease": LeaseTerms(20.0)})
    bench.give(HostsBefore([], bench.now_s))
    large = bytes(1 << 20)
    for kind in ItemKind:
        frames = to_frames(b"m" * 16, 1, [Item(kind, b"w0-1", (large,))])
        bench.give(HostMessage(b"stranger", frames, bench.now_s))
    assert played(bench, tmp_path).identical
    assert os.path.getsize(tmp_path / "a.rec") < 5000


def test_bodies_are_lengths_unless_they_are_asked_for(tmp_path: Path):
    for bodies in (False, True):
        bench = Bench(bodies=bodies)
        bench.rollout(b"a prompt", b"its answer")
        assert played(bench, tmp_path).identical
        data = (tmp_path / "a.rec").read_bytes()
        assert (b"a prompt" in data) is bodies
        assert (b"its answer" in data) is bodies
        inputs = list(load(tmp_path / "a.rec"))
        frames = [
            each.given.frames
            for each in inputs
            if isinstance(each.given, ClientMessage | WorkerMessage)
        ][2:4]
        expected = [b"a prompt", b"its answer"] if bodies else [bytes(8), bytes(10)]
        assert [each[-1] for each in frames] == expected


@pytest.mark.parametrize(
    "hosts",
    [
        {"lease": [], "needs": {}, "claims": False}, {"lease": "", "needs": {}, "claims": False},
        {"lease": [20.0, None, 0.1, "5"], "needs": {}, "claims": False}, {"lease": [20.0]},
        {"lease": [20.0, None, 0.1, 5.0], "needs": {"gpu": "1"}, "claims": False}, [],
        {"lease": [20.0, None, 0.1, 5.0], "needs": [], "claims": 1}, "hosts",
    ],
)  # fmt: skip
def test_a_header_of_no_right_hosts_was_played(hosts: Any, tmp_path: Path):
    bench = Bench(hosts={"lease": LeaseTerms(20.0)})
    path = written(bench.tape, tmp_path / "a.rec")
    whole = path.read_bytes()
    header = cbor2.loads(whole)
    header[3]["hosts"] = hosts
    path.write_bytes(cbor2.dumps(header) + whole[len(cbor2.dumps(cbor2.loads(whole))) :])
    with pytest.raises(BadRecording, match="no right hosts"):
        replay(path)


ODD_OF_CLIENTS: list[list[bytes]] = [
    [], [b"\xff"], [b"x" * 5000, b"y"], [messages.encode(messages.Query(1, "keys")), b"a", b"b"],
    [b"\x81\x18\x53"],
]  # fmt: skip
ODD_OF_WORKERS: list[list[bytes]] = [
    [b"w0-1"], [b"who", b"i" * 16, b"\xff"], [b"w0-1", b"short", b"\xff"],
    [b"w0-1", b"", b"x" * 5000], [b"w0-1", b"i" * 16, b"c", b"\xff", b"body"],
    [b"w0-1", *[b""] * 30],
]  # fmt: skip


def test_odd_messages_are_replayed_as_they_were_refused(tmp_path: Path):
    bench = Bench()
    for frames in ODD_OF_CLIENTS:
        bench.give(ClientMessage(ROUTE, frames, bench.now_s))
    for frames in ODD_OF_WORKERS:
        bench.give(WorkerMessage(frames, bench.now_s))
    # Of this server's own worker, too.
    for frame in (b"\xff", b"x" * 5000, messages.encode(messages.Goodbye(b"s" * 16))):
        own: list[Any] = [
            bench.spawn.worker,
            memoryview(bench.spawn.incarnation),
            memoryview(frame),
        ]
        bench.give(WorkerMessage(own, bench.now_s))
    player = played(bench, tmp_path)
    assert player.identical
    assert player.router.malformed == bench.tape.router.malformed > 5
    assert os.path.getsize(tmp_path / "a.rec") < 5000


def test_what_the_router_raised_is_raised_again(tmp_path: Path):
    bench = Bench()
    bench.rollout()
    with pytest.raises(KeyError):
        bench.give(Exited(b"nobody", bench.now_s, "how"))
    player = played(bench, tmp_path)
    assert isinstance(player.raised, KeyError)
    assert player.difference is None
    assert player.step == bench.tape.step
    assert replay(tmp_path / "a.rec").raised is not None


def test_a_recording_stops_at_its_bound_and_says_so(tmp_path: Path):
    bench = Bench(record_bytes=3000)
    for _ in range(20):
        bench.rollout()
    assert bench.tape.stopped == "it has its 3000 bytes (the limit record_bytes)"
    assert bench.tape.router.works.counters.finished == 20  # the server goes on
    player = played(bench, tmp_path)
    assert 3000 <= (tmp_path / "a.rec").stat().st_size < 3500
    assert player.identical
    assert player.checked == player.step == bench.tape.step
    assert not player.ended
    assert player.stopped == bench.tape.stopped


@pytest.mark.parametrize("keys", [KeyLimits(), KeyLimits(retention_s=1.0, waiters=2)])
def test_the_limits_of_keys_are_those_of_the_recorded_server(keys: KeyLimits, tmp_path: Path):
    tape = tape_of(new_id=lambda: os.urandom(16), keys=keys)
    player = Player(written(tape, tmp_path / "server.rec"))
    assert player.router.accounts.keys == keys


def test_a_disk_that_does_not_keep_up_ends_the_recording(tmp_path: Path):
    bench, full = Bench(record_buffer_bytes=2000), []
    bench.tape.full = lambda: full.append(True)
    for _ in range(20):
        bench.rollout()
    assert full
    player = played(bench, tmp_path)
    assert "the disk does not keep up" in player.stopped
    assert player.identical


def test_what_cannot_be_noted_ends_the_tape_and_not_the_server(tmp_path: Path):
    bench = Bench()
    bench.give(HeartbeatReceived(bench.spawn.worker, bench.now_s, 0.0, 1, "\ud800"))
    assert "cannot be noted" in (bench.tape.stopped or "")
    step = bench.tape.step
    bench.rollout()
    assert bench.tape.router.works.counters.finished == 1
    player = played(bench, tmp_path)
    assert player.identical
    assert player.step == step


# -- keys ----------------------------------------------------------------------------


HANG_S = 60.0


@pytest.fixture(params=[False, True], ids=["lengths", "bodies"])
async def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The recording of two callers: one joins, collides, attaches, cancels and forgets."""
    running, go_on = trio.Event(), trio.Event()

    async def run(rollout: Rollout) -> Any:
        running.set()
        await go_on.wait()
        return rollout.input

    network, path = MemoryNetwork(), tmp_path / "keys.rec"
    with trio.fail_after(HANG_S):
        async with (
            open_server(
                run, bind="memory:s", workers=0, network=network, record=path,
                record_bodies=request.param,
            ) as server,
            open_client(server.address, network=network, caller="first") as first,
            open_client(server.address, network=network, caller="second") as second,
        ):  # fmt: skip
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: first.run_rollout("very private", key="a"))
                await running.wait()
                with pytest.raises(KeyConflict):
                    await second.run_rollout("another", key="a")
                nursery.start_soon(lambda: second.run_rollout("very private", key="a"))
                while (await second.list_keys()).keys[0].waiters < 2:
                    await trio.lowlevel.checkpoint()
                go_on.set()
            assert (await second.attach("a")).value == "very private"
            await first.run_rollout("very private", key="b")
            await first.cancel_key("c")
            await first.forget("b")
            assert isinstance((await second.attach("b")).error, UnknownKey)
    return path


def names(path: Path) -> list[tuple[bytes, int, int]]:
    """The requests that name keys: session, sequence, what each asks."""
    frames = [one.given.frames for one in load(path) if isinstance(one.given, ClientMessage)]
    heard = [decode(bytes(each[0]), most_bytes=1 << 20) for each in frames]
    asked = [m for m in heard if isinstance(m, Request) and m.key is not None]
    return [(m.session, m.sequence, m.act or 0) for m in asked]


def story(path: Path, session: str, sequence: int) -> list[tuple[str, str]]:
    watch = RequestWatch(RequestName(session, sequence))
    for moment in Player(path).moments():
        watch.see(moment)
    return [(each.what.partition(",")[0], each.target) for each in watch.events()]


async def test_keys_are_replayed(path: Path):
    played = replay(path)
    assert played.identical, played.difference
    works = played.router.works
    (kept,) = works.generations.values()
    assert kept.name is not None
    assert (kept.name.key, kept.state) == (b"a", WorkState.COMPLETED)
    assert works.next_number == 2


async def test_the_state_that_is_shown_has_every_key(path: Path):
    (known,) = state_of(replay(path).router)["per_key"]
    assert (known["namespace"], known["key"], known["state"]) == ("default", "a", "completed")
    assert (known["generation"], known["executions"], known["waiters"]) == (0, 1, 0)


async def test_what_differs_in_keys_alone_is_found_out(path: Path):
    router = replay(path).router
    before = state_digest(router)
    (kept,) = router.works.generations.values()
    kept.lost |= {b"a caller of keys"}
    assert state_digest(router) != before


async def test_the_story_of_a_keyed_request_names_its_work(path: Path):
    asked = [name for name in names(path) if name[2] == 0]
    session, sequence, _ = asked[0]
    told = story(path, session.hex(), sequence)
    assert told[0] == ("ask of a key", "router")
    what, target = told[1]
    assert (what.rpartition(" ")[0], target) == ("its work is request", "key")
    assert ("outcome", "client") in told
    own, _, number = what.rpartition(" ")[2].partition("/")
    work = story(path, own, int(number))
    assert [each for each, _ in work] == ["dispatch 0", "outcome 0"]


async def test_commands_and_those_who_attach_have_stories(path: Path):
    begun = {act: story(path, session.hex(), n)[0][0] for session, n, act in names(path)}
    assert [begun[act] for act in range(4)] == [
        "ask of a key", "attach to a key", "cancel of a key", "forget of a key",
    ]  # fmt: skip
