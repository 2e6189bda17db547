"""Models: what answers the messages of an environment.

``interface`` says what a model is.  ``offline`` has the two that need no network
(``oracle``, ``random``), ``http`` the one behind an endpoint, with ``chat`` (what is sent
and read; ``tool_calls`` has those in streams), ``patience`` (what is sent again) and
``endpoints`` (where it is).  ``registry`` turns endpoint strings into clients.  ``tokens``
makes a trainer's record of a rollout's answers, and ``usage`` counts its calls.
"""

from __future__ import annotations

from .interface import (
    BlockingModel,
    BrokenNumbers,
    Completion,
    ContextFull,
    Message,
    Messages,
    Model,
    ModelAborted,
    ModelError,
    NoReference,
    ToolCall,
    image_part,
)
from .registry import ModelFactory, Models, open_models
from .usage import ModelUsage

__all__ = [
    "BlockingModel",
    "BrokenNumbers",
    "Completion",
    "ContextFull",
    "Message",
    "Messages",
    "Model",
    "ModelAborted",
    "ModelError",
    "ModelFactory",
    "ModelUsage",
    "Models",
    "NoReference",
    "ToolCall",
    "image_part",
    "open_models",
]
