"""Sandboxes for the code of a rollout, on a loop or in a thread."""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, TypeAlias, final

from ..carrier import Work, WorkCarrier
from ..commands import CompletedProcess, encoded, run_of, variables_of, words_of
from ..core.errors import ConfigError
from ..near import did_you_mean
from .finding import find_provider, is_of_machine
from .interface import (
    FILE_BYTES,
    OUTPUT_BYTES,
    TIMEOUT_S,
    OpenSandbox,
    SandboxCommand,
    SandboxSpec,
)

KIND: Final = "sandbox"
"""Kind of the resource of a sandbox."""

_WRITE = 'mkdir -p -- "$(dirname -- "$1")" && cat > "$1"'


Hold: TypeAlias = Callable[..., Any]
"""``rollout.resource``."""


@final
class Sandboxed:
    """The sandbox of a class with tools; each of its objects has one as ``self.sandbox``::

        class Shell:
            sandbox = Sandboxed("bubblewrap", memory_bytes=512 << 20)

    Raises :class:`ConfigError` for invalid properties.

    Args:
        provider: Name of the provider: ``bubblewrap``, ``docker``, ``podman``, or another's.
        **spec: Properties of the sandbox, as :meth:`Rollout.sandbox` has them.
    """

    def __init__(self, provider: str, **spec: Any) -> None:
        known = SandboxSpec.__dataclass_fields__
        for name in spec:
            if name not in known:
                raise ConfigError(
                    f"a sandbox has no {name!r:.80}{did_you_mean(name, known, 1)} "
                    f"(it has: {', '.join(known)})"
                )
        self.provider = provider
        self.spec = SandboxSpec(**spec)

    def check(self) -> None:
        """Raise :class:`ConfigError` if this machine cannot make it."""
        find_provider(self.provider).check(self.spec)


@final
class Sandbox:
    """A sandbox of a rollout.  Opened by ``rollout.sandbox``; a class with tools that says
    ``sandbox = ...`` has it as ``self.sandbox``.

    A sandbox that is gone raises ``SandboxDied``, an ``EnvironmentUnavailable``, in the call under
    way or in the next one.
    """

    def __init__(
        self, name: str, opened: OpenSandbox, carrier: WorkCarrier, env: Mapping[str, str]
    ) -> None:
        self.name = name
        """Name at the server; label of its container, or name of its folder."""
        self._opened: OpenSandbox | None = opened
        self._carrier = carrier
        self._env = env

    async def exec(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        timeout_s: float | None = TIMEOUT_S,
        input: bytes | str = b"",
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        most_bytes: int = OUTPUT_BYTES,
    ) -> CompletedProcess:
        """Run a command in the sandbox (trio and asyncio)::

            done = await sandbox.exec(["python3", "-c", code], timeout_s=10)

        A command that reaches a limit is killed, with all processes that it has started;
        ``done.limit`` names the limit.  A command that cannot be started has the return code 126
        or 127.  Processes that a command leaves behind run on until the sandbox ends.

        Args:
            command: The program and its arguments; for a line of shell, ``["sh", "-c", line]``.
            timeout_s: Time limit, in seconds; None: no limit.
            input: Its standard input; text as UTF-8.
            cwd: Folder in which it runs; None: the sandbox's own.
            env: Environment variables in addition to those of the sandbox; None takes one away.
            most_bytes: Most bytes kept of each output: its beginning and its end.
        """
        work = self._work(command, timeout_s, input, cwd, env, most_bytes)
        ended: CompletedProcess = await self._carrier.call(work)
        return ended

    def exec_sync(
        self, command: Sequence[str | os.PathLike[str]], *, timeout_s: float | None = TIMEOUT_S,
        input: bytes | str = b"", cwd: str | None = None,
        env: Mapping[str, str | None] | None = None, most_bytes: int = OUTPUT_BYTES,
    ) -> CompletedProcess:  # fmt: skip
        """Like ``exec``, for code that runs in a thread.  Raises ``RolloutCancelled``, too."""
        work = self._work(command, timeout_s, input, cwd, env, most_bytes)
        ended: CompletedProcess = self._carrier.call_sync(work)
        return ended

    async def read(self, path: str, *, most_bytes: int = FILE_BYTES) -> bytes:
        """The content of a file (trio and asyncio).  Raises ``OSError``, also if it is too large.

        Args:
            path: Its path in the sandbox, from the sandbox's own folder.
            most_bytes: Most bytes of the file.
        """
        ended = await self.exec(_to_read(path, most_bytes), most_bytes=most_bytes + 1)
        return _content(path, ended, most_bytes)

    def read_sync(self, path: str, *, most_bytes: int = FILE_BYTES) -> bytes:
        """Like ``read``, for code that runs in a thread."""
        ended = self.exec_sync(_to_read(path, most_bytes), most_bytes=most_bytes + 1)
        return _content(path, ended, most_bytes)

    async def write(self, path: str, data: bytes | str) -> None:
        """Write a file, and make its folders if needed (trio and asyncio).  Raises ``OSError``.

        Args:
            path: Its path in the sandbox, from the sandbox's own folder.
            data: Its content; text as UTF-8.
        """
        _check(path, await self.exec(["sh", "-c", _WRITE, "sh", path], input=data))

    def write_sync(self, path: str, data: bytes | str) -> None:
        """Like ``write``, for code that runs in a thread."""
        _check(path, self.exec_sync(["sh", "-c", _WRITE, "sh", path], input=data))

    def _work(
        self, command: Any, timeout_s: float | None, given: bytes | str, cwd: str | None,
        env: Mapping[str, str | None] | None, most_bytes: int,
    ) -> Work:  # fmt: skip
        if self._opened is None:
            raise RuntimeError("the sandbox has ended with its block: call it inside of that")
        run, variables = run_of(given, timeout_s, most_bytes), {**self._env, **(env or {})}
        texts = {
            os.fsdecode(name): os.fsdecode(value)
            for name, value in variables_of(variables).items() if value is not None
        }  # fmt: skip
        asked = SandboxCommand(
            [os.fsdecode(word) for word in words_of(command)], run.input, run.timeout_s,
            None if cwd is None else os.fsdecode(encoded(cwd, "cwd")), texts, run.most_bytes,
        )  # fmt: skip
        return functools.partial(self._opened.run, asked)

    def _close(self) -> None:
        self._opened = None


