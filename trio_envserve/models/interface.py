"""The interface of models, for environments and for authors of new models.

Theory of operation
-------------------
A :class:`Model` runs on the trio loop of its process and serves any number of
calls at once; cancelling the calling scope cancels the call.  Environments
that run elsewhere (in a thread, on an asyncio loop) get a stand-in with the same
methods, which carries the call over to the trio loop: see
:class:`BlockingModel` and ``worker/backends.py``.
"""

from __future__ import annotations

import array
import base64
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import (
    Any,
    NotRequired,
    Protocol,
    TypeAlias,
    TypedDict,
    Unpack,
    runtime_checkable,
)

from ..core.errors import EnvServeError
from .waits import EndpointWaits, Waits

Message: TypeAlias = Mapping[str, Any]
"""One message of a conversation, as OpenAI's chat completions have it: ``role``
(``system``, ``user``, ``assistant``, ``tool``) and ``content``, which is a string or a
list of parts (``{"type": "text", "text": ...}``, :func:`image_part`).  A message of the
model may have ``tool_calls`` (:attr:`Completion.message` makes it), and the answer to one
of them is a message with the role ``tool`` and the call's ``tool_call_id``."""

Messages: TypeAlias = Sequence[Message]
"""A conversation, oldest message first."""

TokenIds: TypeAlias = "array.array[int]"
"""Numbers of tokens (32 bits each)."""

Logprobs: TypeAlias = "array.array[float]"
"""Log-probabilities (32 bits each)."""

MISSING_LOGPROB = -9999.0
"""The number that vLLM and OpenAI write where they know none, or minus infinity."""


class ModelError(EnvServeError):
    """A model could not answer.  For an environment this is a failed rollout.

    The subclasses say why; an environment may catch them.
    """

    code = "model-unavailable"
    """Code of :data:`.endings.RAISED` with which a rollout ends that does not catch it."""

    requests = 0
    """Number of requests for this call that were sent to the endpoint."""
    status: int | None = None
    """The HTTP status of the endpoint's last answer, or the status in its error; None if
    there was none."""
    endpoint_code = ""
    """The endpoint's own code of the error, such as ``context_length_exceeded``."""


class ModelAborted(ModelError):
    """The endpoint cut its answer, or refused to go on: no known good reason to finish, or an
    error in the answer's place."""

    code = "model-aborted"


class BrokenNumbers(ModelError):
    """Sampled tokens have log-probabilities that are not finite, or other numbers that no
    trainer could use."""

    code = "model-broken-numbers"


class ContextFull(ModelError):
    """The conversation does not fit into the model's context any more."""

    code = "context-full"


class NoReference(ModelError):
    """The environment gave the model ``oracle`` nothing to answer with."""

    code = "rollout-failed"


