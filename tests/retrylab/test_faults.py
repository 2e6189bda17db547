"""Each kind of fault, alone: what it does to the actors, and when it is over."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.retrylab.small import (
    PLAIN,
    SMALL,
    Far,
    Near,
    at,
    kinds,
    notes,
    of,
    plan_of,
    run_small,
    with_actors,
)
from trio_envserve.retrylab import Actor, Ask, AtMostOnce, Fault, NoLostAcknowledgement, run, sweep
from trio_envserve.retrylab.plan import Strike
from trio_envserve.retrylab.system import Clock


def test_without_faults_everybody_is_answered():
    ran = run_small()
    assert kinds(ran, "near#1") == kinds(ran, "near#2") == ["asked", "did", "told"]
    assert at(ran, "told") == [1.02, 2.02]
    assert ran.told == {"told": 2, "not told": 0}
    assert ran.faults == {}


def test_a_lost_message_is_gone_and_nobody_is_told():
    ran = run_small(rates=dataclasses.replace(PLAIN, loss=1.0))
    assert kinds(ran) == ["asked"]
    assert ran.faults == {Fault.LOSE.value: 2}
    assert ran.told == {"told": 0, "not told": 2}


def test_a_duplicated_message_comes_in_its_order_and_later_again():
    ran = run_small(rates=dataclasses.replace(PLAIN, duplicate=1.0))
    assert kinds(ran)[:3] == ["asked", "did", "told"]
    assert kinds(ran).count("did") == 2
    assert ran.faults[Fault.DUPLICATE.value] >= 4


def test_a_delayed_message_comes_once_and_late():
    ran = run_small(rates=dataclasses.replace(PLAIN, mangle=1.0, copies=(1,)), seed=3)
    assert kinds(ran).count("did") == 1
    assert at(ran, "did")[0] > 1.01
    assert ran.faults == {Fault.REORDER.value: 4}


def test_messages_overtake_each_other_only_where_they_may_be_delayed():
    class Talker(Near):
        def on_ask(self, request: str, what: Any) -> None:
            for n in range(20):
                self.send("far", (request, n))

    def order(rates_of: float) -> list[int]:
        rates = dataclasses.replace(PLAIN, delay_s=(0.001, 0.1), mangle=rates_of, copies=(1,))
        ran = run_small(protocol=with_actors(near=Talker), rates=rates)
        return [entry.what for entry in of(ran, "did", "near#1")]

    assert order(0.0) == list(range(20))
    late = order(0.5)
    assert sorted(late) == list(range(20))
    assert late != sorted(late)


class Listening(Actor):
    """Writes down which connections are gone."""

    def on_cut(self, peer: str) -> None:
        self.disk["cut"] = [*self.disk.get("cut", ()), (self.now_s, peer)]


class ListeningNear(Listening, Near):
    pass


class ListeningFar(Listening, Far):
    pass


LISTENING = with_actors(near=ListeningNear, far=ListeningFar)


def test_both_ends_hear_that_a_connection_is_cut_and_make_another_one():
    ran = run_small(Strike(1.5, Fault.CUT, "far", 0.2), protocol=LISTENING)
    assert "writes cut" in notes(ran, "near")
    assert "writes cut" in notes(ran, "far")
    assert kinds(ran, "near#2") == ["asked", "did", "told"]
    assert ran.faults == {Fault.CUT.value: 1}


def test_what_is_on_its_way_is_lost_with_its_connection():
    ran = run_small(Strike(1.005, Fault.CUT, "near", 0.2))
    assert kinds(ran) == ["asked"]
    assert notes(ran, "far-near") == ["->x LOST", "->", "<-"]


def test_there_is_no_connection_for_as_long_as_the_fault_lasts():
    ran = run_small(Strike(1.5, Fault.CUT, "near", 1.0))
    assert kinds(ran, "near#2") == ["asked"]


def test_a_half_open_connection_says_nothing_until_it_is_cut():
    ran = run_small(Strike(1.5, Fault.HALF_OPEN, "near", 1.0), protocol=LISTENING)
    assert kinds(ran, "near#2") == ["asked"]
    cuts = [record.at_s for record in ran.trace if record.what == "writes cut"]
    assert [round(at_s, 3) for at_s in cuts] == [2.501, 2.501]


@pytest.mark.parametrize("seed", range(6))
def test_the_late_cut_of_a_connection_that_is_gone_hits_no_other_one(seed: int):
    """It was half open when its end was killed, and there is a new one by then."""
    strikes = (Strike(1.5, Fault.HALF_OPEN, "near", 2.0), Strike(1.6, Fault.KILL, "far", 0.1))
    ran = run_small(*strikes, protocol=LISTENING, seed=seed)
    assert kinds(ran, "near#2") == ["asked", "did", "told"]
    assert notes(ran, "near").count("writes cut") == 1


def test_an_actor_that_is_killed_forgets_all_but_its_disk():
    class Counting(Near):
        def on_ask(self, request: str, what: Any) -> None:
            self.asked = getattr(self, "asked", 0) + 1
            self.tell(request, (self.asked, self.disk["lives"]))

    ran = run_small(Strike(1.5, Fault.KILL, "near", 0.1), protocol=with_actors(near=Counting))
    assert [entry.what for entry in of(ran, "told")] == [(1, 1), (1, 2)]
    assert notes(ran, "near").count("starts") == 2
    assert "died" in [entry.kind for entry in ran.history]


def test_an_actor_can_be_killed_between_two_of_its_acts():
    class TwoWrites(Far):
        def on_message(self, sender: str, message: Any) -> None:
            self.disk["first"] = 1
            self.disk["second"] = 1

    for act, written in ((1, []), (2, ["first"]), (3, ["first", "second"])):
        strike = Strike(0.5, Fault.KILL, "far", 0.1, act)
        asks = (Ask(1.0, "near", "one", "near#1"),)
        ran = run_small(strike, protocol=with_actors(far=TwoWrites), asks=asks)
        writes = [note for note in notes(ran, "far") if note.startswith("writes")]
        assert writes == [f"writes {name}" for name in written], act
        assert any(note.startswith("dies") for note in notes(ran, "far")) == (act < 3)


def test_no_except_keeps_an_actor_alive():
    class Stubborn(Far):
        def on_message(self, sender: str, message: Any) -> None:
            for _ in range(3):
                try:
                    self.disk["x"] = 1
                except BaseException:  # what somebody may write
                    continue

    strike = Strike(0.5, Fault.KILL, "far", 30.0, 1)
    ran = run_small(strike, protocol=with_actors(far=Stubborn))
    assert [n for n in notes(ran, "far") if n != "starts"] == ["dies: killed before it writes x"]


def test_what_a_killed_actor_raises_on_its_way_out_is_no_crash():
    class Raising(Far):
        def on_message(self, sender: str, message: Any) -> None:
            try:
                self.disk["x"] = 1
            finally:
                raise ZeroDivisionError

    killed = Strike(0.5, Fault.KILL, "far", 30.0, 1)
    assert run_small(killed, protocol=with_actors(far=Raising)).violations == ()
    assert "ZeroDivisionError" in run_small(protocol=with_actors(far=Raising)).violations[0]


def test_who_waits_in_a_killed_process_is_gone_and_who_has_not_asked_asks_the_next():
    ran = run_small(Strike(1.005, Fault.KILL, "near", 1.5))
    assert kinds(ran, "near#1") == ["asked", "did"]
    assert kinds(ran, "near#2") == ["asked", "did", "told"]
    assert at(ran, "asked")[1] == 2.505


def test_a_dead_actor_hears_nothing():
    ran = run_small(Strike(0.5, Fault.KILL, "far", 1.0))
    assert kinds(ran, "near#1") == ["asked"]
    assert kinds(ran, "near#2") == ["asked", "did", "told"]


def test_a_stopped_actor_does_it_all_when_it_goes_on():
    ran = run_small(Strike(0.5, Fault.STOP, "far", 2.0))
    assert at(ran, "did") == [2.5, 2.5]
    assert ran.faults == {Fault.STOP.value: 1}


class Ticking(Near):
    """Tells the time half a second after it was asked."""

    def on_ask(self, request: str, what: Any) -> None:
        self.start_timer(request, 0.4)
        self.start_timer(request, 0.5)
        self.start_timer("never", 0.5)
        self.stop_timer("never")

    def on_timer(self, timer: str) -> None:
        self.tell(timer, round(self.now_s, 6))


TICKING = with_actors(near=Ticking)


def test_a_timer_of_a_stopped_actor_runs_off_late_and_only_the_last_of_its_name():
    assert at(run_small(protocol=TICKING), "told") == [1.5, 2.5]
    ran = run_small(Strike(1.2, Fault.STOP, "near", 0.5), protocol=TICKING)
    assert at(ran, "told") == [1.7, 2.5]


def test_a_timer_dies_with_its_actor():
    ran = run_small(Strike(1.2, Fault.KILL, "near", 0.1), protocol=TICKING)
    assert at(ran, "told") == [2.5]


def test_a_fault_waits_for_somebody_to_strike():
    ran = run_small(Strike(0.1, Fault.CUT, "near", 0.1))
    assert ran.faults == {Fault.CUT.value: 1}
    assert 1.0 < next(r.at_s for r in ran.trace if r.who == "fault") < 1.2


@pytest.mark.parametrize("fault", Fault)
def test_every_kind_is_drawn_alone_strikes_and_is_over_in_the_end(fault: Fault):
    protocol = dataclasses.replace(SMALL, faults={fault})
    struck = 0
    for seed in range(60):
        ran = run(protocol, seed)
        assert ran.plan.kinds() in ([], [fault])
        assert set(ran.faults) <= {fault.value}
        struck += sum(ran.faults.values())
        assert not ran.violations
    assert struck > 5


def test_who_is_never_killed_is_not():
    protocol = dataclasses.replace(SMALL, faults={Fault.KILL}, never_killed={"near"})
    plans = [run(protocol, seed).plan for seed in range(60)]
    assert {strike.actor for plan in plans for strike in plan.strikes} == {"far"}
    nobody = dataclasses.replace(protocol, never_killed={"near", "far"})
    assert not any(run(nobody, seed).plan.strikes for seed in range(20))


def test_a_kind_is_taken_out_of_a_plan_alone():
    strikes = (Strike(1.0, Fault.KILL, "near", 0.1), Strike(1.2, Fault.STOP, "far", 0.1))
    rates = dataclasses.replace(PLAIN, loss=0.1, duplicate=0.2, mangle=0.3)
    plan = plan_of(*strikes, rates=rates)
    for fault in plan.kinds():
        assert set(plan.kinds()) - set(plan.without(fault).kinds()) == {fault}
    assert len(plan.kinds()) == 5


# -- partitions, disks, clocks --------------------------------------------------------------


def test_nothing_passes_between_two_sides_until_they_are_one_again():
    strike = Strike(0.5, Fault.PARTITION, "near", 1.0)
    ran = run_small(strike, protocol=LISTENING)
    assert kinds(ran, "near#1") == ["asked"]
    assert kinds(ran, "near#2") == ["asked", "did", "told"]
    assert ran.faults == {Fault.PARTITION.value: 1}


def test_a_partition_cuts_what_was_connected_when_it_is_over():
    strike = Strike(1.5, Fault.PARTITION, "near", 0.2)
    ran = run_small(strike, protocol=LISTENING)
    cuts = [round(record.at_s, 3) for record in ran.trace if record.what == "writes cut"]
    assert cuts == [1.701, 1.701]
    assert kinds(ran, "near#2") == ["asked", "did", "told"]


def test_actors_of_one_side_talk():
    strike = Strike(0.5, Fault.PARTITION, "near", 5.0, others=("far",))
    protocol = dataclasses.replace(SMALL, actors={**SMALL.actors, "third": Far})
    assert kinds(run_small(strike, protocol=protocol)) == ["asked", "did", "told"]
    assert strike.text() == "nothing passes between near, far and the others for 5.00 s"


class Writing(Far):
    """Writes each request, and makes safe every second."""

    def on_message(self, sender: str, message: Any) -> None:
        self.disk[message[0]] = True
        if message[1] == "two":
            self.disk.sync()
        super().on_message(sender, message)

    def on_rest(self) -> None:
        for request in self.disk:
            self.has(request)


def had(fault: Fault, at_s: float, seed: int) -> set[str]:
    """What far has in the end."""
    protocol = with_actors(far=Writing)
    ran = run_small(Strike(at_s, fault, "far", 0.1), protocol=protocol, seed=seed)
    return {event.request for event in ran.history if event.kind == "has"}


def test_power_that_is_lost_takes_only_what_was_not_synced_and_a_kill_takes_nothing():
    both = {"near#1", "near#2"}
    assert had(Fault.KILL, 1.5, 0) == both
    assert {frozenset(had(Fault.POWER, 1.5, seed)) for seed in range(10)} == {
        frozenset(both), frozenset({"near#2"})
    }  # fmt: skip
    assert all(had(Fault.POWER, 2.5, seed) == both for seed in range(10))


def test_wrong_clocks_show_another_time_and_count_another_one():
    plan = plan_of(asks=(Ask(1.0, "near", "one", "near#1"),))
    fast = dataclasses.replace(plan, clocks={"near": Clock(2.0, 10.0)})
    ran = run(TICKING, 0, plan=fast)
    (told,) = of(ran, "told")
    assert (told.at_s, told.what) == (1.25, 12.5)
    assert ran.faults == {Fault.DRIFT.value: 1}
    assert fast.kinds() == [Fault.DRIFT]
    assert "near's (2 s in a second, set 10 s ahead)" in "\n".join(fast.schedule())


def test_clocks_are_drawn_within_the_bounds_of_the_system():
    protocol = dataclasses.replace(SMALL, faults={Fault.DRIFT}, drift=0.2, ahead_s=3.0)
    clocks = {c for seed in range(60) for c in run(protocol, seed).plan.clocks.values()}
    assert {clock.rate for clock in clocks} == {0.8, 1.0, 1.2}
    assert {clock.ahead_s for clock in clocks} == {0.0, 3.0}


def test_a_sweep_crashes_before_every_act_once():
    protocol = dataclasses.replace(
        with_actors(far=Writing), faults={Fault.KILL, Fault.POWER}, never_killed={"near"},
        judges=[AtMostOnce, NoLostAcknowledgement],
    )  # fmt: skip
    whole, *crashed = sweep(protocol)
    assert whole.acts["far"] == 5  # two writes, a sync, two answers
    strikes = [strike for ran in crashed for strike in ran.plan.strikes]
    assert [(each.actor, each.act, each.fault, each.loses) for each in strikes] == [
        ("far", act, fault, loses)
        for act in range(1, 6)
        for fault, loses in (
            (Fault.KILL, ""), (Fault.POWER, "all"), (Fault.POWER, "all but the last")
        )
    ]  # fmt: skip
    assert all(len(of(ran, "died")) == 1 for ran in crashed)
    found = [ran.plan.strikes[0].act for ran in crashed if ran.violations]
    assert found == [3, 4, 4]  # near#1 was acknowledged, and is synced with near#2
    assert len(list(sweep(protocol, most=4))) <= 5
    assert "loses power with all of its unsynced writes before act 1 of" in strikes[1].text()


def test_a_message_that_is_changed_on_its_way_is_said():
    @dataclasses.dataclass(frozen=True)
    class Letter:
        text: str

    class Careless(Near):
        def on_ask(self, request: str, what: Any) -> None:
            letter = Letter(request)
            self.send("far", (request, letter))
            object.__setattr__(letter, "text", "another")

    (violation,) = run_small(protocol=with_actors(near=Careless)).violations
    assert "far gets a message that was changed on its way" in violation


def test_strike_on_an_actor_that_is_away_is_told_to_come_later():
    """The drawing showed the kill a second after the time in the schedule."""
    stopped, killed = Strike(1.0, Fault.STOP, "far", 2.0), Strike(2.0, Fault.KILL, "far", 0.5)
    later = Strike(3.5, Fault.KILL, "far", 0.5)
    told = plan_of(stopped, killed, later, Strike(2.0, Fault.KILL, "near", 0.5)).schedule()
    assert [line for line in told if "there again" in line] == [
        "  2.00 s  far is killed, and back after 0.50 s, once it is there again"
    ]
