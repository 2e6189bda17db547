"""Sandboxes by Docker and podman, through their commands.

Theory of operation
-------------------
A sandbox is a container whose name follows from that of the sandbox, so that it can be removed
whoever asks for it, and so that it is never made twice.  Its process 1 is a shell that waits and
reaps; a command is ``exec`` of the program.

Ending the client of an ``exec`` does not end the command.  So the shell that becomes the command
first says its process id, on the first line of its standard error, and at a limit its session is
killed by a further ``exec``.

A container that is being made by a daemon may appear after its client was killed.  So the client is
left to its end, which is near, since images are loaded before; and whoever destroys a sandbox that
nobody reports as created looks a second time.

The statuses 125 and up have several meanings, a dead container among them: then it is looked at.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from typing import Any, Final, final

import trio

from ..commands import CompletedProcess, CutOutput, completed, feed
from ..core.errors import ConfigError
from .interface import SandboxCommand, SandboxDied, SandboxSpec, SandboxUnavailable

LABEL: Final = "trio-envserve.sandbox"
"""Label of containers, whose value is the name of the sandbox."""

CLIENT_S: Final = 60.0
"""Time that the program may take for what is not a command of the sandbox, in seconds."""
PULL_S: Final = 1800.0
"""Time that it may take to load an image, in seconds."""
END_S: Final = 10.0
"""Time that killed processes may take to end, in seconds."""
AGAIN_S: Final = 2.0
"""Time after which a container is looked for a second time, in seconds."""

_NOWHERE: Final = "/proc" if os.path.isdir("/proc") else "/"
"""Folder in which the program runs: podman's monitor writes a file where it is when memory runs
out, and here it cannot."""

_WAIT = 'while :; do sleep 3600 & wait "$!"; done'
_RUN = 'echo "$$" >&2; exec "$@"'
_KILL = 'kill -9 "-$1" || kill -9 "$1"'
_OUT_OF_MEMORY = (
    "cat /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control 2>/dev/null"
)
_UNCLEAR = 125
"""From here on a status may be one of the program."""
_PID_BYTES = 12
"""Most digits of a process id, and a newline."""


@final
class Containers:
    """The provider for one program."""

    here: Final = True
    """Its sandboxes are of their machine."""

    def __init__(self, program: str, destroy: Callable[[str, Any], None]) -> None:
        self.program = program
        self.destroy = destroy

    def check(self, spec: SandboxSpec) -> None:
        """See ``Provider.check``."""
        if spec.image is None:
            raise ConfigError(
                f'{self.program} makes a sandbox of an image: image="python:3.12-slim", say'
            )
        if shutil.which(self.program) is None:
            raise ConfigError(
                f"sandboxes by {self.program} need the program {self.program}: install it"
            )

    async def create(self, name: str, spec: SandboxSpec) -> str:
        """See ``Provider.create``."""
        assert spec.image is not None
        if (await self.ask("image", "inspect", spec.image)).returncode:
            # An image is nobody's: to leave it there when this is cancelled leaks nothing.
            pulled = await self.ask("pull", "--quiet", spec.image, timeout_s=PULL_S)
            if pulled.returncode:
                raise self.failed(f"cannot load the image {spec.image}", pulled)
        with trio.CancelScope(shield=True):  # bounded by CLIENT_S
            made = await self.ask(*_run(name, spec))
        if made.returncode:
            raise self.failed("cannot make a container", made)
        return container_of(name)

    async def open(self, handle: Any) -> Container:
        """See ``Provider.open``."""
        return Container(self, handle)

    async def ask(
        self, *words: str, timeout_s: float = CLIENT_S
    ) -> subprocess.CompletedProcess[bytes]:
        """Run the program to its end.  Raises :class:`SandboxUnavailable` if it does not come to
        it."""
        with trio.move_on_after(timeout_s):
            try:
                return await trio.run_process(
                    [self.program, *words],
                    cwd=_NOWHERE,
                    capture_stdout=True,
                    capture_stderr=True,
                    check=False,
                )
            except OSError as error:
                raise SandboxUnavailable(f"cannot run {self.program}: {error}") from error
        raise SandboxUnavailable(f"{self.program} {words[0]} did not end within {timeout_s:g} s")

    def failed(self, what: str, ended: subprocess.CompletedProcess[bytes]) -> SandboxUnavailable:
        """The error of a program that has failed."""
        text = ended.stderr.decode(errors="replace").strip()[-500:]
        return SandboxUnavailable(f"{self.program} {what}: {text}")


def container_of(name: str) -> str:
    """The name of the container of a sandbox."""
    known = re.fullmatch(r"[0-9a-zA-Z_.-]{1,100}", name)
    return f"trio-envserve-{name if known else hashlib.sha256(name.encode()).hexdigest()}"


def _run(name: str, spec: SandboxSpec) -> list[str]:
    """The arguments that make a container and start it."""
    assert spec.image is not None
    words = [
        "run", "--detach", "--stop-timeout", "0", "--pull", "never", "--name", container_of(name),
        "--label", f"{LABEL}={name}", "--hostname", "sandbox",
        # The same with swap: none.
        "--memory", str(spec.memory_bytes), "--memory-swap", str(spec.memory_bytes),
        "--pids-limit", str(spec.processes + 2),  # process 1, and what it waits with
        "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
    ]  # fmt: skip
    if not spec.network:
        words += ["--network", "none"]
    if spec.cpu_s is not None:
        words += ["--ulimit", f"cpu={spec.cpu_s}:{spec.cpu_s}"]
    for path in spec.readable:
        words += ["--mount", f"type=bind,source={path},target={path},readonly"]
    return [*words, "--entrypoint", "/bin/sh", spec.image, "-c", _WAIT]


@final
class Container:
    """A sandbox that runs."""

    def __init__(self, provider: Containers, container: str) -> None:
        self._provider = provider
        self._container = container
        self._killed = 0
        """Number of processes that the kernel has killed at the limit of memory."""

    async def run(self, command: SandboxCommand) -> CompletedProcess:
        """See ``OpenSandbox.run``."""
        out, err = CutOutput(command.most_bytes), _Errors(command.most_bytes)
        try:
            process = await trio.lowlevel.open_process(
                self._words(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, cwd=_NOWHERE,
            )  # fmt: skip
        except OSError as error:
            raise SandboxUnavailable(f"cannot run {self._provider.program}: {error}") from error
        stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
        assert stdin is not None and stdout is not None and stderr is not None  # noqa: PT018
        try:
            async with stdin, stdout, stderr:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(feed, stdin, command.input)
                    nursery.start_soon(out.collect, stdout)
                    nursery.start_soon(err.collect, stderr)
                    with trio.move_on_after(command.timeout_s) as limit:
                        await process.wait()
                    if limit.cancelled_caught:
                        await self._kill(err.pid)
                        with trio.move_on_after(END_S):
                            await process.wait()
                    if process.returncode is None:
                        nursery.cancel_scope.cancel()
        finally:
            if process.returncode is None:
                process.kill()
                with trio.CancelScope(shield=True):  # bounded by END_S, and the process is killed
                    await process.wait()
                    await self._kill(err.pid)
        status = process.returncode
        assert status is not None
        reached = "timeout" if limit.cancelled_caught else ""
        if not reached and (status >= _UNCLEAR or status < 0 or err.pid is None):
            reached = await self._look()
        return completed(status, out.kept(), err.kept(), reached)

    def _words(self, command: SandboxCommand) -> list[str]:
        words = [self._provider.program, "exec"]
        if command.input:
            words.append("--interactive")
        if command.cwd is not None:
            words += ["--workdir", command.cwd]
        for name, value in command.env.items():
            words += ["--env", f"{name}={value}"]
        return [*words, self._container, "sh", "-c", _RUN, "sh", *command.argv]

    async def _kill(self, pid: int | None) -> None:
        """Kill the session of a command."""
        if pid is not None:
            with trio.move_on_after(END_S):
                await self._provider.ask(
                    "exec", self._container, "sh", "-c", _KILL, "sh", str(pid)
                )  # fmt: skip

    async def _look(self) -> str:
        """Look at the container after a strange status: the limit that was reached, if any.  Raises
        :class:`SandboxDied`."""
        program = self._provider.program
        form = "{{.State.Running}} {{.State.OOMKilled}}"
        try:
            found = await self._provider.ask("inspect", "--format", form, self._container)
            if found.stdout.split()[:1] != [b"true"]:
                why = ": it ran out of memory" if found.stdout.endswith(b"true\n") else ""
                text = found.stderr.decode(errors="replace").strip()[-500:]
                raise SandboxDied(f"the container of the sandbox has died{why} ({program} {text})")
            told = await self._provider.ask("exec", self._container, "sh", "-c", _OUT_OF_MEMORY)
        except SandboxUnavailable as error:
            raise SandboxDied(f"the container of the sandbox is not known: {error}") from None
        killed = sum(map(int, re.findall(rb"^oom_kill (\d+)", told.stdout, re.MULTILINE)))
        before, self._killed = self._killed, killed
        return "memory" if killed > before else ""


@final
class _Errors(CutOutput):
    """Standard error, after a first line with the process id of the command."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self._first = b""
        self.pid: int | None = None
        """Process id in the sandbox; None: the command has not begun."""
        self._is_open = True

    def take(self, piece: bytes) -> None:
        """See ``CutOutput.take``."""
        if self._is_open:
            self._first += piece
            line, newline, rest = self._first.partition(b"\n")
            if not newline and len(self._first) < _PID_BYTES:
                return
            self._is_open = False
            if newline and line.strip().isdigit():
                self.pid, piece = int(line), rest
            else:
                piece = self._first
        super().take(piece)

    def kept(self) -> tuple[bytes, int]:
        """See ``CutOutput.kept``."""
        if self._is_open:
            super().take(self._first)
            self._is_open = False
        return super().kept()


# -- destroy ------------------------------------------------------------------------------


def destroy_docker(name: str, handle: Any) -> None:
    """Remove a container of Docker.  See ``Provider.destroy``."""
    _remove("docker", name, handle)


def destroy_podman(name: str, handle: Any) -> None:
    """Remove a container of podman.  See ``Provider.destroy``."""
    _remove("podman", name, handle)


def _remove(program: str, name: str, handle: Any) -> None:
    for is_last in (handle is not None, True):
        ended = subprocess.run(
            [program, "rm", "--force", "--volumes", container_of(name)],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=CLIENT_S, cwd=_NOWHERE,
        )  # fmt: skip
        text = ended.stderr.decode(errors="replace").strip()
        if ended.returncode and "no such container" not in text.lower():
            raise SandboxUnavailable(f"{program} cannot remove a container: {text[-500:]}")
        if is_last:
            return
        time.sleep(AGAIN_S)


DOCKER: Final = Containers("docker", destroy_docker)
PODMAN: Final = Containers("podman", destroy_podman)
