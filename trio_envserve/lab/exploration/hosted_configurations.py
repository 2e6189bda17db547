"""The explored systems with two hosts, which their router knows by leases."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from .described import Described


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostConfiguration(Described):
    """Two hosts, a router, and requests with consent to be run again (:mod:`.hosted_world`).
    What has no bound here is free: deliveries, the router's turns, ends of executions, the
    guard's kill, coming back of whatever was stopped, killed, asleep or cut off."""

    ALWAYS: ClassVar = ("ticks", "turns")
    BOUNDED: ClassVar = (
        "ticks", "turns", "losses", "strays", "cuts", "reconnects", "crashes", "sleeps", "stops",
        "falls",
    )  # fmt: skip

    name: str
    requests: int = 1
    clocks: int = 1
    """So many ways in which the clocks drift: 1 is hosts as slow and a router as fast as may be,
    8 are all in which each clock is as slow or as fast as may be."""
    running: bool = False
    """Whether the first request runs on the first host from the beginning."""
    late_hello: bool = False
    """Whether a copy of the first host's first hello has been left behind."""
    journal: bool = False
    """Whether the router has one: then the next router takes over what runs."""
    keyed: bool = True
    """Whether the journal has the requests, if there is one."""
    one_id: bool = False
    """Whether both hosts have the same id."""
    lease: bool = True
    fence_s: int = 5
    next_fence_s: int = 5
    """That of every second router."""

    ticks: int = 3
    """The time passes: by :data:`.hosted_world.TICK_S`."""
    turns: int = 4
    """A host has its turn: it beats, or says hello."""
    losses: int = 0
    """A message is lost."""
    strays: int = 0
    """A message, or a copy of it, is left behind and arrives at any time later."""
    cuts: int = 0
    """Nothing passes any more between a host and the router, in one direction."""
    lasting: bool = False
    """Whether a cut is for ever."""
    reconnects: int = 0
    """A host says hello over another connection."""
    crashes: int = 0
    """A host's process is killed, and with it all workers of its machine."""
    sleeps: int = 0
    """A machine sleeps: no code runs there, no timer fires, the time goes on."""
    stops: int = 0
    """A guard is stopped."""
    falls: int = 0
    """The router is killed."""


HOST_TABLE: tuple[HostConfiguration, ...] = (
    HostConfiguration(name="hosts-beat", running=True, ticks=3, turns=1),
    HostConfiguration(name="hosts-clocks", running=True, clocks=8, ticks=3, turns=1),
    HostConfiguration(name="hosts-start", ticks=1, turns=2, crashes=1),
    HostConfiguration(name="hosts-deaf", ticks=0, turns=1, cuts=1, lasting=True),
    HostConfiguration(name="hosts-one-id", running=True, ticks=1, turns=1, one_id=True),
    HostConfiguration(name="hosts-no-lease", running=True, ticks=17, turns=0, lease=False),
    HostConfiguration(name="hosts-sleep", running=True, ticks=4, turns=0, sleeps=1),
    HostConfiguration(name="hosts-guard", running=True, ticks=3, turns=1, stops=1),
    HostConfiguration(name="hosts-next", running=True, ticks=0, turns=2, reconnects=2, falls=1),
    HostConfiguration(
        name="hosts-limits", running=True, ticks=3, turns=0, falls=1, next_fence_s=1
    ),
    HostConfiguration(name="hosts-falls", running=True, ticks=0, turns=0, falls=2),
    HostConfiguration(name="hosts-kept", running=True, ticks=3, turns=1, reconnects=1, falls=1),
    HostConfiguration(
        name="hosts-hello", running=True, late_hello=True, ticks=0, turns=0, crashes=1, falls=1,
        journal=True,
    ),
    HostConfiguration(
        name="hosts-late", running=True, late_hello=True, ticks=2, turns=1, reconnects=1,
        falls=1, fence_s=1, next_fence_s=1,
    ),
    HostConfiguration(
        name="hosts-over", running=True, ticks=3, turns=0, reconnects=1, falls=1, journal=True,
        next_fence_s=1,
    ),
    HostConfiguration(
        name="hosts-over-twice", running=True, ticks=2, turns=0, reconnects=1, falls=2,
        journal=True, next_fence_s=1,
    ),
    HostConfiguration(
        name="hosts-unknown", running=True, ticks=0, turns=0, reconnects=2, falls=1,
        journal=True, keyed=False,
    ),
    HostConfiguration(
        name="hosts-written-off", running=True, ticks=0, turns=1, reconnects=2, falls=2,
        journal=True, keyed=False,
    ),
    # Much of it.
    HostConfiguration(name="hosts", running=True, ticks=3, turns=1, cuts=1, crashes=1, sleeps=1),
)  # fmt: skip
"""Those with hosts, the small ones first."""

HOST_SHOWS: dict[str, tuple[str, ...]] = {
    "hosts-beat": (
        "renewed-by-anything-heard", "counted-from-receipt", "margin-fixed", "no-margin",
        "counted-from-what-was-confirmed",
    ),
    "hosts-deaf": ("a-host-that-hears-nothing-is-answered-for-ever",),
    "hosts-one-id": ("two-hosts-with-one-id",),
    "hosts-no-lease": ("silence-is-proof-without-a-lease",),
    "hosts-sleep": ("a-clock-that-stands-still-in-sleep",),
    "hosts-guard": ("the-guard-looks-at-the-clock-itself", "the-guard-is-told-for-how-long"),
    "hosts-next": ("the-next-tenure-begins-over-living-workers",),
    "hosts-limits": (
        "a-successor-waits-by-its-own-limits", "a-host-is-welcomed-before-it-is-written-down",
    ),
    "hosts-falls": ("a-successor-writes-down-itself-alone",),
    "hosts-kept": ("a-tenure-is-kept-with-another-router",),
    "hosts-hello": ("a-late-hello-says-that-nothing-runs",),
    "hosts-late": ("any-router-answers-a-beat",),
    "hosts-over": ("what-goes-on-is-counted-by-the-limits-of-the-new-router-alone",),
    "hosts-over-twice": ("a-successor-waits-for-each-epoch-by-its-own-words",),
    "hosts-unknown": (
        "unknown-work-is-not-stopped", "what-runs-is-said-before-the-tenure-begins",
    ),
    "hosts-written-off": ("a-router-is-written-off-while-its-work-is-stopped",),
}  # fmt: skip
"""The mutants that each of them shows."""
