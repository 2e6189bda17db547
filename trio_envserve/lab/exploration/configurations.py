"""The explored systems: small, with bounds on what may happen in each, and what each shows.

The machines are those that ship; what is small is how many there are of them and
how often each kind of trouble may come.  Within these bounds everything is tried
at every moment.
"""

from __future__ import annotations

import difflib
from typing import TypeAlias

from .calls import TABLE, Configuration
from .hosted import HOST_TABLE, HostConfiguration
from .keyed import KEY_TABLE, KeyConfiguration

AnyConfiguration: TypeAlias = Configuration | KeyConfiguration | HostConfiguration

ALL: tuple[AnyConfiguration, ...] = (*TABLE, *KEY_TABLE, *HOST_TABLE)

SHOWS: dict[str, tuple[str, ...]] = {
    "lost": (
        "spans-one-too-long", "sync-replays-nothing", "kept-outcomes-are-evicted",
        "what-was-sent-is-finished", "an-outcome-is-sent-once", "a-lost-request-is-not-repeated",
        "sync-names-nothing-missing", "a-lost-dispatch-is-not-repeated",
        "a-worker-never-says-what-it-misses",
    ),
    "cut": (
        "sync-off-by-one", "replay-has-a-new-header", "duplicates-run-again",
        "answers-go-to-the-first-connection", "a-retransmission-has-a-new-id",
    ),
    "beat": ("a-number-is-run-twice", "cancel-stays-at-the-router", "a-cancel-is-not-told"),
    "crash": ("reruns-without-consent", "last-words-are-thrown-away", "acknowledged-on-arrival"),
    "rerun": ("reruns-for-ever", "a-replacement-is-never-started"),
    "kill": ("silence-is-death", "lost-when-killed"),
    "limit": (
        "deadline-stops-nothing", "cancel-says-it-never-ran", "a-passed-limit-means-it-never-ran",
    ),
    "lease": ("lease-ends-and-work-goes-on", "every-welcome-is-taken"),
    "restart": ("every-lost-session-is-gone", "any-server-answers-a-ping"),
    "stray": (
        "finished-looks-unseen", "an-early-stop-is-forgotten", "a-second-answer-is-forwarded",
        "what-a-worker-says-it-misses-is-lost",
    ),
    "late": ("cancel-is-forgotten",),
    "bound": ("kept-outcomes-have-no-bound", "bytes-are-not-given-back"),
    "heavy": ("kept-bytes-are-not-counted", "capacity-is-not-kept"),
    "announced": (
        "an-announced-outcome-is-dropped", "a-lost-announcement-is-not-repeated",
        "a-lost-fetch-is-not-repeated", "a-fetched-outcome-counts-twice",
        "room-dies-with-a-worker", "announced-outcomes-need-no-room",
    ),
    "full": (
        "finish-frees-a-running-request", "a-span-ends-as-its-first",
        "a-refusal-is-of-all-that-was-sent",
    ),
    "recycle": ("work-goes-to-who-retires",),
    "forged": ("digest-is-not-compared", "conflict-replaces-the-first"),
    "allowed": ("a-new-session-resets-the-allowance", "every-lost-session-was-settled"),
    "ghost": ("a-worker-takes-any-incarnation",),
    "keys-shared": (
        "a-waiter-is-counted-twice", "retention-forgets-what-runs", "nothing-is-retained",
    ),
    "keys-other": ("a-key-joins-another-input",),
    "keys-cancel": (
        "the-first-who-leaves-cancels", "who-leaves-is-told-that-it-never-ran",
        "attaching-counts-as-waiting",
    ),
    "keys-command": (
        "a-command-hits-any-generation", "a-doubled-command-hits-the-next-generation",
        "a-generation-starts-beside-the-last", "an-early-cancel-by-key-is-forgotten",
        "who-is-cancelled-by-key-is-told-that-it-never-ran",
    ),
    "keys-back": (
        "a-lost-waiter-counts-no-more", "a-withdrawal-is-ignored", "orphans-are-never-given-up",
        "what-is-issued-again-starts-anew", "who-is-back-counts-twice",
    ),
    "keys-goodbye": ("the-limit-of-one-ends-the-work-of-all",),
    "keys-disk": (
        "dispatch-before-safe", "tell-before-safe", "drop-before-safe", "allowance-forgotten",
    ),
    "hosts-beat": (
        "renewed-by-anything-heard", "counted-from-receipt", "margin-fixed", "no-margin",
        "counted-from-what-was-confirmed", "a-host-is-lost-before-its-lease-is-over",
        "what-a-lost-host-ran-is-forgotten", "an-end-is-said-before-it-has-come",
    ),
    "hosts-deaf": ("a-host-that-hears-nothing-is-answered-for-ever",),
    "hosts-cut": ("nothing-is-sent-again",),
    "hosts-one-id": ("two-hosts-with-one-id",),
    "hosts-no-lease": ("silence-is-proof-without-a-lease",),
    "hosts-sleep": ("a-clock-that-stands-still-in-sleep",),
    "hosts-guard": ("the-guard-looks-at-the-clock-itself", "the-guard-is-told-for-how-long"),
    "hosts-next": (
        "the-next-tenure-begins-over-living-workers",
        "a-router-begins-while-the-hosts-of-the-one-before-live",
    ),
    "hosts-limits": (
        "a-successor-waits-by-its-own-limits", "a-host-is-welcomed-before-it-is-written-down",
        "what-goes-on-is-counted-by-the-limits-of-the-new-router-alone",
    ),
    "hosts-falls": ("a-successor-writes-down-itself-alone",),
    "hosts-kept": ("a-tenure-is-kept-with-another-router",),
    "hosts-hello": ("a-late-hello-says-that-nothing-runs",),
    "hosts-late": ("any-router-answers-a-beat",),
    "hosts-over-twice": ("a-successor-waits-for-each-epoch-by-its-own-words",),
    "hosts-written-off": ("a-router-is-written-off-while-its-work-is-stopped",),
    "hosts-unknown": (
        "unknown-work-is-not-stopped", "what-is-not-known-runs-on",
        "what-runs-is-said-before-the-tenure-begins",
    ),
    "small": (
        "a-lost-request-is-not-repeated", "a-cancel-is-not-told", "acknowledged-on-arrival",
        "a-replacement-is-never-started", "answers-go-to-the-first-connection",
        "bytes-are-not-given-back", "last-words-are-thrown-away", "reruns-without-consent",
        "sync-names-nothing-missing", "sync-replays-nothing", "what-was-sent-is-finished",
        "work-goes-to-who-retires",
    ),
    "ci": (
        "a-cancel-is-not-told", "a-lost-dispatch-is-not-repeated",
        "a-lost-request-is-not-repeated", "a-replacement-is-never-started",
        "a-worker-never-says-what-it-misses", "acknowledged-on-arrival",
        "an-outcome-is-sent-once", "answers-go-to-the-first-connection",
        "any-server-answers-a-ping", "bytes-are-not-given-back", "cancel-stays-at-the-router",
        "every-lost-session-is-gone", "last-words-are-thrown-away",
        "sync-names-nothing-missing", "sync-off-by-one", "sync-replays-nothing",
        "what-was-sent-is-finished", "work-goes-to-who-retires",
    ),
}  # fmt: skip
"""The mutants that a configuration shows."""

