"""Rollouts for a trainer's asyncio code: settings, one client for a process, one call.

Theory of operation
-------------------
Trainers make the object that asks for rollouts anew for each of them, or have a function
only, so the client belongs to the event loop: it is opened by the first call there, and
closed with the loop (``asyncio.run`` closes it), with the process, or by
:func:`close_clients`.

A result without token ids, or without the log-probabilities that the trainer wants, is masked
and logged like any other; so is a request that the server refuses for good.  If :data:`SURE`
of these came and no rollout that could be trained on, it is a mistake in the settings, which
would mask every sample for ever: then it is an error.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, final

from ..client.aio import AsyncioClient, open_client_asyncio
from ..client.options import checked
from ..core.errors import ConfigError, DidNotRun
from ..net.keypairs import ClientCurve
from .samples import NO_LOGPROBS, NO_TOKENS, SampledRollout, sampled_rollout

_log = logging.getLogger("trio_envserve.trainers")

SURE = 16
"""Number of rollouts that lack something, and none that can be trained on, after which that is
no accident."""

SAMPLING: Mapping[str, str] = {
    **{
        name: name
        for name in (
            "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty",
            "presence_penalty", "stop", "stop_token_ids", "ignore_eos", "skip_special_tokens",
            "include_stop_str_in_output", "no_stop_trim", "seed", "min_tokens", "max_tokens",
        )
    },
    "sampling_seed": "seed",
    "min_new_tokens": "min_tokens",
    "max_new_tokens": "max_tokens",
    "max_generate_length": "max_tokens",
    "max_completion_length": "max_tokens",
}  # fmt: skip
"""The names of trainers' sampling parameters, and the field of a chat completion that each
is.  Others are the trainer's own affair; None is left out."""

TOKENS_AND_LOGPROBS: Mapping[str, Mapping[str, Any]] = {
    "vllm": {"return_token_ids": True, "logprobs": True},
    "sglang": {
        "return_input_ids_in_sglext": True,
        "return_output_ids_in_sglext": True,
        "logprobs": True,
    },
}
"""Fields of a chat completion by which engines give tokens and log-probabilities."""


OPTIONS = (
    "timeout_s", "execution_s", "grace_s", "working_s", "max_retries", "rerun", "max_executions",
    "roles",
)  # fmt: skip
"""The options of a call (:class:`~trio_envserve.CallOptions`) that are settings, too."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CallSettings:
    """The settings of a trainer's calls.  Raises ConfigError for wrong ones."""

    address: str = ""
    """Address of the server; by default that of the variable ``TRIO_ENVSERVE_ADDRESS``."""
    model: str = ""
    """The endpoint: a name in the workers' file of endpoints, or a URL; by default the trainer's
    own engines, or ``policy`` where it has none."""
    model_name: str = ""
    sampling: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of every chat completion, beside the trainer's sampling parameters."""
    logprobs: bool = True
    """Whether samples need log-probabilities."""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Further options of every call: those of :data:`OPTIONS`."""
    input: str = ""
    """The column of the data set that is the rollout's input, as :func:`input_of` says."""
    curve: str = ""
    """The file with the client's keys, for a server with keys."""

    def __post_init__(self) -> None:
        if not isinstance(self.address, str):
            raise ConfigError(f"address must be text, not {self.address!r}")
        checked(None, **self.options)

    @classmethod
    def of(cls, settings: Mapping[str, Any], *, where: str) -> CallSettings:
        """The settings of a trainer's configuration; ``where`` names it in errors."""
        own = [field.name for field in dataclasses.fields(cls) if field.name != "options"]
        known = [*own, *OPTIONS]
        if unknown := sorted(set(settings) - set(known)):
            raise ConfigError(f"{where}: unknown settings {unknown}; known are {known}")
        given = {name: plain(value) for name, value in settings.items()}
        options = {name: given.pop(name) for name in OPTIONS if name in given}
        return cls(**given, options=options)

    def at_engine(self, kind: str, url: str, name: str, **fields: Any) -> CallSettings:
        """The settings by which turns go to the trainer's own engine, unless another endpoint is
        set.  ``fields`` are those of a chat completion that the trainer's configuration says;
        empty ones are left out."""
        if self.model:
            return self
        asked = {field: plain(value) for field, value in fields.items() if value}
        return dataclasses.replace(
            self,
            model=f"{url.rstrip('/')}/v1",
            model_name=self.model_name or name,
            sampling={**TOKENS_AND_LOGPROBS[kind], **asked, **self.sampling},
        )

    def server(self) -> str:
        """The address.  Raises ConfigError without one."""
        address = self.address or os.environ.get("TRIO_ENVSERVE_ADDRESS", "")
        if not address:
            raise ConfigError(
                "no address of an environment server: give the setting address, or the "
                "variable TRIO_ENVSERVE_ADDRESS (tcp://HOST:PORT)"
            )
        return address


@final
class _Opening:
    """A client of this process and event loop, once its task is done."""

    def __init__(self, settings: CallSettings) -> None:
        curve = ClientCurve.from_file(settings.curve) if settings.curve else None
        opened = open_client_asyncio(settings.server(), name="trainer", curve=curve)
        self._stack = AsyncExitStack()
        self.task = asyncio.ensure_future(self._stack.enter_async_context(opened))
        self.trained = False
        """Whether some rollout could be trained on."""
        self.lacking = 0
        """Number of rollouts that lacked token ids or log-probabilities, or were refused for
        good."""

    async def close(self) -> None:
        await asyncio.wait([self.task])
        await self._stack.aclose()


