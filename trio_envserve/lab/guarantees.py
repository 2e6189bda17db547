"""The guarantees end to end, judged from the events of a run of real processes.

Theory of operation
-------------------
The processes of a run write to one file, each event in one ``write`` (:class:`.logs.EventLog`).
So the order of the lines is the order in which they were written, whoever wrote them: a line
"asked" comes before all that follows from it.  No server is asked, and nothing here knows how
one works, but for the allowance that a session is granted.  The events:

``asked``, ``told``, ``withdrawn``
    by a client, of a ``call`` for the request.  Each call has one of the latter two, but for
    those of a client that was killed.
``linked``
    a connection of the client began or ended.
``began``, ``ended``
    by a process of the environment, of an ``execution`` of the request.  ``predecessor``: the
    kernel's word on the process that had begun it before: ``none``, ``dead``, ``alive``.
``died``
    that process has ended, says the kernel; it lived at ``alive_s``.
``harmed``
    by the killer: what was done to the actor (``how``, ``of``: which kind of process,
    ``since_s``, ``until_s``).
``serving``
    a server or a host is there.
``phase``
    of the run: ``begin`` (what is wanted), ``rest`` (nothing should run any more), ``closing``,
    ``end``.

A further execution needs its caller's consent, what is left of its allowance, and *proof* that
the process before is dead.  That is judged four times: the kernel's word at its begin; another
process; no line of the earlier process behind it; and its death was seen, and not its life
later.  None of these can accuse an innocent: none asks *when* a death happened, which nobody
can know exactly.

"It may have run" is true if its caller's limit passed, or if processes were harmed during the
call, as many as use up what it had allowed (:class:`Harms`).  The environment itself never
fails, so no other error has an excuse.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..core.limits import ClientLimits
from ..core.requests import grant
from ..retrylab import Event, Judge, Violation, judge_log, read_log

DEFAULT_EXECUTIONS = ClientLimits().max_executions
"""The allowance of a call that consents to a further execution and does not say to how many."""

NOTICE_S = 1.0
"""Time after a worker's death in which a running server may still give it a rollout."""

UNSAID: Final = frozenset({"unknown-key", "server-lost", "no-answer"})
"""Codes by which a client says that it does not know the outcome; all others are final."""

_HOST: Final = re.compile(r"@([\w-]+)")


class LoggedCall(NamedTuple):
    """A call of a client."""

    at_s: float
    request: str
    client: str
    allowed: int
    """Executions that it consents to."""
    limited: bool
    """Whether it has a time limit."""
    keyed: bool

    @classmethod
    def of(cls, event: Event, what: Mapping[str, Any]) -> LoggedCall:
        """From its event."""
        consents = what.get("rerun") is True
        allowed = (what.get("max_executions") or DEFAULT_EXECUTIONS) if consents else 1
        limited = what.get("timeout_s") is not None
        keyed = bool(what.get("keyed"))
        return cls(event.at_s, event.request, event.actor, allowed, limited, keyed)


@dataclasses.dataclass(slots=True)
class RequestHistory:
    """All that is known of a request."""

    allowed: int
    asked_s: float = 0.0
    """When it was asked for first."""
    starts: list[str] = dataclasses.field(default_factory=list)
    """Processes that began it, in order."""
    begun_s: float = math.inf
    """When the first of them did."""
    over: set[str] = dataclasses.field(default_factory=set)
    """Executions that came to a result."""
    said: str = ""
    """Digest of its outcome; empty: nobody was told."""
    final: bool = False
    """Whether nothing of it may begin after that: it has its result, or a key."""
    first_told: int = -1
    """Number of the event that told it first."""
    answered: bool = False
    """Whether its caller has an answer, and nobody else can ask: it has no key."""
    never: bool = False
    """Whether a caller was told that it did not run."""


class UnexplainedError(NamedTuple):
    """An error that says that it may have run, to be explained when all is known."""

    at_s: float
    call: LoggedCall
    code: str
    message: str
    begun_s: float
    """When it had begun first; infinite if it had not, by then."""


