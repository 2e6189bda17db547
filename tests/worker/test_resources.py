"""Resources in environment code of every backend: whatever ends a rollout, they are destroyed."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from tests.worker import shop as shops
from tests.worker.helpers import BACKENDS, on_asyncio, opened, request, served, until
from tests.worker.shop import (
    Shop,
    acreate,
    adestroy,
    create,
    destroy,
    destroy_by_a_coroutine,
)
from trio_envserve import (
    Client,
    ResourceError,
    Rollout,
    RolloutCancelled,
    RolloutFailed,
    Server,
    foreign,
)
from trio_envserve.core.limits import WireLimits
from trio_envserve.core.messages import Clean
from trio_envserve.core.scope import ResourceState, Stated
from trio_envserve.core.worker import Cleaned, ResourceTold
from trio_envserve.envs import load
from trio_envserve.envs.resources import find_destroy, wanted_resource
from trio_envserve.models.offline import OracleModel
from trio_envserve.worker.carriers import TrioCarrier
from trio_envserve.worker.failures import EnvironmentFailure
from trio_envserve.worker.resources import (
    CarriedResources,
    ExecutionResources,
    WorkerResources,
    resources_here,
)

LOOPS = [each for each in BACKENDS if each != "thread"]


@pytest.fixture
def shop() -> Iterator[Shop]:
    shops.SHOPS["shop"] = made = Shop()
    yield made
    del shops.SHOPS["shop"]


class Making:
    """Has a resource while ``during`` runs, on any backend."""

    def __init__(self, backend: str, *, plain: bool = False, waits: bool = False) -> None:
        self.backend = backend
        self.waits = waits
        self.create: Any = create if plain else acreate
        self.destroy: Any = destroy if plain else adestroy
        self.entered = trio.Event()
        self.run_rollout: Any = self._coroutine
        if backend == "thread":
            self.create, self.destroy = create, destroy
            self.run_rollout = self._plain

    async def _coroutine(self, rollout: Rollout) -> Any:
        async with rollout.resource("sandbox", self.create, self.destroy) as handle:
            while self.waits:  # noqa: ASYNC110  # of any loop
                await (asyncio if self.backend == "asyncio" else trio).sleep(0.01)
            return {"reward": 1.0, "handle": handle}

    def _plain(self, rollout: Rollout) -> Any:
        with rollout.resource("sandbox", self.create, self.destroy) as handle:
            while self.waits and not rollout.cancelled():
                pass
            return {"reward": 1.0, "handle": handle}


async def cancelled_at(client: Client, call: str, shop: Shop) -> None:
    """Cancel a rollout once it has made a call."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.run_rollout, {})
        await until(lambda: shop.calls[call])
        nursery.cancel_scope.cancel()


async def gone(server: Server) -> None:
    """Wait until no resource is left."""
    await until(lambda: server.stats().resources == 0)


@pytest.mark.parametrize("plain", [False, True], ids=["coroutines", "plain"])
@pytest.mark.parametrize("backend", BACKENDS)
async def test_resource_is_created_used_and_destroyed_with_its_handle(
    backend: str, plain: bool, shop: Shop
):
    async with served(Making(backend, plain=plain)) as (server, client):
        value = await client.run_rollout({})
        assert value["handle"] == "handle"
        assert (shop.there, shop.handles) == ({}, ["handle"])
        assert (server.stats().resources, server.stats().resources_destroyed) == (0, 1)


@pytest.mark.parametrize("backend", BACKENDS)
async def test_resource_of_a_cancelled_rollout_is_destroyed(backend: str, shop: Shop):
    async with served(Making(backend, waits=True)) as (server, client):
        await cancelled_at(client, "create", shop)
        await gone(server)
        assert (shop.there, shop.handles) == ({}, ["handle"])


@pytest.mark.parametrize("plain", [False, True], ids=["coroutines", "plain"])
@pytest.mark.parametrize("backend", LOOPS)
async def test_create_that_is_cancelled_leaves_nothing(backend: str, plain: bool, shop: Shop):
    shop.creates_slowly = True
    async with served(Making(backend, plain=plain)) as (server, client):
        await cancelled_at(client, "create", shop)
        shop.creates_slowly = not plain
        await gone(server)
        assert shop.there == {}
        assert shop.handles == (["handle"] if plain else [None])


