"""Every order of a small system: what may happen in a state, when two states are one, rest,
and what cannot be searched so."""

from __future__ import annotations

import dataclasses
import threading
import time
from itertools import pairwise
from typing import Any

import pytest

from tests.retrylab.small import SMALL, Far, Near, of, whole, with_actors
from trio_envserve.retrylab import (
    Actor,
    AtMostOnce,
    Bag,
    Bounds,
    BrokenSystem,
    Choice,
    Counted,
    Event,
    Fault,
    Judge,
    OneTrueAnswer,
    Rule,
    System,
    Violation,
    check,
    explore,
    run,
)
from trio_envserve.retrylab.explore import TOLD_STATES, Exploration, Path, walk
from trio_envserve.retrylab.failure import explored_failure
from trio_envserve.retrylab.system import SETTLED


class Uncopied:
    def __reduce_ex__(self, protocol: Any) -> Any:
        raise OSError("no copies")


CIRCULAR: list[Any] = []
CIRCULAR.append(CIRCULAR)
ONE = Bounds(asks=1, faults=0)


def small(*faults: Fault, judges: Any = (), **actors: Any) -> System:
    return dataclasses.replace(with_actors(**actors), faults=set(faults), judges=judges)


class Retrying(Near):
    """Sends again after a second."""

    def on_ask(self, request: str, what: Any) -> None:
        super().on_ask(request, what)
        self.start_timer(request, 1.0)

    def on_timer(self, timer: str) -> None:
        self.send("far", (timer, "again"))
        self.start_timer(timer, 1.0)

    def on_message(self, sender: str, message: Any) -> None:
        super().on_message(sender, message)
        self.stop_timer(message[0])


def test_without_faults_one_ask_has_one_order():
    explored = explore(small(), ONE)
    assert explored.exhausted
    assert (explored.states, explored.depth) == (4, 3)  # it asks, it arrives, it is answered
    assert [ask.request for ask in explored.asks] == ["near#1"]
    assert explored.text().endswith(f"all within 0 faults and the asks {explored.asked()}")


def test_search_of_slow_states_was_taken_for_stuck():
    """It stated its progress every 500 states, and 500 may take a job's limit on a slow machine."""
    search = Exploration(small(Fault.LOSE, near=Retrying), Bounds(asks=1, faults=1))
    looked = [explored.looked for explored in search.run()]
    assert looked[-1] > TOLD_STATES
    assert max(after - before for before, after in pairwise([0, *looked])) <= 10


def test_asks_in_flight_go_in_every_order():
    class Ordered(Judge):
        def __init__(self) -> None:
            self.orders: tuple[str, ...] = ()

        def see(self, event: Event) -> list[Violation]:
            self.orders += (event.what,) if event.kind == "did" else ()
            wrong = self.orders == ("two", "one")
            return [event.breaks("in order", "two came first")] if wrong else []

    protocol = dataclasses.replace(
        small(judges=[Ordered]), actors={"near": Near, "other": Near, "far": Far}
    )
    asks = list(protocol.asks(None))  # type: ignore[arg-type]  # it draws nothing
    other = [asks[0], asks[1]._replace(actor="other")]
    explored = explore(dataclasses.replace(protocol, asks=lambda random: other), Bounds(faults=0))
    assert explored.violation == "in order at 0.000 s: two came first"


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        (Fault.LOSE, "lose"), (Fault.DUPLICATE, "double"), (Fault.REORDER, "delay"),
        (Fault.CUT, "cut"), (Fault.KILL, "kill"), (Fault.STOP, "stop"), (Fault.POWER, "power"),
        (Fault.HALF_OPEN, "lose"), (Fault.PARTITION, "lose"), (Fault.DRIFT, "clocks"),
    ],
)  # fmt: skip
def test_each_kind_of_fault_happens_and_is_all_that_does(fault: Fault, name: str):
    search = Exploration(small(fault, near=Retrying), Bounds(asks=1, faults=1))
    for _ in search.run():
        pass
    seen = {move[0] for move in search._numbers if move[0] != "clocks" or move[1]}
    usual = {"ask", "arrive", "timer", "stray", "continue"}
    assert seen - usual == {name}
    assert search.explored.exhausted


def test_a_doubled_message_is_done_twice_and_a_lost_answer_is_never_told():
    explored = explore(small(Fault.DUPLICATE, judges=[AtMostOnce]), Bounds(asks=1, faults=1))
    assert explored.violation is not None
    assert explored.violation.guarantee == "at most once"
    lost = explore(small(Fault.LOSE, judges=[OneTrueAnswer]), Bounds(asks=1, faults=1))
    assert lost.violation is not None
    assert "is never told" in lost.violation
    assert lost.path is not None
    assert lost.path.kinds() == [Fault.LOSE]
    assert "lost" in lost.path.schedule()[-2]


