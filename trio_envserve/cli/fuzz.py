"""The verb ``fuzz``: thousands of simulated runs, and a shrunk one that fails; or every order of
a small system.

Theory of operation
-------------------
The protocol that ships, a mutant of it and a protocol of somebody's own are targets of
:mod:`trio_envserve.retrylab`, which runs them; here are the options, the progress, and the
output.

Every order of ours is a configuration of :mod:`trio_envserve.lab.exploration`: a system that is
searched as one of somebody's own is, in a process.  There are lines of progress, then the shortest
way to a violation if there is one, and the figures.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import trio

from .. import foreign
from ..core.errors import ConfigError
from ..core.work import WorkInput, WorkState
from ..lab.exploration.configurations import Configuration, configuration, showing
from ..lab.exploration.search import SPEC as SMALL_SYSTEM
from ..lab.mutants import MUTANTS, NOT_BY_CHANCE, find
from ..lab.simulation.coverage import name_of
from ..lab.simulation.plan import CONFIGURATIONS, is_harsh
from ..lab.simulation.target import SPEC, SimulationTally, describe, origin
from ..options import option
from ..pages.tables import Table
from ..retrylab import campaign
from ..retrylab.campaign import Campaign, FoundFailure, ProcessDied, cores
from ..retrylab.failure import saved_system
from ..retrylab.jobs import JobError
from ..retrylab.target import MOST_HUNTED, BaseTally, Catch
from .common import OK, USAGE, CommandError, Result, StopRequest
from .render import progress, say
from .verbs import VerbOptions, verb

FAILED = 1
"""Exit code when a guarantee broke; of mutants, when one was not caught."""

DEFAULT_S = 30.0

SHOWN = 3
"""Most failures, of different guarantees, that are made small and shown."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fuzz(VerbOptions):
    """The options of ``fuzz``."""

    seconds: float | None = option(
        None, "How long.", shown=f"{DEFAULT_S:g}", metavar="SECONDS", least=0.1, common=True
    )
    runs: int | None = option(None, "How many runs, whatever they take.", least=1, common=True)
    seed: int | None = option(
        None, "Run this seed once. With --seconds or --runs, begin with it.", least=0, most=2**62,
        common=True,
    )  # fmt: skip
    protocol: str = option(
        "", "Try a protocol of your own instead. It is file.py:NAME or package.module:NAME.",
        metavar="SPEC", common=True,
    )  # fmt: skip
    exhaustive: bool = option(
        False, "Try every order of events in a small system. With --protocol it is yours; there "
        "are no seeds.", common=True,
    )  # fmt: skip
    config: str = option(
        "", "With --exhaustive: the small system.", shown="small; for a mutant, the smallest that "
        "shows it", metavar="NAME",
    )  # fmt: skip
    harsh: bool = option(False, "Make all runs harsh, not only the odd seeds.")
    hosts: bool = option(False, "Have the workers on hosts, which hold leases.", common=True)
    permits: bool = option(False, "Have rollouts claim permits, which are limited.")
    graces: bool = option(False, "Have calls with a grace, whose rollouts may be late.")
    saves: bool = option(False, "Have rollouts save states, and go on from them.")
    resources: bool = option(False, "Have rollouts hold resources, which must not be left.")
    mutant: str = option(
        "", "Break the core on purpose, and see that it is caught. all: every mutant in turn.",
        metavar="NAME|all", common=True,
    )  # fmt: skip
    save: Path | None = option(
        None, "Save shrunk failures as files that a test suite can replay.", metavar="DIR",
        make=Path, common=True,
    )  # fmt: skip
    saved: Path | None = option(
        None, "Replay a saved failure.", metavar="FILE", make=Path, common=True
    )
    trace: bool = option(False, "Print every event of the one run.", common=True)
    keep_going: bool = option(False, "Do not stop at the first failure.")
    jobs: int | None = option(None, "Processes.", shown="one for each core", least=1)

    @property
    def systems(self) -> list[str]:
        """Names of the configurations that are asked for."""
        return [name for name in CONFIGURATIONS if getattr(self, name)]

    def check(self) -> None:
        """Raise ConfigError for options that exclude each other."""
        wrong = {
            "--seconds and --runs exclude each other":
                self.seconds is not None and self.runs is not None,
            "--protocol has no mutants, no harsh runs, and none of --hosts, --permits, --graces, "
            "--saves, --resources": self.protocol and (self.mutant or self.harsh or self.systems),
            "--graces are judged by one clock: leave out --hosts": self.graces and self.hosts,
            "--config is for --exhaustive, without --protocol":
                self.config and (self.protocol or not self.exhaustive),
            "--exhaustive has no seeds: the system's bounds say how far":
                self.exhaustive and (
                    self.many or self.saved or self.seed is not None or self.trace or self.harsh
                    or self.systems
                ),
            "--exhaustive saves nothing of ours, and takes one mutant":
                self.exhaustive and not self.protocol and (self.save or self.mutant == "all"),
            "--mutant all has its own number of runs and modes, and no file":
                self.mutant == "all" and (
                    self.many or self.saved or self.harsh or self.systems
                ),
            "--trace is for one run: give --seed or --saved":
                self.trace and (self.many or (self.seed is None and self.saved is None)),
        }  # fmt: skip
        for text, is_wrong in wrong.items():
            if is_wrong:
                raise ConfigError(text)
        if self.saved is not None:
            if not self.saved.is_file():
                raise ConfigError(f"--saved {self.saved}: there is no such file")
            of = saved_system(self.saved) or SPEC
            if of != SPEC and not self.protocol:
                raise ConfigError(f"{self.saved} is a failure of {of}: give --protocol {of}, too")
        if self.mutant not in ("", "all") and not self.exhaustive:
            try:
                find(self.mutant)
            except KeyError as error:
                raise ConfigError(error.args[0]) from None

    @property
    def many(self) -> bool:
        """Whether it is said how many runs there are."""
        return self.seconds is not None or self.runs is not None

    @property
    def processes(self) -> int:
        """One for a mutant alone, so that it is the same seed each time."""
        return self.jobs or (1 if self.mutant not in ("", "all") else cores())

    @property
    def single(self) -> bool:
        """Whether to run one seed once."""
        return self.seed is not None and not self.many

    def base(self) -> int:
        """The first seed.  For mutants it is always the same, so that each shows the same."""
        if self.seed is not None:
            return self.seed
        return 0 if self.mutant else int.from_bytes(os.urandom(4), "big") // 2

    # -- the target -----------------------------------------------------------

    @property
    def spec(self) -> str:
        """The name by which the target is found."""
        return self.protocol or SPEC

    def of_target(self) -> dict[str, Any]:
        """The options of the target."""
        names = () if self.protocol else ("harsh", "mutant", *CONFIGURATIONS)
        return {name: getattr(self, name) for name in names}

    def tally(self) -> BaseTally[Any]:
        """New sums over its runs."""
        return BaseTally() if self.protocol else SimulationTally()

    def named(self, seed: int) -> dict[str, Any]:
        """Names of the target, and of a run of it, in the figures."""
        if self.protocol:
            return {"protocol": self.protocol}
        return {"harsh": is_harsh(seed, always=self.harsh)}

    def failed(self, *, broke: bool) -> int:
        """The exit code: a mutant should be caught."""
        return FAILED if broke != bool(self.mutant) else OK


