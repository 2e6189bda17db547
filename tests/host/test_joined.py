"""The shell of a host that has joined a router."""

from __future__ import annotations

from typing import Any, cast

from trio_envserve.core import messages
from trio_envserve.core.host import FromHost, Host
from trio_envserve.core.host_messages import HostBeat
from trio_envserve.core.host_messages import encode as encode_host
from trio_envserve.core.limits import MIB, WireLimits
from trio_envserve.core.messages import WorkerDelta, WorkerNotes
from trio_envserve.host.joined import DELTAS_BACKLOG_BYTES, JoinedHost
from trio_envserve.net.connection import ConnectionOutbox
from trio_envserve.net.interface import SocketStatistics

LIFE = b"i" * 16
DELTA = messages.encode(WorkerDelta(b"s" * 16, 0, 0, 0))
NOTES = messages.encode(WorkerNotes([0, 1], [b"\xa0"]))


class Uplink:
    """Takes nothing for now."""

    def __init__(self) -> None:
        limits = WireLimits()
        self.outbox = ConnectionOutbox(limits.peer_queue_messages, limits.peer_queue_bytes)
        self.refused = 0

    def send_nowait(self, frames: tuple[bytes, ...]) -> bool:
        sent = self.outbox.append(frames)
        self.refused += not sent
        return sent

    def statistics(self) -> SocketStatistics:
        return SocketStatistics(
            undelivered=0, oversized=0, closed=0, backlog_messages=len(self.outbox),
            backlog_bytes=self.outbox.size_bytes,
        )  # fmt: skip


def test_g10_deltas_filled_the_queue_of_a_slow_uplink_and_beats_came_too_late_for_the_lease():
    """8 MiB a second went into it from each worker, however little it took: the beats of the host
    waited behind 64 MiB, or had no room."""
    core, uplink = Host("a", 1, lambda: b"t" * 16), Uplink()
    host = JoinedHost(core, "tcp://192.0.2.1:1", cast(Any, None), cast(Any, None))
    host._socket, host._nursery = cast(Any, uplink), cast(Any, object())
    core._connected = True
    beat = FromHost((encode_host(HostBeat(b"t" * 16, 1, 0, b"e" * 16, 0, 0, False, {})),))
    for _ in range(100):
        for _ in range(8):
            core.worker_message(b"w", (LIFE, b"client", DELTA, bytes(MIB)))
        core.worker_message(b"w", (LIFE, NOTES))
        core.out.append(beat)
        host._carry_out()
    assert uplink.refused == 0
    assert uplink.outbox.size_bytes <= DELTAS_BACKLOG_BYTES + 2 * MIB
    said = [uplink.outbox.pop() for _ in range(len(uplink.outbox))]
    assert said.count(beat.frames) == 100
    assert sum(NOTES in frames for frames in said) == 100
