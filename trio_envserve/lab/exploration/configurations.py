"""The explored systems: small, with bounds on what may happen in each, and what each shows.

The machines are those that ship; what is small is how many there are of them and
how often each kind of trouble may come.  Within these bounds everything is tried
at every moment.
"""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any

from ...core.limits import ClientLimits, ServerLimits

_FAULTS = {
    "losses": ("LOSE",), "strays": ("REORDER", "DUPLICATE"), "cuts": ("CUT",), "restarts": ("KILL",)
}  # fmt: skip
"""The kinds of fault of the engine that some bounds are of; the others are of choices."""


def _times() -> Any:
    """The field of a bound: how often something may happen."""
    return dataclasses.field(default=0, metadata={"is_bound": True})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A small system and its bounds.

    What has no bound is free: deliveries, ends of executions, reaping, replacing, reconnecting,
    taking outcomes, acknowledging; with a key also coming back in a new session, and asking again
    or withdrawing there; with hosts the router's turns, the guard's kill, and the return of
    whatever was stopped, killed, asleep or cut off."""

    name: str
    clients: int = 1
    """Clients; with a key the callers that share it; with hosts the server plays the one."""
    requests: int = 1
    """Calls of each client, made in order at any time."""
    workers: int = 1
    """Workers of the server's machine; with hosts those of each host."""
    capacity: int = 2
    """Executions at once on one worker."""
    consent: bool = False
    """Whether calls consent to further executions."""
    allowance: int = 3
    """Executions that a call allows, if further ones have consent."""
    limited: bool = False
    """Whether calls have a time limit."""
    window: int = 16
    """Unfinished requests of one session."""
    kept: int = 16
    """Outcomes kept for clients before dispatching pauses."""
    kept_bytes: int = 1 << 20
    """The same in bytes."""
    announce: int = ServerLimits().announce_bytes
    """The largest outcome that a worker sends without announcing it."""
    queue: int = 16
    """Requests waiting at the server before new ones are refused for now."""
    recycle: int | None = None
    """Executions after which a worker is replaced."""
    key: bool = False
    """Whether all requests are for one key."""
    journal: bool = False
    """Whether the server has one: then the next server takes over what is there."""
    hosts: int = 0
    """Hosts of other machines, which have all workers then."""
    opening: int = 2
    """Beats of each host that were answered at the beginning: after two the request runs."""
    clocks: int = 1
    """Number of ways in which the clocks drift: 1 is hosts as slow and a router as fast as may
    be, 8 are all in which each clock is as slow or as fast as may be."""
    lease: bool = True
    """Whether hosts hold one."""
    fence_s: float = 5.0
    """The lease of hosts in seconds."""
    next_fence_s: float = 5.0
    """That of every second router."""
    lasting: bool = False
    """Whether a partition is for ever."""

    pings: int = _times()
    """A client states what it holds, though nothing has gone wrong."""
    beats: int = _times()
    """The same for a worker."""
    losses: int = _times()
    """A message is lost, the connection stays."""
    strays: int = _times()
    """A message, or a copy of it, is left behind and arrives at any time later: what no
    single connection does."""
    cuts: int = _times()
    """A connection is cut and what is on its way is lost."""
    crashes: int = _times()
    """A worker dies; what it had sent still arrives, or does not.  With hosts: a host's process
    is killed, and with it all workers of its machine."""
    kills: int = _times()
    """A worker is silent, or ignores a cancel, for so long that it is killed."""
    restarts: int = _times()
    """The server is killed and replaced; busy workers of it live on for a while."""
    falls: int = _times()
    """The server is killed: its workers are dead, or on hosts; the next one has what is left of
    its journal."""
    closings: int = _times()
    """The server closes, with a drain or without."""
    cancels: int = _times()
    """A caller gives up."""
    limits: int = _times()
    """A call's limit passes at the client, or its deadline at the server."""
    leases: int = _times()
    """A client's lease ends: it was silent for long."""
    despairs: int = _times()
    """A client has waited long enough for a lost session."""
    closes: int = _times()
    """A client is closed."""
    forgeries: int = _times()
    """Somebody sends another payload under the id of a request that the server knows."""
    others: int = _times()
    """A caller asks with another input."""
    attaches: int = _times()
    """A caller attaches to the work of the key."""
    commands: int = _times()
    """A cancel or a forget by key: with an id, or naming any generation."""
    copies: int = _times()
    """A command comes again."""
    repeats: int = _times()
    """A request comes again."""
    deaths: int = _times()
    """A caller's process dies and is started again; its session stays."""
    ticks: int = _times()
    """The time passes, by so much at once."""
    turns: int = _times()
    """A host has its turn: it beats, or says hello."""
    lates: int = _times()
    """A copy of a host's first hello arrives late."""
    partitions: int = _times()
    """Nothing passes any more between a host and the router, in one direction."""
    reconnects: int = _times()
    """A host says hello over another connection."""
    twins: int = _times()
    """The first host is started on the other machine, too, which has none of its own."""
    sleeps: int = _times()
    """A machine sleeps: no code runs there, no timer fires, the time goes on."""
    stops: int = _times()
    """A guard is stopped."""

    @property
    def most(self) -> int:
        """Executions of one call that are allowed."""
        return self.allowance if self.consent else 1

    @property
    def slots(self) -> int:
        """Workers that the server starts itself."""
        return 0 if self.hosts else self.workers

    @property
    def instant(self) -> bool:
        """Whether nothing is on its way: whatever is sent arrives at once."""
        return self.key and not self.hosts

    def server_limits(self) -> ServerLimits:
        """The limits of its servers."""
        return ServerLimits(
            worker_capacity=self.capacity, window=self.window, kept_outcomes=self.kept,
            kept_bytes=self.kept_bytes, announce_bytes=self.announce,
            queue=self.queue, recycle_executions=self.recycle, session_share=1.0,
            spread_s=1e-300,
        )  # fmt: skip

    def client_limits(self) -> ClientLimits:
        """The limits of its clients."""
        return ClientLimits(max_executions=self.allowance)

    @property
    def bounds(self) -> dict[str, int]:
        """How often each kind of trouble may come."""
        fields = dataclasses.fields(self)
        return {each.name: getattr(self, each.name) for each in fields if each.metadata}

    @property
    def each(self) -> dict[str, int]:
        """Its bounds, as the search names them."""
        return {
            name: most
            for bound, most in self.bounds.items() for name in _FAULTS.get(bound, (bound,))
        }  # fmt: skip

    def describe(self) -> str:
        """One line for people: what is not as usual."""
        parts = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name != "name" and value != field.default:
                parts.append(field.name if value is True else f"{field.name} {value}")
        return ", ".join(parts)

    def record(self) -> dict[str, int | bool | None]:
        """For programs: all its bounds."""
        fields = dataclasses.fields(self)
        return {f.name: getattr(self, f.name) for f in fields if f.name != "name"}