class CallerGuarantees(Judge):
    """What a caller may rely on: once, by consent and proof further; one true outcome; nothing
    lost, nothing that goes on."""

    def __init__(self) -> None:
        self.number = 0
        """Number of the event."""
        self.work: dict[str, RequestHistory] = {}
        self.calls: dict[str, tuple[int, LoggedCall]] = {}
        """Calls without an end, with the number of their event."""
        self.running: defaultdict[str, dict[str, str]] = defaultdict(dict)
        """By process: its executions, with their requests."""
        self.replaced: dict[str, str] = {}
        """Processes that must be dead, with a request that was begun elsewhere since."""
        self.unproven: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
        """By process that is not proven dead yet: times and requests of further executions."""
        self.harms = Harms()
        self.told: list[UnexplainedError] = []
        self.resting = False
        self.over = False
        """Whether the run has come to its end."""

    def see(self, event: Event) -> Iterator[Violation]:
        """Violations that an event shows."""
        self.number += 1
        what = dict(event.what or ())
        self.harms.see(event, what)
        match event.kind:
            case "asked":
                call = LoggedCall.of(event, what)
                self.work.setdefault(event.request, RequestHistory(call.allowed, event.at_s))
                self.calls[what["call"]] = self.number, call
            case "told":
                yield from self._told(event, what)
            case "withdrawn":
                self.calls.pop(what["call"], None)
            case "began":
                yield from self._began(event, what)
            case "ended":
                yield from self._line_of(event)
                begun = self.running[event.actor].pop(what["execution"], None) == event.request
                if begun and what["how"] == "result":
                    self.work[event.request].over.add(what["execution"])
            case "died":
                self.running.pop(event.actor, None)
                for at_s, request in self.unproven.pop(event.actor, ()):
                    if what["alive_s"] > at_s:
                        yield self._too_early(event, request)
            case "harmed":
                yield from self._harmed(event, what)
            case "phase":
                yield from self._phase(event, what)

    # -- the environment -----------------------------------------------------------

    def _began(self, event: Event, what: Mapping[str, Any]) -> Iterator[Violation]:
        yield from self._line_of(event)
        request, process = event.request, event.actor
        work = self.work.get(request)
        if work is None:
            work = self.work[request] = RequestHistory(1)
            if not what.get("unasked"):
                yield event.breaks("G2", f"{request} ran, and nobody had asked for it")
        if work.final:
            yield event.breaks("G3", f"{request} began after its outcome was told")
        if work.never:
            yield event.breaks("G9", f"{request} began, and a caller was told that it did not run")
        if self.resting and not what.get("unasked"):
            yield event.breaks("G7", f"{request} began at rest")
        if work.starts:
            yield from self._again(event, what, work)
        else:
            work.begun_s = event.at_s
        work.starts.append(process)
        if not what.get("unasked"):
            self.running[process][what["execution"]] = request

    def _again(
        self, event: Event, what: Mapping[str, Any], work: RequestHistory
    ) -> Iterator[Violation]:
        before, request = work.starts[-1], event.request
        if work.allowed == 1:
            yield event.breaks("G2", f"{request} began again without consent")
        elif work.answered:
            yield event.breaks("G2", f"{request} began again after its caller had its answer")
        elif len(work.starts) == work.allowed:
            text = f"{request} began more often than the {work.allowed} times that were allowed"
            yield event.breaks("G2", text)
        if what["predecessor"] != "dead" or before == event.actor:
            yield self._too_early(event, request)
            return
        self.replaced[before] = request
        if before not in self.harms.deaths:
            self.unproven[before].append((event.at_s, request))
        elif self.harms.deaths[before][0] > event.at_s:
            yield self._too_early(event, request)

    def _line_of(self, event: Event) -> Iterator[Violation]:
        if event.actor in self.replaced:
            yield self._too_early(event, self.replaced.pop(event.actor))

    def _too_early(self, event: Event, request: str) -> Violation:
        text = f"{request} began again before the process before was proven dead"
        return Violation("G1", event.at_s, text, request)

    # -- the callers ---------------------------------------------------------------

    def _told(self, event: Event, what: Mapping[str, Any]) -> Iterator[Violation]:
        number, call = self.calls.pop(what["call"], (0, None))
        if call is None:
            yield event.breaks("G3", f"{event.request} was told to a call that had its end")
            return
        work, code = self.work[call.request], what["code"]
        work.answered = not call.keyed
        if code == "unknown-key" and 0 <= work.first_told < number:
            yield event.breaks("G4", f"{event.request} was unknown after it had been told")
        if code in UNSAID:
            pass
        elif not work.said:
            work.said, work.first_told = what["said"], self.number
            work.final = what["ok"] or call.keyed
        elif work.said != what["said"]:
            yield event.breaks("G3", f"{event.request} was told in two ways")
        if why := self._untrue(event, what, call, work):
            yield event.breaks("G3" if what["ok"] else "G9", f"{event.request}: {why}")

    def _untrue(
        self, event: Event, what: Mapping[str, Any], call: LoggedCall, work: RequestHistory
    ) -> str:
        """The untruth; the empty string if what was told is true, as far as is known yet."""
        if what["ok"]:
            right = what["right"] and what["execution"] in work.over
            return "" if right else "the result is that of no execution of it that was over"
        match what["verdict"]:
            case "DID_NOT_RUN":
                work.never = True
                if work.starts:
                    return "its caller was told that it did not run, and it ran"
                return "" if call.limited else "it had no limit, and would have been taken later"
            case "RAN_AND_FAILED":
                if not work.starts:
                    return "its caller was told that it ran, and it had not begun"
                known = call.limited and what["code"] == "deadline"
                return "" if known else f"{what['code']}: nothing fails in this environment"
        if not call.keyed or work.first_told in (-1, self.number):  # else it is told again
            # What is told under a key is of all that happened since it was asked for first.
            asked = call._replace(at_s=work.asked_s) if call.keyed else call
            message = what["message"] or ""
            self.told.append(
                UnexplainedError(event.at_s, asked, what["code"], message, work.begun_s)
            )
        return ""

    # -- the run -------------------------------------------------------------------

    def _harmed(self, event: Event, what: Mapping[str, Any]) -> Iterator[Violation]:
        match what["how"]:
            case "ended by itself":
                yield event.breaks("G10", f"the {event.actor} ended by itself")
            case "survived":
                yield event.breaks("G9", f"{event.actor} was stopped for good, and not killed")

    def _phase(self, event: Event, what: Mapping[str, Any]) -> Iterator[Violation]:
        match event.actor:
            case "rest":
                self.resting = True
                for requests in self.running.values():
                    for request in requests.values():
                        yield event.breaks("G7", f"{request} still ran at rest")
            case "hung":
                yield event.breaks("G9", f"the {what['phase']} did not come to its end in time")
            case "journal":
                for problem in what["problems"]:
                    yield event.breaks("G11", f"the journal: {problem}")
            case "end":
                self.over = True

    def rest(self, at_s: float) -> Iterator[Violation]:
        """Violations by what never happened, and by what nothing explains."""
        for process, again in self.unproven.items():
            for _, request in again:
                text = f"{request} began again, and process {process} was never seen dead"
                yield Violation("G1", at_s, text, request)
        if self.over:
            for _, call in self.calls.values():
                if call.client not in self.harms.clients:
                    yield Violation("G9", at_s, f"{call.request} has no answer", call.request)
        for told in self.harms.unexplained(self.told):
            text = f"{told.call.request}: {told.code}, and nothing was harmed that explains it"
            yield Violation("G9", told.at_s, text, told.call.request)
        for process in self.harms.own_deaths():
            yield Violation("G10", at_s, f"process {process} ended, and nobody had harmed it")


