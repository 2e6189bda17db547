"""A process that simulates the protocol that ships; its jobs as :mod:`.retrylab.jobs` has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext

from ...retrylab import jobs as kit
from ...retrylab.jobs import Job, Tell
from ...retrylab.judges import Violation
from ..mutants import find
from ..simulation.plans import from_data
from ..simulation.simulator import Run, run
from .failure import examine, is_harsh
from .hunt import hunt, seeds
from .tally import Tally


def _with_its_mutant(do: Callable[[Job, Tell], None]) -> Callable[[Job, Tell], None]:
    """Do a job in a core that is broken on purpose, if it says so."""

    def done(job: Job, tell: Tell) -> None:
        with find(job["mutant"]).applied() if job.get("mutant") else nullcontext():
            do(job, tell)

    return done


def _search(job: Job, tell: Tell) -> None:
    """Run seeds; tell what they came to, and which of them fail."""
    mutant = find(job["mutant"]) if job.get("mutant") else None

    def simulate(seed: int) -> Run:
        return run(seed, harsh=is_harsh(seed, always=job["harsh"]))

    def counts(violation: Violation) -> bool:
        return mutant is None or mutant.caught_by(violation.guarantee)

    kit.search_seeds(job, tell, seeds=_seeds(job), run=simulate, tally=Tally, counts=counts)


def _seeds(job: Job) -> Iterator[int]:
    """All; of a mutant, those that could show it."""
    if job.get("mutant"):
        return seeds(find(job["mutant"]), job["base"], harsh=job["harsh"])
    return kit.seeds_from(job["base"])


def _one(job: Job, tell: Tell) -> None:
    """Run one seed, or one plan, and tell all of it."""
    plan = from_data(job["plan"]) if job.get("plan") else None
    one = run(job["seed"], harsh=job["harsh"], plan=plan, trace=job["trace"])
    kit.tell_run(tell, one, Tally())


def _examine(job: Job, tell: Tell) -> None:
    """Make a failing run small."""
    failure = examine(
        job["seed"], harsh=job["harsh"], guarantee=job["guarantee"], mutant=job.get("mutant") or ""
    )
    tell(failure=failure and failure.to_data())


def _hunt(job: Job, tell: Tell) -> None:
    """Run seeds until a mutant is caught."""
    tell(caught=hunt(find(job["mutant"]), job["base"])._asdict())


JOBS = {
    "search": _with_its_mutant(_search),
    "one": _with_its_mutant(_one),
    "examine": _with_its_mutant(_examine),
    "hunt": _hunt,
}

if __name__ == "__main__":
    kit.do_jobs(JOBS)
