"""The judge: what really ran, read from the environment's own log on disk.

It never asks a server.  What a server believes is what is being judged.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import trio

from tests.real.environments import POLL_S, Stage
from trio_envserve.envs.recorder import read_run_log


class Judge(Stage):
    def records(self, event: str, key: str | None = None) -> list[dict[str, Any]]:
        return [
            record
            for record in read_run_log(self.log)
            if record["event"] == event and key in (None, record["key"])
        ]

    def starts(self, key: str) -> int:
        return len(self.records("start", key))

    def ends(self, key: str) -> list[str]:
        """How its lives ended, as far as their code lived to write that."""
        return [record["how"] for record in self.records("end", key)]

    def pids(self, key: str) -> list[int]:
        return [record["pid"] for record in self.records("start", key)]

    def assert_one_at_a_time(self) -> None:
        """G1: no life of any key began while another one of it lived."""
        overlapping = [r for r in self.records("start") if r["overlap"]]
        assert not overlapping, f"two lives at once: {overlapping}"

    def assert_at_most(self, executions: int = 1) -> None:
        """G2, and G1 with it."""
        self.assert_one_at_a_time()
        counts = Counter(record["key"] for record in self.records("start"))
        more = {key: count for key, count in counts.items() if count > executions}
        assert not more, f"more than {executions} executions: {more}"

    def assert_exactly_once(self, *keys: str) -> None:
        """Each of these ran once, and so to its end; nothing else ran twice."""
        self.assert_at_most(1)
        assert {key: self.ends(key) for key in keys} == {key: ["result"] for key in keys}

    # -- waiting: for what is written, never for time --------------------------

    async def wait_started(self, *keys: str, times: int = 1) -> None:
        for key in keys:
            while self.starts(key) < times:
                await trio.sleep(POLL_S)

    async def wait_ended(self, *keys: str) -> None:
        """Until the code of each has written that it ends."""
        for key in keys:
            while not self.ends(key):
                await trio.sleep(POLL_S)

    async def wait_for(self, mark: str) -> str:
        while not self.exists(mark):
            await trio.sleep(POLL_S)
        return self.file(mark).read_text()
