"""What a model is, for environments and for authors of new models.

Theory of operation
-------------------
A :class:`Model` runs on the trio loop of its process and serves any number of
calls at once; cancelling the calling scope cancels the call.  Environments
that run elsewhere (in a thread, on an asyncio loop) get a stand-in with the same
methods, which carries the call over to the trio loop: see
:class:`BlockingModel` and ``worker/backends.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from ..core.errors import EnvServeError

Messages: TypeAlias = Sequence[Mapping[str, str]]
"""A conversation, oldest first; each message has ``role`` and ``content``."""


class ModelError(EnvServeError):
    """A model could not answer.  For an environment this is a failed rollout."""


@dataclasses.dataclass(frozen=True, slots=True)
class Completion:
    """One answer.  A token count is None if the model does not report it."""

    text: str
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class Model(Protocol):
    """A client of one model endpoint."""

    async def complete(
        self,
        messages: Messages,
        *,
        name: str,
        sampling_args: Mapping[str, Any],
        reference: str | None = None,
    ) -> Completion:
        """The model's next message in the conversation.

        ``name`` is the model's name at its endpoint.  ``reference`` is the
        environment's right answer: the offline models use it, and a model that is
        measured never sees it.  Raises :class:`ModelError`.
        """
        ...

    async def aclose(self) -> None:
        """Close the connections.  Called once, when no call is under way."""
        ...


@runtime_checkable
class BlockingModel(Protocol):
    """What the model of a rollout in a thread offers in addition."""

    def complete_sync(
        self,
        messages: Messages,
        *,
        name: str,
        sampling_args: Mapping[str, Any],
        reference: str | None = None,
    ) -> Completion:
        """As :meth:`Model.complete`, and blocks the calling thread."""
        ...