@pytest.mark.parametrize("backend", BACKENDS)
async def test_create_that_raises_is_destroyed_by_its_name(backend: str, shop: Shop):
    environment = Making(backend)
    environment.create = create_badly if backend == "thread" else acreate_badly
    async with served(environment) as (server, client):
        with pytest.raises(RolloutFailed, match="no quota"):
            await client.run_rollout({})
        assert (shop.there, shop.handles, server.stats().resources) == ({}, [None], 0)


MANY = 40
"""More than asyncio's own executor has threads."""


@pytest.mark.parametrize("backend", LOOPS)
async def test_plain_functions_that_take_long_hold_up_no_others(backend: str, shop: Shop):
    """Each creates once all do."""
    together = threading.Barrier(MANY, timeout=50)

    def create_together(name: str) -> Any:
        together.wait()
        return create(name)

    environment = Making(backend, plain=True)
    environment.create = create_together
    async with served(environment) as (_, client), trio.open_nursery() as nursery:
        for _ in range(MANY):
            nursery.start_soon(client.run_rollout, {})
    assert (shop.calls["create"], shop.there) == (MANY, {})


def create_badly(name: str) -> Any:
    shops.shop().make(name)
    raise RuntimeError("no quota")


async def acreate_badly(name: str) -> Any:
    create_badly(name)


@pytest.mark.parametrize(
    ("handle", "why"),
    [(object(), "handle: cannot encode .*"), ("h" * 5000, "it takes more than 4096 bytes")],
    ids=["no value", "too large"],
)
@pytest.mark.parametrize("backend", BACKENDS)
async def test_handle_that_cannot_be_kept_is_an_error_in_words(
    backend: str, handle: Any, why: str, shop: Shop
):
    shop.says_handle = handle
    told = f"create of the resource sandbox returned a handle .* kept: {why}. Return a small value"
    async with served(Making(backend)) as (server, client):
        with pytest.raises(RolloutFailed, match=told) as raised:
            await client.run_rollout({})
        assert raised.value.code == "resource"
        assert (shop.there, server.stats().resources) == ({}, 0)


@pytest.mark.parametrize("backend", BACKENDS)
async def test_destroy_that_raises_is_left_to_the_server(backend: str, shop: Shop, caplog: Any):
    shop.fails = 1
    async with served(Making(backend)) as (server, client):
        assert (await client.run_rollout({}))["reward"] == 1.0
        await gone(server)
        assert (shop.there, shop.handles, shop.overlapped) == ({}, ["handle"] * 2, False)
        assert "OSError: the provider is down; the server gives it to a worker" in caplog.text


@pytest.mark.parametrize("backend", LOOPS)
async def test_destroy_that_hangs_is_cancelled_and_left_to_the_server(
    backend: str, shop: Shop, caplog: Any
):
    shop.hangs = 1
    async with served(Making(backend), destroy_s=0.2) as (server, client):
        assert (await client.run_rollout({}))["reward"] == 1.0
        await gone(server)
        assert (shop.there, shop.overlapped) == ({}, False)
        assert "it took longer than 0.2 s (destroy_s)" in caplog.text


@pytest.mark.parametrize("backend", BACKENDS)
async def test_worker_in_this_process_is_replaced_if_a_destroy_hangs_in_its_thread(
    backend: str, shop: Shop
):
    shop.hangs = 1
    limits = {"cancel_grace_s": 0.1, "beat_s": 0.1}
    async with served(Making(backend, plain=True), **limits) as (server, client):
        try:
            await cancelled_at(client, "destroy", shop)
            assert (await client.run_rollout({}))["reward"] == 1.0
            assert (server.stats().resources, shop.overlapped) == (1, False)
        finally:
            shop.opens.set()
        await gone(server)
        assert (shop.there, shop.calls["destroy"]) == ({}, 2)


@pytest.mark.parametrize("fails", [0, 1], ids=["by its block", "by a worker"])
@pytest.mark.parametrize("backend", LOOPS)
async def test_destroy_that_returns_a_coroutine_is_awaited_whoever_calls_it(
    backend: str, fails: int, shop: Shop
):
    environment = Making(backend)
    environment.destroy = destroy_by_a_coroutine
    shop.fails = fails
    async with served(environment) as (server, client):
        assert (await client.run_rollout({}))["reward"] == 1.0
        await gone(server)
        assert (shop.there, shop.calls["destroy"]) == ({}, fails + 1)


