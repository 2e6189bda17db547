"""Callers, watchers and an engine that speak HTTP.

``python -m tests.cost.over_http rollouts URL`` carries out loads: each connection posts a
rollout, and posts the next one when it is answered.

``python -m tests.cost.over_http alone``, by a Python that has httpx, carries out rollouts with
model calls as one asyncio program: no server, no worker, no retries.  The pool of httpx looks
through all its connections for each request, so this is dear with 256 at once, and cheap with 16.

:func:`watched` and :func:`open_engine` are for the process that measures, which has nothing to do
meanwhile and whose time counts for nobody.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from tests.cost.load import serve

ANSWER_S = 0.05
ANSWER = "The answer is 5, since two and three are five. " * 8
PROMPT = "What is 2 + 3? Think about it, and answer in a sentence. " * 5
REPLY = "Are you sure? Look at it once more."
BUFFER_BYTES = 4096
"""The kernel's buffer for those that read nothing: small, so that they are stuck soon."""
EVENTS = 5
"""Number of events that fill what the kernel keeps."""


def rollouts(url: str) -> None:
    """Carry out loads until standard input ends."""
    place = urlsplit(url)
    head = (
        f"POST /v1/rollouts HTTP/1.1\r\nHost: {place.netloc}\r\n"
        "Content-Type: application/json\r\nContent-Length: "
    )

    async def open_one() -> Any:
        return await asyncio.open_connection(place.hostname, place.port)

    async def ask(one: Any, call: int, load: dict[str, Any]) -> bool:
        reader, writer = one
        body = json.dumps({"input": {"call": call, "response": load["response"]}})
        writer.write(f"{head}{len(body)}\r\n\r\n{body}".encode())
        got = await reader.readuntil(b"\r\n\r\n")
        value = json.loads(await reader.readexactly(_length(got)))["value"]
        return got.startswith(b"HTTP/1.1 200") and bool(value["call"] == call)

    asyncio.run(serve(open_one, ask))


def alone() -> None:
    """Carry out loads until standard input ends."""
    import httpx  # type: ignore[import-not-found]  # noqa: ASYNC127  # the one that is measured

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)

    async def open_one() -> Any:
        return httpx.AsyncClient(limits=limits, timeout=None)

    async def ask(client: Any, call: int, load: dict[str, Any]) -> bool:
        messages = [{"role": "user", "content": PROMPT}]
        right = 0
        for _ in range(load["turns"]):
            body = {"model": "m", "messages": messages}
            said = await client.post(f"{load['model']}/chat/completions", json=body)
            said.raise_for_status()
            message = said.json()["choices"][0]["message"]
            right += "5" in message["content"]
            messages += [message, {"role": "user", "content": REPLY}]
        return bool(right == load["turns"])

    asyncio.run(serve(open_one, ask))


def _length(head: bytes) -> int:
    return int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])


# -- beside a load --------------------------------------------------------------------


@asynccontextmanager
async def open_engine() -> AsyncGenerator[str, None]:
    """OpenAI's chat completions, as cheap as they can be; its address."""
    import trio  # here: the peer's Python has none

    choice = {"message": {"role": "assistant", "content": ANSWER}, "finish_reason": "stop"}
    body = json.dumps({
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, **choice}],
        "usage": {"prompt_tokens": 80, "completion_tokens": 96, "total_tokens": 176},
    })  # fmt: skip
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    said = f"{head}\r\n\r\n{body}".encode()

    async def answer(stream: trio.SocketStream) -> None:
        data = b""
        while more := await stream.receive_some():
            data += more
            head, blank, rest = data.partition(b"\r\n\r\n")
            if blank and len(rest) >= _length(head):
                data = b""
                await trio.sleep(ANSWER_S)
                await stream.send_all(said)

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=4096)
        await nursery.start(trio.serve_listeners, answer, [listener])
        yield f"http://127.0.0.1:{listener.socket.getsockname()[1]}/v1"
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def watched(
    url: str, reading: int, stuck: int, scrape_s: float
) -> AsyncGenerator[None, None]:
    """Watch a server: so many connections read its events, so many others read nothing and are
    stuck, and its metrics are asked for again and again (0: never)."""
    import trio  # here: the peer's Python has none

    place = urlsplit(url)

    async def get(target: str, buffer_bytes: int = 0) -> trio.SocketStream:
        socket = trio.socket.socket()
        if buffer_bytes:  # before it is connected, or the window is larger already
            socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, buffer_bytes)
        await socket.connect((place.hostname, place.port))
        stream = trio.SocketStream(socket)
        head = f"GET {target} HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: close\r\n\r\n"
        await stream.send_all(head.encode())
        return stream

    async def read(ready: trio.Event) -> None:
        async with await get("/v1/events") as stream:
            had = 0
            async for data in stream:
                had += b"data: " in data
                if had >= EVENTS:
                    ready.set()
        raise ConnectionError("the server has closed the connection of a reader")

    async def scrape() -> None:
        while True:
            await trio.sleep(scrape_s)
            async with await get("/metrics") as stream:
                found = b"".join([data async for data in stream])
            if not found.startswith(b"HTTP/1.1 200"):
                raise ConnectionError(f"a scrape was answered with {found[:200]!r}")

    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        for _ in range(stuck):
            await stack.enter_async_context(await get("/v1/events", BUFFER_BYTES))
        events = [trio.Event() for _ in range(reading)]
        for event in events:
            nursery.start_soon(read, event)
        if scrape_s:
            nursery.start_soon(scrape)
        for event in events:
            await event.wait()
        yield
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    programs: dict[str, Callable[..., None]] = {"rollouts": rollouts, "alone": alone}
    programs[sys.argv[1]](*sys.argv[2:])
