"""The pytest plugin: servers, clients and fault proxies as fixtures.

Theory of operation
-------------------
pytest finds this module by its entry point and loads it in every session, wherever
the package is installed.  So it imports pytest and nothing else that is large.

``envserve_server``, ``envserve_client`` and ``envserve_proxy`` are factories for
async tests (pytest-trio).  A test awaits a factory in its own task, and the server,
client or proxy must be closed when the test is over; but a trio nursery must be left
by the task that entered it.  So neither the test nor these fixtures enter anything.
All three share one fixture, which owns a nursery, and a task in that nursery holds
open each thing that the test opens (:class:`OpenedContexts`).  At the end of the test they
are closed one after the other, the last one first: clients before their proxy, and
the proxy before its server.  (pytest-trio would tear down fixtures that do not depend
on each other at the same time.)  If one of them fails, the test fails at once, with
the same exception.

``envserve_address`` is for any test, async or not: a server in processes of its
own, one for the session.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeAlias, TypeVar, final

import pytest

if TYPE_CHECKING:
    import trio

    from ..client import Client
    from ..server import Server
    from .proxy import FaultProxy

T = TypeVar("T")

ADDRESS_VARIABLE = "TRIO_ENVSERVE_ADDRESS"
"""Set by ``trio-envserve run-with``: the address of its server."""

STOP_S = 60.0
"""Seconds that the session's server may take to stop."""


class HasAddress(Protocol):
    """A server, a proxy, or anything else that clients can connect to."""

    @property
    def address(self) -> str:
        """The address that clients connect to."""
        ...


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options, in a group of their own."""
    group = parser.getgroup("trio_envserve")
    group.addoption(
        "--envserve-env", metavar="ENV", default=None,
        help="the environment of the fixtures envserve_address and envserve_server "
        "(package.module:factory); overrides the ini option",
    )  # fmt: skip
    parser.addini("envserve_env", "the environment of envserve_address and envserve_server")
    parser.addini(
        "envserve_options", type="args", default=[],
        help="options of `trio-envserve serve` for envserve_address, such as --workers 2",
    )  # fmt: skip


# -- for async tests ------------------------------------------------------------


@final
class OpenedContexts:
    """The servers and clients that a test has opened; a task of its own holds each one open."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._held: list[tuple[trio.Event, trio.Event]] = []

    async def open(self, context: AbstractAsyncContextManager[T]) -> T:
        """Enter ``context`` until the end of the test; returns its value."""
        import trio

        close, closed = trio.Event(), trio.Event()

        async def hold(*, task_status: trio.TaskStatus[T]) -> None:
            try:
                async with context as value:
                    task_status.started(value)
                    await close.wait()
            finally:
                closed.set()

        value: T = await self._nursery.start(hold)
        self._held.append((close, closed))
        return value

    async def aclose(self) -> None:
        """Close everything, the last one first."""
        while self._held:
            close, closed = self._held.pop()
            close.set()
            await closed.wait()


@final
class ServerFactory:
    """Opens servers for a test: the fixture ``envserve_server``."""

    def __init__(self, opened: OpenedContexts, default: str) -> None:
        self._opened = opened
        self._default = default

    async def __call__(
        self, environment: str | object | None = None, *, ready: bool = True,
        workers: int | None = None, args: Mapping[str, Any] | None = None, **options: Any,
    ) -> Server:  # fmt: skip
        """A running server on a free port of this machine, until the test ends.

        ``environment``: as for :func:`trio_envserve.open_server`; None: the one of
        the option ``--envserve-env``, or of the ini option ``envserve_env``.
        ``workers``: worker processes; by default 1 for a name, and 0 for an object, a
        class or a closure, which run in this process.  Other ``options`` are those
        of ``open_server``.  Returns when a worker is ready, or with
        ``ready=False`` when the address is bound.  Raises ServerStartError, with
        the environment's traceback, if it cannot be set up.
        """
        chosen = self._default if environment is None else environment
        if not chosen:
            pytest.fail(
                "envserve_server() was given no environment, and there is neither "
                "--envserve-env nor envserve_env in the configuration",
                pytrace=False,
            )
        if workers is None:
            workers = 1 if isinstance(chosen, str) else 0
        server = _open_ready_server(chosen, ready, workers=workers, args=args, **options)
        return await self._opened.open(server)


@final
class PeerFactory(Generic[T]):
    """Opens what connects to a server, for a test: the fixtures ``envserve_client`` and
    ``envserve_proxy``."""

    def __init__(
        self, opened: OpenedContexts, opener: Callable[..., AbstractAsyncContextManager[T]]
    ) -> None:
        self._opened = opened
        self._opener = opener

    async def __call__(self, server: HasAddress | str, **options: Any) -> T:
        """A client of ``server`` (a server, a proxy or an address), or a fault proxy in front of
        it, until the test ends.

        ``options`` are those of :func:`trio_envserve.open_client`, or of
        :func:`trio_envserve.testing.proxy.open_fault_proxy`.  Calls of a client wait for the
        server; this does not.
        """
        address = server if isinstance(server, str) else server.address
        return await self._opened.open(self._opener(address, **options))


