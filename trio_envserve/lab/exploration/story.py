"""A way through the states of hosts as text: who did what, and what was on the wires."""

from __future__ import annotations

from .hosted_story import OPENING, tell_step
from .hosted_world import HostsWorld
from .search import Counterexample


def tell(world: HostsWorld, found: Counterexample) -> list[str]:
    """The lines of a counterexample, violations last."""
    state, lines = world.blank(), []
    if found.opening < len(found.path) or found.aftermath:
        lines.append(f"      -- {OPENING} --")
    whole = (*found.path, *found.aftermath)
    for count, action in enumerate(whole, 1):
        step = world.step(state)
        step.take(action)
        after = step.state()
        if count > found.opening or count == len(whole):
            if count == len(found.path) + 1:
                lines.append("      -- from here on nothing goes wrong any more --")
            says, *follows = tell_step(step.world, state, action, after)
            lines.append(f"{max(0, count - found.opening):4}  {says}")
            lines += (f"          {line}" for line in follows)
        state = after
        if step.judge.violations:
            break
    return lines + [f"VIOLATED {text}" for text in found.violations]
