"""A model of works and tickets, written from the rules alone.

It knows nothing of the code: it keeps every work there ever was in one list, finds things by
looking through it, and counts every sum anew.
"""

from __future__ import annotations

import dataclasses

WINDOW, QUEUE, QUEUE_BYTES, KEPT, SHARE, SESSIONS = 4, 8, 60, 5, 0.6, 9
GENERATIONS, RETAINED_BYTES, NAMESPACE_SHARE, NAMESPACES = 4, 500, 0.8, 1000
WAITERS, COMMANDS = 3, 3
NAMESPACE_BYTES, KEY_BYTES = 4, 4
COMMAND_S, ORPHAN_S, RETENTION_S, LEASE_S = 6.0, 5.0, 9.0, 10.0
OUTCOME_BYTES = 64
"""Of an outcome, besides its payload."""

Name = tuple[bytes, bytes]
Id = tuple[int, int]
"""Session and sequence of a request."""
Told = tuple[object, ...]
"""Session, sequence, and what it was told."""
Terms = tuple[object, ...]
"""All that a request asks for: another transmission of it is the same."""


@dataclasses.dataclass(eq=False)
class Job:
    """A work."""

    number: int
    """Of a generation; -1 without a name."""
    name: Name | None
    account: int | bytes
    """A session, or a namespace."""
    payload: bytes
    rerun: bool | None
    allowance: int
    earlier: int = 0
    entered: bool = False
    counting: dict[Id, int] = dataclasses.field(default_factory=dict)
    """With their callers."""
    watching: set[Id] = dataclasses.field(default_factory=set)
    lost: set[int] = dataclasses.field(default_factory=set)
    open: bool = True
    live: bool = False
    wanted: bool = False
    """Whether the execution that lives will bring its outcome."""
    holds_body: bool = True
    starts: int = 0
    outcome: object = None
    """What is told; None while there is none."""
    size_bytes: int = 0
    """Of the outcome, while it is retained or a request was answered with it."""
    lonely_s: float | None = None
    """Since when nobody is there, while it counts for the lost ones."""
    idle_s: float | None = None
    """Since when nobody counts, with an outcome."""

    @property
    def started(self) -> bool:
        return bool(self.starts or self.earlier)

    @property
    def state(self) -> str:
        if not self.open:
            return "closed"
        if self.outcome is not None:
            return "completed"
        if not self.entered:
            return "held"
        return "running" if self.wanted else "waiting"


@dataclasses.dataclass(eq=False)
class Asked:
    """A request that was seen and is not finished."""

    terms: Terms
    job: Job | None
    caller: int
    told: object = None
    """Its answer; None while there is none."""
    payload_of: Job | None = None
    """The work whose outcome it holds."""
    ran: bool = False


@dataclasses.dataclass
class Client:
    """A session."""

    caller: int
    heard_s: float
    route: bytes
    connection: int = 1
    asked: dict[int, Asked] = dataclasses.field(default_factory=dict)
    finished: set[int] = dataclasses.field(default_factory=set)
    ended: bool = False


