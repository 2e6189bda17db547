"""The interface of sandboxes, for their providers and their users.

Theory of operation
-------------------
A *provider* makes sandboxes of one kind.  A provider is an object or a module with the members of
:class:`Provider`, and is found by its name (:mod:`.finding`).  ``create`` makes a sandbox that
outlives the call and belongs to a name; ``open`` returns an object that runs commands in the
sandbox; ``destroy`` removes everything that belongs to the name, and may be called by another
process after the one that created the sandbox has died.  ``destroy`` needs only the name, and does
nothing if nothing is left.  If that works on the sandbox's own machine only, the provider has
``here = True``.

A provider only runs commands.  Files are read and written by commands in the sandbox, so that no
path in the sandbox is ever followed outside of it.

If a sandbox is gone, the call under way or the next one raises :class:`SandboxDied`.  This error is
an ``EnvironmentUnavailable``: the rollout fails because of the infrastructure, and has no reward.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from ..commands import CompletedProcess
from ..core.errors import ConfigError, EnvironmentUnavailable

MIB: Final = 1 << 20

OUTPUT_BYTES: Final = MIB
"""Default of the most bytes kept of each output of a command."""
FILE_BYTES: Final = 16 * MIB
"""Default of the most bytes of a file that is read."""
TIMEOUT_S: Final = 60.0
"""Default time limit of a command, in seconds."""


class SandboxUnavailable(EnvironmentUnavailable):
    """Raised if a sandbox cannot be created, or if its provider does not answer."""


class SandboxDied(EnvironmentUnavailable):
    """Raised if the sandbox of a rollout is gone: it was killed, ran out of memory, or its daemon
    has ended.  Whether a command under way had its effect is not known."""

    code = "sandbox-died"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """The properties of a sandbox.  Raises :class:`ConfigError` for invalid values."""

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
    """Initial files, by path."""
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Environment variables of its commands."""
    readable: Sequence[str] = ()
    """Absolute paths of the machine, seen read-only at the same place."""

    def __post_init__(self) -> None:
        """Refuse invalid values."""
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
    """A command for a provider."""

    argv: Sequence[str]
    input: bytes
    timeout_s: float
    """Time limit; ``math.inf``: none."""
    cwd: str | None
    """Folder in which it runs; None: the sandbox's own."""
    env: Mapping[str, str]
    """Environment variables in addition to those of every command."""
    most_bytes: int
    """Most bytes kept of each output."""


class OpenSandbox(Protocol):
    """A sandbox opened by its provider.  Runs on trio."""

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
        """Raise :class:`ConfigError`, which says what to install or write, if such a sandbox cannot
        be made on this machine."""
        ...

    async def create(self, name: str, spec: SandboxSpec) -> Any:
        """Make a sandbox that belongs to ``name``; returns a small handle that can be encoded.
        Runs on trio, and may be cancelled.  Raises :class:`SandboxUnavailable`."""
        ...

    async def open(self, handle: Any) -> OpenSandbox:
        """Open a sandbox that was created in this process.  Runs on trio.  Raises
        :class:`SandboxDied`."""
        ...

    @property
    def destroy(self) -> Any:
        """A plain function at the top of a module, called with the name and the handle; with None
        for the handle if ``create`` did not return one.  Returns once nothing is left, also if
        nothing was there."""
        ...
