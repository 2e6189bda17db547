"""The neutral record of a rollout's tokens."""

import array
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core import values
from trio_envserve.models.interface import BrokenNumbers, Completion
from trio_envserve.models.tokens import SegmentBuilder, TokenRecord, segments, token_records


def ids(*numbers):
    return array.array("i", numbers)


def turn(prompt, response, logprobs: list[float] | None = None, version=None, **more):
    given = None if logprobs is None else array.array("f", logprobs)
    return Completion(
        "", prompt_ids=ids(*prompt), response_ids=ids(*response), logprobs=given,
        weight_version=version, **more,
    )  # fmt: skip


def records_of(turns: list[Completion], reward: float | None = None) -> list[TokenRecord]:
    """The records of turns, which are the same if they were saved and read after each."""
    records, saved = token_records(turns, reward), SegmentBuilder()
    for each in turns:
        saved = saved_and_read(saved)
        saved.add(each)
    assert saved_and_read(saved).result(reward) == {"segments": records}
    return records


def saved_and_read(made: SegmentBuilder) -> SegmentBuilder:
    read: Any = values.decode(values.encode(made.plain()))
    return SegmentBuilder(read)


@pytest.mark.parametrize(
    ("prompt", "at"), [([1, 2, 3, 5], 3), ([1, 2, 3], 3), ([], 0), ([9, 2, 3, 4, 5], 0)]
)
def test_a_prompt_that_does_not_extend_the_tokens_before_begins_a_segment_and_says_so(prompt, at):
    first, second = records_of([turn([1, 2], [3, 4]), turn(prompt, [6])], reward=0.5)
    assert first.response_ids == ids(3, 4)
    assert second.prompt_ids == ids(*prompt)
    assert second.response_ids == ids(6)
    assert (
        second.begins == f"the prompt of turn 1 differs from the 4 tokens before it at token {at}"
    )
    assert (first.turns, second.turns) == ((0, 1), (1, 2))
    assert first.reward == second.reward == 0.5


def test_without_ids_from_the_endpoint_there_is_no_record():
    with pytest.raises(ValueError, match="turn 1 has no token ids"):
        token_records([turn([1], [2]), Completion("text")])


def test_a_result_has_segments_only_if_every_turn_has_ids():
    turns = [turn([1], [2]), turn([1, 2, 3], [4])]
    assert segments(turns, 0.5) == {"segments": token_records(turns, 0.5)}
    turns.append(Completion("text"))
    assert segments(turns) == segments([*turns, *turns[:1]]) == segments([]) == {}
    made = SegmentBuilder()
    made.add(turns[-1])
    assert saved_and_read(made).result(0.5) == {}


def test_tokens_that_a_prompt_repeats_are_saved_once():
    made = SegmentBuilder()
    for each in (turn([1, 2], [3]), turn([1, 2, 3, 4], [5])):
        made.add(each)
    assert [each["ids"] for each in made.plain() or ()] == [ids(1, 2, 3, 4, 5)]


@pytest.mark.parametrize("logprobs", [[], [-1.0]])
def test_tokens_without_any_log_probability_were_taken_as_if_each_had_one(logprobs):
    """A list that is too short was told, unless it was empty."""
    told = f"2 tokens have {len(logprobs)} log-probabilities"
    with pytest.raises(ValueError, match=told):
        token_records([turn([1], [2, 3], logprobs)])


def test_log_probabilities_of_two_answers_were_shifted_where_only_their_sum_was_right():
    turns = [turn([1], [2, 3], [-0.1, -0.2, -0.3]), turn([1, 2, 3, 4], [5, 6], [-0.4])]
    with pytest.raises(ValueError, match="2 tokens have 3 log-probabilities"):
        token_records(turns)


NUMBERS = st.lists(st.integers(0, 5), max_size=4)


@given(st.lists(st.tuples(NUMBERS, NUMBERS, st.booleans()), min_size=1, max_size=6))
def test_every_token_is_there_once_with_its_mask(plan):
    turns, history = [], list[int]()
    for between, response, fresh in plan:
        prompt = between if fresh else [*history, *between]
        turns.append(turn(prompt, response, [-float(token) for token in response]))
        history = [*prompt, *response]
    records = records_of(turns)
    assert [record.turns[0] for record in records[1:]] == [r.turns[1] for r in records[:-1]]
    sampled = [
        token
        for record in records
        for token, mask in zip(record.response_ids, record.response_mask, strict=True)
        if mask
    ]
    assert sampled == [token for _, response, _ in plan for token in response]
    for record in records:
        last = turns[record.turns[1] - 1]
        assert last.prompt_ids is not None
        assert last.response_ids is not None
        assert record.prompt_ids + record.response_ids == last.prompt_ids + last.response_ids
        assert record.logprobs is not None
        told = zip(record.response_ids, record.response_mask, strict=True)
        assert list(record.logprobs) == [-float(token) if mask else 0.0 for token, mask in told]
    assert (records[0].begins, records[0].turns[0], records[-1].turns[1]) == ("", 0, len(plan))


def test_a_record_travels_as_typed_arrays():
    (record,) = records_of([turn([1], [2, 3], [-1.0, -0.5])], reward=1.0)
    back: Any = values.decode(values.encode(record))
    assert back["response_ids"].dtype == "int32"
    assert back["response_mask"].dtype == "uint8"
    assert back["logprobs"].dtype == "float32"
    assert list(back["logprobs"]) == [-1.0, -0.5]


def test_versions_of_the_weights_are_marked_by_token():
    turns = [
        turn([1], [2, 3, 4], version="8", version_starts=((0, "7"), (2, "8"))),
        turn([1, 2, 3, 4, 9], [5], version="8"),
        turn([1, 2, 3, 4, 9, 5], [6]),
        turn([1, 2, 3, 4, 9, 5, 6], [], version="9"),
    ]
    (record,) = records_of(turns)
    assert record.version_spans == ((0, 2, "7"), (2, 3, "8"), (4, 5, "8"))
    assert record.weight_versions == ("8", "8", None, "9")


def test_what_belongs_to_tokens_travels_with_them():
    turns = [
        turn([1], [2]),
        turn([1, 2, 9], [3, 4], per_token={"routed_experts": [[0, 1], [2, 3]]}),
        turn([7], [8], per_token={"routed_experts": [[4]]}),
    ]
    first, second = records_of(turns)
    assert first.per_token == {"routed_experts": [None, None, [0, 1], [2, 3]]}
    assert second.per_token == {"routed_experts": [[4]]}
    back: Any = values.decode(values.encode(first))
    assert back["per_token"] == first.per_token


NUMBER = st.floats(width=32) | st.just(-1.0)


@given(
    st.lists(st.lists(NUMBER, max_size=3) | st.none(), min_size=1, max_size=4),
    st.none() | st.floats(),
)
def test_no_number_of_a_segment_is_infinite_or_none_at_all(plan, reward):
    turns = [turn([1] * n, [2] * len(row or ()), row) for n, row in enumerate(plan)]
    try:
        records = records_of(turns, reward)
    except BrokenNumbers:
        assert any(not math.isfinite(number) for row in plan for number in row or ())
        return
    for record in records:
        assert record.reward is None or math.isfinite(record.reward)
        assert all(math.isfinite(number) for number in record.logprobs or ())
