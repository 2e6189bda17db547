"""Hosts as jobs of Slurm, one node each.

Theory of operation
-------------------
The script of a job becomes ``trio-envserve join``.  Slurm signals it ``leave_s`` before its
wall time, or up to a minute earlier: the host leaves, so what runs has that time to end, and
another job takes its place.  The signal is for the script alone (``B:``): a step of ``srun``
would be signalled with all that it has started, workers and their guard, too.
``--no-requeue``: Slurm starts nothing again by itself.  The key of the hosts is in a file
that only its owner can read, on a disk that all nodes see; the script has its path.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import final

import trio

from ..core.errors import ConfigError

OVER = frozenset({
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "REVOKED", "TIMEOUT",
})  # fmt: skip
"""The states of a job that runs no more."""


def check_installed() -> None:
    """ConfigError if this machine cannot submit jobs."""
    missing = [each for each in ("sbatch", "squeue", "scancel") if shutil.which(each) is None]
    if missing:
        raise ConfigError(f"up slurm needs the commands of Slurm: no {', '.join(missing)} here")


def script(join: Sequence[str], *, name: str, folder: Path, leave_s: int, log: str) -> str:
    """The script that is submitted for a host; ``join`` are the arguments of that verb."""
    program = [sys.executable, "-m", "trio_envserve", "join", *join, "--name", name]
    return "\n".join(
        [
            "#!/bin/sh",
            f"#SBATCH --job-name={name}",
            "#SBATCH --nodes=1 --ntasks=1 --no-requeue",
            f"#SBATCH --signal=B:TERM@{leave_s}",
            f"#SBATCH --chdir={shlex.quote(str(folder))}",
            f"#SBATCH --output={shlex.quote(log)}",
            f"exec {shlex.join(program)}",
            "",
        ]
    )


@final
class SlurmHosts:
    """Submits a job for each host."""

    def __init__(
        self, join: Sequence[str], options: Sequence[str], *, folder: Path, leave_s: int
    ) -> None:
        self._join = list(join)
        self._options = list(options)
        """Options of ``sbatch`` for all hosts."""
        self._folder = folder
        self._leave_s = leave_s

    async def start(self, name: str) -> SlurmHost:
        """Submit its job.  ConfigError with what ``sbatch`` says against it."""
        text = script(
            [*self._join, "--drain-s", str(max(1, self._leave_s - 10))], name=name,
            folder=self._folder, leave_s=self._leave_s, log=str(self._folder / f"{name}.log"),
        )  # fmt: skip
        answer = await self._submit(text, "--parsable")
        return SlurmHost(answer.split(";")[0].strip())

    async def test(self) -> str:
        """Whether such a job could be submitted: what ``sbatch --test-only`` says.
        ConfigError if it could not."""
        text = script(
            self._join, name="test", folder=self._folder, leave_s=self._leave_s, log="/dev/null"
        )
        return await self._submit(text, "--test-only")

    async def _submit(self, text: str, *options: str) -> str:
        done = await trio.run_process(
            ["sbatch", *options, *self._options], stdin=text.encode(), capture_stdout=True,
            capture_stderr=True, check=False,
        )  # fmt: skip
        answer = (done.stdout + done.stderr).decode("utf-8", "replace").strip()
        if done.returncode:
            raise ConfigError(f"sbatch does not take the job of a host: {answer}")
        return answer


@final
class SlurmHost:
    """The job of a host."""

    def __init__(self, job: str) -> None:
        self.job = job

    async def ended(self) -> str:
        """See :class:`~.hosts.LaunchedHost`."""
        done = await _run("squeue", "--noheader", "--states=all", "--format=%T", "--jobs", self.job)
        state = done.stdout.decode().strip()
        if done.returncode and b"Invalid job id" in done.stderr:
            state = "forgotten by Slurm"
        elif done.returncode or state not in OVER:
            return ""  # also if Slurm does not answer now
        return f"job {self.job}: {state}"

    async def leave(self) -> None:
        """See :class:`~.hosts.LaunchedHost`.  A job that has not begun is simply taken back."""
        await _run("scancel", "--state=PENDING", self.job)
        await _run("scancel", "--batch", "--signal=TERM", self.job)

    async def kill(self) -> None:
        """See :class:`~.hosts.LaunchedHost`."""
        await _run("scancel", self.job)


async def _run(*command: str) -> subprocess.CompletedProcess[bytes]:
    return await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
