"""Server and client shells on the in-memory network, under a virtual clock.

No sockets, no processes: the environment runs in this process (``workers=0``)
and hours pass in milliseconds.  What needs real ones is tested in tests/real.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_envserve import (
    Client,
    ClientLimits,
    ConfigError,
    DeadlineExceeded,
    DidNotRun,
    Health,
    MayHaveRun,
    NeverStarted,
    NotEncodable,
    OutcomeNotEncodable,
    Rollout,
    RolloutFailed,
    Server,
    ServerLimits,
    ServerNotReady,
    ServerUnreachable,
    open_client,
    open_server,
    serve,
)
from trio_envserve.net import MemoryNetwork

ADDRESS = "memory:server"


def virtual(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Run an async test on a clock that jumps when nothing else can happen."""

    @functools.wraps(test)  # so that it is of the file where it is written
    def run() -> None:
        async def limited() -> None:
            with trio.fail_after(24 * 3600):
                await test()

        trio.run(limited, clock=MockClock(autojump_threshold=0))

    return run


class Probe:
    """An environment that does what its input says, and counts."""

    def __init__(self) -> None:
        self.started: list[Any] = []
        self.ended: list[tuple[Any, str]] = []
        self.gate = trio.Event()

    async def run_rollout(self, rollout: Rollout) -> Any:
        key, do = rollout.input
        self.started.append(key)
        try:
            value = await self._do(do)
        except trio.Cancelled:
            self.ended.append((key, "cancelled"))
            raise
        self.ended.append((key, "done"))
        return value

    async def _do(self, do: Any) -> Any:
        if do == "wait":
            await self.gate.wait()
        elif do == "raise":
            raise ValueError("no good")
        elif do == "object":
            return object()
        elif isinstance(do, (int, float)):
            await trio.sleep(do)
        return {"did": do}


@asynccontextmanager
async def pair(
    environment: Any, *, server: ServerLimits | None = None, client: ClientLimits | None = None
) -> AsyncIterator[tuple[Server, Client, MemoryNetwork]]:
    network = MemoryNetwork()
    async with (
        open_server(environment, bind=ADDRESS, workers=0, network=network, limits=server) as s,
        open_client(ADDRESS, network=network, limits=client) as c,
    ):
        yield s, c, network


@virtual
async def test_a_rollout_runs_once_and_is_answered() -> None:
    probe = Probe()
    async with pair(probe) as (server, client, _):
        assert await client.run_rollout(["a", 5]) == {"did": 5}
        assert probe.started == ["a"]
        with trio.fail_after(5):
            while server.stats().kept:
                await trio.sleep(0.01)


@virtual
async def test_g9_a_connection_cut_while_it_runs_is_repaired_within_seconds() -> None:
    probe = Probe()
    async with pair(probe) as (_, client, network), trio.open_nursery() as nursery:
        results = []

        async def call() -> None:
            results.append(await client.run_rollout(["a", "wait"]))
            nursery.cancel_scope.cancel()

        nursery.start_soon(call)
        while not probe.started:
            await trio.sleep(0.01)
        network.cut()
        probe.gate.set()
        with trio.fail_after(10):
            await trio.sleep_forever()
    assert results == [{"did": "wait"}]
    assert probe.started == ["a"]


@virtual
async def test_g4_every_answer_lost_once_is_replayed() -> None:
    probe = Probe()
    lost: set[bytes] = set()

    def lose_first(direction: str, route: bytes, frames: Any) -> bool:
        if len(frames) == 2 and direction == "to_dealer" and bytes(frames[0]) not in lost:
            lost.add(bytes(frames[0]))
            return False
        return True

    async with pair(probe) as (_, client, network):
        await client.wait_ready()
        network.filter = lose_first
        async with client.run_many([[i, 0.5] for i in range(20)]) as outcomes:
            got = {index: outcome.unwrap() async for index, outcome in outcomes}
    assert sorted(got) == list(range(20))
    assert sorted(probe.started) == list(range(20))
    assert lost


