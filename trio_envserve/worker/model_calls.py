"""The models of a rollout, as its code asks them.

Theory of operation
-------------------
Models run on the trio loop.  The carrier of the execution has each call done there, wherever the
code runs, and below the span in which that stands.  The call has a span of its own, whose
attributes are those of OpenTelemetry's conventions for generative models; none of them has what was
asked or answered.

A model in a role is found when it is asked, on the loop: clients belong to that.  Its failure says
which role and which endpoint failed.  A judge whose context is full is a model that cannot be
asked: the policy has not filled its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import NoReturn, TypeAlias, Unpack, final

from .. import foreign, tracing
from ..carrier import Work, WorkCarrier
from ..core.errors import ConfigError
from ..models.interface import (
    Asking,
    AskingRollout,
    BrokenNumbers,
    Completion,
    Messages,
    Model,
    ModelAborted,
    ModelError,
    RolloutModel,
)

Find: TypeAlias = Callable[[], tuple[str, Model]]
"""Returns the endpoint of a model, and its client."""


@final
class AskedModel:
    """A model for one attempt of a rollout; ``role``: empty for the one that is measured."""

    def __init__(
        self, find: Find, asker: AskingRollout, trace: tracing.Trace, carrier: WorkCarrier,
        role: str = "",
    ) -> None:  # fmt: skip
        self._find = find
        self._asker = asker
        self._trace = trace
        self._carrier = carrier
        self._role = role

    async def complete(self, messages: Messages, **how: Unpack[Asking]) -> Completion:
        """The model's answer, for code on a loop.  Raises :class:`ModelError`, which names role and
        endpoint of a further model, and :class:`ConfigError` if no model has the role."""
        completion: Completion = await self._carrier.call(self._call(messages, how))
        return completion

    def complete_sync(self, messages: Messages, **how: Unpack[Asking]) -> Completion:
        """The same, which blocks the thread.  Raises ``RolloutCancelled``, and ``TypeError`` on a
        loop."""
        completion: Completion = self._carrier.call_sync(self._call(messages, how))
        return completion

    async def aclose(self) -> None:
        """Nothing: the worker owns the model."""

    def _call(self, messages: Messages, how: Asking) -> Work:
        return partial(self._complete, messages, how, tracing.here())

    async def _complete(self, messages: Messages, how: Asking, above: str | None) -> Completion:
        endpoint, model = self._find()
        if isinstance(model, RolloutModel):
            work = partial(model.complete_for, self._asker, messages, **how)
        else:
            work = partial(model.complete, messages, **how)
        try:
            if self._trace is tracing.NO_TRACE and above is None:
                return await work()
            with tracing.below(above):
                return await self._in_span(work, endpoint, how["name"])
        except ModelError as error:
            if not self._role:
                raise
            raise _named(error, f"the {self._role} (endpoint {endpoint!r})") from error

    async def _in_span(
        self, work: Callable[[], Awaitable[Completion]], endpoint: str, name: str
    ) -> Completion:
        about = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": name,
            "envserve.endpoint": endpoint,
        }
        with self._trace.span(f"chat {name or endpoint}", about, "CLIENT") as span:
            completion = await work()
            if span is not None:
                span.tell(_told(completion))
            return completion


def no_policy() -> NoReturn:
    """The model of a rollout that is only scored.  Raises :class:`ConfigError`."""
    raise ConfigError(
        "rescore() must not ask the model that is measured; for another one, name its role: "
        'rollout.ask(messages, endpoint="judge")'
    )


def _named(error: ModelError, who: str) -> ModelError:
    kinds = (kind for kind in (ModelAborted, BrokenNumbers) if isinstance(error, kind))
    named = next(kinds, ModelError)(f"{who} failed: {foreign.text(error) or 'no reason is known'}")
    named.requests, named.status = error.requests, error.status
    named.endpoint_code = error.endpoint_code
    return named


def _told(completion: Completion) -> dict[str, str | int]:
    told: dict[str, str | int | None] = {
        "gen_ai.usage.input_tokens": completion.prompt_tokens,
        "gen_ai.usage.output_tokens": completion.completion_tokens,
        "gen_ai.response.model": completion.answered_by or None,
        "envserve.finish_reason": completion.finish_reason,
        "envserve.model_requests": completion.requests,
    }
    return {name: value for name, value in told.items() if value is not None}
