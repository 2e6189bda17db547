"""The client's shell, on the in-memory network under a virtual clock."""

from __future__ import annotations

import sys
from typing import Any

import numpy
import pytest
import trio

from tests.memory import ADDRESS, echo, pair, virtual
from trio_envserve import (
    ClientLimits,
    ConfigError,
    DidNotRun,
    EnvironmentBroken,
    MayHaveRun,
    Outcome,
    OutcomeNotDecodable,
    ServerNotReady,
    open_client,
    open_server,
)
from trio_envserve.client.options import checked
from trio_envserve.client.shell import follow
from trio_envserve.core import values
from trio_envserve.core.errors import ErrorInfo
from trio_envserve.core.terms import Verdict
from trio_envserve.net import MemoryNetwork

# -- what is asked for is looked at before anything runs ----------------------------


@pytest.mark.parametrize("wanted", ["jax", "", None, 1, "NumPy"])
@virtual
async def test_a_reader_of_arrays_that_nobody_knows_is_refused_at_the_door(wanted: Any) -> None:
    """open_client(arrays="jax") was taken; the rollout ran, and then ConfigError."""
    began = []

    async def environment(rollout: Any) -> Any:
        began.append(rollout.input)
        return numpy.arange(3)

    refused = ""
    try:
        async with pair(environment, arrays=wanted) as (_, client):
            await client.run_rollout("x")
    except* ConfigError as group:
        refused = str(group.exceptions[0])
    assert (began, '"numpy"' in refused) == ([], True)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@virtual
async def test_a_library_for_arrays_that_is_missing_is_refused_at_the_door(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)  # as if it were not installed
    with pytest.raises(ConfigError, match=f"{library} is not installed"):
        async with open_client(ADDRESS, network=MemoryNetwork(), arrays=library):  # type: ignore[arg-type]  # one of two
            pass


# -- an outcome is received, whatever reading it raises ------------------------------


@pytest.mark.parametrize("problem", [MemoryError(), RuntimeError("a bug"), RecursionError()])
@virtual
async def test_an_outcome_that_cannot_be_read_was_replayed_for_ever(
    problem: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what a decoder should raise counted as received."""
    decode = values.decode

    def no_luck(body: Any, **options: Any) -> Any:
        if body == values.encode("unlucky"):
            raise problem
        return decode(body, **options)

    monkeypatch.setattr(values, "decode", no_luck)
    raised: object = None
    async with pair(echo) as (server, client):
        try:
            outcome = await client.outcome("unlucky")
        except Exception as error:  # a known failure is to fail by an assertion
            raised = error
        assert raised is None
        assert isinstance(outcome.error, OutcomeNotDecodable)
        assert outcome.error.raw == values.encode("unlucky")
        assert type(problem).__name__ in str(outcome.error)
        await trio.sleep(5)
        assert server.stats().kept == 0
        assert await client.run_rollout("lucky") == "lucky"


@virtual
async def test_an_outcome_whose_reading_is_interrupted_is_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The caller has left; nobody will ever take it."""
    decode = values.decode

    def interrupted(body: Any, **options: Any) -> Any:
        if body == values.encode("long"):
            raise KeyboardInterrupt
        return decode(body, **options)

    monkeypatch.setattr(values, "decode", interrupted)
    async with pair(echo) as (server, client):
        with pytest.raises(KeyboardInterrupt):
            await client.outcome("long")
        await trio.sleep(5)
        assert server.stats().kept == 0


@pytest.mark.parametrize("value", [[{"value": 1}], [{"ok": False, "error": {}}], [1], 1])
def test_a_value_that_is_no_outcome_of_a_group_is_told_in_words(value: Any) -> None:
    """A worker in another language may send anything."""
    with pytest.raises(MayHaveRun, match="not that of a group"):
        Outcome.members(Outcome(value=value))


# -- time ----------------------------------------------------------------------------


@virtual
async def test_the_clock_is_woken_for_what_is_due_sooner_than_it_thought() -> None:
    """That an outcome is received is told within milliseconds, not with the next scan."""
    async with pair(echo) as (server, client):
        for number in range(10):
            await client.run_rollout(number)
            assert server.stats().kept > 0  # told with what is asked next, or soon
            await trio.sleep(2 * ClientLimits().finish_flush_s)
            assert server.stats().kept == 0
            await trio.sleep(0.03)  # so that the next one meets the clock elsewhere


@virtual
async def test_an_outcome_that_comes_when_its_call_was_just_cancelled_wakes_nobody() -> None:
    """Waking the task a second time would have ended the whole program."""
    gate = trio.Event()

    async def body(rollout: Any) -> str:
        await gate.wait()
        return "done"

    async with pair(body) as (_, client):
        await client.wait_ready()
        ends: list[BaseException | str] = []

        async def call(scope: trio.CancelScope) -> None:
            with scope:
                try:
                    ends.append(await client.run_rollout(1))
                except trio.Cancelled as error:
                    ends.append(error)
                    raise

        scope = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, scope)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()  # the task is to be woken, and has not run yet
            client._driver.close()
        assert [type(end) for end in ends] == [trio.Cancelled]
        gate.set()


# -- a client that is closed -----------------------------------------------------
# Calls that wait for a server's answer or readiness went on waiting, for minutes,
# when their own client had been closed; or they said "ready" of one that is no more.


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("ask", ["stats", "wait_ready"])
async def test_a_closed_client_says_so_at_once(autojump_clock, ask, there):
    network = MemoryNetwork()
    async with open_server(echo, bind="memory:s", workers=0, network=network):
        async with open_client("memory:s" if there else "memory:t", network=network) as client:
            if there:
                await client.wait_ready()
        with trio.fail_after(5), pytest.raises(ServerNotReady, match="the client was closed"):
            await getattr(client, ask)()


