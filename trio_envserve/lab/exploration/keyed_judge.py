"""The promises of keys, as a small model, and whether a server keeps them.

Theory of operation
-------------------
There is one key, and nothing is on its way: whatever a caller or a worker says, the
server deals with at once.  So for each step the model says who is to be told what, which
generation may run, and what is to be stopped; anything else is a violation.  It is
written from the rules (``docs/protocol.md``), and knows nothing of the table of the core.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, cast

from ...core.calls import grant
from ...core.key_records import Tag
from ...retrylab import Event, Judge, Rule, Violation
from ...retrylab.system import SETTLED
from .judge import Request
from .keyed import Told


class Waiting(NamedTuple):
    """A request that waits for the key."""

    request: Request
    caller: bytes


class Open(NamedTuple):
    """The open generation of the key."""

    number: int
    input: bytes
    earlier: int
    held: bool
    """Whether an execution of the generation before lives."""
    starts: int = 0
    live: bool = False
    outcome: Told | None = None
    waiters: tuple[Waiting, ...] = ()
    lost: tuple[bytes, ...] = ()
    """Callers whose lease ended while they waited."""
    watchers: tuple[Request, ...] = ()
    callers: tuple[bytes, ...] = ()
    """Those of which a journal says that they may count."""
    unsent: bool = False
    """Whether its start is written, and it waits for that to be safe."""
    left: bool = False
    """Whether a journal has left it, and nobody knows yet whether it may go on."""
    counted: bool = False
    """Whether a journal has left it, so all that is left of its allowance may be started."""

    @property
    def started(self) -> bool:
        """Whether it may have run."""
        return self.starts > 0 or self.earlier > 0


class KeyPast(NamedTuple):
    """The past of the key: what a journal has."""

    opened: int = 0
    """How many generations there were."""
    open: Open | None = None
    ending: int | None = None
    """A closed generation whose execution lives."""
    early: Tag | None = None
    """The cancel that hits the next request."""
    said: tuple[tuple[tuple[int, Tag], Told], ...] = ()
    """The answers to commands with ids of their own."""
    closing: bool = False
    """Whether the server drains."""


class KeyJudge(Judge):
    """What must hold of a key.  Actors tell it what happens by events without a request, whose
    value is the name of a method and its arguments."""

    def __init__(self, consent: bool, allowance: int) -> None:
        self._consent = consent
        self._allowance = allowance
        self._become(KeyPast())
        self.runs: dict[int, tuple[int, bool]] = {}
        """Generation of each execution on the worker, and whether it was told to stop."""
        self.serves = False
        """Whether the worker lives, and is not to end."""
        self._forget_step()
        self.left_over: tuple[str, ...] = ()
        """The contents that a router has at rest."""

    def _become(self, past: KeyPast) -> None:
        self.opened, self.open, self.ending, self.early, self.said, self.closing = past

    def _forget_step(self) -> None:
        self._in_vain = False
        """Whether the time has ended for which work goes on that nobody waits for."""
        self._due: dict[Any, Told] = {}
        """The answers that are due in this step, by who is to be told."""
        self.heard: dict[Any, Told] = {}
        """The answers that were given, by who was told."""
        self.violations: list[tuple[str, str]] = []

    def see(self, event: Event) -> list[Violation]:
        """Violations that an event shows."""
        if event.kind == "has":
            self.left_over = (*self.left_over, event.what)
        elif event.what == SETTLED:
            live = {number: stopped for number, stopped in self.runs.values() if self.serves}
            self.settle(live, self.serves and len(live) < 2)
            found = self.violations
            self._forget_step()
            return [event.breaks(*each) for each in found]
        elif event.kind == "did":
            name, *given = event.what
            getattr(self, name)(*given)
        return []

    def rest(self, at_s: float) -> list[Violation]:
        """Violations by what a router still has at rest."""
        return [Violation("G8", at_s, what) for what in self.left_over]

    def violation(self, guarantee: str, text: str) -> None:
        """A guarantee does not hold."""
        self.violations.append((guarantee, text))

    broken = violation

    def past(self) -> KeyPast:
        """Its past, as a journal has it."""
        return KeyPast(self.opened, self.open, self.ending, self.early, self.said, self.closing)

    # -- the worker -----------------------------------------------------------------

    def dispatched(self, run: int, number: int, input: bytes) -> None:
        """An execution of a generation is sent: it counts, whether or not the worker gets it."""
        self.started(number, input, [each for each, _ in self.runs.values()])
        self.runs[run] = number, False

    def stopping(self, run: int) -> None:
        """Environment code is told to stop."""
        self.runs[run] = self.runs[run][0], True

    def over(self, run: int, payload: bytes) -> None:
        """Environment code ends."""
        number, _ = self.runs.pop(run)
        self.ended(number, ("result", payload))

    def serving(self, serves: bool) -> None:
        """A worker is there, or is not, or is to end."""
        self.serves = serves

    def worker_lost(self) -> None:
        """Executions of the worker are proven over."""
        for number, _ in self.runs.values():
            self.ended(number, None)
        self.runs = {}

    # -- what callers do ----------------------------------------------------------

    def asked(
        self, request: Request, caller: bytes, input: bytes, earlier: int = 0, gone: bool = True
    ) -> None:
        """A request with its input; issued again if earlier executions are possible."""
        if self.open is None:
            may = not earlier or (gone and self._consent and earlier < self._allowance)
            if not may:
                self._due[request] = ("refused", "unknown-key")
                return
            if self.early is not None:
                self.early = None
                self._due[request] = ("cancelled", earlier > 0)
                return
            self.open = Open(self.opened, input, earlier, self.ending is not None)
            self.opened += 1
        elif self.open.input != input:
            self._due[request] = ("refused", "key-conflict")
            return
        self._return(caller, request[0])
        self.open = here = self.open._replace(
            waiters=(*self.open.waiters, Waiting(request, caller))
        )
        if here.outcome is not None:
            self._due[request] = here.outcome
        self._stop_if_closing()

    def attached(self, request: Request) -> None:
        """A request without its input."""
        if self.open is None:
            self._due[request] = ("refused", "unknown-key")
        elif self.open.outcome is not None:
            self._due[request] = self.open.outcome
        else:
            self.open = self.open._replace(watchers=(*self.open.watchers, request))

    def left(self, request: Request) -> bool:
        """It is cancelled, or has its outcome.  Whether the work may have been started."""
        here = self.open
        if here is None or not self._take_away(request):
            return True
        self._who_waits()
        return self.open is not None or here.started

    def cancelled(self, request: Request) -> None:
        """Its caller gives up."""
        self._due["cancel", request] = ("left", self.left(request))

    def out_of_time(self, request: Request) -> None:
        """Its deadline has passed."""
        started = self.left(request)
        self._due[request] = ("error", "no-answer" if started else "never-started")

    def lost(self, session: bytes) -> None:
        """The lease of a session has ended: its waiters go on counting."""
        here = self.open
        if here is None:
            return
        mine = [w for w in here.waiters if w.request[0] == session]
        if mine:
            callers = {*here.lost, *(w.caller for w in mine)}
            self.open = here._replace(lost=tuple(sorted(callers)))
        if self._take_away_all(session):
            self._who_waits()

    def said_goodbye(self, session: bytes) -> None:
        """A session has ended: all that it asked for leaves."""
        if self._take_away_all(session):
            self._who_waits()

    def withdrew(self, request: Request, caller: bytes) -> None:
        """A caller that is back wants nothing that it asked for in other sessions."""
        here, started = self.open, True
        if here is not None and self._return(caller, request[0]):
            self._who_waits()
            started = self.open is not None or here.started
        self._due[request] = ("said", None, started, False)

    def commanded(self, request: Request, act: int, tag: Tag, forget: bool) -> None:
        """A cancel or a forget by key."""
        here, answer = self.open, cast(Told, ("said", None, True, False))
        known = dict(self.said).get((act, tag))
        if known is not None:
            self._due[request] = known
            return
        if here is not None and (tag == here.number or isinstance(tag, bytes)):
            if here.outcome is not None and not forget:
                answer = ("said", None, True, True)
            else:
                answer = ("said", here.number, here.started, False)
                self._close()
        elif here is None and isinstance(tag, bytes) and not forget and self.ending is None:
            self.early = tag
        if isinstance(tag, bytes):
            self.said = (*self.said, ((act, tag), answer))
        self._due[request] = answer

    def repeated(self, request: Request, before: Told | None) -> None:
        """A request is sent once more, after it was told this."""
        if before is not None:
            self._due[request] = before

    # -- what becomes of the work -------------------------------------------------

    def started(self, number: int, input: bytes, live: Iterable[int]) -> None:
        """Environment code begins."""
        for other in live:
            self.violation("G1", f"generation {number} starts, and {other} lives")
        here = self.open
        if here is None or here.number != number:
            what = "is not open" if here is None else f"and {here.number} is open"
            self.violation("G2" if here is None else "G4", f"generation {number} starts, {what}")
            return
        if here.outcome is not None:
            self.violation("G4", f"generation {number} starts, and has its outcome")
        if here.input != input:
            self.violation("G6", f"generation {number} starts with another input")
        if here.starts >= (self._most(here) if self._consent else 1):
            self.violation("G2", f"generation {number} starts for the {here.starts + 1}. time")
        self.open = here._replace(starts=here.starts + 1, live=True)

    def _most(self, here: Open) -> int:
        """How many executions this epoch may start of it, with consent."""
        left = self._allowance - here.earlier
        return left if here.counted else grant(left)

    def ended(self, number: int, outcome: Told | None) -> None:
        """An execution is over: reported with this outcome, or its worker is dead."""
        here = self.open
        if number == self.ending:
            self.ending = None
            if here is not None:
                self.open = here._replace(held=False)
                self._stop_if_closing()
            return
        if here is None or here.number != number:
            return
        self.open = here = here._replace(live=False)
        if outcome is None:
            more = self._consent and here.starts < self._most(here)
            if more and not self.closing:
                return
            outcome = ("error", "worker-lost")
        self._complete(outcome)

    def _complete(self, outcome: Told) -> None:
        here = self.open
        assert here is not None
        if here.outcome is not None:
            return
        for request in (*(w.request for w in here.waiters), *here.watchers):
            self._due[request] = outcome
        self.open = here._replace(outcome=outcome, watchers=())

    def unwanted(self) -> None:
        """Nobody waits, and the time for that is over."""
        here, self._in_vain = self.open, True
        if here is None or here.waiters:
            return
        if here.lost:
            self.open = here._replace(lost=())
            self._who_waits()
        else:
            self._close()

    def expired(self) -> None:
        """The oldest command need not be known any more."""
        ((_, tag), _), self.said = self.said[0], self.said[1:]
        if self.early == tag:
            self.early = None

    def closed(self, cancelling: bool) -> None:
        """The server begins no work any more, and ends what runs."""
        self.closing = True
        self._stop_if_closing()
        if cancelling and self.open is not None and self.open.live:
            self._complete(("cancelled", True))

    def _stop_if_closing(self) -> None:
        """Retain nothing that never ran."""
        here = self.open
        if not self.closing or here is None or here.live or here.held or here.outcome:
            return
        self._complete(("error", "worker-lost" if here.starts else "stopping"))
        if not here.started:
            self.open = None

    # -- who waits ----------------------------------------------------------------

    def _return(self, caller: bytes, session: bytes) -> bool:
        """A caller is in this session now: what it asked in others counts no more."""
        here = self.open
        assert here is not None
        old = [w for w in here.waiters if w.caller == caller and w.request[0] != session]
        moved = () if here.outcome is not None else tuple(w.request for w in old)
        self.open = here._replace(
            lost=tuple(other for other in here.lost if other != caller),
            waiters=tuple(w for w in here.waiters if w not in old),
            watchers=(*here.watchers, *moved),
        )
        return bool(old) or caller in here.lost

    def _take_away(self, request: Request) -> bool:
        here = self.open
        assert here is not None
        rest = tuple(w for w in here.waiters if w.request != request)
        self.open = here._replace(
            waiters=rest, watchers=tuple(w for w in here.watchers if w != request)
        )
        return len(rest) < len(here.waiters)

    def _take_away_all(self, session: bytes) -> bool:
        if self.open is None:
            return False
        requests = [w.request for w in self.open.waiters] + list(self.open.watchers)
        mine = [request for request in requests if request[0] == session]
        counted = [self._take_away(request) for request in mine]  # all of them
        return any(counted)

    def _who_waits(self) -> None:
        """Nobody counts any more, and there is no outcome: that is the end."""
        here = self.open
        if here is not None and not (here.waiters or here.lost or here.outcome):
            self._close()

    def _close(self) -> None:
        here, self.open = self.open, None
        assert here is not None
        if here.outcome is None:
            for request in (*(w.request for w in here.waiters), *here.watchers):
                self._due[request] = ("cancelled", here.started)
        if here.live:
            self.ending = here.number

    # -- whether the server does the same -------------------------------------------

    def told(self, to: Any, what: Told) -> None:
        """A caller is told something."""
        if self.heard.setdefault(to, what) != what:
            self.violation("G3", f"{to} is told {self.heard[to]}, and {what}")

    def settle(self, live: dict[int, bool], free: bool) -> None:
        """The step is over: ``live`` are the generations that run, and whether they are to
        stop; ``free``: a worker waits for work."""
        for to in {**self._due, **self.heard}:
            due, told = self._due.get(to), self.heard.get(to)
            if due != told:
                self.violation(_breaks(due, told), f"{to} is due {due}, and is told {told}")
        here = self.open
        for number, stopped in live.items():
            wanted = here is not None and here.number == number and here.outcome is None
            if wanted == stopped:
                what = "is stopped, and wanted" if wanted else "goes on, and nobody wants it"
                guarantee = "G8" if self._in_vain and not stopped else "G7"
                self.violation(guarantee, f"generation {number} {what}")
        if here is None or self.closing or not free:
            return
        if not (here.held or here.live or here.outcome):
            self.violation("G9", f"generation {here.number} waits, and a worker is free")


def _breaks(due: Told | None, told: Told | None) -> str:
    """The guarantee that is broken by telling this in the place of that."""
    kinds = {each[0] for each in (due, told) if each is not None}
    codes = {each[1] for each in (due, told) if each is not None and each[0] == "refused"}
    if "key-conflict" in codes:
        return "G6"
    if due == ("refused", "unknown-key"):
        return "G2"
    if told == ("refused", "unknown-key"):
        return "G4"
    if kinds & {"cancelled", "said", "left"}:
        return "G7"
    return "G9" if told is None else "G3"


OF_KEYS = {
    "_consent": Rule("the same in every state"),
    "_allowance": Rule("the same in every state"),
}
