"""Servers are opened, get ready or say why not, and end with their block; what they open for
their arguments and close again, without sockets and processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from tests.memory import ADDRESS, Probe, echo, pair, virtual
from trio_envserve import (
    ClientRight,
    ConfigError,
    KeyLimits,
    KeyPair,
    MayHaveRun,
    ServerCurve,
    ServerLimits,
    ServerStartError,
    WireLimits,
    open_client,
    open_server,
    serve,
)
from trio_envserve.core.lease import NO_LEASE_S
from trio_envserve.core.messages import encode_record
from trio_envserve.host.locks import ServerLocks
from trio_envserve.host.workers import InProcessWorkers
from trio_envserve.net import MemoryNetwork
from trio_envserve.net.keypairs import key_bytes
from trio_envserve.net.zmtp.curve import STRANGER
from trio_envserve.net.zmtp.sockets import sealed_wire
from trio_envserve.server import opening
from trio_envserve.server.options import ServerOptions, Setup

HOSTS = "tcp://127.0.0.1:0"


@pytest.mark.parametrize(
    "value", [(1, 2), {1: "a"}, Path("a"), {"deep": [float("nan"), {2: 3}]}, b"a", {3}]
)
async def test_arguments_that_a_worker_would_get_changed_are_refused(value: Any) -> None:
    """Tuples became lists and numbers as keys text, and nobody was told."""
    with pytest.raises(ConfigError, match=r"args\['shape'\]"):
        async with open_server("arithmetic", args={"shape": value}, workers=1):
            pass


@virtual
async def test_serve_reports_the_server_once_bound() -> None:
    network = MemoryNetwork()
    async with trio.open_nursery() as nursery:
        start = partial(serve, Probe(), bind=ADDRESS, workers=0, network=network)
        server = await nursery.start(start)
        assert server.address == ADDRESS
        async with open_client(ADDRESS, network=network) as client:
            assert await client.run_rollout(["a", 1]) == {"did": 1}
        nursery.cancel_scope.cancel()


@virtual
async def test_an_exception_of_the_block_comes_out_as_it_is() -> None:
    with pytest.raises(KeyError, match="mine"):
        async with pair(Probe()):
            raise KeyError("mine")


@virtual
async def test_a_server_whose_block_is_cancelled_from_outside_still_closes_in_order() -> None:
    """Its closing awaited tasks that the same cancellation had ended: it hung."""
    probe = Probe()
    network = MemoryNetwork()
    outcomes: list[Any] = []

    async with open_client(ADDRESS, network=network) as client, trio.open_nursery() as nursery:

        async def call() -> None:
            outcomes.append(await client.outcome(["a", "wait"]))

        with trio.move_on_after(5):
            async with open_server(probe, bind=ADDRESS, workers=0, network=network):
                nursery.start_soon(call)
                await trio.sleep_forever()
        assert probe.ended == [("a", "cancelled")]
    assert isinstance(outcomes[0].error, MayHaveRun)


# -- a server that is closed -----------------------------------------------------
# Who waited for it to get ready went on waiting, for minutes, when it had been closed;
# or was told "ready" of one that is no more.


async def test_a_closed_server_does_not_get_ready(autojump_clock):
    network = MemoryNetwork()
    async with open_server(echo, bind="memory:s", workers=0, network=network) as server:
        await server.wait_ready()
    with trio.fail_after(5), pytest.raises(ServerStartError, match="stopping"):
        await server.wait_ready()


async def test_who_waits_while_the_server_is_killed_is_told(autojump_clock):
    class Slow:
        async def setup(self):
            await trio.sleep_forever()

        async def run_rollout(self, rollout):
            raise AssertionError("it was never set up")

    network = MemoryNetwork()
    told = trio.Event()

    async def wait(server):
        with pytest.raises(ServerStartError, match="stopping"):
            await server.wait_ready()
        told.set()

    async with trio.open_nursery() as nursery:
        async with open_server(Slow(), bind="memory:s", workers=0, network=network) as server:
            nursery.start_soon(wait, server)
            await trio.testing.wait_all_tasks_blocked()
            server.kill()
            with trio.fail_after(5):
                await told.wait()


# -- what the arguments come to, before anything is opened --------------------------


@pytest.fixture
def set_up(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What was to be opened, as ``setup``, and what was looked for, as ``looked``."""
    seen: dict[str, Any] = {"looked": []}

    @asynccontextmanager
    async def opened(setup: Setup) -> AsyncIterator[str]:
        seen["setup"] = setup
        yield "a server"

    def look(spec: str, args: object) -> None:
        seen["looked"].append(f"spec {spec}")

    def find(python: Any) -> str:
        seen["looked"].append(f"find {python}")
        return f"/bin/{python}"

    async def check(python: str) -> None:
        seen["looked"].append(f"check {python}")

    monkeypatch.setattr(opening, "open_setup", opened)
    monkeypatch.setattr(opening, "check_spec", look)
    monkeypatch.setattr(opening, "find_interpreter", find)
    monkeypatch.setattr(opening, "check_interpreter", check)
    return seen


