"""The door of a server with worker processes, and a client of the pure wire: the short form
of what tests/doors/verifiers/test_library.py shows with the library."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import msgpack
import pytest
import trio

from tests.doors.verifiers.door import ANY_PORT, HANG_S, asking
from trio_envserve import open_server
from trio_envserve.doors.verifiers import open_verifiers_door

ENVIRONMENT = """
import os
import trio

HERE = os.path.dirname(__file__)

async def environment(rollout):
    with open(HERE + "/starts", "ab", 0) as log:
        log.write(rollout.input["run"] + b"\\n")
    rollout.delta(b"first")
    while not os.path.exists(HERE + "/go"):
        await trio.sleep(0.02)
    return {"state": {"deltas": [b"first", b"last"], "reply": b"r", "traces": ["t"]}}
"""

FIRST, REST = (b"delta", b"first"), [(b"delta", b"last"), (b"reply", b"r")]


@pytest.mark.real
async def test_the_runs_of_a_killed_worker_fail_and_the_others_go_on(tmp_path: Path):
    (tmp_path / "held.py").write_text(ENVIRONMENT)
    with trio.fail_after(HANG_S):
        async with (
            open_server(f"{tmp_path}/held.py:environment", workers=2, bind=ANY_PORT) as server,
            open_verifiers_door(server, bind=ANY_PORT) as door,
            asking(door) as peer,
        ):
            while server.status().ready < 2:
                await trio.sleep(0.02)
            await door.wait_ready()
            names = [b"run-%d" % number for number in range(6)]
            for name in names:
                peer.run(name, name)
            assert sorted([await peer.hear() for _ in names]) == [[name, *FIRST] for name in names]
            first, second = server.stats().per_worker
            assert first.pid is not None
            os.kill(first.pid, signal.SIGKILL)
            lost = await peer.ends(first.pending)
            for [(_, body)] in lost.values():
                assert "(it may have run) [worker-lost]" in str(msgpack.unpackb(body)["error"])
            (tmp_path / "go").touch()
            others = await peer.ends(second.pending)
            assert others == dict.fromkeys(set(names) - set(lost), REST)
            assert others
            peer.run(b"next", b"next")
            assert await peer.ends(1) == {b"next": [FIRST, *REST]}
            again = next(iter(lost))
            peer.run(again, again)  # it is not run again
            assert (await peer.ends(1))[again] == lost[again]
    starts = (tmp_path / "starts").read_bytes().split()
    assert sorted(starts) == [b"next", *names]
