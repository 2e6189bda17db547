"""The killer and the clients of the rigs, as real processes; their times and calls by seed."""

from __future__ import annotations

import random
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.cli.commands import lines, until
from tests.proc import stat_of
from tests.rig import soak
from tests.rig.rig import EVENTS, Rig
from trio_envserve.lab.killer import Act, HeldVictim, Killer, Victim
from trio_envserve.lab.processes import EndedByItself, Process

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

UP = 'import sys; print(\'{"event": "up"}\', flush=True); sys.stdin.read()'
LIMIT_S = 120


def events(folder: Path) -> list[dict[str, Any]]:
    return lines(folder / EVENTS)


def hows(folder: Path) -> list[str]:
    return [event["what"]["how"] for event in events(folder) if event["kind"] == "harmed"]


@pytest.fixture
async def rig(tmp_path: Path):
    made = Rig(tmp_path, "tests.rig.soak", quiet=True)
    with trio.fail_after(LIMIT_S):
        async with Process(
            [sys.executable, "-c", UP], "server", ready="up", cwd=tmp_path
        ) as made.server:
            yield made


@pytest.fixture
def server(rig: Rig) -> Process:
    assert rig.server is not None
    return rig.server


async def test_victim_that_is_held_is_stopped_continued_and_killed(server: Process) -> None:
    held = HeldVictim(Victim("somebody", server.pid, None))
    held.signal(signal.SIGSTOP)
    await until(lambda: stat_of(server.pid)[0] == "T")
    held.signal(signal.SIGCONT)
    await until(lambda: stat_of(server.pid)[0] != "T")
    held.signal(signal.SIGKILL)
    await held.wait_ended()
    await server.wait()
    held.signal(signal.SIGCONT)  # nobody is hit by it any more
    held.close()
    with pytest.raises(ProcessLookupError):
        HeldVictim(Victim("somebody", server.pid, None))


async def test_stop_that_ends_does_not_wake_a_frozen_process(
    rig: Rig, server: Process, tmp_path: Path
) -> None:
    striking = Killer(rig)
    acts = [Act(0.0, "server", "freeze"), Act(0.0, "server", "stop", lasts_s=0.05)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(striking.run, acts)
        await until(lambda: striking.done == 1)
        await until(lambda: stat_of(server.pid)[0] == "T")  # and it is not woken
        await server.kill()
    assert striking.done == 2
    assert sorted(hows(tmp_path)) == ["ended", "freeze", "stop"]


async def test_stopped_process_goes_on_when_the_killer_is_cancelled(
    rig: Rig, server: Process
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Killer(rig).run, [Act(0.0, "server", "stop", lasts_s=3600.0)])
        await until(lambda: stat_of(server.pid)[0] == "T")
        nursery.cancel_scope.cancel()
    await until(lambda: stat_of(server.pid)[0] != "T")


async def test_kill_is_over_when_its_victim_is_dead(
    rig: Rig, server: Process, tmp_path: Path
) -> None:
    assert await Killer(rig).carry_out(Act(0.0, "server", "kill"))
    assert server.status == -signal.SIGKILL
    (event,) = events(tmp_path)
    assert event["what"]["pid"] == server.pid
    assert event["what"]["since_s"] <= event["at_s"]


async def test_act_that_falls_on_nobody_is_missed(rig: Rig, tmp_path: Path) -> None:
    assert not await Killer(rig, patience_s=0.1).carry_out(Act(0.0, "host", "kill"))
    assert hows(tmp_path) == ["host kill"]
    assert events(tmp_path)[0]["what"]["of"] == "missed"


async def test_client_that_ends_by_itself_ends_the_run(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "tests.rig.soak", quiet=True)
    with trio.fail_after(LIMIT_S):
        with pytest.raises(EndedByItself, match=r"(?s)c0.*ConfigError"):
            async with rig.kept_clients(1, "no address"):
                await trio.sleep_forever()
    (event,) = (event for event in events(tmp_path) if event["kind"] == "harmed")
    assert event["what"]["how"] == "ended by itself"


async def test_client_that_waits_for_its_server_ends_when_it_is_told_to(
    tmp_path: Path, folder: str
) -> None:
    rig = Rig(tmp_path, "tests.rig.soak", quiet=True)
    with trio.fail_after(LIMIT_S):
        async with rig.kept_clients(1, f"ipc://{folder}/nobody"):
            process = rig.clients[0].process
            process._end_s = LIMIT_S  # it may be a while before it hears anything
    assert process.status == 0


# -- by seed -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_round_of_faults_has_every_kind_and_ends_in_its_time(seed: int) -> None:
    shortest = soak.schedule(random.Random(seed), 6.0, soak.ROUND_S, soak.KINDS)
    assert {(act.of, act.how) for act in shortest} == set(soak.KINDS)
    seconds = 10 * soak.ROUND_S
    kinds = soak.KINDS | soak.KINDS_OF_HOST
    acts = soak.schedule(random.Random(seed), seconds, soak.ROUND_S, kinds)
    assert acts == soak.schedule(random.Random(seed), seconds, soak.ROUND_S, kinds)
    assert [act.at for act in acts] == sorted(act.at for act in acts)
    for number in range(10):
        begin_s = number * soak.ROUND_S
        of_round = Counter(
            (act.of, act.how) for act in acts if begin_s <= act.at < begin_s + soak.ROUND_S
        )
        assert of_round == {name: kind.often for name, kind in kinds.items()}
    for act in acts:
        (least_s, most_s), (least, most) = kinds[act.of, act.how][1:]
        assert 0 <= act.choice < 1
        assert least_s <= act.lasts_s <= most_s
        assert least <= act.amount <= most
    assert max(act.at + act.lasts_s for act in acts) < seconds + soak.ROUND_S / 2


def test_mix_of_the_soak_follows_from_its_seed_and_has_everything() -> None:
    mix, again = soak.Mix(5, "c0-1"), soak.Mix(5, "c0-1")
    asks = [mix.draw(0) for _ in range(3000)]
    assert asks == [again.draw(0) for _ in range(3000)]
    assert {ask.rerun for ask in asks} == {True, False, None}
    assert {ask.max_executions for ask in asks} == {None, 1, 2, 10}
    assert any(ask.timeout_s for ask in asks)
    assert any(ask.pad for ask in asks)
    endless = [ask for ask in asks if ask.seconds == soak.ENDLESS_S]
    assert endless
    # Nobody waits for them to end.
    assert all(ask.withdraw_s < 10.0 for ask in endless)
    assert sum(ask.withdraw_s == float("inf") for ask in asks) > 2500
