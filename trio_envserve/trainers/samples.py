"""Samples for a trainer: the rollouts of a group, their segments, and the baseline.  Pure.

Theory of operation
-------------------
A *sample* is a segment of a rollout, with the ids of its group, rollout and segment.  A
baseline is over rollouts: a rollout of three segments counts once.  A rollout *counts* if
it has a finite reward; a failed one, or one that was not finished, has none, and is
neither in the mean nor in the count.

A segment that cannot be trained on stays in the list and is *masked*, with the reason in words: its
reward may still count, since the policy earned it.  Nothing here raises for what an environment or
an endpoint returned: one rollout must not end a step of training.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..client.outcome import Outcome
from ..envs.rewards import number_of, reward_in
from ..models.interface import MISSING_LOGPROB

_WHOLE = re.compile("[0-9]{1,18}")

EPSILON = 1e-6
"""Added to the standard deviation, as trainers do, so that equal rewards divide by something."""

LARGEST_REWARD = (2 - 2**-23) * 2.0**127
"""The largest number of 32 bits, as trainers' rewards are: a larger one would be infinite there,
and the advantages of its whole group NaN."""

NO_TOKENS = (
    "the result has no token ids: the endpoint gave none (vLLM gives them for "
    "return_token_ids, SGLang for return_input_ids_in_sglext and return_output_ids_in_sglext), "
    "or the environment did not return its segments"
)
NO_LOGPROBS = "the segment has no log-probabilities: ask the endpoint for them (logprobs = true)"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A segment of a rollout, in plain lists.

    ``response_ids``, ``response_mask`` and, unless it is None, ``logprobs`` have equal
    lengths.
    """

    group: str
    """The id of the group: the rollouts of one prompt."""
    rollout: str
    """The id of the rollout, which all its segments share."""
    segment: int
    """The number of the segment in its rollout, from 0."""
    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    """1 for each response token that the model sampled; all 0 if the sample is masked."""
    logprobs: list[float] | None
    """Log-probabilities of the response tokens; 0.0 where the mask is 0."""
    reward: float | None
    """The reward of the rollout, the same in all its segments; None if it does not count."""
    weight_versions: tuple[str | None, ...] = ()
    """The versions of the weights that sampled it, in order, also where they changed within an
    answer; None where the endpoint does not say."""
    turns: int = 1
    """The number of the model's answers in it."""
    masked: str = ""
    """Reason for which it is not trained on; empty if it is."""

    @property
    def oldest_version(self) -> int | None:
        """The lowest version of the weights that sampled it; None unless all are whole
        numbers."""
        return min(_numbers(self.weight_versions), default=None)

    @property
    def newest_version(self) -> int | None:
        """The highest version of the weights that sampled it; None as above."""
        return max(_numbers(self.weight_versions), default=None)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SampledRollout:
    """A rollout as a trainer needs it."""

    group: str
    rollout: str
    outcome: Outcome
    reward: float | None
    """Reward; None if the rollout does not count: it failed, or has no finite reward."""
    samples: tuple[Sample, ...]
    """Segments of the rollout; none if it failed, or has no token ids."""
    logprobs: bool = True
    """Whether its samples have log-probabilities."""
    masked: str = ""
    """Reason for which none of it is trained on; empty if some of it is."""

    @property
    def counts(self) -> bool:
        """Whether its reward is part of the baseline."""
        return self.reward is not None

    @property
    def code(self) -> str:
        """The code of its failure; empty if it has a result."""
        return "" if self.outcome.error is None else self.outcome.error.code

    @property
    def stop(self) -> str:
        """The result's word for how it ended, such as ``answer``; empty if it has none."""
        value = self.outcome.value
        word = value.get("stop") if isinstance(value, Mapping) else None
        return word if isinstance(word, str) else ""

    @property
    def trained(self) -> tuple[Sample, ...]:
        """The samples that are not masked."""
        return tuple(sample for sample in self.samples if not sample.masked)

    @property
    def left_out(self) -> tuple[Sample, ...]:
        """The masked samples of a rollout of which others are trained on."""
        return () if self.masked else tuple(sample for sample in self.samples if sample.masked)

    @property
    def usable(self) -> tuple[Sample, ...]:
        """The samples for a trainer: those that are trained on, or a placeholder; none if the
        rollout does not count."""
        return (self.trained or (self.placeholder(),)) if self.counts else ()

    def placeholder(self, token: int = 0) -> Sample:
        """A sample that is not trained on: the rollout's first prompt and one ``token``, with the
        reward, which may belong to the baseline."""
        prompts = [sample.prompt_ids for sample in self.samples if sample.prompt_ids]
        return Sample(
            group=self.group, rollout=self.rollout, segment=0,
            prompt_ids=prompts[0] if prompts else [token], response_ids=[token],
            response_mask=[0], logprobs=[0.0] if self.logprobs else None, reward=self.reward,
            masked=self.masked or "it is a placeholder",
        )  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class SampledGroup:
    """The rollouts of one prompt, in the order of the outcomes."""

    rollouts: tuple[SampledRollout, ...]

    @property
    def rewards(self) -> list[float | None]:
        """The rewards of the rollouts; None for one that does not count."""
        return [each.reward for each in self.rollouts]

    @property
    def count(self) -> int:
        """The number of rollouts in the baseline."""
        return sum(each.counts for each in self.rollouts)

    @property
    def mean(self) -> float:
        """The mean reward of the rollouts that count; 0.0 if none does."""
        return baseline(self.rewards)[0]

    @property
    def std(self) -> float:
        """The standard deviation of their rewards, of a sample (n - 1); 0.0 below two."""
        return baseline(self.rewards)[1]

    def advantages(self, *, scaled: bool = True) -> list[float]:
        """The advantage of each rollout, as :func:`advantages` computes it."""
        return advantages(self.rewards, scaled=scaled)

    def samples(self, *, scaled: bool = True) -> Iterator[tuple[Sample, float]]:
        """All samples, those of one rollout together, each with its rollout's advantage."""
        for rollout, advantage in zip(self.rollouts, self.advantages(scaled=scaled), strict=True):
            for sample in rollout.samples:
                yield sample, advantage


