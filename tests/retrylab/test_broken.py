"""A protocol that is not right is said to be so in words, with its own traceback."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.retrylab.small import SMALL, Far, Near, of, run_small, whole, with_actors
from trio_envserve.retrylab import (
    Actor,
    Ask,
    BrokenSystem,
    Event,
    Fault,
    Run,
    Violation,
    check,
    run,
    search,
)
from trio_envserve.retrylab.campaign import ask
from trio_envserve.retrylab.failure import examine
from trio_envserve.retrylab.jobs import JobError


class Message:
    """Not an immutable value."""


def raising_in(handler: str, error: BaseException) -> type[Actor]:
    def raises(self: Actor, *args: Any) -> None:
        raise error

    return type("Raising", (Far,), {handler: raises})


def crash(ran: Run) -> str:
    (violation,) = ran.violations
    assert violation.guarantee == "CRASH"
    return violation.text


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("on purpose"), SystemExit(3), KeyboardInterrupt(), GeneratorExit()]
)
def test_an_actor_that_raises_is_a_violation_with_its_traceback(error: BaseException):
    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):  # somebody may have typed it
            run_small(protocol=with_actors(far=raising_in("on_message", error)))
        return
    text = crash(run_small(protocol=with_actors(far=raising_in("on_message", error))))
    first, second, *_ = text.splitlines()
    assert first == "far.on_message('near', ('near#1', 'one')) raised"
    assert second == "Traceback (most recent call last):"
    assert f'File "{__file__}"' in text
    assert "in raises" in text
    assert type(error).__name__ in text.splitlines()[-1]
    assert "foreign.py" not in text
    assert "protocols/process.py" not in text


def test_handler_that_is_misspelt_is_refused():
    """Nobody called it, and the run passed."""
    with pytest.raises(BrokenSystem, match="called on_mesage; did you mean on_message"):
        type("Misspelt", (Actor,), {"on_mesage": lambda self, sender, message: None})
    own = {"on_restart": lambda self: None, "on_start": lambda self: None, "on_commit": None}
    assert type("Own", (Actor,), own)().on_restart() is None


def test_an_actor_that_raises_is_found_made_small_and_drawn():
    class Fragile(Far):
        def on_message(self, sender: str, message: Any) -> None:
            super().on_message(sender, message)
            assert message[1] != "two", "not two"

    failure = search(with_actors(far=Fragile), runs=20)
    assert failure is not None
    assert failure.guarantee == "CRASH"
    assert [each.what for each in failure.plan.asks] == ["two"]
    assert "CRASH: an actor raised" in failure.text()
    assert "AssertionError: not two" in failure.text()
    assert "CRASH: broken" in failure.drawing[-1]


def test_an_actor_that_raises_as_it_is_made_or_starts():
    def make() -> Actor:
        raise OSError("no such thing")

    assert "far could not be made" in crash(run_small(protocol=with_actors(far=make)))
    assert "far.on_start() raised" in crash(
        run_small(protocol=with_actors(far=raising_in("on_start", OSError())))
    )


def test_what_a_handler_must_not_do_is_said_where_it_does_it():
    def doing(act: Any) -> type[Actor]:
        return type("Doing", (Near,), {"on_ask": lambda self, request, what: act(self, request)})

    wrong: dict[str, Any] = {
        "no actor 'fa'; did you mean far?": lambda near, request: near.send("fa", 1),
        "near sends to itself": lambda near, request: near.send("near", 1),
        "a list is not a plain, immutable value": lambda near, request: near.send("far", [1]),
        "a Message is not a plain": lambda near, request: near.tell(request, Message()),
        "nobody has asked for 'x'": lambda near, request: near.did("x", 1),
        "a timer of -1.0 s": lambda near, request: near.start_timer("x", -1.0),
        "a handler is a function of no result": lambda near, request: 7,
    }
    for words, act in wrong.items():
        text = crash(run_small(protocol=with_actors(near=doing(act))))
        assert words in text
        assert "near.on_ask('near#1', 'one')" in text


def test_a_coroutine_is_no_handler():
    class Waiting(Near):
        async def on_ask(self, request: str, what: Any) -> None:  # type: ignore[override]  # on purpose
            """Never runs."""

    assert "returned a coroutine" in crash(run_small(protocol=with_actors(near=Waiting)))


def test_an_actor_does_nothing_in_its_init_and_is_made_anew_each_time():
    class Early(Far):
        def __init__(self) -> None:
            self.send("near", 1)

    assert "use on_start" in crash(run_small(protocol=with_actors(far=Early)))
    one = Far()
    again = with_actors(far=lambda: one)
    assert run_small(protocol=again).violations == ()
    assert "was an actor before" in crash(run_small(protocol=again))
    not_one: Any = lambda: 7  # noqa: E731
    assert "is made as 7, which is not an Actor" in crash(
        run_small(protocol=with_actors(far=not_one))
    )


# -- what is not the protocol's failure, but a mistake in what was brought ----------------


def test_a_judge_that_raises_is_said_with_its_traceback():
    def judge(events: list[Event]) -> list[Violation]:
        return [Violation("x", 0.0, "", of(events, "asked")[7].request)]

    with pytest.raises(BrokenSystem) as raised:
        run(dataclasses.replace(SMALL, judges=[whole(judge)]), 3)
    text = str(raised.value)
    assert text.startswith("the judge raised (seed 3):\nTraceback")
    assert "IndexError" in text
    assert "in judge" in text
    assert "protocols/run.py" not in text


def test_a_judge_that_gives_something_else():
    judge: Any = lambda events: ["c0#1 is wrong"]  # noqa: E731
    with pytest.raises(BrokenSystem, match="values of the class Violation, not 'c0#1 is wrong'"):
        run(dataclasses.replace(SMALL, judges=[whole(judge)]), 0)


@pytest.mark.parametrize(
    ("asks", "words"),
    [
        (lambda random: 1 / 0, "asks raised (seed 5):"),
        (lambda random: ["x"], "values of the class Ask, not 'x'"),
        (lambda random: [Ask(1.0, "c0", "x")], "no actor 'c0'; there are near, far"),
        (lambda random: [Ask(-1.0, "near", "x")], "not -1.0"),
        (lambda random: [Ask(float("nan"), "near", "x")], "not nan"),
        (lambda random: [Ask(1.0, "near", ["x"])], "a list is not a plain"),
    ],
)
def test_what_callers_ask_for_is_looked_over(asks: Any, words: str):
    with pytest.raises(BrokenSystem) as raised:
        run(dataclasses.replace(SMALL, asks=asks), 5)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"actors": {}}, "needs actors"),
        ({"actors": {"a-b": Far}}, "not 'a-b'"),
        ({"actors": {"far": 7}}, "far is made by a class or a function"),
        ({"never_killed": ["fa"]}, "never_killed: no actor 'fa'; did you mean far?"),
        ({"faults": ["KILL"]}, "members of Fault, not 'KILL'"),
        ({"judges": None}, "judges is a list of classes"),
        ({"judges": [7]}, "a judge is made by a class or a function, not by 7"),
    ],
)
def test_a_protocol_is_looked_over_when_it_is_made(change: dict[str, Any], words: str):
    with pytest.raises(BrokenSystem) as raised:
        dataclasses.replace(SMALL, **change)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("describe", "words"),
    [
        (lambda message: 1 / 0, "describe raised"),
        (lambda message: 7, "describe gives a str, not 7"),
    ],
)
def test_a_message_that_cannot_be_described(describe: Any, words: str):
    broken = dataclasses.replace(
        with_actors(far=raising_in("on_message", OSError())), describe=describe
    )
    with pytest.raises(BrokenSystem, match=words):
        search(broken)


def test_a_run_that_never_ends_says_what_is_called_again_and_again():
    class Restless(Near):
        def on_ask(self, request: str, what: Any) -> None:
            self.start_timer("again", 0.0)

        def on_timer(self, timer: str) -> None:
            self.start_timer(timer, 0.0)

    with pytest.raises(BrokenSystem) as raised:
        run_small(protocol=with_actors(near=Restless))
    first, second, *_ = str(raised.value).splitlines()
    assert first.startswith("seed 0 never ends: 200,000 events")
    assert f'File "{__file__}", line' in second
    assert "Restless.on_timer: 199," in second


def test_luck_from_elsewhere_is_noticed():
    numbers = itertools.count()

    class Lucky(Near):
        def on_ask(self, request: str, what: Any) -> None:
            self.tell(request, next(numbers))

    def judge(events: list[Event]) -> list[Violation]:
        return [Violation("x", 0.0, "always")]

    with pytest.raises(BrokenSystem, match="seed 0 is not the same run twice"):
        examine(dataclasses.replace(with_actors(near=Lucky), judges=[whole(judge)]), 0)
    with pytest.raises(BrokenSystem, match="seed 4 is not the same run twice"):
        search(with_actors(near=Lucky), seed=4)


STUCK = """
from trio_envserve.retrylab import Actor, Ask, System

