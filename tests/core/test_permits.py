"""Permits: what the router grants, what comes back, and how both sides of a link agree on it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core import messages, permits
from trio_envserve.core.errors import ProtocolError
from trio_envserve.core.executions import Execution
from trio_envserve.core.limits import LEAST_PER_S, MOST_PER_S, MOST_PERMITS
from trio_envserve.core.messages import Claim, ClaimsEnded, Granted
from trio_envserve.core.permits import SHOWN, OpenClaims, Permits
from trio_envserve.core.pool import LifeInput
from trio_envserve.core.ranges import Ranges
from trio_envserve.core.worker import RouterMessage

from .helpers import FIRST, OTHER, Pair, account_of, execution_on, worker_of


def claim(number: int, most: int = 1, name: str = "a", **more: Any) -> Claim:
    fields = {"per_s": None, **more}
    return Claim(0, number, name, 0 if fields["per_s"] else most, **fields)


class Machine:
    """The router's machine with one worker."""

    def __init__(self) -> None:
        self.permits, self.worker, self.now_s = Permits(), worker_of(), 100.0

    def runs(self) -> Execution:
        return execution_on(self.worker, account_of())

    def claims(self, *made: Claim, holder: Execution | None = None) -> Execution:
        """An execution makes these claims."""
        holder = holder or self.runs()
        for each in made:
            self.permits.claim(self.worker, holder, each)
        return holder

    def granted(self, after_s: float = 0.0, *, paused: bool = False) -> list[int]:
        """The numbers of the claims that are granted when so much time has passed."""
        self.now_s += after_s
        self.permits.tick(self.now_s)
        return [each.claim.number for each in self.permits.grant(self.now_s, paused=paused)]


# -- limits ------------------------------------------------------------------------------


def test_a_name_that_nobody_claims_is_forgotten():
    """A permit's name that is made anew for each rollout takes no memory (G8)."""
    machine = Machine()
    for number in range(1000):
        holder = machine.claims(claim(number, name=f"rollout {number}"))
        assert machine.granted() == [number]
        machine.permits.end(holder)
        machine.granted()
    assert (machine.permits.lines, machine.permits.due, machine.worker.claims) == ({}, {}, {})


# -- rates -------------------------------------------------------------------------------


def test_grants_of_a_rate_are_apart_and_some_are_granted_ahead():
    machine = Machine()
    machine.claims(*(claim(number, per_s=10.0) for number in range(5)))
    machine.permits.tick(machine.now_s)
    grants = machine.permits.grant(machine.now_s)
    assert [each.claim.number for each in grants] == [0, 1, 2]
    assert [each.after_s for each in grants] == pytest.approx([0.0, 0.1, 0.2])
    assert machine.granted(0.05) == []
    assert machine.granted(0.1) == [3]
    assert machine.granted(10.0) == [4]
    assert machine.worker.claims == {}, "a granted claim of a rate has ended"


def test_no_second_has_more_grants_than_the_rate():
    machine, at_s = Machine(), []
    for number in range(200):
        machine.claims(claim(number, per_s=7.0))
    for _ in range(400):
        machine.now_s += 0.1
        machine.permits.tick(machine.now_s)
        at_s += [machine.now_s + (s or 0.0) for _, s in machine.permits.grant(machine.now_s)]
    assert len(at_s) == 200
    assert all(later - earlier > 0.999 for earlier, later in zip(at_s, at_s[7:], strict=False))
    assert at_s[-1] < 200 / 7.0 + machine.now_s - 40.0 + 1.0, "none is lost to a late tick"


def test_names_of_rates_are_bounded(monkeypatch: pytest.MonkeyPatch):
    """Those of further ones wait until one is forgotten (G8)."""
    monkeypatch.setattr(permits, "RATES_MOST", 2)
    machine = Machine()
    machine.claims(*(claim(n, name=f"rollout {n}", per_s=0.1) for n in range(4)))
    assert machine.granted() == [0, 1]
    machine.claims(claim(5, name="rollout 0", per_s=10.0))
    machine.permits.ended(machine.worker, Ranges([2]))
    assert machine.granted(0.5) == []
    assert len(machine.permits.lines) == 3
    assert machine.granted(5.0) == []
    assert machine.granted(6.0) + machine.granted(1.0) == [5, 3], "a known name goes on"
    assert machine.granted(11.0) == []
    assert machine.permits.lines == {}


# -- malformed claims --------------------------------------------------------------------


def test_claims_at_the_ends_of_what_a_worker_may_state_are_taken():
    machine = Machine()
    ends = [claim(0), claim(1, most=MOST_PERMITS)]
    ends += [claim(2, per_s=LEAST_PER_S, name="b"), claim(3, per_s=MOST_PER_S, name="b")]
    machine.claims(*ends)
    assert len(machine.worker.claims) == 4


