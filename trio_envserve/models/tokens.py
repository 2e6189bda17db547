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

A rollout that saves its state keeps its segments in it as plain data, in which each token
stands once, however often a prompt has repeated it.
"""

from __future__ import annotations

import array
import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

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

    Raises ``ValueError`` for an answer without token ids (how to ask for them depends on the
    endpoint), or with another number of log-probabilities than of tokens.  Raises
    :class:`.BrokenNumbers` for log-probabilities that are not finite; a reward that is not is none.
    """
    made = SegmentBuilder()
    for turn, completion in enumerate(completions):
        if completion.prompt_ids is None or completion.response_ids is None:
            raise ValueError(
                f"turn {turn} has no token ids: the endpoint gave none (vLLM gives them for "
                "return_token_ids, SGLang for return_input_ids_in_sglext and "
                "return_output_ids_in_sglext)"
            )
        made.add(completion)
    return made.result(reward).get("segments", [])


def segments(
    completions: Iterable[Completion], reward: float | None = None
) -> dict[str, list[TokenRecord]]:
    """:func:`token_records` as the field ``segments`` of a result; no field, if the endpoint
    did not give the ids of every turn."""
    made = SegmentBuilder()
    for completion in completions:
        made.add(completion)
    return made.result(reward)


@final
class SegmentBuilder:
    """Makes the segments of a rollout as its answers come.

    Args:
        saved: What an earlier execution has saved (:meth:`plain`).
    """

    def __init__(self, saved: Sequence[Mapping[str, Any]] | None = ()) -> None:
        self._segments = None if saved is None else [_Segment.of_plain(each) for each in saved]
        """None once a turn had no ids."""

    def add(self, completion: Completion) -> None:
        """Add an answer.  Raises :class:`.BrokenNumbers`, and ``ValueError`` for log-probabilities
        that are not as many as its tokens."""
        found = self._segments
        prompt_ids, response_ids = completion.prompt_ids, completion.response_ids
        if found is None or prompt_ids is None or response_ids is None:
            self._segments = None
            return
        begins = found[-1].differs(prompt_ids) if found else ""
        if begins or not found:
            turn = found[-1].next_turn if found else 0
            ids = array.array("i", prompt_ids)
            found.append(_Segment(turn, begins, len(ids), ids))
        found[-1].add(completion, prompt_ids, response_ids)

    def plain(self) -> list[dict[str, Any]] | None:
        """The segments so far as encodable data, for a later execution."""
        return None if self._segments is None else [each.plain() for each in self._segments]

    def result(self, reward: float | None) -> dict[str, list[TokenRecord]]:
        """The field ``segments`` of a result with this reward; a reward that is not finite is
        none."""
        if reward is not None and not math.isfinite(reward):
            reward = None
        made = [segment.record(reward) for segment in self._segments or ()]
        return {"segments": made} if made else {}


@dataclasses.dataclass(slots=True)
class _Segment:
    """A segment while turns are added to it."""

    first_turn: int
    begins: str
    prompt_size: int
    ids: TokenIds
    """Prompt and response."""
    mask: array.array[int] = dataclasses.field(default_factory=lambda: array.array("B"))
    logprobs: Logprobs | None = dataclasses.field(default_factory=lambda: array.array("f"))
    versions: list[str | None] = dataclasses.field(default_factory=list)
    spans: list[tuple[int, int, str]] = dataclasses.field(default_factory=list)
    per_token: dict[str, list[Any]] = dataclasses.field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any]) -> _Segment:
        """The segment of plain data, whose arrays may be of another library."""
        arrays = {
            name: array.array(code, plain[name].tolist())
            for name, code in (("ids", "i"), ("mask", "B"), ("logprobs", "f"))
            if plain[name] is not None
        }
        spans = [(first, end, version) for first, end, version in plain["spans"]]
        return cls(**{**plain, **arrays, "spans": spans})

    @property
    def next_turn(self) -> int:
        return self.first_turn + len(self.versions)

    def differs(self, prompt_ids: TokenIds) -> str:
        """The reason for which a turn with this prompt cannot continue the segment; empty if it
        can."""
        size = len(self.ids)
        if prompt_ids[:size] == self.ids:
            return ""
        pairs = zip(self.ids, prompt_ids, strict=False)
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
        return (
            f"the prompt of turn {self.next_turn} differs from the {size} "
            f"tokens before it at token {sum(1 for _ in same)}"
        )

    def add(self, completion: Completion, prompt_ids: TokenIds, response_ids: TokenIds) -> None:
        between = prompt_ids[len(self.ids) :]
        self._add_per_token(completion, len(between), len(response_ids))
        self.ids += between
        self.ids += response_ids
        self.mask.frombytes(bytes(len(between)) + b"\1" * len(response_ids))
        self._add_spans(completion, len(response_ids))
        logprobs = completion.logprobs
        if logprobs is not None and len(logprobs) != len(response_ids):
            raise ValueError(f"{len(response_ids)} tokens have {len(logprobs)} log-probabilities")
        if logprobs is not None and not all(map(math.isfinite, logprobs)):
            raise BrokenNumbers("the model gave log-probabilities that are not finite")
        if self.logprobs is not None and logprobs is not None:
            self.logprobs.frombytes(bytes(self.logprobs.itemsize * len(between)))
            self.logprobs += logprobs
        else:
            self.logprobs = None
        self.versions.append(completion.weight_version)

    def _add_spans(self, completion: Completion, sampled: int) -> None:
        """The versions of the last ``sampled`` tokens."""
        end = len(self.mask)
        first = end - sampled
        starts = completion.version_starts
        if not starts and completion.weight_version is not None:
            starts = ((0, completion.weight_version),)
        ends = [first + start for start, _ in starts[1:]] + [end]
        for (start, version), stop in zip(starts, ends, strict=False):
            if first + start < stop:
                self.spans.append((first + start, stop, version))

    def _add_per_token(self, completion: Completion, between: int, sampled: int) -> None:
        before = len(self.mask)
        for name in completion.per_token:
            self.per_token.setdefault(name, [None] * before)
        for name, items in self.per_token.items():
            items += [None] * between
            items += completion.per_token.get(name, [None] * sampled)

    def record(self, reward: float | None) -> TokenRecord:
        return TokenRecord(
            prompt_ids=self.ids[: self.prompt_size],
            response_ids=self.ids[self.prompt_size :],
            response_mask=self.mask,
            logprobs=self.logprobs,
            reward=reward,
            turns=(self.first_turn, self.next_turn),
            weight_versions=tuple(self.versions),
            begins=self.begins,
            version_spans=tuple(self.spans),
            per_token=self.per_token,
        )
