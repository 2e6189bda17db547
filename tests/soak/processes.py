"""Small real processes to be looked at, stopped and killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

READY = "print('ready', flush=True); import sys; sys.stdin.read()"


@contextmanager
def python(folder: Path, program: str = "", **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that works in a folder, and has begun."""
    process = subprocess.Popen(
        [sys.executable, "-c", program + READY], cwd=folder, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, **options,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def state(pid: int) -> str:
    """The letter that the kernel has for what a process does."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
