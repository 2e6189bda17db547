"""The environment server of a training run, and kills of it and its workers.

It keeps a journal, so the server that comes after a killed one goes on where that ended.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from trio_envserve.envs.recorder import read_run_log

HERE = Path(__file__).parent


class EnvServer:
    """``trio-envserve serve`` with two workers, in a process of its own.

    ``quiet`` is not set while something is killed: the policy waits, so that a kill meets
    rollouts in the middle of a model call.
    """

    def __init__(self, folder: Path, policy_url: str, quiet: threading.Event):
        self.log = folder / "log.jsonl"
        endpoints = folder / "endpoints.toml"
        body = "{ return_token_ids = true, logprobs = true }"
        endpoints.write_text(f'[policy]\nurl = "{policy_url}"\nmodel = "tiny"\nbody = {body}\n')
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        self._command = [
            *(sys.executable, "-m", "trio_envserve", "serve", "successor:Successor", "--json"),
            *("--bind", self.address, "--workers", "2", "--journal", str(folder / "journal")),
            *("--endpoints", str(endpoints), "--exit-with-parent", "--log-level", "error"),
        ]
        self.killed: set[int] = set()
        """Workers that were killed, by their process id."""
        self._quiet = quiet
        self.kills = {"worker": 0, "server": 0}
        self._killing: threading.Thread | None = None
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            self._command, cwd=HERE, stdout=subprocess.DEVNULL,
            env={**os.environ, "TRAINING_LOG": str(self.log), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def __enter__(self) -> EnvServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait_killed()
        self._process.terminate()
        self._process.wait()

    def kill_soon(self, what: str) -> None:
        """Kill -9 a worker in the middle of rollouts that begin from now on, or the server.  A
        killed server is started anew."""
        self.wait_killed()
        self._quiet.clear()
        seen = len(read_run_log(self.log))
        self._killing = threading.Thread(target=self._kill, args=(what, seen))
        self._killing.start()

    def wait_killed(self) -> None:
        """Wait until the kill that was asked for is done."""
        if self._killing is not None:
            self._killing.join()
            self._killing = None

    def _kill(self, what: str, seen: int) -> None:
        while True:
            running = self._running(read_run_log(self.log)[seen:])
            if running:
                break
            time.sleep(0.002)
        if what == "worker":
            pid = random.choice(sorted(running))
            self.killed.add(pid)
            os.kill(pid, signal.SIGKILL)
            print(f"killed worker {pid}", flush=True)
        else:
            self._process.kill()
            self._process.wait()
            self.killed |= {record["pid"] for record in read_run_log(self.log)}
            print("killed the server", flush=True)
            self._start()
        self.kills[what] += 1
        self._quiet.set()

    @staticmethod
    def _running(records: list[dict[str, Any]]) -> set[int]:
        """The workers, by process id, in which a rollout has begun and not ended."""
        ended = {record["name"] for record in records if record["event"] == "end"}
        return {record["pid"] for record in records if record["name"] not in ended}

    def runs(self) -> dict[str, int]:
        """What ran, by the environment's own log."""
        return runs_of(read_run_log(self.log), self.killed)


def runs_of(records: list[dict[str, Any]], killed: set[int]) -> dict[str, int]:
    """Number of rollouts in a log; of further executions, each after the kill of the worker in
    the middle of the one before; and of those for which there is no such reason."""
    starts: dict[str, list[dict[str, Any]]] = defaultdict(list)
    finished: dict[str, float] = {}
    for record in records:
        if record["event"] == "start":
            starts[record["name"]].append(record)
        elif record["how"] == "result":
            finished.setdefault(record["name"], record["monotonic"])
    reruns = duplicates = 0
    for name, begun in starts.items():
        for before, after in itertools.pairwise(begun):
            done = finished.get(name, after["monotonic"]) < after["monotonic"]
            if before["pid"] in killed and before["pid"] != after["pid"] and not done:
                reruns += 1
            else:
                duplicates += 1
    return {"rollouts": len(starts), "reruns": reruns, "duplicates": duplicates}