@verb(
    Fuzz,
    {
        OK: "no guarantee broke; with --mutant: every mutant was caught",
        FAILED: "a guarantee broke; with --mutant: a mutant was not caught",
        USAGE: "wrong usage; with --protocol: there is no such protocol, or it is not right",
    },
    interrupted="interrupted (Ctrl-C, SIGTERM), with the figures so far",
)
async def fuzz(asked: Fuzz, stop: StopRequest) -> Result:
    """Simulate whole systems under random faults and look for a broken guarantee.

    Clients, a server with its restarts, workers and environment code run around the
    pure code that ships, on a virtual clock and network. Each seed draws its own mix
    of faults. A judge compares what the environment's log and the callers saw with
    the guarantees. A failure is shrunk and drawn.

    With --exhaustive a very small system is tried instead, in every order of every event;
    each kind of fault comes as often as the configuration says. The search is breadth
    first, so it prints a shortest way to break a guarantee.

    Examples:
      trio-envserve fuzz
      trio-envserve fuzz --runs 1000 --seed 0 --json
      trio-envserve fuzz --mutant lost-when-killed
      trio-envserve fuzz --mutant all
      trio-envserve fuzz --seed 7 --trace
      trio-envserve fuzz --exhaustive --config restart
      trio-envserve fuzz --exhaustive --mutant acknowledged-on-arrival
      trio-envserve fuzz --protocol examples/kv_store.py:FORGETFUL
    """
    asked.check()
    try:
        return await _chosen(asked, _Ended(stop, origin()))
    except* ProcessDied as died:
        raise CommandError(f"{_first(died)}; its last output is above", FAILED) from None
    except* JobError as error:
        raise CommandError(str(_first(error)), USAGE) from None


