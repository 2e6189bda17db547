"""A failing run, made small and told: to people as text, to programs as data."""

from __future__ import annotations

import dataclasses
from typing import Any

from ...core.key_records import KeyAct
from ...core.limits import ServerLimits
from ...retrylab.draw import listed, shrunk, story, timetable
from ...retrylab.judges import Violation
from ...retrylab.shrink import MOST_RUNS
from ..simulation.faults import PLAIN_BOUNDS, PLAIN_LEASE_S, Ask, Fault, Plan
from ..simulation.plans import from_data, to_data
from ..simulation.simulator import Run, run
from .diagram import sequence
from .shrink import shrink

SUMS_UP = {
    "G1": "one at a time: no request has two live executions",
    "G2": "at most once: a further execution needs consent, proof of death and allowance",
    "G3": "one outcome: all that are sent for one request are the same bytes",
    "G4": "kept until received: what has ended is neither forgotten nor replaced",
    "G5": "fenced: who is not the current incarnation changes nothing",
    "G6": "same id, same request: another payload is refused",
    "G7": "cancel is final and complete",
    "G8": "bounded: nothing grows past its bound, nothing is left at the end",
    "G9": "no silent wait, no false alarm: each call is told what is true",
    "G11": "durable: nothing is told before it is safe, and what was told is told again",
    "CRASH": "a core raised, or did what it cannot do",
}
"""The guarantees in a line each; `docs/guarantees.md` has them whole."""


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """A guarantee that broke, and the smallest schedule found that breaks it."""

    seed: int
    harsh: bool
    mutant: str
    """Its name, or the empty string: what ships."""
    guarantee: str
    violation: str
    """The judge's words about the shrunk run."""
    digest: str
    """The hash of the shrunk run's trace."""
    plan: Plan
    luck: int
    """The seed whose luck the shrunk plan is run with."""
    before: tuple[int, int]
    """Requests and kinds of fault before it was shrunk."""
    tried: int
    """How many plans were tried."""
    drawing: tuple[str, ...]

    def to_data(self) -> dict[str, Any]:
        """For JSON."""
        data = dataclasses.asdict(self)
        return data | {
            "plan": to_data(self.plan),
            "before": list(self.before),
            "drawing": list(self.drawing),
        }

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Failure:
        """The inverse of :meth:`to_data`."""
        before = tuple(data["before"])
        return cls(
            **{
                **data,
                "plan": from_data(data["plan"]),
                "before": before,
                "drawing": tuple(data["drawing"]),
            }
        )

    def command(self) -> str:
        """The command that replays the whole run of the seed."""
        words = ["trio-envserve fuzz", f"--seed {self.seed}"]
        words += ["--harsh"] * self.needs_harsh()
        words += [f"--mutant {self.mutant}"] * bool(self.mutant)
        return " ".join(words)

    def needs_harsh(self) -> bool:
        """Whether the seed alone would run the other mode."""
        return self.harsh != is_harsh(self.seed)


def is_harsh(seed: int, *, always: bool = False) -> bool:
    """How a seed is run: even ones on links as they are, odd ones harsh."""
    return always or seed % 2 == 1


def examine(
    seed: int, *, harsh: bool, guarantee: str = "", mutant: str = "", plan: Plan | None = None,
    most_runs: int = MOST_RUNS,
) -> Failure | None:  # fmt: skip
    """Make a failing run small and draw it; None if nothing fails.

    A mutant must be applied by who calls this.  Without ``guarantee`` the first one
    that breaks is taken.
    """
    whole = run(seed, harsh=harsh, plan=plan)
    if not guarantee:
        if not whole.violations:
            return None
        guarantee = whole.violations[0].guarantee
    if not whole.breaks(guarantee):
        return None
    small = shrink(seed, whole.plan, guarantee, most_runs=most_runs)
    violation = first(small.run, guarantee)
    return Failure(
        seed=seed,
        harsh=harsh,
        mutant=mutant,
        guarantee=guarantee,
        violation=str(violation),
        digest=small.run.digest,
        plan=small.plan,
        luck=small.luck,
        before=(sum(map(len, whole.plan.asks)), len(whole.plan.faults)),
        tried=small.tried,
        drawing=tuple(sequence(small.run.trace, violation)),
    )