def test_a_loop_that_comes_back_to_the_same_state_is_exhausted():
    """Somebody asks again and again for ever, and looks at no clock."""

    class Deaf(Far):
        def on_message(self, sender: str, message: Any) -> None:
            """Never answers."""

    explored = explore(small(near=Retrying, far=Deaf), ONE)
    assert explored.exhausted
    assert explored.states < 20, "no more than it takes to be quiet"


def test_an_actor_that_looks_at_its_clock_has_other_states_at_other_times():
    class Looking(Far):
        def on_message(self, sender: str, message: Any) -> None:
            if self.now_s > 2.5:
                super().on_message(sender, message)

    system = small(near=Retrying, far=Looking, judges=[OneTrueAnswer])
    explored = explore(system, ONE)
    assert explored.exhausted
    assert explored.violation is None


def test_a_search_stops_at_so_many_states_and_check_says_so():
    system = small(Fault.LOSE, Fault.KILL, near=Retrying)
    explored = explore(system, Bounds(asks=2, faults=2, most_states=50))
    assert not explored.exhausted
    assert "not all within" in explored.text()
    with pytest.raises(AssertionError, match="make the bounds smaller, or most_states larger"):
        check(system, runs=0, exhaustive=Bounds(asks=2, faults=2, most_states=50))


def test_a_way_is_walked_again_to_the_same_violation():
    system = small(Fault.DUPLICATE, judges=[AtMostOnce])
    explored = explore(system, Bounds(asks=1, faults=1))
    assert explored.path is not None
    assert explored.violation in walk(system, explored.path).violations
    other = Path((*explored.path.moves, ("arrive", "far", "near")) * 3, ONE, ())
    with pytest.raises(ValueError, match=r"move \d+ cannot be made"):
        walk(system, other)


# -- choices, and notices --------------------------------------------------------------------


class Impatient(Near):
    """Its callers may give up."""

    def on_start(self) -> None:
        self.waits: list[str] = []

    def on_ask(self, request: str, what: Any) -> None:
        self.waits.append(request)
        super().on_ask(request, what)

    def on_message(self, sender: str, message: Any) -> None:
        if message[0] in self.waits:
            self.waits.remove(message[0])
            super().on_message(sender, message)

    def choices(self) -> list[Choice]:
        return [Choice("give up", (request,), bound="cancels") for request in self.waits]

    def on_choice(self, name: str, *args: Any) -> None:
        (request,) = args
        self.waits.remove(request)
        self.tell(request, name)


@pytest.mark.parametrize(("most", "given_up"), [(0, set()), (1, {1}), (2, {1, 2})])
def test_choice_with_a_bound_comes_as_often_as_that_says(most: int, given_up: set[int]):
    seen: set[int] = set()

    class Counting(Judge):
        def __init__(self) -> None:
            self.count = 0

        def see(self, event: Event) -> None:
            self.count += event.what == "give up"
            seen.add(self.count)

    system = small(near=Impatient, judges=[Counting])
    explored = explore(system, Bounds(faults=9, each={"cancels": most}))
    assert explored.exhausted
    assert seen - {0} == given_up


def test_fault_with_a_bound_of_its_own_leaves_the_others_theirs():
    system = small(Fault.LOSE, Fault.DUPLICATE, judges=[AtMostOnce])
    assert explore(system, Bounds(faults=2, each={"DUPLICATE": 0})).violation is None
    found = explore(system, Bounds(faults=2, each={"LOSE": 0}))
    assert found.violation is not None
    assert found.path is not None
    assert found.path.kinds() == [Fault.DUPLICATE]


class Repeating(Near):
    """Sends all that it has no answer to again, once nothing else happens."""

    def on_start(self) -> None:
        self.waits: list[tuple[str, Any]] = []

    def on_ask(self, request: str, what: Any) -> None:
        self.waits.append((request, what))
        super().on_ask(request, what)

    def on_message(self, sender: str, message: Any) -> None:
        if message in self.waits:
            self.waits.remove(message)
            super().on_message(sender, message)

    def choices(self) -> list[Choice]:
        return [Choice("repeat", when="idle")]

    def on_choice(self, name: str, *args: Any) -> None:
        for waits in self.waits:
            self.send("far", waits)


