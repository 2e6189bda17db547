"""The tape: it hands each input to the router, and notes it.

Theory of operation
-------------------
An input is noted before the router has it, so that one which makes the router
raise is the last one on the tape.  Nothing here waits: records collect in memory
until :meth:`Tape.drain`, which a writer calls.

The tape is not worth a server.  When it has its size, when the disk does not keep
up, or when something cannot be noted, it stops and says why (:attr:`Tape.stopped`);
from then on inputs are only handed on.  It stops between two inputs, so what is on
it is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import cbor2

from ...core.host_pool import Hosts
from ...core.router import Router
from ...core.router_effects import RouterEffect
from ...core.router_inputs import RouterInput
from ...core.terms import Route
from ...core.worker_range import WorkerRange
from . import records
from .records import EffectsHash

CHECK_STEPS = 16
"""Between checks of the effects: how far off a replay can say where it went apart."""

STATE_STEPS = 4096
"""Between checks of the state, which look at every session."""


class MakeRouter(Protocol):
    """Makes the router, given its source of ids."""

    def __call__(self, *, new_id: Callable[[], bytes]) -> Router: ...  # noqa: D102


class Tape:
    """Notes what goes into a router.

    ``make``: makes the router.  ``about``: what is known of the server, plain data;
    the header has it, beside what a replay needs.
    """

    def __init__(
        self, make: MakeRouter, *, new_id: Callable[[], bytes], now_s: float,
        slots: int | WorkerRange, heartbeats: bool, bodies: bool = False, about: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.stopped: str | None = None
        """Reason for which recording has stopped, empty if the server has ended; None while it goes
        on."""
        self.step = 0
        self.full: Callable[[], object] = lambda: None
        """Called when much waits to be drained."""
        self._new_id = new_id
        self._bodies = bodies
        self._hash = EffectsHash()
        self._parts: list[bytes] = []
        self._waiting_bytes = 0
        self._bytes = 0
        self.router = router = make(new_id=self._drawn)
        self._limits = router.limits
        self._note(
            records.HEADER, records.NAME, records.FORMAT,
            {
                **about, "epoch": router.epoch, "heartbeats": heartbeats,
                "slots": slots if isinstance(slots, int) else str(slots),
                "bodies": bodies, "began_s": now_s, "limits": _as_dict(router.limits),
                "wire": _as_dict(router.wire), "keys": _as_dict(router.accounts.keys),
                "journaled": router.journal.on,
                "resting": router.journal.reads,
                "hosts": None if router.hosts is None else self._hosts(router.hosts),
            },
        )  # fmt: skip

    def take(self, given: RouterInput) -> list[RouterEffect]:
        """Note an input and hand it on; gives what the router gives."""
        if self.stopped is None:
            self._note_input(given)
        if self.stopped is not None:
            return self.router.take(given)
        try:
            effects = self.router.take(given)
        except Exception as error:  # a flaw of the router, and here is what shows it
            text = str(error).encode("utf-8", "replace").decode()
            self._note(records.RAISED, type(error).__name__, text)
            raise
        self._hash.add(effects)
        if self.step % CHECK_STEPS == 0:
            self._note(records.CHECK, self.step, self._hash.digest())
        if self.step % STATE_STEPS == 0:
            self._note(records.STATE, self.step, records.state_digest(self.router))
        return effects

    def drain(self) -> bytes:
        """All that was noted since the last call."""
        parts, self._parts = self._parts, []
        self._waiting_bytes = 0
        return b"".join(parts)

    def stop(self, why: str = "") -> None:
        """Note nothing any more: the server has ended, or ``why``."""
        if self.stopped is None:
            self._note(records.CHECK, self.step, self._hash.digest())
            self._note(records.STATE, self.step, records.state_digest(self.router))
            self._note(records.END, self.step, why)
            self.stopped = why

    def _note_input(self, given: RouterInput) -> None:
        limits = self._limits
        if self._bytes >= limits.record_bytes:
            self.stop(f"it has its {limits.record_bytes} bytes (the limit record_bytes)")
            return
        if self._waiting_bytes >= limits.record_buffer_bytes:
            self.stop(
                f"the disk does not keep up: {self._waiting_bytes} bytes wait "
                "(the limit record_buffer_bytes)"
            )
            return
        try:
            header_bytes = self.router.wire.header_bytes
            hosts = self.router.hosts
            has_host = (lambda membership: False) if hosts is None else hosts.hosts.__contains__
            record = records.record_of(given, header_bytes, bodies=self._bodies, has_host=has_host)
            data = cbor2.dumps(record)
        except Exception as error:  # text that is no Unicode, and whatever nobody foresaw
            self.stop(f"an input cannot be noted: {error}")
            return
        self.step += 1
        self._keep(data)

    def _hosts(self, hosts: Hosts) -> dict[str, Any]:
        """What a replay must know of hosts; from now on it is noted which names they may have."""
        claim = hosts.claim

        def noted(route: Route, name: str) -> str:
            assert claim is not None
            refused = claim(route, name)
            if self.stopped is None:
                self._note(records.CLAIM, refused)
            return refused

        if claim is not None:
            hosts.claim = noted
        terms = hosts.leases.terms
        lease = [terms.fence_s, terms.margin_s, terms.drift, terms.guard_s]
        return {"lease": lease, "needs": hosts.needs, "claims": claim is not None}

    def _drawn(self) -> bytes:
        identifier = self._new_id()
        if self.stopped is None:
            self._note(records.DRAWN, identifier)
        return identifier

    def _note(self, *record: Any) -> None:
        self._keep(cbor2.dumps(record))

    def _keep(self, data: bytes) -> None:
        self._parts.append(data)
        self._bytes += len(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes >= self._limits.record_buffer_bytes // 8:
            self.full()


def _as_dict(limits: Any) -> dict[str, Any]:
    return {name: getattr(limits, name) for name in limits.__dataclass_fields__}