TABLE: tuple[Configuration, ...] = (
    # A few hundred or thousand states each, around one kind of trouble.
    Configuration(name="lost", requests=2, losses=2),
    Configuration(name="cut", pings=1, cuts=1, strays=1),
    Configuration(name="beat", beats=1, cuts=1, cancels=1),
    Configuration(name="crash", workers=2, crashes=1),
    Configuration(name="rerun", crashes=2, consent=True, allowance=2),
    Configuration(name="kill", workers=2, kills=1, cancels=1),
    Configuration(name="limit", limited=True, limits=1, losses=1),
    Configuration(name="lease", leases=1, despairs=1, strays=1, consent=True),
    Configuration(name="restart", restarts=1, consent=True, allowance=2),
    Configuration(name="stray", strays=1, beats=1, cancels=1),
    Configuration(name="late", strays=1, limits=1, limited=True),
    Configuration(name="bound", requests=4, capacity=1, kept=1),
    Configuration(name="heavy", requests=4, capacity=1, kept_bytes=1),
    Configuration(
        name="announced", requests=2, kept_bytes=1, announce=1, losses=1,
        cancels=1, crashes=1,
    ),
    Configuration(name="full", requests=3, capacity=1, queue=1, window=2, cancels=1),
    Configuration(name="recycle", requests=2, kept_bytes=1, announce=1, recycle=1),
    Configuration(name="forged", requests=2, capacity=1, forgeries=1),
    Configuration(name="twins", clients=2, workers=2, capacity=1, cuts=1),
    Configuration(name="allowed", crashes=2, leases=1, consent=True),
    Configuration(name="ghost", strays=1, restarts=1),
    # A bit of everything.
    Configuration(name="small", cuts=1, cancels=1, crashes=1),
    # Two of each.
    Configuration(
        name="pair", requests=2, workers=2, capacity=1, losses=1, crashes=1, cancels=1,
        consent=True, allowance=2,
    ),
    Configuration(
        name="couple", clients=2, workers=2, capacity=1, cuts=1, crashes=1, cancels=1
    ),
    # A bit of everything, much of it.
    Configuration(
        name="ci", losses=1, cuts=1, cancels=1, crashes=1, restarts=1, consent=True, allowance=2
    ),
    Configuration(
        name="nightly", requests=2, losses=1, cuts=1, crashes=1, restarts=1, consent=True,
        allowance=2,
    ),
)  # fmt: skip
"""All configurations without keys, the small ones first."""


