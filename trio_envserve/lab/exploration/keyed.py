"""The judge of one key, and of the journal under it.

It is a model of one key, written from the rules (``docs/protocol.md``), and knows
nothing of the table of the core: for each step it says who is to be told what, which generation
may run, and what is to be stopped; anything else is a violation. With a journal, what it says
that somebody is told is told once the records that were written until then are safe, and no
earlier, but for an outcome that was safe before; an execution is sent once the record of its
start is. After each step the records say what the model says. So when the server falls, what is
left of them is what the model goes on from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

from ...core import messages
from ...core.calls import grant
from ...core.journal import (
    KINDS,
    Closed,
    Commanded,
    Completed,
    Joined,
    Opened,
    Started,
    record_of,
)
from ...core.key_records import KeyAct, Tag
from ...retrylab import Event, Judge, Rule, Violation
from ...retrylab.system import SETTLED
from .calls import Request
from .world import MOST_BYTES, Row, Told, compacted, told_of

# -- the judge -----------------------------------------------------------------------------------


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
        self.opened, self.open, self.ending, self.said, self.closing = past

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
        return KeyPast(self.opened, self.open, self.ending, self.said, self.closing)

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

    def spawned(self, life: int, worker: bytes) -> None:
        """A worker is there."""
        self.serves = True

    def doomed(self, life: int, worker: bytes) -> None:
        """A worker is to end, or has ended."""
        self.serves = False

    died = doomed

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
        """Its deadline has passed: its caller goes on counting."""
        self._counts_on(lambda waiting: waiting.request == request)
        started = self.left(request)
        self._due[request] = ("error", "no-answer" if started else "never-started")

    def lost(self, session: bytes) -> None:
        """The lease of a session has ended: its waiters go on counting."""
        self._counts_on(lambda waiting: waiting.request[0] == session)
        if self._take_away_all(session):
            self._who_waits()

    def _counts_on(self, is_theirs: Callable[[Waiting], bool]) -> None:
        """The callers of these count without them."""
        here = self.open
        if here is None:
            return
        callers = {*here.lost, *(w.caller for w in here.waiters if is_theirs(w))}
        self.open = here._replace(lost=tuple(sorted(callers)))

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
        self.said = self.said[1:]

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


Due: TypeAlias = dict[Any, Told]

_STARTED, _COMPLETED, _CLOSED = map(KINDS.index, (Started, Completed, Closed))


def past_of(rows: Iterable[Row]) -> KeyPast:
    """The past of the key, as its journal has it."""
    past, here = KeyPast(), None
    for record in map(record_of, rows):
        match record:
            case Opened(number):
                here = Open(number, bytes(record.body), record.earlier, held=False, left=True)
                here = here._replace(callers=(record.caller,), counted=True)
                past = past._replace(opened=number + 1)
            case Joined(_, caller) if here is not None:
                here = here._replace(callers=tuple(sorted({*here.callers, caller})))
            case Started() if here is not None:
                here = here._replace(earlier=here.earlier + 1)
            case Completed(_, (header, payload)) if here is not None:
                outcome = messages.decode(header, most_bytes=MOST_BYTES)
                assert isinstance(outcome, messages.Outcome)
                here = here._replace(outcome=told_of(outcome, bytes(payload)), left=False)
            case Closed():
                here = None
            case Commanded():
                act = int(KeyAct.FORGET if record.forget else KeyAct.CANCEL)
                answer = "said", record.generation, record.started, record.finished
                past = past._replace(said=(*past.said, ((act, record.tag), answer)))
    if here is not None:
        here = here._replace(lost=tuple(sorted(here.callers)))
    return past._replace(open=here)


class Group(NamedTuple):
    """Records that were written together, and are not safe."""

    rows: tuple[Row, ...]
    due: tuple[tuple[Any, Told], ...]
    """The answers to callers once they are."""


class DiskJudge(KeyJudge):
    """The same with what is written and not safe."""

    def __init__(self, consent: bool, allowance: int) -> None:
        super().__init__(consent, allowance)
        self.safe: tuple[Row, ...] = ()
        self.written: list[Group] = []

    def _forget_step(self) -> None:
        super()._forget_step()
        self._new: list[Row] = []
        """The records that this step has written."""
        self._safe_now: Due = {}
        """The answers to callers that are due since groups have become safe in this step."""
        self._if_it_ends: set[Any] = set()
        """The callers that are told at once, unless this step ends a generation."""

    # -- the disk -------------------------------------------------------------------

    def recorded(self, rows: Sequence[Row]) -> None:
        """The server has these records written."""
        for kind, number, *_ in rows:
            if kind == _STARTED:
                self._start(number)
        self._new += rows

    def _start(self, number: int) -> None:
        here = self.open
        super().started(number, b"" if here is None else here.input, ())
        if self.open is not None and self.open.number == number:
            self.open = self.open._replace(unsent=True)

    def synced(self, groups: int) -> None:
        """Number of the groups, from the first on, that are safe now."""
        safe, self.written = self.written[:groups], self.written[groups:]
        for group in safe:
            self._safe_now.update(group.due)
        rows = [row for group in safe for row in group.rows]
        self.safe = compacted((*self.safe, *rows))

    def fell(self, kept: int) -> None:
        """The server has fallen, and so many groups that were not safe are there."""
        rows = [row for group in self.written[:kept] for row in group.rows]
        self.safe, self.written = compacted((*self.safe, *rows)), []
        self._become(past_of(self.safe))
        self.runs, self.serves = {}, False

    def worker_lost(self) -> None:
        """Executions of the worker are over, the one that was not sent, too."""
        super().worker_lost()
        self.never_sent()

    def went_on(self) -> None:
        """A worker has said what its environment consents to: what was left goes on, or ends."""
        here = self.open
        if here is None or not here.left:
            return
        self.open = here._replace(left=False)
        may = self._consent and here.earlier < self._allowance
        if here.earlier and not may:
            self._complete(("error", "worker-lost"))

    # -- what callers do --------------------------------------------------------------

    def asked(
        self, request: Request, caller: bytes, input: bytes, earlier: int = 0, gone: bool = True
    ) -> None:
        """And its caller counts after a fall, too, until it has an outcome."""
        super().asked(request, caller, input, earlier, gone)
        here = self.open
        if here is not None and here.outcome is None and here.input == input:
            self.open = here._replace(callers=tuple(sorted({*here.callers, caller})))

    def cancelled(self, request: Request) -> None:
        """It is told so once it is safe what has ended by that, or before."""
        if not self._is_decided(request):
            self._if_it_ends.add(("cancel", request))
        super().cancelled(request)
        self._forget((request,))

    def out_of_time(self, request: Request) -> None:
        """It is too late for a deadline when the answer waits for the journal."""
        if not self._is_decided(request):
            self._if_it_ends.add(request)
            super().out_of_time(request)

    def lost(self, session: bytes) -> None:
        """The lease of a session has ended, and nobody of it is told anything more."""
        super().lost(session)
        self._forget_session(session)

    def said_goodbye(self, session: bytes) -> None:
        """The same."""
        super().said_goodbye(session)
        self._forget_session(session)

    def _is_decided(self, request: Request) -> bool:
        """Whether what it is told waits for the journal."""
        to = {to for group in self.written for to, _ in group.due}
        return request in to or ("cancel", request) in to

    def _forget(self, requests: Iterable[Any]) -> None:
        """These are told nothing more."""
        gone = set(requests)
        self.written = [
            group._replace(due=tuple(each for each in group.due if each[0] not in gone))
            for group in self.written
        ]

    def _forget_session(self, session: bytes) -> None:
        to = {to for group in self.written for to, _ in group.due}
        self._forget(each for each in to if _request_of(each)[0] == session)

    # -- what becomes of the work ------------------------------------------------------

    def started(self, number: int, input: bytes, live: Iterable[int]) -> None:
        """An execution is sent: its start must be safe."""
        here = self.open
        unsafe = [row for group in self.written for row in group.rows]
        if (_STARTED, number) in (*unsafe, *self._new):
            self.violation("G11", f"generation {number} is sent before its start is safe")
        elif here is None or here.number != number or not here.unsent:
            self.violation("G11", f"generation {number} is sent, and no record says that it starts")
        else:
            self.open = here._replace(unsent=False)
        for other in live:
            self.violation("G1", f"generation {number} is sent, and {other} lives")

    def never_sent(self) -> None:
        """The worker for which an execution waited is dead."""
        here = self.open
        if here is not None and here.unsent:
            self.open = here._replace(unsent=False)
            self.ended(here.number, None)

    def _close(self) -> None:
        here = self.open
        if here is not None and here.unsent:  # what was not sent does not live
            self.open = here._replace(unsent=False, live=False)
        super()._close()

    # -- whether the server does the same -----------------------------------------------

    def settle(self, live: dict[int, bool], free: bool) -> None:
        """Have all that is due wait for the last group that was written."""
        ends = any(row[0] == _CLOSED for row in self._new)
        due, later = dict(self._safe_now), []
        known = self._safe_outcome()
        for to, told in self._due.items():
            at_once = told[0] == "refused" or told == known
            at_once |= to in self._if_it_ends and not ends
            if at_once or not (self._new or self.written):
                due[to] = told
            else:
                later.append((to, told))
        if self._new:
            self.written.append(Group(tuple(self._new), tuple(later)))
        elif later:
            last = self.written[-1]
            self.written[-1] = last._replace(due=(*last.due, *later))
        waits = {to for group in self.written for to, _ in group.due}
        for to in self.heard.keys() & waits - due.keys():
            due[to] = self.heard[to]
            self.violation("G11", f"{to} is told {due[to]} before that is safe")
        self._due = due
        super().settle(live, free)
        self._compare()

    def _safe_outcome(self) -> Told | None:
        here = self.open
        if here is None or here.outcome is None:
            return None
        is_safe = any(row[:2] == (_COMPLETED, here.number) for row in self.safe)
        return here.outcome if is_safe else None

    def _compare(self) -> None:
        """The records say what has happened."""
        unsafe = [row for group in self.written for row in group.rows]
        said, is_so = past_of((*self.safe, *unsafe)), self.past()
        if _known(said) != _known(is_so):
            self.violation("G11", f"the records say {_known(said)}, and it is {_known(is_so)}")


def _request_of(to: Any) -> Request:
    request: Request = to[1] if to[0] == "cancel" else to
    return request


def _known(past: KeyPast) -> tuple[int, tuple[Any, ...]]:
    """The facts that a journal must have."""
    here = past.open
    if here is None:
        return past.opened, ()
    executions = here.earlier + here.starts
    open_ = here.number, here.input, executions, here.outcome, here.callers
    return past.opened, open_