@pytest.mark.parametrize("ask", ["stats", "wait_ready"])
async def test_closing_the_client_is_told_to_tasks_that_wait(autojump_clock, ask):
    network = MemoryNetwork()
    told = trio.Event()

    async def wait(client):
        with pytest.raises(ServerNotReady, match="the client was closed"):
            await getattr(client, ask)()
        told.set()

    async with trio.open_nursery() as nursery:
        async with open_client("memory:nobody", network=network) as client:
            nursery.start_soon(wait, client)
            await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(5):
            await told.wait()


# -- several calls on a closed client --------------------------------------------
# Calls of one turn of the loop are carried out by a task of the client's.  After its
# block had ended there was none: of several calls on a closed client only the first
# ended, and the others waited for ever.


async def test_each_call_on_a_closed_client_ends(autojump_clock):
    async with open_client("memory:nobody", network=MemoryNetwork()) as client:
        pass
    ended = []

    async def call():
        with trio.testing.assert_checkpoints():
            ended.append((await client.outcome("late")).error)

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(call)
    assert [type(error) for error in ended] == [DidNotRun] * 3


# -- what a caller is told of time -------------------------------------------------


@virtual
async def test_an_outcome_says_how_long_its_caller_waited() -> None:
    async def slow(rollout: Any) -> None:
        await trio.sleep(rollout.input)

    async with pair(slow) as (_, client):
        await client.wait_ready()
        await trio.sleep(100)
        assert 5 <= (await client.outcome(5)).took_s < 6
        assert 3 <= (await client.outcome(5, timeout_s=3)).took_s < 6
        client._driver.close()
        assert (await client.outcome(5)).took_s == 0


ASKS: list[Any] = [
    lambda client, limit_s: client.wait_ready(limit_s),
    lambda client, limit_s: client.stats(limit_s),
    lambda client, limit_s: client.list_keys(timeout_s=limit_s),
    lambda client, limit_s: client.list_running(timeout_s=limit_s),
    lambda client, limit_s: client.stack(1, timeout_s=limit_s),
]


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize(("limit_s", "expected_s"), [(None, 7), (3, 3), (20, 20)])
@virtual
async def test_a_question_to_a_server_that_is_not_there_waits_for_its_limit(
    ask: Any, limit_s: float | None, expected_s: float
) -> None:
    network = MemoryNetwork()
    async with open_client(ADDRESS, network=network, limits=ClientLimits(start_s=7)) as client:
        began_s = trio.current_time()
        with pytest.raises(ServerNotReady):
            await ask(client, limit_s)
        assert trio.current_time() - began_s == pytest.approx(expected_s)


@virtual
async def test_a_refusal_of_this_client_is_told_at_once_to_tasks_that_wait() -> None:
    async with open_client(ADDRESS, network=MemoryNetwork()) as client:
        client._driver.core.refusal = ErrorInfo(
            code="refused", verdict=Verdict.DID_NOT_RUN, message="not for you"
        )
        with trio.fail_after(1), pytest.raises(ServerNotReady, match="not for you"):
            await client.wait_ready(60)


@virtual
async def test_the_next_server_was_taken_for_as_broken_as_the_last_one() -> None:
    """What a server said held until the one after it had said something."""

    def broken() -> Any:
        raise RuntimeError("no such table")

    network = MemoryNetwork()
    async with open_client(ADDRESS, network=network) as client:
        async with open_server(broken, bind=ADDRESS, workers=0, network=network):
            with trio.fail_after(5), pytest.raises(EnvironmentBroken, match="no such table"):
                await client.wait_ready(60)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.wait_ready, 60)
            await trio.sleep(10)
            async with open_server(echo, bind=ADDRESS, workers=0, network=network):
                await client.wait_ready(60)


# -- failures that servers of this kind are known for ----------------------------


async def test_failure_13_acknowledgement_is_sent_before_decoding(autojump_clock, monkeypatch):
    """An outcome is acknowledged and then decoded; should the client end meanwhile, the
    outcome is gone from the server, too.

    Here an outcome counts as received when it has been decoded.
    """
    real = values.decode
    pending = []

    def decode(body: Any, **options: Any) -> Any:
        value = real(body, **options)
        if value == "result of much":
            # What its next statement says:
            pending.append(bool(client._driver.core.calls.live))
        return value

    async def say(rollout: Any) -> str:
        return f"result of {rollout.input}"

    monkeypatch.setattr(values, "decode", decode)
    async with pair(say) as (server, client):
        assert await client.run_rollout("much") == "result of much"
        assert pending == [True]
        await trio.sleep(10)
        assert server.stats().kept == 0


# -- what is counted, and what doors use ----------------------------------------------


@virtual
async def test_a_door_is_told_the_deltas_before_the_outcome() -> None:
    async def environment(rollout: Any) -> Any:
        rollout.delta(b"a")
        rollout.delta(b"b")
        return rollout.input

    heard: list[tuple[int, bytes]] = []
    async with pair(environment) as (_, client):
        outcome = await follow(
            client, checked(7), lambda number, delta: heard.append((number, bytes(delta)))
        )
    assert outcome.unwrap() == 7
    assert heard == [(0, b"a"), (1, b"b")]