def _with_a_key(name: str, **given: Any) -> Configuration:
    """Two callers of one key."""
    return Configuration(name=name, **{"clients": 2, "key": True, **given})


KEY_TABLE: tuple[Configuration, ...] = (
    _with_a_key("keys-shared", attaches=1, repeats=1, crashes=1),
    _with_a_key("keys-other", others=1, crashes=1),
    _with_a_key("keys-held", others=1, commands=1),
    _with_a_key("keys-cancel", attaches=1, cancels=1),
    _with_a_key("keys-command", commands=1, copies=1),
    _with_a_key("keys-waiting", commands=1, cancels=1, crashes=1),
    _with_a_key("keys-lease", leases=1, crashes=1, consent=True),
    _with_a_key("keys-back", deaths=1, cancels=1),
    _with_a_key("keys-goodbye", closes=1, limits=1, limited=True),
    _with_a_key("keys-rerun", crashes=2, consent=True, allowance=4),
    _with_a_key("keys-close", closings=1, crashes=1),
    _with_a_key("keys-fall", clients=1, falls=1, cancels=1, journal=True),
    _with_a_key("keys-disk", falls=1, cancels=1, journal=True, consent=True, allowance=1),
    # A bit of everything, and much of it.
    _with_a_key("keys", commands=1, leases=1, cancels=1),
    _with_a_key("keys-nightly", commands=1, leases=1, cancels=1, attaches=1),
    _with_a_key("keys-disk-nightly", falls=2, journal=True, consent=True, allowance=2),
)
"""Those with keys."""


def _with_hosts(name: str, **given: Any) -> Configuration:
    """Two hosts, and a request that may run as often as the bounds allow."""
    return Configuration(
        name=name,
        **{"hosts": 2, "key": "journal" in given, "consent": True, "allowance": 9, **given},
    )


HOST_TABLE: tuple[Configuration, ...] = (
    _with_hosts("hosts-beat", ticks=3, turns=1),
    _with_hosts("hosts-clocks", hosts=1, clocks=8, ticks=3, turns=1),
    _with_hosts("hosts-start", hosts=1, opening=1, ticks=1, turns=2, crashes=1),
    _with_hosts("hosts-deaf", turns=1, partitions=1, lasting=True),
    _with_hosts("hosts-cut", hosts=1, turns=1, partitions=1),
    _with_hosts("hosts-one-id", ticks=1, turns=1, twins=1),
    _with_hosts("hosts-no-lease", ticks=17, lease=False),
    _with_hosts("hosts-sleep", ticks=4, sleeps=1),
    _with_hosts("hosts-guard", hosts=1, ticks=3, turns=1, stops=1),
    _with_hosts("hosts-next", falls=1),
    _with_hosts(
        "hosts-limits", hosts=1, ticks=3, falls=1, journal=True, next_fence_s=1.0
    ),
    _with_hosts("hosts-falls", hosts=1, falls=2, journal=True),
    _with_hosts("hosts-kept", hosts=1, ticks=3, falls=1, journal=True),
    _with_hosts(
        "hosts-hello", hosts=1, lates=1, crashes=1, falls=1, journal=True
    ),
    _with_hosts(
        "hosts-late", hosts=1, lates=1, ticks=1, turns=1, falls=1, journal=True, fence_s=1.0,
        next_fence_s=1.0,
    ),
    _with_hosts(
        "hosts-over-twice", hosts=1, ticks=2, falls=2, journal=True,
        next_fence_s=1.0,
    ),
    _with_hosts("hosts-unknown", falls=1, journal=True, key=False),
    _with_hosts(
        "hosts-written-off", hosts=1, turns=1, falls=2, journal=True, key=False
    ),
    # Much of it.
    _with_hosts("hosts", ticks=2, turns=1, crashes=1),
)  # fmt: skip
"""Those with hosts, the small ones first."""

ALL: tuple[Configuration, ...] = (*TABLE, *KEY_TABLE, *HOST_TABLE)

