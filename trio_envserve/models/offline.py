"""Two models that need no network: one is always right, one always wrong.

Both use the reference that the environment passes along, so a test of an
environment has two sides: the oracle must score full marks, and garbage of the
same form must not.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
from typing import Unpack, final

import trio

from .interface import Asking, Completion, Messages, NoReference

_log = logging.getLogger("trio_envserve.models")

_DIGITS = "0123456789"
_WORDS = ("blue", "seven", "none", "left", "yes", "no", "up", "north")


class _Offline:
    """A model that needs no network."""

    async def complete(self, messages: Messages, **how: Unpack[Asking]) -> Completion:
        """See :meth:`.Model.complete`."""
        await trio.lowlevel.checkpoint()
        return Completion(self._answer(messages, how, how.get("reference")))

    def _answer(self, messages: Messages, how: Asking, reference: str | None) -> str:
        raise NotImplementedError

    async def aclose(self) -> None:
        """Nothing to give back."""
        await trio.lowlevel.checkpoint()


@final
class OracleModel(_Offline):
    """Answers with the environment's own reference.  Raises :class:`NoReference` if there is
    none."""

    def __init__(self) -> None:
        self._is_told = False

    def _answer(self, messages: Messages, how: Asking, reference: str | None) -> str:
        if reference is None:
            raise NoReference(
                "the model `oracle` answers with the environment's reference, and this task has "
                "none: write a method oracle(self) in a class of tools, rollout.ask(messages, "
                "reference=...) elsewhere; or name another model, such as "
                "--model http://HOST:PORT/v1"
            )
        if not self._is_told:
            self._is_told = True
            _log.info(
                "rollouts ask the model `oracle`, as calls without model= do: its answers are the "
                "environment's own, and right"
            )
        return reference


@final
class RandomModel(_Offline):
    """Answers with garbage of the reference's form, and never with the reference.

    The garbage depends on nothing but the conversation, the model's name, the
    reference and ``sampling_args["seed"]`` (default 0): the same call gets the
    same answer, in every process.
    """

    def _answer(self, messages: Messages, how: Asking, reference: str | None) -> str:
        asked = [sorted(message.items()) for message in messages]
        seed = how["sampling_args"].get("seed", 0)
        text = json.dumps([seed, how["name"], reference, asked], default=repr)
        # hash() differs from process to process, sha256 does not.
        rng = random.Random(hashlib.sha256(text.encode("utf-8", "replace")).digest())
        return _garbage(rng, reference)


def _garbage(rng: random.Random, reference: str | None) -> str:
    """The reference with each digit replaced by another one; a word if it has none."""
    if reference is None:
        return str(rng.randint(-99, 99))
    replaced = "".join(
        _DIGITS[(int(char) + rng.randint(1, 9)) % 10] if char in _DIGITS else char
        for char in reference
    )
    if replaced != reference:
        return replaced
    return rng.choice([word for word in _WORDS if word != reference.strip().lower()])
