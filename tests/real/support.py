"""What the tests with real processes share: servers and clients as processes,
calls in the background, and a client that does as it likes."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import trio

from tests.connections import own_host
from tests.real.environments import POLL_S
from tests.real.judge import Judge
from trio_envserve import (
    CallError,
    Client,
    ClientLimits,
    ErrorInfo,
    Outcome,
    Server,
    ServerLimits,
    WorkerRange,
    WorkerStats,
    open_client,
)
from trio_envserve import open_server as open_real_server
from trio_envserve.core import messages, values
from trio_envserve.core.limits import PROTOCOL_VERSION, WireLimits
from trio_envserve.core.terms import Body
from trio_envserve.envs import RolloutRequest
from trio_envserve.lab.processes import Process, program
from trio_envserve.net import DealerSocket, open_zmq_network

ROOT = Path(__file__).resolve().parent.parent.parent
ACTOR = "tests.real.environments:Actor"
ANY_PORT = f"tcp://{own_host()}:0"
PATIENCE_S = 180.0
"""A test that takes so long hangs.  No test waits for this."""

SOON_S = 30.0
"""What takes milliseconds and has not come so soon does not come."""

T = TypeVar("T")
E = TypeVar("E", bound=CallError)

QUICK: dict[str, Any] = {
    "tick_s": 0.02, "beat_s": 0.2, "heartbeat_s": 0.1, "retry_delay_s": 0.05,
    "restart_pause_s": 0.02, "restart_pause_max_s": 0.1, "reap_settle_s": 0.05,
}  # fmt: skip
"""Timers of a server that repair quickly.  None of them decides about a life."""

QUICK_CLIENT: dict[str, Any] = {"ping_s": 0.1, "idle_ping_s": 0.1, "hello_retry_s": 0.1}

WIRE = WireLimits(reconnect_max_s=0.1)


@asynccontextmanager
async def open_server(
    judge: Judge, *, environment: str = ACTOR, workers: int | WorkerRange = 1,
    args: dict[str, Any] | None = None, wire: WireLimits | None = None,
    bind: str = ANY_PORT, worker_environ: Sequence[Mapping[str, str]] = (),
    **limits: Any,
) -> AsyncIterator[Server]:  # fmt: skip
    """A server in this process, its workers in theirs (``workers=0``: here, too)."""
    async with open_real_server(
        environment, args={"directory": str(judge.directory), **(args or {})}, workers=workers,
        limits=ServerLimits(**{**QUICK, **limits}), wire=wire, bind=bind,
        worker_environ=worker_environ,
    ) as server:  # fmt: skip
        yield server


async def honest_s(judge: Judge) -> float:
    """A limit that an honest worker keeps, from its start on, however slow this machine is;
    one that is to be killed is waited for as long."""
    began_s = trio.current_time()
    async with open_server(judge) as server:
        await server.wait_ready()
    return 3.0 + 4 * (trio.current_time() - began_s)


class Calls:
    """Calls in the background of a test."""

    def __init__(self, client: Client, nursery: trio.Nursery) -> None:
        self.client = client
        self.outcomes: dict[str, Outcome] = {}
        self._nursery = nursery
        self._scopes: dict[str, trio.CancelScope] = {}
        self._changed = trio.lowlevel.ParkingLot()

    def start(self, key: str, *do: list[Any], value: Any = None, **options: Any) -> str:
        """Ask for a rollout that does these steps; returns the key."""
        self._nursery.start_soon(
            self._run, key, {"key": key, "do": list(do), "value": value}, options
        )
        return key

    async def _run(self, key: str, asked: dict[str, Any], options: dict[str, Any]) -> None:
        with trio.CancelScope() as self._scopes[key]:
            self.outcomes[key] = await self.client.outcome(asked, **options)
        self._changed.unpark_all()

    def cancel(self, key: str) -> None:
        """Cancel the caller's scope."""
        self._scopes[key].cancel()

    async def outcome(self, key: str) -> Outcome:
        """The outcome, once it is there."""
        while key not in self.outcomes:
            await self._changed.park()
        return self.outcomes[key]

    async def error(self, key: str, kind: type[E]) -> E:
        """The error of a call that must end with one of this kind, exactly."""
        error = (await self.outcome(key)).error
        assert type(error) is kind, error
        return error

    async def failure(self, key: str) -> CallError:
        """The error of a call that must end with one, of whatever kind."""
        error = (await self.outcome(key)).error
        assert error is not None
        return error

    async def value(self, key: str) -> Any:
        """The value of a call that must have one, and whose it is."""
        value = (await self.outcome(key)).unwrap()
        assert value["key"] == key
        return value


