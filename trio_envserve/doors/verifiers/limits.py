"""Every bound and every timer of the door for verifiers, with its reason."""

from __future__ import annotations

import dataclasses

from ...core.limits import MIB, _Checked, limit


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VerifiersLimits(_Checked):
    """Bounds on what strangers may take of the server's process by the wire of verifiers."""

    connections: int = limit(1024, "each costs a descriptor and an outbox")
    frame_bytes: int = limit(
        64 * MIB, "the largest frame, in either direction; who sends more loses its connection"
    )
    arriving_bytes: int = limit(
        256 * MIB, "bytes of unfinished messages; past it the connection that holds most is closed"
    )
    waiting_bytes: int = limit(
        256 * MIB, "bytes that wait for slow clients; past it the connection that has most waiting "
        "is closed",
    )  # fmt: skip
    run_bytes: int = limit(
        16 * MIB, "of what one run asks; it is hashed at once, which takes some 20 ms"
    )
    streamed_bytes: int = limit(
        16 * MIB, "of the deltas of one run that are sent before its outcome, and hashed again "
        "with it at once; the others come with the outcome",
    )  # fmt: skip
    runs: int = limit(16_384, "runs that wait or run; past it a run is refused and did not run")
    runs_bytes: int = limit(256 * MIB, "the same, in bytes of what they ask")
    kept_bytes: int = limit(
        128 * MIB, "outcomes that are not known to have arrived; past it those that were sent make "
        "room, then those of clients that are gone, and then new runs wait",
    )  # fmt: skip
    place_share: float = limit(
        0.5, "what one address, or one user of this machine, may take of what the others leave "
        "of these three",
    )  # fmt: skip
    known: int = limit(
        65_536, "ids of runs that are over; one that comes again is refused, and not run"
    )
    early_cancels: int = limit(1_024, "cancels that came before their runs")
    lease_s: float = limit(
        600.0, "how long a run goes on, or its outcome is offered, after its client was lost"
    )
    unsure_s: float = limit(
        30.0, "a connection that is lost so soon after an outcome was sent may have lost it, too"
    )