def baseline(rewards: Iterable[float | None]) -> tuple[float, float]:
    """The mean and the standard deviation (n - 1) of the rewards of the rollouts that count;
    0.0 where there are too few."""
    counted = [reward for reward in rewards if reward is not None]
    mean = statistics.fmean(counted) if counted else 0.0
    return mean, statistics.stdev(counted) if len(counted) > 1 else 0.0


def advantages(rewards: Sequence[float | None], *, scaled: bool = True) -> list[float]:
    """Advantage of each rollout of a group: its reward less the mean, ``scaled`` by the standard
    deviation.  A rollout with a reward of None does not count, and has 0.0."""
    mean, std = baseline(rewards)
    width = std + EPSILON if scaled else 1.0
    return [0.0 if reward is None else (reward - mean) / width for reward in rewards]


def sampled_group(
    outcomes: Iterable[Outcome], *, group: str = "", logprobs: bool = True
) -> SampledGroup:
    """The group of the rollouts with these outcomes.

    ``group`` is its id, unique in the batch.  With ``logprobs``, a segment without
    log-probabilities is masked; without, no sample has any, so that all have one form.
    """
    return SampledGroup(
        tuple(
            sampled_rollout(outcome, group=group, rollout=f"{group}/{number}", logprobs=logprobs)
            for number, outcome in enumerate(outcomes)
        )
    )


def sampled_rollout(
    outcome: Outcome, *, group: str = "", rollout: str = "", logprobs: bool = True
) -> SampledRollout:
    """The rollout with this outcome; ``logprobs`` as for :func:`sampled_group`."""
    reward, masked = reward_of(outcome)
    value = outcome.value if isinstance(outcome.value, Mapping) else {}
    samples = tuple(
        _sample(
            record, logprobs, masked, group=group, rollout=rollout, segment=segment, reward=reward
        )
        for segment, record in enumerate(_plain(value.get("segments")))
    )
    if not masked:
        # Of several reasons, the first is told: they mostly are one and the same.
        reasons = [sample.masked for sample in samples]
        masked = "" if not all(reasons) else (reasons or [_cut(value) or NO_TOKENS])[0]
    return SampledRollout(
        group=group, rollout=rollout, outcome=outcome, reward=reward, samples=samples,
        logprobs=logprobs, masked=masked,
    )  # fmt: skip


