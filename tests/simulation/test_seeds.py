"""Seeds on which something was wrong once: what ships, the world around it, or a judge.

A plan is that of the seed, and all of it is in the row; each is clean now.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from trio_envserve.lab.simulation.plan import of_keys_only, plan_of
from trio_envserve.lab.simulation.simulator import run


def was(wrong: str, seed: int, with_: str = "", **more: Any) -> Any:
    """A row: what went wrong, the seed, and what its plan has, ``harsh`` or by names of
    configurations; ``write``: the server is killed as it writes this group for calls with keys
    alone."""
    return pytest.param(seed, with_.split(), more, id=wrong)


def clean(seed: int, *with_: str, write: int | None = None, few_sessions: bool = False) -> bool:
    """Whether a seed breaks no guarantee."""
    plan = plan_of(seed, **dict.fromkeys(with_, True))
    if write is not None:
        plan = dataclasses.replace(of_keys_only(plan), crash_at_write=write)
    if few_sessions:
        server = dataclasses.replace(plan.server, sessions=plan.clients + 2)
        plan = dataclasses.replace(plan, server=server)
    return not run(seed, plan=plan).violations


def test_g9_a_session_was_settled_whose_client_had_not_heard_that_what_it_cancelled_ran():
    """The answer to the cancel was lost, and the client was told that its call never ran."""
    assert clean(3038655, "harsh")


def test_g9_a_forget_that_came_while_the_last_answers_left_was_never_answered():
    assert clean(191, "harsh", write=3)


def test_g13_resource_was_destroyed_again_as_its_maker_had_not_heard_that_it_gave_it_up():
    """That worker told the next server, which took it for a resource that it did not know yet."""
    assert clean(300, "resources", "hosts")


@pytest.mark.parametrize(
    ("seed", "with_", "more"),
    [
        was("router dispatched before it had read all that a host said, and a request was spent",
            3038673, "harsh hosts"),
    ],
)  # fmt: skip
def test_router_was_wrong(seed: int, with_: list[str], more: dict[str, Any]):
    assert clean(seed, *with_, **more)


@pytest.mark.parametrize(
    ("seed", "with_", "more"),
    [
        # Callers, and what they are told.
        was("goodbye to a forgotten session was taken for one of its nonce, and the hello that "
            "came late for a broken promise", 296001693, "harsh"),
        was("request of a session that had made room was taken for one that is owed an answer",
            305, "harsh", few_sessions=True),
        was("request of a session that had made room, though its client would have heard so",
            774, "harsh", few_sessions=True),
        was("message that came after the lease was taken for a sign of a caller", 716, "harsh"),
        was("work lost while nobody waited was taken for over, so a conflict with it was with "
            "nothing", 2000003, "harsh"),
        was("work lost while nobody waited was taken for over, so its outcome was one to a request "
            "not taken in", 3003268),
        was("answer to the later of two copies of a request in one turn was taken for that to the "
            "earlier", 3008567, "harsh"),
        was("answer to the later copy of a request, on usual links", 3011874),
        was("answer to the later copy of a request, of one message that came twice",
            3014895, "harsh"),
        was("request was taken for refused since a later copy was, in a turn of much",
            698, "hosts"),
        was("death of the last input of a turn was taken for one before a deadline that had passed",
            3019935, "harsh"),
        was("audit counted what was running only, where as much is kept as may be",
            3023133, "harsh"),
        was("work of lost callers was taken for open after the environment's end",
            3024597, "harsh"),
        was("answers to five requests of a session that gave its room to another were taken for "
            "five to the last", 3079616),
        was("work dispatched for the last time was taken for waiting", 3314537, "harsh"),
        was("dispatch sent again in the turn of its outcome was taken for another start",
            3038779, "harsh hosts"),
        # Servers and pools.
        was("late caller of a closing server was taken for one that its slow disk has to serve",
            6500674, "hosts"),
        was("workers of an elastic pool that died in turn were taken for one that is missing",
            3063212),
        was("workers that died one after the other were taken for one never replaced", 2100470),
        was("caller who asks for what a closing server has just cancelled", 4200254,
            "hosts resources"),
        # Journals.
        was("session that is unknown was taken for somebody who waits for its key",
            411, "harsh", write=4),
        was("request cancelled before it came was taken for one of a generation that another has "
            "opened meanwhile", 527, "harsh", write=5),
        was("what was decided and not safe when a limit passed was taken for false", 642),
        was("caller of what was decided and not safe was taken for lost", 3032314),
        was("work that ends in the tick of its orphan deadline was taken for closed", 1874),
        was("what a closing server stopped and cannot read was taken for told wrongly",
            3011031, "harsh"),
        # Hosts.
        was("what came back was audited as started", 359, "harsh hosts"),
        was("a start before a guard that died was never ended", 3057, "harsh hosts"),
        was("a cancel of a key with its outcome was an early one", 11072, "hosts"),
        was("a start that came after a takeover had a name of the new server", 5178, "hosts"),
        was("second order to kill a worker without a slot had no reason", 58981318,
            "resources hosts"),
        # Saves and graces.
        was("last words and the end of a worker in one message", 1027, "harsh saves hosts"),
        was("a save and the next one in one message", 1124, "saves hosts"),
        was("the hello of a worker that is back", 3006, "saves hosts"),
        was("what a worker misses, and its outcome, in one message", 3095, "harsh saves hosts"),
        was("dispatch that is sent again after a save", 5149, "harsh saves"),
        was("work ended at the limit of its execution was taken for closed by its orphan deadline",
            293, "harsh graces saves permits"),
        was("work ended at the limit of its execution, without permits", 1108, "graces saves"),
    ],
)  # fmt: skip
def test_world_or_judge_was_wrong(seed: int, with_: list[str], more: dict[str, Any]):
    assert clean(seed, *with_, **more)
