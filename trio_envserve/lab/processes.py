"""Programs as processes: started, told what to do, killed, started again where they were.

::

    async with serve_process("arithmetic", folder, workers=2) as server:
        async with Process(program("my_client", server.said["address"]), "client") as client:
            await client.ask({"do": "ask", "calls": 10})

Theory of operation
-------------------
A program takes orders on standard input and answers on standard output, a JSON object a
line.  It ends with its standard input (the commands ``serve`` and ``join``: with their parent),
so nothing is left behind however this process ends.  An orderly end is waited for, and then a
kill.  Ctrl-C does not reach it: it leads a process group of its own.

A :class:`Process` has one life after the other.  Its first line of a life, if it has a name
for it, is kept, and its next command is made from that: so a server comes back at its address.

A process that works in a folder of its own, and all that it starts there, can be found by
that folder if it is left over: titles and environments may be overwritten, a working
directory may not.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, Self, final

import trio

from ..core.errors import ServerStartError

END_S = 8.0
"""Time that a program has to end by itself."""

START_S = 120.0
"""Time until the first line of a program; a peer's libraries take long to import."""

ANSWER_S = 180.0
"""Time until the answer to an order: far more than any takes, so only a hang takes longer."""

LAST_WORDS: Final = 4000
"""Bytes of standard error that errors show."""

ROOT: Final = Path(__file__).resolve().parent.parent.parent
"""The folder whose modules programs import first, whatever is installed: in a checkout, its
root, with the tests."""

LOOK_S = 0.02
"""Time between two looks at a file or at another process."""

Command = Sequence[str] | Callable[[Mapping[str, Any]], Sequence[str]]
"""A command; or a function that makes it, of the first line of the life before ({}: none)."""

Opening = Callable[..., Awaitable[trio.Process]]
"""What starts a process: :func:`trio.lowlevel.open_process`, or what does the same."""


def program(module: str, *arguments: str | Mapping[str, Any]) -> list[str]:
    """Command that runs a module, also one of the tests, from any folder.

    Records among the arguments are given as JSON.
    """
    texts = [each if isinstance(each, str) else json.dumps(each) for each in arguments]
    return [sys.executable, "-P", "-m", module, *texts]


async def until(condition: Callable[[], object]) -> None:
    """Sleep until it is true of a file or of another process, which set no event here."""
    while not condition():  # noqa: ASYNC110  # as said above
        await trio.sleep(LOOK_S)


class EndedByItself(Exception):
    """A program ended, and nobody had killed it."""