@asynccontextmanager
async def open_calls(address: str, **limits: Any) -> AsyncIterator[Calls]:
    """A client in this process, and a nursery for its calls."""
    async with open_client(
        address, limits=ClientLimits(**{**QUICK_CLIENT, **limits}), wire=WIRE
    ) as client:
        async with trio.open_nursery() as nursery:
            yield Calls(client, nursery)
            nursery.cancel_scope.cancel()


def info_of(error: CallError) -> ErrorInfo:
    """What came over the wire about an error that did not begin at the client."""
    assert error.info is not None
    return error.info


def worker_of(server: Server, index: int = 0) -> WorkerStats:
    """What a server in this process says of a worker; for waiting, not for judging."""
    return server.stats().per_worker[index]


def pid_of(server: Server, index: int = 0) -> int:
    """The process of a worker that has been started."""
    pid = worker_of(server, index).pid
    assert pid is not None
    return pid


async def until(condition: Callable[[], bool]) -> None:
    """Until a condition holds, looking often."""
    while not condition():
        await trio.sleep(POLL_S)


# -- processes ------------------------------------------------------------------


@asynccontextmanager
async def open_process(
    judge: Judge, module: str, options: dict[str, Any], ready: str = ""
) -> AsyncIterator[Process]:
    """A process that runs ``module``; killed at the end, if it is there yet."""
    log = judge.directory / f"{module}-{len(list(judge.directory.glob('*.txt')))}.txt"
    command = program(f"tests.real.{module}", options)
    async with Process(command, module, ready=ready, cwd=ROOT, log=log, end_s=0.0) as process:
        try:
            yield process
        except BaseException:
            # Shown by pytest with the failure, whatever it is.
            print(f"--- {module}, exit status {process.status}:\n{process.last_words()}")
            raise


@asynccontextmanager
async def open_server_process(
    judge: Judge, *, bind: str = ANY_PORT, workers: int = 1,
    args: dict[str, Any] | None = None, **limits: Any,
) -> AsyncIterator[Process]:  # fmt: skip
    """A server in a process of its own, bound."""
    options = {
        "environment": ACTOR, "args": {"directory": str(judge.directory), **(args or {})},
        "bind": bind, "workers": workers, "limits": {**QUICK, **limits},
    }  # fmt: skip
    async with open_process(judge, "server_main", options, "serving") as process:
        yield process


@asynccontextmanager
async def open_client_process(
    judge: Judge, address: str, calls: Iterable[tuple[dict[str, Any], dict[str, Any]]],
    **limits: Any,
) -> AsyncIterator[Process]:  # fmt: skip
    """A client in a process of its own that makes these calls."""
    options = {"address": address, "calls": list(calls), "limits": {**QUICK_CLIENT, **limits}}
    async with open_process(judge, "client_main", options) as process:
        yield process


