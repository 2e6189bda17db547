"""A way through the states as text: who did what, and what was on the wires.

The way is walked again, with the very machines, and told line by line: an arrow
that leads to a name is a message that arrives there, ``sends`` one that goes out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...core.key_records import KeyAct
from .actions import Action, BaseStep
from .explored import Explored
from .hosted_step import HostsStep
from .hosted_story import OPENING, tell_step
from .hosted_world import HostsWorld
from .keyed_state import KeyState
from .keyed_step import KINDS as KEY_KINDS
from .keyed_step import KeyStep
from .search import Counterexample


def tell(world: Explored[Any], found: Counterexample) -> list[str]:
    """The lines of a counterexample, violations last."""
    state, lines = world.blank(), []
    if found.opening < len(found.path) or found.aftermath:
        lines.append(f"      -- {_opening(world)} --")
    whole = (*found.path, *found.aftermath)
    for count, action in enumerate(whole, 1):
        step = world.step(state)
        step.take(action)
        after = step.state()
        if count > found.opening or count == len(whole):
            if count == len(found.path) + 1:
                lines.append("      -- from here on nothing goes wrong any more --")
            says, *follows = _told(step, state, action, after)
            lines.append(f"{max(0, count - found.opening):4}  {says}")
            lines += (f"          {line}" for line in follows)
        state = after
        if step.judge.violations:
            break
    return lines + [f"VIOLATED {text}" for text in found.violations]


def _told(step: BaseStep[Any], before: Any, action: Action, after: Any) -> Iterator[str]:
    """An action in words, and what follows from it."""
    if isinstance(step, KeyStep):
        yield _says_of_keys(action)
        yield from _follows(step, before, after)
    elif isinstance(step, HostsStep):
        yield from tell_step(step.world, before, action, after)


def _opening(world: Explored[Any]) -> str:
    if isinstance(world, HostsWorld):
        return OPENING
    return "the server, a worker, and the callers are up and connected"


# -- in words ---------------------------------------------------------------------


def _says_of_keys(action: Action) -> str:
    name, *where = action
    act = KeyAct(where[0]).name.lower() if name in ("command", "copy") else ""
    return KEY_KINDS[name].says.format(*(_shown([each]) for each in where), act=act)


# -- what follows -----------------------------------------------------------------


def _follows(step: KeyStep, before: KeyState, after: KeyState) -> Iterator[str]:
    """The executions that begin, or are to stop, and the answers to callers."""
    ran = {} if before.worker is None else {run.number: run for run in before.worker.runs}
    for run in () if after.worker is None else after.worker.runs:
        if run.number not in ran:
            yield f"execution {run.number} begins, of generation {_shown([run.key])}"
        elif run.cancelled and not ran[run.number].cancelled:
            yield f"execution {run.number} is to stop"
    for to, told in step.judge.heard.items():
        request = to[1] if to[0] == "cancel" else to
        yield f"{_shown(request[:1])}, {request[1]} is told: {_shown(told)}"


def _shown(where: Sequence[Any]) -> str:
    """Ids and numbers without their padding."""
    return " ".join(
        each.decode("ascii", "replace").rstrip(".-") if isinstance(each, bytes) else str(each)
        for each in where
    )