# -- what was harmed ---------------------------------------------------------------------


class Harm(NamedTuple):
    """A process that was lost, so that one execution of a call may have been lost with it."""

    begin_s: float
    """Last moment at which it may have lived."""
    end_s: float
    """Last moment at which its server may not have known: it may still have been given work."""
    host: str = ""
    """Name of the host that was lost; empty: any may have been."""


class Harms:
    """Collects what was harmed, and which processes died."""

    def __init__(self) -> None:
        self.deaths: dict[str, tuple[float, float, int]] = {}
        """By process of the environment: when it was last seen alive, and dead; and its id."""
        self.began_s: dict[str, float] = {}
        """By process: when it wrote its first line."""
        self.killed: dict[int, tuple[float, float]] = {}
        """By id: workers that were killed, or stopped for good and then killed."""
        self.stopped: set[int] = set()
        """Ids of workers that were stopped."""
        self.servers: list[Harm] = []
        self.hosts: list[Harm] = []
        """Those that were killed, and those that the router lost, by name."""
        self.stood: list[tuple[float, float]] = []
        """When a server or a host stood still, or a host was gone."""
        self.gone_s: float | None = None
        """When the host was killed after which none has joined yet."""
        self.closing_s = math.inf
        self.clients: set[str] = set()
        """Those that were killed."""
        self.linked_s: defaultdict[str, list[float]] = defaultdict(list)

    def see(self, event: Event, what: Mapping[str, Any]) -> None:
        """Take in an event."""
        at_s, since_s = event.at_s, what.get("since_s", -math.inf)
        match event.kind, what.get("of"), what.get("how"):
            case "began" | "ended", _, _:
                self.began_s.setdefault(event.actor, at_s)
            case "died", _, _:
                self.deaths[event.actor] = what["alive_s"], at_s, what["pid"]
            case "linked", _, _:
                self.linked_s[event.actor].append(at_s)
            case "serving", "host", _ if self.gone_s is not None:
                # It says to its server which workers are dead.
                self.stood.append((self.gone_s, at_s))
                self.gone_s = None
            case "phase", _, _ if event.actor == "closing":
                self.closing_s = at_s
            case "harmed", "worker", "kill" | "ended":
                self.killed[what["pid"]] = since_s, at_s
            case "harmed", "worker", "stop" | "freeze":
                self.stopped.add(what["pid"])
            case "harmed", "client", "kill":
                self.clients.add(event.actor)
            case "harmed", "server", "kill":
                self.servers.append(Harm(since_s, at_s))
            case "harmed", "host", "kill":
                self.hosts.append(Harm(since_s, at_s))
                self.gone_s = since_s
            case "harmed", "server" | "host", "stop":
                self.stood.append((since_s, since_s + what["lasts_s"]))
            case "harmed", "host", "lost":
                self.hosts.append(Harm(-math.inf, math.inf, event.actor))

    def own_deaths(self) -> list[str]:
        """Processes of the environment that died, and were not harmed, nor those above them."""
        if any(harm.host for harm in self.hosts):
            return []  # a host that the router loses kills its workers
        above_s = [harm.begin_s for harm in (*self.servers, *self.hosts)]
        return [
            process for process, (_, dead_s, pid) in self.deaths.items()
            if dead_s < self.closing_s and pid not in self.killed and pid not in self.stopped
            and not any(self.began_s.get(process, 0.0) <= each_s <= dead_s for each_s in above_s)
        ]  # fmt: skip

    def unexplained(self, told: Iterable[UnexplainedError]) -> Iterator[UnexplainedError]:
        """Those that nothing explains.  The death of a worker with its server or host is none of
        its own."""
        workers = dict(self.killed)
        for alive_s, dead_s, pid in self.deaths.values():
            if pid in self.killed or pid in self.stopped:
                since_s, until_s = workers.get(pid, (alive_s, dead_s))
                workers[pid] = min(since_s, alive_s), max(until_s, dead_s)
        found = [*(Harm(*each) for each in workers.values()), *self.hosts]
        gone = [] if self.gone_s is None else [(self.gone_s, math.inf)]
        stood = sorted([*self.stood, *gone])
        known = [each._replace(end_s=_known_s(each.end_s, stood)) for each in found]
        self.servers.sort()
        yield from (each for each in told if not self._explain(each, known))

    def _explain(self, told: UnexplainedError, known: list[Harm]) -> bool:
        """Whether "it may have run" is what the caller had to be told.

        Without consent one harm during the call is enough: of a worker for ``worker-lost``,
        of a server for ``server-lost``.  With it the call goes on, so its allowance must be
        used up, by what each of its sessions was granted
        (:func:`~trio_envserve.core.requests.grant`).  (Or its limit passes while it waits.)
        A call with a key survives its server, whose workers die with it.  But of one that the
        server had not written down the next one knows by its caller only, as without a key.
        """
        call, code = told.call, told.code
        if code in UNSAID and call.keyed:
            return True
        if code in ("no-answer", "deadline"):
            return call.limited
        workers, servers = _during(known, told), _during(self.servers, told)
        if code == "worker-lost" and call.keyed:
            # Or it was given to a worker that was dead, and not known to be.
            earlier = any(harm.end_s < call.at_s for harm in (*known, *self.servers))
            harms = workers + servers + (earlier and told.begun_s == math.inf)
            unwritten = [harm for harm in self.servers if harm.begin_s <= told.begun_s]
            return any(
                harms - lost >= grant(left)
                for lost, left in enumerate(_left_of(call.allowed, _during(unwritten, told)))
            )
        servers += self._unnoticed(call)
        if code == "worker-lost":
            named = _HOST.search(told.message)
            if named and any(harm.host == named.group(1) for harm in known):
                return True
            return workers >= (1 if servers or call.limited else grant(call.allowed))
        if code == "server-lost":
            return servers >= (1 if call.limited else _sessions_for(call.allowed))
        return False

    def _unnoticed(self, call: LoggedCall) -> bool:
        """Whether the client could not know, when it asked, of the last server's loss: no
        connection of it has ended or begun since."""
        before = [harm for harm in self.servers if harm.begin_s <= call.at_s]
        if not before or before[-1].end_s >= call.at_s:
            return False  # there was none, or it happened just then
        linked_s = self.linked_s.get(call.client, ())
        return not any(before[-1].end_s < each_s <= call.at_s for each_s in linked_s)


