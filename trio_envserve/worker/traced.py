"""Models whose calls have spans, below that of the execution.

The attributes are those of OpenTelemetry's conventions for generative models, and none of
them has what was asked or answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from .. import tracing
from ..models.interface import AskingRollout, Completion, Messages, Model, RolloutModel


@final
class TracedModel(RolloutModel):
    """The model of one execution.  Its calls are made on the trio loop, as any model's;
    what stands in for it in a thread is around it."""

    def __init__(self, model: Model, trace: tracing.Trace, endpoint: str) -> None:
        self._model = model
        self._trace = trace
        self._endpoint = endpoint

    def for_rollout(self, asker: AskingRollout) -> Model:
        """The model for one attempt of a rollout."""
        if not isinstance(self._model, RolloutModel):
            return self
        return TracedModel(self._model.for_rollout(asker), self._trace, self._endpoint)

    async def complete(
        self, messages: Messages, *, name: str, sampling_args: Mapping[str, Any],
        reference: str | None = None,
    ) -> Completion:  # fmt: skip
        """The model's answer, and a span for the call."""
        about = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": name,
            "envserve.endpoint": self._endpoint,
        }
        with self._trace.span(f"chat {name or self._endpoint}", about, "CLIENT") as span:
            completion = await self._model.complete(
                messages, name=name, sampling_args=sampling_args, reference=reference
            )
            if span is not None:
                span.tell(_told(completion))
            return completion

    async def aclose(self) -> None:
        """Nothing: the worker owns the model."""


def _told(completion: Completion) -> dict[str, str | int]:
    told: dict[str, str | int | None] = {
        "gen_ai.usage.input_tokens": completion.prompt_tokens,
        "gen_ai.usage.output_tokens": completion.completion_tokens,
        "gen_ai.response.model": completion.answered_by or None,
        "envserve.finish_reason": completion.finish_reason,
        "envserve.model_requests": completion.requests,
    }
    return {name: value for name, value in told.items() if value is not None}