def _first(group: BaseExceptionGroup) -> BaseException:
    """The first of the exceptions that were raised at the same time."""
    return next(foreign.leaves(group))


class _Ended:
    """The results of the verb, each with the code that was run."""

    def __init__(self, stop: StopRequest, made_by: dict[str, Any]) -> None:
        self.made_by = made_by
        self._stop = stop
        self.when_interrupted(lambda: ("before there was any result", {}))

    def result(self, code: int, summary: Mapping[str, Any], *shown: Table | str) -> Result:
        """A result."""
        return Result(code, {**summary, **self.made_by}, shown)

    def when_interrupted(self, so_far: Callable[[], tuple[str, Mapping[str, Any]]]) -> None:
        """From now on an interruption has these words, and figures so far."""

        def result() -> Result:
            words, figures = so_far()
            say(f"interrupted {words}")
            return self.result(self._stop.interrupted_code, {**figures, "interrupted": True})

        self._stop.so_far = result


async def _chosen(options: Fuzz, ended: _Ended) -> Result:
    if options.exhaustive:
        return await _every_order(options, ended)
    if options.mutant == "all":
        return await _mutants(options, ended)
    if options.saved is not None or options.single:
        return await _one(options, ended)
    return await _many(options, ended)


# -- many runs ----------------------------------------------------------------


async def _many(options: Fuzz, ended: _Ended) -> Result:
    base = options.base()
    runs, seconds = options.runs, options.seconds
    if not options.many:
        runs, seconds = (MOST_HUNTED, None) if options.mutant else (None, DEFAULT_S)
    fuzzing = Campaign(
        options.spec, options.tally(), options=options.of_target(), base=base, runs=runs,
        seconds=seconds, jobs=options.processes, keep_going=options.keep_going,
    )  # fmt: skip
    mode = "" if options.protocol else ", usual and harsh by turns"
    mode = ", all harsh" if options.harsh else mode
    mode += "".join(f", with {name}" for name in options.systems)
    of = options.protocol + ": " if options.protocol else f"{describe(ended.made_by)}; "
    say(f"{of}seeds from {base}{mode}, {count(options.processes, 'process')}")
    if options.mutant:
        say(f"mutant {options.mutant}: {find(options.mutant).prose}")
    tally, began_s = fuzzing.tally, trio.current_time()
    failures: list[dict[str, Any]] = []

    def figures() -> dict[str, Any]:
        about = {"seed": base, "jobs": options.processes, "failures": failures}
        about |= {"protocol": options.protocol} if options.protocol else {}
        return {**tally.figures(took_s or trio.current_time() - began_s), **about}

    took_s = 0.0
    ended.when_interrupted(lambda: (f"after {count(tally.runs, 'run')}", figures()))
    async with progress_of(tally, runs=runs, seconds=seconds):
        await fuzzing.run()
    took_s = trio.current_time() - began_s
    firsts = {found.guarantee: found for found in reversed(fuzzing.found)}
    for found in list(firsts.values())[:SHOWN]:
        say(f"seed {found.seed} breaks {found.guarantee}; shrinking it")
        failures.append(await _examined(options, found, ended))
    texts, broke = [failure.pop("text") for failure in failures], bool(fuzzing.found)
    if options.mutant:
        caught = "caught" if broke else "NOT CAUGHT"
        say(f"{options.mutant}: {caught} after {count(tally.runs, 'run')}")
        return ended.result(options.failed(broke=broke), figures(), *texts)
    _check_asks(options, tally)
    tables = (
        run_tables(tally, figures()) if isinstance(tally, SimulationTally)
        else any_tables(tally, figures())
    )  # fmt: skip
    return ended.result(options.failed(broke=broke), figures(), *texts, *tables)


