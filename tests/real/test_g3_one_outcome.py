"""G3: all outcomes sent for one request are byte for byte the same."""

import os
import signal

import trio

from tests.real.environments import POLL_S
from tests.real.support import asked, open_raw, open_server, serving_raw, until
from trio_envserve.core import messages


async def test_g3_every_replay_has_the_same_bytes(judge):
    async with serving_raw(judge) as (_, raw):
        raw.transmit(0, asked("a"))
        _, first = await raw.next(messages.Outcome)
        raw.transmit(0, asked("a"))  # a duplicate is answered at once, a statement not as often
        while len(raw.all(messages.Outcome)) < 3:
            await raw.sync(1, [0, 1])
            await trio.sleep(POLL_S)
        replays = [frames for _, frames in raw.all(messages.Outcome)]
        assert {first, *replays} == {first}
    judge.assert_exactly_once("a")


async def test_g3_a_new_connection_gets_the_same_bytes(judge):
    async with open_server(judge) as server:
        async with open_raw(server.address) as raw:
            raw.transmit(0, asked("a", ["wait", "go"]))
            await judge.wait_started("a")
        # Gone without a goodbye, as a cut connection is; its answer has no way.
        judge.put("go")
        await judge.wait_ended("a")
        async with (
            open_raw(server.address, hello=False) as again,
            open_raw(server.address, hello=False) as third,
        ):
            again.resume(raw)
            await again.sync(1, [0, 1])
            _, first = await again.next(messages.Outcome)
            third.resume(again)
            await third.sync(1, [0, 1])
            _, second = await third.next(messages.Outcome)
            assert first == second
    judge.assert_exactly_once("a")


async def test_g3_worker_lost_is_as_final_as_any_outcome(judge):
    """A replacement that could run it again does not change what was said."""
    async with serving_raw(judge) as (server, raw):
        raw.transmit(0, asked("a", ["wait", "go"]), rerun=False)
        await judge.wait_started("a")
        os.kill(judge.pids("a")[0], signal.SIGKILL)
        _, first = await raw.next(messages.Outcome)
        await until(lambda: server.status().ready == 1)
        raw.transmit(0, asked("a", ["wait", "go"]), rerun=False)
        await raw.sync(1, [0, 1])
        assert {frames for _, frames in raw.all(messages.Outcome)} == {first}
    judge.assert_at_most(1)
