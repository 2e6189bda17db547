"""The verb ``fuzz``: thousands of simulated runs, and a shrunk one that fails.

:mod:`trio_envserve.lab.fuzzing` runs them; here are the options, the progress, and the
output (:mod:`.fuzz_report`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
import trio

from ..lab.fuzzing import campaign
from ..lab.fuzzing.failure import Failure, is_harsh
from ..lab.fuzzing.failure import text as failure_text
from ..lab.fuzzing.hunt import MOST_RUNS, Catch
from ..lab.fuzzing.origin import describe, origin
from ..lab.fuzzing.saved import load, save
from ..lab.fuzzing.tally import Tally
from ..lab.mutants import MUTANTS, find
from ..lab.simulation.plans import to_data
from ..retrylab.campaign import Campaign, Found, ProcessDied, cores
from ..retrylab.jobs import JobError
from . import fuzz_protocol
from .common import USAGE, CommandError, Result, Stop, exit_codes, put, run_verb, say
from .fuzz_report import catches_table, count, run_tables
from .options import json_option
from .render import show_tables
from .searching import FAILED, search

DEFAULT_S = 30.0

_EPILOG = exit_codes(
    "no guarantee broke; with --mutant: every mutant was caught",
    "a guarantee broke; with --mutant: a mutant was not caught",
    usage="; with --protocol: there is no such protocol, or it is not right",
    so_far="figures",
)


class _Options:
    """The options, checked where they exclude each other."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.seconds: float | None = given["seconds"]
        self.runs: int | None = given["runs"]
        self.seed: int | None = given["seed"]
        self.harsh: bool = given["harsh"]
        self.mutant: str = given["mutant"] or ""
        self.protocol: str = given["protocol"] or ""
        self.saved: Path | None = given["saved"]
        self.save: Path | None = given["save"]
        alone = self.mutant not in ("", "all")  # so that it is the same seed each time
        self.jobs: int = given["jobs"] or (1 if alone else cores())
        self.trace: bool = given["trace"]
        self.keep_going: bool = given["keep_going"]
        self.as_json: bool = given["as_json"]
        self.many = self.seconds is not None or self.runs is not None
        if self.seconds is not None and self.runs is not None:
            raise click.UsageError("--seconds and --runs exclude each other")
        self.exhaustive: bool = given["exhaustive"]
        if self.protocol and (self.mutant or self.harsh):
            raise click.UsageError("--protocol has no mutants and no harsh runs")
        if self.exhaustive and not self.protocol:
            raise click.UsageError(
                "--exhaustive is for --protocol; `trio-envserve explore` searches what ships"
            )
        if self.exhaustive and (self.many or self.saved or self.seed is not None or self.trace):
            raise click.UsageError("--exhaustive has no seeds: the system's bounds say how far")
        if self.mutant and self.mutant != "all":
            try:
                find(self.mutant)
            except KeyError as error:
                raise click.UsageError(error.args[0]) from None
        if self.mutant == "all" and (self.many or self.saved or self.harsh):
            raise click.UsageError("--mutant all has its own number of runs and modes, and no file")
        if self.trace and (self.many or (self.seed is None and self.saved is None)):
            raise click.UsageError("--trace is for one run: give --seed or --saved")

    @property
    def single(self) -> bool:
        """Whether to run one seed once."""
        return self.seed is not None and not self.many

    def base(self) -> int:
        """The first seed.  For mutants it is always the same, so that each shows the same."""
        if self.seed is not None:
            return self.seed
        return 0 if self.mutant else int.from_bytes(os.urandom(4), "big") // 2