async def _examined(options: Fuzz, found: FoundFailure, ended: _Ended) -> dict[str, Any]:
    """The failure made small, with its text."""
    return await campaign.examine(
        options.spec, found, options=options.of_target(), made_by=ended.made_by,
        save=str(options.save) if options.save else None,
    )  # fmt: skip


# -- one run ------------------------------------------------------------------


async def _one(options: Fuzz, ended: _Ended) -> Result:
    """Run one seed, or a saved failure."""
    seed, path, began_s = options.seed or 0, options.saved, trio.current_time()
    ran = await campaign.ask(
        "one", options.spec, trace=options.trace, options=options.of_target(), seed=seed,
        path=None if path is None else str(path),
    )  # fmt: skip
    took_s = trio.current_time() - began_s
    broken, failure = ran["violations"], ran["failure"]
    failures, shown = [], ["\n".join(ran["log"])] * options.trace
    if failure is not None:
        seed = failure["luck"]
        if any(guarantee == failure["guarantee"] for guarantee, _ in broken):
            failures = [{**failure, "saved": str(path)}]
        else:
            shown.append(f"{failure['guarantee']} holds: {path} shows nothing any more")
    elif broken:
        guarantee, violation = broken[0]
        found = FoundFailure(seed, guarantee, violation, ran["digest"])
        failures = [await _examined(options, found, ended)]
    elif options.protocol:  # one that fails is run twice when it is made small
        await campaign.ask("again", options.spec, seed=seed, digest=ran["digest"])
    tally = options.tally()
    tally.merge(ran["tally"])
    _check_asks(options, tally)
    shown += [failure.pop("text") for failure in failures]
    shown.append(
        f"{ran['whole']}: {ran['events']} events in {ran['virtual_s']:.1f} simulated s, "
        f"{count(len(broken), 'violation')}, trace {ran['digest']}"
    )
    figures = tally.figures(took_s) | options.named(seed) | {
        "seed": seed, "digest": ran["digest"], "virtual_s": ran["virtual_s"],
        "failures": failures, "broken": [violation for _, violation in broken],
        **({"log": ran["log"]} if options.trace else {}),
    }  # fmt: skip
    return ended.result(options.failed(broke=bool(broken)), figures, *shown)


def _check_asks(options: Fuzz, tally: BaseTally[Any]) -> None:
    """Say it where no caller of a protocol has asked for anything."""
    if options.protocol and not tally.sums["requests"]:
        say(f"nobody asked for anything: asks of {options.protocol} gave no Ask")


# -- mutants ------------------------------------------------------------------