def is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def is_doomed(pid: int) -> bool:
    """Whether a process is not alive, or has been killed and will not execute one more
    instruction: the system may take a moment to end it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    fields = {name: value for name, _, value in (x.partition(":\t") for x in status.splitlines())}
    pending = int(fields["SigPnd"], 16) | int(fields["ShdPnd"], 16)
    return fields["State"][0] in "ZX" or bool(pending & 1 << signal.SIGKILL - 1)


async def wait_gone(*pids: int) -> None:
    """Until none of these processes is alive."""
    await until(lambda: not any(map(is_alive, pids)))


async def assert_gone(*pids: int, soon_s: float = SOON_S) -> None:
    """They end; and if they do not, that is what the test says."""
    with trio.move_on_after(soon_s):
        await wait_gone(*pids)
    left = [pid for pid in pids if is_alive(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


# -- a client that does as it likes ----------------------------------------------


@dataclasses.dataclass(eq=False)
class RawClient:
    """Speaks the protocol by hand: duplicates, conflicts, late finishes."""

    socket: DealerSocket
    session: bytes = b""
    epoch: bytes = b""
    connection: int = 0
    probe: int = 0
    received: list[tuple[Any, tuple[bytes, ...]]] = dataclasses.field(default_factory=list)

    def send(self, message: messages.Message, *body: Body) -> None:
        assert self.socket.send_nowait((messages.encode(message), *body))

    async def hello(self, nonce: bytes = b"") -> messages.Welcome:
        """Open a session, or the one of this nonce."""
        self.connection += 1
        nonce = nonce or os.urandom(16)
        welcome = None
        while welcome is None:
            # Repeated: before the connection is made it goes nowhere.
            self.send(messages.Hello(PROTOCOL_VERSION, nonce, self.connection, "raw", 1 << 30))
            with trio.move_on_after(0.5):
                welcome, _ = await self.next(messages.Welcome)
        self.session, self.epoch = welcome.session, welcome.epoch
        return welcome

    def request(
        self, sequence: int, key: str, *do: list[Any], value: Any = None,
        digest: bytes = b"d" * 16, rerun: bool | None = None, allowance: int = 3,
        deadline_s: float | None = None,
    ) -> None:  # fmt: skip
        """One transmission of a request."""
        asked = {"key": key, "do": list(do), "value": value}
        request = RolloutRequest(kind="rollout", input=asked, endpoint="oracle", model_name="")
        header = messages.Request(self.session, sequence, digest, rerun, allowance, deadline_s)
        self.send(header, values.encode(request.to_body()))

    def finish(self, *sequences: int) -> None:
        for sequence in sequences:
            self.send(messages.Finish(self.session, [sequence, sequence + 1]))

    async def sync(self, next_sequence: int, pending: list[int]) -> messages.Synced:
        """State what is held (``pending``: spans), and wait for the answer."""
        self.probe += 1
        self.send(
            messages.Sync(
                self.session, self.epoch, self.connection, self.probe, next_sequence, pending
            )
        )
        while True:
            synced, _ = await self.next(messages.Synced)
            if synced.probe == self.probe:
                return synced

    async def next(self, kind: type[T]) -> tuple[T, tuple[bytes, ...]]:
        """The next message of a kind, and all its frames; others stay for later."""
        while True:
            for index, (message, frames) in enumerate(self.received):
                if isinstance(message, kind):
                    del self.received[index]
                    return message, frames
            for batch in await self.socket.receive():
                whole = [bytes(frame) for frame in batch]
                for row in messages.one_by_one(whole, most_bytes=1 << 20):
                    frames = tuple(map(bytes, row))
                    message = messages.decode(frames[0], most_bytes=1 << 20)
                    self.received.append((message, frames))

    async def barrier(self, next_sequence: int, pending: list[int]) -> None:
        """Until the server has taken in everything that was sent before."""
        await self.sync(next_sequence, pending)

    def all(self, kind: type[T]) -> list[tuple[T, tuple[bytes, ...]]]:
        """Those of a kind that have come and were not taken."""
        return [(m, f) for m, f in self.received if isinstance(m, kind)]


@asynccontextmanager
async def open_raw(address: str) -> AsyncIterator[RawClient]:
    """A connection without a session; see :meth:`RawClient.hello`."""
    async with (
        open_zmq_network() as network,
        network.open_dealer(address, limits=WIRE) as socket,
    ):
        yield RawClient(socket)