@final
class Process:
    """A program as a process, one life after the other.  As a context: started at its begin,
    and ended at its end."""

    def __init__(
        self, command: Command, what: str = "program", *, ready: str = "",
        environ: Mapping[str, str] | None = None, cwd: Path | None = None,
        log: Path | None = None, terminate: bool = False, end_s: float = END_S,
        opening: Opening = trio.lowlevel.open_process,
    ) -> None:  # fmt: skip
        """
        Args:
            command: The command.
            what: Name of the program, in errors.
            ready: Event that it says when it has begun; the start waits for it.
            environ: Variables besides those of this process.
            cwd: Folder that it works in; None: that of this process.
            log: File to which its standard error is added; None: a temporary one.
            terminate: Whether it is asked to end by SIGTERM, too.
            end_s: Time that it has to end when it is asked to.
            opening: What starts a process.
        """
        self.what = what
        self.said: dict[str, Any] = {}
        """Line by which it said that it had begun, in its last life."""
        self.lives = 0
        """Number of times that it was started."""
        self.killed = False
        """Whether it was sent SIGKILL here, in its last life."""
        self._command = command
        self._ready = ready
        self._environ = environ or {}
        self._cwd = cwd
        self._log = log
        self._terminate = terminate
        self._end_s = end_s
        self._opening = opening
        self._process: trio.Process | None = None
        self._errors: IO[bytes] | None = None
        self._words = ""
        self._buffer = b""
        self._telling = trio.Lock()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.end()  # noqa: ASYNC102  # shields itself, and has limits
            raise
        return self

    async def __aexit__(self, *about: object) -> None:
        await self.end()  # noqa: ASYNC102  # shields itself, and has limits

    # -- its life ----------------------------------------------------------------

    async def start(self) -> None:
        """Start it; returns once it has begun.  ServerStartError, with the end of its log, if
        that comes to nothing.  The caller ends it."""
        command = self._command(self.said) if callable(self._command) else self._command
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        if self._log is None:
            self._errors = tempfile.TemporaryFile("a+b", prefix="trio-envserve-lab-")  # noqa: SIM115
        else:
            self._errors = self._log.open("a+b")
        try:
            self._process = await self._opening(
                list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
                env={**os.environ, "PYTHONPATH": path, **self._environ}, process_group=0,
                cwd=self._cwd,
            )  # fmt: skip
        except BaseException:
            self._errors.close()
            raise
        self.killed, self._buffer = False, b""
        self.lives += 1
        if self._ready:
            self.said = await self.event(self._ready)

    @property
    def process(self) -> trio.Process:
        """The process of its last life."""
        assert self._process is not None, f"the {self.what} was never started"
        return self._process

    @property
    def pid(self) -> int:
        """Id of the process of its last life."""
        return self.process.pid

    @property
    def status(self) -> int | None:
        """Exit status of its last life; None while that goes on."""
        return self.process.poll()

    @property
    def address(self) -> str:
        """Where it serves, as it has said."""
        return str(self.said["address"])

    @property
    def living(self) -> bool:
        """Whether it runs, and was not killed here."""
        return self._process is not None and not self.killed and self._process.poll() is None

    def signal(self, number: int) -> None:
        """Send it a signal; nothing happens if it has ended."""
        self.killed = self.killed or number == signal.SIGKILL
        self.process.send_signal(number)

    async def kill(self) -> None:
        """``kill -9``, and reap it.  The processes that it started end by themselves."""
        with trio.CancelScope(shield=True):
            self.signal(signal.SIGKILL)
            await self._reap()

    async def end(self, limit_s: float | None = None) -> None:
        """Let it go on if it was stopped, ask it to end, and reap it; kill it if that takes
        too long.  Nothing happens if it has been reaped."""
        if self._process is None or self._errors is None or self._errors.closed:
            return
        with trio.CancelScope(shield=True):
            assert self.process.stdin is not None
            await self.process.stdin.aclose()
            for number in (
                (signal.SIGTERM, signal.SIGCONT) if self._terminate else (signal.SIGCONT,)
            ):
                self.process.send_signal(number)
            with trio.move_on_after(self._end_s if limit_s is None else limit_s):
                await self.process.wait()
            self.process.kill()
            await self._reap()

    async def _reap(self) -> None:
        process, errors = self.process, self._errors
        assert errors is not None
        await process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                await stream.aclose()
        self._words = self.last_words()
        errors.close()

    def ended_by_itself(self) -> EndedByItself:
        """The error about its end, with its last words."""
        return EndedByItself(
            f"the {self.what} ended with status {self.status}: {self.last_words()}"
        )

    async def wait(self) -> int:
        """Sleep until its life has ended; its exit status."""
        return await self.process.wait()

    # -- the lines that it says ----------------------------------------------------

    async def line(self, limit_s: float = START_S) -> dict[str, Any]:
        """The next line of its output.  ServerStartError, with the end of its log,
        if it has ended or takes too long."""
        with trio.move_on_after(limit_s):
            record = await self._next()
            if record is None:
                raise ServerStartError(f"the {self.what} ended:\n{self.last_words()}")
            return record
        text = f"the {self.what} said nothing for {limit_s:g} s:\n{self.last_words()}"
        raise ServerStartError(text)

    async def event(self, name: str) -> dict[str, Any]:
        """The next line that is this event."""
        while True:
            record = await self.line()
            if record.get("event") == name:
                return record

    async def listen(self, heard: Callable[[dict[str, Any]], object]) -> int:
        """Hand on each line until it has ended; returns its exit status."""
        while (record := await self._next()) is not None:
            heard(record)
        return await self.process.wait()

    async def _next(self) -> dict[str, Any] | None:
        """The next line; None if there is none any more."""
        assert self.process.stdout is not None
        while b"\n" not in self._buffer:
            more = await self.process.stdout.receive_some(65536)
            if not more:
                return None
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\n")
        record: dict[str, Any] = json.loads(line)
        return record

    def last_words(self) -> str:
        """The end of its standard error."""
        errors = self._errors
        if errors is None or errors.closed:
            return self._words
        errors.seek(0, os.SEEK_END)
        errors.seek(max(0, errors.tell() - LAST_WORDS))
        return errors.read().decode(errors="replace")

    # -- the orders that it is given -------------------------------------------------

    async def tell(self, order: Mapping[str, Any]) -> None:
        """Give it one line.  Nothing happens if it has ended: its listener learns that."""
        assert self.process.stdin is not None
        async with self._telling:
            try:
                await self.process.stdin.send_all(json.dumps(order).encode() + b"\n")
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass

    async def ask(self, order: Mapping[str, Any], limit_s: float = ANSWER_S) -> dict[str, Any]:
        """Give it one line, and get one.  ServerStartError as for :meth:`line`."""
        await self.tell(order)
        return await self.line(limit_s)


