"""The simulator finds nothing in what ships, and reaches everything that it should.

That it finds what is broken on purpose: `tests/fuzzing/test_mutants.py`.
"""

import dataclasses
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core import gate, messages
from trio_envserve.core.errors import ProtocolError
from trio_envserve.core.key_records import KeyAct
from trio_envserve.core.limits import ServerLimits
from trio_envserve.core.work import Refusal, Ticket, Work, WorkInput, Works, WorkState
from trio_envserve.lab.simulation.actors import SimServer, World, workers_of
from trio_envserve.lab.simulation.coverage import IMPOSSIBLE, POSSIBLE, RARE, name_of
from trio_envserve.lab.simulation.junk import KINDS, spoilt
from trio_envserve.lab.simulation.network import Frames, SimulatedLink, SimulatedNetwork
from trio_envserve.lab.simulation.plan import (
    CONFIGURATIONS,
    DRAWN_APART,
    PLAIN_BOUNDS,
    PLAIN_MESSAGE_BYTES,
    PLAIN_SPREAD_S,
    FaultKind,
    KeyUse,
    PlannedAsk,
    SimulationPlan,
    body_of,
    brings,
    draw,
    have_keys,
    is_harsh,
    kinds_of,
    plan_of,
)
from trio_envserve.lab.simulation.simulator import SimulationRun, run
from trio_envserve.retrylab.values import from_data

SEEDS = 80
"""Each is run usual and harsh: half of that by each of two tests."""


def violations(runs: Sequence[SimulationRun]) -> str:
    """Seeds and what broke first in them, in lines."""
    return "\n".join(f"seed {each.seed}: {each.violations[0]}" for each in runs if each.violations)


def test_no_seed_violates_a_guarantee():
    """The first ones, harsh and not."""
    few = range(SEEDS // 8)
    assert violations([run(seed, harsh=harsh) for seed in few for harsh in (True, False)]) == ""


@pytest.mark.slow
def test_no_seed_violates_a_guarantee_drawn_in_both_ways():
    """The even ones harsh.  Those that are drawn the other way are below."""
    assert violations([run(seed, harsh=seed % 2 == 0) for seed in range(SEEDS)]) == ""


def test_g6_a_request_that_waits_and_is_said_to_be_finished_when_it_comes_again_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
):
    request = Works.request

    def forgets(works: Works, session: Any, ask: Any, *rest: Any) -> Any:
        if ask.sequence in session.tickets:
            works.refuse(session, ask.sequence, Refusal.SPENT, rest[-1])
            return None
        return request(works, session, ask, *rest)

    monkeypatch.setattr(Works, "request", forgets)
    assert run(1, harsh=True).violations[0].guarantee == "G6"


def ask_of_a_key(name: str, at_s: float, cancel_after_s: float | None) -> PlannedAsk:
    return dataclasses.replace(
        plan_of(2).asks[0][0], key=name, at_s=at_s, behaviour="return", duration_s=7.0, rerun=None,
        max_executions=4, limit_s=None, cancel_after_s=cancel_after_s,
        body=body_of("a.k/x", "return", 7.0), use=KeyUse(KeyAct.ASK, "a", "k"),
    )  # fmt: skip


def test_g7_a_caller_whose_work_is_cancelled_though_nobody_has_asked_for_that_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
):
    """The process of a caller leaves a key by name, by a message that comes late, and is killed;
    the next one asks for the key again."""
    again = [ask_of_a_key(f"c0:again{n}", 0.9 + n / 10, None) for n in range(3)]
    plan = plan_of(2).change(
        FaultKind.MANGLE, FaultKind.KILL_CLIENT, FaultKind.KEYS, less=plan_of(2).faults,
        moments=((0.6, FaultKind.KILL_CLIENT),), busy_s=5.0, mangle=0.4, loss=0.0, clients=2,
        asks=((ask_of_a_key("c0:left", 0.1, 0.4), *again), (ask_of_a_key("c1:other", 0.05, 4.0),)),
        server={**PLAIN_BOUNDS, "worker_capacity": 8},
    )  # fmt: skip
    seeds = range(64, 96)
    assert violations([run(seed, plan=plan) for seed in seeds]) == ""
    replace = Works._replace

    def replaces_later_ones_too(works: Works, work: Work, ticket: Ticket) -> None:
        number, ticket.session.number = ticket.session.number, 1 << 30
        replace(works, work, ticket)
        ticket.session.number = number

    monkeypatch.setattr(Works, "_replace", replaces_later_ones_too)
    found = [str(each) for seed in seeds for each in run(seed, plan=plan).violations]
    assert any("is cancelled, and nobody has asked for that" in each for each in found), found


