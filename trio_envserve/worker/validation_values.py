"""The checks of a validation that look at values: inputs, results and rewards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from .. import foreign
from ..core import values
from ..core.errors import ConfigError
from ..core.limits import WireLimits
from ..envs.loading import LoadedEnvironment
from ..envs.rewards import number_of, reward_in
from .findings import Findings


def check_inputs(
    findings: Findings, environment: LoadedEnvironment, n: int, seed: int
) -> list[Any] | None:
    """The environment's own inputs; None if there are none that can be sent."""
    made = foreign.call(environment.inputs, n, seed)
    if isinstance(made.error, ConfigError):
        findings.say("inputs", "failed", f"{made.error}; validate needs some: --inputs FILE")
        return None
    if made.error is not None:
        findings.raised("inputs", f"inputs({n}, {seed}) raised", made.error)
        return None
    inputs: list[Any] = made.value
    if not inputs:
        findings.say("inputs", "failed", f"inputs({n}, {seed}) returned none")
        return None
    problems = [*_input_problems(environment, inputs, n, seed)]
    for problem in problems:
        findings.say("inputs", "warning", problem)
    for number, each in enumerate(inputs):
        encoded = foreign.call(values.encode, each, root=f"inputs()[{number}]")
        if encoded.error is not None:
            findings.say("inputs", "failed", f"cannot be sent: {foreign.text(encoded.error)}")
            return None
    if not problems and inputs == [{}] * n:
        findings.say("inputs", "ok", "a rollout needs no input, and has no seed")
    elif not problems:
        findings.say("inputs", "ok", f"inputs(n, seed) gives n, and follows from the seed ({n})")
    return inputs[:n]


def _input_problems(
    environment: LoadedEnvironment, inputs: list[Any], n: int, seed: int
) -> Iterator[str]:
    if len(inputs) > n:
        yield f"inputs({n}, {seed}) gives {len(inputs)}: it ignores n"
    elif len(inputs) < n:
        yield f"inputs({n}, {seed}) gives {len(inputs)}, fewer than n"
    again = foreign.call(environment.inputs, n, seed).value
    other = foreign.call(environment.inputs, n, seed + 1).value
    texts = [foreign.call(repr, each).value for each in (inputs, again, other)]
    if texts[0] != texts[1]:
        yield f"inputs({n}, {seed}) gives others the second time: it does not follow its seed"
    elif texts[0] == texts[2] and n > 1 and inputs != [{}] * n:
        yield (
            f"inputs({n}, {seed}) and inputs({n}, {seed + 1}) are the same: it may ignore its seed"
        )


def check_results(findings: Findings, results: Sequence[Any]) -> None:
    """Whether what the rollouts returned can be sent."""
    findings.begin("results")
    most_bytes, largest = WireLimits().message_bytes, 0
    for number, value in enumerate(results):
        encoded = foreign.call(values.encode, value, root="result")
        if encoded.error is not None:
            text = foreign.text(encoded.error) or type(encoded.error).__name__
            findings.say("results", "failed", f"of input {number} cannot be encoded: {text}")
            return
        largest = max(largest, len(encoded.value))
    if largest > most_bytes:
        text = f"the largest has {largest} bytes, and {most_bytes} are allowed"
        findings.say("results", "failed", text)
    else:
        findings.say("results", "ok", f"all can be encoded; the largest has {largest} bytes")


def check_rewards(
    findings: Findings, results: Sequence[Any], model: str, most: object, asked: bool
) -> None:
    """Whether each result has a reward that an evaluation counts, and whether right answers
    earn ``most``, the attribute ``max_reward`` of the environment (None: nobody knows).
    ``asked``: whether any rollout asked a model."""
    findings.begin("rewards")
    numbers: list[float] = []
    problems: Counter[str] = Counter()
    for value in results:
        number, problem = reward_in(value)
        if number is None:
            problems[problem] += 1
        else:
            numbers.append(number)
    for problem, times in problems.items():
        findings.say("rewards", "warning", f"{problem} ({times} of {len(results)})")
    if numbers and not problems:
        mean = sum(numbers) / len(numbers)
        text = f"all are numbers, from {min(numbers):g} to {max(numbers):g}, mean {mean:.3g}"
        findings.say("rewards", "ok", text)
    if model == "oracle" and numbers and most is not None:
        if asked:
            _check_oracle(findings, numbers, most)
        else:
            text = "no rollout asked a model, so the rewards are not those of its right answers"
            findings.say("oracle", "skipped", text)


def _check_oracle(findings: Findings, numbers: Sequence[float], most: object) -> None:
    full = number_of(most)
    if full is None:
        text = f"max_reward must be a number, or None, not {most!r}"
        findings.say("oracle", "failed", text)
        return
    short = [number for number in numbers if not number >= full - 1e-9]
    if short:
        findings.say(
            "oracle", "failed",
            f"{len(short)} of {len(numbers)} right answers (the model oracle) earn less than "
            f"{full:g}, the least {min(short):g}: mend the oracle or the reward, or say in the "
            "environment what a right answer earns (max_reward = 0.5; None: not checked)",
        )  # fmt: skip
    else:
        findings.say("oracle", "ok", f"right answers (the model oracle) earn {full:g} or more")