@pytest.mark.parametrize(
    "wrong",
    [
        claim(0, most=0), claim(0, most=MOST_PERMITS + 1), claim(0, per_s=LEAST_PER_S / 2),
        claim(0, per_s=2 * MOST_PER_S), claim(0, per_s=1.0)._replace(most=3),
        claim(0, name=""), claim(0, name="a\nb"), claim(0, name="ü" * 200),
    ],
    ids=["none", "too many", "too slow", "too fast", "both", "no name", "two lines", "long"],
)  # fmt: skip
def test_a_claim_that_no_worker_makes_is_malformed(wrong: Claim):
    machine = Machine()
    with pytest.raises(ProtocolError, match="a claim"):
        machine.claims(wrong)
    assert (machine.worker.claims, machine.permits.lines) == ({}, {})


def test_claims_of_a_worker_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(permits, "CLAIMS_MOST", 2)
    machine = Machine()
    machine.claims(*(claim(number) for number in range(2)))
    with pytest.raises(ProtocolError, match="more than 2 claims"):
        machine.claims(claim(2))
    machine.claims(claim(1))  # it is known


# -- what an earlier epoch has granted ---------------------------------------------------


def test_nothing_is_granted_before_workers_of_an_earlier_epoch_have_stated_their_claims():
    machine = Machine()
    back = worker_of()
    machine.permits.unstated.add(back)
    machine.claims(claim(0), claim(1, name="b"))
    machine.permits.claim(back, machine.runs(), claim(5)._replace(held=1))
    assert machine.granted() == [], "it may have more"
    machine.permits.unstated.remove(back)
    machine.permits.tick(machine.now_s)
    assert machine.granted() == [1], "the only permit of the first name is held"
    machine.permits.ended(back, Ranges([5]))
    assert machine.granted() == [0]


def test_a_worker_of_this_router_cannot_say_that_it_holds_a_permit():
    machine = Machine()
    machine.claims(claim(0), claim(1)._replace(held=1))
    assert machine.granted() == [0]


def test_held_permits_are_entered_above_the_limit():
    machine = Machine()
    machine.permits.unstated.add(machine.worker)
    holder = machine.claims(*(claim(number)._replace(held=1) for number in range(3)))
    machine.permits.unstated.clear()
    machine.claims(claim(9))
    assert machine.granted() == []
    machine.permits.ended(machine.worker, Ranges([0, 1]))
    assert machine.granted() == []
    machine.permits.end(holder)
    assert machine.granted() == [9]


def test_nothing_is_granted_while_an_earlier_epoch_may_live():
    machine = Machine()
    holder = machine.claims(claim(0), claim(1, name="b"))
    machine.claims(claim(2, name="c"))
    assert machine.granted(paused=True) == []
    assert machine.granted(paused=True) == []
    machine.permits.end(holder)
    assert machine.granted(paused=True) == []
    assert len(machine.permits.lines) == 1, "names are forgotten meanwhile"
    assert machine.granted() == [2]
    machine.permits.tick(machine.now_s)
    assert not machine.permits.due


def test_a_claim_of_an_execution_that_had_ended_is_none():
    machine = Machine()
    machine.permits.claim(machine.worker, None, claim(0))
    assert machine.worker.claims == {}


# -- anything ----------------------------------------------------------------------------