@click.command(epilog=_EPILOG)
@click.option("--seconds", type=click.FloatRange(min=0.1), help="How long.  [default: 30]")
@click.option("--runs", type=click.IntRange(min=1), help="How many runs, whatever they take.")
@click.option(
    "--seed", type=click.IntRange(0, 2**62),
    help="Run this seed once; with --seconds or --runs, begin with it.",
)  # fmt: skip
@click.option(
    "--protocol", metavar="SPEC",
    help="Try a protocol of your own instead: file.py:NAME or package.module:NAME.",
)  # fmt: skip
@click.option(
    "--exhaustive", is_flag=True, help="Of a protocol of your own: every order, within its bounds."
)
@click.option("--harsh", is_flag=True, help="Make all runs harsh, not only the odd seeds.")
@click.option(
    "--mutant", metavar="NAME|all",
    help="Break the core on purpose, and see that it is caught; all: every mutant in turn.",
)  # fmt: skip
@click.option(
    "--save", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    help="Save shrunk failures as files that a test suite can replay.",
)  # fmt: skip
@click.option(
    "--saved", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
    help="Replay a saved failure.",
)  # fmt: skip
@click.option("--trace", is_flag=True, help="Print every event of the one run.")
@click.option("--keep-going", is_flag=True, help="Do not stop at the first failure.")
@click.option("--jobs", type=click.IntRange(min=1), help="Processes.  [default: one for each core]")
@json_option
def fuzz(**given: Any) -> int:
    """Simulate whole systems under random faults and look for a broken guarantee.

    Clients, a server with its restarts, workers and environment code run around the
    pure code that ships, on a virtual clock and network. Each seed draws its own mix
    of faults. A judge compares what the environment's log and the callers saw with
    the guarantees. A failure is shrunk and drawn.

    \b
    Examples:
      trio-envserve fuzz
      trio-envserve fuzz --runs 1000 --seed 0 --json
      trio-envserve fuzz --mutant lost-when-killed
      trio-envserve fuzz --mutant all
      trio-envserve fuzz --seed 7 --trace
      trio-envserve fuzz --protocol examples/kv_store.py:FORGETFUL
    """  # noqa: D301  # click wants the character itself
    options = _Options(given)
    made_by = origin()

    async def main(stop: Stop) -> Result:
        with trio.CancelScope() as working:
            stop.on_first = working.cancel
            try:
                result = await _chosen(options, made_by, stop)
            except* ProcessDied as died:
                raise CommandError(f"{_first(died)}; its last output is above", FAILED) from None
            except* JobError as error:
                raise CommandError(str(_first(error)), USAGE) from None
            return Result(result.exit_code, {**result.summary, **made_by})
        say("interrupted")  # before there was any result
        return Result(stop.interrupted_code, {"interrupted": True, **made_by})

    return run_verb(main, as_json=options.as_json)


def _first(group: BaseExceptionGroup) -> BaseException:
    """One of the exceptions that were raised at the same time."""
    one: BaseException = group
    while isinstance(one, BaseExceptionGroup):
        one = one.exceptions[0]
    return one


async def _chosen(options: _Options, made_by: dict[str, Any], stop: Stop) -> Result:
    if options.protocol:
        return await _protocol(options, stop)
    if options.mutant == "all":
        return await _mutants(options, stop)
    if options.saved is not None:
        return await _replay(options, options.saved)
    if options.single:
        return await _one(options, made_by)
    return await _many(options, made_by, stop)


# -- another protocol ---------------------------------------------------------


async def _protocol(options: _Options, stop: Stop) -> Result:
    spec, base = options.protocol, options.base()
    as_json, save = options.as_json, str(options.save) if options.save else None
    if options.exhaustive:
        return await fuzz_protocol.exhaustive(spec, stop, as_json=as_json, save=save)
    if options.saved is not None:
        return await fuzz_protocol.replay(spec, str(options.saved), as_json=as_json)
    if options.single:
        return await fuzz_protocol.one(spec, base, trace=options.trace, as_json=as_json, save=save)
    seconds = options.seconds if options.many else DEFAULT_S
    return await fuzz_protocol.many(
        spec, stop, base=base, runs=options.runs, seconds=seconds, jobs=options.jobs,
        keep_going=options.keep_going, as_json=as_json, save=save,
    )  # fmt: skip


# -- many runs ----------------------------------------------------------------


async def _many(options: _Options, made_by: dict[str, Any], stop: Stop) -> Result:
    base = options.base()
    runs, seconds = options.runs, options.seconds
    if not options.many:
        runs, seconds = (MOST_RUNS, None) if options.mutant else (None, DEFAULT_S)
    job = {"base": base, "harsh": options.harsh, "mutant": options.mutant}
    fuzzing = Campaign(
        campaign.MODULE, Tally(), job, runs=runs, seconds=seconds, jobs=options.jobs,
        keep_going=options.keep_going,
    )  # fmt: skip
    mode = "all harsh" if options.harsh else "usual and harsh by turns"
    say(f"{describe(made_by)}; seeds from {base}, {mode}, {count(options.jobs, 'process')}")
    if options.mutant:
        say(f"mutant {options.mutant}: {find(options.mutant).prose}")

    async def examine(found: Found) -> dict[str, Any]:
        harsh = is_harsh(found.seed, always=options.harsh)
        failure = await campaign.examine(found, harsh=harsh, mutant=options.mutant)
        return _shown(failure, options, made_by) | {"seed_digest": found.digest}

    searched = await search(fuzzing, stop, examine, runs=runs, seconds=seconds)
    searched.figures.update(seed=base, jobs=options.jobs)
    broke = bool(fuzzing.found)
    if not searched.interrupted:
        if not options.as_json and not options.mutant:
            show_tables(run_tables(fuzzing.tally, searched.figures), put)
        if options.mutant:
            _say_mutant(options.mutant, fuzzing.tally, caught=broke)
    return searched.result(stop, FAILED if broke != bool(options.mutant) else 0)


def _say_mutant(name: str, tally: Tally, *, caught: bool) -> None:
    say(f"{name}: {'caught' if caught else 'NOT CAUGHT'} after {count(tally.runs, 'run')}")


