"""A server whose clients have keys."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.server.helpers import SERVER, key_folder, write_client
from trio_envserve import (
    Client,
    ClientCurve,
    ClientLimits,
    ClientRight,
    ConfigError,
    KeyPair,
    RequestRefused,
    ServerCurve,
    open_client,
    open_server,
)
from trio_envserve.core import messages
from trio_envserve.core.limits import PROTOCOL_VERSION
from trio_envserve.core.rights import FORBIDDEN, ROLES
from trio_envserve.core.router_inputs import PeerKnown
from trio_envserve.net.keypairs import key_bytes
from trio_envserve.net.zmtp.curve import STRANGER as NOT_KNOWN
from trio_envserve.regular_files import read_regular
from trio_envserve.server import curve as curve_module
from trio_envserve.server.curve import Authenticator, read_clients

TRAINER, WATCHER, STRANGER, HOST = (KeyPair.new() for _ in range(4))
CLIENTS = {
    "trainer": ClientRight(TRAINER.public),
    "watcher": ClientRight(WATCHER.public, ("watch",)),
}
CURVE = ServerCurve(SERVER, CLIENTS)


def of(keys: KeyPair) -> ClientCurve:
    return ClientCurve(SERVER.public, keys)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A folder of keys, with a trainer's."""
    folder = key_folder(tmp_path / "keys")
    write_client(folder, "trainer", TRAINER)
    return folder


async def complains(client: Client, text: str) -> None:
    """Until a client is told so."""
    while text not in client.health().reason:
        await trio.sleep(0.01)


@pytest.mark.real
async def test_a_wrong_role_is_refused_in_words_and_nothing_runs():
    with trio.fail_after(60):
        async with open_server("arithmetic", workers=0, curve=CURVE) as server:
            async with open_client(server.address, curve=of(WATCHER)) as client:
                with pytest.raises(RequestRefused, match=r"the key watcher .role watch. may not"):
                    await client.run_rollout({"index": 0})
                assert (await client.stats()).cache.entered == 0


@pytest.mark.real
async def test_a_stranger_is_told_that_its_key_is_not_known_until_it_is(keys, monkeypatch):
    monkeypatch.setattr(curve_module, "RELOAD_S", 0.01)
    curve = ServerCurve.from_folder(keys)
    with trio.fail_after(60):
        async with open_server("arithmetic", workers=0, curve=curve) as server:
            async with open_client(server.address) as client:
                await complains(client, "it wants the mechanism CURVE")
            async with open_client(server.address, curve=of(STRANGER)) as client:
                await complains(client, "does not know this key")
                assert server.stats().sessions == 0
                write_client(keys, "new", STRANGER)
                await client.run_rollout({"index": 0})


@pytest.mark.real
async def test_a_revoked_key_is_told_and_its_connection_ends(keys, monkeypatch):
    monkeypatch.setattr(curve_module, "RELOAD_S", 0.01)
    curve = ServerCurve.from_folder(keys)
    limits = ClientLimits(ping_s=0.1, idle_ping_s=0.1, probe_s=0.2, late_s=0.2)
    with trio.fail_after(60):
        async with open_server("arithmetic", workers=0, curve=curve) as server:
            async with open_client(server.address, curve=of(TRAINER), limits=limits) as client:
                await client.run_rollout({"index": 0})
                write_client(keys, "trainer", TRAINER, '["watch"]')  # counts for the next message
                with pytest.raises(RequestRefused, match="may not submit"):
                    while True:
                        await client.run_rollout({"index": 0})
                (keys / "clients" / "trainer.toml").unlink()
                await complains(client, "the key trainer was revoked")
                assert server._front.statistics().closed


# -- a file that is wrong costs its own key ------------------------------------------------


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as it:
        it.bind(str(path))


def _text(content: str | bytes) -> Callable[[Path], object]:
    data = content.encode() if isinstance(content, str) else content
    return lambda path: path.write_bytes(data.replace(b"PUBLIC", HOST.public.encode()))


