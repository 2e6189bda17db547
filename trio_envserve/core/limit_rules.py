"""Rules between limits: pairs of which one must not be below the other, each with its reason.

Each limit is checked alone where it is made (:mod:`.limits`).  Limits that pass can still
contradict each other: a lease that one late tick ends, a kill before the report that announces it.
:func:`check_together` refuses such limits before anything is opened; the limits page of the
documentation is drawn from :data:`RULES`.

Limits of a server and of its clients on other machines cannot be compared here: the protocol
document says how often a client must ping for the server's lease.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from .errors import ConfigError


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """The rule that ``large`` must be at least ``times`` times ``small``; each is
    ``Class.field``."""

    large: str
    times: int
    small: str
    why: str


RULES: tuple[Rule, ...] = (
    # leases and ticks
    Rule("ServerLimits.lease_s", 2, "ServerLimits.awake_step_s",
         "one late tick may add that much to a silence, and would end the work of all clients"),
    Rule("ServerLimits.awake_step_s", 1, "ServerLimits.tick_s",
         "no tick could add the time that has passed, and leases would never end in time"),
    # workers that are silent, blocked, or ignore a cancel
    Rule("ServerLimits.silence_report_s", 2, "ServerLimits.heartbeat_s",
         "a worker is silent between two heartbeats, and each would be reported"),
    Rule("ServerLimits.silence_report_s", 2, "ServerLimits.tick_s",
         "silence is looked at with each tick, and a heartbeat just before one would be missed"),
    Rule("ServerLimits.silence_kill_s", 1, "ServerLimits.silence_report_s",
         "a worker would be killed before it is reported"),
    Rule("ServerLimits.blocked_report_s", 1, "ServerLimits.heartbeat_s",
         "how late a loop is comes with the heartbeats"),
    Rule("ServerLimits.cancel_kill_s", 1, "ServerLimits.cancel_grace_s",
         "a worker would be killed before it was left without new work"),
    Rule("ServerLimits.cancel_kill_s", 2, "ServerLimits.beat_s",
         "a cancel that was lost is told again with a beat, and the worker would be killed first"),
    Rule("ServerLimits.start_s", 2, "ServerLimits.beat_s",
         "a worker's hello that was lost is said again with a beat"),
    Rule("ServerLimits.restart_pause_max_s", 1, "ServerLimits.restart_pause_s",
         "the first pause would be longer than the longest"),
    Rule("ServerLimits.reap_s", 1, "ServerLimits.reap_settle_s",
         "closing would not wait for what a dead worker had sent"),
    # a pool that grows and shrinks
    Rule("ServerLimits.grow_after_s", 1, "ServerLimits.tick_s",
         "how long requests wait is looked at with each tick, and each would ask for more workers"),
    Rule("ServerLimits.shrink_after_s", 1, "ServerLimits.grow_after_s",
         "workers would leave before those that wait could ask for them"),
    # the wire
    Rule("WireLimits.message_bytes", 1, "WireLimits.header_bytes",
         "a header is one frame, and a larger one ends the connection"),
    Rule("WireLimits.header_bytes", 20, "ServerLimits.window",
         "a client states its whole window in one header, two edges of nine bytes for each"),
    Rule("WireLimits.header_bytes", 2, "KeyLimits.key_bytes",
         "a key stands in the header of its request"),
    Rule("WireLimits.header_bytes", 2, "KeyLimits.namespace_bytes",
         "a namespace stands in the header of its request"),
    Rule("WireLimits.arriving_bytes", 1, "WireLimits.message_bytes",
         "the largest message could never arrive"),
    Rule("WireLimits.waiting_bytes", 1, "WireLimits.message_bytes",
         "the largest message could never be sent to a slow peer"),
    Rule("WireLimits.waiting_bytes", 1, "WireLimits.peer_queue_bytes",
         "what one slow peer may have waiting would be closed for what all may have"),
    Rule("WireLimits.connections", 1, "WireLimits.handshakes",
         "strangers that say nothing could be all that is connected"),
    Rule("WireLimits.reconnect_max_s", 1, "WireLimits.reconnect_min_s",
         "the first pause would be longer than the longest"),
    # clients
    Rule("ClientLimits.probe_s", 2, "ClientLimits.ping_s",
         "a ping whose answer is under way would count as lost"),
    Rule("ClientLimits.probe_s", 1, "ClientLimits.late_s",
         "a loop that was a little late would make its server unhealthy"),
    Rule("ClientLimits.reconnect_s", 2, "ClientLimits.ping_s",
         "a connection would be left while the answer to a ping is under way"),
    Rule("ClientLimits.cancel_answer_s", 1, "ClientLimits.ping_s",
         "whether a call ran is asked again with each ping, and would be given up before"),
    Rule("ClientLimits.ping_s", 1, "ClientLimits.finish_flush_s",
         "a ping tells what is finished, so nothing would ever be flushed before it"),
)  # fmt: skip


def check_together(*limits: Any) -> None:
    """ConfigError for the first rule that some of these limits break, with the values to write
    instead.  Rules about a class that is not given are ignored."""
    given = {type(each).__name__: each for each in limits}
    for rule in RULES:
        (owner, name), (other, least) = rule.large.split("."), rule.small.split(".")
        if owner not in given or other not in given:
            continue
        large, small = getattr(given[owner], name), getattr(given[other], least)
        if large < rule.times * small:
            times = f"{rule.times} times " if rule.times > 1 else ""
            raise ConfigError(
                f"{rule.large} ({large}) must be at least {times}{rule.small} ({small}): "
                f"{rule.why}; write {name}={rule.times * small} or more, "
                f"or {least}={_part(large, rule.times)} or less"
            )


def _part(value: float, times: int) -> float:
    """The largest allowed value of the smaller limit."""
    if isinstance(value, int):
        return value // times
    return value / times
