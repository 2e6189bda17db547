"""Further models of a rollout, by the roles in which it asks them.

A model in a role is found when it is first asked, on the trio loop: clients belong to the loop, and
an environment in a thread asks from there.  Its failure says which role and which endpoint failed.
A judge whose context is full is a model that cannot be asked: the policy has not filled its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NoReturn, Unpack, final

from .. import foreign, tracing
from ..core.errors import ConfigError
from ..models.interface import (
    Asking,
    AskingRollout,
    BrokenNumbers,
    Completion,
    Messages,
    ModelAborted,
    ModelError,
    RolloutModel,
)
from ..models.registry import Models
from .traced import TracedModel


@final
class RoleModel:
    """The model in one role of one attempt of a rollout."""

    def __init__(
        self, role: str, roles: Mapping[str, str], models: Models, asker: AskingRollout,
        trace: tracing.Trace,
    ) -> None:  # fmt: skip
        self._role = role
        self._roles = roles
        self._models = models
        self._asker = dataclasses.replace(asker, model=f"the {role}")
        self._trace = trace

    async def complete(self, messages: Messages, **how: Unpack[Asking]) -> Completion:
        """The model's answer.  Raises :class:`ModelError`, which names role and endpoint, and
        :class:`ConfigError` if no model has the role."""
        endpoint, model = self._models.in_role(self._role, self._roles)
        if self._trace is not tracing.NO_TRACE:
            model = TracedModel(model, self._trace, endpoint)
        if isinstance(model, RolloutModel):
            model = model.for_rollout(self._asker)
        try:
            return await model.complete(messages, **how)
        except ModelError as error:
            raise _named(error, f"the {self._role} (endpoint {endpoint!r})") from error

    async def aclose(self) -> None:
        """Nothing: the worker owns the model."""


def _named(error: ModelError, who: str) -> ModelError:
    kinds = (kind for kind in (ModelAborted, BrokenNumbers) if isinstance(error, kind))
    named = next(kinds, ModelError)(f"{who} failed: {foreign.text(error) or 'no reason is known'}")
    named.requests, named.status = error.requests, error.status
    named.endpoint_code = error.endpoint_code
    return named


@final
class NoPolicy:
    """The model of a rollout that is only scored."""

    async def complete(self, messages: Messages, **how: Unpack[Asking]) -> NoReturn:
        """Raises :class:`ConfigError`."""
        raise ConfigError(
            "rescore() must not ask the model that is measured; for another one, name its role: "
            'rollout.ask(messages, endpoint="judge")'
        )

    async def aclose(self) -> None:
        """Nothing to give back."""
