"""Tasksets of verifiers 0.4: ``verifiers:TASKSET``.

Theory of operation
-------------------
The library's own environment runs each task as an episode: a harness in a runtime asks
the model by way of a proxy of the library's, which records a trace.  Here that is hosted
as the library's own server does it: shared resources are held from set-up to tear-down, by
one task that enters and leaves them; an episode is run in a slot.

The library is asyncio code, large, and needs many other packages, so it belongs into an
interpreter of its own (``worker_python``); it is imported only when such an environment is
loaded.

An episode that failed is a failed rollout with the library's reason, never a reward of 0. Messages
that the library would have sent to its own client while the episode ran are kept in the state
column ``deltas``.

A client of the library asks by way of the door for verifiers.  Its run comes as it was
packed, and names the task, the model and the client to ask it with; the result is what the
library's server would have sent.  An episode that failed is an answer there: that client
reads the errors itself.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

from ..core.errors import ConfigError
from ..models.endpoints import read_endpoints
from .interface import Backend, Rollout
from .specs import library, made

WIRE = "verifiers-0.4"
"""The release of the library's wire whose runs are understood."""

_NO_KEY = "TRIO_ENVSERVE_NO_KEY"
"""A variable that is not set, for endpoints without a key."""


class EpisodeFailed(Exception):
    """The library could not run the episode, or a part of it; the text says why."""


