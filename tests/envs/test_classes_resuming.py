"""Classes that are resumable: what their loop saves, and how a later execution goes on."""

from __future__ import annotations

import array
import re
from typing import Any

import pytest
import trio

from tests.envs.scripted import Scripted, calls, running
from tests.worker.helpers import SavesRouter
from trio_envserve import ConfigError, EncodingError
from trio_envserve.envs import load
from trio_envserve.envs.late import Late
from trio_envserve.models.interface import Completion, ContextFull
from trio_envserve.worker.failures import EnvironmentFailure
from trio_envserve.worker.runners import ExecutionContext


class Lost(BaseException):
    """The worker has died here."""


class Booking:
    """Books a seat with each turn."""

    resumable = True
    max_turns = 6
    booked: list[int]

    def reset(self, **_: Any) -> str:
        self.seats = 0
        return "Book."

    def book(self, seat: int) -> str:
        """Book a seat.

        Args:
            seat: Its number.
        """
        self.seats += 1
        type(self).booked.append(seat)
        return f"booked {seat}"

    def next_message(self, text: str) -> str | None:
        return None

    def get_reward(self) -> float:
        return float(self.seats)

    def snapshot(self) -> dict[str, int]:
        return {"seats": self.seats}

    def restore(self, state: dict[str, int]) -> None:
        self.seats = state["seats"]

    def oracle(self) -> list[Any]:
        return [*({"name": "book", "arguments": {"seat": n}} for n in range(1, 6)), "Done."]


@pytest.fixture(autouse=True)
def nothing_booked() -> None:
    Booking.booked = []


class Dying(Scripted):
    """Answers until a turn at which its worker dies."""

    def __init__(self, script: list[Any], dies_at: int = -1) -> None:
        super().__init__(script)
        self.dies_at = dies_at

    async def complete(self, messages: Any, **how: Any) -> Completion:
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn == self.dies_at:
            self.asked.append(list(messages))
            raise Lost
        return await super().complete(messages, **how)


def ids(*numbers: int) -> array.array[int]:
    return array.array("i", numbers)


def answer(turn: int) -> Completion:
    """An answer that books a seat, with tokens that continue those before."""
    before = ids(*range(1, 10 * turn))
    return Completion(
        "", tool_calls=calls(("book", {"seat": turn})).tool_calls, prompt_tokens=5,
        completion_tokens=2, prompt_ids=before, response_ids=ids(10 * turn, 10 * turn + 1),
        logprobs=array.array("f", [-0.5, -0.25]), weight_version=f"v{turn}",
        per_token={"routed_experts": [[1], [2]]}, version_starts=((0, f"v{turn}"),),
    )  # fmt: skip


SCRIPT = [*map(answer, range(1, 6)), Completion("Done.")]


async def execute(
    env: Any, router: SavesRouter, model: Any = None, *columns: str, endpoint: str = "scripted",
    late: Late | None = None, **more: Any,
) -> Any:  # fmt: skip
    async with running(env, model) as run:
        context = ExecutionContext(saves=router.saves, late=late or Late())
        return await run({}, *columns, endpoint=endpoint, context=context, **more)


async def dies_at(turn: int, before: bytes | None = None, env: Any = Booking) -> SavesRouter:
    """An execution whose worker dies as it asks for a turn; what it has saved."""
    router = SavesRouter(before)
    with pytest.raises(EnvironmentFailure) as failed:
        await execute(env, router, Dying(SCRIPT, turn))
    assert isinstance(failed.value.exception, Lost)
    return router


async def test_loop_saves_before_each_turn_and_says_which():
    router = SavesRouter()
    await execute(Booking, router, Scripted(SCRIPT))
    saved = [router.states(save)[0] for save in router.sent]
    assert [each["doing"] for each in saved] == [f"turn {n}" for n in range(1, 7)]
    assert [each["state"]["snapshot"] for each in saved] == [{"seats": n} for n in range(6)]


async def test_further_execution_goes_on_with_the_turn_that_is_in_doubt():
    columns = ("prompt", "turns", "tool_calls", "tool_errors", "in_doubt")
    whole = await execute(Booking, SavesRouter(), Scripted(SCRIPT), *columns)
    assert Booking.booked == [1, 2, 3, 4, 5]
    Booking.booked.clear()
    first = await dies_at(3)
    model = Scripted(SCRIPT)
    router = SavesRouter(first.sent[-1])
    result = await execute(Booking, router, model, *columns)
    assert Booking.booked == [1, 2, 3, 4, 5]
    assert len(model.asked) == 3
    assert result["state"].pop("in_doubt") == [4]
    assert whole["state"].pop("in_doubt") is None
    # Its answer was cut by the death, so nobody has counted it.
    assert result == whole


async def test_turns_of_several_executions_that_are_in_doubt_are_all_named():
    first = await dies_at(1)
    second = await dies_at(4, first.sent[-1])
    third = await dies_at(4, second.sent[-1])
    router = SavesRouter(third.sent[-1])
    result = await execute(Booking, router, Scripted(SCRIPT), "in_doubt")
    assert result["state"] == {"in_doubt": [2, 5, 5]}
    assert Booking.booked == [1, 2, 3, 4, 5]


async def test_first_turn_is_in_doubt_if_nothing_was_saved_after_it():
    first = await dies_at(0)
    result = await execute(Booking, SavesRouter(first.sent[-1]), Scripted(SCRIPT), "in_doubt")
    assert result["state"] == {"in_doubt": [1]}
    assert result["reward"] == 5.0