def _during(harms: Iterable[Harm], told: UnexplainedError) -> int:
    """Number of those that may have happened, or become known, during a call."""
    return sum(
        harm.begin_s <= told.at_s and harm.end_s >= told.call.at_s and not harm.host
        for harm in harms
    )


def _sessions_for(allowed: int) -> int:
    """Number of sessions that must be lost until nothing is left of the allowance."""
    return len([*_left_of(allowed)])


def _left_of(allowed: int, most: float = math.inf) -> Iterator[int]:
    """The allowance that is left when none, one, … of so many sessions are lost, down to the last
    that leaves something."""
    lost = 0
    while allowed > 0 and lost <= most:
        yield allowed
        allowed, lost = allowed - grant(allowed), lost + 1


def _known_s(dead_s: float, stood: list[tuple[float, float]]) -> float:
    """Until when a server may not have known of a death: it may have stood still, too, or the
    host that has to say so."""
    until_s = dead_s
    for begin_s, end_s in stood:
        if begin_s <= until_s <= end_s:
            until_s = end_s
    return until_s + NOTICE_S


# -- what is counted ----------------------------------------------------------------------


class Counting(Judge):
    """A judge that has figures for people, too."""

    def figures(self) -> dict[str, Any]:
        """Figures by name."""
        raise NotImplementedError