def _granted(allowance: int) -> int:
    """A quarter of what may be started is left for the sessions after this one."""
    return max(1, allowance * 3 // 4)


class Model:
    """What works must do."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.clients: dict[int, Client] = {}
        self.now_s = 0.0
        self.declared = False
        self.numbers = 0
        self.commands: dict[tuple[str, Name, bytes], tuple[dict[str, object], float]] = {}

    # -- what there is ----------------------------------------------------------------

    def of_name(self, name: Name) -> Job | None:
        return next((j for j in self.jobs if j.open and j.name == name), None)

    def there(self) -> list[Job]:
        """Those with names that take up room."""
        return [j for j in self.jobs if j.name is not None and (j.open or j.live)]

    def ends(self, name: Name) -> bool:
        """Whether a closed work of this name is still being stopped."""
        return any(j.live and not j.open and j.name == name for j in self.jobs)

    def asked(self, id: Id) -> Asked | None:
        client = self.clients.get(id[0])
        return None if client is None else client.asked.get(id[1])

    def standing(self, id: Id) -> str:
        client, asked = self.clients[id[0]], self.asked(id)
        if asked is None:
            return "finished" if client.ended or id[1] in client.finished else "not seen"
        if asked.told is not None:
            return "completed"
        assert asked.job is not None
        return asked.job.state

    # -- sums and shares ----------------------------------------------------------------

    def accounts(self) -> set[int | bytes]:
        return {*self.clients, *(j.account for j in self.jobs)}

    def places(self, account: int | bytes) -> int:
        """Works that wait, and requests answered by what ran for others, or never ran."""
        waiting = sum(j.state == "waiting" and j.account == account for j in self.jobs)
        client = self.clients.get(account) if isinstance(account, int) else None
        asked = [] if client is None else client.asked.values()
        return waiting + sum(
            a.terms[0] is not None or (a.told is not None and not a.ran) for a in asked
        )

    def held_bytes(self, account: int | bytes) -> int:
        return sum(
            len(j.payload) for j in self.jobs
            if j.account == account and j.holds_body and j.state in ("waiting", "running")
        )  # fmt: skip

    def ran(self, account: int | bytes) -> int:
        """Executions that bring outcomes, and outcomes that were brought for it."""
        running = sum(j.state == "running" and j.account == account for j in self.jobs)
        client = self.clients.get(account) if isinstance(account, int) else None
        return running + sum(a.ran for a in (client.asked.values() if client else ()))

    def own_bytes(self, job: Job) -> int:
        assert job.name is not None
        held = len(job.payload) if job.state == "held" else 0
        return len(job.name[0]) + len(job.name[1]) + held

    def outcome_bytes(self, namespace: bytes) -> int:
        """Counted once while the work, or a request that was answered, holds it."""
        held = {a.payload_of for c in self.clients.values() for a in c.asked.values()}
        return sum(
            j.size_bytes for j in self.jobs
            if j.account == namespace and (j in held or j.state == "completed")
        )  # fmt: skip

    def works(self, namespace: bytes) -> list[Job]:
        return [j for j in self.there() if j.account == namespace]

    def most(self, account: int | bytes, bound: int, others: int) -> float:
        if isinstance(account, int):
            return max(SHARE * (bound - others), bound // SESSIONS)
        return max(NAMESPACE_SHARE * (bound - others), bound // NAMESPACES)

    def may_wait(self, account: int | bytes, size: int) -> bool:
        others = [each for each in self.accounts() if each != account]
        mine, mine_bytes = self.places(account), self.held_bytes(account)
        if mine and mine >= self.most(account, QUEUE, sum(map(self.places, others))):
            return False
        others_bytes = sum(map(self.held_bytes, others))
        held = mine_bytes + others_bytes
        if not mine_bytes and (not held or held + size <= QUEUE_BYTES):
            return True
        return mine_bytes + size <= self.most(account, QUEUE_BYTES, others_bytes)

    def may_start(self, job: Job) -> bool:
        """Whether there is room for its outcome."""
        account = job.account
        others = [each for each in self.accounts() if each != account]
        mine = self.ran(account)
        may_run = not mine or mine < self.most(account, KEPT, sum(map(self.ran, others)))
        if isinstance(account, int):
            return may_run
        spaces = [each for each in others if isinstance(each, bytes)]
        taken = sum(map(self.outcome_bytes, spaces))
        return may_run and self.outcome_bytes(account) < self.most(account, RETAINED_BYTES, taken)

    def may_open(self, name: Name, held: int) -> bool:
        space = name[0]
        spaces = [e for e in self.accounts() if isinstance(e, bytes) and e != space]
        others = sum(len(self.works(each)) for each in spaces)
        if len(self.works(space)) >= self.most(space, GENERATIONS, others):
            return False

        def size(namespace: bytes) -> int:
            return sum(map(self.own_bytes, self.works(namespace))) + self.outcome_bytes(namespace)

        others_bytes = sum(map(size, spaces))
        if not others_bytes + size(space):
            return True
        mine = size(space) + len(space) + len(name[1]) + held
        return mine <= self.most(space, RETAINED_BYTES, others_bytes)

    # -- requests ---------------------------------------------------------------------

    def request(
        self, id: Id, terms: Terms, payload: bytes, rerun: bool | None, allowance: int,
        act: str = "ask", earlier: int | None = None, tag: int | bytes | None = None,
    ) -> list[Told]:  # fmt: skip
        """``terms``: its name first, or None."""
        client, known = self.clients[id[0]], self.asked(id)
        if known is not None:
            if known.terms != terms:
                return [(*id, "conflict")]
            return [] if known.told is None else [(*id, known.told)]
        if self.standing(id) == "finished":
            return [(*id, "finished")]
        if len(client.asked) >= WINDOW:
            return [(*id, "window")]
        if not self.may_wait(id[0], len(payload)):
            return [(*id, "queue-full")]
        name: Name | None = terms[0]  # type: ignore[assignment]
        if name is None:
            if not self._may_again(rerun, allowance, earlier):
                return [(*id, "server-lost")]
            granted = _granted(allowance - (earlier or 0))
            job = Job(-1, None, id[0], payload, rerun, granted, entered=True)
            self._admit(id, terms, job)
            self.jobs.append(job)
            job.counting[id] = client.caller
            return []
        job_of_name = self.of_name(name)
        if act == "attach":
            return self._attach(id, terms, job_of_name)
        if act == "ask":
            return self._ask(id, terms, job_of_name, payload, rerun, allowance, earlier)
        return self._command(id, terms, job_of_name, act, tag)

    def _admit(self, id: Id, terms: Terms, job: Job | None) -> None:
        client = self.clients[id[0]]
        client.asked[id[1]] = Asked(terms, job, client.caller)

    def _tell(self, ids: list[Id], told: object, of: Job | None = None) -> list[Told]:
        """These are told, if they have not finished."""
        found: list[Told] = []
        for id in ids:
            asked = self.asked(id)
            if asked is not None and asked.told is None:
                asked.told = told
                asked.payload_of = of
                found.append((*id, told))
        return found

    def _ask(
        self, id: Id, terms: Terms, job: Job | None, payload: bytes, rerun: bool | None,
        allowance: int, earlier: int | None,
    ) -> list[Told]:  # fmt: skip
        caller = self.clients[id[0]].caller
        if job is None:
            return self._open(id, terms, payload, rerun, allowance, earlier)
        if (job.payload, job.rerun) != (payload, rerun):
            return [(*id, "key-conflict")]
        if self._crowd(job) >= WAITERS:
            return [(*id, "key-crowded")]
        self._admit(id, terms, job)
        self._replace(job, caller, id[0])
        job.counting[id] = caller
        job.lonely_s = job.idle_s = None
        return [] if job.outcome is None else self._tell([id], job.outcome, job)

    def _open(
        self, id: Id, terms: Terms, payload: bytes, rerun: bool | None, allowance: int,
        earlier: int | None,
    ) -> list[Told]:  # fmt: skip
        name: Name = terms[0]  # type: ignore[assignment]
        if not self.may_wait(name[0], len(payload)):
            return [(*id, "key-queue-full")]
        if not self._may_again(rerun, allowance, earlier):
            return [(*id, "unknown-key")]
        earlier = earlier or 0
        held = self.ends(name)
        if not self.may_open(name, len(payload) if held else 0):
            return [(*id, "keys-full")]
        job = Job(self.numbers, name, name[0], payload, rerun, allowance - earlier, earlier)
        self.numbers += 1
        self._admit(id, terms, job)
        self.jobs.append(job)
        job.counting[id] = self.clients[id[0]].caller
        if not held:
            self._enter(job)
        return []

    def _may_again(self, rerun: bool | None, allowance: int, earlier: int | None) -> bool:
        consent = self.declared if rerun is None else rerun
        return earlier is None or (consent and earlier < allowance)

    def _enter(self, job: Job) -> None:
        job.entered = True
        job.allowance = _granted(job.allowance)

    def _attach(self, id: Id, terms: Terms, job: Job | None) -> list[Told]:
        if job is None:
            return [(*id, "unknown-key")]
        if job.outcome is not None:
            self._admit(id, terms, None)
            return self._tell([id], job.outcome, job)
        if self._crowd(job) >= WAITERS:
            return [(*id, "key-crowded")]
        self._admit(id, terms, job)
        job.watching.add(id)
        return []

    def _crowd(self, job: Job) -> int:
        return len(job.counting) + len(job.watching)

    def _replace(self, job: Job, caller: int, session: int) -> None:
        """The caller is in this session now."""
        old = {id for id, c in job.counting.items() if c == caller and id[0] != session}
        job.lost -= {caller}
        for id in old:
            del job.counting[id]
        if job.outcome is None:
            job.watching |= old

    # -- who leaves -------------------------------------------------------------------

    def finish(self, session: int, sequences: set[int]) -> list[Told]:
        client = self.clients[session]
        if self._gaps(client.finished | sequences) > WINDOW + 1:
            return []
        leaving = [(n, client.asked.pop(n)) for n in sorted(sequences & {*client.asked})]
        client.finished |= sequences
        return self._drop(session, leaving, lost=False)

    def _gaps(self, sequences: set[int]) -> int:
        return sum(n - 1 not in sequences for n in sequences)

    def _drop(self, session: int, leaving: list[tuple[int, Asked]], *, lost: bool) -> list[Told]:
        told: list[Told] = []
        for sequence, asked in leaving:
            if asked.job is not None:
                told += self.leave((session, sequence), asked.job, lost=lost)
        return told

    def leave(self, id: Id, job: Job, *, lost: bool = False) -> list[Told]:
        job.watching.discard(id)
        if id not in job.counting:
            return []
        caller = job.counting.pop(id)
        if lost and job.name is not None:
            job.lost.add(caller)
        return self._counts(job)

    def cancel(self, session: int, sequence: int) -> list[Told]:
        client, id = self.clients[session], (session, sequence)
        if self._gaps(client.finished | {sequence}) > WINDOW + 1:
            return [(*id, True)]
        asked = client.asked.pop(sequence, None)
        before = sequence in client.finished
        client.finished.add(sequence)
        if asked is None:
            return [(*id, before or None)]
        told: list[Told] = []
        if asked.terms[0] is None:
            started = asked.ran if asked.told is not None else bool(asked.job and asked.job.starts)
            if asked.job is not None:
                told = self.leave(id, asked.job)
        elif asked.job is None:
            started = True
        else:
            waited = id in asked.job.counting or id in asked.job.watching
            told = self.leave(id, asked.job)
            started = not waited or asked.job.open or asked.job.started
        return [*told, (*id, started)]

    def sync(self, session: int, next: int, pending: set[int]) -> tuple[list[Told], set[int]]:
        if len(pending) > WINDOW:
            return [], set()
        told = self.finish(session, {*range(next)} - pending)
        client = self.clients[session]
        again = [(session, n) for n in sorted(pending) if n in client.asked]
        for id in again:
            if (asked := self.asked(id)) is not None and asked.told is not None:
                told.append((*id, asked.told))
        missing = {n for n in pending if n < next and self.standing((session, n)) == "not seen"}
        return told, missing

    def end(self, session: int, *, lost: bool) -> list[Told]:
        client = self.clients[session]
        client.ended = True
        leaving, client.asked = [*client.asked.items()], {}
        return self._drop(session, leaving, lost=lost)

    def forget(self) -> None:
        """Ended sessions of which nothing runs any more."""
        for number, client in list(self.clients.items()):
            if client.ended and not any(j.live and j.account == number for j in self.jobs):
                del self.clients[number]

    def _counts(self, job: Job) -> list[Told]:
        """Who counts has changed."""
        if job.counting:
            job.lonely_s = job.idle_s = None
        elif job.lost:
            job.idle_s = None
            if job.lonely_s is None:
                job.lonely_s = self.now_s
        elif job.outcome is not None:
            job.lonely_s = None
            if job.idle_s is None:
                job.idle_s = self.now_s
        else:
            return self._close(job)
        return []

    def _close(self, job: Job) -> list[Told]:
        waiting = [*job.counting, *job.watching]
        unanswered = job.outcome is None
        code = "cancelled" if job.started else "never-started"
        self._shut(job)
        return self._tell(waiting, code) if unanswered else []

    def _shut(self, job: Job) -> None:
        for id in [*job.counting, *job.watching]:
            if (asked := self.asked(id)) is not None:
                asked.job = None
        job.open = job.wanted = job.holds_body = False
        job.lonely_s = job.idle_s = None
        job.counting, job.watching, job.lost = {}, set(), set()

    # -- commands ---------------------------------------------------------------------

    def _command(
        self, id: Id, terms: Terms, job: Job | None, act: str, tag: int | bytes | None
    ) -> list[Told]:
        name: Name = terms[0]  # type: ignore[assignment]
        answer: dict[str, object] = {"generation": None, "started": True}
        told: list[Told] = []
        if (isinstance(tag, int) and (job is None or job.number != tag)) or (
            tag is None and job is None
        ):
            pass
        elif isinstance(tag, bytes) and (act, name, tag) in self.commands:
            answer = self.commands[act, name, tag][0]
        elif isinstance(tag, bytes) and not self._remembers(name[0]):
            return [(*id, "commands-full")]
        else:
            if job is not None and act == "cancel" and job.outcome is not None:
                answer["finished"] = True
            elif job is not None:
                answer = {"generation": job.number, "started": job.started}
                told = self._close(job)
            if isinstance(tag, bytes):
                self.commands[act, name, tag] = answer, self.now_s
        self._admit(id, terms, None)
        return [*told, *self._tell([id], answer)]

    def _remembers(self, namespace: bytes) -> bool:
        mine = sum(other[0] == namespace for _, other, _ in self.commands)
        return mine < NAMESPACE_SHARE * (COMMANDS - (len(self.commands) - mine))

    # -- executions -------------------------------------------------------------------

    def consents(self, job: Job) -> bool:
        consent = self.declared if job.rerun is None else job.rerun
        return consent and job.starts < job.allowance

    def dispatched(self, job: Job) -> None:
        job.live = job.wanted = True
        job.starts += 1
        job.holds_body = self.consents(job)

    def ended(self, job: Job, outcome: object, size: int, *, dead: bool) -> list[Told]:
        """The execution that lives has ended."""
        wanted, job.live, job.wanted = job.wanted, False, False
        told: list[Told] = []
        if wanted and not (dead and job.holds_body and self.consents(job)):
            told = self.completed(job, outcome, size)
        following = None if job.name is None else self.of_name(job.name)
        if not job.open and following is not None and following.state == "held":
            self._enter(following)
        self.forget()
        return told

    def completed(self, job: Job, outcome: object, size: int) -> list[Told]:
        """It has this outcome, of so many bytes."""
        ids = [*job.counting, *job.watching]
        job.wanted = job.holds_body = False
        if job.name is not None and job.started:
            job.outcome, job.size_bytes = outcome, size
            told = self._tell(ids, outcome, job)
            for id in job.watching:
                if (asked := self.asked(id)) is not None:
                    asked.job = None
            job.watching = set()
            return told
        for id in ids:
            if job.name is None and (asked := self.asked(id)) is not None:
                asked.ran = job.starts > 0
        self._shut(job)
        return self._tell(ids, outcome)

    def expire(self, id: Id) -> list[Told]:
        """The deadline of a request has passed: of a key it ends the wait, and not the work."""
        asked = self.asked(id)
        if asked is None or asked.told is not None:
            return []
        job = asked.job
        assert job is not None
        if job.name is None:
            code = "no-answer" if job.wanted else "worker-lost" if job.starts else "never-started"
            return self.completed(job, code, 0)
        return [*self.leave(id, job, lost=True), *self._tell([id], "no-answer")]

    # -- time -------------------------------------------------------------------------

    def tick(self) -> list[Told]:
        told: list[Told] = []
        for job in self.jobs:
            if job.lonely_s is not None and self.now_s - job.lonely_s >= ORPHAN_S:
                job.lost = set()
                told += self._counts(job)
            elif job.idle_s is not None and self.now_s - job.idle_s >= RETENTION_S:
                told += self._close(job)
        for word, (_, when_s) in list(self.commands.items()):
            if self.now_s - when_s >= COMMAND_S:
                del self.commands[word]
        return told
