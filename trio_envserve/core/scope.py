"""Resources: things that executions make outside of their processes, and the workers that destroy
them.

Theory of operation
-------------------
An execution creates something that outlives its process, such as a sandbox.  First its worker
states the intent (:class:`~.messages.ResourceIntended`), with a reference to the function that
destroys it.  The router enters the resource and answers with a name that is unique for ever.  Only
then is the resource created, and its handle stated.

A resource has at most one *holder*, and only that may destroy it: first the worker of its
execution, later a worker to which the router gives it as a *cleaning*.  The resource loses its
holder when that states that it has *left* it, when the execution has ended by report, or when the
holder is proven dead: never because somebody waited long enough (G1).  A resource without a holder
is given to another worker.  A statement about another holder's resource, or about one that is gone,
is answered and changes nothing.

A resource may be *of a host*: a folder, for example, which no other machine has.  Then it is only
given to workers of that host: a worker of another host would find nothing, and take that for a
success.  If the host is gone, the resource is stuck until a host of that name is there again.

So a destroy never runs twice at the same time.  It runs again only after a failure, or if the
holder died before the success was written down.  After ``destroy_tries`` failed cleanings the
resource is *stuck*: the statistics show it, and the next server with this journal tries again.

The outcome of an execution waits for the answers to all statements of its resources.  So the end of
an execution never overtakes the end of its resources.  With a journal each answer, and each
cleaning, waits until what it says is safe.

After a restart the resources of the journal belong to the holders that it names.  The worker of a
host that lives on keeps its own, and states again what is not over; the others are given to new
holders once all earlier lives are proven dead.  A resource that the journal does not know is gone.
"""

from __future__ import annotations

import dataclasses
import enum
import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple, Protocol, final

from .errors import ProtocolError
from .gate import Gate
from .journal import (
    Journal,
    LeftResource,
    ResourceCreated,
    ResourceGiven,
    ResourceGone,
    ResourceOpened,
)
from .limits import RESOURCE_KIND_BYTES, RESOURCE_REFERENCE_BYTES, ServerLimits
from .messages import Clean, ResourceAnswer, ResourceIntended, ResourceStated
from .terms import Epoch, Incarnation, RequestId, SessionId, one_line

HANDLE_BYTES = 4096
"""Most bytes of an encoded handle."""

WHY_BYTES = 512
"""Most bytes of the reason of a failure that are kept; a longer one is cut."""

CLEANINGS_MOST = 8
"""Most cleanings of one worker at once: further ones wait for this or another worker."""

PAUSE_S = 5.0
"""Pause before the second cleaning of a resource, in seconds; it grows by as much each time."""

OVERDUE_S = 10.0
"""Time beyond its limit after which a cleaning counts as endless, in seconds: it holds a thread,
which nobody can stop."""

REMEMBERED = 1024
"""Number of ended cleanings that a worker remembers, to run none twice."""

SHOWN = 32
"""Number of resources in the statistics: stuck ones first, then the oldest."""

LOST_SHOWN = 4
"""Number of resources in the log line of a lost host, the first ones: there may be very many."""


class ResourceState(enum.IntEnum):
    """The state of a resource in a holder's statement."""

    INTENDED = 0
    """About to be created; perhaps created already."""
    CREATED = 1
    LEFT = 2
    """Not destroyed, and its holder does not try any more."""
    GONE = 3
    """Destroyed, or never created."""


class Holder(Protocol):
    """A worker as resources see it."""

    incarnation: Incarnation
    host: str
    """Name of its host; empty for a worker of this machine."""
    live: dict[int, Any]
    running: int
    resources: dict[int, HeldResource]
    """Resources of its executions, by their numbers here."""
    cleanings: dict[str, HeldResource]
    """Resources that it is to destroy, by name."""

    def __hash__(self) -> int: ...

    @property
    def name(self) -> str:
        """The worker's id and its host, for people."""


class ResourceMaker(Protocol):
    """An execution as resources see it."""

    number: int
    sequence: int
    session: Any
    is_wanted: bool
    claims: Any
    """Its claims of permits; None: the execution has neither claimed permits nor made resources."""