@pytest.mark.slow
def test_no_seed_violates_a_guarantee_and_the_runs_are_worth_something():
    """The odd ones harsh, as `trio-envserve fuzz` has them."""
    runs = [run(seed, harsh=seed % 2 == 1) for seed in range(SEEDS)]
    assert violations(runs) == ""
    faults = Counter[str]()
    pairs = Counter[str]()
    told = Counter[str]()
    for each in runs:
        faults.update(each.faults)
        pairs.update(each.pairs)
        told.update(each.told)
    apart = {FaultKind.DAMAGED_READ, FaultKind.PERMITS, FaultKind.SAVES, *kinds_of("host")}
    rare = {fault.value for fault in apart}  # see others here
    assert {fault.value for fault in FaultKind} - rare == set(faults) - rare
    for what in ("result", "error worker-lost", "fail server-lost", "fail never-started"):
        assert told[what] > 10, told
    # The least of a run; what all together reach.
    assert min(each.asked for each in runs) >= 50
    assert min(each.plan.clients for each in runs) == 2
    assert min(each.plan.workers for each in runs if not brings("range", each.seed)) == 2
    assert min(sum(each.faults.values()) for each in runs) >= 5
    assert pairs.keys() <= {name_of(pair) for pair in POSSIBLE}
    assert len(pairs) >= len(POSSIBLE) - 3, set(map(name_of, POSSIBLE)) - pairs.keys()


def test_some_pools_grow_and_shrink_and_none_does_so_by_a_wrong_number():
    """The judge counts processes: neither too many, nor too few, nor one without need."""
    seeds = [seed for seed in range(20_000, 20_080) if brings("range", seed)]
    runs = [run(seed, harsh=is_harsh(seed)) for seed in seeds]
    assert violations(runs) == ""
    assert {each.plan.has(FaultKind.ELASTIC) for each in runs} == {True}
    assert sum(each.faults.get(FaultKind.ELASTIC.value, 0) for each in runs) > 2 * len(runs)
    assert not any(plan_of(seed).most_workers for seed in range(100) if not brings("range", seed))


def test_some_servers_pause_and_all_goes_on():
    seeds = [seed for seed in range(20_000, 20_100) if brings("pauses", seed)]
    runs = [run(seed, harsh=is_harsh(seed)) for seed in seeds]
    assert violations(runs) == ""
    assert {each.plan.has(FaultKind.PAUSES) for each in runs} == {True}
    assert sum(each.faults.get(FaultKind.PAUSES.value, 0) for each in runs) > len(runs)


