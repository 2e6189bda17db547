"""An endpoint of a model for tests: OpenAI's chat completions over real HTTP.

    async with serve(Endpoint(lambda ask: Reply("4"))) as url:
        ...                                     # url is http://127.0.0.1:PORT/v1

It runs hypercorn on the trio loop of the test, so workers in other processes reach it,
too.  It has a tokenizer of its own (``tokens``), and gives token ids as vLLM does
(``return_token_ids``) and as SGLang does (``return_..._ids_in_sglext``).

Tests that import this module are skipped where the dependency group ``endpoint`` is not
installed.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import queue
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, TypeAlias

import pytest
import trio

from tests.connections import accepted

pytest.importorskip("hypercorn")
pytest.importorskip("trustme")

import hypercorn
import hypercorn.trio

END = 999
"""The token that ends each message."""


@dataclasses.dataclass
class Ask:
    """A request that the endpoint saw."""

    number: int
    """0 for the first that this endpoint saw, faulty answers included."""
    headers: dict[str, str]
    body: dict[str, Any]
    answered: bool = False
    """The whole answer, whatever it is, was given."""
    closed: bool = False
    """The connection ended before that."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.body["messages"]
        return found

    @property
    def turn(self) -> int:
        """How many answers of the model the conversation has already."""
        return sum(message["role"] == "assistant" for message in self.messages)


@dataclasses.dataclass
class Reply:
    """What the endpoint answers."""

    text: str = ""
    tools: Sequence[tuple[str, Any]] = ()
    """Names and arguments of tool calls; arguments that are text are sent as they are."""
    ids: Sequence[str] = ()
    """The ids of the tool calls; default: call_0, call_1, ..."""
    finish_reason: str | None = None
    reasoning: str = ""
    delay_s: float = 0.0
    hold: bool = False
    """Never answer."""
    until: trio.Event | None = None
    """Answer when this is set."""
    token_ids: Sequence[int] | None = None
    """Other tokens than those of the text."""
    logprobs: Sequence[float] | None = None
    weight_version: str | None = None


@dataclasses.dataclass
class Status:
    """An answer that is no completion."""

    status: int
    body: bytes = b'{"error": {"message": "scripted"}}'
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Cut:
    """The connection is cut: before the answer, or in its middle (with the reply)."""

    reply: Reply | None = None


Answer: TypeAlias = Reply | Status | Cut


def tokens(text: str) -> list[int]:
    """The tokens of a message's text."""
    return [*map(ord, text), END]


