"""Rows of NeMo Gym: an environment that numbers what was started, and how a row is sent."""

from __future__ import annotations

import json
from typing import Any

import trio
import trio.testing

from tests.doors.http.door import Raw
from trio_envserve.doors.http import HttpDoor

ID = {"_ng_rollout_id": "step-1.task_2"}
NUMBER = {"_ng_task_index": 1, "_ng_rollout_index": 2}
NEMO_RL = {"_rowidx": 3}
NOTHING = {"seed": 4}
KINDS = [ID, NUMBER, NEMO_RL, NOTHING]
TOLD = [ID, NUMBER, NEMO_RL]
NEVER = {"delivered_s": 1e6}
AT_ONCE = {"delivered_s": 0.01}


class Runs:
    """An environment that notes what was started, and waits until it may go on."""

    def __init__(self, *, go_on: bool = True) -> None:
        self.started: list[Any] = []
        self.cancelled = 0
        self.changed = trio.lowlevel.ParkingLot()
        self.may_end = trio.Event()
        if go_on:
            self.may_end.set()

    async def __call__(self, rollout: Any) -> Any:
        self.started.append(rollout.input)
        number = len(self.started)
        self.changed.unpark_all()
        try:
            await self.may_end.wait()
        except trio.Cancelled:
            self.cancelled += 1
            raise
        return {"reward": 0.5, "response": {"output": [], "number": number}}

    async def have_started(self, number: int) -> None:
        while len(self.started) < number:
            await self.changed.park()


async def post(peer: Raw, row: object) -> None:
    data = json.dumps(row, separators=(",", ":")).encode()  # to the letter as httpx2 writes it
    await peer.send(
        "POST /run HTTP/1.1", "Host: localhost", "Content-Type: application/json",
        f"Content-Length: {len(data)}", body=data,
    )  # fmt: skip


async def nobody_is_connected(door: HttpDoor) -> None:
    """The door has seen who hung up."""
    while door.connections:
        await trio.testing.wait_all_tasks_blocked()