@dataclasses.dataclass(frozen=True, slots=True)
class ToolCall:
    """The model asks for a tool."""

    id: str
    """Names this call among those of its message; no two have the same."""
    name: str
    """The name of the tool."""
    arguments: str
    """JSON text as the model wrote it, which may be anything: see :meth:`parsed`."""
    extra_content: Mapping[str, Any] | None = None
    """An object beside the call that its endpoint wants back (Gemini's signature of a
    thought)."""

    def parsed(self) -> dict[str, Any]:
        """The arguments.  Raises ``ValueError``, whose text is for the model, if they are
        not a JSON object."""
        try:
            arguments = json.loads(self.arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the arguments of {self.name} are not JSON: {error}") from None
        if not isinstance(arguments, dict):
            raise ValueError(f"the arguments of {self.name} must be a JSON object")
        return arguments

    @property
    def record(self) -> dict[str, Any]:
        """The call as an assistant's message has it."""
        function = {"name": self.name, "arguments": self.arguments}
        record: dict[str, Any] = {"id": self.id, "type": "function", "function": function}
        if self.extra_content is not None:
            record["extra_content"] = dict(self.extra_content)
        return record


@dataclasses.dataclass(frozen=True, slots=True)
class Completion:
    """One answer.  Fields that the model does not report are None.

    Token ids and log-probabilities are the endpoint's own, never found by tokenizing
    ``text`` again; ``logprobs`` has one number for each of ``response_ids``, where both
    are there.
    """

    text: str
    """Text of the answer; empty if it has none."""
    prompt_tokens: int | None = None
    """Tokens of the prompt."""
    completion_tokens: int | None = None
    """Tokens of the answer."""
    finish_reason: str | None = None
    """``stop``, ``length``, ``tool_calls``, or another word that means one of these."""
    tool_calls: tuple[ToolCall, ...] = ()
    """The tools that the model asks for."""
    reasoning: str = ""
    """The model's reasoning, if the endpoint keeps that apart from ``text``."""
    prompt_ids: TokenIds | None = None
    """Token ids of the prompt."""
    response_ids: TokenIds | None = None
    """Token ids of the answer."""
    logprobs: Logprobs | None = None
    """Log-probability of each of ``response_ids``."""
    weight_version: str | None = None
    """The version of the weights that answered."""
    requests: int = 1
    """Number of requests for this call that were sent to the endpoint; 1 if the first one was
    answered."""
    reasoning_fields: tuple[str, ...] = ("reasoning_content",)
    """The names under which the endpoint gave ``reasoning``."""
    null_content: bool = False
    """The endpoint gave no text, not even an empty one."""
    per_token: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    """Further fields that have one item for each of ``response_ids``, by name."""
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the endpoint's message that go into :attr:`message` as they came: thoughts in an
    endpoint's own form, a refusal, and ``content`` with parts that are no text."""
    version_starts: tuple[tuple[int, str], ...] = ()
    """The number of the first token of each version of the weights, and the version, if the
    endpoint says it."""
    answered_by: str = ""
    """The name of the model that answered, where it is another than was asked."""

    @property
    def message(self) -> dict[str, Any]:
        """The answer as the next message of the conversation, as it came: with its thoughts,
        of which the endpoint's ``keep`` decides how long they are sent."""
        no_text = self.null_content and bool(self.tool_calls)
        message: dict[str, Any] = {"role": "assistant", "content": None if no_text else self.text}
        if self.reasoning:
            message.update(dict.fromkeys(self.reasoning_fields, self.reasoning))
        message.update(self.more)
        if self.tool_calls:
            message["tool_calls"] = [call.record for call in self.tool_calls]
        return message


def image_part(data: bytes, media_type: str = "image/png") -> dict[str, Any]:
    """An image as a part of a message's ``content``.

    Args:
        data: The bytes of the file.
        media_type: Its type.
    """
    url = f"data:{media_type};base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


class Asking(TypedDict):
    """The arguments of :meth:`Model.complete` but the messages, for models of this package."""

    name: str
    sampling_args: Mapping[str, Any]
    reference: NotRequired[str | None]


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
        """The model's next message in the conversation.  Raises :class:`ModelError`.

        Args:
            messages: The conversation, oldest message first.
            name: The model's name at its endpoint.
            sampling_args: Fields of the request, ``tools`` among them.
            reference: The environment's right answer: the offline models use it, and a model that
                is measured never sees it.
        """
        ...

    async def aclose(self) -> None:
        """Close the connections.  Called once, when no call is under way."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class AskingRollout:
    """The rollout that asks a model."""

    rollout: str
    """Names the rollout: the request's id, and the number of a member of a group."""
    request: str
    member: int
    attempt: int
    waits: Waits
    model: str = "the model"
    """The model in that text: one in a role is ``the judge``."""
    permit: Callable[[str, int], AbstractAsyncContextManager[None]] | None = None
    """Returns a permit for one request to the endpoint of this name, of which so many are there
    over all workers; None where nothing hands out permits."""
    endpoint_waits: EndpointWaits = dataclasses.field(default_factory=EndpointWaits)
    """Counts how long it waits for its model's endpoint."""


class RolloutModel:
    """Base of models that want to know which rollout asks them."""

    async def complete_for(
        self, asker: AskingRollout, messages: Messages, **how: Unpack[Asking]
    ) -> Completion:
        """Like :meth:`Model.complete`, for one attempt of a rollout."""
        raise NotImplementedError

    def tell_waits(self) -> None:
        """Called with each beat of the worker: tell askers that wait how long they have."""


@runtime_checkable
class BlockingModel(Protocol):
    """The further methods of the model of a rollout in a thread."""

    def complete_sync(self, messages: Messages, **how: Unpack[Asking]) -> Completion:
        """Like :meth:`Model.complete`, but blocks the calling thread."""
        ...
