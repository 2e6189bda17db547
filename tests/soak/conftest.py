"""Logs of a small run in which everything is as it should be, to be changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trio_envserve.lab.history import CALLERS, ENVIRONMENT, KILLER
from trio_envserve.lab.soak.judge import judge
from trio_envserve.lab.soak.judge_samples import SAMPLES

Line = dict[str, Any]

NAMES = {
    "environment": ENVIRONMENT, "callers": CALLERS, "killer": KILLER, "samples": SAMPLES,
}  # fmt: skip


class Run:
    """The four logs of a run, a list of lines each."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment: list[Line] = []
        self.callers: list[Line] = []
        self.killer: list[Line] = []
        self.samples: list[Line] = []

    def start(self, at_s: float, key: str, process: str, predecessor: str = "none") -> None:
        self._environment("start", at_s, key, process, predecessor)

    def end(self, at_s: float, key: str, process: str, how: str = "result") -> None:
        self._environment("end", at_s, key, process, "none", how=how)

    def _environment(
        self, event: str, at_s: float, key: str, process: str, predecessor: str, **more: Any
    ) -> None:
        self.environment.append(
            {
                "event": event, "monotonic": at_s, "key": key, "process": process,
                "pid": int(process[1:]), "attempt": 1, "request": f"s/{key}",
                "predecessor": predecessor, **more,
            }
        )  # fmt: skip

    def ask(self, at_s: float, key: str, client: str = "c0-1", **options: Any) -> None:
        given = {"rerun": None, "max_executions": None, "timeout_s": None, **options}
        self.callers.append(
            {"event": "ask", "monotonic": at_s, "key": key, "client": client, **given}
        )

    def answer(self, at_s: float, key: str, error: str = "", verdict: str = "") -> None:
        self.callers.append(
            {
                "event": "answer", "monotonic": at_s, "key": key, "ok": not error,
                "right": not error, "error": error or None, "verdict": verdict or None,
                "message": error, "executions": 1,
            }
        )  # fmt: skip

    def withdraw(self, at_s: float, key: str) -> None:
        self.callers.append({"event": "withdrawn", "monotonic": at_s, "key": key})

    def kills(self, event: str, at_s: float, **fields: Any) -> None:
        self.killer.append({"event": event, "monotonic": at_s, **fields})
        self.killer.sort(key=lambda line: line["monotonic"])

    def kill_worker(self, at_s: float, process: str) -> None:
        """Killed, and seen to be dead a moment later."""
        pid = int(process[1:])
        self.kills("kill", at_s + 0.01, what="worker", pid=pid, sent_s=at_s)
        self.kills("dead", at_s + 0.02, process=process, pid=pid, alive_s=at_s - 0.01)

    def kill_server(self, at_s: float) -> None:
        self.kills("kill", at_s + 0.1, what="server", pid=1, sent_s=at_s)

    def sample(self, phase: str, **kinds: tuple[int, int, int, int]) -> None:
        names = ("processes", "descriptors", "threads", "rss_kib")
        records = {kind: dict(zip(names, held, strict=True)) for kind, held in kinds.items()}
        self.samples.append(
            {"event": "sample", "phase": phase, "kinds": records, "sockets": 0, "locks": 2}
        )

    def steady(self, router: int, client: int, right: int = 10_000) -> None:
        self.samples.append(
            {
                "event": "steady", "requests": 10_000, "right": right,
                "rss_kib": {"router": router, "client": client},
            }
        )  # fmt: skip

    def judged(self) -> dict[str, Any]:
        for field, name in NAMES.items():
            lines: list[Line] = getattr(self, field)
            (self.directory / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return judge(self.directory)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run of 100 s that is as it should be: every fault, a call, all given back."""
    made = Run(tmp_path)
    made.kills("begin", 0.0)
    made.start(1.0, "fine", "p10")
    made.end(2.0, "fine", "p10")
    made.ask(0.9, "fine")
    made.answer(2.1, "fine")
    made.kill_worker(50.0, "p10")
    made.kill_server(60.0)
    made.kills("kill", 61.0, what="client", client="c1-1", pid=5, sent_s=60.9)
    for what in ("worker", "client", "server"):
        made.kills("stop", 62.0, what=what, pid=20, client="c0-1", lasts_s=1.0)
    for how in ("cut", "half-open", "stall", "throttle", "lag"):
        made.kills("network", 63.0, how=how, connections=4)
    made.kills("rest", 80.0)
    made.kills("end", 99.0)
    made.kills("closing", 100.0)
    for phase in ("begin", "faults", "end"):
        made.sample(phase, server=(1, 40, 5, 40_000), worker=(2, 42, 8, 36_000))
    made.sample("closed", soak=(1, 9, 1, 30_000))
    for number in range(4):
        made.steady(40_000 + 100 * number, 34_000 - 10 * number)
    return made
