"""Recordings of servers whose callers name keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from trio_envserve import KeyConflict, Rollout, UnknownKey, open_client, open_server
from trio_envserve.cli.replay import state_of
from trio_envserve.core.messages import Request, decode
from trio_envserve.core.router_inputs import ClientMessage
from trio_envserve.core.work import WorkState
from trio_envserve.lab.recording import Player, RequestName, RequestWatch, load, replay
from trio_envserve.net import MemoryNetwork
from trio_envserve.server.recording.records import state_digest

HANG_S = 60.0


@pytest.fixture(params=[False, True], ids=["lengths", "bodies"])
async def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The recording of two callers: one joins, collides, attaches, cancels and forgets."""
    running, go_on = trio.Event(), trio.Event()

    async def run(rollout: Rollout) -> Any:
        running.set()
        await go_on.wait()
        return rollout.input

    network, path = MemoryNetwork(), tmp_path / "keys.rec"
    with trio.fail_after(HANG_S):
        async with (
            open_server(
                run, bind="memory:s", workers=0, network=network, record=path,
                record_bodies=request.param,
            ) as server,
            open_client(server.address, network=network, caller="first") as first,
            open_client(server.address, network=network, caller="second") as second,
        ):  # fmt: skip
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: first.run_rollout("very private", key="a"))
                await running.wait()
                with pytest.raises(KeyConflict):
                    await second.run_rollout("another", key="a")
                nursery.start_soon(lambda: second.run_rollout("very private", key="a"))
                while (await second.list_keys()).keys[0].waiters < 2:
                    await trio.lowlevel.checkpoint()
                go_on.set()
            assert (await second.attach("a")).value == "very private"
            await first.run_rollout("very private", key="b")
            await first.cancel_key("c")
            await first.forget("b")
            assert isinstance((await second.attach("b")).error, UnknownKey)
    return path


def names(path: Path) -> list[tuple[bytes, int, int]]:
    """The requests that name keys: session, sequence, what each asks."""
    frames = [one.given.frames for one in load(path) if isinstance(one.given, ClientMessage)]
    heard = [decode(bytes(each[0]), most_bytes=1 << 20) for each in frames]
    asked = [m for m in heard if isinstance(m, Request) and m.key is not None]
    return [(m.session, m.sequence, m.act or 0) for m in asked]


def story(path: Path, session: str, sequence: int) -> list[tuple[str, str]]:
    watch = RequestWatch(RequestName(session, sequence))
    for moment in Player(path).moments():
        watch.see(moment)
    return [(each.what.partition(",")[0], each.target) for each in watch.events()]


async def test_keys_are_replayed(path: Path):
    played = replay(path)
    assert played.identical, played.difference
    works = played.router.works
    (kept,) = works.generations.values()
    assert kept.name is not None
    assert (kept.name.key, kept.state) == (b"a", WorkState.COMPLETED)
    assert works.next_number == 2


async def test_the_state_that_is_shown_has_every_key(path: Path):
    (known,) = state_of(replay(path).router)["per_key"]
    assert (known["namespace"], known["key"], known["state"]) == ("default", "a", "completed")
    assert (known["generation"], known["executions"], known["waiters"]) == (0, 1, 0)


async def test_what_differs_in_keys_alone_is_found_out(path: Path):
    router = replay(path).router
    before = state_digest(router)
    (kept,) = router.works.generations.values()
    kept.lost |= {b"a caller of keys"}
    assert state_digest(router) != before


async def test_the_story_of_a_keyed_request_names_its_work(path: Path):
    asked = [name for name in names(path) if name[2] == 0]
    session, sequence, _ = asked[0]
    told = story(path, session.hex(), sequence)
    assert told[0] == ("ask of a key", "router")
    what, target = told[1]
    assert (what.rpartition(" ")[0], target) == ("its work is request", "key")
    assert ("outcome", "client") in told
    own, _, number = what.rpartition(" ")[2].partition("/")
    work = story(path, own, int(number))
    assert [each for each, _ in work] == ["dispatch 0", "outcome 0"]


async def test_commands_and_those_who_attach_have_stories(path: Path):
    begun = {act: story(path, session.hex(), n)[0][0] for session, n, act in names(path)}
    assert [begun[act] for act in range(4)] == [
        "ask of a key", "attach to a key", "cancel of a key", "forget of a key",
    ]  # fmt: skip
