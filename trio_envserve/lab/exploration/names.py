"""Names and ids of an explored system: each says whose it is.

The pure machines take ids from outside.  Here an id is a function of its place
(the second session of client 0 at the first server), not of the path that led
there, so two paths to the same situation give the same ids, and exchanging two
clients or two workers is an exchange of names in whatever holds them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ...core.pool import Pool
from ...core.terms import ID_BYTES


def client_name(index: int) -> str:
    """How a client calls itself."""
    return f"c{index}"


def caller(client: int) -> bytes:
    """The token by which a client's calls for keys count, in all of its processes."""
    return _id(b"c%d" % client)


def route(client: int, connection: int) -> bytes:
    """The routing id of a client's connection: a new one each time."""
    return b"c%d/%d" % (client, connection)


def epoch(life: int) -> bytes:
    """The epoch of a server's life."""
    return _id(b"e%d-epoch" % life)


def session(life: int, nonce: bytes) -> bytes:
    """The session that this server opens for this nonce."""
    return _id(b"e%d-" % life + nonce.rstrip(b"."))


def own_session(life: int) -> bytes:
    """The session, and its nonce, in which this server does the work of keys."""
    return _id(b"e%d-own" % life)


def nonce(client: int, number: int) -> bytes:
    """A client's next nonce."""
    return _id(b"n%d-c%d-" % (number, client))


def incarnation(life: int, worker: bytes) -> bytes:
    """The incarnation of a worker of this server."""
    return _id(b"e%d-" % life + worker)


def process_of(incarnation: bytes) -> tuple[int, bytes]:
    """The life of the server that has started a worker, and its id."""
    life, _, worker = incarnation[1:].rstrip(b".").partition(b"-")
    return int(life), worker


def membership(machine: str, number: int) -> bytes:
    """Id of a machine's membership of this number."""
    return _id(b"%b.%d" % (machine.encode(), number))


def owner(name: bytes) -> int:
    """The client in a session id or route."""
    found = _CLIENT.search(name)
    assert found is not None
    return int(found[1])


def client_of(name: bytes) -> str:
    """Name of the client in a session id, a route or the body of a request."""
    return f"c{owner(name)}"


def connection_of(name: bytes) -> int:
    """The connection's number in a route."""
    return int(name.partition(b"/")[2])


def _id(text: bytes) -> bytes:
    assert len(text) <= ID_BYTES, text
    return text.ljust(ID_BYTES, b".")


_CLIENT = re.compile(rb"c(\d)")


class Ids:
    """Source of ids of one owner: each is a function of the owner and of a number, from 1 on."""

    def __init__(self, make: Callable[[Any, int], bytes], owner: Any) -> None:
        self.make = make
        self.owner = owner
        self.drawn = 0

    def __call__(self) -> bytes:
        """The next one."""
        self.drawn += 1
        return self.make(self.owner, self.drawn)

    def all(self) -> tuple[bytes, ...]:
        """Those that were drawn."""
        return tuple(self.make(self.owner, number + 1) for number in range(self.drawn))


class ServerIds:
    """A router's source of ids: for incarnations and for sessions.

    ``session`` is set before a hello is handed in: the id of the session that
    it would open.  For a worker the slot that has just counted one more life
    says whose incarnation is asked for.  Else it is for a session of the server's
    own; there is one namespace of keys, and so one of these.
    """

    def __init__(self, life: int) -> None:
        self.life = life
        self.session: bytes | None = None
        self.pool: Pool | None = None
        self._lives: list[int] = []

    def attach(self, pool: Pool) -> None:
        """Serve this pool, as it is now."""
        self.pool = pool
        self._lives = [slot.lives for slot in pool.slots]

    def __call__(self) -> bytes:
        """The id that is asked for."""
        if self.session is not None:
            return self.session
        assert self.pool is not None
        for index, slot in enumerate(self.pool.slots):
            if slot.lives != self._lives[index]:
                self._lives[index] = slot.lives
                return incarnation(self.life, b"w%d-%d" % (index, slot.lives))
        return own_session(self.life)

    def __reduce__(self) -> tuple[Any, ...]:
        return ServerIds, (self.life,)