RIGHT = 'public = "PUBLIC"\nroles = ["submit"]\n'
WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (_text(""), "no key"),
    "no-toml": (_text("nonsense ["), "bad.toml"),
    "a-share-of-x": (_text(RIGHT + 'share = "x"'), "share is a number"),
    "a-share-of-nan": (_text(RIGHT + "share = nan"), "a share is above 0"),
    "a-share-past-any-float": (_text(RIGHT + "share = 1" + "0" * 400), "a share is above 0"),
    "a-number-of-too-many-digits": (_text(RIGHT + "share = " + "9" * 5000), "bad.toml"),
    "no-utf-8": (_text(RIGHT.encode() + b"# \xff"), "utf-8"),
    "nested-too-deeply": (_text("a = " + "[" * 5000), "nested too deeply"),
    "too-large": (_text(RIGHT + "#" * 100_000), "larger than"),
    "a-field-too-many": (_text(RIGHT + "secret = 1"), "it has secret"),
    "no-role": (_text('public = "PUBLIC"'), "a key needs a role"),
    "a-role-that-is-no-list": (_text('public = "PUBLIC"\nroles = "submit"'), "roles is a list"),
    "roles-of-numbers": (_text('public = "PUBLIC"\nroles = [1]'), "roles is a list"),
    "an-unknown-role": (
        _text('public = "PUBLIC"\nroles = ["root"]'),
        "a role is one of submit, work, watch, admin",
    ),
    "a-share-of-nothing": (_text(RIGHT + "share = 0"), "a share is above 0"),
    "a-share-above-all": (_text(RIGHT + "share = 1.5"), "a share is above 0"),
    "a-share-of-true": (_text(RIGHT + "share = true"), "share is a number"),
    "a-namespace-of-two-lines": (_text(RIGHT + 'namespaces = ["a\\nb"]'), "a namespace is a line"),
    "an-empty-namespace": (_text(RIGHT + 'namespaces = [""]'), "a namespace is a line"),
    "hosts-that-are-no-list": (_text(RIGHT + 'hosts = "n1"'), "hosts is a list"),
    "an-empty-host": (_text(RIGHT + 'hosts = [""]'), "a host's name is a line"),
    "a-fifo": (os.mkfifo, "no regular file"),
    "a-folder": (os.mkdir, "directory"),
    "a-socket": (_socket, "No such device"),
    "a-device": (partial(os.symlink, "/dev/zero"), "no regular file"),
    "a-link-to-itself": (partial(os.symlink, "bad.toml"), "symbolic links"),
}


def fail_with(number: int, name: str, path: Path) -> Any:
    """Reading the file of a client of this name fails, or that of any."""
    if path.stem.startswith(name):
        raise OSError(number, os.strerror(number))
    return read_regular(path)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
async def test_a_server_without_descriptors_keeps_its_keys(keys, monkeypatch, caplog, number):
    """Strangers could end every client's connection by taking all of them."""
    keeper = Authenticator(ServerCurve.from_folder(keys))
    monkeypatch.setattr(curve_module, "read_regular", partial(fail_with, number, ""))
    await keeper.reload()
    await keeper.reload()
    assert keeper.admit(public_of(TRAINER)) == ""
    assert caplog.text.count("the keys of clients stay as they were") == 1


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
async def test_a_file_that_may_not_be_read_costs_its_own_key_only(keys, monkeypatch, number):
    write_client(keys, "watcher", WATCHER)
    keeper = Authenticator(ServerCurve.from_folder(keys))
    monkeypatch.setattr(curve_module, "read_regular", partial(fail_with, number, "watcher"))
    await keeper.reload()
    assert keeper.admit(public_of(TRAINER)) == ""
    assert "does not count" in keeper.admit(public_of(WATCHER))