NODE = {"worker_command": "node a.js"}
PY = {"worker_python": "py"}
HOSTED = {"hosts_bind": HOSTS}
CURVE: dict[str, Any] = {"curve": ServerCurve(KeyPair.new(), {})}
SMALL = WireLimits(header_bytes=4096)
OBJECT = SimpleNamespace(an="environment")
"""An environment that is no name."""


@pytest.mark.parametrize(
    ("options", "environment", "name", "python", "looked"),
    [
        ({}, "arithmetic", "arithmetic", None, ["spec arithmetic"]),
        ({"workers": 0}, "arithmetic", "arithmetic", None, ["spec arithmetic"]),
        (HOSTED, "arithmetic", "arithmetic", None, ["spec arithmetic"]),
        ({**HOSTED, "workers": 0}, "arithmetic", "arithmetic", None, []),
        ({"workers": 0, "environment": OBJECT}, OBJECT, str(OBJECT), None, []),
        (NODE, None, "node a.js", None, []),
        ({**NODE, **HOSTED, "workers": 0}, None, "node a.js", None, []),
        ({**NODE, "environment": "x"}, "x", "x", None, []),
        (PY, "arithmetic", "arithmetic", "/bin/py", ["find py", "check /bin/py"]),
        ({**PY, **HOSTED}, "arithmetic", "arithmetic", "/bin/py", ["find py", "check /bin/py"]),
        (
            {"worker_python": Path("py"), **HOSTED, "workers": 0},
            "arithmetic", "arithmetic", "py", [],
        ),
    ],
)  # fmt: skip
async def test_what_is_run_is_looked_for_where_it_is_run(
    set_up: dict[str, Any], options: dict[str, Any], environment: Any, name: str,
    python: str | None, looked: list[str],
) -> None:  # fmt: skip
    async with open_server(**options) as server:
        assert str(server) == "a server"
    setup = set_up["setup"]
    assert (setup.options.environment, setup.name, setup.python) == (environment, name, python)
    assert set_up["looked"] == looked
    assert list(setup.command) == (["node", "a.js"] if "worker_command" in options else [])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"workers": -1}, "workers"),
        ({"workers": True}, "workers"),
        ({"workers": "2"}, "workers"),
        ({**HOSTED, "fence_s": 0.0}, "fence_s"),
        ({**NODE, "workers": 0}, "worker_command starts processes"),
        ({**PY, "workers": 0}, "worker_python starts this package's own workers"),
        ({**PY, **NODE}, "worker_python starts this package's own workers"),
        ({**PY, **NODE, **HOSTED, "workers": 0}, "worker_python starts this package's own"),
        ({"environment": OBJECT}, "worker processes load their environment by name"),
        ({"environment": OBJECT, **HOSTED, "workers": 0}, "worker processes load their"),
        ({"environment": OBJECT, **NODE}, "worker processes load their environment by name"),
        ({"args": {"a": (1,)}}, r"args\['a'\]"),
        ({"args": {"a": (1,)}, **HOSTED, "workers": 0}, r"args\['a'\]"),
        ({"needs": {"gpu": "two"}}, "needs: gpu='two' is no amount"),
        ({"worker_command": ""}, "worker_command must be a command"),
        ({**CURVE, "network": MemoryNetwork()}, "curve needs transport"),
        ({**CURVE, "transport": "libzmq"}, "curve needs transport"),
        (
            {"keys": KeyLimits(key_bytes=3000), "wire": SMALL, "limits": ServerLimits(window=100)},
            r"KeyLimits.key_bytes \(3000\)",
        ),
    ],
)
async def test_what_cannot_be_run_together_is_refused(
    set_up: dict[str, Any], options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        async with open_server(**options):
            pass
    assert "setup" not in set_up


async def test_what_is_given_reaches_the_workers_and_what_is_not_has_its_default(
    set_up: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[Any, ...]] = []
    monkeypatch.setattr(opening, "ProcessWorkers", lambda *each: given.append(each))
    limits, wire = ServerLimits(stop_s=3.0), WireLimits(flush_s=3.0)
    options: dict[str, Any] = {
        "args": {"a": 1}, "limits": limits, "wire": wire, "worker_environ": [{"A": "1"}],
        "worker_logging": {"level": "info"}, "worker_otlp": {"endpoint": "e"},
    }  # fmt: skip
    locks: list[Any] = ["a lock"]
    for more in ({"workers": 3}, {"workers": 0, **HOSTED}):
        async with open_server("arithmetic", **options, **more, needs={"gpu": 1.0}, fence_s=5.0):
            opening._host(set_up["setup"], locks, PLACE)
        about = (locks, PLACE, [{"A": "1"}], {"level": "info"}, (), None, {"endpoint": "e"})
        assert given.pop() == ("arithmetic", {"a": 1}, limits, wire, *about)
        assert (set_up["setup"].options.needs, set_up["setup"].lease.fence_s) == ({"gpu": 1.0}, 5.0)
    async with open_server(fence_s=None, workers=0, args={"a": (1,)}):
        pass
    setup = set_up["setup"]
    assert isinstance(opening._host(setup, locks, PLACE), InProcessWorkers)
    assert setup.lease.fence_s == NO_LEASE_S
    assert (setup.limits, setup.wire, setup.keys) == (ServerLimits(), WireLimits(), KeyLimits())
    assert setup.options.args == {"a": (1,)}  # in this process any will do


async def test_keys_need_messages_of_sizes_that_can_be_sealed(set_up: dict[str, Any]) -> None:
    async with open_server(**CURVE):
        assert set_up["setup"].wire == sealed_wire(WireLimits()) != WireLimits()


@virtual
async def test_hosts_are_told_all_that_they_run_or_it_is_refused() -> None:
    def setup(size: int) -> Setup:
        options = ServerOptions(
            "env", args={"a": "x" * size}, bind=ADDRESS, workers=0, hosts_bind="memory:hosts",
            network=MemoryNetwork(),
        )  # fmt: skip
        return Setup(options=options, name="env", wire=SMALL)

    left = 2048 - len(encode_record(opening._serves(setup(1000))))
    async with opening.open_setup(setup(1000 + left)):
        pass
    with pytest.raises(ConfigError, match="bytes together; hosts can be sent 2048"):
        async with opening.open_setup(setup(1001 + left)):
            pass


PLACE = "tcp://127.0.0.1:7"
ANY = "tcp://127.0.0.1:0"
LONG_S = 60.0


class Bound:
    """The socket of a router, whose address is another one."""

    def __init__(self, router: Any, address: str) -> None:
        self.address = address
        self.closed: list[tuple[bytes, str]] = []
        self.is_gone = False
        self.heard_when_gone = False
        """Whether somebody listened to it when it was closed."""
        self._router = router

    def __getattr__(self, name: str) -> Any:
        return getattr(self._router, name)

    async def receive(self) -> Any:
        try:
            return await self._router.receive()
        finally:
            self.heard_when_gone |= self.is_gone

    def peer_key(self, route: bytes) -> bytes:
        """The key behind a route: here each is named after its key."""
        return route

    def close_peer(self, route: bytes, why: str) -> None:
        self.closed.append((route, why))


class Elsewhere:
    """A network in memory whose routers are bound to an address of TCP, as far as they say."""

    def __init__(self, address: str) -> None:
        self.opened: list[Any] = []
        self.entered = 0
        self._address = address
        self._memory = MemoryNetwork()

    @asynccontextmanager
    async def open_router(self, bind: str, **options: Any) -> AsyncIterator[Bound]:
        limits = options.pop("limits")
        async with self._memory.open_router("memory:*", limits=limits) as router:
            bound = Bound(router, self._address)
            opened = {"bind": bind, "limits": limits, "socket": bound, **options}
            self.opened.append(SimpleNamespace(**opened))
            try:
                yield bound
            finally:
                bound.is_gone = True

    @asynccontextmanager
    async def enter(self, *_: Any) -> AsyncIterator[Elsewhere]:
        """In the place of what opens a network."""
        self.entered += 1
        yield self


def files_in(folder: Path) -> list[Path]:
    return [each for each in folder.rglob("*") if each.is_file()]


def is_served(address: str) -> bool:
    """Whether a server has the lock of an address."""
    locks = ServerLocks.of_address(address)
    try:
        locks.take_server()
    except ServerStartError:
        return True
    finally:
        locks.close()
    return False


@pytest.mark.parametrize("address", [PLACE, "ipc:///tmp/there"])
async def test_an_address_is_locked_while_its_server_is_open(tmp_path: Path, address: str) -> None:
    network: Any = Elsewhere(address)
    with trio.fail_after(LONG_S):
        async with open_server(echo, bind=address, workers=0, network=network) as server:
            await server.wait_ready()
            assert is_served(address)
            locks = ServerLocks.of_address(address)
            assert locks.try_epochs(b"x" * 16) is None
            locks.close()
            with pytest.raises(ServerStartError, match="another server"):
                async with open_server(echo, bind=address, workers=0, network=network):
                    raise AssertionError("it was opened")
            assert len(network.opened) == 1
    assert not is_served(address)
    assert files_in(tmp_path)  # for a later server at this address


@pytest.mark.parametrize(("bind", "locked"), [(ANY, True), (ADDRESS, False)])
async def test_an_address_that_nobody_comes_back_to_leaves_no_files(
    tmp_path: Path, bind: str, locked: bool
) -> None:
    """One that the system chose is locked meanwhile; one in memory has no locks."""
    network: Any = Elsewhere(PLACE) if locked else MemoryNetwork()
    with trio.fail_after(LONG_S):
        async with open_server(echo, bind=bind, workers=0, network=network) as server:
            await server.wait_ready()
            assert bool(files_in(tmp_path)) is locked
            assert not locked or is_served(PLACE)
    assert files_in(tmp_path) == []


@virtual
async def test_a_server_that_waited_too_long_for_an_earlier_one_says_so() -> None:
    """And not a group of such errors."""
    earlier, network = ServerLocks.of_address(PLACE), Elsewhere(PLACE)
    assert earlier.try_epochs(b"x" * 16) == set()
    options: Any = {"network": network, "limits": ServerLimits(lock_s=3.0)}
    try:
        with pytest.raises(ServerStartError, match="find them with: fuser"):
            async with open_server(echo, bind=PLACE, workers=0, **options) as server:
                await server.wait_ready()
    finally:
        earlier.close()


@pytest.mark.parametrize(
    ("address", "hosts", "lines"),
    [(PLACE, None, 0), ("tcp://0.0.0.0:7", None, 1), ("tcp://0.0.0.0:7", "tcp://0.0.0.0:8", 2)],
)
@virtual
async def test_each_address_that_others_can_reach_is_warned_of(
    caplog: pytest.LogCaptureFixture, address: str, hosts: str | None, lines: int
) -> None:
    network: Any = Elsewhere(address)
    limits = ServerLimits(window=99)
    async with open_server(
        "arithmetic", bind=address, hosts_bind=hosts, workers=0, network=network, limits=limits
    ):
        pass
    assert caplog.text.count(f"{address} is reachable from other machines") == lines
    assert [each.bind for each in network.opened] == [address, hosts][: len(network.opened)]
    assert {each.limits for each in network.opened} == {WireLimits()}


@virtual
async def test_sockets_are_of_the_transport_that_was_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network, chosen = Elsewhere(PLACE), []

    def open_network(transport: str) -> Any:
        chosen.append(transport)
        return network.enter()

    monkeypatch.setattr(opening, "open_network", open_network)
    async with open_server(echo, bind=PLACE, workers=0, transport="libzmq") as server:
        assert server.address == PLACE
    assert (chosen, network.entered) == (["libzmq"], 1)


@virtual
async def test_nobody_listens_to_a_socket_any_more_when_it_is_closed() -> None:
    """A server that was closed just when a host spoke raised ClosedResourceError."""
    network: Any = Elsewhere(PLACE)
    async with open_server(
        "arithmetic", bind=PLACE, hosts_bind=ANY, workers=0, network=network
    ) as server:
        await trio.testing.wait_all_tasks_blocked()
        assert server.hosts_address == PLACE
    assert [each.socket.heard_when_gone for each in network.opened] == [False, False]


async def test_the_locks_of_a_journal_are_held_with_those_of_the_address(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And given to the workers."""
    network: Any = Elsewhere(PLACE)
    given: list[Any] = []

    def workers(setup: Setup, locks: Any, address: str) -> InProcessWorkers:
        given.extend(each.path.name for each in locks)
        return InProcessWorkers(setup.options.environment, {}, setup.limits, setup.wire)

    monkeypatch.setattr(opening, "_host", workers)
    with trio.fail_after(LONG_S):
        async with open_server(
            echo, bind=PLACE, workers=0, network=network, journal=tmp_path / "journal"
        ) as server:
            await server.wait_ready()
            assert given[1:] == ["epochs.lock", "epochs.lock"]  # in it, and beside it
            for place in (tmp_path / "journal", tmp_path / ".journal.journal"):
                assert ServerLocks.of_folder(place).try_epochs(b"x" * 16) is None


# -- keys ---------------------------------------------------------------------------------

SERVER, WORKER, TRAINER = (KeyPair.new() for _ in range(3))
SEALED = ServerCurve(
    SERVER,
    {
        "worker": ClientRight(WORKER.public, ("work",)),
        "trainer": ClientRight(TRAINER.public, ("submit",)),
    },
)
W, T = (key_bytes(each.public, "it") for each in (WORKER, TRAINER))


@pytest.fixture
def sealed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The network of sockets that speak ZMTP."""
    network = Elsewhere(PLACE)
    monkeypatch.setattr(opening, "open_zmtp_network", network.enter)
    return network


@virtual
async def test_the_front_of_a_server_with_keys_asks_its_doorkeeper(
    sealed: Any, caplog: pytest.LogCaptureFixture
) -> None:
    sealed._address = "tcp://0.0.0.0:7"
    async with open_server(
        "arithmetic", bind="tcp://0.0.0.0:7", hosts_bind="tcp://0.0.0.0:8", workers=0, curve=SEALED
    ) as server:
        front, hosts = sealed.opened
        assert (front.bind, hosts.bind) == ("tcp://0.0.0.0:7", "tcp://0.0.0.0:8")
        assert front.curve.keys == hosts.curve.keys == SERVER
        assert front.limits == hosts.limits != WireLimits()
        assert [front.curve.admit(each) for each in (W, T, b"x")] == ["", "", STRANGER]
        assert hosts.curve.admit(W) == ""
        assert "may not work" in hosts.curve.admit(T)
        assert server.curve is not None
        # A host whose key may not be there loses its connection at the next tick.
        hosts.on_peer(W, "a place")
        hosts.on_peer(T, "a place")
        await trio.sleep(5)
        ((route, why),) = hosts.socket.closed
        assert route == T
        assert "may not work" in why
        assert front.socket.closed == []
    assert "no authentication" not in caplog.text