def reward_of(outcome: Outcome) -> tuple[float | None, str]:
    """The reward of a rollout; or None, and why it does not count."""
    if outcome.error is not None:
        return None, f"the rollout failed: {outcome.error}"
    reward, why = reward_in(outcome.value)
    if reward is not None and abs(reward) > LARGEST_REWARD:
        return None, f"the reward {reward:g} is larger than a number of 32 bits can be"
    return reward, why


def _cut(value: Mapping[Any, Any]) -> str:
    """The reason for which the segments of a result were cut; empty if they were not."""
    match value:
        case {"cut": {"of": {"segments": _}, "why": str(why)}}:
            return why
    return ""


def _sample(record: Any, logprobs: bool, masked: str, **head: Any) -> Sample:
    fields = record if isinstance(record, Mapping) else {}
    prompt, response, mask, numbers = (
        _plain(fields.get(name))
        for name in ("prompt_ids", "response_ids", "response_mask", "logprobs")
    )
    masked = masked or _flaw(prompt, response, mask)
    if logprobs:
        masked = masked or _flaw_of_numbers(mask, numbers)
    if masked:
        # A trainer reads the tokens and numbers of masked samples, too.
        if not all(map(_is_token, [*prompt, *response])):
            prompt, response = [], []
        mask = [0] * len(response)
        numbers = mask
    # What was not sampled has 0.0, whatever stands there.
    pairs = zip(mask, numbers, strict=True) if logprobs else ()
    told = [float(number) if sampled else 0.0 for sampled, number in pairs]
    return Sample(
        **head, prompt_ids=prompt, response_ids=response, response_mask=list(map(int, mask)),
        logprobs=told if logprobs else None, masked=masked, turns=_turns(fields.get("turns")),
        weight_versions=tuple(_versions(fields, mask)),
    )  # fmt: skip


def _versions(fields: Mapping[Any, Any], mask: list[Any]) -> Iterator[str | None]:
    """The versions of the weights that sampled a segment: by its tokens, or else by its turns."""
    spans = _plain(fields.get("version_spans"))
    if not spans:
        turns = _plain(fields.get("weight_versions"))
        yield from (None if version is None else str(version) for version in turns)
    end = 0
    for span in spans:
        match _plain(span):
            case [int(first), int(last), version]:
                if 1 in mask[end:first]:
                    yield None
                yield str(version)
                end = last
    if spans and 1 in mask[end:]:
        yield None


def _flaw(prompt: list[Any], response: list[Any], mask: list[Any]) -> str:
    """The reason for which a segment cannot be trained on; empty if it can."""
    if not response:
        return "the segment has no response tokens"
    if not prompt:
        return "the segment has no prompt tokens"
    if not all(map(_is_token, [*prompt, *response])):
        return "the segment's token ids are no whole numbers of 32 bits from 0 on"
    if len(mask) != len(response) or not all(map(_is_flag, mask)):
        return f"the segment has {len(response)} response tokens, and no 0 or 1 for each as mask"
    return "" if 1 in mask else "the model sampled no token of the segment"


def _flaw_of_numbers(mask: list[Any], logprobs: list[Any]) -> str:
    """The reason for which its log-probabilities cannot be trained on; empty if they can."""
    if not logprobs:
        return NO_LOGPROBS
    if len(logprobs) != len(mask):
        return f"the segment has {len(mask)} response tokens and {len(logprobs)} log-probabilities"
    finite = all(map(_is_finite, itertools.compress(logprobs, mask)))
    return "" if finite else "a sampled token has no finite log-probability"


def _is_flag(value: object) -> bool:
    return isinstance(value, int | float) and value in (0, 1)


def _is_token(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 31


def _is_finite(value: object) -> bool:
    number = number_of(value)  # of an integer that no float can be it is infinite
    return number is not None and MISSING_LOGPROB < number < math.inf


def _plain(values: Any) -> list[Any]:
    """A list of an array of any library, or of a sequence; empty if it is neither."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, Sequence) and not isinstance(values, str | bytes):
        return list(values)
    return []


def _turns(turns: Any) -> int:
    """Number of turns in a span."""
    match _plain(turns):
        case [int(first), int(last)]:
            return max(last - first, 1)
    return 1


def _numbers(versions: tuple[str | None, ...]) -> list[int]:
    """Versions as whole numbers; none unless all are."""
    told = [each for each in versions if each is not None and _WHOLE.fullmatch(each)]
    return list(map(int, told)) if len(told) == len(versions) else []
