"""What a server writes of its hosts, says to them and hears of them, without sockets."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from tests.core.test_host_pool import first_hello
from trio_envserve import ServerLimits, ServerStartError
from trio_envserve.core.host_messages import (
    HostAnswer,
    HostBeat,
    HostLeaves,
    HostRefused,
    HostWelcome,
    decode,
    encode,
)
from trio_envserve.core.host_pool import Hosts
from trio_envserve.core.lease import EpochWait, LeaseTerms
from trio_envserve.core.router import Router
from trio_envserve.core.router_inputs import (
    HostsBefore,
    HostsDead,
    HostsTick,
    PoolOpened,
    RouterInput,
    Tick,
)
from trio_envserve.net.background import unwrap_single
from trio_envserve.server import hosts as hosts_module
from trio_envserve.server.hosts import EpochRecords, HostAuthenticator, HostsShell
from trio_envserve.server.shell import Server

EPOCH, BEFORE, OTHER = b"e" * 16, b"b" * 16, b"o" * 16
T1, T2, T3 = b"1" * 16, b"2" * 16, b"3" * 16
TERMS = LeaseTerms(20.0)


# -- what a later server reads ------------------------------------------------------------


@pytest.fixture
def locks(tmp_path: Path) -> list[Path]:
    return [tmp_path / "address.epochs", tmp_path / "epochs.lock"]


@pytest.mark.parametrize(
    "waits",
    [
        [],
        [EpochWait(EPOCH, 31.5)],
        [EpochWait(EPOCH, 0.1, frozenset())],
        [EpochWait(EPOCH, 31.5, frozenset([T1, T2])), EpochWait(BEFORE, 7.0)],
    ],
)
def test_a_record_is_read_as_it_was_written_until_it_is_removed(
    locks: list[Path], waits: list[EpochWait]
) -> None:
    records = EpochRecords(locks)
    assert records.read() == []
    records.write(waits)
    found = sorted(each.name for each in locks[0].parent.iterdir())
    assert found == ["address.hosts", "epochs.hosts"]
    for some in (locks, locks[:1], locks[1:]):
        assert EpochRecords(some).read() == waits
    records.clear()
    assert records.read() == []
    records.clear()


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ((1.0, None), (2.0, None), (2.0, None)),
        ((1.0, {T1}), (1.0, {T2}), (1.0, {T1, T2})),
        ((1.0, set()), (3.0, set()), (3.0, set())),
        ((2.0, {T1}), (1.0, None), (2.0, None)),
    ],
)
def test_of_two_records_of_an_epoch_neither_is_forgotten(
    locks: list[Path], one: Any, other: Any, both: Any
) -> None:
    """Also where a server was killed before it had written the second file."""

    def wait(wait_s: float, memberships: set[bytes] | None) -> EpochWait:
        return EpochWait(EPOCH, wait_s, None if memberships is None else frozenset(memberships))

    for first, second in ((one, other), (other, one)):
        EpochRecords(locks[:1]).write([wait(*first)])
        EpochRecords(locks[1:]).write([wait(*second)])
        assert EpochRecords(locks).read() == [wait(*both)]


def test_a_record_is_whole_on_the_disk_before_it_counts(
    locks: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    record, folder = locks[0].with_suffix(".hosts"), locks[0].parent
    synced: list[str] = []
    descriptors: list[int] = []
    fstat = os.fstat

    def fsync(descriptor: int) -> None:
        about = fstat(descriptor)
        if about.st_ino == folder.stat().st_ino:
            assert record.exists()
            synced.append("folder")
            descriptors.append(descriptor)
            if len(synced) > 2:
                raise OSError(28, "No space left on device")
        else:
            assert about.st_size == len(f"{EPOCH.hex()} 31.5\n")
            if not synced:
                assert not record.exists()
            synced.append("file")

    monkeypatch.setattr(os, "fsync", fsync)
    records = EpochRecords(locks[:1])
    records.write([EpochWait(EPOCH, 31.5)])
    assert synced == ["file", "folder"]
    with pytest.raises(ServerStartError, match=r"hosts cannot be written: No space left"):
        records.write([EpochWait(EPOCH, 31.5)])
    for descriptor in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            fstat(descriptor)


def test_a_record_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ServerStartError, match=r"gone/a\.hosts cannot be written: No such file"):
        EpochRecords([tmp_path / "gone" / "a.lock"]).write([])


@pytest.mark.parametrize("text", ["nonsense", "00 1.0\n", "xy 1.0\n", f"{EPOCH.hex()} soon\n", "ä"])
def test_a_record_that_cannot_be_read_is_no_record_of_nothing(locks: list[Path], text: str) -> None:
    locks[0].with_suffix(".hosts").write_text(text)
    with pytest.raises(ServerStartError, match=r"address\.hosts"):
        EpochRecords(locks).read()


# -- the keys of hosts --------------------------------------------------------------------


class Keys:
    """A authenticator, and the socket that knows whose connection is whose."""

    def __init__(self) -> None:
        self.refused: dict[bytes, str] = {}
        self.named: dict[str, bytes] = {}
        self.closed: list[tuple[bytes, str]] = []

    def admit_host(self, public: bytes) -> str:
        return self.refused.get(public, "")

    def refuse_name(self, public: bytes, name: str) -> str:
        return "" if self.named.get(name, public) == public else "another key's file has it"

    def name_of(self, public: bytes) -> str:
        return public.decode()

    def peer_key(self, route: bytes) -> bytes:
        return b"key of " + route

    def close_peer(self, route: bytes, why: str) -> None:
        self.closed.append((route, why))


def opened(*routes: bytes) -> tuple[Any, HostAuthenticator]:
    """The door behind which these hosts are."""
    keys: Any = Keys()
    door = HostAuthenticator(keys)
    door.on_peer(b"early", "a place")
    door.open(keys)
    for route in routes:
        door.on_peer(route, "a place")
    return keys, door


def test_only_a_host_whose_key_was_taken_away_loses_its_connection() -> None:
    keys, door = opened(b"a", b"b", b"gone")
    door.on_peer(b"gone", None)
    door.on_peer(b"gone", None)
    door.look()
    assert keys.closed == []
    keys.refused = {b"key of b": "revoked", b"key of gone": "revoked", b"key of early": "no"}
    assert door.admit(b"key of b") == "revoked"
    door.look()
    door.look()
    assert keys.closed == [(b"b", "revoked")]


async def test_a_key_said_hello_as_the_host_of_another_one_and_kept_it_out() -> None:
    """Also while that one was away: it could not come back."""
    keys, door = opened(b"a", b"b")
    rig = Rig(door)
    async with rig.serving():
        await rig.socket.come((b"a", first_hello("node", T1)))
        await rig.socket.come((b"b", first_hello("node", T2)))
        assert [type(each) for _, each in rig.socket.sent] == [HostWelcome, HostRefused]
        refused = rig.socket.sent[1][1]
        assert (refused.code, refused.text) == (
            "in-use",
            "the name node belongs to the key key of a",
        )
        await rig.socket.come((b"a", HostLeaves(T1, 0)), (b"b", first_hello("node", T2)))
        assert rig.socket.take()[2:] == [(b"b", "HostRefused")]
        await rig.socket.come((b"a", first_hello("node", T3)))
        assert rig.socket.take() == [(b"a", "HostWelcome")]
        # Whoever owned the name may not join any more; its host is not known to be dead.
        keys.refused = {b"key of a": "revoked"}
        await rig.socket.come((b"b", first_hello("node", T2)))
        assert rig.socket.sent[0][1].text == "another host has the name node"
        await rig.socket.come(
            (b"a", HostLeaves(T3, 0)), (b"b", first_hello("node", T2)._replace(hello=2))
        )
        assert rig.socket.take()[1:] == [(b"b", "HostWelcome")]
    assert {past["state"] for past in rig.router.stats()["past_hosts"]} <= {
        "left",
        "refused",
    }


def test_a_name_that_a_file_has_is_nobody_elses() -> None:
    keys, door = opened(b"a", b"b")
    keys.named = {"node": b"key of b"}
    assert door.claim(b"a", "node") == "another key's file has it"
    assert door.claim(b"b", "node") == ""
    assert door.claim(b"a", "other") == ""
    assert door.claim(b"gone", "other") == "its connection has ended"


def test_a_key_keeps_as_many_names_as_it_may_and_costs_no_other_key_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hosts_module, "NAMES_MOST", 3)
    _, door = opened(b"a", b"b")
    assert door.claim(b"a", "node") == ""
    for number in range(4):
        assert door.claim(b"b", f"n{number}") == ""
    assert [door.claim(b"a", f"n{number}") != "" for number in range(4)] == [False, *[True] * 3]
    assert door.claim(b"b", "node") != ""


# -- the shell -----------------------------------------------------------------------------


class Records:
    """The records of a server, in memory."""

    def __init__(self, socket: Socket) -> None:
        self.written: list[list[EpochWait]] = []
        self.sent_before: list[int] = []
        """How many messages had been sent before each."""
        self.is_full = False
        self.cleared = 0
        self._socket = socket

    def write(self, waits: Sequence[EpochWait]) -> None:
        if self.is_full:
            raise ServerStartError("the disk is full")
        self.written.append(list(waits))
        self.sent_before.append(len(self._socket.sent))

    def clear(self) -> None:
        self.cleared += 1


class Socket:
    """The socket at the address for hosts: a test says what comes, and sees what goes."""

    address = "memory:hosts"

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, Any]] = []
        self._put, self._came = trio.open_memory_channel[list[list[bytes]]](100)

    async def come(self, *messages: tuple[bytes, Any]) -> None:
        """These, together, from these routes; bytes are no message."""
        self._put.send_nowait(
            [[route, each if isinstance(each, bytes) else encode(each)] for route, each in messages]
        )
        await trio.testing.wait_all_tasks_blocked()

    async def receive(self) -> list[list[bytes]]:
        return await self._came.receive()

    def send_nowait(self, route: bytes, frames: Sequence[Any]) -> bool:
        message, _ = decode([bytes(frame) for frame in frames], most_bytes=1 << 20)
        self.sent.append((route, message))
        return True

    def take(self) -> list[tuple[bytes, str]]:
        """The routes and types of what was sent since the last look."""
        sent, self.sent = self.sent, []
        return [(route, type(each).__name__) for route, each in sent]


class Rig:
    """The shell of a server without workers of its own, with the peers of its sockets."""

    def __init__(self, door: HostAuthenticator | None = None, *, journaled: bool = True) -> None:
        numbers = itertools.count(1)
        self.router = Router(
            epoch=EPOCH, slots=0, now_s=trio.current_time(),
            new_id=lambda: next(numbers).to_bytes(16, "big"), lease=TERMS, journaled=journaled,
            needs={"gpu": 1}, serves={"environment": "e"},
            claim=None if door is None else door.claim,
        )  # fmt: skip
        self.socket = Socket()
        self.records = Records(self.socket)
        socket: Any = self.socket
        self.shell = HostsShell(self.router, socket, door)

    @property
    def hosts(self) -> Hosts:
        assert self.router.hosts is not None
        return self.router.hosts

    @asynccontextmanager
    async def begun(self, *before: EpochWait) -> AsyncIterator[None]:
        """The shell reads what hosts send, until the end of the block."""
        records: Any = self.records
        nobody: Any = None
        with unwrap_single():
            async with trio.open_nursery() as nursery:
                self.server = Server(
                    self.router, self.router.take, nobody, nobody, nursery, ServerLimits(),
                    hosts=self.shell,
                )  # fmt: skip
                self.shell.open(records)
                self.give(HostsBefore(before, trio.current_time()))
                nursery.start_soon(self.server._serve_hosts, self.shell)  # noqa: ASYNC113
                yield
                nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def serving(self, *before: EpochWait) -> AsyncIterator[None]:
        """And hosts are welcome."""
        async with self.begun(*before):
            self.give(PoolOpened((), trio.current_time()))
            await trio.testing.wait_all_tasks_blocked()
            yield

    async def tick(self, later_s: float = 0.0) -> None:
        """Time passes, and what follows is done."""
        now_s = trio.current_time() + later_s
        self.give(HostsTick(now_s))
        self.give(Tick(now_s))
        await trio.testing.wait_all_tasks_blocked()

    def give(self, given: RouterInput) -> None:
        self.server._give(given)


def own(*memberships: bytes) -> EpochWait:
    return EpochWait(EPOCH, TERMS.wait_s, frozenset(memberships))


def beat(membership: bytes, number: int) -> HostBeat:
    return HostBeat(membership, number, number - 1, EPOCH, 0, 0, False, {})


async def test_a_host_is_welcomed_once_it_is_written_down() -> None:
    rig = Rig()
    async with rig.serving():
        assert rig.records.written == [[own()]]
        await rig.socket.come((b"a", first_hello("a", T1)), (b"b", first_hello("b", T2)))
        assert rig.records.written == [[own()], [own(T1, T2)]]  # once for both
        assert rig.records.sent_before == [0, 0]
        (_, welcome), (_, _) = rig.socket.sent
        assert isinstance(welcome, HostWelcome)
        assert (welcome.epoch, welcome.fence_s) == (EPOCH, 20.0)
        assert welcome.serves == {"environment": "e"}
        assert rig.socket.take() == [(b"a", "HostWelcome"), (b"b", "HostWelcome")]
        await rig.socket.come((b"a", beat(T1, 1)))
        assert rig.socket.take() == [(b"a", "HostAnswer")]
        assert len(rig.records.written) == 2  # nothing has changed
    assert rig.shell.address == "memory:hosts"


async def test_a_host_that_cannot_be_written_down_hears_nothing_until_it_can(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    async with rig.serving(EpochWait(BEFORE, 1e6, frozenset([OTHER]))):
        await rig.socket.come((b"a", first_hello("a", T1)))
        assert rig.socket.take() == [(b"a", "HostWelcome")]
        rig.records.is_full = True
        for number in (1, 2):
            asks = first_hello("b", T2)._replace(hello=number)
            await rig.socket.come((b"b", asks), (b"a", beat(T1, number)))
            assert rig.socket.take() == [(b"a", "HostAnswer")]
        await rig.tick()
        assert {route for route, _ in rig.socket.take()} <= {b"a"}
        assert caplog.text.count("no further host can join: the disk is full") == 1
        rig.records.is_full = False
        await rig.socket.come((b"b", asks._replace(hello=3)))
        assert rig.socket.take() == [(b"b", "HostWelcome")]
        assert rig.records.written[-1][-1] == own(T1, T2)
        # Of another such time there is another line.
        rig.records.is_full = True
        await rig.socket.come((b"c", first_hello("c", T3)), (b"b", beat(T2, 1)))
        assert rig.socket.take() == [(b"b", "HostAnswer")]
        assert caplog.text.count("no further host can join") == 2


async def test_a_server_whose_first_record_cannot_be_written_does_not_begin() -> None:
    rig = Rig()
    rig.records.is_full = True
    with pytest.raises(ServerStartError, match="the disk is full"):
        async with rig.serving():
            raise AssertionError("it has begun")
    assert (rig.records.written, rig.records.cleared) == ([], 0)


async def test_before_hosts_are_welcome_nothing_is_written() -> None:
    rig = Rig()
    rig.shell.closed()
    async with rig.begun():
        await rig.tick()
    assert (rig.records.written, rig.records.cleared) == ([], 0)


async def test_hosts_of_earlier_servers_are_written_down_until_they_are_dead() -> None:
    rig = Rig()
    wait = EpochWait(BEFORE, 50.0, frozenset([T3]))
    async with rig.serving(wait):
        assert rig.records.written == [[wait, own()]]
        rig.shell.closed()  # and by a server that closes before
        assert rig.records.written[1:] == [[wait]]
        # While one of their executions may live the router that has started it is not dead.
        rig.router.dispatches.unknown.live_executions = 1
        await rig.tick(50)
        assert rig.router.followed == []
        rig.router.dispatches.unknown.live_executions = 0
        await rig.tick(51)
        assert [type(each) for each in rig.router.followed] == [HostsDead]
        assert rig.records.written[2:] == [[own()]]
        assert rig.records.cleared == 0
        rig.shell.closed()
        assert (len(rig.records.written), rig.records.cleared) == (3, 1)


async def test_a_host_that_is_lost_is_written_down_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    async with rig.serving():
        await rig.socket.come((b"a", first_hello("a", T1)))
        assert rig.records.written[-1] == [own(T1)]
        await rig.tick(TERMS.wait_s + 1)
        assert "host a is gone" in caplog.text
        assert rig.records.written[-1] == [own()]
        (past,) = rig.router.stats()["past_hosts"]
        assert past["host"] == "a"


async def test_what_is_for_the_workers_of_a_host_is_sent_to_it_together() -> None:
    rig = Rig()
    async with rig.serving():
        await rig.socket.come((b"a", first_hello("a", T1)), (b"a", beat(T1, 1)))
        await rig.socket.come((b"a", beat(T1, 2)))
        rig.socket.take()
        await rig.tick()
        (worker,) = rig.router.pool.lives
        assert rig.hosts.host_of(worker) == "a"
        assert rig.socket.take() == [(b"a", "Items")]
        await rig.tick()
        assert rig.socket.take() == []


async def test_a_host_that_sends_what_is_no_message_is_told_and_others_are_heard(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    async with rig.serving():
        await rig.socket.come((b"a", first_hello("a", T1)), (b"b", first_hello("b", T2)))
        rig.socket.take()
        await rig.socket.come((b"a", b"nonsense"), (b"b", beat(T2, 1)))
        (_, refused), (_, answer) = rig.socket.sent
        assert isinstance(refused, HostRefused)
        assert refused.code == "over"
        assert isinstance(answer, HostAnswer)
    assert caplog.text.count("host a gets no more workers: it sent a malformed") == 1
    assert rig.router.malformed == 1


async def test_hosts_of_a_server_that_takes_nothing_over_are_told_that_they_are_over() -> None:
    rig = Rig(journaled=False)
    wait = EpochWait(BEFORE, 1e6, frozenset([T1, T2]))
    with_epoch = first_hello("c", T3)._replace(epoch=OTHER)
    async with rig.begun(wait):
        await rig.socket.come((b"z", b"nonsense"), (b"y", beat(T1, 1)), (b"x", first_hello()))
        assert rig.socket.sent == []
        await rig.socket.come((b"a", first_hello("a", T1)), (b"c", with_epoch))
        (_, refused), (_, _) = rig.socket.sent
        assert isinstance(refused, HostRefused)
        assert (refused.membership, refused.hello, refused.epoch) == (T1, 1, EPOCH)
        assert refused.code == "over"
        assert refused.text.endswith("it may join anew")
        assert rig.socket.take() == [(b"a", "HostRefused"), (b"c", "HostRefused")]
        # It joins anew, and says what has ended.
        await rig.socket.come((b"a", first_hello("a", T3)._replace(ended=[T1])))
        assert rig.socket.take() == []
        assert rig.hosts.leases.earlier.waits == (EpochWait(BEFORE, 1e6, frozenset([T2])),)
