"""A model of the dedup cache, written from the protocol's rules alone.

It knows nothing of the cache's code: records are plain, and every sum is counted
anew.
"""

from __future__ import annotations

import dataclasses

WINDOW, QUEUE, QUEUE_BYTES = 4, 6, 30
KEPT, KEPT_BYTES, SHARE = 4, 50, 0.6
SESSIONS, LEASE_S, AT_ONCE = 3, 10.0, 4
ON_ONE_ROUTE = 2

Effect = tuple[str, object]
"""What must be done, and with which request, execution or sequence."""


@dataclasses.dataclass(eq=False)
class Run:
    """One execution, live until the world says that it has ended."""

    session: int
    sequence: int
    worker: int
    wanted: bool = True
    """Whether a request still needs it."""


@dataclasses.dataclass
class Request:
    """One that was seen and is not finished."""

    payload: bytes
    rerun: bool | None
    allowance: int
    keyed: bool = False
    """Whether it waits for the work of a key, not for a worker."""
    state: str = "waiting"
    run: Run | None = None
    starts: int = 0
    holds_body: bool = True
    outcome: bytes | None = None


@dataclasses.dataclass
class Client:
    """A session."""

    nonce: int
    heard_s: float
    connection: int
    route: bytes
    opener: bytes
    requests: dict[int, Request] = dataclasses.field(default_factory=dict)
    finished: set[int] = dataclasses.field(default_factory=set)
    ended: bool = False

    def state(self, sequence: int) -> str:
        if sequence in self.requests:
            return self.requests[sequence].state
        return "finished" if self.ended or sequence in self.finished else "not seen"

    def count(self, *states: str) -> int:
        return sum(r.state in states for r in self.requests.values())

    def unrun(self) -> int:
        """Completed, and never started."""
        return sum(r.state == "completed" and not r.starts for r in self.requests.values())

    def holds(self) -> int:
        """What takes up room of the kept ones."""
        return self.count("running", "completed") - self.unrun()

    def queues(self) -> int:
        """What takes up room of the queue."""
        return self.count("waiting") + self.unrun()

    def held_bytes(self) -> int:
        return sum(len(r.payload) for r in self.requests.values() if r.holds_body)

    def kept_bytes(self) -> int:
        return sum(len(r.outcome) for r in self.requests.values() if r.outcome is not None)