@virtual
async def test_g7_cancelling_the_callers_scope_cancels_the_environments_code() -> None:
    probe = Probe()
    async with pair(probe) as (_, client, _network):
        with trio.move_on_after(5):
            await client.run_rollout(["a", "wait"])
        with trio.fail_after(2):
            while not probe.ended:
                await trio.sleep(0.01)
        assert probe.ended == [("a", "cancelled")]
        await trio.sleep(30)
        assert probe.started == ["a"]


@virtual
async def test_g7_a_cancel_that_is_lost_is_repaired() -> None:
    probe = Probe()
    async with pair(probe) as (_, client, network):
        with trio.move_on_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.run_rollout, ["a", "wait"])
                await trio.sleep(4)
                network.filter = lambda direction, route, frames: False
        network.filter = None
        with trio.fail_after(10):
            while not probe.ended:
                await trio.sleep(0.1)
    assert probe.ended == [("a", "cancelled")]


@virtual
async def test_g7_a_client_that_vanishes_has_its_work_cancelled_after_its_lease() -> None:
    probe = Probe()
    async with pair(probe, server=ServerLimits(lease_s=30)) as (server, client, network):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run_rollout, ["a", "wait"])
            await trio.sleep(4)
            network.partition(ADDRESS)
            await trio.sleep(20)
            assert not probe.ended
            await trio.sleep(20)
            assert probe.ended == [("a", "cancelled")]
            assert not server.stats().sessions
            nursery.cancel_scope.cancel()


@virtual
async def test_g9_a_limit_that_passes_while_it_runs_says_so() -> None:
    probe = Probe()
    async with pair(probe) as (_, client, _network):
        with pytest.raises((DeadlineExceeded, MayHaveRun)):
            await client.run_rollout(["a", "wait"], timeout_s=3)
        await trio.sleep(2)
        assert probe.ended == [("a", "cancelled")]


@virtual
async def test_g9_a_limit_that_passes_before_it_runs_says_did_not_run() -> None:
    probe = Probe()
    async with pair(probe, server=ServerLimits(worker_capacity=1)) as (_, client, _network):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run_rollout, ["a", "wait"])
            await trio.sleep(1)
            with pytest.raises(NeverStarted):
                await client.run_rollout(["b", 0], timeout_s=3)
            probe.gate.set()
        await trio.sleep(10)
    assert probe.started == ["a"]


@virtual
async def test_g9_closing_the_client_ends_pending_calls_and_tells_the_server() -> None:
    probe = Probe()
    network = MemoryNetwork()
    async with open_server(probe, bind=ADDRESS, workers=0, network=network) as server:
        with pytest.RaisesGroup(MayHaveRun):
            async with trio.open_nursery() as nursery:
                async with open_client(ADDRESS, network=network) as client:
                    nursery.start_soon(client.run_rollout, ["a", "wait"])
                    await trio.sleep(2)
        await trio.sleep(1)
        assert probe.ended == [("a", "cancelled")]
        assert not server.stats().sessions


@virtual
async def test_errors_of_the_environment_say_that_it_ran_and_failed() -> None:
    async with pair(Probe()) as (_, client, _network):
        with pytest.raises(RolloutFailed, match="ValueError: no good") as caught:
            await client.run_rollout(["a", "raise"])
        assert caught.value.info is not None
        assert "_do" in caught.value.info.traceback
        with pytest.raises(OutcomeNotEncodable, match="result"):
            await client.run_rollout(["a", "object"])


@virtual
async def test_input_that_cannot_be_encoded_is_refused_with_its_path() -> None:
    async with pair(Probe()) as (_, client, _network):
        with pytest.raises(NotEncodable, match=r"input\.messages\[1\]\.image") as caught:
            await client.run_rollout({"messages": [1, {"image": object()}]})
        assert caught.value.path == "input.messages[1].image"