_openings: dict[tuple[int, asyncio.AbstractEventLoop, str, str], _Opening] = {}
"""Opened clients, by process, event loop, address and file of keys."""


async def _opening(settings: CallSettings) -> tuple[_Opening, AsyncioClient]:
    for key in [key for key in _openings if key[0] != os.getpid() or key[1].is_closed()]:
        del _openings[key]  # another process's, or its loop closed it
    key = os.getpid(), asyncio.get_running_loop(), settings.server(), settings.curve
    opening = _openings.get(key)
    if opening is None:
        opening = _openings[key] = _Opening(settings)
    try:
        # A caller that is cancelled leaves the client to the others.
        return opening, await asyncio.shield(opening.task)
    except BaseException:
        task = opening.task
        if task.done() and (task.cancelled() or task.exception()) and _openings.get(key) is opening:
            del _openings[key]  # the next call tries again
        raise


async def close_clients() -> None:
    """Close the clients of the running event loop; the next call opens a new one."""
    loop = asyncio.get_running_loop()
    for key in [key for key in _openings if key[1] is loop]:
        await _openings.pop(key).close()


async def ask_rollout(
    settings: CallSettings, input: Any, *, group: str, rollout: str,
    sampling_params: Mapping[str, Any] | None = None,
) -> SampledRollout:  # fmt: skip
    """Ask for a rollout, and read it.  A failed one is returned, too, masked; it is logged.

    Raises ConfigError for wrong settings, and if :data:`SURE` rollouts lacked token ids or
    log-probabilities, or were refused, before one could be trained on.
    """
    opening, client = await _opening(settings)
    outcome = await client.outcome(
        plain(input),
        model=settings.model or "policy",
        model_name=settings.model_name,
        sampling_args={**sampling_args(sampling_params or {}), **settings.sampling},
        **settings.options,
    )
    read = sampled_rollout(outcome, group=group, rollout=rollout, logprobs=settings.logprobs)
    if not read.masked:
        opening.trained = True
        if read.left_out:
            _log.warning(
                "%d of %d segments of rollout %s are not trained on: %s",
                len(read.left_out), len(read.samples), rollout, read.left_out[0].masked,
            )  # fmt: skip
        return read
    _log.warning("rollout %s is not trained on: %s", rollout, read.masked)
    error = outcome.error
    refused = isinstance(error, DidNotRun) and not error.ending.again
    opening.lacking += refused or read.masked in (NO_TOKENS, NO_LOGPROBS)
    if opening.lacking >= SURE and not opening.trained:
        raise ConfigError(f"no rollout of {opening.lacking} can be trained on: {read.masked}")
    return read


def sampling_args(sampling_params: Mapping[str, Any]) -> dict[str, Any]:
    """A trainer's sampling parameters as fields of a chat completion.

    Settings that restrict nothing are fields, too: engines take what is not said from a file of the
    model's (vLLM's ``generation_config``), and log-probabilities would be of another distribution
    than the trainer's.
    """
    given = plain(sampling_params)
    fields = {
        SAMPLING[name]: value
        for name, value in given.items()
        if name in SAMPLING and value is not None
    }
    if fields.get("top_k") == 0:
        fields["top_k"] = -1  # all tokens, by the word that both vLLM and SGLang take
    return fields


def plain(value: Any) -> Any:
    """A value of a trainer's data set in types of Python: no arrays, scalars or mappings of
    libraries, which an environment need not know."""
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(each) for each in value]
    return value


def input_of(row: Mapping[str, Any], extra: str, name: str = "") -> Any:
    """The rollout's input from a row of the trainer's data set.

    With ``name`` it is that column, or a part of it (``extra_info.input``).  Without, it is
    ``{"prompt": ...}`` and the fields of the mapping in the column ``extra``.  Raises
    :class:`ConfigError` for a column that is not there, and for one that is there twice.
    """
    if name:
        found: Any = row
        for part in name.split("."):
            if not isinstance(found, Mapping) or part not in found:
                raise ConfigError(f"input = {name!r}: the data set's row has no {part!r}")
            found = found[part]
        return found
    more = row.get(extra)
    prompt = {"prompt": row.get("prompt")}
    return joined(prompt, more if isinstance(more, Mapping) else {}, extra)


def joined(columns: Mapping[str, Any], more: Mapping[str, Any], extra: str) -> dict[str, Any]:
    """Columns of a row and the fields ``more`` of its column ``extra``, where None is no other
    value: tables give it to each row that lacks a field.  Raises :class:`ConfigError` for a name
    that has one value here and another there: a rollout of the one would be trained on as one of
    the other."""
    own = {name: value for name, value in columns.items() if value is not None}
    more = {name: each for name, each in more.items() if each is not None or name not in own}
    for name in own.keys() & more.keys():
        if plain(own[name]) != plain(more[name]):
            raise ConfigError(
                f"the data set's row has two values of {name!r}: a column of its own, and another "
                f"in its {extra}: give the one there another name"
            )
    return {**columns, **more}