class Modelled:
    """The machine, and what may be held at any time by what the executions have stated."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.waiting: list[tuple[int, str, int]] = []
        self.held: list[tuple[int, str, int]] = []

    def grant(self) -> None:
        for number in self.machine.granted(0.1):
            made = next(each for each in self.waiting if each[0] == number)
            first = next(each for each in self.waiting if each[1] == made[1])
            assert made == first, "an older claim of the name waits"
            self.waiting.remove(made)
            self.held.append(made)
        for name in {each[1] for each in self.waiting}:
            held = [each for each in self.held if each[1] == name]
            mine = [each for each in (*held, *self.waiting) if each[1] == name]
            assert len(held) >= min(most for _, _, most in mine), "a permit is free"
        for _, name, most in self.held:
            assert sum(each[1] == name for each in self.held) <= most


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["claim", "claim", "end", "end all"]), st.sampled_from("ab"),
        st.integers(1, 4), st.integers(0, 30), st.booleans(),
    ),
    max_size=60,
)  # fmt: skip


@given(STEPS)
def test_any_order_of_claims_and_ends_grants_what_is_free_and_never_more(steps: Any):
    modelled = Modelled()
    machine, holders = modelled.machine, [modelled.machine.runs(), modelled.machine.runs()]
    of_holder: dict[int, int] = {}
    for number, (what, name, most, which, grants) in enumerate(steps):
        ended: set[int] = set()
        if what == "claim":
            of_holder[number] = which % 2
            machine.claims(claim(number, most, name), holder=holders[which % 2])
            modelled.waiting.append((number, name, most))
        elif what == "end":
            ended = {which}
            machine.permits.ended(machine.worker, Ranges([which]))
        else:
            ended = {n for n, holder in of_holder.items() if holder == which % 2}
            machine.permits.end(holders[which % 2])
        modelled.waiting = [each for each in modelled.waiting if each[0] not in ended]
        modelled.held = [each for each in modelled.held if each[0] not in ended]
        if grants:
            modelled.grant()
    modelled.grant()
    for holder in holders:
        machine.permits.end(holder)
    assert machine.granted() == []
    assert (machine.permits.lines, machine.worker.claims) == ({}, {})


# -- both ends of a link -----------------------------------------------------------------


def pair_of(calls: int, **how: Any) -> Pair:
    """A pair with executions that run."""
    pair = Pair(**how)
    pair.submit_many(calls)
    assert len(pair.runs) == calls
    return pair


def granted(pair: Pair) -> list[int]:
    """The numbers of the claims whose code went on, since the last call."""
    numbers = [number for _, number in pair.granted]
    pair.granted.clear()
    return numbers


def test_a_claim_is_granted_at_once_and_comes_back_with_its_block():
    pair = pair_of(2)
    pair.claim(0, pair.runs[0])
    pair.claim(1, pair.runs[1])
    assert granted(pair) == [0]
    pair.give_back(0)
    assert granted(pair) == [1]
    pair.give_back(1)
    pair.give_back(1)
    assert pair.router.dispatches.permits.lines == {}


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_a_permit_comes_back_with_the_report_of_its_execution(large: bool):
    """Also where only the size of its outcome is reported: its code has ended."""
    pair = pair_of(2, server={"kept_bytes": 10_000} if large else {})
    pair.claim(0, pair.runs[0])
    pair.claim(1, pair.runs[1])
    assert granted(pair) == [0]
    pair.end(pair.runs[0], bytes(100_000 if large else 10))
    assert granted(pair) == [1]


def test_a_permit_comes_back_with_the_proof_of_its_workers_death():
    pair = pair_of(2, workers=2, server={"worker_capacity": 1})
    assert [worker for worker, _ in pair.runs] == [FIRST, OTHER]
    pair.claim(0, pair.runs[0])
    pair.claim(0, pair.runs[1])
    assert pair.granted == [(FIRST, 0)]
    pair.die(FIRST)
    pair.advance(1.0)
    assert pair.granted == [(FIRST, 0), (OTHER, 0)]


@pytest.mark.parametrize("large", [False, True], ids=["ended", "its outcome waits"])
def test_a_late_claim_of_an_ended_execution_holds_nothing(large: bool):
    pair = pair_of(2, server={"kept_bytes": 10_000})
    with pair.losing(messages.WorkerOutcome if large else messages.Fetch):
        pair.end(pair.runs[0], bytes(100_000 if large else 10))
    assert (0 in pair.router.workforce.workers[FIRST].live) is large
    pair.from_worker(Claim(0, 7, "a", 1, None))
    pair.claim(8, pair.runs[1])
    assert granted(pair) == [8]
    pair.beat()
    assert [*pair.router.workforce.workers[FIRST].claims] == [8]


def test_an_execution_that_has_ended_claims_nothing():
    pair = pair_of(1)
    pair.end()
    pair.claim(0)
    assert (granted(pair), pair.router.workforce.workers[FIRST].claims) == ([], {})


def test_claims_before_any_hello_are_ignored():
    pair = Pair(hello=False)
    pair.from_worker(Claim(0, 0, "a", 1, None))
    pair.from_worker(ClaimsEnded([0, 1]))
    assert pair.router.dispatches.permits.lines == {}


def test_a_malformed_claim_ends_its_worker():
    pair = pair_of(1)
    pair.from_worker(Claim(0, 0, "a\nb", 1, None))
    assert [kill.worker for kill in pair.kills] == [FIRST]


def test_hostile_spans_of_claims_cost_nothing():
    pair = pair_of(1)
    pair.claim(0)
    pair.from_worker(ClaimsEnded([1, 2**62]))
    pair.from_worker(ClaimsEnded([0, 2**62]))
    assert pair.router.dispatches.permits.lines == {}
    pair.claim(1)
    core = pair.workers[FIRST]
    frames = (core.incarnation, messages.encode(Granted([0, 2**62], None)))
    pair.work(FIRST, core.take(RouterMessage(frames)))
    assert granted(pair) == [0, 1]


# -- a router that takes workers over ----------------------------------------------------


def test_a_next_router_learns_which_permits_are_held_before_it_grants_any():
    pair = pair_of(2)
    pair.claim(0, pair.runs[0])
    pair.claim(1, pair.runs[1])
    assert granted(pair) == [0]
    pair.take_over([0, 2], next=2)
    assert granted(pair) == []
    assert pair.router.dispatches.permits.records() == [
        {"name": "a", "limit": 1, "held": 1, "waiting": 1}
    ]
    assert not pair.router.dispatches.permits.unstated
    pair.give_back(0)
    assert granted(pair) == [1]


def test_a_worker_that_is_back_and_being_killed_kept_all_others_from_their_permits():
    """What it holds is known by its first beat, though its end may take as long as a lease."""
    pair = pair_of(2)
    pair.claim(0, pair.runs[0])
    with pair.losing(messages.Beat):
        pair.take_over([0, 2], next=2)
    life = pair.router.pool.lives[FIRST]
    pair.router.pool.step(life, LifeInput.KILL, pair.router.awake_s, "it is too many")
    assert life.leaving
    assert pair.router.dispatches.permits.unstated
    pair.beat()
    assert not pair.router.dispatches.permits.unstated
    assert pair.router.dispatches.permits.records()[0]["held"] == 1


def test_a_claim_that_was_on_its_way_to_the_earlier_router_was_granted_again():
    """A host sends what may not have arrived to the next router: a claim that the earlier one had
    granted.  The next one granted it once more, and others beside it."""
    pair = pair_of(2)
    pair.claim(0, pair.runs[0])
    assert granted(pair) == [0]
    pair.take_over([0, 2], next=2)
    pair.from_worker(Claim(0, 0, "a", 1, None))
    pair.claim(1, pair.runs[1])
    for _ in range(3):
        pair.beat()
        pair.advance(0.5)
    assert granted(pair) == []
    assert pair.router.dispatches.permits.records()[0]["held"] == 1


def test_a_worker_that_was_taken_over_and_dies_holds_up_nobody():
    pair = pair_of(2)
    with pair.losing(messages.RouterChanged):
        pair.take_over([0, 2], next=2)
    assert pair.router.dispatches.permits.unstated
    pair.die(FIRST)
    pair.advance(1.0)
    assert not pair.router.dispatches.permits.unstated


# -- what is said of them ----------------------------------------------------------------


def test_statistics_have_the_names_with_most_claims():
    pair = pair_of(1)
    for number in range(SHOWN + 8):
        pair.claim(number, name=f"name {number:02d}", most=3)
    for number in range(100, 105):
        pair.claim(number, name="busy", most=3)
    told = pair.router.stats()["permits"]
    assert told[0] == {"name": "busy", "limit": 3, "held": 3, "waiting": 2}
    assert [each["name"] for each in told[1:]] == [f"name {n:02d}" for n in range(SHOWN - 1)]


def test_a_rate_is_not_shown_under_the_name_of_a_limit():
    machine = Machine()
    machine.claims(
        claim(0), claim(1, per_s=0.1), claim(2, per_s=0.1), claim(3, name="b", per_s=0.1)
    )
    machine.granted()
    assert [each["name"] for each in machine.permits.records()] == ["a"], "nobody waits for b"
    machine.claims(claim(4, name="b", per_s=0.1))
    assert [each["name"] for each in machine.permits.records()] == ["a", "b"]


def test_a_claim_of_a_rate_has_ended_at_its_worker_with_its_grant():
    pair = pair_of(1)
    pair.claim(0, per_s=1000.0)
    pair.claim(1, per_s=1000.0)
    assert granted(pair) == [0, 1]
    assert pair.workers[FIRST]._claims.again() == []
    pair.advance(1.0)
    assert pair.router.dispatches.permits.lines == {}


def test_a_further_claim_of_a_rate_moves_no_look_at_it():
    machine = Machine()
    machine.claims(claim(0, per_s=0.1), claim(1, per_s=0.1))
    assert machine.granted() == [0]
    machine.claims(claim(2, per_s=0.1))
    assert machine.granted(0.1) == []
    machine.claims(claim(3, per_s=0.1))
    assert machine.granted() == []
    assert len(machine.permits._later) == 1
    assert machine.granted(10.0) == [1]


def test_claim_of_a_rate_that_comes_before_its_name_is_forgotten_is_granted_ahead():
    machine = Machine()
    for number in range(2):
        machine.claims(claim(number, per_s=0.1))
        assert machine.granted() == ([] if number else [0])
    assert machine.granted(9.9) == [1]


def test_claims_of_an_execution_that_has_ended_are_not_made_again():
    claims = OpenClaims()
    for execution in range(2):
        claims.make(claim(execution)._replace(number=execution))
    claims.end_of(0)
    assert [each.claim for each in claims.again()] == [1]