@virtual
async def test_group_members_that_fail_are_told_one_by_one() -> None:
    async with pair(Probe()) as (_, client, _network):
        outcomes = await client.run_group([["a", 1], ["b", "raise"], ["c", 2]])
    assert [outcome.ok for outcome in outcomes] == [True, False, True]
    assert isinstance(outcomes[1].error, RolloutFailed)
    assert outcomes[2].value == {"did": 2}


@virtual
async def test_run_many_is_bounded_in_flight() -> None:
    most = 0
    now = 0

    async def run(rollout: Rollout) -> int:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await trio.sleep(1)
        now -= 1
        return int(rollout.input)

    async with pair(run) as (_, client, _network):
        async with client.run_many(range(50), in_flight=7) as outcomes:
            got = {index: outcome.unwrap() async for index, outcome in outcomes}
    assert got == {i: i for i in range(50)}
    assert most == 7


@virtual
async def test_run_many_runs_no_more_than_its_consumer_takes() -> None:
    """Its places were given away before the outcome was taken: behind a slow
    consumer all inputs ran, and their outcomes piled up."""
    probe = Probe()
    drawn = 0

    def inputs() -> Iterator[Any]:
        nonlocal drawn
        for drawn in range(1, 51):
            yield [drawn, 1]

    async with pair(probe) as (server, client, _network):
        async with client.run_many(inputs(), in_flight=3) as outcomes:
            for taken in range(1, 6):
                await anext(aiter(outcomes))
                await trio.sleep(100)
                assert len(probe.started) <= taken + 3
                assert drawn <= taken + 4  # one more is drawn, and waits for a place
        assert not server.stats().running


@virtual
async def test_leaving_run_many_early_cancels_what_is_left() -> None:
    probe = Probe()
    async with pair(probe) as (server, client, _network):
        async with client.run_many([["a", 1], *([i, "wait"] for i in range(20))]) as outcomes:
            async for index, _ in outcomes:
                assert index == 0
                break
        with trio.fail_after(5):
            while server.stats().running:
                await trio.sleep(0.1)
    assert sum(how == "cancelled" for _, how in probe.ended) == 20


@virtual
async def test_a_server_that_is_not_there_is_reported_early_and_ends_the_call_in_the_end() -> None:
    network = MemoryNetwork()
    limits = ClientLimits(start_s=60)
    async with open_client(ADDRESS, network=network, limits=limits) as client:
        with pytest.raises(ServerNotReady, match="nothing listens at memory:server"):
            await client.wait_ready(5)
        assert client.health().health is Health.UNHEALTHY
        with pytest.raises(ServerUnreachable, match="nothing listens"):
            await client.run_rollout(1)
        assert trio.current_time() < 120


@virtual
async def test_a_call_waits_for_a_late_server() -> None:
    network = MemoryNetwork()
    probe = Probe()
    async with open_client(ADDRESS, network=network) as client, trio.open_nursery() as nursery:
        results = []

        async def call() -> None:
            results.append(await client.run_rollout(["a", 1]))

        async def late() -> None:
            await trio.sleep(100)
            async with open_server(probe, bind=ADDRESS, workers=0, network=network):
                while not results:
                    await trio.sleep(1)

        nursery.start_soon(call)
        nursery.start_soon(late)
    assert results == [{"did": 1}]


@virtual
async def test_a_graceful_restart_loses_nothing_that_had_not_run() -> None:
    """What waits when a server drains did not run; it is asked again of the next."""
    network = MemoryNetwork()
    probe = Probe()
    limits = ServerLimits(worker_capacity=2)
    async with open_client(ADDRESS, network=network) as client, trio.open_nursery() as nursery:
        got: dict[int, Any] = {}

        async def calls() -> None:
            async with client.run_many([[i, 3] for i in range(6)]) as outcomes:
                async for index, outcome in outcomes:
                    got[index] = outcome.unwrap()

        nursery.start_soon(calls)
        for seconds in (4, 100):
            async with open_server(
                probe, bind=ADDRESS, workers=0, network=network, limits=limits
            ) as server:
                with trio.move_on_after(seconds):
                    while len(got) < 6:
                        await trio.sleep(0.1)
                assert await server.drain()
    assert sorted(got) == list(range(6))
    assert sorted(probe.started) == list(range(6))


