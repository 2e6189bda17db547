"""The tokens of a rollout's answers as plain data, which a save keeps for a later execution.

Each prompt usually begins with all tokens of the turn before it, so only the rest is kept.
"""

from __future__ import annotations

import array
from collections.abc import Iterable, Sequence
from typing import Any

from .interface import Completion


def plain_tokens(completions: Iterable[Completion]) -> list[dict[str, Any]]:
    """What :func:`~.tokens.segments` reads of these answers."""
    before = array.array("i")
    plain: list[dict[str, Any]] = []
    for each in completions:
        record: dict[str, Any] = {}
        if each.prompt_ids is not None and each.response_ids is not None:
            prompt, response = array.array("i", each.prompt_ids), each.response_ids
            shared = len(before) if prompt[: len(before)] == before else 0
            record = {
                "shared": shared,
                "prompt_ids": prompt[shared:].tobytes(),
                "response_ids": array.array("i", response).tobytes(),
                "logprobs": None
                if each.logprobs is None
                else array.array("f", each.logprobs).tobytes(),
                "weight_version": each.weight_version,
                "version_starts": [list(start) for start in each.version_starts],
                "per_token": {name: list(items) for name, items in each.per_token.items()},
            }
            before = prompt + array.array("i", response)
        plain.append(record)
    return plain


def completions_of(plain: Sequence[dict[str, Any]]) -> list[Completion]:
    """Answers with these tokens, and without a text."""
    before = array.array("i")
    completions = []
    for record in plain:
        if not record:
            completions.append(Completion(""))
            continue
        prompt, response = before[: record["shared"]], array.array("i")
        prompt.frombytes(record["prompt_ids"])
        response.frombytes(record["response_ids"])
        logprobs = None
        if record["logprobs"] is not None:
            logprobs = array.array("f")
            logprobs.frombytes(record["logprobs"])
        completions.append(
            Completion(
                "", prompt_ids=prompt, response_ids=response, logprobs=logprobs,
                weight_version=record["weight_version"],
                version_starts=tuple((first, name) for first, name in record["version_starts"]),
                per_token=record["per_token"],
            )
        )  # fmt: skip
        before = prompt + response
    return completions