@dataclasses.dataclass(slots=True, eq=False)
class HeldResource:
    """The router's record of a resource that is not gone."""

    number: int
    """Number in the journal."""
    name: str
    kind: str
    destroy: str
    """Reference to the function that destroys it."""
    request: RequestId
    """Request whose execution made it."""
    since_s: float
    """Moment of the intent, or of the restart, on the awake clock."""
    host: str | None = None
    """Host whose workers alone can destroy it; empty: this machine; None: any can."""
    after: int = 0
    """Number of journal records that must be safe before the name is sent."""
    incarnation: Incarnation = b""
    """Life of its holder; empty: it has none."""
    holder: Holder | None = None
    """The holder, if this router knows that worker."""
    execution: ResourceMaker | None = None
    """The execution that holds it; None for a cleaning, or if the router does not know it."""
    dispatch: int = 0
    """Number of the dispatch of its execution."""
    serial: int = 0
    """Its number at the worker of its execution."""
    turn: int = 0
    """Number of its last cleaning, from 1; 0: none yet."""
    handle: bytes | None = None
    """Its encoded handle; None: nobody has stated that it was created."""
    tries: int = 0
    """Number of failed cleanings, since this router began."""
    given_s: float = 0.0
    """Moment at which it was last given to a worker."""
    is_overdue: bool = False
    """Whether its cleaning counts as endless."""
    is_stuck: bool = False
    why: str = ""
    """Reason of the last failure, for people."""
    before: Holder | None = None
    """Worker of the last failed cleaning."""

    @property
    def is_cleaned(self) -> bool:
        """Whether its holder is to destroy it at once."""
        return self.holder is not None and self.holder.cleanings.get(self.name) is self

    @property
    def state(self) -> str:
        """The state in a word for people."""
        if self.is_stuck:
            return "stuck"
        if self.is_cleaned:
            return "cleaning"
        if self.incarnation:
            return "held" if self.holder is not None else "unknown"
        return "waiting"

    @property
    def text(self) -> str:
        """The resource for people: its name, its kind and its request."""
        return f"resource {self.name} ({self.kind}) of request {self.request}"


class ToHolder(NamedTuple):
    """A message to a worker about a resource, which waits for the journal."""

    worker: Holder
    message: Clean | ResourceAnswer