async def test_oracle_goes_on_where_it_was():
    first = await dies_at(2)
    result = await execute(Booking, SavesRouter(first.sent[-1]), endpoint="oracle")
    assert (result["reward"], Booking.booked) == (5.0, [1, 2, 3, 4, 5])


async def test_attempt_that_failed_is_followed_by_one_that_goes_on():
    class Failing(Booking):
        fails = True

        def book(self, seat: int) -> str:
            """Book a seat.

            Args:
                seat: Its number.
            """
            if seat == 3 and type(self).fails:
                type(self).fails = False
                raise SystemExit("no")
            return super().book(seat)

    result = await execute(Failing, SavesRouter(), Scripted(SCRIPT), "in_doubt", max_retries=1)
    assert (result["reward"], result["state"]) == (5.0, {"in_doubt": [3]})
    assert Failing.booked == [1, 2, 3, 4, 5]


async def test_turns_that_ran_out_count_those_of_before():
    class Short(Booking):
        max_turns = 4

    first = await dies_at(3, env=Short)
    model = Scripted(SCRIPT)
    result = await execute(Short, SavesRouter(first.sent[-1]), model)
    assert (result["stop"], len(model.asked)) == ("max_turns", 1)


async def test_full_context_ends_a_resumed_rollout_with_the_turns_of_before():
    def full(messages: Any) -> Completion:
        raise ContextFull("full")

    first = await dies_at(2)
    result = await execute(Booking, SavesRouter(first.sent[-1]), Scripted([full]))
    assert (result["stop"], result["usage"]["calls"]) == ("context", 2)


async def test_class_that_is_not_resumable_begins_anew():
    class Plain(Booking):
        resumable = False

        def snapshot(self) -> str:  # type: ignore[override]  # a tool here
            """Take a picture."""
            raise AssertionError

        def restore(self, state: str) -> None:  # type: ignore[override]
            """Put a picture back.

            Args:
                state: The picture.
            """

    first = await dies_at(2)
    router = SavesRouter(first.sent[-1])
    model = Scripted([Completion("Done.")])
    await execute(Plain, router, model)
    assert router.sent == []
    names = [each["function"]["name"] for each in model.tools[0]]
    assert names == ["book", "restore", "snapshot"]


async def test_snapshot_that_cannot_be_encoded_fails_the_rollout_and_names_it():
    class Bad(Booking):
        def snapshot(self) -> Any:
            return {"lock": object()}

    with pytest.raises(EnvironmentFailure) as failed:
        await execute(Bad, SavesRouter(), Scripted(SCRIPT))
    assert isinstance(failed.value.exception, EncodingError)
    assert str(failed.value.exception).startswith("save.state.snapshot.lock: ")


async def test_methods_that_are_coroutines_save_and_restore_on_the_loop():
    class OnLoop:
        resumable = True

        async def reset(self) -> str:
            self.restored = False
            return "?"

        async def snapshot(self) -> int:
            return 7

        async def restore(self, state: int) -> None:
            self.restored = state == 7

        async def get_reward(self) -> bool:
            return self.restored

    router = SavesRouter()
    assert (await execute(OnLoop, router, Scripted(["!"])))["reward"] == 0.0
    again = SavesRouter(router.sent[-1])
    assert (await execute(OnLoop, again, Scripted(["!"])))["reward"] == 1.0


SNAPSHOT, RESTORE = {"snapshot": lambda self: 0}, {"restore": lambda self, state: None}


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ({}, "Asks has resumable = True and no method snapshot: it needs snapshot()"),
        (SNAPSHOT, "Asks has resumable = True and no method restore"),
        (RESTORE, "Asks has resumable = True and no method snapshot"),
        (SNAPSHOT | {"restore": lambda self: None}, "is called as restore(state), and is no tool"),
        (RESTORE | {"snapshot": 3}, "Asks.snapshot must be a method, not int"),
        ({"resumable": "yes"}, "resumable must be True or False, not 'yes'"),
    ],
)
def test_class_that_says_resumable_and_is_not_is_refused_by_name(members: Any, told: str):
    reset = {"reset": lambda self: "?"}
    with pytest.raises(ConfigError, match=re.escape(told)):
        load(type("Asks", (), {"resumable": True, **reset, **members}))


async def test_class_that_saves_beside_its_loop_is_told_what_to_do():
    """Its state took the place of the loop's, and what went on from it failed by a KeyError."""

    class Saving(Booking):
        rollout: Any = None

        async def book(self, seat: int) -> str:  # type: ignore[override]  # it saves on the loop
            """Book a seat.

            Args:
                seat: Its number.
            """
            with pytest.raises(RuntimeError, match=r"return from snapshot\(\) what is to be kept"):
                await self.rollout.save(seat)
            return super().book(seat)

    result = await execute(Saving, SavesRouter(), endpoint="oracle")
    assert (result["reward"], result["stop"]) == (5.0, "answer")


async def test_class_that_is_late_while_it_saves_gives_what_it_has():
    """The save took the whole grace, and the turns that there were were lost."""
    router, moments = SavesRouter(), [0.0]

    class Slow(Scripted):
        async def complete(self, messages: Any, **how: Any) -> Completion:
            if self.asked:  # the next save is never answered, and the moment is near
                router.at_once = False
                moments.append(999.99)
            return await super().complete(messages, **how)

    late = Late(1000.0, lambda: moments[-1])
    with trio.fail_after(60):
        result = await execute(Booking, router, Slow(SCRIPT), late=late)
    assert (result["stop"], result["reward"]) == ("deadline", 2.0)
