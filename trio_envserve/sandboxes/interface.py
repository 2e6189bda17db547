"""The interface of sandboxes, for their providers and for those that use one.

Theory of operation
-------------------
A *provider* makes sandboxes of one kind.  It is an object, or a module, with the members of
:class:`Provider`, and is found by its name (:mod:`.finding`).  ``create`` makes a sandbox that
outlives the call and belongs to a name; ``open`` gives what runs commands in it; ``destroy`` takes
away all that belongs to the name, and may be called by another process than the one that created
it, after that one has died.  It needs nothing but the name, and does nothing if nothing is left.

A provider has to run commands, and nothing else: files are read and written by commands in the
sandbox, so that no path in it is ever followed outside of it.

A sandbox that is gone raises :class:`SandboxDied` in the call under way or the next one.  It is an
``EnvironmentUnavailable``: the rollout fails, put down to the infrastructure, and no reward is
made of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from ..core.errors import ConfigError, EnvironmentUnavailable
from ..outputs import CompletedProcess

MIB: Final = 1 << 20

OUTPUT_BYTES: Final = MIB
"""Most bytes that are kept of each output of a command, if the call says nothing else."""
FILE_BYTES: Final = 16 * MIB
"""Most bytes of a file that is read, if the call says nothing else."""
TIMEOUT_S: Final = 60.0
"""Time that a command may take, in seconds, if the call says nothing else."""


class SandboxUnavailable(EnvironmentUnavailable):
    """A sandbox could not be created, or what makes them does not answer."""


class SandboxDied(EnvironmentUnavailable):
    """The sandbox of a rollout is gone: it was killed, ran out of memory, or its daemon has
    ended.  Whether a command under way had its effect is not known."""

    code = "sandbox-died"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """The properties of a sandbox.  Raises :class:`ConfigError` for values that are none."""

    image: str | None = None
    """Name of the image, for providers that have images."""
    memory_bytes: int = 1024 * MIB
    """Memory of all its processes."""
    processes: int = 128
    """Most processes and threads at once."""
    cpu_s: int | None = None
    """Processor time of each process, in seconds; None: no limit."""
    disk_bytes: int | None = 256 * MIB
    """Most bytes of its files in each of its writable folders; None: no limit."""
    network: bool = False
    """Whether it reaches the network of its machine."""
    files: Mapping[str, bytes | str] = dataclasses.field(default_factory=dict)
    """Files that it begins with, by path."""
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Variables of its commands."""
    readable: Sequence[str] = ()
    """Absolute paths of the machine that are seen at the same place, and not written."""

    def __post_init__(self) -> None:
        """Refuse values that are none."""
        for name, may_be_none in (
            ("memory_bytes", False), ("processes", False), ("cpu_s", True), ("disk_bytes", True),
        ):  # fmt: skip
            value = getattr(self, name)
            if value is None and may_be_none:
                continue
            if type(value) is not int or value < 1:
                raise ConfigError(f"{name} of a sandbox is a whole number above 0, not {value!r}")
        if self.image is not None and (not isinstance(self.image, str) or not self.image):
            raise ConfigError(f"image of a sandbox is the name of one, not {self.image!r}")
        if type(self.network) is not bool:
            raise ConfigError(f"network of a sandbox is True or False, not {self.network!r}")
        for name, kinds in (("files", (bytes, str)), ("env", str)):
            found = getattr(self, name)
            if not isinstance(found, Mapping) or not all(
                isinstance(key, str) and key and "\0" not in key and isinstance(value, kinds)
                for key, value in found.items()
            ):
                raise ConfigError(f"{name} of a sandbox is a mapping of names to texts")
        if isinstance(self.readable, str) or not all(
            isinstance(path, str) and path.startswith("/") for path in self.readable
        ):
            raise ConfigError("readable of a sandbox is a list of absolute paths")


class SandboxCommand(NamedTuple):
    """A command, as a provider runs it."""

    argv: Sequence[str]
    input: bytes
    timeout_s: float
    cwd: str | None
    """Folder in which it runs; None: the sandbox's own."""
    env: Mapping[str, str]
    """Variables beside those that every command has."""
    most_bytes: int
    """Most bytes that are kept of each output."""


class OpenSandbox(Protocol):
    """A sandbox that a provider has opened.  All of it runs on trio."""

    async def run(self, command: SandboxCommand) -> CompletedProcess:
        """Run a command to its end, or kill it at its limit of time.

        A command that cannot be started has the return code 126 or 127, and the reason in
        ``stderr``, as in a shell; one that is killed at a limit has -9.  When the caller is
        cancelled, the command is killed.  Raises :class:`SandboxDied`.
        """
        ...


class Provider(Protocol):
    """Makes sandboxes of one kind."""

    def check(self, spec: SandboxSpec) -> None:
        """Raise :class:`ConfigError` if it cannot make such a sandbox on this machine, with what to
        install or write."""
        ...

    async def create(self, name: str, spec: SandboxSpec) -> Any:
        """Make a sandbox that belongs to ``name``; returns a handle, which is small and can be
        encoded.  Runs on trio, and may be cancelled.  Raises :class:`SandboxUnavailable`."""
        ...

    async def open(self, handle: Any) -> OpenSandbox:
        """Open a sandbox that was created in this process.  Runs on trio.  Raises
        :class:`SandboxDied`."""
        ...

    @property
    def destroy(self) -> Any:
        """A plain function at the top of a module, which is called with the name and the handle,
        or None for a sandbox whose creation did not come to its end.  It returns once nothing is
        left, also if nothing was there."""
        ...
