"""The door of a server with worker processes, and a client of the pure wire: the short form
of what tests/doors/verifiers/test_library.py shows with the library."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import msgpack
import pytest
import trio

from tests.doors.verifiers.door import ANY_PORT, HANG_S, Peer, asking
from trio_envserve import Server, open_server
from trio_envserve.doors.verifiers import open_verifiers_door
from trio_envserve.testing.proxy import FaultProxy, open_fault_proxy

pytestmark = pytest.mark.real

ENVIRONMENT = """
import os
import trio

HERE = os.path.dirname(__file__)

def note(what):
    log = os.open(HERE + "/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(log, what + b"\\n")
    os.close(log)

async def environment(rollout):
    note(b"start " + rollout.input["run"])
    rollout.delta(b"first")
    try:
        while not os.path.exists(HERE + "/go"):
            await trio.sleep(0.02)
    except trio.Cancelled:
        note(b"cancel " + rollout.input["run"])
        raise
    return {"state": {"deltas": [b"first", b"last"], "reply": b"r", "traces": ["t"]}}
"""

FIRST, REST = (b"delta", b"first"), [(b"delta", b"last"), (b"reply", b"r")]
DISCARD = (b"delta", msgpack.packb({"trace": "t", "discard": True}))


class Scene(NamedTuple):
    """A client of a door whose server has two workers."""

    peer: Peer
    server: Server
    proxy: FaultProxy
    """Between the client and the door."""
    folder: Path

    def go(self) -> None:
        """Let all runs end."""
        (self.folder / "go").touch()

    def noted(self, what: str) -> list[str]:
        """The runs of which the environment has noted this."""
        lines = (self.folder / "log").read_text().splitlines()
        return sorted(line.split()[1] for line in lines if line.startswith(what))

    async def begin(self, count: int) -> list[bytes]:
        """Begin so many runs; returns their names, once each has said its first delta."""
        names = [b"run-%02d" % number for number in range(count)]
        for name in names:
            self.peer.run(name, name)
        heard = [await self.peer.hear() for _ in names]
        assert sorted(heard) == [[name, *FIRST] for name in names]
        return names

    async def ends(self, count: int) -> dict[bytes, list[tuple[bytes, bytes]]]:
        """What comes by name, until so many runs, or cancels, have their replies."""
        found: dict[bytes, list[tuple[bytes, bytes]]] = {}
        while count:
            name, kind, body = await self.peer.hear()
            found.setdefault(name, []).append((kind, body))
            count -= kind == b"reply"
        return found


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    (tmp_path / "held.py").write_text(ENVIRONMENT)
    spec = f"{tmp_path}/held.py:environment"
    with trio.fail_after(HANG_S):
        async with (
            open_server(spec, workers=2, bind=ANY_PORT) as server,
            open_verifiers_door(server, bind=ANY_PORT) as door,
            open_fault_proxy(door.address) as proxy,
            asking(proxy.address) as peer,
        ):
            while server.status().ready < 2:
                await trio.sleep(0.02)
            await door.wait_ready()
            yield Scene(peer, server, proxy, tmp_path)


async def test_the_runs_of_a_killed_worker_fail_and_the_others_go_on(scene: Scene):
    names = await scene.begin(6)
    first, second = scene.server.stats().per_worker
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    lost = await scene.ends(first.pending)
    for [(kind, body)] in lost.values():
        assert kind == b"reply"
        assert "(it may have run) [worker-lost]" in str(msgpack.unpackb(body)["error"])
    scene.go()
    others = await scene.ends(second.pending)
    assert others == dict.fromkeys(set(names) - set(lost), REST)
    assert others
    scene.peer.run(b"next", b"next")
    assert (await scene.ends(1))[b"next"] == [FIRST, *REST]
    again = next(iter(lost))
    scene.peer.run(again, again)  # it is not run again
    assert (await scene.ends(1))[again] == lost[again]
    assert scene.noted("start") == ["next", *(name.decode() for name in names)]


async def test_all_connections_are_cut_and_every_run_ends(scene: Scene):
    names = await scene.begin(20)
    assert scene.proxy.cut_all() == 1
    scene.go()
    assert await scene.ends(20) == {name: [DISCARD, FIRST, *REST] for name in names}
    assert scene.noted("start") == [name.decode() for name in names]


async def test_runs_that_are_cancelled_together_are_all_cancelled(scene: Scene):
    names = await scene.begin(50)
    cancels = {scene.peer.cancel(name) for name in names}
    found = await scene.ends(100)
    assert set(found) == {*names, *cancels}
    for name in cancels:
        [(_, body)] = found[name]
        assert msgpack.unpackb(body)["cancelled"] is True
    for name in names:
        [(_, body)] = found[name]
        assert "it was cancelled (it may have run)" in str(msgpack.unpackb(body)["error"])
    while scene.noted("cancel") != [name.decode() for name in names]:
        await trio.sleep(0.02)
