"""Makes the recording that `test_replay.py` replays: a worker dies of what it runs.

    python tests/recorder/make_incident.py tests/recorder/incident.rec

Two rollouts share a worker when it kills itself; one may run again, the other may
not; a third, which comes later, is cancelled.  The times in it are this machine's, so it
is another one each time.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

import trio

from trio_envserve import Rollout, open_client, open_server

NAME = "tests.recorder.make_incident:Fatal"


class Fatal:
    """Its rollouts say what they do, and meet in a folder."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    async def run_rollout(self, rollout: Rollout) -> str:
        """``die`` waits for company and kills the worker, but only once."""
        mark = self.folder / str(rollout.input)
        first = not mark.exists()
        mark.touch()
        if rollout.input == "die" and first:
            while not (self.folder / "stay").exists():
                await trio.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        if rollout.input in ("stay", "long"):
            await trio.sleep_forever()
        return "done"


async def main(path: str) -> None:
    """Record it."""
    with tempfile.TemporaryDirectory() as folder:
        args = {"folder": folder}
        async with open_server(NAME, args=args, workers=1, record=path) as server:
            async with open_client(server.address, name="trainer") as client:
                await client.wait_ready()
                async with trio.open_nursery() as nursery:

                    async def ask(what: str, rerun: bool) -> None:
                        outcome = await client.outcome(what, rerun=rerun)
                        print(what, outcome.error or outcome.value)

                    nursery.start_soon(ask, "die", True)
                    while not (Path(folder) / "die").exists():
                        await trio.sleep(0.01)
                    nursery.start_soon(ask, "stay", False)
                with trio.move_on_after(1):
                    await client.outcome("long")


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