def test_idle_choice_repairs_what_was_lost_and_comes_where_nothing_else_does():
    system = small(Fault.LOSE, near=Repeating, judges=[OneTrueAnswer])
    explored = explore(system, Bounds(asks=1, faults=2))
    assert explored.exhausted
    assert explored.violation is None
    calm = explore(system, Bounds(asks=1, faults=0))
    assert calm.states == 4, "it asks, it arrives, it is answered, and nothing is repeated"


def test_choice_of_the_way_to_rest_repairs_and_finds_no_state():
    class AtRest(Repeating):
        def choices(self) -> list[Choice]:
            return [Choice("repeat", when="rest")]

    systems = [small(Fault.LOSE, near=near, judges=[OneTrueAnswer]) for near in (Repeating, AtRest)]
    idle, rest = (explore(system, Bounds(asks=1, faults=1)) for system in systems)
    assert (idle.violation, rest.violation) == (None, None)
    assert rest.states < idle.states


@pytest.mark.parametrize("when", ["", "patient"])
def test_patient_choice_is_counted_on_by_a_caller_who_waits_alone(when: Any):
    """Far works on what it is asked for, and holds it for ever unless its work ends."""

    class Working(Far):
        def on_start(self) -> None:
            self.work: list[tuple[str, Any]] = []

        def on_message(self, sender: str, message: Any) -> None:
            self.work.append((sender, message))
            self.began(message)

        def choices(self) -> list[Choice]:
            return [Choice("end", each, when=when) for each in self.work]

        def on_choice(self, name: str, *args: Any) -> None:
            sender, message = args
            self.work.remove((sender, message))
            self.ended(message)
            super().on_message(sender, message)

    class NothingHeld(Judge):
        def __init__(self) -> None:
            self.held = 0

        def see(self, event: Event) -> None:
            self.held += {"began": 1, "ended": -1}.get(event.kind, 0)

        def rest(self, at_s: float) -> list[Violation]:
            return [Violation("ends", at_s, "it is held for ever")] if self.held else []

    bounds = Bounds(asks=1, faults=1, each={"cancels": 1})
    system = small(near=Impatient, far=Working, judges=[NothingHeld])
    found = explore(system, bounds)
    assert (found.violation is None) == (when == "")
    waits = small(near=Near, far=Working, judges=[NothingHeld])
    assert explore(waits, bounds).violation is None


class Telling(Near):
    def on_ask(self, request: str, what: Any) -> None:
        self.send("far", (request, what))
        self.notify("far", (request, "notice"))


class Noticing(Far):
    def on_notice(self, peer: str, what: Any) -> None:
        assert peer == "near"
        self.did(*what)


def test_notice_is_never_lost_and_passes_messages():
    orders: set[tuple[str, ...]] = set()

    class Ordered(Judge):
        def __init__(self) -> None:
            self.order: tuple[str, ...] = ()

        def see(self, event: Event) -> None:
            self.order += (event.what,) if event.kind == "did" else ()

        def rest(self, at_s: float) -> None:
            orders.add(self.order)

    system = small(Fault.LOSE, Fault.CUT, Fault.REORDER, near=Telling, far=Noticing)
    system = dataclasses.replace(system, judges=[Ordered])
    assert explore(system, Bounds(asks=1, faults=2)).exhausted
    assert orders >= {("notice",), ("one", "notice"), ("notice", "one")}
    assert all("notice" in order for order in orders)
    ran = run(dataclasses.replace(system, judges=[whole(lambda events: [])]), 3)
    assert [each.what for each in of(ran, "did")].count("notice") == 2


class Greeting(Near):
    """Says hello before it is asked for anything."""

    def on_start(self) -> None:
        self.send("far", ("", "hello"))

    def on_message(self, sender: str, message: Any) -> None:
        if message[0]:
            super().on_message(sender, message)


class Polite(Far):
    def on_message(self, sender: str, message: Any) -> None:
        if message[0]:
            super().on_message(sender, message)
        else:
            self.send(sender, message)


def test_settled_search_begins_after_all_that_follows_from_the_start():
    system = small(near=Greeting, far=Polite)
    early, late = (
        explore(system, Bounds(asks=1, faults=0, settled=each)) for each in (False, True)
    )
    assert (early.exhausted, late.exhausted) == (True, True)
    assert late.states == 4 < early.states, "it asks, it arrives, it is answered"
    broken = small(near=Greeting, far=Far)  # it does what nobody has asked for
    found = explore(broken, Bounds(asks=1, faults=0, settled=True))
    assert found.violation is None, "an event may be for no request"