@pytest.mark.parametrize("case", WRONG)
async def test_a_file_that_is_wrong_costs_its_own_key_only(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, keys: Path,
    caplog: pytest.LogCaptureFixture, case: str,
):  # fmt: skip
    """Also when the server starts, and whatever is in it, a revoked key is out."""
    make, why = WRONG[case]
    monkeypatch.chdir(keys / "clients")  # a socket's path is short
    make(Path("bad.toml"))
    write_client(keys, "watcher", WATCHER)
    door = Door(ServerCurve.from_folder(keys))
    door.come(b"r", TRAINER)
    admit = door.keeper.admit
    assert (admit(public_of(TRAINER)), admit(public_of(WATCHER))) == ("", "")
    assert admit(public_of(HOST)) == NOT_KNOWN
    assert caplog.text.count("nobody comes in with the key 'bad': ") == 1
    assert why in caplog.text
    (keys / "clients" / "trainer.toml").unlink()
    await door.keeper.reload()
    await door.keeper.reload()
    assert "the key trainer was revoked" in admit(public_of(TRAINER))
    assert len(door.front.closed) == 1
    assert admit(public_of(WATCHER)) == ""
    assert caplog.text.count("nobody comes in with the key") == 1


@pytest.mark.parametrize("name", ["\udcff.toml", "a\nb.toml", "\x1b[2J.toml"])
def test_a_name_that_is_no_text_costs_its_own_key_only(keys: Path, name: str, caplog):
    (keys / "clients" / name).write_text(f'public = "{HOST.public}"\nroles = ["submit"]')
    keeper = Authenticator(ServerCurve.from_folder(keys))
    assert keeper.admit(public_of(TRAINER)) == ""
    assert keeper.admit(public_of(HOST)) == NOT_KNOWN
    assert len(caplog.messages) == 1
    assert caplog.messages[0].isprintable()


@given(st.binary(max_size=300) | st.text(max_size=200).map(str.encode))
def test_a_file_of_any_bytes_is_a_right_or_a_fault(tmp_path_factory, content: bytes):
    folder = tmp_path_factory.getbasetemp() / "any-bytes"
    folder.mkdir(exist_ok=True)
    for start in ("", RIGHT.replace("PUBLIC", HOST.public)):
        (folder / "one.toml").write_bytes(start.encode() + content)
        clients, faults = read_clients(folder)
        assert {*clients} | {*faults} == {"one"}


async def test_a_key_whose_file_becomes_wrong_is_out_until_that_is_mended(keys: Path):
    door = Door(ServerCurve.from_folder(keys))
    door.come(b"r", TRAINER)
    trainer = keys / "clients" / "trainer.toml"
    right = trainer.read_text()
    trainer.write_text('public = "none"')
    await door.keeper.reload()
    why = "the key trainer does not count: the server cannot read its file, and its log says why"
    assert door.front.told == [(b"r", why)]
    assert door.keeper.admit(public_of(TRAINER)) == why
    trainer.write_text(right)
    await door.keeper.reload()
    assert door.keeper.admit(public_of(TRAINER)) == ""


async def test_a_key_under_two_names_counts_under_neither(keys: Path):
    """Which of their rights it has would be a guess."""
    write_client(keys, "watcher", WATCHER)
    write_client(keys, "twin", TRAINER)
    keeper = Authenticator(ServerCurve.from_folder(keys))
    clients, faults = read_clients(keys / "clients")
    assert {*clients} == {"watcher"}
    assert {*faults} == {"trainer", "twin"}
    assert "trainer and twin have the same key" in faults["twin"].replace(
        "twin and trainer", "trainer and twin"
    )
    assert keeper.admit(public_of(TRAINER)) == NOT_KNOWN
    (keys / "clients" / "twin.toml").unlink()
    await keeper.reload()
    assert keeper.admit(public_of(TRAINER)) == ""


# -- who is there, without sockets ---------------------------------------------------------