@final
class Verifiers:
    """One taskset with a harness and a runtime.

    ``config`` is the library's own for the environment (``{"timeout": {"episode": 600},
    "agent": {"max_turns": 5}}``); ``harness`` and ``runtime`` are short for two entries of
    it, for an environment whose one agent is called ``agent``.  An environment of other
    agents gets ``harness=None, runtime=None`` and says it all in ``config``.

    An input is ``{"index": i}``, a task of the taskset, or ``{"task": {...}}``, a task's
    data.  The model is that of the request, which must be an endpoint over HTTP.  A
    result has ``reward``, ``rewards`` by name and weighted, ``completion``, ``metrics``, and
    in ``state`` ``episode`` (the library's record) and ``deltas``.  An episode of several
    traces has these for each of them, in ``traces``, and no reward of its own: a reward
    belongs to one completion.

    The input of a run of the library's own client is ``{"wire": "verifiers-0.4", "run":
    bytes}``; its result has in ``state`` ``deltas``, ``reply``, and ``traces``, the ids of
    the traces that the deltas are of.  Each delta is also said when it comes.

    Raises :class:`ConfigError` if the library is missing or another than 0.4, or refuses the
    taskset or the configuration.
    """

    backend: Backend = "asyncio"

    def __init__(
        self,
        taskset: str,
        harness: str | None = "null",
        runtime: str | None = "subprocess",
        config: Mapping[str, Any] | None = None,
        rerun: bool = False,
    ) -> None:
        self.name = f"verifiers:{taskset}"
        self.rerun = rerun
        self._library = _library()
        raw = _merged(_agent(harness, runtime), config or {})
        raw = _merged({"taskset": {"id": taskset}}, raw)
        self._env = made(self.name, self._load, raw)
        self._tasks: list[Any] = []
        self._more: Iterator[Any] | None = None
        self._serving: asyncio.Task[None] | None = None

    def _load(self, raw: Mapping[str, Any]) -> Any:
        from verifiers.v1.utils.loaders import load_environment, resolve_env_config

        return load_environment(resolve_env_config(dict(raw)))

    def inputs(self, n: int, seed: int) -> list[dict[str, int]]:
        """The first ``n`` tasks; after the last one they repeat.  The seed changes
        nothing: the taskset's configuration has its own."""
        tasks = list(itertools.islice(self._env.taskset, n))
        if not tasks:
            raise ConfigError(f"{self.name} has no tasks")
        return [{"index": i % len(tasks)} for i in range(n)]

    async def setup(self) -> None:
        """Hold the library's shared resources until :meth:`teardown`."""
        self._loading = asyncio.Lock()
        self._stop = asyncio.Event()
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._serving = asyncio.create_task(self._serve(ready))
        await asyncio.wait((ready, self._serving), return_when=asyncio.FIRST_COMPLETED)
        if self._serving.done():
            await self._serving  # raises why

    async def _serve(self, ready: asyncio.Future[None]) -> None:
        async with self._env.serving():
            ready.set_result(None)
            await self._stop.wait()

    async def teardown(self) -> None:
        """Give the shared resources back."""
        if self._serving is not None:
            self._stop.set()
            await self._serving

    async def run_rollout(self, rollout: Rollout) -> dict[str, Any]:
        """One episode.  Raises :class:`EpisodeFailed`."""
        from verifiers.v1.clients import ModelContext
        from verifiers.v1.serve.delta import dump
        from verifiers.v1.types import SamplingConfig

        if isinstance(rollout.input, Mapping) and "wire" in rollout.input:
            return await self._run_of_wire(rollout.input, rollout.delta)
        context = ModelContext(
            client=_client(rollout.endpoint),
            model=rollout.model_name,
            sampling=SamplingConfig.model_validate(dict(rollout.sampling_args)),
        )
        episode, deltas, _ = await self._episode(await self._task(rollout.input), context)
        _check(episode)
        columns = rollout.state_columns
        return {
            **_result(episode.traces),
            "state": {
                "deltas": deltas,
                "episode": dump(episode) if "episode" in columns else None,
            },
        }

    async def _run_of_wire(
        self, asked: Mapping[str, Any], pass_delta: Callable[[bytes], None]
    ) -> dict[str, Any]:
        """The answer that the library's server would send for a run of its client."""
        from verifiers.v1.clients import ModelContext
        from verifiers.v1.serve.delta import TraceSummary, dump, pack, unpack
        from verifiers.v1.serve.types import RunRequest, RunResponse

        if asked["wire"] != WIRE:
            raise ValueError(f"a run of {WIRE} expected, not of {asked['wire']!r}")
        data_kind = type(self._env.taskset).task_type().data_type()
        left_out = [name for name, field in data_kind.model_fields.items() if field.exclude]
        if left_out:
            # What the client sends lacks them, and they would get their defaults here.
            raise ValueError(f"{data_kind.__name__} does not send {left_out} (exclude=True)")
        run = RunRequest.model_validate(unpack(asked["run"]))
        context = ModelContext(client=run.client, model=run.model, sampling=run.sampling)
        task = self._task_of(run.task_data)
        episode, deltas, traces = await self._episode(task, context, pass_delta)
        reply = RunResponse(
            head=dump(episode, exclude={"traces"}),
            traces=[
                TraceSummary(id=trace.id, nodes=len(trace.nodes), calls=len(trace.calls))
                for trace in episode.traces
            ],
        )
        packed = pack(reply.model_dump(mode="python"))
        return {"state": {"deltas": deltas, "reply": packed, "traces": traces}}

    async def _episode(
        self, task: Any, context: Any, pass_delta: Callable[[bytes], None] = lambda delta: None
    ) -> tuple[Any, list[bytes], list[str]]:
        """Run one; returns it, its deltas, and the ids of the traces that they are of.
        ``pass_delta`` is called with each delta as it comes."""
        from verifiers.v1.serve.delta import DeltaStreamer, pack

        (slot,) = self._env.slots(task)
        deltas: list[bytes] = []
        traces: dict[str, None] = {}

        async def keep(delta: dict[str, Any]) -> None:
            packed = pack(delta)
            deltas.append(packed)
            pass_delta(packed)
            traces[delta["trace"]] = None

        async with DeltaStreamer(lambda: slot.traces, keep) as streamer:
            episode = await self._env.run_slot(slot, context, None, on_trace=streamer.watch)
        return episode, deltas, list(traces)

    def _task_of(self, data: Mapping[str, Any]) -> Any:
        """A task from its data, as the library's server makes it."""
        kind = type(self._env.taskset).task_type()
        validated = kind.data_type().model_validate(dict(data))
        return kind(validated, self._env.config.taskset.task)

    async def _task(self, asked: Any) -> Any:
        data = asked.get("task") if isinstance(asked, Mapping) else None
        if isinstance(data, Mapping):
            return self._task_of(data)
        index = asked.get("index") if isinstance(asked, Mapping) else None
        if type(index) is not int or index < 0:
            raise ValueError('an input of verifiers is {"index": int >= 0} or {"task": {...}}')
        async with self._loading:
            if index >= len(self._tasks):
                # In a thread: a taskset may download its data.
                await asyncio.to_thread(self._read_tasks, index)
        if index >= len(self._tasks):
            raise IndexError(f"index {index} is not within 0..{len(self._tasks) - 1}")
        return self._tasks[index]

    def _read_tasks(self, index: int) -> None:
        if self._more is None:
            self._more = iter(self._env.taskset)
        self._tasks += itertools.islice(self._more, index + 1 - len(self._tasks))


