"""A handler that does nothing, in hypercorn on trio, as a program of its own.

``python -m tests.cost.http_bare``

It reads the body as JSON and answers with JSON of the form and size that the HTTP door
gives for the same request; there is no environment behind it, and nothing is checked.  Its
line of output has its address.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import hypercorn
import hypercorn.trio
import trio

from tests.cost.driver import answer
from trio_envserve.lab.orders import input_ends


async def handle(scope: Any, receive: Any, send: Any) -> None:
    """The ASGI application."""
    if scope["type"] != "http":
        raise ValueError(f"there is no {scope['type']} here")
    body, more = b"", True
    while more:
        event = await receive()
        body += event.get("body", b"")
        more = event.get("more_body", False)
    asked = json.loads(body)["input"]
    payload = {"$bytes": base64.b64encode(bytes(asked["response"])).decode()}
    found = {
        "value": {"reward": 1.0, "call": asked["call"], "payload": payload},
        "worker": "bare", "executions": 1, "duration_s": 0.001, "took_s": 0.001,
    }  # fmt: skip
    said = json.dumps(found).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(said)).encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": said})


async def main() -> None:
    """Serve until standard input ends."""
    config = hypercorn.Config()
    config.bind = ["127.0.0.1:0"]
    config.errorlog = None
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(hypercorn.trio.serve, handle, config)
        answer({"http": address})
        await input_ends()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
