"""Mutants that no explored configuration shows, and why."""

from __future__ import annotations

REASONS: dict[str, str] = {
    "clocks stand here": """
        leases-run-while-it-is-stopped kept-outcomes-expire a-start-may-take-for-ever
        late-is-never-told a-worker-keeps-it-to-itself late-is-told-at-the-end-of-the-grace
        a-rollout-is-told-too-early a-grace-is-of-executions-only waiting-makes-nobody-late
        a-grace-is-forgotten-by-the-next-server
    """,
    "without its limit nothing pauses": "a-group-outlives-its-turn",
    "there are no heartbeats here":
        "a-blocked-loop-is-silence the-silence-of-a-host-is-that-of-its-workers",
    "health is told to people; no guarantee rests on it here": "an-unhealthy-server-is-not-heard",
    "what a server says of its pool decides nothing":
        "a-dead-pool-is-ready a-stopped-pool-is-ready",
    "environment code saves nothing here": """
        states-belong-to-names a-worker-is-told-before-its-state-is-safe a-state-is-not-recorded
        the-first-state-stays states-of-what-is-stopped-are-kept a-state-may-have-any-size
        a-state-counts-for-ever
    """,
    "slower, and every slowness is explored":
        "a-replacement-waits-for-the-dead a-worker-keeps-its-place-for-what-it-holds",
    "one more worker costs nothing here": "a-worker-that-runs-code-leaves-its-place",
    "servers are killed here, and do not drain": """
        a-stopping-server-starts-workers a-stage-of-closing-has-no-end work-begins-while-closing
        what-closing-cancels-did-not-run
    """,
    "no key comes to its bound in bytes here": "what-was-answered-is-never-given-back",
    "each client is alone at the bounds here": "sessions-have-no-share-of-their-own",
    "each connection has one session here": "a-connection-opens-any-number-of-sessions",
    "there is room for all sessions here": "a-session-at-work-makes-room",
    "a client that has left asks nothing more; all it costs is room": "an-ended-nonce-is-forgotten",
    "all clients keep to their window here": "window-is-not-kept",
    "the next statement of its client repairs it before anybody can tell": "cancelled-is-kept",
    "a lost session's outcomes are excused here": "a-lost-session-is-not-heard",
    "callers give up one at a time here": "calls-cancelled-together-are-as-one",
    "who gives up a call is told nothing more of it here": "a-cancelled-call-is-settled",
    "a client then says that it may have run, as it may of any": "what-is-refused-for-now-is-spent",
    "it speaks to a worker that is gone, which nobody can here": "work-half-done-is-done",
    "it notes what was reported where no state here holds it": "work-half-done-is-lost",
    "messages come one by one here":
        "rows-are-shifted-by-one a-refused-row-drops-the-rest a-batch-is-freed-with-its-first",
    "clocks stand here, so all is dispatched in one turn": "a-lost-batch-was-never-dispatched",
    "no execution claims a permit here": """
        one-more-permit-than-the-limit-is-granted the-largest-limit-counts
        a-permit-comes-back-at-the-stop a-dead-worker-keeps-its-permits a-dead-claim-is-granted
        a-silent-worker-has-no-permits held-permits-are-forgotten-at-the-takeover
        permits-are-granted-before-all-hosts-are-back a-held-permit-waits-again-at-the-takeover
        claims-are-not-made-again-at-the-takeover grants-of-a-rate-come-together
        a-rate-that-waits-is-not-looked-at
    """,
    "no execution makes a resource here": """
        a-stopped-execution-loses-its-resources what-an-execution-leaves-is-left
        the-cleanings-of-a-dead-worker-die-with-it a-cleaning-that-hangs-is-given-to-another
        an-outcome-overtakes-the-end-of-a-resource what-is-open-is-not-said-again-at-the-takeover
        a-cleaning-runs-as-often-as-it-arrives a-name-is-told-before-it-is-safe
        what-is-given-is-not-written-down resources-are-given-before-the-proof
        a-journal-forgets-resources what-the-dead-held-stays-theirs what-is-stuck-is-dropped
        one-more-resource-than-may-be a-resource-of-a-host-is-given-to-any
    """,
    "the number of workers is fixed here": """
        a-worker-that-is-not-needed-is-killed a-pool-shrinks-below-its-least
        a-pool-grows-without-need a-pool-grows-beyond-its-most
    """,
    "the way there is longer than those that are exhausted here; the simulation shows it": """
        numbers-used-again-after-a-reconnect a-worker-starts-before-the-first-answer
        work-of-keys-begins-before-all-hosts-are-back
    """,
    "no worker is malformed here": "a-malformed-worker-is-kept",
    "no worker is mute here": "a-mute-worker-is-kept",
    "nobody is waited for: spread_s is nothing here":
        "the-first-worker-takes-everything what-is-left-to-others-waits-for-ever",
    "it shows as a wrong answer to the cancel (G7) before anybody misses the outcome":
        "a-cancel-drops-an-outcome",
    "how many executions an answer names is not judged here": "executions-forgotten",
    "no server reads outcomes from its journal here": "answer-before-read rest-before-safe",
    "who gives up the work of a key asks nothing, and no commands come to a journal here":
        "who-leaves-is-told-that-it-never-ran drop-before-safe",
    "who leaves by name has asked in the same session only here":
        "who-leaves-by-name-goes-on-counting",
    "a worker's end comes behind all that it has said here": "last-words-are-thrown-away",
    "the call waits for ever (G9) before a beat comes": "an-announcement-does-not-leave-its-worker",
    "nothing but its own router reaches a worker here": "a-worker-takes-any-incarnation",
    "no worker has three dispatches, and a beat behind them, here": """
        a-worker-loses-a-dispatch a-worker-names-what-it-was-not-told a-worker-drops-an-outcome
        the-router-loses-a-dispatch
    """,
    "where outcomes are announced, there are no beats here": """
        an-announced-outcome-is-dropped a-fetched-outcome-is-held-on an-unwanted-outcome-is-held-on
        nobody-says-what-is-unwanted
    """,
}  # fmt: skip
"""By reason: the names of the mutants."""

BEYOND: dict[str, str] = {name: why for why, names in REASONS.items() for name in names.split()}
