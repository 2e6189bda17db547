"""The hosts of one server, and the durable record of them for later servers.

Theory of operation
-------------------
Before it welcomes a host, a server durably records which hosts may have workers and for how long
(:meth:`ServerHosts.record`): a later server waits for that.  The answers to hosts wait until the
record is safe.  A new host that could not be recorded gets no answer, and asks again.

Before hosts are welcome (:meth:`ServerHosts.open`), a server without the journal of earlier servers
tells their hosts that their memberships are over, and learns which have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from .earlier_epochs import EarlierEpochs, EpochWait
from .host_messages import OVER, HostHello, HostRefused, decode, encode
from .host_pool import Hosts, ToHost
from .lease import LeaseTerms
from .limits import WireLimits
from .router import Router
from .router_effects import RouterEffect
from .router_inputs import RouterInput
from .terms import Body, Route


@final
class ServerHosts:
    """The hosts of one server, from its start on.

    Args:
        router: Router of the server, whose pool has the slots of hosts.
        terms: Lease that hosts are given.
        wire: Bounds of messages.
        needs: Resources that each worker needs.
        serves: Environment that hosts are told to run.
        claim: Why the peer behind a route may not be the host of a name; empty if it may.
    """

    def __init__(
        self, router: Router, terms: LeaseTerms, *, wire: WireLimits | None = None,
        needs: dict[str, float] | None = None, serves: dict[str, Any] | None = None,
        claim: Callable[[Route, str], str] | None = None,
    ) -> None:  # fmt: skip
        self._router = router
        self._terms = terms
        self._wire = wire or WireLimits()
        self._needs, self._serves, self._claim = needs, serves, claim
        self.earlier = EarlierEpochs((), 0.0)
        """Epochs before this one whose hosts may still have workers."""
        self.hosts = self._new_hosts(None)
        self.is_open = False
        """Whether hosts are welcome."""
        self._written: tuple[EpochWait, ...] = ()
        self._unwritten: frozenset[Route] = frozenset()
        """Routes of new hosts of which a later server would not know."""
        self._waits = False
        """Whether what hosts are told waits for the record."""

    def _new_hosts(self, earlier: EarlierEpochs | None) -> Hosts:
        return Hosts(
            self._router.pool, self._terms, self._router.epoch, needs=self._needs,
            wire=self._wire, serves=self._serves, earlier=earlier, claim=self._claim,
        )  # fmt: skip

    # -- the servers before -----------------------------------------------------

    def end_membership(self, route: Route, frames: Sequence[Body]) -> ToHost | None:
        """Answer to a message of a host of an earlier server; None if it needs none.
        ProtocolError if it is no message."""
        hello, _ = decode(frames, most_bytes=self._wire.header_bytes)
        if not isinstance(hello, HostHello):
            return None
        self.earlier.accounted_for(hello.ended)
        if not hello.epoch and not self.earlier.knows(hello.membership):
            return None
        text = "this is another router, and its membership is over; it may join anew"
        refused = HostRefused(hello.membership, hello.hello, self._router.epoch, OVER, text)
        return ToHost(route, (encode(refused),))

    def open(self, earlier: EarlierEpochs | None) -> None:
        """Welcome hosts once the record is safe.

        Args:
            earlier: Epochs whose journal this server has, so that their hosts may come back;
                None without a journal: then nothing of earlier servers lives.
        """
        self.earlier = earlier or EarlierEpochs((), 0.0)
        self.hosts = self._new_hosts(earlier)
        self.is_open = True

    # -- the record for the servers after ---------------------------------------

    def record(self, now_s: float) -> tuple[EpochWait, ...] | None:
        """Record that a later server must find, to be written now and answered with
        :meth:`written`; None if that has been written already."""
        record = self.earlier.record(self.hosts.leases.own(), now_s)
        if self.is_open and record != self._written:
            return record
        self._waits = False
        self._unwritten = frozenset()  # a host that could not be written down has gone
        return None

    def written(self, record: tuple[EpochWait, ...]) -> None:
        """Note that a record is safe."""
        self._written, self._unwritten, self._waits = record, frozenset(), False

    def not_written(self) -> bool:
        """Note that the record could not be written: new hosts get no answer.  Returns whether this
        is the first failure in a row."""
        is_new = not self._unwritten
        known = self._written[-1].memberships or frozenset()
        hosts = self.hosts.hosts.items()
        self._unwritten = frozenset(
            host.route for membership, host in hosts if membership not in known
        )
        self._waits = False
        return is_new

    @property
    def is_recorded(self) -> bool:
        """Whether a record of this server was ever written."""
        return bool(self._written)

    # -- messages and effects -----------------------------------------------------

    def message(self, route: Route, frames: Sequence[Body], now_s: float) -> list[RouterInput]:
        """Inputs that the router is to get because of a message of a host.  Ask for the
        :meth:`record` afterwards, once for all messages that have come together.
        ProtocolError if it is no message."""
        self._waits = True
        return self.hosts.message(route, frames, now_s)

    def tick(self, now_s: float) -> list[RouterInput]:
        """Inputs that the router is to get before a tick.  Ask for the :meth:`record` first."""
        unknown = self._router.dispatches.unknown.live_executions
        return self.hosts.tick(now_s, unknown=unknown)

    def effects(self) -> list[ToHost | RouterEffect]:
        """Effects that are to be carried out now, in order."""
        out, self.hosts.out = self.hosts.out, []
        if self._waits:
            self.hosts.out = [each for each in out if isinstance(each, ToHost)]
            return [each for each in out if not isinstance(each, ToHost)]
        return [
            each for each in out
            if not (isinstance(each, ToHost) and each.route in self._unwritten)
        ]  # fmt: skip
