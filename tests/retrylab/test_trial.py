"""Trio code as it is, under faults: the same run each time, killed, cut off, and judged.  The
programs are those of the page."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.retrylab.small import of, plan_of
from trio_envserve.retrylab import (
    Ask,
    BrokenSystem,
    Fault,
    check,
    explore,
    load_failure,
    replay,
    run,
    save_failure,
    search,
)
from trio_envserve.retrylab.plan import Strike
from trio_envserve.retrylab.trial import Program, ProgramStream

PAGE = Path(__file__).parent.parent.parent / "docs" / "trio-programs.md"
PROGRAM = re.search(
    r"^<!-- file: booking.py -->\n```python\n(.*?)^```$",
    PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL,
)  # fmt: skip
assert PROGRAM is not None
booking: Any = ModuleType("booking")
exec(compile(PROGRAM[1], PAGE, "exec"), vars(booking))

GOOD, HASTY = booking.BOOKING, booking.HASTY
ONE = (Ask(1.0, "client", "4a", "client#1"),)


def test_programs_talk_over_streams_on_a_virtual_clock():
    ran = run(GOOD, 0, plan=plan_of(asks=ONE), trace=True)
    (told,) = of(ran, "told")
    assert told.what == "4a"
    assert told.at_s == pytest.approx(1.32)  # two messages of 10 ms, and the work
    assert ran.violations == ()


def test_a_seed_is_the_same_run_each_time():
    digests = [run(GOOD, seed).digest for seed in range(6)]
    assert digests == [run(GOOD, seed, trace=True).digest for seed in range(6)]
    assert len(set(digests)) == 6


def test_correct_programs_are_clean_under_faults():
    check(GOOD, runs=60)


def test_a_race_is_found_made_small_drawn_and_replayed(tmp_path: Any):
    failure = search(HASTY, runs=200)
    assert failure is not None
    assert failure.guarantee == "at most once"
    assert len(failure.plan.asks) <= 2
    assert failure.drawing[-1].endswith("~")
    assert any(f"opens {failure.plan.asks[0].actor}/1/1 -" in line for line in failure.drawing)
    loaded = load_failure(HASTY, save_failure(failure, tmp_path))
    assert replay(HASTY, loaded)
    assert not replay(GOOD, loaded)


def test_a_killed_program_can_do_nothing_any_more_and_is_made_anew():
    plan = plan_of(Strike(1.1, Fault.KILL, "server", 0.2), asks=ONE)
    ran = run(GOOD, 0, plan=plan, trace=True)
    assert len(of(ran, "did")) == 1
    assert of(ran, "did")[0].at_s > 1.3
    assert [record.what for record in ran.trace if record.who == "server"].count("starts") == 2


def test_a_program_is_killed_before_its_next_write():
    plan = plan_of(Strike(1.1, Fault.KILL, "server", 0.2, act=1), asks=ONE)
    ran = run(GOOD, 0, plan=plan, trace=True)
    assert any("killed before it writes booked" in record.what for record in ran.trace)
    assert ran.told == {"told": 1, "not told": 0}


def test_both_ends_of_a_stream_break_when_the_connection_is_cut():
    plan = plan_of(Strike(1.1, Fault.CUT, "server", 0.2), asks=ONE)
    ran = run(GOOD, 0, plan=plan, trace=True)
    assert ran.faults == {Fault.CUT.value: 1}
    assert ran.told == {"told": 1, "not told": 0}
    assert ran.violations == ()


@pytest.mark.parametrize("error", [ZeroDivisionError("on purpose"), SystemExit(3)])
def test_a_program_that_raises_is_a_violation_with_its_traceback(error: BaseException):
    class Raising(booking.Server):  # type: ignore[misc]  # of the page
        async def serve(self, stream: ProgramStream) -> None:
            raise error

    ran = run(dataclasses.replace(GOOD, actors={"client": booking.Client, "server": Raising}), 0)
    (violation,) = ran.violations
    assert "server.main() raised" in violation
    assert type(error).__name__ in violation
    assert "in serve" in violation


def test_messages_and_plain_actors_are_not_left_out():
    class Echo(Program):
        async def main(self) -> None:
            while True:
                sender, message = await self.next_message()
                self.send(sender, message)

    class Asking(Program):
        async def main(self) -> None:
            request, what = await self.next_ask()
            self.send("server", what)
            _, answer = await self.next_message()
            self.tell(request, answer)

    ran = run(
        dataclasses.replace(GOOD, actors={"client": Asking, "server": Echo}, judges=[]), 0,
        plan=plan_of(asks=ONE),
    )  # fmt: skip
    assert [event.what for event in of(ran, "told")] == ["4a"]


def test_what_programs_cannot_do_is_said():
    class Timed(booking.Client):  # type: ignore[misc]  # of the page
        async def main(self) -> None:
            self.start_timer("x", 1.0)

    ran = run(dataclasses.replace(GOOD, actors={"client": Timed, "server": booking.Server}), 0)
    assert "a program has no timers: it sleeps" in ran.violations[0]
    with pytest.raises(BrokenSystem, match="client is a program: only actors are searched"):
        explore(GOOD)


async def test_a_run_of_programs_inside_a_run_is_refused():
    with pytest.raises(BrokenSystem, match="has a loop of its own"):
        run(GOOD, 0)