# -- the commands of users ------------------------------------------------------------

ANY_PORT: Final = "tcp://127.0.0.1:0"
TRIO_ENVSERVE: Final = tuple(program("trio_envserve"))


def serve_process(
    environment: str, folder: Path, *options: str, workers: int = 1, hosted: bool = False,
    args: Mapping[str, Any] | None = None, limits: Mapping[str, Any] | None = None,
    cwd: Path | None = None, command: Sequence[str] = TRIO_ENVSERVE,
) -> Process:  # fmt: skip
    """The command ``serve``, which stays at its addresses from one life to the next.

    Args:
        environment: The environment.
        folder: Place of its locks and logs.
        options: Further options.
        workers: Number of its workers.
        hosted: Whether hosts join instead, at the address ``said["hosts"]``.
        args: Arguments of the environment.
        limits: Limits that are not the default.
        cwd: Folder that it works in; None: that of this process.
        command: The command that knows the verb.
    """
    words = [*command, "serve", environment, "--json", "--exit-with-parent", "--drain-s", "5"]
    words += ["--log-dir", str(folder), "--workers", "0" if hosted else str(workers)]
    for option, named in (("--arg", args or {}), ("--limit", limits or {})):
        for name, value in named.items():
            words += [option, f"{name}={value if isinstance(value, str) else json.dumps(value)}"]

    def command_of(said: Mapping[str, Any]) -> list[str]:
        hosts = ["--hosts-bind", said.get("hosts", ANY_PORT)] if hosted else []
        return [*words, "--bind", said.get("address", ANY_PORT), *hosts, *options]

    return Process(
        command_of, "server", ready="serving", environ={"XDG_RUNTIME_DIR": str(folder)}, cwd=cwd,
        log=folder / "server-stderr.log", terminate=True, end_s=15.0,
    )  # fmt: skip


def join_process(
    address: str, workers: int, folder: Path, *, name: str = "remote", within: Sequence[str] = (),
    environ: Mapping[str, str] | None = None, cwd: Path | None = None,
) -> Process:  # fmt: skip
    """The command ``join``: a host, which has started when it has joined.

    A host that is started again has the name and the lock of the one before, and so can say
    to its router that the workers of that one are dead.

    Args:
        address: Address where hosts join.
        workers: Number of its workers.
        folder: Place of its locks and logs.
        name: Its name.
        within: Words before its command, of one that runs it elsewhere.
        environ: Variables besides those of this process.
        cwd: Folder that it works in; None: that of this process.
    """
    command = [
        *within, *TRIO_ENVSERVE, "join", address, "--workers", str(workers), "--name", name,
        "--log-dir", str(folder), "--drain-s", "5", "--json", "--exit-with-parent",
    ]  # fmt: skip
    variables = {**(environ or {}), "XDG_RUNTIME_DIR": str(folder)}
    return Process(
        command, "host", ready="joined", environ=variables, cwd=cwd,
        log=folder / "host-stderr.log", terminate=True, end_s=30.0,
    )  # fmt: skip