@virtual
async def test_an_exception_of_the_block_comes_out_as_it_is() -> None:
    with pytest.raises(KeyError, match="mine"):
        async with pair(Probe()):
            raise KeyError("mine")


@virtual
async def test_serve_reports_the_server_once_bound() -> None:
    network = MemoryNetwork()
    async with trio.open_nursery() as nursery:

        async def start(task_status: trio.TaskStatus[Server]) -> None:  # noqa: ASYNC128
            await serve(Probe(), bind=ADDRESS, workers=0, network=network, task_status=task_status)

        server = await nursery.start(start)
        assert server.address == ADDRESS
        async with open_client(ADDRESS, network=network) as client:
            assert await client.run_rollout(["a", 1]) == {"did": 1}
        nursery.cancel_scope.cancel()


@virtual
async def test_a_broken_environment_is_not_ready_with_its_traceback() -> None:
    def broken() -> Any:
        raise RuntimeError("no dataset here")

    async with pair(broken) as (server, client, _network):
        with pytest.raises(ServerNotReady, match="no dataset here"):
            await client.wait_ready(60)
        assert server.status().status.value == "broken"
        # Pauses between the tries grow: no restart storm.
        assert server.stats().worker_restarts < 15


@pytest.mark.parametrize(
    "options",
    [
        {"rerun": "yes"},
        {"max_executions": 0},
        {"timeout_s": -1},
        {"max_retries": -1},
        {"model": ""},
        {"sampling_args": {1: 2}},
    ],
)
def test_wrong_options_are_refused_before_anything_is_sent(options: dict[str, Any]) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        async with open_client(ADDRESS, network=network) as client:
            with pytest.raises(ConfigError):
                await client.run_rollout(1, **options)

    trio.run(main, clock=MockClock(autojump_threshold=0))


@virtual
async def test_an_unknown_model_did_not_run() -> None:
    probe = Probe()
    async with pair(probe) as (_, client, _network):
        with pytest.raises(DidNotRun, match="oracle"):
            await client.run_rollout(["a", 1], model="orcale")
    assert not probe.started


@pytest.mark.parametrize("workers", [-1, True, "2"])
async def test_a_wrong_number_of_workers_is_refused(workers: Any) -> None:
    with pytest.raises(ConfigError, match="workers"):
        async with open_server(workers=workers):
            pass


async def test_an_object_cannot_be_sent_to_worker_processes() -> None:
    with pytest.raises(ConfigError, match="workers=0"):
        async with open_server(Probe(), workers=1):
            pass


@pytest.mark.parametrize(
    "value", [(1, 2), {1: "a"}, Path("a"), {"deep": [float("nan"), {2: 3}]}, b"a", {3}]
)
async def test_arguments_that_a_worker_would_get_changed_are_refused(value: Any) -> None:
    """Tuples became lists and numbers as keys text, and nobody was told."""
    with pytest.raises(ConfigError, match=r"args\['shape'\]"):
        async with open_server("arithmetic", args={"shape": value}, workers=1):
            pass


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


@virtual
async def test_a_client_whose_block_is_cancelled_from_outside_still_tells_the_server() -> None:
    probe = Probe()
    network = MemoryNetwork()
    async with open_server(probe, bind=ADDRESS, workers=0, network=network) as server:
        with trio.move_on_after(5):
            async with open_client(ADDRESS, network=network) as client:
                await client.run_rollout(["a", "wait"])
        await trio.sleep(1)
        assert probe.ended == [("a", "cancelled")]
        assert not server.stats().sessions
