"""Models: what answers the messages of an environment.

``interface`` says what a model is, ``offline`` has the two that need nothing
(``oracle``, ``random``), and ``registry`` turns endpoint strings into clients.
"""

from __future__ import annotations

from .interface import BlockingModel, Completion, Messages, Model, ModelError
from .registry import ModelFactory, Models, open_models

__all__ = [
    "BlockingModel",
    "Completion",
    "Messages",
    "Model",
    "ModelError",
    "ModelFactory",
    "Models",
    "open_models",
]