BEYOND: dict[str, str] = {
    "leases-run-while-it-is-stopped": "clocks stand here",
    "kept-outcomes-expire": "clocks stand here",
    "a-start-may-take-for-ever": "clocks stand here",
    "a-group-outlives-its-turn": "without its limit nothing pauses",
    **dict.fromkeys(
        ("a-blocked-loop-is-silence", "the-silence-of-a-host-is-that-of-its-workers"),
        "there are no heartbeats here",
    ),
    "an-unhealthy-server-is-not-heard": "health is told to people; no guarantee rests on it here",
    "a-dead-pool-is-ready": "what a server says of its pool decides nothing",
    "a-stopped-pool-is-ready": "what a server says of its pool decides nothing",
    "a-replacement-waits-for-the-dead": "slower, and every slowness is explored",
    "a-stopping-server-starts-workers": "servers are killed here, and do not drain",
    "what-was-answered-is-never-given-back": "no key comes to its bound in bytes here",
    "sessions-have-no-share-of-their-own": "each client is alone at the bounds here",
    "a-stage-of-closing-has-no-end": "servers are killed here, and do not drain",
    "work-begins-while-closing": "servers are killed here, and do not drain",
    "what-closing-cancels-did-not-run": "servers are killed here, and do not drain",
    "a-connection-opens-any-number-of-sessions": "each connection has one session here",
    "a-session-at-work-makes-room": "there is room for all sessions here",
    "an-ended-nonce-is-forgotten": "a client that has left asks nothing more; all it costs is room",
    "window-is-not-kept": "all clients keep to their window here",
    "cancelled-is-kept": "the next statement of its client repairs it before anybody can tell",
    "a-lost-session-is-not-heard": "a lost session's outcomes are excused here",
    "calls-cancelled-together-are-as-one": "callers give up one at a time here",
    "what-is-refused-for-now-is-spent": "a client then says that it may have run, as it may of any",
    "work-half-done-is-done": "it speaks to a worker that is gone, which nobody can here",
    "work-half-done-is-lost": "it notes what was reported where no state here holds it",
    "rows-are-shifted-by-one": "messages come one by one here",
    "a-refused-row-drops-the-rest": "messages come one by one here",
    "a-batch-is-freed-with-its-first": "messages come one by one here",
    "a-lost-batch-was-never-dispatched": "clocks stand here, so all is dispatched in one turn",
    **dict.fromkeys(
        (
            "a-worker-that-is-not-needed-is-killed",
            "a-pool-shrinks-below-its-least",
            "a-pool-grows-without-need",
            "a-pool-grows-beyond-its-most",
        ),
        "the number of workers is fixed here",
    ),
    **dict.fromkeys(
        (
            "numbers-used-again-after-a-reconnect",
            "a-worker-starts-before-the-first-answer",
            "work-of-keys-begins-before-all-hosts-are-back",
        ),
        "the way there is longer than those that are exhausted here; the simulation shows it",
    ),
    "a-malformed-worker-is-kept": "no worker is malformed here",
    "a-mute-worker-is-kept": "no worker is mute here",
    **dict.fromkeys(
        ("the-first-worker-takes-everything", "what-is-left-to-others-waits-for-ever"),
        "nobody is waited for: spread_s is nothing here",
    ),
    "a-cancel-drops-an-outcome": "it shows as a wrong answer to the cancel (G7) before anybody "
    "misses the outcome",
    "executions-forgotten": "how many executions an answer names is not judged here",
    "answer-before-read": "no server reads outcomes from its journal here",
    "rest-before-safe": "no server reads outcomes from its journal here",
    "the-router-hears-any-incarnation": "an outcome names its request, too, and earlier workers "
    "are dead before there are others of their names",
}
"""The mutants that no configuration shows, and why."""


def any_configuration(name: str) -> AnyConfiguration:
    """The configuration of this name.  KeyError with the near ones if there is none."""
    for each in ALL:
        if each.name == name:
            return each
    names = [each.name for each in ALL]
    near = difflib.get_close_matches(name, names, n=2)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(names)}"
    raise KeyError(f"no configuration {name!r}; {hint}")


def configuration(name: str) -> Configuration:
    """The one of this name without keys.  KeyError as :func:`any_configuration`."""
    found = any_configuration(name)
    if not isinstance(found, Configuration):
        raise KeyError(f"{name!r} is a configuration of keys")
    return found


def showing(mutant: str) -> list[AnyConfiguration]:
    """The configurations that show this mutant, the smallest first."""
    return [each for each in ALL if mutant in SHOWS.get(each.name, ())]