def prompt_tokens(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """The tokens of a conversation: each prompt extends the one before and its answer."""
    found = []
    for message in messages:
        if message["role"] != "assistant":
            found.append(1000 + len(message["role"]))
        content = message.get("content") or ""
        text = str(message.get("reasoning_content") or "")
        text += content if isinstance(content, str) else json.dumps(content)
        text += "".join(call["function"]["arguments"] for call in message.get("tool_calls") or ())
        found += tokens(text)
        if message["role"] != "assistant":
            found.append(1001)
    return found


class Endpoint:
    """Answers as it is told.  ``asks`` are all requests that it saw."""

    def __init__(self, answer: Callable[[Ask], Answer]) -> None:
        self._answer = answer
        self.asks: list[Ask] = []
        self.address = ""

    @property
    def waiting(self) -> int:
        """How many clients wait for an answer now."""
        return sum(not (ask.answered or ask.closed) for ask in self.asks)

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        """The endpoint as an ASGI application."""
        if scope["type"] == "lifespan":
            for stage in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{stage}.complete"})
            return
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        data, more = b"", True
        while more:
            event = await receive()
            if event["type"] == "http.disconnect":
                return
            data += event.get("body", b"")
            more = event.get("more_body", False)
        ask = Ask(len(self.asks), headers, json.loads(data or b"{}"))
        answer: Answer = Status(404)
        if scope["path"].endswith("/chat/completions"):
            self.asks.append(ask)
            answer = self._answer(ask)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_watch, receive, ask, nursery.cancel_scope)
            await self._give(scope, ask, answer, send)
            nursery.cancel_scope.cancel()

    async def _give(self, scope: Any, ask: Ask, answer: Answer, send: Any) -> None:
        reply = answer.reply if isinstance(answer, Cut) else answer
        if isinstance(reply, Reply):
            await trio.sleep(reply.delay_s)
            if reply.hold:
                await trio.sleep_forever()
            if reply.until is not None:
                await reply.until.wait()
        if isinstance(reply, Status):
            await _send(send, ask, reply.status, reply.headers, [reply.body])
        elif reply is not None:
            stream = bool(ask.body.get("stream"))
            chunks = list(_chunks(ask, reply)) if stream else [_whole(ask, reply)]
            kind = "text/event-stream" if stream else "application/json"
            headers = {"content-type": kind}
            if isinstance(answer, Cut):
                half = b"".join(chunks)
                chunks = [half[: len(half) // 2]]
                headers["content-length"] = str(len(half))
            await _send(send, ask, 200, headers, chunks, end=not isinstance(answer, Cut))
        if isinstance(answer, Cut):
            host, port = scope["client"]
            peer = f"tcp://{host}:{port}"
            _cut(self.address, peer)
            await trio.sleep_forever()


async def _watch(receive: Any, ask: Ask, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    if not ask.answered:
        ask.closed = True
    scope.cancel()


def _cut(address: str, peer: str) -> None:
    def cut(connection: socket.socket) -> None:
        host, port = connection.getpeername()
        if f"tcp://{host}:{port}" == peer:
            connection.shutdown(socket.SHUT_RDWR)

    accepted(address, cut)


async def _send(
    send: Any, ask: Ask, status: int, headers: Mapping[str, str], chunks: Sequence[bytes],
    *, end: bool = True,
) -> None:  # fmt: skip
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    for chunk in chunks:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    if end:
        ask.answered = True
        await send({"type": "http.response.body", "body": b"", "more_body": False})


# -- OpenAI's shapes ------------------------------------------------------------


def _calls(reply: Reply) -> list[dict[str, Any]]:
    found = []
    for number, (name, arguments) in enumerate(reply.tools):
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        identity = reply.ids[number] if reply.ids else f"call_{number}"
        function = {"name": name, "arguments": text}
        found.append({"id": identity, "type": "function", "function": function})
    return found


def _ids(reply: Reply) -> list[int]:
    if reply.token_ids is not None:
        return list(reply.token_ids)
    calls = "".join(call["function"]["arguments"] for call in _calls(reply))
    return tokens(reply.reasoning + reply.text + calls)


def _logprobs(reply: Reply) -> dict[str, Any]:
    numbers = reply.logprobs
    if numbers is None:
        numbers = [-0.125 * (1 + token % 7) for token in _ids(reply)]
    return {"content": [{"token": "x", "logprob": one, "top_logprobs": []} for one in numbers]}


def _usage(ask: Ask, reply: Reply) -> dict[str, int]:
    prompt, answer = len(prompt_tokens(ask.messages)), len(_ids(reply))
    return {
        "prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer,
    }  # fmt: skip


def _extra(ask: Ask, reply: Reply) -> dict[str, Any]:
    """What SGLang adds to a response."""
    found: dict[str, Any] = {}
    if ask.body.get("return_input_ids_in_sglext"):
        found.setdefault("sglext", {})["input_ids"] = prompt_tokens(ask.messages)
    if ask.body.get("return_output_ids_in_sglext"):
        found.setdefault("sglext", {})["output_ids"] = [_ids(reply)]
    return found


def _finish(reply: Reply) -> str:
    return reply.finish_reason or ("tool_calls" if reply.tools else "stop")


def _whole(ask: Ask, reply: Reply) -> bytes:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.tools:
        message["tool_calls"] = _calls(reply)
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": _finish(reply)}
    body = {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1,
        "model": ask.body.get("model"), "choices": [choice], "usage": _usage(ask, reply),
        **_extra(ask, reply),
    }  # fmt: skip
    if ask.body.get("logprobs"):
        choice["logprobs"] = _logprobs(reply)
    if ask.body.get("return_token_ids"):
        body["prompt_token_ids"] = prompt_tokens(ask.messages)
        choice["token_ids"] = _ids(reply)
    if reply.weight_version is not None:
        body["metadata"] = {"weight_version": reply.weight_version}
    return json.dumps(body).encode()


def _chunks(ask: Ask, reply: Reply) -> Iterator[bytes]:
    def chunk(choices: list[dict[str, Any]], **more: Any) -> bytes:
        base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1}
        return b"data: " + json.dumps({**base, "choices": choices, **more}).encode() + b"\n\n"

    def choice(delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"index": 0, "delta": delta, "finish_reason": None, **more}

    vllm = bool(ask.body.get("return_token_ids"))
    first = {"prompt_token_ids": prompt_tokens(ask.messages)} if vllm else {}
    yield chunk([choice({"role": "assistant", "content": ""})], **first)
    yield b": a comment\n\n"
    if reply.reasoning:
        yield chunk([choice({"reasoning_content": reply.reasoning})])
    deltas: list[dict[str, Any]] = [{"content": letter} for letter in reply.text]
    for index, call in enumerate(_calls(reply)):
        head = {**call, "index": index, "function": {**call["function"], "arguments": ""}}
        deltas.append({"tool_calls": [head]})
        text = call["function"]["arguments"]
        for part in (text[: len(text) // 2], text[len(text) // 2 :]):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    ids, logprobs = _ids(reply), _logprobs(reply)["content"]
    deltas.append({})
    for number, delta in enumerate(deltas):
        # Tokens come with some delta; the last one has all that are left.
        upto = number + 1 if number + 1 < len(deltas) else None
        more: dict[str, Any] = {"token_ids": ids[number:upto]} if vllm else {}
        if ask.body.get("logprobs"):
            more["logprobs"] = {"content": logprobs[number:upto]}
        yield chunk([choice(delta, **more)])
    yield chunk([{**choice({}), "finish_reason": _finish(reply)}])
    if (ask.body.get("stream_options") or {}).get("include_usage"):
        yield chunk([], usage=_usage(ask, reply))
    if extra := _extra(ask, reply):
        yield chunk([], **extra)
    yield b"data: [DONE]\n\n"


# -- serving --------------------------------------------------------------------


@asynccontextmanager
async def serve(
    endpoint: Endpoint, *, port: int = 0, certificate: str = "", key: str = ""
) -> AsyncIterator[str]:
    """Serve the endpoint at a port of this machine; yields the URL for ``--model``.

    With a certificate and its key (files) it speaks TLS.
    """
    config = hypercorn.Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.accesslog = None
    config.errorlog = logging.getLogger("tests.endpoint")
    config.graceful_timeout = 0
    config.keep_alive_timeout = 3600
    config.backlog = 4096
    if certificate:
        config.certfile, config.keyfile = certificate, key
    async with trio.open_nursery() as nursery:
        closing = trio.Event()
        serving = partial(
            hypercorn.trio.serve, endpoint.app, config, shutdown_trigger=closing.wait, mode="asgi"
        )
        (bound,) = await nursery.start(serving)
        endpoint.address = "tcp://" + bound.partition("://")[2]
        try:
            yield f"{bound}/v1"
        finally:
            closing.set()
            nursery.cancel_scope.cancel()


@contextmanager
def running(endpoint: Endpoint, *, port: int = 0) -> Iterator[str]:
    """As :func:`serve`, in a thread: for tests that are not async."""
    said: queue.SimpleQueue[tuple[str, trio.lowlevel.TrioToken, trio.Event]] = queue.SimpleQueue()

    async def main() -> None:
        closing = trio.Event()
        async with serve(endpoint, port=port) as url:
            said.put((url, trio.lowlevel.current_trio_token(), closing))
            await closing.wait()

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    url, token, closing = said.get(timeout=60)
    try:
        yield url
    finally:
        token.run_sync_soon(closing.set)
        thread.join()
