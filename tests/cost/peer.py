"""verifiers 0.4 (``verifiers.v1.serve``): its pool of workers and its client.

``python -m tests.cost.peer server WORKERS`` and ``python -m tests.cost.peer client ADDRESS``, by
a Python that has verifiers and uvloop, and nothing of this project.  Its broker starts all
workers at once (``elastic=False``).  In broker and workers uvloop is used, logging is off, and
in the place of a taskset with its harness, which takes a process and about a second for each
rollout, stands an environment object that answers at once: so the server is measured.  The
answer is one trace, as every real rollout has.  It does not name the request's data a second and
a third time, as a real one does; that is in the peer's favour.
"""

# The peer is not installed where this is type-checked.
# mypy: disable-error-code="import-not-found, misc, no-any-return"

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from tests.cost.load import TOKENS, answer, realistic, serve


def environment(config: Any) -> Any:
    """Has what the server asks of an environment, and answers at once."""
    import verifiers.v1 as vf
    from verifiers.v1.env import RunSlot
    from verifiers.v1.episode import Episode
    from verifiers.v1.graph import MessageNode
    from verifiers.v1.trace import AgentInfo, Trace, TraceTask

    class Data(vf.TaskData):
        call: int = 0
        response: int | str = 0
        payload: str = ""

    class BenchTask(vf.Task[Data, vf.State]):
        pass

    class AtOnce:
        taskset = type("Tasks", (), {"task_type": staticmethod(lambda: BenchTask)})()

        def __init__(self) -> None:
            task = SimpleNamespace(task=vf.TaskConfig())
            self.config = SimpleNamespace(taskset=task)
            self._answers: dict[int | str, tuple[str, Any]] = {}
            self._episode = Episode(task=TraceTask(type="BenchTask", data=Data()), ok=True)

        @asynccontextmanager
        async def serving(self) -> AsyncIterator[None]:
            yield

        def slots(self, task: Any) -> list[Any]:
            return [RunSlot(task)]

        async def run_slot(
            self, slot: Any, context: Any, gate: Any = None, *, on_trace: Any = None
        ) -> Any:
            asked = slot.task.data
            answer = self._answers.get(asked.response)
            if answer is None:
                answer = self._answers[asked.response] = self._answer(asked.response)
            payload, trace = answer
            info = {"call": asked.call, "payload": payload}
            trace = trace.model_copy(update={"id": uuid.uuid4().hex, "info": info})
            slot.traces = [trace]
            on_trace(trace)
            return self._episode.model_copy(update={"id": uuid.uuid4().hex, "traces": [trace]})

        def _answer(self, wanted: int | str) -> tuple[str, Any]:
            nodes = [] if isinstance(wanted, int) else _nodes(MessageNode)
            trace = Trace(
                task=TraceTask(type="BenchTask", data=Data()),
                agent=AgentInfo(config=vf.AgentConfig()),
                nodes=nodes, is_completed=True, ok=True,
            )  # fmt: skip
            return "x" * wanted if isinstance(wanted, int) else "", trace

    return AtOnce()


def _nodes(node: Any) -> list[Any]:
    """The realistic rollout as a trace has it: to each message its tokens."""
    messages, token_ids, logprobs = realistic()
    share = TOKENS // len(messages)
    return [
        node(
            parent=index - 1 if index else None, message=message,
            sampled=message["role"] == "assistant",
            token_ids=token_ids[index * share : (index + 1) * share],
            logprobs=logprobs[index * share : (index + 1) * share],
        )
        for index, message in enumerate(messages)
    ]  # fmt: skip


def prepare() -> None:
    """The first step of the broker, and of each of its workers."""
    import uvloop
    from verifiers.v1.serve import server as serving

    logging.disable(logging.CRITICAL)
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    serving.load_environment = environment


def server(workers: str) -> None:
    """Serve at a free port until standard input ends."""
    from verifiers.v1.serve.pool import EnvServerPool, _arm_teardown

    def end_with_stdin() -> None:
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    prepare()
    _arm_teardown()  # so that SIGTERM ends its workers, too
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    config = SimpleNamespace(taskset=SimpleNamespace(id="bench"))
    pool = EnvServerPool(
        {"config": config}, int(workers), address, log_setup=prepare, elastic=False
    )
    threading.Thread(target=end_with_stdin, daemon=True).start()
    answer({"address": pool.address})
    sys.stdout = sys.stderr
    try:
        asyncio.run(pool.run())
    except KeyboardInterrupt:
        pass


def client(address: str) -> None:
    """Carry out loads until standard input ends."""
    import uvloop
    import verifiers.v1 as vf
    from verifiers.v1.configs.client import EvalClientConfig
    from verifiers.v1.serve import EnvClient

    logging.disable(logging.CRITICAL)
    os.environ.setdefault("BENCH_KEY", "none")
    config = EvalClientConfig(api_key_var="BENCH_KEY", base_url="http://127.0.0.1:1/v1")
    sampling = vf.SamplingConfig()

    async def ask(one: Any, call: int, load: dict[str, Any]) -> bool:
        wanted = load["response"]
        if "payload" not in load:
            load["payload"] = "x" * load["request_bytes"]
        asked = {"call": call, "payload": load["payload"], "response": wanted}
        (trace,) = (await one.run(config, "none", sampling, asked)).traces
        if isinstance(wanted, int):
            right = len(trace.info["payload"]) == wanted
        else:
            right = sum(len(node.logprobs) for node in trace.nodes) == TOKENS
        return trace.info["call"] == call and right

    async def open_one() -> Any:
        one = EnvClient(address)
        await one.wait_for_server_startup()
        await ask(one, 0, {"request_bytes": 1, "response": 1})
        return one

    uvloop.run(serve(open_one, ask))


if __name__ == "__main__":
    {"server": server, "client": client}[sys.argv[1]](*sys.argv[2:])
