"""``GET /v1/running`` of a real door."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio

from tests.doors.http.door import asking, open_door
from trio_envserve import Rollout


class Waiting:
    """Rollouts that note what they are, and wait."""

    def __init__(self) -> None:
        self.gate = trio.Event()

    async def run_rollout(self, rollout: Rollout) -> str:
        rollout.note(text=rollout.input)
        await self.gate.wait()
        return "done"


async def noted(client: Any, number: int) -> dict[str, Any]:
    """The page, once so many run and have said what they are."""
    while True:
        answer = await client.get("/v1/running?sort=age")
        assert answer.status_code == 200
        page: dict[str, Any] = answer.json()
        if page["total"] == number and all(row["note"] for row in page["running"]):
            return page
        await trio.lowlevel.checkpoint()


async def test_what_runs_is_answered_the_oldest_first():
    environment = Waiting()
    async with open_door(environment) as door, asking(door) as client:
        async with trio.open_nursery() as nursery:
            for number, name in enumerate(("<b>one</b>", "two")):
                headers = {"idempotency-key": f'"{number}"'}
                body = {"input": name}
                ask = partial(client.post, "/v1/rollouts", json=body, headers=headers)
                nursery.start_soon(ask)
                page = await noted(client, number + 1)
            rest = await client.get("/v1/running", params={"first": page["running"][1]["number"]})
            environment.gate.set()
    assert [row["key"] for row in page["running"]] == ["0", "1"]
    assert [row["note"] for row in page["running"]] == [{"text": "<b>one</b>"}, {"text": "two"}]
    assert [row["key"] for row in rest.json()["running"]] == ["1"]
    assert rest.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "query", ["sort=key", "first=-1", "first=1e3", "frist=1", "first=" + "9" * 30]
)
async def test_what_cannot_be_asked_is_refused(query: str):
    async with open_door("arithmetic") as door, asking(door) as client:
        answer = await client.get(f"/v1/running?{query}")
    assert answer.status_code == 400
    assert answer.json()["code"] == "bad-request"


async def test_who_has_no_token_is_not_told(tmp_path: Any):
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text("a-token-of-some-length")
    async with open_door("arithmetic", token_file=tokens) as door, asking(door) as client:
        assert (await client.get("/v1/running")).status_code == 401
        headers = {"authorization": "Bearer a-token-of-some-length"}
        assert (await client.get("/v1/running", headers=headers)).status_code == 200
