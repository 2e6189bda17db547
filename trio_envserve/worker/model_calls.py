"""Models for environment code that runs elsewhere than on the trio loop.

Models run on the trio loop.  Code elsewhere gets a stand-in, which passes each call to the carrier
of its execution (:mod:`.carriers`).
"""

from __future__ import annotations

from typing import Unpack, final

from .. import tracing
from ..carrier import Work, WorkCarrier
from ..models.interface import Asking, Completion, Messages, Model
from .carriers import TrioCarrier


def callable_from(model: Model, carrier: WorkCarrier) -> Model:
    """The model as code can call it that has this carrier."""
    return model if isinstance(carrier, TrioCarrier) else CarriedModel(model, carrier)


@final
class CarriedModel:
    """The model of a rollout of which code runs elsewhere than on the trio loop."""

    def __init__(self, model: Model, carrier: WorkCarrier) -> None:
        self._model = model
        self._carrier = carrier

    async def complete(self, messages: Messages, **how: Unpack[Asking]) -> Completion:
        """As ``Model.complete``, for code on a loop."""
        completion: Completion = await self._carrier.call(_bind(self._model, messages, how))
        return completion

    def complete_sync(self, messages: Messages, **how: Unpack[Asking]) -> Completion:
        """As ``Model.complete``, but blocks the thread.  Raises ``RolloutCancelled``, and
        ``TypeError`` on a loop."""
        completion: Completion = self._carrier.call_sync(_bind(self._model, messages, how))
        return completion

    async def aclose(self) -> None:
        """Nothing: the worker owns the model."""


def _bind(model: Model, messages: Messages, how: Asking) -> Work:
    span = tracing.here()

    async def work() -> Completion:
        return await model.complete(messages, **how)

    async def below() -> Completion:
        with tracing.below(span):
            return await work()

    return work if span is None else below