async def test_destroy_that_returns_a_coroutine_in_a_thread_is_not_taken_for_done(shop: Shop):
    environment = Making("thread")
    environment.destroy = destroy_by_a_coroutine
    async with served(environment) as (server, client):
        assert (await client.run_rollout({}))["reward"] == 1.0
        await until(lambda: server.stats().resources_held or not server.stats().resources)
        (shown,) = server.stats().resources_held
        assert (len(shop.there), shop.calls["destroy"]) == (1, 0)
        assert "a plain function returned coroutine, which needs a loop" in shown.why


@pytest.mark.parametrize("backend", BACKENDS)
async def test_resource_whose_block_is_left_open_is_destroyed_with_its_rollout(
    backend: str, shop: Shop
):
    def leave(rollout: Rollout) -> float:
        rollout.resource("sandbox", create, destroy).__enter__()
        return 1.0

    async def leave_on_a_loop(rollout: Rollout) -> float:
        await rollout.resource("sandbox", acreate, adestroy).__aenter__()
        return 1.0

    leave_on_a_loop.backend = backend  # type: ignore[attr-defined]  # as environments say it
    async with served(leave if backend == "thread" else leave_on_a_loop) as (server, client):
        await client.run_rollout({})
        assert (shop.there, shop.handles, server.stats().resources) == ({}, ["handle"], 0)


async def test_bound_refuses_in_words_before_anything_is_created(shop: Shop):
    async def many(rollout: Rollout) -> float:
        async with (
            rollout.resource("sandbox", acreate, adestroy),
            rollout.resource("sandbox", acreate, adestroy),
        ):
            return 1.0

    async with served(many, execution_resources=1) as (server, client):
        with pytest.raises(RolloutFailed, match="no sandbox is created: 1 are held") as raised:
            await client.run_rollout({})
        assert raised.value.code == "resource"
        assert (shop.calls["create"], shop.there, server.stats().resources) == (1, {}, 0)


async def test_resource_that_nothing_can_destroy_is_shown_as_stuck(shop: Shop):
    shop.fails = 100
    async with served(Making("trio"), destroy_tries=1) as (server, client):
        await client.run_rollout({})
        await until(lambda: server.stats().resources_stuck)
        (shown,) = server.stats().resources_held
        assert (shown.kind, shown.state, shown.tries) == ("sandbox", "stuck", 1)
        assert "the provider is down" in shown.why


@pytest.mark.parametrize("backend", BACKENDS)
async def test_resource_without_a_router_has_a_name_of_this_process(backend: str, shop: Shop):
    async with opened(load(Making(backend)), threads=2) as runner:
        await runner.run(request(), request_id="ab#0")
        assert (shop.there, shop.handles, runner.resources.open) == ({}, ["handle"], {})


async def test_coroutine_functions_are_refused_in_a_thread(shop: Shop):
    environment = Making("thread")
    environment.create = acreate
    async with opened(load(environment), threads=2) as runner:
        with pytest.raises(EnvironmentFailure, match="acreate is a coroutine function"):
            await runner.run(request(), request_id="ab#0")


# -- tasks and threads that outlive their rollout -------------------------------------------


class EndsBefore:
    """A carrier whose execution ends before its code has the name."""

    def __init__(self, resources: ExecutionResources) -> None:
        self.resources = resources
        self.has_ended = False

    async def call(self, work: Any, undo: Any = None) -> Any:
        if self.has_ended:
            raise RolloutCancelled("the rollout was cancelled, or has ended")
        made, self.has_ended = await work(), True
        await self.resources.close()
        return made

    def call_sync(self, work: Any) -> Any:
        return trio.from_thread.run(self.call, work)

    def soon(self, act: Callable[[], object]) -> None:
        act()


