"""``serve --verifiers-bind``: the door beside the server."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cli.commands import check_nothing_left, forked
from tests.doors.verifiers.door import asking

pytestmark = pytest.mark.real

ENVIRONMENT = """
async def run_rollout(rollout):
    return {"state": {"deltas": [b"d"], "reply": b"r", "traces": []}}

def make():
    return run_rollout
"""

BIND = ("--bind", "tcp://127.0.0.1:0")


async def test_serve_opens_a_door_and_closes_it(tmp_path: Path):
    (tmp_path / "answering.py").write_text(ENVIRONMENT)
    door = ("--verifiers-bind", "tcp://127.0.0.1:0")
    async with forked(tmp_path, "serve", "answering.py:make", *BIND, *door, "--json") as serving:
        address = (await serving.event("serving"))["verifiers"]
        await serving.event("ready")
        async with asking(address) as peer:
            heard = False
            while not heard:  # the door itself hears of it a moment later
                peer.say(b"h", b"health", b"\x80")
                peer.say(b"wrong", b"jump", b"")
                heard = (await peer.hear())[0] == b"h"
            await peer.reply(b"wrong")
            peer.run(b"a")
            assert await peer.outcome(b"a") == [(b"delta", b"d"), (b"reply", b"r")]
            serving.signal(signal.SIGTERM)  # with the connection still open
            finished = await serving.wait()
    assert (finished.code, finished.last["event"]) == (0, "stopped")
    finished.check_no_traceback()
    await check_nothing_left(tmp_path)