@final
class Resources:
    """All resources of a router that are not gone.  Times are of the awake clock.

    ``tell`` sends a message to a worker, ``warn`` logs a line."""

    def __init__(
        self, epoch: Epoch, limits: ServerLimits, journal: Journal, gate: Gate[Any],
        tell: Callable[[Any, Clean | ResourceAnswer], object], warn: Callable[[str], object],
    ) -> None:  # fmt: skip
        self._epoch = epoch.hex()
        self._limits = limits
        self._journal = journal
        self._gate = gate
        self._tell = tell
        self._warn = warn
        self.all: dict[str, HeldResource] = {}
        """Resources by name."""
        self._made: dict[ResourceMaker, dict[HeldResource, None]] = {}
        """Resources that executions hold."""
        self.of: Counter[SessionId] = Counter()
        """Number of the resources of each account."""
        self.elsewhere: dict[Incarnation, list[HeldResource]] = {}
        """Resources of earlier lives that this router has not heard of yet."""
        self.waiting: dict[HeldResource, None] = {}
        """Resources without a holder that are not stuck."""
        self._due: dict[str | None, list[tuple[float, int, HeldResource]]] = {}
        """Heaps of these, by host: the earliest moment at which each may be given to a worker."""
        self._away: dict[str, list[HeldResource]] = {}
        """Stuck ones whose host is gone, by host."""
        self._cleaned: OrderedDict[HeldResource, None] = OrderedDict()
        """Resources whose cleanings are under way and not overdue, the longest ago first."""
        self.stuck: dict[HeldResource, None] = {}
        self.destroyed = 0
        self._overdue = 0
        self._next = 0

    @property
    def open(self) -> int:
        """Number of resources that are being destroyed, or wait for that."""
        return len(self.waiting) + len(self._cleaned)

    # -- what workers say -------------------------------------------------------

    def intend(
        self,
        worker: Holder,
        execution: ResourceMaker | None,
        intent: ResourceIntended,
        now_s: float,
    ) -> None:
        """Enter a resource, unless an earlier router has, and answer with its name, or why it is
        refused.  ProtocolError if no worker of this project would send it."""
        _, serial, kind, destroy, _ = intent
        for text, most in (
            (kind, RESOURCE_KIND_BYTES), (destroy, RESOURCE_REFERENCE_BYTES),
        ):  # fmt: skip
            if not text.isprintable() or not 0 < len(text.encode()) <= most:
                raise ProtocolError("a resource with a text that is empty, too long or unprintable")
        resource, after, refused, name = worker.resources.get(serial), 0, "", ""
        if resource is None and not (refused := self._refusal(execution)):
            assert execution is not None
            resource = self._enter(worker, execution, intent, now_s)
        if resource is not None:
            after, name = resource.after, resource.name
        self._answer(worker, ResourceAnswer(name, ResourceState.INTENDED, refused, serial), after)

    def _refusal(self, execution: ResourceMaker | None) -> str:
        """Reason for which no resource may be created now; empty if it may."""
        limits, journal = self._limits, self._journal
        if execution is None or not execution.is_wanted:
            return "nobody waits for its rollout any more"
        if journal.failed:
            return f"the server's journal has failed: {journal.failed}"
        for count, most, whose in (
            (len(self._made.get(execution, ())), limits.execution_resources,
             "its execution (execution_resources)"),
            (self.of[execution.session.id], limits.account_resources,
             "its session or namespace (account_resources)"),
            (len(self.all), limits.resources, "the server (resources)"),
        ):  # fmt: skip
            if count >= most:
                return f"{count} are held by {whose}: wait until some are gone"
        return ""

    def _enter(
        self,
        worker: Holder,
        execution: ResourceMaker,
        intent: ResourceIntended,
        now_s: float,
    ) -> HeldResource:
        account, sequence = execution.session.id, execution.sequence
        number, self._next = self._next, self._next + 1
        made = HeldResource(
            number, f"{self._epoch}-{number}", intent.kind, intent.destroy,
            RequestId(account, sequence), now_s, worker.host if intent.here else None,
            incarnation=worker.incarnation, dispatch=intent.number, serial=intent.resource,
        )  # fmt: skip
        self._journal.append(
            ResourceOpened, number, made.name, made.kind, made.destroy, account, sequence,
            worker.incarnation, intent.number, intent.resource, made.host,
        )  # fmt: skip
        made.after = self._journal.appended
        self._add(made)
        self._attach(made, worker, execution)
        return made

    def _attach(
        self, resource: HeldResource, worker: Holder, execution: ResourceMaker | None
    ) -> None:
        """Let an execution hold a resource; None: nobody knows which one."""
        worker.resources[resource.serial] = resource
        resource.holder, resource.execution = worker, execution
        if execution is not None:
            self._made.setdefault(execution, {})[resource] = None
            if execution.claims is None:
                execution.claims = {}  # so its end is told here

    def _add(self, resource: HeldResource) -> None:
        self.all[resource.name] = resource
        self.of[resource.request.session] += 1

    def stated(self, worker: Holder, statement: ResourceStated, now_s: float) -> None:
        """Take in a holder's statement about its resource, and answer.  ProtocolError if no worker
        of this project would state it."""
        name, state, handle, why, turn = statement
        if not ResourceState.CREATED <= state <= ResourceState.GONE or len(handle) > HANDLE_BYTES:
            raise ProtocolError(f"state {state} of a resource, with {len(handle)} bytes of handle")
        answer = ResourceAnswer(name, state, "", None, turn)
        resource = self.all.get(name)
        if resource is None or resource.holder is not worker or turn != self._turn_of(resource):
            pass  # it was stated before, and the record of that may not be safe
        elif state == ResourceState.GONE:
            self._remove(resource)
        elif state == ResourceState.LEFT:
            why = one_line(why, WHY_BYTES)
            self._fail(resource, f"worker {worker.name} could not destroy it: {why}", now_s)
        elif turn is not None:
            raise ProtocolError("a resource that was created by its cleaning")
        elif resource.handle is None:
            resource.handle = handle
            self._journal.append(ResourceCreated, resource.number, handle)
        self._answer(worker, answer, self._journal.appended)

    def _turn_of(self, resource: HeldResource) -> int | None:
        return resource.turn if resource.is_cleaned else None

    def _answer(self, worker: Holder, answer: Clean | ResourceAnswer, after: int) -> None:
        """Send a message once ``after`` records are safe."""
        held = ToHolder(worker, answer)
        if self._journal.is_safe(after):
            self._tell(worker, answer)
        elif self._journal.lost:
            self.tell(held)
        else:
            self._gate.hold(worker, held, counts=False)

    def tell(self, held: ToHolder) -> None:
        """Send a message that waits for the journal no more.  If that has failed for good, nothing
        is created whose record is not safe."""
        worker, message = held
        journal = self._journal
        if journal.lost and isinstance(message, ResourceAnswer) and message.resource is not None:
            resource = worker.resources.get(message.resource)
            if resource is None or not journal.is_safe(resource.after):
                if resource is not None:
                    self._forget(resource)
                why = f"the server's journal has failed: {journal.failed}"
                message = message._replace(name="", refused=why)
        self._tell(worker, message)

    def waits(self, worker: Holder) -> bool:
        """Whether a message to a worker waits for the journal."""
        return self._gate.is_decided(worker)

    # -- ends of holders ----------------------------------------------------------

    def end(self, execution: ResourceMaker, now_s: float) -> None:
        """Release the resources of an execution that was reported, or whose worker is proven
        dead."""
        for resource in list(self._made.get(execution, ())):
            self._release(resource, now_s)

    def lost(self, worker: Holder, now_s: float) -> None:
        """Release all resources of a worker that is proven dead."""
        for resource in list(worker.resources.values()):
            self._release(resource, now_s)
        for resource in list(worker.cleanings.values()):
            self._fail(resource, f"worker {worker.name} died while it destroyed it", now_s)
        self._gate.forget(worker)

    def _fail(self, resource: HeldResource, why: str, now_s: float) -> None:
        """Note that a holder has not destroyed a resource: the next one is to, unless this was the
        last try."""
        resource.why = why
        pause_s = 0.0
        if resource.is_cleaned:
            resource.tries += 1
            resource.before = resource.holder
            pause_s = PAUSE_S * resource.tries
        if resource.tries < self._limits.destroy_tries:
            then = f"another worker is to, in {pause_s:g} s" if pause_s else "another worker is to"
            self._warn(f"{resource.text}: {why}; {then}")
            self._release(resource, now_s + pause_s)
            return
        self._let_go(resource)
        resource.is_stuck = True
        self.stuck[resource] = None
        self._warn(
            f"{resource.text} is stuck after {resource.tries} tries: {why}; destroy it by hand, or "
            "mend what hinders that and start the server anew, which tries again if it has a "
            "journal"
        )

    def _release(self, resource: HeldResource, due_s: float) -> None:
        """Take a resource from its holder; from ``due_s`` on it may be given to the next."""
        self._let_go(resource)
        self._wait(resource, due_s)

    def _wait(self, resource: HeldResource, due_s: float) -> None:
        self.waiting[resource] = None
        heap = self._due.setdefault(resource.host, [])
        heapq.heappush(heap, (due_s, resource.number, resource))

    def _let_go(self, resource: HeldResource) -> None:
        """Take a resource from its holder, and record that."""
        self._detach(resource)
        self._journal.append(ResourceGiven, resource.number, b"", resource.turn)

    def _detach(self, resource: HeldResource) -> None:
        holder = resource.holder
        if holder is not None:
            if resource.is_cleaned:
                del holder.cleanings[resource.name]
                self._cleaned.pop(resource, None)
            else:
                del holder.resources[resource.serial]
        if resource.execution is not None:
            made = self._made[resource.execution]
            del made[resource]
            if not made:
                del self._made[resource.execution]
        resource.holder = resource.execution = None
        resource.incarnation = b""
        self._overdue -= resource.is_overdue
        resource.is_overdue = False

    def _remove(self, resource: HeldResource) -> None:
        """Forget a resource that is destroyed, and count it."""
        self._forget(resource)
        self.destroyed += 1

    def _forget(self, resource: HeldResource) -> None:
        self._detach(resource)
        account = resource.request.session
        del self.all[resource.name]
        self.of[account] -= 1
        if not self.of[account]:
            del self.of[account]
        self._journal.append(ResourceGone, resource.number)

    # -- cleanings ------------------------------------------------------------------

    def give(self, now_s: float, workers: Iterable[Holder]) -> None:
        """Give resources without a holder to these workers, in the order in which they are due."""
        due = [host for host, heap in self._due.items() if heap[0][0] <= now_s]
        if not due:
            return
        ready = [each for each in workers if len(each.cleanings) < CLEANINGS_MOST]
        for host in due:
            self._give_of(host, [each for each in ready if host in (None, each.host)], now_s)

    def _give_of(self, host: str | None, ready: list[Holder], now_s: float) -> None:
        heap = self._due[host]
        ready = [each for each in ready if len(each.cleanings) < CLEANINGS_MOST]
        while ready and heap and heap[0][0] <= now_s:
            _, _, resource = heapq.heappop(heap)
            worker = min(
                ready, key=lambda each: (each is resource.before, len(each.cleanings), each.running)
            )
            del self.waiting[resource]
            self._give(resource, worker, now_s)
            if len(worker.cleanings) >= CLEANINGS_MOST:
                ready.remove(worker)
        if not heap:
            del self._due[host]

    def find_hosts(self, hosts: Callable[[], Collection[str]], now_s: float) -> None:
        """Take out of the line whatever waits for a host that is not there any more, and back into
        it once that is there again."""
        gone_for = [host for host in self._due if host is not None]
        if not gone_for and not self._away:
            return
        here = hosts()
        for host in gone_for:
            if host not in here:
                self._lose(host)
        for host in [each for each in self._away if each in here]:
            for resource in self._away.pop(host):
                del self.stuck[resource]
                resource.is_stuck = False
                self._wait(resource, now_s)

    def _lose(self, host: str) -> None:
        where = f"the host {host}" if host else "the server's own machine"
        lost = [resource for _, _, resource in sorted(self._due.pop(host))]
        self._away.setdefault(host, []).extend(lost)
        why = f"only a worker of {where} can destroy it, and there is none any more"
        for resource in lost:
            del self.waiting[resource]
            resource.is_stuck = True
            self.stuck[resource] = None
            resource.why = why
        shown = ", ".join(
            f"{each.text} ({each.destroy.replace('|', ', ')})" for each in lost[:LOST_SHOWN]
        )
        more = f" and {len(lost) - LOST_SHOWN} more" if len(lost) > LOST_SHOWN else ""
        self._warn(
            f"resources stuck: {len(lost)}; only a worker of {where} can destroy them, and there "
            "is none any more; start that again, with the same name, or destroy them there by "
            f"hand: {shown}{more}"
        )

    def _give(self, resource: HeldResource, worker: Holder, now_s: float) -> None:
        resource.turn += 1
        resource.holder, resource.incarnation = worker, worker.incarnation
        resource.given_s = now_s
        worker.cleanings[resource.name] = resource
        self._cleaned[resource] = None
        self._journal.append(ResourceGiven, resource.number, worker.incarnation, resource.turn)
        resource.after = self._journal.appended
        self._answer(worker, self._clean(resource), resource.after)

    def _clean(self, resource: HeldResource) -> Clean:
        return Clean(
            resource.name, resource.turn, resource.kind, resource.destroy, self._limits.destroy_s,
            resource.handle,
        )  # fmt: skip

    def overdue(self, now_s: float) -> Iterator[Holder]:
        """Workers with an endless cleaning: each once for each of these."""
        most_s = self._limits.destroy_s + OVERDUE_S
        while self._cleaned:
            resource = next(iter(self._cleaned))
            if now_s - resource.given_s < most_s:
                return
            del self._cleaned[resource]
            resource.is_overdue = True
            self._overdue += 1
            worker = resource.holder
            assert worker is not None
            resource.why = f"worker {worker.name} has tried to destroy it for {most_s:g} s"
            self._warn(
                f"{resource.text}: {resource.why}, and does not come to an end; that worker "
                "retires, and then another one is to"
            )
            yield worker

    # -- after a restart --------------------------------------------------------------

    def restore(self, left: Iterable[LeftResource], now_s: float) -> None:
        """Enter the resources that a journal has left, with the holders that it names."""
        for each in left:
            opened = each.opened
            resource = HeldResource(
                opened.resource, opened.name, opened.kind, opened.destroy,
                RequestId(opened.account, opened.sequence), now_s, opened.host,
                incarnation=each.incarnation, dispatch=opened.dispatch, serial=opened.serial,
                turn=each.turn, handle=each.handle,
            )  # fmt: skip
            self._next = max(self._next, resource.number + 1)
            self._add(resource)
            if each.incarnation:
                self.elsewhere.setdefault(each.incarnation, []).append(resource)
            else:
                self._wait(resource, now_s)

    def take_back(self, worker: Holder, now_s: float) -> None:
        """Let a worker of an earlier epoch keep its resources and cleanings.  These are sent to it
        again, as the first message may not have reached its host; it runs none twice."""
        for resource in self.elsewhere.pop(worker.incarnation, ()):
            if resource.turn:
                resource.holder, resource.given_s = worker, now_s
                worker.cleanings[resource.name] = resource
                self._cleaned[resource] = None
                self._answer(worker, self._clean(resource), resource.after)
                continue
            execution = worker.live.get(resource.dispatch)
            self._attach(resource, worker, execution)
            if execution is None:  # it has ended by report
                self._release(resource, now_s)

    def earlier_dead(self, now_s: float) -> None:
        """Release the resources of all lives that nobody has heard of: these are proven dead."""
        elsewhere, self.elsewhere = self.elsewhere, {}
        for resources in elsewhere.values():
            for resource in resources:
                self._release(resource, now_s)

    # -- what is said of them -------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """The statistics of their numbers."""
        return {
            "resources": len(self.all), "resources_cleaning": self.open + self._overdue,
            "resources_stuck": len(self.stuck), "resources_destroyed": self.destroyed,
        }  # fmt: skip

    def records(self, now_s: float) -> list[dict[str, Any]]:
        """Records of stuck resources, then of the oldest ones."""
        shown = dict.fromkeys([*islice(self.stuck, SHOWN), *islice(self.all.values(), 2 * SHOWN)])
        return [
            {
                "name": each.name, "kind": each.kind, "request": str(each.request),
                "worker": "" if each.holder is None else each.holder.name, "state": each.state,
                "age_s": round(now_s - each.since_s, 3), "tries": each.tries, "why": each.why,
            }
            for each in islice(shown, SHOWN)
        ]  # fmt: skip


