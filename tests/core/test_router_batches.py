"""A batch comes to the same as its rows one by one, with keys and without.

Two routers with the same ids are told the same: one in batches, the other row by row.  After
each batch both have said the same to each client, have dispatched the same, and hold the
same.  (Which worker gets what may differ: where several outcomes come together, several
places are free at once.)
"""

from __future__ import annotations

from collections import Counter
from typing import Any, TypeAlias

from hypothesis import example, given, settings
from hypothesis import strategies as st

from trio_envserve.core import messages
from trio_envserve.core.key_records import KeyAct
from trio_envserve.core.router_effects import ToClient, ToWorker
from trio_envserve.core.router_inputs import ClientMessage, WorkerMessage
from trio_envserve.core.terms import DIGEST_BYTES, Body

from .helpers import STRANGER, Pair, identifier

SESSIONS = 2
Row: TypeAlias = tuple[Any, ...]

REQUEST = st.tuples(
    st.just("ask"), st.integers(0, SESSIONS - 1), st.integers(0, 9), st.integers(0, 1)
)
KEYED = st.tuples(
    st.just("key"), st.integers(0, SESSIONS - 1), st.integers(10, 19), st.integers(0, 4),
    st.integers(0, 2), st.integers(0, 1),
)  # fmt: skip
BATCHES = st.lists(
    st.lists(REQUEST | KEYED, min_size=1, max_size=8)
    | st.lists(st.tuples(st.just("end"), st.integers(0, 9), st.integers(0, 3)), min_size=1),
    min_size=1,
    max_size=8,
)
BOUNDS = st.fixed_dictionaries(
    # Nothing waits for a place: who comes first of those that do may differ, since several
    # places are free at once.  The simulator has worlds of both kinds.
    {"worker_capacity": st.just(128), "window": st.sampled_from((3, 64))}
)


class Told:
    """A router, and what it is told in batches or row by row."""

    def __init__(self, bounds: dict[str, int], *, batched: bool) -> None:
        self.pair = Pair(workers=2, welcomed=False, server=bounds)
        self.batched = batched
        self.sessions = [self.pair.stranger(900 + n) for n in range(SESSIONS)]
        self.live: dict[tuple[bytes, int], tuple[bytes, int]] = {}
        """Worker and number of what runs, by request."""
        self.said: Counter[Any] = Counter()
        self.dispatched: list[tuple[bytes, int]] = []

    def take(self, rows: list[Row]) -> None:
        """All rows of a batch, and what came of them."""
        if rows[0][0] == "end":
            ended = list(dict.fromkeys(row[1] % max(1, len(self.live)) for row in rows))
            requests = sorted(self.live)
            self._ended([requests[n] for n in ended if requests])
        else:
            # A client's batch is of one session.  Of several the rows would take turns for
            # places: which of them come first is then another matter than what they come to.
            whose = rows[0][1]
            self._asked([self._request(whose, row) for row in rows])

    def _request(self, whose: int, row: Row) -> messages.Said:
        kind, _, sequence, *how = row
        session = self.sessions[whose]
        if kind == "ask":
            return messages.Request(session, sequence, identifier(how[0]), None, 1, None), b"asked"
        act, key, digest = how
        asked = messages.KeyedRequest(
            session, sequence, bytes([digest]) * DIGEST_BYTES, None, 1, None,
            identifier(700 + whose), act, b"default", b"key %d" % key, b"", None, False,
        )  # fmt: skip
        return asked, b"" if act else b"asked"

    def _asked(self, said: list[messages.Said]) -> None:
        for group in self._groups(said):
            for frames in messages.in_batches(group):
                self._give(ClientMessage(STRANGER, frames, self.pair.now_s))

    def _groups(self, said: list[messages.Said]) -> list[list[messages.Said]]:
        """What comes together.  What ends a key comes alone: with the ask for that key it
        would end what has not started, and after it what has."""
        groups: list[list[messages.Said]] = [[]]
        for each in said:
            ends = isinstance(each[0], messages.KeyedRequest) and each[0].act >= KeyAct.CANCEL
            if groups[-1] and (ends or not self.batched):
                groups.append([])
            groups[-1].append(each)
            if ends:
                groups.append([])
        return groups

    def _ended(self, requests: list[tuple[bytes, int]]) -> None:
        by_worker: dict[bytes, list[messages.Said]] = {}
        for session, sequence in requests:
            worker, number = self.live.pop((session, sequence))
            outcome = messages.WorkerOutcome(session, sequence, number, 0, 1.0)
            by_worker.setdefault(worker, []).append((outcome, b"%d" % sequence))
        for worker, said in by_worker.items():
            groups = [said] if self.batched else [[each] for each in said]
            before = worker, self.pair.workers[worker].incarnation, b"client"
            for group in groups:
                for frames in messages.in_batches(group):
                    self._give(WorkerMessage((*before, *frames), self.pair.now_s))

    def _give(self, given: Any) -> None:
        self.pair.give(given)
        for effect in self.pair.said():
            if isinstance(effect, ToClient):
                self.said[self._plain(effect.message, effect.body)] += 1
            elif isinstance(effect, ToWorker) and isinstance(effect.message, messages.Dispatch):
                request = effect.message.session, effect.message.sequence
                self.live[request] = effect.worker, effect.message.number
                self.dispatched.append(request)

    def _plain(self, message: Any, body: Body | None) -> Any:
        if isinstance(message, messages.Outcome):
            message = message._replace(worker="")
        return type(message).__name__, *message, body

    def picture(self) -> Any:
        """Everything that must not depend on what came together."""
        router = self.pair.router
        held = [
            (
                session.id, session.finished.flat(), session.queued_count, session.running_count,
                session.kept_count, session.kept_bytes, session.held_bytes,
                [
                    (n, entry.state, entry.executions, entry.body, entry.digest,
                     entry.kept and (entry.kept.outcome._replace(worker=""), entry.kept.payload))
                    for n, entry in session.entries.items()
                ],
            )
            for session in router.cache.sessions.values()
        ]  # fmt: skip
        keys = [
            (each.number, each.name, each.state, list(each.waiters), list(each.watchers))
            for each in router.keys.generations.values()
        ]
        counters = {**vars_of(router.cache.counters), "refused": 0}
        return self.said, sorted(self.dispatched), sorted(self.live), held, keys, counters


def vars_of(counters: Any) -> dict[str, int]:
    return {name: getattr(counters, name) for name in counters.__slots__}


@settings(derandomize=True, database=None, deadline=None, max_examples=100)
@given(BATCHES, BOUNDS)
@example(
    [[("ask", 0, n, n % 2) for n in (0, 1, 9, 2)], [("end", 0, 0), ("end", 1, 0)]],
    {"worker_capacity": 128, "window": 3},
)
def test_a_batch_comes_to_the_same_as_its_rows_one_by_one(
    batches: list[list[Row]], bounds: dict[str, int]
) -> None:
    compare(batches, bounds)


def compare(batches: list[list[Row]], bounds: dict[str, int]) -> None:
    """Take batches whole and row by row, and look whether both come to the same."""
    together, apart = Told(bounds, batched=True), Told(bounds, batched=False)
    for rows in batches:
        together.take(rows)
        apart.take(rows)
        assert together.picture() == apart.picture()
