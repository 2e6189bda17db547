"""The header ``traceparent`` says where spans belong, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.doors.http.door import asking, open_door
from tests.spans import Kept, kept, parent_of

__all__ = ["kept"]

SPAN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
PARENT = int(SPAN[36:52], 16)


async def gym(rollout: Any) -> Any:
    return {"reward": 0.5, "response": {"output": []}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/rollouts", {"input": 1}),
        ("/v1/rollouts", {"input": [1, 2], "kind": "group"}),
        ("/v1/batches", {"inputs": [1, 2]}),
        ("/run", {"responses_create_params": {}, "_ng_rollout_id": "one"}),
    ],
)
async def test_rollouts_are_below_the_span_of_who_asks(kept: Kept, path: str, body: Any):
    async with open_door(gym) as door, asking(door) as client:
        answer = await client.post(path, json=body, headers={"traceparent": SPAN})
        assert answer.status_code == 200
    assert {parent_of(span) for span in kept.named("rollout")} == {PARENT}
    assert kept.named("call") == [], "a door makes no spans of its own"


async def test_a_key_that_is_asked_for_below_another_span_is_the_same_request(kept: Kept):
    async with open_door(gym) as door, asking(door) as client:
        for span in (SPAN, OTHER):
            headers = {"idempotency-key": '"one"', "traceparent": span}
            answer = await client.post("/v1/rollouts", json={"input": 1}, headers=headers)
            assert answer.status_code == 200
    assert len(kept.named("execution")) == 1
    assert {parent_of(span) for span in kept.named("rollout")} == {PARENT, int(OTHER[36:52], 16)}


async def test_header_that_is_malformed_is_ignored_and_no_span_stands_in_a_body(kept: Kept):
    malformed = [["no span"], [SPAN, OTHER], ["\x80"], [SPAN.upper()]]
    async with open_door(gym) as door, asking(door) as client:
        for said in malformed:
            headers = [(b"traceparent", each.encode("latin-1")) for each in said]
            answer = await client.post("/v1/rollouts", json={"input": 1}, headers=headers)
            assert answer.status_code == 200
        answer = await client.post("/v1/rollouts", json={"input": 1, "traceparent": SPAN})
        assert answer.status_code == 400
    assert [parent_of(span) for span in kept.named("rollout")] == [None] * len(malformed)