class Front:
    """The front of a server, as far as a authenticator knows it: the keys of its connections."""

    def __init__(self) -> None:
        self.keys: dict[bytes, bytes] = {}
        self.told: list[tuple[bytes, str]] = []
        self.closed: list[tuple[bytes, str]] = []

    def peer_key(self, route: bytes) -> bytes:
        """The public key behind a route."""
        return self.keys[route]

    def send_nowait(self, route: bytes, frames: Any) -> bool:
        """Only errors are sent."""
        (frame,) = frames
        error = messages.decode(bytes(frame), most_bytes=1000)
        assert isinstance(error, messages.Error)
        assert (error.version, error.code) == (PROTOCOL_VERSION, FORBIDDEN)
        self.told.append((route, error.text))
        return True

    def close_peer(self, route: bytes, why: str) -> None:
        """It goes when what was sent before has gone."""
        self.closed.append((route, why))


class Door:
    """A authenticator whose connections a test opens and ends."""

    def __init__(self, curve: ServerCurve) -> None:
        self.keeper = Authenticator(curve)
        self.front = Front()
        front: Any = self.front
        self.keeper.open(front)
        assert self.keeper.news() == [NOBODY]

    def come(self, route: bytes, keys: KeyPair) -> None:
        """A connection with these keys has been let in."""
        self.front.keys[route] = public_of(keys)
        self.keeper.on_peer(route, "a place")

    def go(self, route: bytes) -> None:
        """A connection was lost."""
        self.keeper.on_peer(route, None)


NOBODY = PeerKnown(b"", "", "", "", 0.0)


def public_of(keys: KeyPair) -> bytes:
    return key_bytes(keys.public, "it")


async def test_whoever_has_a_key_is_let_in_and_no_other() -> None:
    keeper = Authenticator(CURVE)
    keeper.on_peer(b"r", "a place")
    keeper.on_peer(b"r", None)
    assert keeper.news() == []  # it has no front yet
    await keeper.reload()  # there is no folder
    for each in (TRAINER, WATCHER, keeper.own.keys):  # the last are those of the server's doors
        assert keeper.admit(public_of(each)) == ""
    assert keeper.admit(public_of(STRANGER)) == NOT_KNOWN
    assert keeper.admit_host(public_of(STRANGER)) == NOT_KNOWN
    assert keeper.own.server == SERVER.public
    assert keeper.own != Authenticator(CURVE).own


def test_a_name_of_a_host_in_a_file_belongs_to_its_key() -> None:
    rights = {
        "gpu": ClientRight(HOST.public, ("work",), hosts=("n1", "n2")),
        "any": ClientRight(TRAINER.public, ("work",)),
    }
    keeper = Authenticator(ServerCurve(SERVER, rights))
    assert keeper.refuse_name(public_of(HOST), "n2") == ""
    assert keeper.refuse_name(public_of(TRAINER), "n3") == ""
    refused = keeper.refuse_name(public_of(HOST), "n3")
    assert refused == "the key gpu is for the hosts n1, n2, not for n3"
    refused = keeper.refuse_name(public_of(TRAINER), "n1")
    assert refused == "the name n1 belongs to the key gpu"


@pytest.mark.parametrize("role", ROLES)
def test_only_hosts_that_may_work_join(role: str) -> None:
    keeper = Authenticator(ServerCurve(SERVER, {"gpu": ClientRight(HOST.public, (role, "watch"))}))
    refused = keeper.admit_host(public_of(HOST))
    if role in ("work", "admin"):
        assert refused == ""
    else:
        assert refused == "the key gpu may not work: that needs the role work"