def test_instant_messages_arrive_in_the_move_that_sends_them_and_its_end_is_told():
    seen: list[tuple[Any, ...]] = []

    class Settled(Judge):
        def __init__(self) -> None:
            self.move: tuple[Any, ...] = ()

        def see(self, event: Event) -> None:
            self.move = (*self.move, event.what)
            if event.what == SETTLED:
                seen.append(self.move)
                self.move = ()

    class Counting(Far):
        def on_start(self) -> None:
            self.moves = 0

        def on_settled(self) -> None:
            self.moves += 1

        def on_rest(self) -> None:
            assert self.moves == 2

    system = small(far=Counting, judges=[Settled])
    explored = explore(system, Bounds(asks=1, faults=0, instant=True))
    assert explored.exhausted
    assert explored.violation is None
    assert explored.states == 2, "before and after it is asked, done and told"
    assert set(seen) == {(SETTLED,), ("one", "one", "one", SETTLED)}


def test_prompt_notices_arrive_in_the_move_that_gives_them_and_messages_do_not():
    class Noticing(Near):
        def on_ask(self, request: str, what: Any) -> None:
            self.notify("far", request)
            super().on_ask(request, what)

    class Noticed(Far):
        def on_start(self) -> None:
            self.known: tuple[Any, ...] = ()

        def on_notice(self, peer: str, what: Any) -> None:
            self.known = (*self.known, what)

    system = small(near=Noticing, far=Noticed)
    late, prompt = (
        explore(system, Bounds(asks=1, faults=0, prompt=prompt)) for prompt in (False, True)
    )
    assert prompt.exhausted
    assert prompt.states == 4 < late.states, "it asks, it arrives, it is answered"


# -- what is remembered, and which states are the same ---------------------------------------


def test_handler_runs_once_in_each_state_of_its_actor():
    calls: list[Any] = []

    class Noted(Far):
        def on_message(self, sender: str, message: Any) -> None:
            calls.append(message)
            super().on_message(sender, message)

    explored = explore(small(Fault.LOSE, Fault.DUPLICATE, far=Noted), Bounds(faults=2))
    assert explored.transitions > 100
    assert len(calls) == len(set(calls)) == 2


def test_actors_that_are_alike_are_exchanged():
    asks = list(small().asks(None))  # type: ignore[arg-type]  # it draws nothing
    other = [asks[0], asks[1]._replace(actor="other", what="one")]
    system = dataclasses.replace(
        small(), actors={"near": Near, "other": Near, "far": Far}, asks=lambda random: other
    )
    each = explore(system, Bounds(faults=0))
    once = explore(dataclasses.replace(system, alike=[["near", "other"]]), Bounds(faults=0))
    assert (each.exhausted, once.exhausted) == (True, True)
    assert once.states < each.states < 2 * once.states
    assert once.depth == each.depth
    with pytest.raises(BrokenSystem, match="alike: no actor 'nera'; did you mean near"):
        dataclasses.replace(system, alike=[["nera"]])


@dataclasses.dataclass
class Notes:
    """What an actor keeps."""

    count: int
    last: int
    log: list[str]


@pytest.mark.parametrize(
    ("rules", "exhausted"),
    [
        ({}, False),
        ({"count": Rule("only compared", lambda notes, n: Counted("count", "near", n))}, False),
        ({"log": Rule("for people"), "count": Rule("for people"), "last": Rule("why")}, True),
        (
            {
                "log": Rule("for people"),
                "count": Rule("only compared", lambda notes, n: Counted("count", "near", n)),
                "last": Rule("only compared", lambda notes, n: Counted("count", "near", n)),
            },
            True,
        ),
    ],
)
def test_attributes_are_compared_as_the_forms_say(rules: Any, exhausted: bool):
    """An actor that counts for ever has as many states as numbers, unless they do not count."""

    class Counting(Near):
        def on_start(self) -> None:
            self.notes = Notes(0, 0, [])

        def choices(self) -> list[Choice]:
            return [Choice("count")] if self.notes.count < 400 else []

        def on_choice(self, name: str, *args: Any) -> None:
            self.notes.last, self.notes.count = self.notes.count, self.notes.count + 1
            self.notes.log.append(name)

    system = dataclasses.replace(small(near=Counting), forms={Notes: rules})
    explored = explore(system, Bounds(asks=0, faults=0, most_states=100))
    assert explored.exhausted == exhausted
    assert (explored.states < 5) == exhausted