async def _mutants(options: Fuzz, ended: _Ended) -> Result:
    catches: list[Catch] = []
    began_s = trio.current_time()
    names = [mutant.name for mutant in MUTANTS if mutant.name not in NOT_BY_CHANCE]

    def caught(catch: Catch) -> None:
        catches.append(catch)
        by = f"caught by {catch.guarantee}" if catch.caught else "NOT CAUGHT"
        runs = f"{count(catch.runs, 'run')}, {catch.seconds:.1f} s"
        say(f"{len(catches)}/{len(names)} {catch.name}: {by} ({runs})")

    def figures() -> dict[str, Any]:
        catches.sort(key=lambda catch: names.index(catch.name))
        each = [{**catch._asdict(), "seconds": round(catch.seconds, 3)} for catch in catches]
        return {
            "mutants": each, "count": len(names),
            "caught": sum(catch.caught for catch in catches),
            "clean_without": all(catch.clean for catch in catches),
            "slowest_s": max((one["seconds"] for one in each), default=0.0),
            "seconds": round(trio.current_time() - began_s, 3),
            "seed": options.base(), "jobs": options.processes,
        }  # fmt: skip

    ended.when_interrupted(lambda: (f"after {count(len(catches), 'mutant')}", figures()))
    await campaign.hunt_all(
        SPEC, [{"mutant": name} for name in names], base=options.base(), jobs=options.processes,
        caught=caught,
    )  # fmt: skip
    ok = len(catches) == len(names) and all(catch.caught and catch.clean for catch in catches)
    return ended.result(OK if ok else FAILED, figures(), catches_table(catches))


# -- every order --------------------------------------------------------------


_ROWS = {
    "asked": "requests; Bounds(seed=...) of the system draws others",
    "states": "distinct states; names and what else makes no difference count once",
    "transitions": "transitions from one state to another",
    "depth": "transitions from the first state to the farthest ones",
    "exhausted": "whether every state was visited",
    "seconds": "seconds",
}


def chosen(name: str, mutant: str) -> Configuration:
    """The configuration of this name; without one ``small``, or the smallest that shows the
    mutant.  ConfigError if there is none."""
    try:
        if mutant:
            find(mutant)
        if name or not mutant:
            return configuration(name or "small")
    except KeyError as error:
        raise ConfigError(error.args[0]) from None
    shown_in = showing(mutant)
    if not shown_in:
        text = f"no configuration is known to show {mutant}: choose one with --config"
        raise ConfigError(text)
    return shown_in[0]


async def _every_order(options: Fuzz, ended: _Ended) -> Result:
    """Search a configuration of the code that ships, with a mutant or without; or a system of
    somebody's own, within its bounds."""
    spec, mutant, of = options.protocol, options.mutant, dict[str, str]()
    name, about = spec, ""
    if not spec:
        asked = chosen(options.config, mutant)
        spec, name, of = SMALL_SYSTEM, asked.name, {"config": asked.name, "mutant": mutant}
        about = f"; {asked.describe()}" + f"; mutant {mutant}" * bool(mutant)
    say(f"{name}: every order{about}")
    record: dict[str, Any] = {"mutant": mutant} if of else {"protocol": spec}
    record |= {"failures": [], "states": 0, "transitions": 0, "depth": 0, "exhausted": False}
    ended.when_interrupted(lambda: ("before every state was visited", record))
    text = "{states:,} states, {transitions:,} transitions, {depth} deep"
    async with progress(lambda: text.format(**record)):  # nobody knows how much is left
        found = await campaign.ask(
            "explore", spec, lambda result: record.update(result.get("explored", {})),
            options=of, save=str(options.save) if options.save else None,
            made_by=ended.made_by,
        )  # fmt: skip
    record["failures"] = [found["failure"]] if found["failure"] else []
    texts = [failure.pop("text") for failure in record["failures"]]
    if mutant:
        caught = "".join(f"caught by {each['guarantee']}" for each in record["failures"])
        say(f"{mutant}: {caught or 'NOT CAUGHT'}, after {record['states']:,} states")
    shown = [*texts, _found(name, record)]
    shown += [pairs_table(record["pairs"], "in how many states")] if of else []
    return ended.result(options.failed(broke=bool(texts)), record, *shown)


