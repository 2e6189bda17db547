"""The verb ``fuzz``: thousands of simulated runs, and a shrunk one that fails; or every order of
a small system (:mod:`.fuzz_exhaustive`).

The protocol that ships, a mutant of it and a protocol of somebody's own are targets of
:mod:`trio_envserve.retrylab`, which runs them; here are the options, the progress, and the
output (:mod:`.fuzz_report`).
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, NamedTuple

import trio

from ..core.errors import ConfigError
from ..lab.mutants import MUTANTS, NOT_BY_CHANCE, find
from ..lab.simulation.plan import is_harsh
from ..lab.simulation.target import SPEC, Tally, describe, origin
from ..options import option
from ..retrylab import campaign
from ..retrylab.campaign import Campaign, Found, ProcessDied, cores
from ..retrylab.jobs import JobError
from ..retrylab.target import MOST_HUNTED, BaseTally, Catch
from . import fuzz_exhaustive
from .common import OK, USAGE, CommandError, Result, Stop, put, say
from .fuzz_exhaustive import FAILED
from .fuzz_report import any_tables, catches_table, count, progress_of, run_tables
from .render import show_tables
from .verbs import Asked, verb

DEFAULT_S = 30.0

SHOWN = 3
"""Most failures, of different guarantees, that are made small and shown."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fuzz(Asked):
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

    def check(self) -> None:
        """Raise ConfigError for options that exclude each other."""
        wrong = {
            "--seconds and --runs exclude each other":
                self.seconds is not None and self.runs is not None,
            "--protocol has no mutants, no harsh runs and no hosts":
                self.protocol and (self.mutant or self.harsh or self.hosts),
            "--config is for --exhaustive, without --protocol":
                self.config and (self.protocol or not self.exhaustive),
            "--exhaustive has no seeds: the system's bounds say how far":
                self.exhaustive and (
                    self.many or self.saved or self.seed is not None or self.trace or self.harsh
                    or self.hosts
                ),
            "--exhaustive saves nothing of ours, and takes one mutant":
                self.exhaustive and not self.protocol and (self.save or self.mutant == "all"),
            "--mutant all has its own number of runs and modes, and no file":
                self.mutant == "all" and (self.many or self.saved or self.harsh or self.hosts),
            "--trace is for one run: give --seed or --saved":
                self.trace and (self.many or (self.seed is None and self.saved is None)),
        }  # fmt: skip
        for text, is_wrong in wrong.items():
            if is_wrong:
                raise ConfigError(text)
        if self.saved is not None and not self.saved.is_file():
            raise ConfigError(f"--saved {self.saved}: there is no such file")
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
        if self.protocol:
            return {}
        return {"harsh": self.harsh, "hosts": self.hosts, "mutant": self.mutant}

    def tally(self) -> BaseTally[Any]:
        """New sums over its runs."""
        return BaseTally() if self.protocol else Tally()

    def named(self, seed: int) -> dict[str, Any]:
        """Names of the target, and of a run of it, in the figures."""
        if self.protocol:
            return {"protocol": self.protocol}
        return {"harsh": is_harsh(seed, always=self.harsh)}

    def failed(self, *, broke: bool) -> int:
        """The exit code: a mutant should be caught."""
        return FAILED if broke != bool(self.mutant) else 0


@verb(
    Fuzz,
    {
        OK: "no guarantee broke; with --mutant: every mutant was caught",
        FAILED: "a guarantee broke; with --mutant: a mutant was not caught",
        USAGE: "wrong usage; with --protocol: there is no such protocol, or it is not right",
    },
    interrupted="interrupted (Ctrl-C, SIGTERM), with the figures so far",
)
async def fuzz(asked: Fuzz, stop: Stop) -> Result:
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
    made_by = origin()
    with trio.CancelScope() as working:
        stop.on_first = working.cancel
        try:
            result = await _chosen(asked, made_by, stop)
        except* ProcessDied as died:
            raise CommandError(f"{_first(died)}; its last output is above", FAILED) from None
        except* JobError as error:
            raise CommandError(str(_first(error)), USAGE) from None
        return Result(result.exit_code, {**result.summary, **made_by})
    say("interrupted")  # before there was any result
    return Result(stop.interrupted_code, {"interrupted": True, **made_by})