def first(run: Run, guarantee: str) -> Violation:
    """The first violation of this guarantee; there must be one."""
    return next(each for each in run.violations if each.guarantee == guarantee)


# -- for people ---------------------------------------------------------------


def text(failure: Failure, footer: str = "") -> str:
    """All that there is to see, in a hundred columns."""
    of = f"mutant {failure.mutant}" if failure.mutant else "what ships"
    mode = "harsh" if failure.harsh else "usual"
    lines = story(
        failure.violation,
        guarantee=failure.guarantee,
        promise=SUMS_UP[failure.guarantee],
        run=f"seed {failure.seed} ({mode}), {of}",
        found=shrunk(failure.before, failure.tried),
        schedule=schedule(failure.plan),
        drawing=failure.drawing,
        again=failure.command(),
    )
    return "\n".join([*lines, *([footer] if footer else [])])


def schedule(plan: Plan) -> list[str]:
    """The events of a plan, in order; the usual ones are left out."""
    workers = f"{plan.slots} worker" + "s" * (plan.slots != 1)
    clients = f"{plan.clients} client" + "s" * (plan.clients > 1)
    lines = [f"{clients}, {workers}" + "; the environment declares rerun" * plan.declares_rerun]
    lines += _all_along(plan)
    timed: list[tuple[float, str]] = [(at_s, fault.value) for at_s, fault in plan.moments]
    timed += [
        (ask.at_s, _ask(f"c{client}", ask)) for client, asks in enumerate(plan.asks) for ask in asks
    ]
    return lines + timetable(timed)


def _all_along(plan: Plan) -> list[str]:
    """Faults without a moment, and bounds that matter."""
    moments = {fault for _, fault in plan.moments}
    rates = {Fault.LOSE: plan.loss, Fault.MANGLE: plan.mangle}
    faults = [
        fault.value + (f" ({rates[fault]:.0%})" if fault in rates else "")
        for fault in Fault
        if fault in plan.faults - moments and fault not in (Fault.TINY_BOUNDS, Fault.SHORT_LEASE)
    ]
    plain = {**PLAIN_BOUNDS, "lease_s": PLAIN_LEASE_S, "recycle_executions": None}
    limits = [
        f"{field.name}={getattr(plan.server, field.name)}"
        for field in dataclasses.fields(ServerLimits)
        if field.name in plain and getattr(plan.server, field.name) != plain[field.name]
    ]
    return listed("all along", faults) + listed("limits", limits)


def _ask(client: str, ask: Ask) -> str:
    consent = {None: "rerun as declared", True: f"rerun, {ask.max_executions} at most"}
    if ask.use is not None and ask.use.act is not KeyAct.ASK:
        tag = f" (generation {ask.use.tag})" if isinstance(ask.use.tag, int) else ""
        words = [f"{client} asks {ask.key}: {ask.use.act.name.lower()} of {ask.use.label}{tag}"]
        return ", ".join(words + _ends(ask))
    named = "" if ask.use is None else f" ({ask.body.partition(b'|')[0].decode()})"
    does = f"{_BEHAVIOURS[ask.behaviour]} after {ask.duration_s:.1f} s"
    words = [
        f"{client} asks {ask.key}{named}: {does}",
        consent.get(ask.rerun, "no rerun"),
    ]
    return ", ".join(words + _ends(ask))


def _ends(ask: Ask) -> list[str]:
    """How its caller ends it."""
    words = []
    if ask.limit_s is not None:
        words.append(f"waits {ask.limit_s:.1f} s")
    if ask.cancel_after_s is not None:
        words.append(f"cancelled after {ask.cancel_after_s:.1f} s")
    return words


_BEHAVIOURS = {
    "return": "returns", "raise": "raises", "slow": "returns", "block": "blocks the loop, returns",
    "ignore": "ignores its cancel, returns", "hang": "never returns, not even",
    "kill": "kills its worker", "kill-sometimes": "may kill its worker",
    "last-words": "returns and its worker is killed", "huge": "returns too much",
}  # fmt: skip
"""The behaviours of environment code, by the words for them in a body."""