ClientFactory: TypeAlias = "PeerFactory[Client]"
ProxyFactory: TypeAlias = "PeerFactory[FaultProxy]"


@asynccontextmanager
async def _open_ready_server(
    environment: str | object, ready: bool, **options: Any
) -> AsyncIterator[Server]:
    from ..server import open_server

    async with open_server(environment, **options) as server:
        if ready:
            await server.wait_ready()
        yield server


@pytest.fixture
async def _envserve_opened() -> AsyncIterator[OpenedContexts]:
    """The servers and clients that the factories of one test have opened."""
    import trio

    async with trio.open_nursery() as nursery:
        opened = OpenedContexts(nursery)
        yield opened
        await opened.aclose()


@pytest.fixture
def envserve_server(_envserve_opened: OpenedContexts, pytestconfig: pytest.Config) -> ServerFactory:
    """Opens trio_envserve servers on free ports; they close when the (async) test ends.

    `await envserve_server("package.module:factory", workers=2, args={...})`; without
    a name it serves the environment of --envserve-env or envserve_env. An object or a
    closure runs inside the test's own process.
    """
    return ServerFactory(_envserve_opened, _environment(pytestconfig))


@pytest.fixture
def envserve_client(_envserve_opened: OpenedContexts) -> ClientFactory:
    """Opens trio_envserve clients; they close when the (async) test ends.

    `await envserve_client(server)`, of a server, a proxy or an address. Whatever was
    opened last is closed first.
    """
    from ..client import open_client

    return PeerFactory(_envserve_opened, open_client)


@pytest.fixture
def envserve_proxy(_envserve_opened: OpenedContexts) -> ProxyFactory:
    """Opens TCP fault proxies in front of servers; they close when the (async) test ends.

    `proxy = await envserve_proxy(server)`; clients connect to the proxy, which cuts,
    stalls, half-opens, throttles and delays: `proxy.cut_all()`.
    """
    from .proxy import open_fault_proxy

    return PeerFactory(_envserve_opened, open_fault_proxy)


# -- for any test ----------------------------------------------------------------


@pytest.fixture(scope="session")
def envserve_address(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of a trio_envserve server, one for the session; for any test.

    Under `trio-envserve run-with` it is that command's server. Otherwise a server is
    started, in processes of its own, for the environment of --envserve-env or
    envserve_env, with the options envserve_options (with pytest-xdist: one for
    each of its workers).
    """
    given = os.environ.get(ADDRESS_VARIABLE, "")
    if given and pytestconfig.getoption("envserve_env") is None:
        yield given
        return
    environment = _environment(pytestconfig)
    if not environment:
        pytest.fail(
            "envserve_address has no server: run the tests with `trio-envserve run-with ENV -- "
            "pytest ...`, or name an environment with --envserve-env or envserve_env",
            pytrace=False,
        )
    server = _SessionServer(environment, pytestconfig, tmp_path_factory.mktemp("envserve"))
    try:
        yield server.wait_ready()
        server.check_running()
    finally:
        server.stop()


def _environment(config: pytest.Config) -> str:
    return str(config.getoption("envserve_env") or config.getini("envserve_env") or "")


@final
class _SessionServer:
    """The command ``serve`` in a process of its own."""

    def __init__(self, environment: str, config: pytest.Config, folder: Path) -> None:
        self._environment = environment
        self._errors = folder / "server.err"
        command = [
            sys.executable, "-m", "trio_envserve", "serve", environment, "--json",
            "--bind", "tcp://127.0.0.1:0", "--drain-s", "1", "--exit-with-parent",
            *config.getini("envserve_options"),
        ]  # fmt: skip
        # The server can import whatever the tests can: pytest extends sys.path as it runs.
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        with self._errors.open("wb") as stream:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stream,
                env={**os.environ, "PYTHONPATH": path},
            )  # fmt: skip

    def wait_ready(self) -> str:
        """The address, once a worker is ready; fails the test if the server ends before."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            record = json.loads(line)
            if record.get("event") == "ready":
                return str(record["address"])
        self._fail("could not be started")

    def check_running(self) -> None:
        """Fail the test if the server has ended by itself."""
        if self._process.poll() is not None:
            self._fail(f"ended by itself, with exit code {self._process.returncode}")

    def stop(self) -> None:
        """Stop the server and its workers."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its workers notice, and end
            self._process.communicate()

    def _fail(self, what: str) -> NoReturn:
        text = self._errors.read_text(encoding="utf-8", errors="replace")
        pytest.fail(f"the server of {self._environment} {what}; it said:\n{text}", pytrace=False)