def _first(group: BaseExceptionGroup) -> BaseException:
    """The first of the exceptions that were raised at the same time."""
    one: BaseException = group
    while isinstance(one, BaseExceptionGroup):
        one = one.exceptions[0]
    return one


async def _chosen(options: Fuzz, made_by: dict[str, Any], stop: Stop) -> Result:
    if options.exhaustive:
        search, as_json = fuzz_exhaustive, options.as_json
        if options.protocol:
            save = str(options.save) if options.save else None
            return await search.protocol(options.protocol, stop, as_json=as_json, save=save)
        configuration = search.chosen(options.config, options.mutant)
        return await search.own(configuration, options.mutant, stop, as_json=as_json)
    if options.mutant == "all":
        return await _mutants(options, stop)
    if options.saved is not None:
        return await _replay(options, options.saved)
    if options.single:
        return await _one(options, made_by)
    return await _many(options, made_by, stop)


# -- many runs ----------------------------------------------------------------


async def _many(options: Fuzz, made_by: dict[str, Any], stop: Stop) -> Result:
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
    mode += ", with hosts" * options.hosts
    of = options.protocol + ": " if options.protocol else f"{describe(made_by)}; "
    say(f"{of}seeds from {base}{mode}, {count(options.processes, 'process')}")
    if options.mutant:
        say(f"mutant {options.mutant}: {find(options.mutant).prose}")
    searched = await _search(fuzzing, options, made_by, stop, runs=runs, seconds=seconds)
    figures = searched.figures | {"seed": base, "jobs": options.processes}
    figures |= {"protocol": options.protocol} if options.protocol else {}
    figures["failures"] = searched.failures
    if searched.interrupted:
        return Result(stop.interrupted_code, {**figures, "interrupted": True})
    tally, broke = fuzzing.tally, bool(fuzzing.found)
    if options.mutant:
        caught = "caught" if broke else "NOT CAUGHT"
        say(f"{options.mutant}: {caught} after {count(tally.runs, 'run')}")
    elif not options.as_json:
        if isinstance(tally, Tally):
            show_tables(run_tables(tally, figures), put)
        else:
            show_tables(any_tables(tally, figures), put)
    return Result(options.failed(broke=broke), figures)


class _Searched(NamedTuple):
    """The result of a search."""

    figures: dict[str, Any]
    failures: list[dict[str, Any]]
    interrupted: bool = False


async def _search(
    fuzzing: Campaign[Any], options: Fuzz, made_by: dict[str, Any], stop: Stop, *,
    runs: int | None, seconds: float | None,
) -> _Searched:  # fmt: skip
    """Search; make the first failure of each guarantee small, and show it."""
    began_s = trio.current_time()
    with trio.CancelScope() as searching:
        stop.on_first = searching.cancel
        async with progress_of(fuzzing.tally, runs=runs, seconds=seconds):
            await fuzzing.run()
    figures = fuzzing.tally.figures(trio.current_time() - began_s)
    if searching.cancelled_caught:
        say(f"interrupted after {count(fuzzing.tally.runs, 'run')}")
        return _Searched(figures, [], interrupted=True)
    failures = []
    with trio.CancelScope() as shrinking:
        stop.on_first = shrinking.cancel
        firsts = {found.guarantee: found for found in reversed(fuzzing.found)}
        for found in list(firsts.values())[:SHOWN]:
            say(f"seed {found.seed} breaks {found.guarantee}; shrinking it")
            failures.append(await _examined(options, found, made_by))
    if shrinking.cancelled_caught:
        say("interrupted while a failure was made small")
        return _Searched(figures, [], interrupted=True)
    return _Searched(figures, failures)


async def _examined(options: Fuzz, found: Found, made_by: dict[str, Any]) -> dict[str, Any]:
    failure = await campaign.examine(
        options.spec, found, options=options.of_target(), made_by=made_by,
        save=str(options.save) if options.save else None,
    )  # fmt: skip
    _show(failure, as_json=options.as_json)
    return failure


def _show(failure: dict[str, Any], *, as_json: bool) -> None:
    text = failure.pop("text")
    if not as_json:
        put(f"{text}\n")


# -- one run ------------------------------------------------------------------


