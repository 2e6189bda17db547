"""The environment, served: each test says which of the fixtures it is about."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from spelling_env import WORDS, Spelling

from trio_envserve.retrylab import Event, Judge, Violation
from trio_envserve.testing.plugin import ClientFactory, ProxyFactory, ServerFactory
from trio_envserve.testing.trial import FAULTS, JUDGES, Trial, run_trial


async def test_the_oracle_scores_full_marks(
    envserve_address: str, envserve_client: ClientFactory
) -> None:
    """On the server of the session: that of run-with, if there is one."""
    client = await envserve_client(envserve_address)
    inputs = Spelling().inputs(20, seed=1)
    async with client.run_many(inputs, model="oracle") as outcomes:
        async for _, outcome in outcomes:
            assert outcome.unwrap()["reward"] == 1.0


async def test_garbage_scores_nothing(
    envserve_address: str, envserve_client: ClientFactory
) -> None:
    """The other side of the same: a scorer that is always content is none."""
    client = await envserve_client(envserve_address)
    assert (await client.run_rollout({"word": "once"}, model="random"))["reward"] == 0.0


def test_other_programs_find_the_server(envserve_address: str) -> None:
    """A test that is no coroutine, and a client in a process of its own."""
    ask = ["eval", "spelling_env:Spelling", "-n", "10", "--address", envserve_address]
    subprocess.run([sys.executable, "-m", "trio_envserve", *ask], check=True)


async def test_a_cut_connection_costs_nothing(
    envserve_server: ServerFactory, envserve_proxy: ProxyFactory, envserve_client: ClientFactory
) -> None:
    """A server, a fault proxy and a client of this test's own."""
    server = await envserve_server("spelling_env:Spelling", args={"separator": "."})
    proxy = await envserve_proxy(server)
    client = await envserve_client(proxy)
    for word in WORDS:
        result = await client.run_rollout({"word": word}, state_columns=["right"])
        assert result["state"]["right"] == ".".join(word)
        proxy.cut_all()
    assert server.stats().cache.dispatched == len(WORDS)


@pytest.mark.parametrize("seed", range(10))
def test_whatever_goes_wrong_each_word_is_spelled_once(seed: int) -> None:
    """A trial: server, clients, faults and clock in memory."""
    run_trial(Spelling, Spelling().inputs(20, seed), seed=seed).check()


def test_a_fault_and_a_judge_of_our_own() -> None:
    """The network fails at the worst moment, and nobody may wait for a minute."""

    async def twice_in_a_row(trial: Trial) -> str:
        trial.cut()
        await trial.restart_server(down_s=1.0, drain_s=5.0)
        return "within a second"

    class NobodyWaitsAMinute(Judge):
        def __init__(self) -> None:
            self.asked_s: dict[str, float] = {}

        def see(self, event: Event) -> Iterator[Violation]:
            if event.kind == "asked":
                self.asked_s[event.request] = event.at_s
            if event.kind == "told":
                waited_s = event.at_s - self.asked_s[event.request]
                if waited_s > 60:
                    yield event.breaks("within a minute", f"{event.request} took {waited_s:.0f} s")

    report = run_trial(
        Spelling, Spelling().inputs(20, 0), moments=3,
        faults=[twice_in_a_row], judges=(*JUDGES, NobodyWaitsAMinute),
    )  # fmt: skip
    report.check()
    assert report.counts["lives"] == 4
    assert twice_in_a_row not in FAULTS