def _shown(failure: Failure, options: _Options, made_by: dict[str, Any]) -> dict[str, Any]:
    path, footer = None, ""
    if options.save:
        try:
            path = save(failure, options.save, made_by)
            footer = f"Saved: trio-envserve fuzz --saved {path}"
        except OSError as error:
            footer = f"Not saved: {error}"
    if failure.mutant and path:
        footer += f" --mutant {failure.mutant}"
    if not options.as_json:
        put(failure_text(failure, f"{footer}\n".lstrip("\n")))
    return failure.to_data() | {"command": failure.command(), "saved": path and str(path)}


# -- one run ------------------------------------------------------------------


async def _one(options: _Options, made_by: dict[str, Any]) -> Result:
    assert options.seed is not None
    harsh = is_harsh(options.seed, always=options.harsh)
    began_s = trio.current_time()
    ran = await campaign.one(options.seed, harsh=harsh, mutant=options.mutant, trace=options.trace)
    took_s = trio.current_time() - began_s
    failures = []
    for guarantee, violation in ran["violations"][:1]:
        found = Found(options.seed, guarantee, violation, ran["digest"])
        _print_log(ran, options)
        failure = await campaign.examine(found, harsh=harsh, mutant=options.mutant)
        failures.append(_shown(failure, options, made_by))
    if not failures:
        _print_log(ran, options)
    return _told(options, ran, options.seed, failures, took_s, harsh=harsh)


async def _replay(options: _Options, path: Path) -> Result:
    try:
        failure = load(path)
    except ValueError as error:
        raise CommandError(str(error), USAGE) from None
    began_s = trio.current_time()
    ran = await campaign.one(
        failure.luck, harsh=failure.harsh, mutant=options.mutant, trace=options.trace,
        plan=to_data(failure.plan),
    )  # fmt: skip
    took_s = trio.current_time() - began_s
    _print_log(ran, options)
    broke = any(guarantee == failure.guarantee for guarantee, _ in ran["violations"])
    failures = [failure.to_data() | {"saved": str(path)}] * broke
    if broke and not options.as_json:
        put(failure_text(failure))
    return _told(options, ran, failure.luck, failures, took_s, harsh=failure.harsh)


def _print_log(ran: dict[str, Any], options: _Options) -> None:
    if options.trace and not options.as_json:
        put("\n".join(ran["log"]))


def _told(
    options: _Options, ran: dict[str, Any], seed: int, failures: list[dict[str, Any]],
    took_s: float, *, harsh: bool,
) -> Result:  # fmt: skip
    """The result of one run, printed."""
    tally = Tally.from_data(ran["tally"])
    figures = tally.figures(took_s)
    figures |= {
        "seed": seed, "harsh": harsh, "digest": ran["digest"], "virtual_s": ran["virtual_s"],
        "failures": failures, "broken": [violation for _, violation in ran["violations"]],
    }  # fmt: skip
    if options.trace:
        figures["log"] = ran["log"]
    if not options.as_json:
        mode = "harsh" if harsh else "usual"
        put(
            f"seed {seed} ({mode}): {ran['events']} events in {ran['virtual_s']:.1f} simulated s, "
            f"{count(len(ran['violations']), 'violation')}, trace {ran['digest']}"
        )
    broke = bool(ran["violations"])
    if options.mutant:
        broke = not broke
    return Result(FAILED if broke else 0, figures)


# -- mutants ------------------------------------------------------------------


def _data(catch: Catch) -> dict[str, Any]:
    return {**catch._asdict(), "seconds": round(catch.seconds, 3)}


async def _mutants(options: _Options, stop: Stop) -> Result:
    catches: list[Catch] = []
    began_s = trio.current_time()
    names = [mutant.name for mutant in MUTANTS]

    def caught(catch: Catch) -> None:
        catches.append(catch)
        by = f"caught by {catch.guarantee}" if catch.caught else "NOT CAUGHT"
        runs = f"{count(catch.runs, 'run')}, {catch.seconds:.1f} s"
        say(f"{len(catches)}/{len(names)} {catch.name}: {by} ({runs})")

    with trio.CancelScope() as hunting:
        stop.on_first = hunting.cancel
        await campaign.hunt_all(names, base=options.base(), jobs=options.jobs, caught=caught)
    catches.sort(key=lambda catch: names.index(catch.name))
    summary = {
        "mutants": [_data(catch) for catch in catches],
        "count": len(names),
        "caught": sum(catch.caught for catch in catches),
        "clean_without": all(catch.clean for catch in catches),
        "slowest_s": round(max((catch.seconds for catch in catches), default=0.0), 3),
        "seconds": round(trio.current_time() - began_s, 3),
        "seed": options.base(),
        "jobs": options.jobs,
    }
    if hunting.cancelled_caught:
        say(f"interrupted after {count(len(catches), 'mutant')}")
        return Result(stop.interrupted_code, {**summary, "interrupted": True})
    if not options.as_json:
        show_tables([catches_table(catches)], put)
    ok = len(catches) == len(names) and all(catch.caught and catch.clean for catch in catches)
    return Result(0 if ok else FAILED, summary)
