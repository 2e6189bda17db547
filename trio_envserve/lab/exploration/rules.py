"""The attributes of each class that its form leaves out or replaces, with reasons.

Nothing else is: an attribute without a rule is in the form with all that it holds.
A rule that is wrong makes two states one that are not, and the exploration blind to
one of them: ``tests/exploration/test_sameness.py`` looks for that.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from ...core.client import Call, Calls, ClientCore, ClientSession, ClientSessions, Pings, _Line
from ...core.executions import Announcements, Dispatches, Execution, Worker
from ...core.gate import Gate
from ...core.health import Link
from ...core.key_records import Payload
from ...core.pool import Life, Pool, Slot
from ...core.ranges import Ranges
from ...core.requests import RetainedOutcome
from ...core.router import Router
from ...core.scheduler import Scheduler
from ...core.sessions import Session, Sessions
from ...core.work import Answer, Ticket, Told, ToldByRouter, Work, Works
from ...core.worker import WorkerCore, _Held
from ...core.workforce import Workforce
from ...retrylab.values import Bag, Counted, Forms, Rule
from . import names
from .wire import Frames, Mail, WorkerMail, frames_form, mail_form, worker_mail_form

_CLOCK = "a clock reading; the explorer's clocks stand, and timers are due when it says so"
_PEOPLE = "for people and statistics; nothing is decided by it"
_CONSTANT = "the same in every state of a configuration"
_DERIVED = "follows from what is in the form"
MISSED = "decides only after how many beats a lost message is missed; none is lost here"


def _out(why: str, *fields: str) -> dict[str, Rule]:
    return dict.fromkeys(fields, Rule(why))


def _is_set(owner: Any, value: Any) -> bool:
    return value is not None


def _where(work: Work, execution: Execution | None) -> Any:
    return None if execution is None else (execution.worker.id, execution.number)


def _tickets(session: Session[Ticket], tickets: dict[int, Ticket]) -> Any:
    """In the order of their arrival, and whether a sync that answers the newest probe,
    and one that repeats it, would have their outcome sent again."""
    return tuple(
        (ticket, _is_sent_before(ticket, session.probe), _is_sent_before(ticket, 0))
        for ticket in tickets.values()
    )


def _is_sent_before(ticket: Ticket, probe: int) -> bool:
    return ticket.kept is not None and ticket.sent_probe < probe


def _work_of(ticket: Ticket, work: Work | None) -> Any:
    """A work that only this ticket can name has its form here."""
    return work if work is None or work.name is None else work.id


def _live_deadlines(router: Router, heap: Any) -> Any:
    return Bag(
        tuple(
            (session, sequence)
            for _, session, sequence in heap
            if (ticket := router._ticket(session, sequence)) is not None and ticket.kept is None
        )
    )


def _lines(scheduler: Scheduler[Work], lines: dict[bytes, dict[Work, None]]) -> Any:
    return tuple((session, tuple(each.id for each in line)) for session, line in lines.items())


def _numbers(owner: Works, works: dict[Any, Work]) -> Any:
    return tuple(work.number for work in works.values())


def _answer(answer: Answer) -> Any:
    """Who waits, and what for."""
    if isinstance(answer, Told):
        return "told", answer.ticket.id, answer.outcome
    if isinstance(answer, ToldByRouter):
        return "said", answer.ticket.id, answer.outcome(answer.ticket)
    return answer


def _unsafe(gate: Gate[Answer], unsafe: deque[tuple[int, Any, Answer, bool]]) -> Any:
    """How much is to be written before each answer, and before each dispatch that will be sent:
    workers do not see in which order clients are answered."""
    left = [(after - gate._journal.safe, answer) for after, _, answer, _ in unsafe]
    return (
        tuple((more, _answer(each)) for more, each in left if not isinstance(each, Execution)),
        tuple(
            (each.worker.id, each.number, more)
            for more, each in left
            if isinstance(each, Execution) and each.worker.live.get(each.number) is each
        ),
    )


def _calls(owner: ClientSession, calls: dict[int, Call]) -> Any:
    return tuple((sequence, call.number) for sequence, call in calls.items())


_JOURNAL = "in the form of the router"

RULES: dict[type, dict[str, Rule]] = {
    Router: {
        **_out("in the form of the works", "sessions"),
        **_out("in the form of the workforce", "dispatches"),
        **_out("follows from works and tickets; bounds are far", "accounts"),
        **_out("look at what is in the form, between steps", "_key_pages", "_running"),
        **_out(_PEOPLE, "_stacks", "_log_second", "_log_lines", "waits"),
        **_out(_CONSTANT, "limits", "wire", "_new_id"),
        **_out(_PEOPLE, "malformed"),
        **_out(_CLOCK, "clock"),
        **_out("empty between steps", "_is_late", "out"),
        **_out("in the form of the server of hosts", "hosts"),
        **_out("no execution makes a resource here", "resources"),
        **_out("what follows is taken in with the input", "followed"),
        **_out("a bound of memory: when to sweep the deadlines of what is gone", "_most"),
        "closing": Rule("its times are clock readings", lambda owner, it: it.stage),
        "starting": Rule("the text is for people", lambda owner, text: bool(text)),
        "journal": Rule(
            "how much of it is not safe; records only count on",
            lambda owner, journal: journal.appended - journal.safe,
        ),
        "_deadlines": Rule("those of what is answered or gone do nothing", _live_deadlines),
        "_limited": Rule(
            "until when is a clock reading",
            lambda owner, limited: Bag(tuple((e.worker.id, e.number) for _, _, e in limited)),
        ),
    },
    Works: {
        **_out(_CONSTANT, "limits", "keys", "_new_id", "_never_starts", "_warn"),
        **_out(_PEOPLE, "counters", "failures"),
        **_out("the router's", "accounts", "queue", "dispatches"),
        **_out("in the form of the dispatches", "environment"),
        **_out(_CLOCK, "clock"),
        **_out(_JOURNAL, "journal", "_closing"),
        **_out("as much as there may be, between steps", "budget"),
        **_out("empty between steps", "out", "_leaving", "_due", "_stopping", "_pages"),
        **_out("what is due ends in the step in which time passes", "_late"),
        **_out(_DERIVED, "commands_of"),
        **dict.fromkeys(
            ("open", "ending", "orphans", "retained"),
            Rule("in the form of the generations", _numbers),
        ),
        "_restored": Rule("in their order", lambda owner, left: tuple(w.number for w in left)),
        "commands": Rule(
            "when they were said is a clock reading; the explorer ends the oldest",
            lambda owner, commands: tuple(
                (command, answer) for command, (answer, _) in commands.items()
            ),
        ),
    },
    Gate: {
        **_out("the router's", "_journal", "_keys", "budget"),
        **_out("empty between steps: few wait", "_late"),
        **_out("in the form of what waits", "_decided", "_counted"),
        "_unsafe": Rule("after how much more of the journal", _unsafe),
    },
    Sessions: {
        **_out(_CONSTANT, "limits"),
        **_out(_DERIVED, "_by_nonce", "_opened"),
        **_out(_PEOPLE, "counters"),
        **_out("the router's", "_accounts"),
        **_out("says who makes room for whom; there is room for all", "_idle"),
        "_ended": Rule("a set", lambda owner, ended: Bag(tuple(ended))),
        "_unsettled": Rule("a set", lambda owner, ids: Bag(tuple(ids))),
        "known": Rule(
            "in the order in which they were heard, which only says whose lease ends first; "
            "the explorer ends any of them",
            lambda owner, sessions: Bag(tuple(sessions.values())),
        ),
    },
    Session: {
        **_out(_CLOCK, "seen_at"),
        **_out(_CONSTANT, "opener"),
        **_out(_DERIVED, "nonce"),
        "account": Rule("follows from works and tickets", lambda session, account: account.id),
        "route": Rule(
            "each connection has a route of its own",
            lambda session, route: Counted(
                "connection", names.client_of(route), names.connection_of(route)
            ),
        ),
        "connection": Rule(
            "compared with each other only",
            lambda session, number: Counted("connection", names.client_of(session.id), number),
        ),
        "number": Rule(
            "compared with others of its caller only",
            lambda session, number: Counted("session", names.client_of(session.id), number),
        ),
        "probe": Rule(
            "compared with each other only; 0 is before all",
            lambda session, number: number
            and Counted("probe", names.client_of(session.id), number),
        ),
        "tickets": Rule("with what their outcomes are compared by", _tickets),
    },
    Ticket: {
        **_out("it is listed under its session", "session"),
        **_out("only compared with its session's; see there", "sent_probe"),
        "work": Rule("that of a key is in the form of the works", _work_of),
    },
    Work: {
        **_out(_PEOPLE, "queued_s"),
        **_out(_CLOCK, "since_s", "opened_s"),
        **_out(_DERIVED, "weight"),
        **_out("in the form of these", "timed"),
        "account": Rule("follows from works and tickets", lambda work, account: account.id),
        "tickets": Rule(
            "in the form of their sessions",
            lambda work, tickets: tuple((each.id, each.counts) for each in tickets),
        ),
        "execution": Rule("in the form of its worker", _where),
    },
    RetainedOutcome: {
        **_out(_DERIVED, "size_bytes"),
        **_out("in the form of the outcome", "payload"),
        "outcome": Rule(
            "texts are for people", lambda kept, outcome: frames_form(kept.frames)
        ),
    },
    Payload: {
        **_out("in the form of the answers, and of the disk", "after"),
    },
    Scheduler: {
        "_lines": Rule("their works are in the form of these", _lines),
        "_paused": Rule(
            "no order among them", lambda owner, lines: Bag(_lines(owner, lines))
        ),
        "_suspects": Rule(
            "their works are in the form of these",
            lambda owner, lines: tuple((key, tuple(w.id for w in lines[key])) for key in lines),
        ),
    },
    Announcements: {
        **_out("the router's", "_accounts"),
        "lines": Rule(
            "their executions are in the form of their workers",
            lambda owner, lines: tuple((session, tuple(lines[session])) for session in lines),
        ),
    },
    Pool: {
        **_out(_CONSTANT, "limits", "_new_id", "_heartbeats"),
        **_out(_PEOPLE, "restarts", "broken_because"),
        **_out("nobody is waited for: spread_s is nothing here", "spread_until_s"),
        "slots": Rule("alike", lambda owner, slots: Bag(tuple(slots))),
        "lives": Rule(
            "each for itself", lambda owner, lives: Bag(tuple(lives.values()))
        ),
        "broken": Rule("the text is for people", lambda owner, text: bool(text)),
        **_out(_DERIVED, "_counts"),
    },
    Slot: {
        "start_at_s": Rule("a clock reading, or never", lambda slot, at_s: math.isinf(at_s)),
        **_out("says how long the next pause is, and all pauses are explored", "failures"),
        "index": Rule("its name", lambda slot, index: b"w%d" % index),
        "life": Rule("in the form of the pool", lambda slot, life: life and life.id),
    },
    Life: {
        **_out(_CLOCK, "born_s", "seen_at", "held_s", "left_s", "mute_s"),
        **_out(_CONSTANT, "heartbeats"),
        **_out(_DERIVED, "slot"),
        **_out(MISSED, "under_way"),
        **_out(_PEOPLE, "pid", "memory_bytes", "lag_s", "where", "held_by", "why", "told_broken"),
        "ready_s": Rule(_CLOCK, _is_set),
    },
    Workforce: {
        **_out(_CONSTANT, "limits", "header_bytes"),
        **_out(_PEOPLE, "fenced", "strays", "differences", "runs", "durations", "history"),
        **_out("holds what is in the form of the pool and of this", "turnover"),
        **_out("empty between steps", "out"),
        **_out("the router's", "pool", "announced"),
        **_out("without its limit nothing pauses", "pausing"),
    },
    Dispatches: {
        **_out(_PEOPLE, "_count"),
        **_out("empty between steps", "out"),
        **_out("the router's", "announced"),
        **_out("no execution makes a resource here", "resources"),
        **_out("in the form of the works", "_gate"),
    },
    Worker: {
        **_out(_CONSTANT, "capacity", "most"),
        **_out(_PEOPLE, "done", "failed", "holder", "held"),
        **_out(_DERIVED, "stopping"),
        **_out(MISSED, "unread", "unread_s"),
        **_out("fewer executions than it takes to be suspect", "results", "suspect", "resting"),
    },
    Execution: {
        **_out("it is listed under its worker", "worker"),
        **_out(_CLOCK, "dispatched_s"),
        **_out(_PEOPLE, "note", "serial"),
        "session": Rule("follows from works and tickets", lambda owner, account: account.id),
        "work": Rule("in the form of the works", lambda owner, work: work and work.id),
        "stop_s": Rule(_CLOCK, _is_set),
    },
    ClientCore: {
        **_out(_CONSTANT, "limits", "wire"),
        **_out(_CLOCK, "_scan_at_s"),
        **_out(_PEOPLE, "_refused_text"),
        **_out("nothing is malformed here", "_malformed"),
        **_out("empty between steps", "_out"),
        "_flush_at_s": Rule(_CLOCK, _is_set),
        "refusal": Rule(_PEOPLE, lambda core, info: info and info.code),
    },
    Pings: {
        **_out(_CONSTANT, "_limits", "_wire"),
        **_out(_CLOCK, "at_s"),
        **_out("says how long pauses are, and all are explored", "pause_s", "_most_pause_s"),
        **_out("only the pause depends on it", "_idle_at"),
        **_out("in the form of the client", "_sessions"),
        "connections": Rule(
            "only counts on",
            lambda pings, number: Counted("connection", pings.name, number),
        ),
        "probe": Rule(
            "only counts on", lambda pings, number: Counted("probe", pings.name, number)
        ),
        "_new_id": Rule("how many were drawn", lambda pings, source: source.drawn),
    },
    ClientSessions: {
        "opened": Rule("only whether there was one", lambda owner, count: bool(count)),
    },
    Calls: {
        **_out(_CONSTANT, "limits"),
        **_out(_PEOPLE, "retransmitted", "reissued"),
        "queue": Rule("in the form of the calls", lambda owner, calls: tuple(calls)),
        "held": Rule("in the lines of its accounts", lambda owner, calls: calls.lines),
        **_out(_DERIVED, "asking"),
        "live": Rule(
            "by number", lambda owner, calls: tuple(calls[n] for n in sorted(calls))
        ),
    },
    _Line: {
        "calls": Rule("in the form of the calls", lambda owner, calls: tuple(calls)),
        "burst": Rule(
            "more than there are calls is all", lambda owner, burst: min(burst, 8)
        ),
    },
    Call: {
        **_out(_CLOCK, "asked_s", "held_until_s", "cancel_until_s"),
        **_out("a function of its id, number and options", "request"),
        **_out("nothing is malformed here", "refusals_before"),
        "session": Rule("in the form of the client", lambda call, of: of and of.id),
        "sent_probe": Rule(
            "compared with answers only, once it was sent",
            lambda call, number: call.session
            and Counted("probe", names.client_of(call.session.id), number),
        ),
    },
    ClientSession: {
        **_out(_CONSTANT, "window", "message_bytes", "most_waiting_for_keys"),
        **_out(_DERIVED, "epoch", "waiting_for_keys"),
        "calls": Rule("by number", _calls),
        "unflushed": Rule("a set", lambda owner, numbers: tuple(sorted(numbers))),
        "lost_s": Rule(_CLOCK, _is_set),
    },
    Link: {
        **_out(_CONSTANT, "limits", "born_s"),
        **_out(_CLOCK, "answered_s", "asked_s", "unready_s"),
        **_out(_PEOPLE, "trouble"),
        "server": Rule(
            "all but its status is for people", lambda owner, record: record.get("status")
        ),
    },
    WorkerCore: {
        **_out(_CONSTANT, "limits", "wire", "save_bytes"),
        **_out(_DERIVED, "held_bytes"),
        **_out(_PEOPLE, "fenced", "malformed", "_notes"),
    },
    _Held: {
        **_out("nothing is parked here", "held_bytes"),
        "message": Rule("as frames", lambda held, message: frames_form(message.frames)),
        **_out("a function of the message", "announcement"),
    },
}  # fmt: skip
"""The attributes that are left out of the form of each class, or replaced, and why."""

FORMS: Forms = {
    **RULES,
    Ranges: lambda ranges: tuple(ranges.flat()),
    Frames: frames_form,
    Mail: mail_form,
    WorkerMail: worker_mail_form,
}