# -- the worker's side ------------------------------------------------------------------


@dataclasses.dataclass(slots=True)
class _OpenResource:
    """A worker's record of a resource that the router may count as held."""

    intent: ResourceIntended
    name: str = ""
    """Name that the router has given it; empty until the intent is answered."""
    statement: ResourceStated | None = None
    """Its last statement."""
    unanswered: bool = False
    """Whether the router has not answered the last statement."""

    @property
    def waits(self) -> bool:
        """Whether a message about it is unanswered."""
        return self.unanswered or not self.name


class Stated(NamedTuple):
    """An answer of the router that is news to a worker's code."""

    resource: int
    name: str
    refused: str


@final
class OpenResources:
    """A worker's resources and cleanings whose end the router has not answered."""

    def __init__(self) -> None:
        self.open: dict[int, _OpenResource] = {}
        """Resources of executions, by their numbers."""
        self._named: dict[str, _OpenResource] = {}
        """Resources of executions that have a name, by name."""
        self._made: dict[int, dict[int, _OpenResource]] = {}
        """Resources of each execution, by their numbers."""
        self._results: dict[str, ResourceStated] = {}
        """Unanswered results of cleanings, by name."""
        self._cleaning: dict[str, int] = {}
        """Numbers of the cleanings that are under way, by name."""
        self._turns: OrderedDict[str, int] = OrderedDict()
        """Numbers of the last cleanings that have ended, by name."""

    def intend(self, intent: ResourceIntended) -> None:
        """Enter a resource that is about to be created."""
        made = self.open[intent.resource] = _OpenResource(intent)
        self._made.setdefault(intent.number, {})[intent.resource] = made

    def state(
        self, resource: int, state: ResourceState, handle: bytes, why: str
    ) -> ResourceStated | None:
        """The statement to send about a resource of an execution; None if it has no name yet."""
        each = self.open.get(resource)
        if each is None or not each.name:
            return None
        each.statement = ResourceStated(each.name, state, handle, why)
        each.unanswered = True
        return each.statement

    def clean(self, clean: Clean) -> bool:
        """Whether a cleaning is news."""
        name, turn = clean.name, clean.turn
        if max(self._cleaning.get(name, 0), self._turns.get(name, 0)) >= turn:
            return False
        self._cleaning[name] = turn
        return True

    def cleaned(self, result: ResourceStated) -> ResourceStated:
        """Keep the result of a cleaning, which has ended, until it is answered."""
        name = result.name
        self._turns[name] = max(self._cleaning.pop(name, 0), self._turns.get(name, 0))
        self._turns.move_to_end(name)
        if len(self._turns) > REMEMBERED:
            self._turns.popitem(last=False)
        self._results[name] = result
        return result

    def execution_of(self, answer: ResourceAnswer) -> int | None:
        """Number of the execution that an answer is about; None if it is about a cleaning, or about
        nothing open."""
        each = self._about(answer)
        return None if each is None else each.intent.number

    def _about(self, answer: ResourceAnswer) -> _OpenResource | None:
        if answer.turn is not None:
            return None
        if answer.resource is not None:
            return self.open.get(answer.resource)
        return self._named.get(answer.name)

    def answered(self, answer: ResourceAnswer) -> Stated | None:
        """Take in an answer; returns the news for the code of an execution."""
        if answer.turn is not None:
            result = self._results.get(answer.name)
            if result is not None and result.turn == answer.turn:
                del self._results[answer.name]
            return None
        each = self._about(answer)
        if each is None:
            return None
        if answer.resource is not None:
            return self._is_named(each, answer.name, answer.refused)
        stated = each.statement
        if not each.unanswered or stated is None or stated.state != answer.state:
            return None
        each.unanswered = False
        if stated.state >= ResourceState.LEFT:
            self._drop(each)
        return Stated(each.intent.resource, answer.name, "")

    def _is_named(self, each: _OpenResource, name: str, refused: str) -> Stated:
        if refused:
            self._drop(each)
        else:
            each.name = name
            self._named[name] = each
        return Stated(each.intent.resource, name, refused)

    def _drop(self, each: _OpenResource) -> None:
        number, resource = each.intent[:2]
        del self.open[resource]
        self._named.pop(each.name, None)
        made = self._made[number]
        del made[resource]
        if not made:
            del self._made[number]

    def end_of(self, execution: int) -> None:
        """Forget the resources of an execution that has ended: its report tells the router."""
        for each in list(self._made.get(execution, {}).values()):
            self._drop(each)

    def waits(self, execution: int) -> bool:
        """Whether the outcome of an execution waits, since a message about its resources is not
        answered."""
        return any(each.waits for each in self._made.get(execution, {}).values())

    def again(self) -> Iterator[ResourceIntended | ResourceStated]:
        """The intents and statements that another router is told."""
        for each in self.open.values():
            if not each.name:
                yield each.intent
            elif each.statement is not None:
                each.unanswered = True
                yield each.statement
        yield from self._results.values()
