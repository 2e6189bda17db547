"""Rollouts under keys by HTTP: an environment that notes what was started, and how one is asked."""

from __future__ import annotations

import json
from typing import Any

import trio

from tests.doors.http.door import Raw

KEY = {"idempotency-key": '"step-12/7"'}
ASYNC = {**KEY, "prefer": "respond-async"}
AT = "/v1/rollouts/step-12%2F7"


class Runs:
    """An environment that notes what was started, and waits until it may go on."""

    def __init__(self, *, go_on: bool = True) -> None:
        self.started: list[Any] = []
        self.cancelled: list[Any] = []
        self.began = trio.Event()
        self.may_end = trio.Event()
        self.was_cancelled = trio.Event()
        if go_on:
            self.may_end.set()

    async def __call__(self, rollout: Any) -> Any:
        self.started.append(rollout.input)
        self.began.set()
        try:
            await self.may_end.wait()
        except trio.Cancelled:
            self.cancelled.append(rollout.input)
            self.was_cancelled.set()
            raise
        return {"of": rollout.input}


async def post(peer: Raw, body: object, *headers: str, path: str = "/v1/rollouts") -> None:
    data = json.dumps(body).encode()
    await peer.send(
        f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json",
        f"Content-Length: {len(data)}", *headers, body=data,
    )  # fmt: skip