def _agent(harness: str | None, runtime: str | None) -> dict[str, Any]:
    agent: dict[str, Any] = {}
    if harness is not None:
        agent["harness"] = {"id": harness}
    if runtime is not None:
        agent["runtime"] = {"type": runtime}
    return {"agent": agent} if agent else {}


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Two configurations; the second one goes first."""
    merged = dict(first)
    for name, value in second.items():
        before = merged.get(name)
        both = isinstance(value, Mapping) and isinstance(before, Mapping)
        merged[name] = _merged(before, value) if both else value  # type: ignore[arg-type]
    return merged


def _client(endpoint: str) -> Any:
    """The library's client for an endpoint: its URL, or its name in the file of endpoints."""
    from verifiers.v1.configs.client import EvalClientConfig

    url, key = endpoint, _NO_KEY
    if "://" not in endpoint:
        named = read_endpoints()
        if endpoint not in named:
            raise ValueError(
                f"verifiers asks the model itself: it takes an endpoint over HTTP, not {endpoint!r}"
            )
        url, key = named[endpoint].url, named[endpoint].key_env or _NO_KEY
    return EvalClientConfig(base_url=url, api_key_var=key)


def _check(episode: Any) -> None:
    """Raise the first error of an episode that failed."""
    if episode.ok:
        return
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if not errors:
        raise EpisodeFailed("the episode failed, and gives no reason")
    first = errors[0]
    failed = EpisodeFailed(f"{first.type}: {first.message}")
    failed.add_note(f"In the library:\n{first.traceback}")
    raise failed


def _result(traces: Sequence[Any]) -> dict[str, Any]:
    """Reward and completion: of the one trace, or of each of several."""
    if len(traces) > 1:
        why = f"the episode has {len(traces)} traces, each with a reward of its own: see traces"
        each = [{"id": str(trace.id), **_scores(trace), **_completion(trace)} for trace in traces]
        return {"no_reward": why, "traces": each}
    if not traces:
        return {"no_reward": "the episode has no trace", "metrics": {}, "completion": []}
    return {**_scores(traces[0]), **_completion(traces[0])}


def _scores(trace: Any) -> dict[str, Any]:
    """Reward and metrics of a trace."""
    rewards = {name: each.value for name, each in trace.rewards.items() if each is not None}
    if not rewards:
        return {"no_reward": "the library has scored nothing", "metrics": {}}
    metrics = {name: float(each) for name, each in trace.metrics.items() if each is not None}
    return {"reward": float(trace.reward), "rewards": rewards, "metrics": metrics}


def _completion(trace: Any) -> dict[str, Any]:
    """The messages of a trace, from the model's first on."""
    messages = [
        (node.sampled, node.message.model_dump(mode="json", exclude_none=True))
        for node in trace.nodes
    ]
    own = itertools.dropwhile(lambda each: not each[0], messages)
    return {"completion": [message for _, message in own]}


def _library() -> Any:
    verifiers = library(
        "verifiers",
        missing="verifiers is not installed here; it belongs into an interpreter of its own: "
        "--worker-python PATH (with verifiers 0.4, uv and this package)",
    )
    version = str(getattr(verifiers, "__version__", "unknown"))
    if not version.startswith("0.4."):
        raise ConfigError(f"verifiers:TASKSET is for verifiers 0.4, and {version} is installed")
    return verifiers