def test_workers_that_speak_junk_are_replaced_and_nobody_waits_for_them():
    """Each kind of it: such a worker is dead at the end, whatever it is that nobody hears."""
    spoken = Counter[str]()
    for seed in (seed for seed in range(20_000, 20_190) if brings("junk", seed)):
        world = World(seed, harsh=is_harsh(seed))
        world.run()
        assert world.violations == [], seed
        spoke = [each for each in workers_of(world.servers) if each.junk]
        assert not any(worker.alive for worker in spoke), seed
        spoken.update(worker.junk for worker in spoke)
    assert spoken.keys() == KINDS.keys()


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"another incarnation", "nothing"}))
@given(
    st.sampled_from([
        messages.Beat(b"", 1, 0, [0, 1], {"running": 1}),
        messages.WorkerHello(2, 1, "env", False, 9),
        messages.Announced(bytes(16), 0, 0, 5), messages.WorkerOutcome(bytes(16), 0, 0, 0, 1.0),
    ]),
    st.integers(),
)  # fmt: skip
def test_no_junk_is_a_message(kind: str, message: messages.Message, seed: int):
    """Or it is of another session's request."""
    header, name = messages.encode(message), b"i" * 16
    body = isinstance(message, messages.WorkerOutcome)
    frames = spoilt([name, b"c", header, b"body"] if body else [name, header], kind, Random(seed))
    if not frames or frames[0] != name or len(frames) != (4 if body else 2):
        return
    try:
        read, _ = messages.read(frames[len(frames) // 2 :], most_bytes=1 << 20)[0]
    except ProtocolError:
        return
    assert getattr(read, "session", b"") != bytes(16)


def test_the_first_dispatches_are_spread_and_nobody_starves_because_of_that():
    seeds = [seed for seed in range(20_000, 20_060) if brings("spread", seed)]
    runs = [run(seed, harsh=is_harsh(seed)) for seed in seeds]
    assert violations(runs) == ""
    assert {each.plan.has(FaultKind.SPREAD) for each in runs} == {True}
    assert sum(each.faults.get(FaultKind.SPREAD.value, 0) for each in runs) > len(runs)


def test_every_pair_of_state_and_input_is_possible_or_has_a_reason():
    assert set(POSSIBLE) | IMPOSSIBLE.keys() == {(s, i) for s in WorkState for i in WorkInput}
    assert not set(POSSIBLE) & IMPOSSIBLE.keys()
    assert len(POSSIBLE) == 63
    assert RARE.keys() <= set(POSSIBLE)


STAYING = 429
"""A seed whose plan has work that stays after its cancel (`keyed_asks`)."""


def test_a_client_is_away_for_longer_than_its_orphan_deadline_while_its_key_is_held():
    reached = run(STAYING).pairs
    for state in (WorkState.HELD, WorkState.WAITING):
        assert reached[name_of((state, WorkInput.ORPHANED))]
    assert reached[name_of((WorkState.HELD, WorkInput.LOSE))]


@pytest.mark.slow
def test_every_pair_that_can_occur_does():
    """`trio-envserve fuzz --seed 0 --runs 1500` in short: seeds without keys add nothing."""
    reached = set[str]()
    for seed in filter(have_keys, range(1500)):
        reached.update(run(seed, harsh=is_harsh(seed)).pairs)
    rare, possible = (set(map(name_of, each)) for each in (RARE, POSSIBLE))
    assert reached | rare == possible


@pytest.mark.parametrize("harsh", [False, True], ids=["usual", "harsh"])
def test_keys_leave_the_rest_of_a_plan_as_it_was_before_there_were_any(harsh: bool):
    for seed in range(20):
        plan, before = plan_of(seed, harsh=harsh), draw(Random(seed * 2 + harsh), harsh=harsh)
        assert plan.has(FaultKind.KEYS) == have_keys(seed)
        assert (plan != before) == any(brings(what, seed) for what in DRAWN_APART)
        for fault in (
            FaultKind.KEYS, FaultKind.ELASTIC, FaultKind.PAUSES, FaultKind.SPREAD, FaultKind.JUNK,
        ):  # fmt: skip
            plan = plan.without(fault)
        assert (plan.asks, plan.faults) == (before.asks, before.faults)


@pytest.mark.parametrize("hosts", [False, True], ids=["here", "hosts"])
@pytest.mark.parametrize("more", sorted({"", *CONFIGURATIONS} - {"hosts"}))
def test_plan_is_the_same_as_data_whatever_is_in_it(more: str, hosts: bool):
    kinds = {kind for name, (kind, _) in CONFIGURATIONS.items() if name == more}
    kinds |= {FaultKind.HOSTS} if hosts else set()
    for seed in range(30):
        plan = plan_of(seed, harsh=is_harsh(seed), hosts=hosts, **{more: True} if more else {})
        plan = dataclasses.replace(plan, crash_at_write=seed)
        data = json.loads(json.dumps(plan.to_data()["plan"]))
        assert from_data(SimulationPlan, data) == plan
        assert plan.faults & {kind for kind, _ in CONFIGURATIONS.values()} == kinds


def test_plan_of_a_time_before_there_was_a_journal_is_read():
    data = plan_of(0).to_data()["plan"]
    del data["sync_s"], data["crash_at_write"]
    assert from_data(SimulationPlan, data) == plan_of(0)


def test_callers_meet_at_keys():
    """They join, attach, get what was retained, collide, cancel and forget, come back."""
    asked, told = Counter[KeyAct](), Counter[str]()
    met = again = 0
    for seed in filter(have_keys, range(40)):
        world = World(seed, harsh=seed % 2 == 1)
        world.run()
        calls = [call for call in world.judge.calls.values() if call.use is not None]
        acts = [(call.use.act, call.told) for call in calls if call.use is not None]
        asked.update(act for act, _ in acts)
        told.update(call.told for call in calls)
        ran = {each.key for runs in world.judge.runs.values() for each in runs if "/" in each.key}
        met += acts.count((KeyAct.ASK, "result")) > len(ran)
        again += any(call.key.endswith("'") for call in calls)
    by_callers = {*KeyAct} - {KeyAct.LEAVE}  # clients leave by themselves
    assert min(asked[act] for act in by_callers) > 5, asked
    for what in ("result", "fail unknown-key", "fail key-conflict", "cancelled never-started"):
        assert told[what] > 1, told
    assert met > 3
    assert again > 1


def test_what_cannot_occur_is_a_violation():
    world = World(0, plan=few_calls())
    world.pairs[WorkState.HELD, WorkInput.REPORT] += 1
    world.run()
    (violation,) = world.violations
    assert violation.guarantee == "CRASH"


def test_less_in_a_plan_leaves_the_luck_of_the_others():
    """So that a failure stays the same when what it does not need is taken away."""
    plan = few_calls()
    both = World(0, plan=plan, trace=True)
    alone = World(0, plan=dataclasses.replace(plan, asks=plan.asks[:1]), trace=True)
    for world in (both, alone):
        world.run(lambda: False)
    firsts = [
        [(r.at_s, r.what) for r in world.events.trace or () if r.who == "c0"][:6]
        for world in (both, alone)
    ]
    assert firsts[0] == firsts[1]
    assert len(firsts[0]) == 6


def few_calls() -> SimulationPlan:
    """Four calls of two clients, half of them cancelled, and no fault at all."""
    asks = tuple(
        tuple(
            PlannedAsk(
                key=f"c{client}:{n}",
                at_s=0.8 + 0.1 * n,
                behaviour="return",
                duration_s=0.2,
                rerun=None,
                max_executions=2,
                limit_s=None,
                cancel_after_s=0.1 if n % 2 else None,
                body=f"c{client}:{n}|{'hang' if n % 2 else 'return'}|0.2|".encode(),
            )
            for n in range(2)
        )
        for client in range(2)
    )
    plan = plan_of(0)
    return dataclasses.replace(
        plan, faults=frozenset(), moments=(), busy_s=0.9, clients=2, workers=2, asks=asks,
        loss=0.0, mangle=0.0, server=ServerLimits(tick_s=0.2, spread_s=PLAIN_SPREAD_S),
        message_bytes=PLAIN_MESSAGE_BYTES,
    )  # fmt: skip


def test_any_single_lost_message_is_repaired_within_seconds(monkeypatch: pytest.MonkeyPatch):
    """Between clients and servers, in either direction (G9).  The link of a worker loses none."""
    arrive = SimulatedNetwork._arrive
    count = lost = 0

    def lose_one(network: SimulatedNetwork, link: SimulatedLink, frames: Frames, up: bool) -> None:
        nonlocal count
        count += not link.is_stream
        if count - 1 == lost and not link.is_stream:
            network.events.note_message(link.name, "LOST", frames)
        else:
            arrive(network, link, frames, up)

    monkeypatch.setattr(SimulatedNetwork, "_arrive", lose_one)
    lost = -1
    quick = World(0, plan=few_calls())
    quick.run()
    messages, lost = count, 0
    assert messages > 8
    for lost in range(messages):
        count = 0
        world = World(0, plan=few_calls())
        world.run()
        assert not world.violations, lost
        slowest_s = max(call.told_s - call.asked_s for call in world.judge.calls.values())
        assert slowest_s < 3.0, lost
        assert world.events.now_s < quick.events.now_s + 3.0, lost


@pytest.mark.parametrize("seed", range(4))
def test_answers_in_portions_of_one_break_nothing(seed: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gate, "BUDGET", 1)
    for harsh in (False, True):
        assert run(seed, harsh=harsh).violations == ()


@pytest.mark.parametrize("harsh", [False, True], ids=["usual", "harsh"])
def test_a_seed_always_gives_the_same_run(harsh: bool):
    runs = [run(7, harsh=harsh, trace=trace) for trace in (False, True)]
    assert runs[0].digest == runs[1].digest
    assert runs[0].events == runs[1].events
    assert run(8, harsh=harsh).digest != runs[0].digest


@pytest.mark.real
def test_a_run_does_not_depend_on_the_order_of_hashes():
    module = "trio_envserve.lab.simulation.simulator"
    program = f"from {module} import run; print(run(11, harsh=True).digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            timeout=300,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_a_crash_of_a_core_is_a_violation(monkeypatch: pytest.MonkeyPatch):
    def crash(*args: object) -> None:
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(SimServer, "_from_client", crash)
    one = run(1)
    assert one.violations[-1].startswith("CRASH")
    assert "on purpose" in one.violations[-1]
