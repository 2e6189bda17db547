"""Which case of the suite shows each variant that is broken on purpose."""

from __future__ import annotations

CAUGHT: dict[str, str] = {
    "duplicates-run-again": "a-duplicate-of-a-running-request-is-coalesced",
    "finished-looks-unseen": "a-duplicate-of-a-finished-request-is-refused",
    "reruns-without-consent": "without-consent-a-death-ends-the-request",
    "spans-one-too-long": "a-finish-is-of-its-sequences-only",
    "sync-names-nothing-missing": "what-was-never-seen-is-named",
    "sync-replays-nothing": "outcomes-are-replayed-on-a-new-connection",
    "what-was-sent-is-finished": "an-outcome-lost-on-its-way-is-replayed",
    "cancel-is-forgotten": "a-cancel-may-overtake-its-request",
    "cancelled-is-kept": "what-a-sync-leaves-out-is-finished",
    "deadline-stops-nothing": "a-deadline-stops-what-runs",
    "kept-outcomes-are-evicted": "outcomes-are-kept-beside-each-other",
    "replay-has-a-new-header": "a-duplicate-of-a-completed-request-is-replayed",
    "digest-is-not-compared": "another-request-with-the-id-of-a-running-one-is-a-conflict",
    "cancel-says-it-never-ran": "a-cancel-never-denies-a-run",
    "window-is-not-kept": "a-full-window-refuses-for-now",
    "every-lost-session-is-gone": "an-unknown-session-is-told",
    "any-server-answers-a-ping": "a-session-of-this-epoch-that-is-not-there-is-gone",
    "answers-go-to-the-first-connection": "answers-go-to-the-newest-connection",
    "rows-are-shifted-by-one": "requests-may-share-a-batch",
    "a-refused-row-drops-the-rest": "a-row-that-is-refused-harms-no-other",
}
"""Mutants of the server, and the case that shows each."""

WORKERS_CAUGHT: dict[str, str] = {
    "a-worker-takes-any-incarnation": "what-is-for-another-incarnation-is-ignored",
    "a-worker-loses-a-dispatch": "an-outcome-is-sent-once",
    "a-worker-names-what-is-over": "beats-name-what-is-live",
    "a-worker-counts-a-message-twice": "a-stop-of-what-is-over-is-ignored",
    "an-announced-outcome-is-dropped": "a-large-outcome-is-announced-first",
    "an-unwanted-outcome-is-held-on": "an-unwanted-outcome-is-dropped",
}
"""Mutants of the worker, and the case that shows each."""