def _to_read(path: str, most_bytes: int) -> list[str]:
    return ["head", "-c", str(most_bytes + 1), "--", path]


def _content(path: str, ended: CompletedProcess, most_bytes: int) -> bytes:
    _check(path, ended)
    if len(ended.stdout) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes", path)
    return ended.stdout


def _check(path: str, ended: CompletedProcess) -> None:
    if ended.returncode:
        text = ended._replace(stdout=b"", stdout_cut=0).text
        kind = FileNotFoundError if "No such file or directory" in text else OSError
        raise kind(f"{path}: {text}")


@final
class SandboxBlock:
    """The block of a sandbox: ``async with`` on a loop, ``with`` in a thread."""

    def __init__(self, hold: Hold, carrier: WorkCarrier, made: Sandboxed) -> None:
        self._hold = hold
        self._carrier = carrier
        self._made = made
        self._provider = find_provider(made.provider)
        self._block: Any = None

    async def __aenter__(self) -> Sandbox:
        self._block = self._opened()
        sandbox: Sandbox = await self._block.__aenter__()
        return sandbox

    async def __aexit__(self, *error: Any) -> bool | None:
        # What it awaits shields itself, and has limits.
        ended: bool | None = await self._block.__aexit__(*error)  # noqa: ASYNC102
        return ended

    def __enter__(self) -> Sandbox:
        self._block = self._opened_sync()
        sandbox: Sandbox = self._block.__enter__()
        return sandbox

    def __exit__(self, *error: Any) -> bool | None:
        ended: bool | None = self._block.__exit__(*error)
        return ended

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Sandbox]:
        provider, spec, carrier = self._provider, self._made.spec, self._carrier
        names: list[str] = []
        provider.check(spec)
        here = is_of_machine(provider)

        async def create(name: str) -> Any:
            names.append(name)
            return await carrier.call(functools.partial(provider.create, name, spec))

        async with self._hold(KIND, create, provider.destroy, here=here) as handle:
            opened = await carrier.call(functools.partial(provider.open, handle))
            sandbox = Sandbox(names[0], opened, carrier, spec.env)
            try:
                for path, data in spec.files.items():
                    await sandbox.write(path, data)
                yield sandbox
            finally:
                sandbox._close()

    @contextmanager
    def _opened_sync(self) -> Iterator[Sandbox]:
        provider, spec, carrier = self._provider, self._made.spec, self._carrier
        names: list[str] = []
        provider.check(spec)
        here = is_of_machine(provider)

        def create(name: str) -> Any:
            names.append(name)
            return carrier.call_sync(functools.partial(provider.create, name, spec))

        with self._hold(KIND, create, provider.destroy, here=here) as handle:
            opened = carrier.call_sync(functools.partial(provider.open, handle))
            sandbox = Sandbox(names[0], opened, carrier, spec.env)
            try:
                for path, data in spec.files.items():
                    sandbox.write_sync(path, data)
                yield sandbox
            finally:
                sandbox._close()
