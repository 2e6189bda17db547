"""The simulator finds nothing in what ships, and finds what is broken on purpose."""

import dataclasses
import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.simulation.mutants import MUTANTS, Mutant
from trio_envserve.core.limits import ServerLimits
from trio_envserve.testing.simulation import simulator
from trio_envserve.testing.simulation.actor_server import SimServer
from trio_envserve.testing.simulation.faults import HARSH_ONLY, TIMES, Ask, Fault, Plan
from trio_envserve.testing.simulation.network import Frames, Link, Network
from trio_envserve.testing.simulation.simulator import Run, World, plan_of, run

SEEDS = 150


@pytest.mark.parametrize("harsh", [False, True], ids=["usual", "harsh"])
def test_no_seed_violates_a_guarantee(harsh: bool):
    bad = [r for r in (run(seed, harsh=harsh) for seed in range(SEEDS)) if r.violations]
    assert not bad, "\n".join(f"seed {r.seed}: {r.violations[0]}" for r in bad)


def test_the_runs_are_worth_something():
    runs = [run(seed, harsh=seed % 2 == 1) for seed in range(60)]
    faults = Counter[str]()
    told = Counter[str]()
    for each in runs:
        faults.update(each.faults)
        told.update(each.told)
    seen_otherwise = {Fault.NEW_ROUTE, Fault.TINY_BOUNDS, Fault.SHORT_LEASE}
    kinds = {fault.value for fault in Fault if fault not in seen_otherwise}
    assert kinds <= set(faults)
    assert set(TIMES) | HARSH_ONLY <= set(Fault)
    assert sum(each.asked for each in runs) > 1500
    for what in ("result", "error worker-lost", "fail server-lost", "fail never-started"):
        assert told[what] > 10, told


def few_calls() -> Plan:
    """Four calls of two clients, half of them cancelled, and no fault at all."""
    asks = tuple(
        tuple(
            Ask(
                key=f"c{client}:{n}",
                at_s=0.8 + 0.1 * n,
                behaviour="return",
                duration_s=0.2,
                rerun=None,
                max_executions=2,
                limit_s=None,
                cancel_after_s=0.1 if n % 2 else None,
                body=f"c{client}:{n}|{'hang' if n % 2 else 'return'}|0.2|".encode(),
            )
            for n in range(2)
        )
        for client in range(2)
    )
    plan = plan_of(0)
    return dataclasses.replace(
        plan, faults=frozenset(), moments=(), busy_s=0.9, clients=2, workers=2, asks=asks,
        loss=0.0, mangle=0.0, server=ServerLimits(tick_s=0.2),
    )  # fmt: skip


def test_any_single_lost_message_is_repaired_within_seconds(monkeypatch: pytest.MonkeyPatch):
    """On either link, in either direction (G9)."""
    arrive = Network._arrive
    count = lost = 0

    def lose_one(network: Network, link: Link, frames: Frames, up: bool) -> None:
        nonlocal count
        count += 1
        if count - 1 == lost:
            network.events.note_message(link.peer.name, "LOST", frames)
        else:
            arrive(network, link, frames, up)

    monkeypatch.setattr(Network, "_arrive", lose_one)
    lost = -1
    quick = World(0, plan=few_calls())
    quick.run()
    messages, lost = count, 0
    assert messages > 30
    for lost in range(messages):
        count = 0
        world = World(0, plan=few_calls())
        world.run()
        assert not world.judge.violations, lost
        slowest_s = max(call.told_s - call.asked_s for call in world.judge.calls.values())
        assert slowest_s < 3.0, lost
        assert world.events.now_s < quick.events.now_s + 3.0, lost


@pytest.mark.parametrize("harsh", [False, True], ids=["usual", "harsh"])
def test_a_seed_always_gives_the_same_run(harsh: bool):
    runs = [run(7, harsh=harsh, trace=trace) for trace in (False, True)]
    assert runs[0].digest == runs[1].digest
    assert runs[0].events == runs[1].events
    assert run(8, harsh=harsh).digest != runs[0].digest


@pytest.mark.real
def test_a_run_does_not_depend_on_the_order_of_hashes():
    module = "trio_envserve.testing.simulation.simulator"
    program = f"from {module} import run; print(run(11, harsh=True).digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def caught(mutant: Mutant, runs_most: int = 150) -> Run | None:
    """The first run that the mutant's violation is found in."""
    runs = 0
    for seed in range(4000):
        for harsh in (False, True):
            if mutant.needs <= plan_of(seed, harsh=harsh).faults:
                one = run(seed, harsh=harsh)
                if any(v.startswith(mutant.violates) for v in one.violations):
                    return one
                runs += 1
        if runs >= runs_most:
            break
    return None


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_variant_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch):
    mutant.apply(monkeypatch)
    assert caught(mutant) is not None


def test_a_crash_of_a_core_is_a_violation(monkeypatch: pytest.MonkeyPatch):
    def crash(*args: object) -> None:
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(SimServer, "_from_client", crash)
    one = run(1)
    assert one.violations[-1].startswith("CRASH")
    assert "on purpose" in one.violations[-1]


def test_the_command_prints_a_table(capsys: pytest.CaptureFixture[str]):
    assert simulator.main(["--seeds", "0:3"]) == 0
    assert "seeds with violations: 0" in capsys.readouterr().out


def test_the_command_prints_a_log(capsys: pytest.CaptureFixture[str]):
    assert simulator.main(["--trace", "3", "--harsh"]) == 0
    log = capsys.readouterr().out
    assert "Welcome(" in log
    assert "Dispatch(" in log


def test_the_command_fails_on_a_violation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    next(m for m in MUTANTS if m.name == "reruns without consent").apply(monkeypatch)
    assert simulator.main(["--seeds", "0:20"]) == 1
    assert "G2" in capsys.readouterr().out
