"""The tokens of a rollout for a trainer, turn by turn, in a neutral record.  Pure.

Theory of operation
-------------------
Each answer of a model says what the endpoint read (``prompt_ids``) and what it sampled
(``response_ids``).  Where the prompt of a turn begins with all tokens of the turns before
it, the turn continues the record: what is new in the prompt (tool results, the user's next
message) is appended with mask 0, what was sampled with mask 1.  Where it does not (the
chat template dropped a thought, the history was cut), those tokens were never read
together, so the turn begins a new record, a *segment*, which says why.

Nothing is tokenized here, and nothing is guessed: without ids from the endpoint there is
no record.  No number of a record is NaN or infinite.
"""

from __future__ import annotations

import array
import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .interface import BrokenNumbers, Completion, Logprobs, TokenIds


@dataclasses.dataclass(frozen=True, slots=True)
class TokenRecord:
    """A segment of a rollout.

    ``response_ids``, ``response_mask`` and ``logprobs`` have equal lengths.
    """

    prompt_ids: TokenIds
    """The tokens that the endpoint read for the first turn of the segment."""
    response_ids: TokenIds
    """All tokens after it: those that were sampled, and those in between."""
    response_mask: array.array[int]
    """1 for each token that the model sampled, else 0 (8 bits each)."""
    logprobs: Logprobs | None
    """Log-probability of each token, 0.0 where the mask is 0; None if a turn of the segment has
    none."""
    reward: float | None
    """The reward of the rollout, the same in all its segments; None without a finite one."""
    turns: tuple[int, int]
    """The first turn of the segment, from 0, and the one after the last."""
    weight_versions: tuple[str | None, ...] = ()
    """The version of the weights for each of these turns, if the endpoint says it."""
    begins: str = ""
    """Reason for which this is a segment of its own; empty for the first one."""
    version_spans: tuple[tuple[int, int, str], ...] = ()
    """The sampled tokens of each version of the weights, where the endpoint says it: the
    number of the first of ``response_ids``, the number after the last, and the version."""
    per_token: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    """Further fields with an item for each of ``response_ids``, by name (``routed_experts``);
    None where the mask is 0, and in turns that do not have the field."""


def token_records(
    completions: Iterable[Completion], reward: float | None = None
) -> list[TokenRecord]:
    """The segments of a rollout whose answers, in order, are ``completions``.

    Raises ``ValueError`` for an answer without token ids; how to ask for them depends on
    the endpoint.  Raises :class:`.BrokenNumbers` for log-probabilities that are not finite; a
    reward that is not is none.
    """
    if reward is not None and not math.isfinite(reward):
        reward = None
    segments: list[_Segment] = []
    for turn, completion in enumerate(completions):
        if completion.prompt_ids is None or completion.response_ids is None:
            raise ValueError(
                f"turn {turn} has no token ids: the endpoint gave none (vLLM gives them for "
                "return_token_ids, SGLang for return_input_ids_in_sglext and "
                "return_output_ids_in_sglext)"
            )
        begins = segments[-1].differs(completion.prompt_ids) if segments else ""
        if begins or not segments:
            segments.append(_Segment(turn, completion.prompt_ids, begins))
        segments[-1].add(completion, completion.prompt_ids, completion.response_ids)
    return [segment.record(reward) for segment in segments]


def segments(
    completions: Sequence[Completion], reward: float | None = None
) -> dict[str, list[TokenRecord]]:
    """:func:`token_records` as the field ``segments`` of a result; no field, if the endpoint
    did not give the ids of every turn."""
    if not completions or any(c.prompt_ids is None or c.response_ids is None for c in completions):
        return {}
    return {"segments": token_records(completions, reward)}


class _Segment:
    """A segment while turns are added to it."""

    def __init__(self, turn: int, prompt_ids: TokenIds, begins: str) -> None:
        self._first_turn = turn
        self._begins = begins
        self._prompt_size = len(prompt_ids)
        self._ids = array.array("i", prompt_ids)
        """Prompt and response."""
        self._mask = array.array("B")
        self._logprobs: Logprobs | None = array.array("f")
        self._versions: list[str | None] = []
        self._spans: list[tuple[int, int, str]] = []
        self._per_token: dict[str, list[Any]] = {}

    def differs(self, prompt_ids: TokenIds) -> str:
        """The reason for which a turn with this prompt cannot continue the segment; empty if it
        can."""
        size = len(self._ids)
        if prompt_ids[:size] == self._ids:
            return ""
        pairs = zip(self._ids, prompt_ids, strict=False)
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
        return (
            f"the prompt of turn {self._first_turn + len(self._versions)} differs from the {size} "
            f"tokens before it at token {sum(1 for _ in same)}"
        )

    def add(self, completion: Completion, prompt_ids: TokenIds, response_ids: TokenIds) -> None:
        between = prompt_ids[len(self._ids) :]
        self._add_per_token(completion, len(between), len(response_ids))
        self._ids += between
        self._ids += response_ids
        self._mask.frombytes(bytes(len(between)) + b"\1" * len(response_ids))
        self._add_spans(completion, len(response_ids))
        logprobs = completion.logprobs
        if logprobs is not None and not all(map(math.isfinite, logprobs)):
            raise BrokenNumbers("the model gave log-probabilities that are not finite")
        if self._logprobs is not None and logprobs is not None:
            self._logprobs.frombytes(bytes(self._logprobs.itemsize * len(between)))
            self._logprobs += logprobs
        else:
            self._logprobs = None
        self._versions.append(completion.weight_version)

    def _add_spans(self, completion: Completion, sampled: int) -> None:
        """The versions of the last ``sampled`` tokens."""
        end = len(self._mask)
        first = end - sampled
        starts = completion.version_starts
        if not starts and completion.weight_version is not None:
            starts = ((0, completion.weight_version),)
        ends = [first + start for start, _ in starts[1:]] + [end]
        for (start, version), stop in zip(starts, ends, strict=False):
            if first + start < stop:
                self._spans.append((first + start, stop, version))

    def _add_per_token(self, completion: Completion, between: int, sampled: int) -> None:
        before = len(self._mask)
        for name in completion.per_token:
            self._per_token.setdefault(name, [None] * before)
        for name, items in self._per_token.items():
            items += [None] * between
            items += completion.per_token.get(name, [None] * sampled)

    def record(self, reward: float | None) -> TokenRecord:
        response_ids = self._ids[self._prompt_size :]
        if self._logprobs is not None and len(self._logprobs) != len(response_ids):
            raise ValueError(
                f"{len(response_ids)} tokens have {len(self._logprobs)} log-probabilities"
            )
        return TokenRecord(
            prompt_ids=self._ids[: self._prompt_size],
            response_ids=response_ids,
            response_mask=self._mask,
            logprobs=self._logprobs,
            reward=reward,
            turns=(self._first_turn, self._first_turn + len(self._versions)),
            weight_versions=tuple(self._versions),
            begins=self._begins,
            version_spans=tuple(self._spans),
            per_token=self._per_token,
        )