def test_the_router_is_told_who_comes_and_who_goes() -> None:
    rights = {"a": ClientRight(TRAINER.public, ("submit", "watch"), ("x", "y"), 0.5)}
    door = Door(ServerCurve(SERVER, rights))
    door.come(b"r", TRAINER)
    door.come(b"s", door.keeper.own.keys)
    known = [
        PeerKnown(b"r", "a", "submit watch", "x\ny", 0.5),
        PeerKnown(b"s", "the server itself", "admin", "", 1.0),
    ]
    assert door.keeper.news() == known
    assert door.keeper.news() == []
    door.go(b"r")
    door.go(b"r")
    door.go(b"t")
    assert door.keeper.news() == [NOBODY._replace(route=b"r")]


async def test_rights_that_have_changed_are_told_and_those_taken_away_end_their_connections(
    keys: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_client(keys, "watcher", WATCHER, '["watch"]')
    door = Door(ServerCurve.from_folder(keys))
    door.come(b"r", TRAINER)
    door.come(b"s", WATCHER)
    door.keeper.news()
    await door.keeper.reload()
    assert door.keeper.news() == []
    write_client(keys, "trainer", TRAINER, '["submit", "watch"]')
    await door.keeper.reload()
    assert door.keeper.news() == [PeerKnown(b"r", "trainer", "submit watch", "", 1.0)]
    assert door.front.closed == []
    trainer = keys / "clients" / "trainer.toml"
    trainer.rename(keys / "trainer")
    await door.keeper.reload()
    why = "the key trainer was revoked: ask who runs this server for a new one"
    assert door.front.told == door.front.closed == [(b"r", why)]
    assert door.keeper.admit(public_of(TRAINER)) == why
    assert door.keeper.admit_host(public_of(TRAINER)) == why
    assert door.keeper.news() == []
    assert "the key trainer was revoked" in caplog.text
    assert "watcher" not in caplog.text
    await door.keeper.reload()
    assert len(door.front.closed) == 1
    door.go(b"r")
    assert door.keeper.news() == [NOBODY._replace(route=b"r")]
    # Whoever has the key again is let in again.
    (keys / "trainer").rename(trainer)
    await door.keeper.reload()
    assert door.keeper.admit(public_of(TRAINER)) == ""


# -- files --------------------------------------------------------------------------------


async def test_the_folder_is_looked_at_each_second_and_the_router_told_after_that(
    monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    did: list[str] = []

    async def reload(_: Authenticator) -> None:
        await trio.lowlevel.checkpoint()
        did.append("reload")

    monkeypatch.setattr(Authenticator, "reload", reload)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Authenticator(CURVE).keep, partial(did.append, "tell"))
        await trio.testing.wait_all_tasks_blocked()
        for seconds, most in ((0.75, 0), (0.25, 1), (0.75, 1), (0.25, 2)):
            mock_clock.jump(seconds * curve_module.RELOAD_S)
            await trio.testing.wait_all_tasks_blocked()
            assert did == ["reload", "tell"] * most
        nursery.cancel_scope.cancel()


def test_a_folder_of_keys_is_read_whole(keys: Path) -> None:
    (keys / "clients" / "full.toml").write_text(
        f'public = "{WATCHER.public}"\nroles = ["watch", "submit"]\n'
        'namespaces = ["x", "y"]\nshare = 1\nhosts = ["n1"]\n'
    )
    (keys / "clients" / "README").write_text("no client")
    curve = ServerCurve.from_folder(keys)
    assert (curve.keys, curve.folder) == (SERVER, keys)
    assert curve.clients == {
        "trainer": ClientRight(TRAINER.public),
        "full": ClientRight(WATCHER.public, ("watch", "submit"), ("x", "y"), 1.0, ("n1",)),
    }


def test_a_folder_without_a_secret_is_refused_and_one_whose_secret_is_a_fifo_not_waited_for(
    keys: Path,
) -> None:
    (keys / "server.key").write_text("")
    with pytest.raises(ConfigError):
        ServerCurve.from_folder(keys)
    (keys / "server.key").unlink()
    os.mkfifo(keys / "server.key", 0o600)
    with pytest.raises(ConfigError, match="no regular file"):
        ServerCurve.from_folder(keys)