async def _run(options: Fuzz, **job: Any) -> dict[str, Any]:
    """Figures and log of one run."""
    return await campaign.ask(
        "one", options.spec, trace=options.trace, options=options.of_target(), **job
    )


async def _one(options: Fuzz, made_by: dict[str, Any]) -> Result:
    assert options.seed is not None
    began_s = trio.current_time()
    ran = await _run(options, seed=options.seed)
    took_s = trio.current_time() - began_s
    _print_log(ran, options)
    failures = []
    for guarantee, violation in ran["violations"][:1]:
        found = Found(options.seed, guarantee, violation, ran["digest"])
        failures.append(await _examined(options, found, made_by))
    return _told(options, ran, options.seed, failures, took_s)


async def _replay(options: Fuzz, path: Path) -> Result:
    began_s = trio.current_time()
    ran = await _run(options, seed=0, path=str(path))
    took_s = trio.current_time() - began_s
    failure = ran["failure"]
    broke = any(guarantee == failure["guarantee"] for guarantee, _ in ran["violations"])
    _print_log(ran, options)
    if broke:
        _show(failure, as_json=options.as_json)
    elif not options.as_json:
        put(f"{failure['guarantee']} holds: {path} shows nothing any more")
    failures = [{**failure, "saved": str(path)}] * broke
    return _told(options, ran, failure["luck"], failures, took_s)


def _print_log(ran: dict[str, Any], options: Fuzz) -> None:
    if options.trace and not options.as_json:
        put("\n".join(ran["log"]))


def _told(
    options: Fuzz, ran: dict[str, Any], seed: int, failures: list[dict[str, Any]], took_s: float
) -> Result:
    """The result of one run, printed."""
    tally = options.tally()
    tally.merge(ran["tally"])
    figures = tally.figures(took_s) | options.named(seed)
    figures |= {
        "seed": seed, "digest": ran["digest"], "virtual_s": ran["virtual_s"],
        "failures": failures, "broken": [violation for _, violation in ran["violations"]],
    }  # fmt: skip
    if options.trace:
        figures["log"] = ran["log"]
    if not options.as_json:
        put(
            f"{ran['whole']}: {ran['events']} events in {ran['virtual_s']:.1f} simulated s, "
            f"{count(len(ran['violations']), 'violation')}, trace {ran['digest']}"
        )
    return Result(options.failed(broke=bool(ran["violations"])), figures)


# -- mutants ------------------------------------------------------------------


def _data(catch: Catch) -> dict[str, Any]:
    return {**catch._asdict(), "seconds": round(catch.seconds, 3)}


async def _mutants(options: Fuzz, stop: Stop) -> Result:
    catches: list[Catch] = []
    began_s = trio.current_time()
    names = [mutant.name for mutant in MUTANTS if mutant.name not in NOT_BY_CHANCE]

    def caught(catch: Catch) -> None:
        catches.append(catch)
        by = f"caught by {catch.guarantee}" if catch.caught else "NOT CAUGHT"
        runs = f"{count(catch.runs, 'run')}, {catch.seconds:.1f} s"
        say(f"{len(catches)}/{len(names)} {catch.name}: {by} ({runs})")

    with trio.CancelScope() as hunting:
        stop.on_first = hunting.cancel
        await campaign.hunt_all(
            SPEC, [{"mutant": name} for name in names], base=options.base(), jobs=options.processes,
            caught=caught,
        )  # fmt: skip
    catches.sort(key=lambda catch: names.index(catch.name))
    summary = {
        "mutants": [_data(catch) for catch in catches],
        "count": len(names),
        "caught": sum(catch.caught for catch in catches),
        "clean_without": all(catch.clean for catch in catches),
        "slowest_s": round(max((catch.seconds for catch in catches), default=0.0), 3),
        "seconds": round(trio.current_time() - began_s, 3),
        "seed": options.base(),
        "jobs": options.processes,
    }
    if hunting.cancelled_caught:
        say(f"interrupted after {count(len(catches), 'mutant')}")
        return Result(stop.interrupted_code, {**summary, "interrupted": True})
    if not options.as_json:
        show_tables([catches_table(catches)], put)
    ok = len(catches) == len(names) and all(catch.caught and catch.clean for catch in catches)
    return Result(0 if ok else FAILED, summary)