class Stuck(Actor):
    def on_ask(self, request, what):
        while True:
            what += 1

STUCK = System(
    actors={"c0": Stuck}, asks=lambda random: [Ask(1.0, "c0", 7)], judges=[]
)
"""


@pytest.mark.real
@pytest.mark.parametrize("do", ["search", "one"])
async def test_a_handler_that_never_returns_is_said_with_its_place(tmp_path: Path, do: str):
    (tmp_path / "stuck.py").write_text(STUCK)
    with pytest.raises(JobError) as raised:
        await ask(
            do, f"{tmp_path}/stuck.py:STUCK", seed=3, base=3, first=0, step=1, runs=1,
            seconds=None, trace=False, stuck_s=0.1,
        )  # fmt: skip
    text = str(raised.value)
    assert text.startswith("seed 3 has not ended after 0.3 s; it was here:")
    assert "stuck.py" in text
    assert "in on_ask" in text
    assert "foreign.py" not in text


def test_a_check_of_what_holds_says_nothing():
    check(SMALL, runs=5)
    assert search(SMALL, runs=5) is None
    assert examine(SMALL, 0) is None


def test_a_check_tells_all_though_its_judge_raises_where_nothing_was_done():
    def judge(events: list[Event]) -> list[Violation]:
        entry = of(events, "did")[0]  # raises when all asks are taken out of the schedule
        return [Violation("never", entry.at_s, "something was done", entry.request)]

    protocol = dataclasses.replace(SMALL, judges=[whole(judge)], faults=())
    with pytest.raises(AssertionError) as raised:
        check(protocol, runs=5)
    text = str(raised.value)
    assert "never\n  broken: at" in text
    assert "near asks near#1: one" in text
    assert "never: broken" in text
    assert "run(system, 0)" in text


def test_a_protocol_of_no_asks_is_at_rest_at_once():
    empty = dataclasses.replace(SMALL, asks=lambda random: [], faults={Fault.KILL})
    assert run(empty, 1).told == {"told": 0, "not told": 0}
