"""The promises of keys with a journal: the model of one key, and the safe part of it.

Theory of operation
-------------------
The model (:class:`.keyed_judge.KeyJudge`) goes on as without a journal.  What it says that
somebody is told is told once the records that were written until then are safe, and no
earlier, but for an outcome that was safe before; an execution is sent once the record of its
start is.  After each step the records say what the model says.  So when the server falls,
what is left of them is what the model goes on from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from ...core import messages
from ...core.journal import (
    KINDS,
    Cancelled,
    Closed,
    Commanded,
    Completed,
    Joined,
    Opened,
    Started,
    record_of,
)
from ...core.key_records import KeyAct, Tag
from .judge import Request
from .keyed import MOST_BYTES, Row, Told, compacted, told_of
from .keyed_judge import KeyJudge, KeyPast, Open

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
            case Cancelled():
                past = past._replace(early=None)
            case Commanded():
                act = int(KeyAct.FORGET if record.forget else KeyAct.CANCEL)
                answer = "said", record.generation, record.started, record.finished
                past = past._replace(
                    said=(*past.said, ((act, record.tag), answer)),
                    early=record.tag if record.early else past.early,
                )
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


def _known(past: KeyPast) -> tuple[int, Tag | None, tuple[Any, ...]]:
    """The facts that a journal must have."""
    here = past.open
    if here is None:
        return past.opened, past.early, ()
    executions = here.earlier + here.starts
    open_ = here.number, here.input, executions, here.outcome, here.callers
    return past.opened, past.early, open_
