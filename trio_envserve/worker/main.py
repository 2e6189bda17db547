"""``main()`` of a worker process, started by a server with two descriptors:
the socket pair to it, and the epoch lock, which this process holds by living.

Exit status: 0 after retiring, 3 if the environment could not be set up, and
whatever killed it otherwise.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys


def main() -> int:
    """Read the configuration, start the heart, serve."""
    with contextlib.suppress(OSError):
        os.dup2(2, 1)  # standard output is the server's; what environments print is no part of it
    channel = socket.socket(fileno=int(sys.argv[1]))
    for descriptor in map(int, sys.argv[1:3]):
        # A daemon that the environment leaves behind is no worker.
        os.set_inheritable(descriptor, False)
    # Guard and heart come before everything that takes long or can hang: silence
    # is noticed from the first moment.
    from trio_envserve.worker.config import read_config
    from trio_envserve.worker.forks import keep_from_children
    from trio_envserve.worker.guard import start_guard
    from trio_envserve.worker.heart import Heart, die_with_parent

    config = read_config(channel)
    start_guard(channel, config.parent)
    keep_from_children(*map(int, sys.argv[1:3]))
    die_with_parent(config.parent)
    limits = config.limits
    heart = Heart(
        channel, config.parent, pulse_s=limits.pulse_s, blocked_report_s=limits.blocked_report_s
    )
    heart.start()
    # Ctrl-C is for the server, which drains; a terminal's job control finds a
    # process group of our own anyway.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path[:] = config.path

    from functools import partial

    import trio

    from trio_envserve.envs.loading import load
    from trio_envserve.logs import LogSetup, configure, finish, set_title
    from trio_envserve.net import open_zmq_network
    from trio_envserve.worker.shell import run_worker

    if config.logging:
        configure(LogSetup(**config.logging), config.worker)
        sys.stdout = sys.stderr  # what environments print holds up nobody, either
    set_title(config.title)

    async def serve() -> bool:
        async with open_zmq_network() as network:
            return await run_worker(
                network,
                config.address,
                worker=config.worker.encode(),
                incarnation=bytes.fromhex(config.incarnation),
                load=partial(load, config.environment, config.args),
                limits=limits,
                wire=config.wire,
                touch=heart.touch,
            )

    status = 1
    try:
        status = 0 if trio.run(serve) else 3
    except BaseException:  # noqa: ASYNC103
        # Also SystemExit, from a factory.  Whatever it is, the process ends here.
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # None, closed, or nobody reads it any more
                stream.flush()
        finish()
        # Threads that the environment left behind must not keep the process alive.
        os._exit(status)
