"""``main()`` of a worker process.

A server starts it with five descriptors: the *link*, which carries messages in both directions;
the *signs*, on which the worker sends its heartbeats, and whose end shows that the server is gone;
the *guard socket*, which belongs to the guard (:mod:`.guard`); a file in which this process writes
where it stands when its interpreter is held (:mod:`.held`); and the epoch lock, which it holds as
long as it lives.  A server with a journal passes a second lock.

Arguments: the numbers of these descriptors (those of the locks separated by commas; -1: none), the
server's process id, the worker's deadline in nanoseconds (-1: none) and, if the worker is another
program, its command.

Exit status: 0 after retiring, 3 if the environment could not be set up, 127 if the command could
not be run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from typing import NamedTuple, NoReturn

CANNOT_RUN = 127
"""Exit status, as in a shell."""

LINK_FD, SIGNS_FD, LOCK_FD = (
    "TRIO_ENVSERVE_LINK_FD", "TRIO_ENVSERVE_SIGNS_FD", "TRIO_ENVSERVE_LOCK_FD",
)  # fmt: skip
"""Variables that tell a command the numbers of its descriptors."""

JOURNAL_LOCK_FD = "TRIO_ENVSERVE_JOURNAL_LOCK_FD"
"""Variable with the descriptor of the journal's lock, if there is one."""

_EXEC_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores; a program that replaces it would ignore them, too."""


class Inherited(NamedTuple):
    """The arguments that a server passes to a worker process."""

    link: int
    signs: int
    guard_socket: int
    answers: int
    locks: tuple[int, ...]
    server: int
    deadline_ns: int | None

    @classmethod
    def of(cls, words: list[str]) -> Inherited:
        """Read the arguments."""
        link, signs, guard_socket, answers, locks, server, deadline = words
        held = tuple(number for number in map(int, locks.split(",")) if number >= 0)
        deadline_ns = None if deadline == "-1" else int(deadline)
        return cls(
            int(link), int(signs), int(guard_socket), int(answers), held, int(server), deadline_ns
        )


def main() -> NoReturn:
    """Become the guard, and in its child the worker, or the command that is the worker."""
    with contextlib.suppress(OSError):
        os.dup2(2, 1)  # standard output is the server's; environments print to standard error
    inherited = Inherited.of(sys.argv[1:8])
    command = sys.argv[8:]
    # Guard and heartbeat come before everything that takes long or can hang, so that silence means
    # a stopped process from the first moment on.
    from trio_envserve.worker.guard import start_guard

    guard_socket = socket.socket(fileno=inherited.guard_socket)
    parent = start_guard(
        guard_socket,
        inherited.server,
        inherited.deadline_ns,
        unused=[inherited.link, inherited.signs, inherited.answers],
    )
    guard_socket.detach()
    # Ctrl-C is for the server, which drains; a terminal's job control finds a
    # process group of our own anyway.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if command:
        os.close(inherited.answers)
        _become(command, inherited)
    _be_worker(inherited, parent)


def _become(command: list[str], inherited: Inherited) -> NoReturn:
    """Replace this program by the command: the same process, below its guard."""
    os.environ[LINK_FD] = str(inherited.link)
    os.environ[SIGNS_FD] = str(inherited.signs)
    first, *more = [*inherited.locks, -1]
    os.environ[LOCK_FD] = str(first)
    if len(more) > 1:
        os.environ[JOURNAL_LOCK_FD] = str(more[0])
    for number in _EXEC_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        with contextlib.suppress(Exception):  # status 127 says it, too
            print(f"cannot run {command[0]!r}: {error.strerror}", file=sys.stderr, flush=True)
    os._exit(CANNOT_RUN)


def _be_worker(inherited: Inherited, parent: int) -> NoReturn:
    from trio_envserve.net.forks import hide_in_children

    # A daemon that the environment leaves behind is not a worker.
    own = inherited.link, inherited.signs, inherited.guard_socket, inherited.answers
    for descriptor in (*own, *inherited.locks):
        os.set_inheritable(descriptor, False)
    # The link hides itself.  The locks stay: such a child still belongs to this epoch.
    hide_in_children(inherited.signs, inherited.guard_socket)
    link, signs = socket.socket(fileno=inherited.link), socket.socket(fileno=inherited.signs)

    from trio_envserve.worker.config import read_config
    from trio_envserve.worker.heartbeat import HeartbeatThread
    from trio_envserve.worker.held import answer_on

    answer_on(inherited.answers)

    config = read_config(link)
    limits = config.limits
    heartbeat = HeartbeatThread(
        signs,
        parent,
        heartbeat_s=limits.heartbeat_s,
        blocked_report_s=limits.blocked_report_s,
    )
    heartbeat.start()
    sys.path[:] = [*config.path, *sys.path] if config.keep_path else config.path

    import gc

    import trio

    from trio_envserve import otlp
    from trio_envserve.envs.loading import LoadedEnvironment, load
    from trio_envserve.logs import LogSetup, configure, finish, set_title
    from trio_envserve.net import open_stream
    from trio_envserve.worker.shell import run_worker

    if config.logging:
        configure(LogSetup(**config.logging), config.worker)
        sys.stdout = sys.stderr  # so that a print of an environment holds up nobody, either
    if config.otlp is not None:
        otlp.try_to_configure(config.otlp, config.worker)
    set_title(f"trio-envserve worker {config.worker} of {config.server}")

    def load_environment() -> LoadedEnvironment:
        # What was imported stays, so collections of garbage pass over it: a full one takes 0.3 µs
        # for each object, in the middle of any rollout, and large libraries have a million.
        environment = load(config.environment, config.args)
        gc.collect()
        gc.freeze()
        return environment

    async def serve() -> bool:
        async with open_stream(link, limits=config.wire) as stream:
            return await run_worker(
                stream,
                worker=config.worker.encode(),
                incarnation=config.incarnation,
                load=load_environment,
                limits=limits,
                wire=config.wire,
                touch=heartbeat.touch,
            )

    status = 1
    try:
        status = 0 if trio.run(serve) else 3
    except BaseException:  # noqa: ASYNC103
        # SystemExit, too, from a factory.  Whatever it is, the process ends here.
        sys.excepthook(*sys.exc_info())
    finally:
        for output in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # None, closed, or without a reader
                output.flush()
        otlp.finish()
        finish()
        # Threads that the environment left behind must not keep the process alive.
        os._exit(status)