def most(bound: int, others: int) -> float:
    """What a session may have of a bound of which the others have so much."""
    return max(SHARE * (bound - others), bound // SESSIONS)


class Model:
    """What a cache must do."""

    def __init__(self) -> None:
        self.clients: dict[int, Client] = {}
        self.runs: list[Run] = []
        self.unsettled: set[int] = set()
        """Those whose lease ended while something was unfinished."""
        self.goodbyes: list[int] = []
        """The last nonces whose clients have left."""
        self.declared = False

    def may_open(self, nonce: int, route: bytes) -> bool:
        """Whether a hello with a nonce that has no session gets one."""
        on_route = sum(client.opener == route for client in self.clients.values())
        room = len(self.clients) < SESSIONS or any(map(self.idle, self.clients))
        return room and on_route < ON_ONE_ROUTE and nonce not in self.goodbyes

    def idle(self, number: int) -> bool:
        """Whether it may make room for another."""
        client = self.clients[number]
        runs = any(run.session == number for run in self.runs)
        return not (client.ended or client.requests or runs)

    def makes_room(self, number: int) -> None:
        assert self.idle(number), "a session at work makes room"
        del self.clients[number]

    def goodbye(self, nonce: int) -> None:
        others = [other for other in self.goodbyes if other != nonce]
        self.goodbyes = [*others, nonce][-SESSIONS:]

    # -- sums ---------------------------------------------------------------------

    def count(self, *states: str) -> int:
        return sum(c.count(*states) for c in self.clients.values())

    def held_bytes(self) -> int:
        return sum(c.held_bytes() for c in self.clients.values())

    def kept_bytes(self) -> int:
        return sum(c.kept_bytes() for c in self.clients.values())

    def may_dispatch(self) -> bool:
        ran = self.count("running", "completed") - self.unrun()
        return ran < KEPT and self.kept_bytes() < KEPT_BYTES

    def unrun(self) -> int:
        return sum(client.unrun() for client in self.clients.values())

    def share_left(self, client: Client) -> bool:
        others = [each for each in self.clients.values() if each is not client]
        kept = sum(each.holds() for each in others)
        kept_bytes = sum(each.kept_bytes() for each in others)
        return not client.holds() or (
            client.holds() < most(KEPT, kept) and client.kept_bytes() < most(KEPT_BYTES, kept_bytes)
        )

    def consents(self, request: Request) -> bool:
        consent = self.declared if request.rerun is None else request.rerun
        return consent and request.starts < request.allowance

    # -- inputs: each returns what must be done -----------------------------------

    def request(
        self, number: int, sequence: int, payload: bytes, rerun: bool | None, allowance: int,
        *, keyed: bool = False,
    ) -> list[Effect]:  # fmt: skip
        client = self.clients[number]
        known = client.requests.get(sequence)
        if known is not None:
            if known.payload != payload or known.keyed != keyed:
                return [("CONFLICT", sequence)]
            return [("ANSWER", (number, sequence))] if known.state == "completed" else []
        if client.state(sequence) == "finished":
            return [("SPENT", sequence)]
        if len(client.requests) >= WINDOW:
            return [("WINDOW", sequence)]
        if not self._room(client, len(payload)):
            return [("FULL", sequence)]
        client.requests[sequence] = Request(payload, rerun, allowance, keyed)
        return [("QUEUE", (number, sequence))]

    def _room(self, client: Client, size: int) -> bool:
        held, mine = self.held_bytes(), client.held_bytes()
        queued = sum(each.queues() for each in self.clients.values() if each is not client)
        if client.queues() and client.queues() >= most(QUEUE, queued):
            return False
        alone = not mine and (not held or held + size <= QUEUE_BYTES)
        return alone or mine + size <= most(QUEUE_BYTES, held - mine)

    def dispatch(self, number: int, sequence: int, worker: int) -> Run:
        request = self.clients[number].requests[sequence]
        request.run = Run(number, sequence, worker)
        request.state = "running"
        request.starts += 1
        request.holds_body = self.consents(request)
        self.runs.append(request.run)
        return request.run

    def _complete(self, number: int, sequence: int, outcome: bytes) -> list[Effect]:
        request = self.clients[number].requests[sequence]
        request.state, request.outcome, request.holds_body = "completed", outcome, False
        if request.run is not None:
            request.run.wanted = False
        request.run = None
        return [("ANSWER", (number, sequence))]

    def outcome(self, run: Run, outcome: bytes) -> list[Effect]:
        self.runs.remove(run)
        return self._complete(run.session, run.sequence, outcome) if run.wanted else []

    def dead(self, run: Run, outcome: bytes) -> list[Effect]:
        """The worker of this execution, no longer live, is proven dead."""
        if not run.wanted:
            return []
        request = self.clients[run.session].requests[run.sequence]
        if self.consents(request) and request.holds_body:
            request.state, request.run = "waiting", None
            return [("QUEUE", (run.session, run.sequence))]
        return self._complete(run.session, run.sequence, outcome)

    def deadline(self, number: int, sequence: int, outcome: bytes) -> list[Effect]:
        client = self.clients[number]
        state = client.state(sequence)
        if state == "waiting":
            out = self._out(number, sequence, client.requests[sequence])
            return [out, *self._complete(number, sequence, outcome)]
        if state == "running":
            run = client.requests[sequence].run
            return [*self._complete(number, sequence, outcome), ("STOP", run)]
        return []

    def answered_for_its_key(self, number: int, sequence: int, outcome: bytes) -> list[Effect]:
        return self._complete(number, sequence, outcome)

    def turned_away(self, number: int, sequence: int) -> None:
        """As if it had never been seen."""
        del self.clients[number].requests[sequence]

    def _out(self, number: int, sequence: int, request: Request) -> Effect:
        return "LEAVE" if request.keyed else "UNQUEUE", (number, sequence)

    def finish(self, number: int, sequences: set[int]) -> list[Effect]:
        client = self.clients[number]
        after = client.finished | sequences
        if sum(n - 1 not in after for n in after) > WINDOW + 1:
            return []
        effects: list[Effect] = []
        for sequence in sequences & {*client.requests}:
            effects += self._drop(number, sequence)
        client.finished |= sequences
        return effects

    def _drop(self, number: int, sequence: int) -> list[Effect]:
        client = self.clients[number]
        request = client.requests.pop(sequence)
        client.finished.add(sequence)
        if request.state == "waiting" or (request.keyed and request.state == "completed"):
            return [self._out(number, sequence, request)]
        if request.run is None:
            return []
        request.run.wanted = False
        return [("STOP", request.run)]

    def sync(self, number: int, next: int, pending: set[int]) -> tuple[list[Effect], set[int]]:
        if len(pending) > WINDOW:
            return [], set()
        effects = self.finish(number, {*range(next)} - pending)
        client = self.clients[number]
        missing = {n for n in pending if n < next and client.state(n) == "not seen"}
        return effects + [
            ("ANSWER", (number, n)) for n in pending if client.state(n) == "completed"
        ], missing

    def cancel(self, number: int, sequence: int) -> tuple[list[Effect], bool]:
        client = self.clients[number]
        known = client.requests.get(sequence)
        started = known.starts > 0 if known is not None else client.state(sequence) == "finished"
        effects = self.finish(number, {sequence})
        ignored = sequence not in client.finished
        return effects, started or ignored

    def end(self, number: int) -> list[Effect]:
        client = self.clients[number]
        if client.requests and client.nonce not in self.goodbyes:
            self.unsettled.add(number)
        effects: list[Effect] = []
        for sequence in list(client.requests):
            effects += self._drop(number, sequence)
        client.ended = True
        return effects

    def lapsed(self, now_s: float) -> set[int]:
        return {
            n for n, c in self.clients.items()
            if not c.ended and now_s - c.heard_s > LEASE_S
        }  # fmt: skip

    def forget(self) -> None:
        for number, client in list(self.clients.items()):
            if client.ended and not any(run.session == number for run in self.runs):
                del self.clients[number]
