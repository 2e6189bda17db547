"""Seeds searched for a failure, and one made small."""

from __future__ import annotations

import dataclasses

from .draw import sequence, story
from .plan import Plan
from .run import CRASH, Run, run
from .shrink import MOST_RUNS, ActorShrinker
from .system import BrokenSystem, System


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """A guarantee that broke, and the smallest schedule found that breaks it."""

    seed: int
    """The seed that failed."""
    guarantee: str
    """The name of what broke."""
    violation: str
    """The judge's words about the shrunk run."""
    plan: Plan
    """The schedule; ``run(system, failure.luck, plan=failure.plan)`` runs it again."""
    luck: int
    """The seed whose luck it needs."""
    digest: str
    """The hash of the shrunk run's trace."""
    before: tuple[int, int]
    """Requests and kinds of fault before it was shrunk."""
    tried: int
    """How many plans were tried."""
    drawing: tuple[str, ...]
    """The lines of a drawing of the shrunk run."""

    def text(self, again: str = "") -> str:
        """All that there is to see, in a hundred columns.

        Args:
            again: Command that runs the whole seed.
        """
        lines = story(
            self.violation,
            guarantee=self.guarantee,
            promise="an actor raised" if self.guarantee == CRASH else "",
            run=f"seed {self.seed}",
            before=self.before,
            tried=self.tried,
            schedule=self.plan.schedule(),
            drawing=self.drawing,
            again=again or f"run(system, {self.seed})",
        )
        return "\n".join(lines)


def examine(
    system: System, seed: int, *, guarantee: str = "", most_runs: int = MOST_RUNS
) -> Failure | None:
    """Make a failing run small and draw it; None if nothing fails.

    Without ``guarantee`` the first one that breaks is taken.
    """
    whole = run_twice(system, seed)
    if not guarantee and whole.violations:
        guarantee = whole.violations[0].guarantee
    if not whole.breaks(guarantee):
        return None
    shrinker = ActorShrinker(system, whole, guarantee, most_runs)
    shrinker.shrink()
    small = run(system, shrinker.luck, plan=shrinker.plan, trace=True)
    violation = next(each for each in small.violations if each.guarantee == guarantee)
    return Failure(
        seed=seed,
        guarantee=guarantee,
        violation=str(violation),
        plan=shrinker.plan,
        luck=shrinker.luck,
        digest=small.digest,
        before=(len(whole.plan.asks), len(whole.plan.kinds())),
        tried=shrinker.tried,
        drawing=tuple(sequence(system, small.trace, violation)),
    )


def run_twice(system: System, seed: int, digest: str = "") -> Run:
    """BrokenSystem if it is not the same run, or not the one of this digest, which was
    made elsewhere."""
    one, other = run(system, seed), run(system, seed)
    if len({one.digest, other.digest, digest or one.digest}) > 1:
        raise BrokenSystem(
            f"seed {seed} is not the same run twice: an actor must take time and randomness from "
            "self.now_s and self.random, not iterate over sets, and keep nothing outside of itself"
        )
    return one


def search(system: System, *, runs: int = 200, seed: int = 0) -> Failure | None:
    """The first failure among seeds, made small; None if there is none.

    Args:
        system: The system.
        runs: Number of seeds.
        seed: The first one.
    """
    run_twice(system, seed)
    for each in range(seed, seed + runs):
        if run(system, each).violations:
            return examine(system, each)
    return None


def check(system: System, *, runs: int = 200, seed: int = 0) -> None:
    """For a test: an AssertionError that tells the failure, if :func:`search` finds one.

    Args:
        system: The system.
        runs: Number of seeds.
        seed: The first one.
    """
    __tracebackhide__ = True  # pytest shows the test, which is the caller
    failure = search(system, runs=runs, seed=seed)
    if failure is not None:
        raise AssertionError(f"\n{failure.text()}")
