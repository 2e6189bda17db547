"""Every bound and every timer of the doors, with its reason.  It needs no extra of theirs."""

from __future__ import annotations

import dataclasses

from ..core.limits import KIB, MIB, _Checked, limit


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits(_Checked):
    """Bounds on what strangers may take of the server's process by HTTP."""

    connections: int = limit(
        1024, "each costs a descriptor; past it the one that is idle longest is closed, or, if "
        "none is, the new one is refused",
    )  # fmt: skip
    header_bytes: int = limit(16 * KIB, "of one request, its first line included")
    body_bytes: int = limit(
        8 * MIB, "of one request; one text so long in JSON holds the loop for some 30 ms"
    )
    bodies_bytes: int = limit(
        256 * MIB, "of all requests together, from their first byte until they are answered"
    )
    answers_bytes: int = limit(
        256 * MIB, "of answers that wait for slow callers; past it the one that has taken nothing "
        "for longest is cut off",
    )  # fmt: skip
    json_items: int = limit(
        100_000,
        "commas and brackets of a body in JSON: so many take up to 100 ms, in pieces between "
        "which others have their turn; in CBOR the cost of the value is bounded, by body_bytes",
    )
    calls: int = limit(
        2000, "calls at once; a batch counts as those that it has in flight, and a call under a "
        "key counts until it has ended, also when nobody waits for it any more",
    )  # fmt: skip
    namespace_share: float = limit(
        0.5, "what the calls under keys of one namespace may take of what the others leave of that"
    )
    batch_inputs: int = limit(10_000, "inputs of one batch")
    wait_s: float = limit(
        300.0, "the longest wait for the outcome of a key before 202: proxies give up, too"
    )
    answer_s: float = limit(
        10.0, "so long the server may take to say what it knows of a key, besides that wait"
    )
    scrape_s: float = limit(
        5.0, "so long the server may take to say its statistics for GET /metrics; then those of "
        "the door are answered alone. Prometheus itself waits for 10 s. The same for what runs",
    )  # fmt: skip
    viewers: int = limit(
        256, "who watch the live page at one time; each holds a connection, and the others are told"
    )
    view_s: float = limit(
        2.0, "so long the server may take to say what the live page shows, or it is shown as silent"
    )
    delivered_s: float = limit(
        30.0, "so long a row of POST /run without _ng_rollout_id is answered as before, once an "
        "answer was written to its end; then it is run anew",
    )  # fmt: skip
    idle_s: float = limit(
        60.0, "without a request, or before its headers are complete, the connection is closed"
    )
    body_s: float = limit(30.0, "from the headers of a request to the end of its body")
    write_s: float = limit(
        30.0, "a peer that does not take 64 KiB of its answer in this time is cut off"
    )
    linger_s: float = limit(
        1.0, "what still arrives on a closed connection is read so long, or a reset would eat "
        "the last answer",
    )  # fmt: skip
    close_s: float = limit(
        5.0, "so long the door waits, when it closes, for answers that are under way"
    )


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
    origin_share: float = limit(
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
