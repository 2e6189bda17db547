"""An endpoint of the policy, in the process of the trainer: OpenAI's chat completions.

It answers from the weights that the trainer has at that moment, with the ids and the
log-probabilities of its tokens, and says which version of the weights it was
(``weight_version``).  Workers of the environment server ask it as they would ask vLLM.
"""

from __future__ import annotations

import json
import queue
import random
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

import numpy as np
from vocabulary import END, WORDS, prompt_ids, text_of


class Policy(Protocol):
    """The part of a policy that is served."""

    version: int
    """How often it has learned."""

    def log_probabilities(self, rows: Sequence[Sequence[int]]) -> np.ndarray:
        """Of each word, that it comes next; for rows of tokens of one length."""
        ...


class Answer:
    """An answer while it is sampled.

    Its seed is the conversation, with the ``name`` of whoever speaks: rollouts with names of
    their own get answers of their own, and the same ones from the same weights.
    """

    def __init__(self, body: dict[str, Any]) -> None:
        self.prompt_ids = prompt_ids(body["messages"])
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.version = -1
        self.done = threading.Event()
        self._most = body.get("max_tokens") or 3
        self._random = random.Random(json.dumps(body["messages"]))

    def add(self, log_probabilities: np.ndarray, version: int) -> bool:
        """Sample one more token.  Whether it was the last one."""
        if not self.ids:
            self.version = version
        summed = np.cumsum(np.exp(log_probabilities.astype(np.float64)))
        token = int(np.searchsorted(summed, self._random.random() * summed[-1], side="right"))
        token = min(token, len(WORDS) - 1)
        self.ids.append(token)
        self.logprobs.append(float(log_probabilities[token]))
        return token == END or len(self.ids) == self._most

    def to_json(self) -> dict[str, Any]:
        """The body of the response, with the fields of vLLM for ids."""
        tokens = zip(self.ids, self.logprobs, strict=True)
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text_of(self.ids)},
            "finish_reason": "stop" if self.ids[-1] == END else "length",
            "token_ids": self.ids,
            "logprobs": {"content": [{"token": WORDS[i], "logprob": p} for i, p in tokens]},
        }
        return {
            "object": "chat.completion",
            "choices": [choice],
            "prompt_token_ids": self.prompt_ids,
            "usage": {
                "prompt_tokens": len(self.prompt_ids),
                "completion_tokens": len(self.ids),
            },
            "weight_version": str(self.version),
        }


class Sampler:
    """Samples all answers that are asked for, those of one length in one batch."""

    def __init__(self, policy: Policy, quiet: threading.Event) -> None:
        self._policy = policy
        self._quiet = quiet
        self._asked: queue.SimpleQueue[Answer | None] = queue.SimpleQueue()

    def answer(self, body: dict[str, Any]) -> Answer:
        """The answer to a request, once it is there."""
        answer = Answer(body)
        self._asked.put(answer)
        answer.done.wait()
        return answer

    def stop(self) -> None:
        """Let :meth:`run` end."""
        self._asked.put(None)

    def run(self) -> None:
        """Sample until it is stopped."""
        begun: list[Answer] = []
        while True:
            while not begun or not self._asked.empty():
                answer = self._asked.get()
                if answer is None:
                    return
                begun.append(answer)
            self._quiet.wait()
            by_length = defaultdict(list)
            for answer in begun:
                by_length[len(answer.prompt_ids) + len(answer.ids)].append(answer)
            begun = []
            for batch in by_length.values():
                version = self._policy.version
                rows = self._policy.log_probabilities([[*a.prompt_ids, *a.ids] for a in batch])
                for answer, row in zip(batch, rows, strict=True):
                    if answer.add(row, version):
                        answer.done.set()
                    else:
                        begun.append(answer)


@contextmanager
def served(policy: Policy, quiet: threading.Event) -> Iterator[str]:
    """Serve a policy beside the block; the address is the value.  Answers wait while it is
    not ``quiet``."""
    sampler = Sampler(policy, quiet)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are kept
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            content = json.dumps(sampler.answer(body).to_json()).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """No line for each request."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False  # of connections that workers keep open
        request_queue_size = 256

        def handle_error(self, request: object, client_address: object) -> None:
            """A worker that was killed is gone without a word."""

    with Server(("127.0.0.1", 0), Handler) as server:
        threads = [threading.Thread(target=each) for each in (sampler.run, server.serve_forever)]
        for thread in threads:
            thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            sampler.stop()
            for thread in threads:
                thread.join()
