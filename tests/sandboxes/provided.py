"""Providers of sandboxes that this machine has, for tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio

from trio_envserve.commands import CompletedProcess
from trio_envserve.sandboxes.finding import find_provider
from trio_envserve.sandboxes.interface import (
    MIB,
    OpenSandbox,
    Provider,
    SandboxCommand,
    SandboxSpec,
)

IMAGE = "trio-envserve-busybox"
NAMES = ("bubblewrap", "docker", "podman")
HANGS_S = 600.0
"""Only what hangs takes so long."""
RUNNING = "cat /proc/[0-9]*/cmdline 2>/dev/null; true"
"""A line of shell that tells the words of all processes of a sandbox."""

_APPLETS = (
    "sh", "cat", "ls", "echo", "sleep", "id", "mkdir", "dirname", "head", "yes", "true", "env",
    "ps", "grep", "kill", "ln", "rm",
)  # fmt: skip
_CONFIG = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
"""
_numbers = count()


def provider_or_skip(name: str) -> Provider:
    """A provider that works here, or skip the test."""
    why = _missing(name)
    if why:
        pytest.skip(f"needs {name}: {why}")
    return find_provider(name)


def spec_for(name: str, **more: Any) -> SandboxSpec:
    """A small sandbox."""
    image = None if name == "bubblewrap" else IMAGE
    return SandboxSpec(**{"image": image, "memory_bytes": 256 * MIB, "processes": 32, **more})


def new_name() -> str:
    return f"test-{os.getpid()}-{next(_numbers)}"


def command(
    *argv: str, input: bytes = b"", timeout_s: float = 300.0, cwd: str | None = None,
    env: Mapping[str, str] | None = None, most_bytes: int = MIB,
) -> SandboxCommand:  # fmt: skip
    return SandboxCommand(argv, input, timeout_s, cwd, env or {}, most_bytes)


def shell(line: str, **more: Any) -> SandboxCommand:
    return command("sh", "-c", line, **more)


@asynccontextmanager
async def created(name: str, **more: Any) -> AsyncIterator[tuple[OpenSandbox, str, Any]]:
    """A sandbox of a provider, with its name and handle; destroyed at the end."""
    provider = provider_or_skip(name)
    sandbox, handle = new_name(), None
    with trio.fail_after(HANGS_S):
        try:
            handle = await provider.create(sandbox, spec_for(name, **more))
            yield await provider.open(handle), sandbox, handle
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(provider.destroy, sandbox, handle)


async def told(sandbox: OpenSandbox, line: str, **more: Any) -> str:
    """Standard output of a line of shell."""
    ended: CompletedProcess = await sandbox.run(shell(line, **more))
    assert ended.returncode == 0, ended
    return ended.stdout.decode()


@cache
def _missing(name: str) -> str:
    """The reason for which a provider does not work here; empty: it does."""
    if name == "bubblewrap":
        return _fails("bwrap", "--unshare-all", "--ro-bind", "/", "/", "true")
    if shutil.which("busybox") is None:
        return "busybox, of which its image is made, is not here"
    if why := _fails(name, "info"):
        return why
    _make_image(name)
    attempt = (name, "run", "--rm", "--network", "none", IMAGE, "/bin/true")
    if _fails(*attempt):
        # As root of a container or of a small machine, podman is not allowed its defaults.
        config = Path(os.environ["PYTEST_SANDBOX_FOLDER"], "containers.conf")
        config.write_text(_CONFIG)
        os.environ["CONTAINERS_CONF"] = str(config)
    return _fails(*attempt)


def _fails(*argv: str) -> str:
    try:
        ended = subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd="/proc")
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return ended.stderr[-300:] or "it fails" if ended.returncode else ""


def _make_image(name: str) -> None:
    folder = Path(os.environ["PYTEST_SANDBOX_FOLDER"], "root")
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    (folder / "tmp").mkdir(exist_ok=True)
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, folder / "bin" / "busybox")
    for each in _APPLETS:
        if not (folder / "bin" / each).exists():
            (folder / "bin" / each).symlink_to("busybox")
    packed = folder.parent / "root.tar"
    with tarfile.open(packed, "w") as tar:
        tar.add(folder, arcname=".")
    subprocess.run([name, "import", packed, IMAGE], check=True, capture_output=True, timeout=60)
