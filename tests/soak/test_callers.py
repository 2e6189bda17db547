"""Client processes: told what to do, killed, replaced, and ended by their own fault."""

import json
import signal

import pytest
import trio

from trio_envserve import open_server
from trio_envserve.lab.history import CALLERS
from trio_envserve.lab.programs import EndedByItself
from trio_envserve.lab.soak.callers import Callers

pytestmark = [pytest.mark.real, pytest.mark.slow]

LIMIT_S = 120


def lines(folder):
    return [json.loads(line) for line in (folder / CALLERS).read_text().splitlines()]


def callers_of(folder, address, slots=1, ended=lambda name: None):
    options = {"address": address, "log": str(folder / CALLERS), "seed": 3, "size": 100}
    return Callers(folder, options, slots, ended)


async def test_clients_load_rest_and_measure(tmp_path):
    with trio.fail_after(LIMIT_S):
        async with open_server(workers=0, args={"size": 100}) as server:
            callers = callers_of(tmp_path, server.address, slots=2)
            async with trio.open_nursery() as nursery:
                for slot in range(2):
                    nursery.start_soon(callers.live, slot)
                await callers.wait_all(lambda caller: caller.ready)
                await callers.load(4)
                await callers.wait_all(lambda caller: caller.ended >= 10)
                await callers.rest()
                await callers.wait_all(lambda caller: caller.idle)
                asked = callers.asked
                assert asked == callers.ended >= 20
                first = callers.lives[0]
                assert first is not None
                done = await callers.steady(first, 200, 16)
                assert (done["requests"], done["right"]) == (200, 200)
                nursery.cancel_scope.cancel()
    written = lines(tmp_path)
    asks = {line["key"] for line in written if line["event"] == "ask"}
    ends = [line["key"] for line in written if line["event"] in ("answer", "withdrawn")]
    assert len(asks) == asked
    assert sorted(asks) == sorted(ends)
    answers = [line for line in written if line["event"] == "answer"]
    assert all(line["right"] for line in answers if line["ok"])
    assert any(line["ok"] for line in answers)
    # They ended as they were told to.
    assert {line["client"] for line in written if line["event"] == "end"} == {"c0-1", "c1-1"}


async def test_the_next_takes_the_place_of_one_that_was_killed(tmp_path):
    with trio.fail_after(LIMIT_S):
        async with open_server(workers=0, args={"size": 100}) as server:
            callers = callers_of(tmp_path, server.address)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(callers.live, 0)
                await callers.load(4)
                await callers.wait_all(lambda caller: caller.ended >= 5)
                first = callers.lives[0]
                assert first is not None
                first.program.signal(signal.SIGSTOP)
                first.program.signal(signal.SIGKILL)
                await callers.wait_all(lambda caller: caller is not first and caller.ended >= 5)
                assert callers.ended >= 10
                await first.tell(do="rest")  # nobody hears it, and that is no failure
                nursery.cancel_scope.cancel()
    named = [line["client"] for line in lines(tmp_path) if line["event"] == "client"]
    assert named == ["c0-1", "c0-2"]


async def test_a_client_that_is_stopped_ends_all_the_same(tmp_path):
    with trio.fail_after(LIMIT_S):
        async with open_server(workers=0) as server:
            callers = callers_of(tmp_path, server.address)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(callers.live, 0)
                await callers.wait_all(lambda caller: caller.ready)
                caller = callers.lives[0]
                assert caller is not None
                caller.program.signal(signal.SIGSTOP)
                nursery.cancel_scope.cancel()
            assert not caller.program.living
    assert lines(tmp_path)[-1]["event"] == "end"


async def test_a_client_that_waits_for_its_server_ends_when_it_is_told_to(tmp_path, folder):
    callers = callers_of(tmp_path, f"ipc://{folder}/nobody")
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(callers.live, 0)
            while not (tmp_path / CALLERS).exists() or not lines(tmp_path):  # noqa: ASYNC110
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    # It was not killed for taking too long.
    assert [line["event"] for line in lines(tmp_path)] == ["client", "end"]


async def test_a_client_that_ends_by_itself_is_a_failure(tmp_path):
    ended: list[str] = []
    callers = callers_of(tmp_path, "no address", ended=ended.append)
    with trio.fail_after(LIMIT_S):
        with pytest.raises(EndedByItself, match=r"(?s)c0-1 ended with status 1.*ConfigError"):
            await callers.live(0)
    assert ended == ["c0-1"]