def test_form_may_be_a_function_and_a_bag_has_no_order():
    class Pair(tuple[int, int]):
        __slots__ = ()

    class Keeping(Near):
        def on_start(self) -> None:
            self.kept = Pair((1, 2))

        def choices(self) -> list[Choice]:
            return [Choice("turn")]

        def on_choice(self, name: str, *args: Any) -> None:
            self.kept = Pair(reversed(self.kept))

    bounds = Bounds(asks=0, faults=0)
    assert explore(small(near=Keeping), bounds).states == 2
    system = dataclasses.replace(small(near=Keeping), forms={Pair: lambda pair: Bag(tuple(pair))})
    assert explore(system, bounds).states == 1


def test_frozen_object_that_holds_a_list_is_copied():
    """It was shared by all states once, since nothing of it was thought to change."""

    @dataclasses.dataclass(frozen=True)
    class Held:
        items: list[int]

    class Keeping(Near):
        def on_start(self) -> None:
            self.held = Held([])

        def choices(self) -> list[Choice]:
            return [Choice("add")] if len(self.held.items) < 5 else []

        def on_choice(self, name: str, *args: Any) -> None:
            self.held.items.append(1)

    assert explore(small(near=Keeping), Bounds(asks=0, faults=0)).states == 6


# -- what is not right --------------------------------------------------------------------


def test_a_traceback_that_differs_each_time_is_the_same_violation():
    """The address of an object stood in it, and the way was said not to be the same twice."""

    class Fragile(Far):
        def on_message(self, sender: str, message: Any) -> None:
            raise ValueError(object())

    system = small(far=Fragile)
    failure = explored_failure(system, explore(system, ONE))
    assert failure is not None
    assert failure.guarantee == "CRASH"


def test_two_states_of_one_time_that_were_quiet_for_another_time_are_two():
    """The time since something was last done was not compared once a clock was looked at."""
    search = Exploration(small(), ONE)
    state, _ = search.space.first()
    one = state._replace(looked=True, now_s=3.0, since_s=1.0)
    assert search.space.key(one) != search.space.key(one._replace(since_s=2.0))


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        (lambda: threading.Lock(), "near keeps what two states cannot be compared by"),
        (lambda: Uncopied(), "near keeps what cannot be copied"),
        (lambda: lambda: 7, "near keeps what two states cannot be compared by"),
        (lambda: object(), "near keeps what two states cannot be compared by"),
        (lambda: CIRCULAR, "near keeps what two states cannot be compared by"),
    ],
)
def test_what_cannot_be_copied_or_compared_is_said_with_whose_it_is(kept: Any, words: str):
    class Keeping(Near):
        def on_start(self) -> None:
            self.kept = kept()

    with pytest.raises(BrokenSystem, match=words):
        explore(small(near=Keeping), ONE)


def test_a_system_that_never_rests_is_said():
    class Restless(Near):
        def on_start(self) -> None:
            self.count = 0

        def on_ask(self, request: str, what: Any) -> None:
            self.on_timer("again")

        def on_timer(self, timer: str) -> None:
            self.count += 1
            self.start_timer(timer, 0.0)

    with pytest.raises(BrokenSystem, match="it never rests: 5,000 moves without a fault"):
        explore(small(near=Restless), ONE)


def test_a_real_clock_is_found_by_walking_the_way_again():
    class Hurried(Far):
        def on_message(self, sender: str, message: Any) -> None:
            self.did(message[0], time.perf_counter_ns())

    def judge(events: Any) -> list[Violation]:
        return [event.breaks("never", str(event.what)) for event in of(events, "did")]

    system = small(far=Hurried, judges=[whole(judge)])
    with pytest.raises(BrokenSystem, match="every order is not the same run twice: an actor must"):
        explored_failure(system, explore(system, ONE))


def test_power_that_is_lost_before_a_sync_takes_any_of_the_writes():
    states: set[tuple[tuple[str, Any], ...]] = set()

    class Writing(Actor):
        def on_start(self) -> None:
            states.add(tuple(sorted(self.disk.items())))

        def on_message(self, sender: str, message: Any) -> None:
            self.disk["a"] = 1
            self.disk["b"] = 1
            self.disk.sync()
            self.disk["c"] = 1

    explored = explore(small(Fault.POWER, far=Writing), Bounds(asks=1, faults=1))
    assert explored.exhausted
    a, b, c = ("a", 1), ("b", 1), ("c", 1)
    assert states == {(), (a,), (b,), (a, b), (a, b, c)}
    assert SMALL.faults