SHOWS: dict[str, tuple[str, ...]] = {
    "lost": (
        "spans-one-too-long", "sync-replays-nothing", "kept-outcomes-are-evicted",
        "what-was-sent-is-finished", "a-lost-request-is-not-repeated",
        "sync-names-nothing-missing",
    ),
    "cut": (
        "sync-off-by-one", "replay-has-a-new-header", "duplicates-run-again",
        "answers-go-to-the-first-connection", "a-retransmission-has-a-new-id",
    ),
    "beat": (
        "cancel-stays-at-the-router", "a-cancel-is-not-told", "a-worker-names-what-is-over",
        "a-worker-counts-a-message-twice", "the-router-does-not-count",
        "what-is-stopped-counts-as-over",
    ),
    "crash": ("reruns-without-consent", "acknowledged-on-arrival"),
    "rerun": ("reruns-for-ever", "a-replacement-is-never-started"),
    "kill": ("silence-is-death", "lost-when-killed"),
    "limit": (
        "deadline-stops-nothing", "cancel-says-it-never-ran", "a-passed-limit-means-it-never-ran",
    ),
    "lease": ("lease-ends-and-work-goes-on", "every-welcome-is-taken"),
    "restart": ("every-lost-session-is-gone", "any-server-answers-a-ping"),
    "stray": (
        "finished-looks-unseen",
    ),
    "late": ("cancel-is-forgotten",),
    "bound": ("kept-outcomes-have-no-bound", "bytes-are-not-given-back"),
    "heavy": ("kept-bytes-are-not-counted", "capacity-is-not-kept"),
    "announced": (
        "a-fetched-outcome-counts-twice", "a-second-answer-is-forwarded",
        "room-dies-with-a-worker", "announced-outcomes-need-no-room",
    ),
    "full": (
        "finish-frees-a-running-request", "a-span-ends-as-its-first",
        "a-refusal-is-of-all-that-was-sent",
    ),
    "recycle": ("work-goes-to-who-retires",),
    "forged": ("digest-is-not-compared", "conflict-replaces-the-first"),
    "allowed": ("a-new-session-resets-the-allowance", "every-lost-session-was-settled"),
    "keys-shared": (
        "a-waiter-is-counted-twice", "retention-forgets-what-runs", "nothing-is-retained",
    ),
    "keys-other": ("a-key-joins-another-input",),
    "keys-cancel": (
        "the-first-who-leaves-cancels", "attaching-counts-as-waiting",
        "who-leaves-by-name-is-taken-for-all",
    ),
    "keys-command": (
        "a-command-hits-any-generation", "a-doubled-command-hits-the-next-generation",
        "a-generation-starts-beside-the-last",
        "who-is-cancelled-by-key-is-told-that-it-never-ran",
    ),
    "keys-lease": ("a-lost-waiter-counts-no-more",),
    "keys-back": ("orphans-are-never-given-up", "who-is-back-counts-twice"),
    "keys-goodbye": (
        "the-limit-of-one-ends-the-work-of-all", "a-passed-deadline-cancels-the-work-of-a-key",
    ),
    "keys-fall": ("what-is-issued-again-starts-anew",),
    "keys-disk": ("dispatch-before-safe", "tell-before-safe", "allowance-forgotten"),
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
        "the-next-membership-begins-over-living-workers",
        "a-router-begins-while-the-hosts-of-the-one-before-live",
    ),
    "hosts-limits": (
        "a-successor-waits-by-its-own-limits", "a-host-is-welcomed-before-it-is-written-down",
        "what-goes-on-is-counted-by-the-limits-of-the-new-router-alone",
    ),
    "hosts-falls": (
        "a-successor-writes-down-itself-alone", "the-count-goes-on-at-the-takeover",
        "what-goes-on-is-not-known-at-the-takeover",
    ),
    "hosts-kept": ("a-membership-is-kept-with-another-router",),
    "hosts-hello": ("a-late-hello-says-that-nothing-runs",),
    "hosts-late": ("any-router-answers-a-beat",),
    "hosts-over-twice": ("a-successor-waits-for-each-epoch-by-its-own-words",),
    "hosts-written-off": ("a-router-is-written-off-while-its-work-is-stopped",),
    "hosts-unknown": (
        "unknown-work-is-not-stopped", "what-is-not-known-runs-on",
        "what-runs-is-said-before-the-membership-begins",
    ),
}  # fmt: skip
"""The mutants that a configuration shows, each in the smallest that does."""


def configuration(name: str) -> Configuration:
    """The configuration of this name.  KeyError with the near ones if there is none."""
    for each in ALL:
        if each.name == name:
            return each
    names = [each.name for each in ALL]
    near = difflib.get_close_matches(name, names, n=2)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(names)}"
    raise KeyError(f"no configuration {name!r}; {hint}")


def showing(mutant: str) -> list[Configuration]:
    """The configurations that show this mutant, the smallest first."""
    return [each for each in ALL if mutant in SHOWS.get(each.name, ())]
