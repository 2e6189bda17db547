"""The verb ``run-with``: runs a server for the duration of a command.

Theory of operation
-------------------
The server is a part of this process, as with ``serve``, on a free port.  When a worker
is ready, the given command (COMMAND) is started in the same process group, with the
same standard streams, and with the address in its environment.  Then ``run-with`` waits
for its end and takes its exit code.

``run-with`` passes a signal on to COMMAND, unless the signal came from the terminal:
Ctrl-C reaches the whole foreground process group, so COMMAND has it already, and a
second one means something else to many programs.  A second signal to ``run-with`` kills
COMMAND.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from typing import Any

import trio

from ..logs import set_title
from ..options import argument
from ..server import Server, open_server
from ..server.options import completed
from .common import (
    AT_ONCE,
    NOT_STARTED,
    OK,
    CommandError,
    Result,
    StopRequest,
    check_named,
    nothing,
)
from .options import ADDRESS_VARIABLE, Logged, level_option
from .render import say
from .serve import gist, wait_ready
from .verbs import server_options, verb

NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""Exit codes if COMMAND could not be run, as in a shell."""

_CODES = {
    OK: "COMMAND's own, and 128 plus the signal's number if one killed it",
    AT_ONCE: "stopped at once, by a second signal",
    NOT_STARTED: "the server could not start: address in use, environment broken",
    NOT_EXECUTABLE: "COMMAND cannot be run",
    NOT_FOUND: "COMMAND was not found",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunWith(Logged):
    """The options of ``run-with``."""

    environment: str = argument("What is served.", metavar="ENV")
    command: tuple[str, ...] = argument("What is run.", metavar="-- COMMAND...")
    server: Mapping[str, Any] = server_options(bind="tcp://127.0.0.1:0")
    log_level: str = level_option("WARNING")


@verb(RunWith, _CODES, interrupted="interrupted before COMMAND was started")
async def run_with(asked: RunWith, stop: StopRequest) -> Result:
    """Run COMMAND while ENV is served, and end with its exit code.

    Examples:
      trio-envserve run-with my_envs:Maze -- pytest
      trio-envserve run-with my_envs:Maze --arg level=3 -- pytest -x tests
      trio-envserve run-with arithmetic -- sh -c 'echo $TRIO_ENVSERVE_ADDRESS'

    COMMAND is started when a worker is ready. The variable TRIO_ENVSERVE_ADDRESS has
    the server's address; the pytest fixture envserve_address uses it. ENV is named as
    for `serve`. With --curve, COMMAND needs a client's file from `curve new`.

    Ctrl-C or SIGTERM is passed on to COMMAND, and the server ends when COMMAND has
    ended. A second signal kills COMMAND and the workers.

    With --json, the last line of standard output, after COMMAND's own output, has at
    least exit, seconds (how long COMMAND ran), address, stats.
    """
    stop.on_first = nothing
    program = find_program(asked.command[0])
    options = completed(**asked.server)
    if options.get("worker_python") is None:
        check_named(asked.environment, options.get("args"))
    options |= {"environment": asked.environment, **asked.start_logging("server")}
    return await _run_with(asked, program, options, stop)


def find_program(name: str) -> str:
    """The path of a command's program: from PATH, or else from the folder of this
    Python, for users who have not activated its environment.

    Raises CommandError with a shell's exit code.
    """
    found = shutil.which(name) or shutil.which(name, path=os.path.dirname(sys.executable))
    if found is not None:
        return found
    if os.path.dirname(name) and os.path.exists(name):
        raise CommandError(f"{name} is not a program that can be run", NOT_EXECUTABLE)
    raise CommandError(f"command not found: {name}", NOT_FOUND)


async def _run_with(
    asked: RunWith, program: str, opened: dict[str, Any], stop: StopRequest
) -> Result:
    summary: dict[str, Any] = {
        "environment": asked.environment, "command": list(asked.command), "address": None,
        "seconds": 0.0, "stats": None,
    }  # fmt: skip
    code: int | None = None
    async with open_server(**opened) as server:
        summary["address"] = server.address
        set_title(f"trio-envserve run-with {asked.environment} at {server.address}")
        stop.kill = server.kill
        if await _ready(server, stop):
            began_s = trio.current_time()
            code = await _run([program, *asked.command[1:]], server, stop)
            summary["seconds"] = round(trio.current_time() - began_s, 3)
        stats = server.stats().to_record()
    summary["stats"] = gist(stats)
    if stop.at_once:
        say("stopped at once; the command was killed, and the workers with their executions")
        return Result(AT_ONCE, summary)
    if code is None:
        say(f"interrupted by {stop.why} before the command was started")
        return Result(stop.interrupted_code, summary)
    return Result(code, summary)


async def _ready(server: Server, stop: StopRequest) -> bool:
    """Wait until a worker is ready; returns False if a signal came before."""
    with stop.hurry, trio.CancelScope() as waiting:
        stop.on_first = waiting.cancel
        await wait_ready(server)
    return not stop.asked.is_set()


async def _run(command: list[str], server: Server, stop: StopRequest) -> int:
    """Run COMMAND to its end; returns its exit code as a shell does."""
    try:
        process = await trio.lowlevel.open_process(
            command, env={**os.environ, ADDRESS_VARIABLE: server.address}
        )
    except (OSError, ValueError) as error:
        raise CommandError(f"{command[0]}: {error}", NOT_EXECUTABLE) from None

    def pass_on() -> None:
        if stop.number is not None and not _has_it_already(stop.number):
            with contextlib.suppress(OSError):  # COMMAND has just ended
                process.send_signal(stop.number)

    def kill() -> None:
        with contextlib.suppress(OSError):
            process.kill()
        server.kill()

    stop.kill, stop.on_first = kill, pass_on
    if stop.asked.is_set():
        pass_on()  # the signal came while the process was being started
    try:
        code = await process.wait()
    finally:
        if process.returncode is None:
            kill()
            with trio.CancelScope(shield=True):
                await process.wait()
        stop.kill, stop.on_first = server.kill, nothing
    return code if code >= 0 else 128 - code


def _has_it_already(number: int) -> bool:
    """Whether this signal probably came from the terminal to the whole foreground
    process group, COMMAND included.  (Nobody can tell for sure; who sends SIGINT to
    this one process only may send a second signal.)"""
    if number not in (signal.SIGINT, signal.SIGHUP):
        return False
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False  # no terminal
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False  # hung up
    finally:
        os.close(terminal)
