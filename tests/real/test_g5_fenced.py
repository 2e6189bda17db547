"""G5: a worker that is not the current incarnation can change nothing."""

from typing import Any, cast

from tests.proc import is_alive
from tests.real.support import asked, open_calls, open_raw, open_server, serving_raw, until
from trio_envserve import WorkerLost
from trio_envserve.core import messages, values
from trio_envserve.core.limits import PROTOCOL_VERSION


def forged(incarnation, session, number=0):
    """What a worker would say: a hello, a beat and an outcome."""
    said: list[messages.Message] = [
        messages.WorkerHello(PROTOCOL_VERSION, 1, "ghost", True, 256),
        messages.Beat(b"", 1, 0, [0, 1], {}),
        messages.WorkerOutcome(session, 0, number, 0, 0.1),
    ]
    frames = [[incarnation, messages.encode(message)] for message in said]
    frames[-1][1:1] = [b"raw"]
    frames[-1].append(values.encode({"key": "a", "forged": True}))
    return frames


async def test_g5_what_a_dead_worker_has_left_behind_is_dead_with_it(judge):
    """A process that it has forked in a session of its own, with every descriptor that it has:
    it could speak on the worker's link."""
    async with open_server(judge) as server, open_calls(server.address) as calls:
        await calls.error(
            calls.start("first", ["haunt", "there"], ["die"], rerun=False), WorkerLost
        )
        assert not is_alive(int(await judge.wait_for("there")))


async def test_g5_a_client_that_speaks_as_a_worker_changes_nothing(judge):
    """On the only address there is, with a worker's name and incarnation."""
    async with serving_raw(judge) as (server, raw):
        raw.transmit(0, asked("a", ["wait", "go"]))
        await judge.wait_started("a")
        [life] = server._router.pool.lives.values()
        async with open_raw(server.address) as ghost:
            for frames in forged(life.incarnation, raw.session):
                ghost.send_frames(*frames)
                ghost.send_frames(*frames[1:])
                ghost.send_frames(*[life.id, *frames])
            await until(lambda: server.stats().malformed >= 9)
        judge.put("go")
        _, answer = await raw.next(messages.Outcome)
        assert "forged" not in cast(Any, values.decode(answer[1]))
    judge.assert_exactly_once("a")