@pytest.mark.parametrize("backend", ["trio", "thread"])
async def test_g13_block_whose_rollout_ends_before_it_has_its_name_creates_nothing(
    backend: str, shop: Shop
):
    async def calls(function: Callable[[], Awaitable[Any]]) -> Any:
        return await foreign.acall(function)

    resources = ExecutionResources(resources_here(calls), 0, "ab#0")
    keeper = CarriedResources(resources, EndsBefore(resources))
    wanted = wanted_resource("sandbox", create, destroy)
    with pytest.raises(ResourceError, match="no sandbox is created: the rollout has ended"):
        if backend == "thread":
            await trio.to_thread.run_sync(keeper.open_sync, wanted)
        else:
            await keeper.open(wanted)
    assert (shop.calls["create"], shop.there) == (0, {})


async def test_g13_block_whose_rollout_ends_before_it_is_named_creates_nothing(
    autojump_clock: trio.testing.MockClock, shop: Shop
):
    told: list[Any] = []

    async def calls(function: Callable[[], Awaitable[Any]]) -> Any:
        raise AssertionError(function)

    worker = WorkerResources(told.append, WireLimits(), 1.0, calls)
    resources = ExecutionResources(worker, 0, "ab#0")
    keeper = CarriedResources(resources, TrioCarrier())

    async def stray() -> None:
        with pytest.raises(ResourceError, match="no sandbox is created: the rollout has ended"):
            await keeper.open(wanted_resource("sandbox", create, destroy))

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stray)
            await trio.testing.wait_all_tasks_blocked()
            await resources.close()
            worker.stated(Stated(0, "name", ""))
    assert told[-1] == ResourceTold(0, ResourceState.GONE)
    assert (shop.calls["create"], worker.open) == (0, {})


@pytest.mark.parametrize("backend", BACKENDS)
async def test_g13_second_block_with_the_same_resource_is_refused(backend: str, shop: Shop):
    """It was entered, and its end destroyed what the other block still had, or left its own."""

    def plain(rollout: Rollout) -> Any:
        resource = rollout.resource("sandbox", create, destroy)
        with resource:
            with pytest.raises(RuntimeError, match="another block has this resource sandbox"):
                resource.__enter__()
            there = len(shop.there)
        with resource:
            return {"there": there, "again": len(shop.there)}

    async def coroutine(rollout: Rollout) -> Any:
        resource = rollout.resource("sandbox", acreate, adestroy)
        async with resource:
            with pytest.raises(RuntimeError, match="another block has this resource sandbox"):
                await resource.__aenter__()
            there = len(shop.there)
        async with resource:
            return {"there": there, "again": len(shop.there)}

    if backend == "asyncio":
        on_asyncio(coroutine)
    async with served(plain if backend == "thread" else coroutine) as (_, client):
        assert await client.run_rollout({}) == {"there": 1, "again": 1}
        assert shop.there == {}


@pytest.mark.parametrize("plain", [False, True], ids=["coroutines", "plain"])
async def test_resource_that_could_not_be_created_may_be_entered_again(plain: bool, shop: Shop):
    async def twice(rollout: Rollout) -> Any:
        resource = rollout.resource("sandbox", create if plain else acreate, destroy)
        shop.says_handle = object()
        with pytest.raises(ResourceError, match="a handle that cannot be kept"):
            await resource.__aenter__()
        shop.says_handle = "handle"
        async with resource as handle:
            return handle

    async with served(twice) as (_, client):
        assert await client.run_rollout({}) == "handle"
        assert shop.there == {}


# -- what travels -------------------------------------------------------------------------


class Shopkeeper:
    def destroy(self, name: str, handle: Any) -> None:
        """A method, which no other worker has."""


def within() -> Any:
    def destroy(name: str, handle: Any) -> None: ...

    return destroy


def destroy_by_name(name: str) -> None:
    """Lacks the handle."""


def destroy_with_yield(name: str, handle: Any) -> Iterator[None]:
    """Does nothing when it is called."""
    yield


async def adestroy_with_yield(name: str, handle: Any) -> AsyncIterator[None]:
    """The same for a loop."""
    yield


