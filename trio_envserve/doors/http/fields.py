"""The fields of a request's body, in one table: what is read, and what is documented."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from .problems import Problem

Schema = Mapping[str, Any]


class Field(NamedTuple):
    """One field of a body."""

    schema: Schema
    meaning: str
    required: bool = False


_OPTIONS: Final[Mapping[str, Field]] = {
    "model": Field(
        {"type": "string", "default": "oracle"},
        "oracle, random, or an endpoint that the server knows.",
    ),
    "model_name": Field({"type": "string", "default": ""}, "The name of the model there."),
    "sampling_args": Field({"type": ["object", "null"]}, "What the model is asked with."),
    "max_retries": Field(
        {"type": "integer", "minimum": 0, "default": 0},
        "How often the worker repeats a rollout that failed, inside the one execution.",
    ),
    "state_columns": Field(
        {"type": "array", "items": {"type": "string"}},
        "Which columns of the state to send back.",
    ),
    "rerun": Field(
        {"type": ["boolean", "null"]},
        "Consent to a further execution after the worker's proven death; null: as the "
        "environment declares.",
    ),
    "max_executions": Field(
        {"type": ["integer", "null"], "minimum": 1}, "The most executions, whatever happens."
    ),
    "timeout_s": Field(
        {"type": ["number", "null"], "exclusiveMinimum": 0},
        "How long the answer may take, and how long the server may run it; null: as long as "
        "the caller stays.",
    ),
    "execution_s": Field(
        {"type": ["number", "null"], "exclusiveMinimum": 0},
        "How long one execution may last, from its dispatch; null: as long as the server lets "
        "any.",
    ),
}  # fmt: skip

ROLLOUT: Final[Mapping[str, Field]] = {
    "input": Field({}, "What the environment wants: any value.", required=True),
    "kind": Field(
        {"enum": ["rollout", "group"], "default": "rollout"},
        "group: the input is a list, whose items are scored together.",
    ),
    **_OPTIONS,
}
"""The body of ``POST /v1/rollouts``."""

BATCH: Final[Mapping[str, Field]] = {
    "inputs": Field({"type": "array"}, "One rollout is run for each.", required=True),
    "in_flight": Field(
        {"type": "integer", "minimum": 1, "default": 64}, "The most that are under way at once."
    ),
    **_OPTIONS,
}
"""The body of ``POST /v1/batches``."""


RUN: Final[Mapping[str, Field]] = {
    "responses_create_params": Field(
        {"type": "object"}, "What the model is asked, as OpenAI's Responses API has it: its "
        "tools, tool_choice, temperature, top_p, max_output_tokens and reasoning.effort go to "
        "the model, its input and instructions to environments that are classes.",
    ),
    "_ng_rollout_id": Field(
        {"type": ["string", "null"], "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]*$"},
        "Names the rollout for good.",
    ),
    "_ng_task_index": Field({}, "The number of the task."),
    "_ng_rollout_index": Field({}, "The number of the rollout among those of its task."),
    "_ng_attempt_index": Field({}, "Counts the attempts: another one is another rollout."),
    "_rowidx": Field({}, "The number of the row in its step, as NeMo RL has it."),
}  # fmt: skip
"""The body of ``POST /run``, which may have any others."""


def check_fields(body: object, fields: Mapping[str, Field]) -> dict[str, Any]:
    """The body, if it has these fields only; else Problem, which names the field."""
    if not isinstance(body, dict):
        raise Problem("bad-request", f"the body is a mapping of fields, not {_name_of(body)}")
    for name in body:
        if name not in fields:
            known = ", ".join(fields)
            raise Problem("bad-request", f"unknown field {str(name)[:64]!r} (known: {known})")
    for name, field in fields.items():
        if field.required and name not in body:
            raise Problem("bad-request", f"the field {name!r} is missing")
    return body


def _name_of(value: object) -> str:
    names = {list: "a list", str: "text", int: "a number", float: "a number", type(None): "null"}
    return names.get(type(value), "another value")