def _found(name: str, record: Mapping[str, Any]) -> Table:
    """The figures of a search for people."""
    rows = [(text, str(record[key])) for key, text in _ROWS.items() if key in record]
    how = "passed" if record["exhausted"] else "stopped"
    how = "found a violation" if record["failures"] else how
    return Table(f"every order {how} ({name})", (), rows)


# -- for people ---------------------------------------------------------------


def count(number: int, what: str) -> str:
    """``1 run``, ``2 runs``, ``2 processes``."""
    return f"{number:,} {what}" + ("es" if what.endswith("s") else "s") * (number != 1)


def progress_of(
    tally: BaseTally[Any], *, runs: int | None, seconds: float | None
) -> AbstractAsyncContextManager[None]:
    """While the block lasts: how far the runs are."""
    began_s = trio.current_time()

    def line() -> str:
        took_s = trio.current_time() - began_s
        return (
            f"{count(tally.runs, 'run')}, {tally.runs / max(took_s, 0.1):.0f} a second, "
            f"{tally.virtual_s / 3600:.2f} simulated hours, {count(tally.violating, 'failure')}"
        )

    def part() -> float:
        if seconds is not None:
            return (trio.current_time() - began_s) / seconds
        return tally.runs / runs if runs else 0.0

    return progress(line, part)


def run_tables(tally: SimulationTally, figures: dict[str, Any]) -> list[Table]:
    """The figures of many runs."""
    rows = [
        ("of the runs harsh", f"{tally.harsh:,}"),
        ("executions", f"{tally.executions:,}"),
    ]
    return [*any_tables(tally, figures, rows), pairs_table(tally.every_pair())]


def any_tables(
    tally: BaseTally[Any], figures: dict[str, Any], more: Sequence[tuple[str, str]] = ()
) -> list[Table]:
    """The totals of many runs of any protocol."""
    average, least = figures["average"], figures["least"]
    rows = [
        ("runs", f"{tally.runs:,}"),
        ("runs in which a guarantee broke", f"{tally.violating:,}"),
        ("seconds", f"{figures['seconds']:.1f}"),
        ("runs a minute", f"{figures['runs_per_minute']:,.0f}"),
        ("simulated hours", f"{figures['simulated_hours']:.2f}"),
        ("events", f"{tally.events:,}"),
        *more,
        *(
            (f"{name} of a run: average, least", f"{average[name]:.1f}, {least.get(name, 0)}")
            for name in tally.SIZES
        ),
    ]
    how = "FAILED" if tally.violating else "passed"
    faults = [(name, f"{times:,}") for name, times in figures["faults"].items()]
    return [
        Table(f"fuzz {how} (seeds from {figures['seed']})", (), rows),
        Table("how often each fault struck", (), faults),
    ]


def pairs_table(times: Mapping[str, int], how: str = "how often") -> Table:
    """The table of how often each input came to a work in each state: inputs down, states across;
    ``-`` is what cannot occur."""

    def shown(pair: str) -> str:
        return f"{times[pair]:,}" if pair in times else "-"

    rows = [
        (each.value, *(shown(name_of((state, each))) for state in WorkState)) for each in WorkInput
    ]
    title = f"{how} each input came to a work in each state"
    return Table(title, ("input", *(state.value for state in WorkState)), rows)


def catches_table(catches: Sequence[Catch]) -> Table:
    """How each mutant was caught."""
    rows = [
        (
            catch.name,
            catch.guarantee or "NOT CAUGHT",
            str(catch.runs),
            f"{catch.seconds:.1f}",
            "" if catch.seed is None else str(catch.seed),
            "clean" if catch.clean else "FAILS TOO",
        )
        for catch in catches
    ]
    caught = sum(catch.caught for catch in catches)
    title = f"{caught} of {count(len(catches), 'mutant')} caught"
    return Table(title, ("mutant", "by", "runs", "seconds", "seed", "without it"), rows)