NO_FUNCTION = "as a function at the top of a module"
NO_KIND = "the kind of a resource is"
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"destroy": lambda name, handle: None}, f"is a lambda: write it .*{NO_FUNCTION}"),
    ({"destroy": within()}, "is destroy, a function within another one: write it"),
    ({"destroy": Shopkeeper.destroy}, "is Shopkeeper.destroy, which the module .* does not"),
    *(({"destroy": each}, NO_FUNCTION) for each in (Shopkeeper().destroy, partial(destroy), 3)),
    ({"destroy": destroy_by_name}, r"called with \(name, handle\), which .*: too many"),
    # They would count as done, and do nothing.
    ({"destroy": destroy_with_yield}, "sandbox is a generator function"),
    ({"destroy": adestroy_with_yield}, "sandbox is a generator function"),
    ({"create": 3}, "create of the resource sandbox is a function, not int"),
    ({"create": lambda: 1}, r"create of .* is called with \(name\), which .*: too many"),
    ({"create": lambda name, size: 1}, r"called with \(name\), which .*: missing .* 'size'"),
    *(({"kind": each}, NO_KIND) for each in (3, "", "a\n", "k" * 65)),
    ({"here": "h1"}, "here of the resource sandbox is True or False, not 'h1'"),
]


@pytest.mark.parametrize(("given", "told"), REFUSED)
def test_resource_that_cannot_be_had_is_refused_before_anything_is_created(
    given: dict[str, Any], told: str
):
    wanted = {"kind": "sandbox", "create": create, "destroy": destroy, **given}
    with pytest.raises((TypeError, ValueError), match=told):
        wanted_resource(**wanted)


def test_create_that_was_called_already_is_refused_without_a_warning():
    with pytest.raises(TypeError, match="not coroutine: write its name without a call"):
        wanted_resource("sandbox", acreate("name"), destroy)


def test_rollout_that_no_worker_runs_has_no_resources():
    rollout = Rollout(None, OracleModel(), "m", {}, (), 1, "r")
    with pytest.raises(RuntimeError, match="no worker runs this rollout"):
        rollout.resource("sandbox", create, destroy)


def test_reference_finds_its_function_again():
    assert find_destroy(wanted_resource("k", create, destroy).reference) is destroy


@pytest.mark.parametrize("by_file", [False, True], ids=["name", "file"])
async def test_g13_function_of_a_module_that_another_thread_imports_is_found(
    by_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """``sys.modules`` had the module without its functions, and a try was gone."""
    name = f"slow_{by_file}".lower()
    file = tmp_path / f"{name}.py"
    file.write_text(
        "from tests.worker.shop import IMPORTS\n"
        "IMPORTS[__name__][0].set()\n"
        "IMPORTS[__name__][1].wait(60)\n"
        "def destroy(name, handle): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    begun, may_end = shops.IMPORTS[name] = threading.Event(), threading.Event()
    found: list[Any] = []
    threads: list[int] = []

    def find() -> None:
        threads.append(threading.get_ident())
        found.append(find_destroy(f"destroy|{name}|{file}" if by_file else f"destroy|{name}"))

    def waits() -> bool:
        """Whether the second thread is where it waits for the first one."""
        frame = sys._current_frames().get(threads[1]) if len(threads) > 1 else None
        return frame is not None and frame.f_code.co_name in ("acquire", "_load")

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, find)
            await until(begun.is_set)
            nursery.start_soon(trio.to_thread.run_sync, find)
            try:
                await until(waits)
            finally:  # a thread cannot be cancelled
                may_end.set()
    del shops.IMPORTS[name], sys.modules[name]
    assert found[0] is found[1]


async def cleaned(reference: str, handle: bytes | None = None) -> str:
    """Why a cleaning has failed."""
    told: list[Any] = []

    async def calls(function: Callable[[], Awaitable[Any]]) -> Any:
        raise AssertionError(function)

    resources = WorkerResources(told.append, WireLimits(), 1.0, calls)
    await resources.clean(Clean("name", 1, "sandbox", reference, 1.0, handle))
    (result,) = told
    assert isinstance(result, Cleaned)
    return result.why


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("destroy|tests.worker.gone", "ModuleNotFoundError: No module named 'tests.worker.gone'"),
        ("vanished|tests.worker.shop", "has no function vanished any more"),
        ("destroy|shop@_gone_py|/gone.py", "FileNotFoundError"),
        ("destroy|shop@_gone|/gone", "/gone is no module"),
    ],
)
async def test_cleaning_says_why_its_function_is_not_found(reference: str, why: str):
    assert why in await cleaned(reference)


async def test_cleaning_with_a_handle_that_is_none_says_so(shop: Shop):
    assert "handle" in await cleaned("destroy|tests.worker.shop", b"\xff")
    assert await cleaned("destroy|tests.worker.shop") == ""