class EventCounts(Counting):
    """Counts, by name.

    The names are ``asked``, ``withdrawn``, ``result`` and the codes of errors, ``told``
    (requests with an outcome), ``began``, ``began again``, ``died``, ``kills``, and each harm by
    the kind of its victim: ``worker kill``.
    """

    def __init__(self) -> None:
        self.counts = Counter[str]()
        self.wants: list[dict[str, int]] = []
        """Those of each run: of one."""
        self.begun: set[str] = set()
        self.told: set[str] = set()
        self.span_s = (math.inf, 0.0)
        self.over = False

    def see(self, event: Event) -> None:
        """Count an event."""
        what = dict(event.what or ())
        self.span_s = min(self.span_s[0], event.at_s), max(self.span_s[1], event.at_s)
        match event.kind:
            case "asked" | "withdrawn" | "died":
                self.counts[event.kind] += 1
            case "told":
                self.counts["result" if what["ok"] else what["code"]] += 1
                if what["code"] not in UNSAID and event.request not in self.told:
                    self.told.add(event.request)
                    self.counts["told"] += 1
            case "began":
                self.counts["began"] += 1
                self.counts["began again"] += event.request in self.begun
                self.begun.add(event.request)
            case "harmed":
                self.counts[f"{what['of']} {what['how']}"] += 1
                self.counts["kills"] += what["how"] == "kill"
            case "phase" if event.actor == "begin":
                self.wants.append(dict(what["wants"]))
            case "phase" if event.actor == "end":
                self.over = True

    def figures(self) -> dict[str, Any]:
        """The counts, and the seconds from the first event to the last."""
        span_s = max(0.0, self.span_s[1] - self.span_s[0])
        return {**dict(sorted(self.counts.items())), "seconds": round(span_s, 1)}


def judge(log: Path, *more: Counting) -> dict[str, Any]:
    """Judge a log: ``ok``, the ``problems`` in words, and figures.

    A run that has no end, or has less of something than it wants, shows nothing: a problem.

    Args:
        log: The file.
        more: Further judges, new ones.
    """
    made: list[Judge] = [CallerGuarantees(), tally := EventCounts(), *more]
    try:
        with log.open() as lines:
            found = judge_log(map(_as_made, made), read_log(lines))
    except (OSError, ValueError, KeyError) as error:
        return {"ok": False, "problems": [f"the log cannot be read: {error!r}"]}
    figures = {name: value for each in (tally, *more) for name, value in each.figures().items()}
    found += [Violation("shown", tally.span_s[1], text) for text in _too_little(tally, figures)]
    return {"ok": not found, "problems": found, **figures}


def _too_little(tally: EventCounts, figures: Mapping[str, Any]) -> Iterator[str]:
    if len(tally.wants) != 1 or not tally.over:
        yield "this is no run from its begin to its end"
        return
    for name, least in tally.wants[0].items():
        if figures.get(name, 0) < least:
            yield f"{figures.get(name, 0)} {name}, and {least} are wanted: nothing is shown of it"


def _as_made(judge: Judge) -> Callable[[], Judge]:
    return lambda: judge
