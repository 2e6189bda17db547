"""Plain pyzmq DEALERs with heartbeats: the peers of a server that is held.

``python -m tests.attack.dealers '{"address": ..., "peers": n, ...}'``

Each is a client written from the protocol document: it says hello, asks, states what it
holds when nothing has come for a second, and sends again what the server has never
seen.  The program obeys the order ``hold`` of :mod:`.client` (its own loop is never held)
and writes the same lines to the log of the callers.  It prints ``ready`` at its start and
stops when its standard input ends.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, final

import zmq

from trio_envserve.core import messages, values
from trio_envserve.core.limits import MIB, PROTOCOL_VERSION, WireLimits
from trio_envserve.core.ranges import Ranges
from trio_envserve.envs.arithmetic import Arithmetic
from trio_envserve.lab.answers import is_right
from trio_envserve.lab.logs import JsonLog
from trio_envserve.lab.orders import given_options, say

from .attacks_protocol import body_of
from .context import digest_of
from .relay import beat

AGAIN_MS = 1000
"""How long nothing may come before it is stated what is held."""

LIMIT_S = 180.0
_LIMITS = WireLimits()


def main() -> int:
    """Run until the end of standard input."""
    options = given_options("tests.attack")
    context = zmq.Context()
    log = JsonLog(Path(options["log"]))
    tasks = Arithmetic(size=options["size"])
    dealers = [
        _Dealer(context, options["address"], f"d{os.getpid()}-{number}", tasks, log)
        for number in range(options["peers"])
    ]
    say("ready")
    for line in sys.stdin:
        _obey(json.loads(line), dealers)
    context.destroy(linger=0)
    return 0


def _obey(order: dict[str, Any], dealers: list[_Dealer]) -> None:
    each = order["calls"] // len(dealers)
    threads = [
        threading.Thread(target=dealer.ask, args=(each, order["duration_s"]), daemon=True)
        for dealer in dealers
    ]
    before = sum(dealer.right for dealer in dealers)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    right = sum(dealer.right for dealer in dealers) - before
    say("held", calls=each * len(dealers), right=right)


@final
class _Dealer:
    """One client.  It is used by one thread at a time."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], address: str, name: str,
        tasks: Arithmetic, log: JsonLog,
    ) -> None:  # fmt: skip
        self.right = 0
        self._name = name
        self._tasks = tasks
        self._log = log
        self._nonce = os.urandom(16)
        self._connection = 1
        self._probes = itertools.count(1)
        self._session = self._epoch = b""
        self._next = 0
        self._pending: dict[int, list[bytes]] = {}
        self._socket = context.socket(zmq.DEALER)
        self._socket.set(zmq.LINGER, 0)
        beat(self._socket)
        self._socket.connect(address)

    def ask(self, calls: int, duration_s: float) -> None:
        """Make so many calls, and wait for all of their outcomes."""
        ends_s = time.monotonic() + LIMIT_S
        while not self._session and time.monotonic() < ends_s:
            self._say(messages.Hello(PROTOCOL_VERSION, self._nonce, 1, self._name, 16 * MIB))
            self._hear()
        for number in range(self._next, self._next + calls):
            key = f"{self._name}/{number}"
            self._log.write("ask", key=key, client=self._name, rerun=None)
            asked = {"index": number % self._tasks.size, "key": key, "duration_s": duration_s}
            header = messages.Request(self._session, number, digest_of(number), None, 1, None)
            self._pending[number] = [messages.encode(header), body_of(asked)]
            self._socket.send_multipart(self._pending[number])
        self._next += calls
        while self._pending and time.monotonic() < ends_s:
            if not self._hear():
                self._state()

    def _state(self) -> None:
        """Nothing has come: perhaps this is another connection by now."""
        self._connection += 1
        self._say(
            messages.Sync(
                self._session, self._epoch, self._connection, next(self._probes), self._next,
                Ranges(self._pending).flat(),
            )
        )  # fmt: skip

    def _say(self, header: messages.Message) -> None:
        self._socket.send(messages.encode(header))

    def _hear(self) -> bool:
        """Take in a message, if one comes in time."""
        if not self._socket.poll(AGAIN_MS):
            return False
        for message, body in messages.read(self._socket.recv_multipart(), most_bytes=16 * MIB):
            self._take(message, body)
        return True

    def _take(self, message: messages.Message, body: Any) -> None:
        match message:
            case messages.Welcome() as welcome:
                self._session, self._epoch = welcome.session, welcome.epoch
            case messages.Outcome(_, sequence, status) if sequence in self._pending:
                del self._pending[sequence]
                self._note(sequence, ok=status == 0, body=body)
                self._say(messages.Finish(self._session, [sequence, sequence + 1]))
            case messages.Synced(missing=missing):
                for sequence in Ranges.from_flat(missing):
                    if sequence in self._pending:
                        self._socket.send_multipart(self._pending[sequence])

    def _note(self, number: int, *, ok: bool, body: bytes) -> None:
        value: Any = values.decode(body, limits=_LIMITS)
        right = ok and is_right(self._tasks, number, value)
        self.right += right
        key = f"{self._name}/{number}"
        self._log.write(
            "answer", key=key, client=self._name, ok=ok, right=right, executions=1,
            error=None if ok else str(value)[:200], message=None, verdict=None,
        )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
