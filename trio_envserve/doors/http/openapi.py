"""The OpenAPI document, made from the tables that the door itself uses."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ...core.pages import RunningRollout
from ...core.terms import Verdict
from .bodies import CBOR, JSON, LINES, PROBLEM
from .fields import BATCH, ROLLOUT, RUN, Field, Schema
from .problems import KINDS


class Operation(NamedTuple):
    """One method of a path."""

    summary: str
    fields: Mapping[str, Field] | None
    """Of the body; None: it has none."""
    answers: Mapping[str, Schema]
    """By media type."""
    parameters: tuple[Mapping[str, Any], ...] = ()
    pending: bool = False
    """Whether 202 may be the answer."""
    row: bool = False
    """Whether the body may have other fields; it is JSON then."""


KEY_PATH: Final = "/v1/rollouts/{key}"


def _parameter(name: str, place: str, meaning: str, **schema: Any) -> Mapping[str, Any]:
    return {
        "name": name, "in": place, "required": place == "path", "description": meaning,
        "schema": {"type": "string", **schema},
    }  # fmt: skip


def _properties(record: Any) -> Schema:
    """An object with the fields of a record of plain data."""
    fields = {field.name: {"type": _TYPES[field.type]} for field in dataclasses.fields(record)}
    return {"type": "object", "properties": fields}


_TYPES: Final[Mapping[Any, Any]] = {
    "int": "integer", "float": "number", "str": "string", "str | None": ["string", "null"],
    "int | None": ["integer", "null"], "Mapping[str, Plain]": "object", "Note": "object",
}  # fmt: skip
"""Of annotations, as they are written."""

_KEY_HEADER: Final = _parameter(
    "Idempotency-Key", "header", "The key, in double quotes. Asking again under it runs nothing "
    "a second time; the outcome is retained for an hour (the server's retention_s) after the "
    "last one that waited has it. Keys are kept in memory: they end with the server.",
    pattern='^"([ !#-\\[\\]-~]|\\\\["\\\\])+"$',
)  # fmt: skip
_NAMESPACE: Final = _parameter("namespace", "query", "Whose keys they are.", default="default")
_PREFER: Final = _parameter(
    "Prefer", "header", "respond-async: with a key, answer 202 at once, or, with wait=SECONDS, "
    "after so long, if there is no outcome yet."
)  # fmt: skip
_KEY: Final = _parameter("key", "path", "The key, percent-encoded.")
_WAIT: Final = _parameter(
    "wait", "query", "How many seconds to wait for an outcome.", type="number", minimum=0,
    default=0,
)  # fmt: skip
_KIND: Final = _parameter(
    "kind", "query", "As what to show it.", enum=["rollout", "group"], default="rollout"
)


_SORT: Final = _parameter("sort", "query", "The oldest first.", enum=["age"], default="age")
_FIRST: Final = _parameter(
    "first", "query", "From the execution with this number on: next of the page before.",
    type="integer", minimum=0, default=0,
)  # fmt: skip

_NUMBER: Final = _parameter("number", "query", "Of the execution.", type="integer", minimum=0)

_ABOUT: Final = {
    "worker": {"type": "string"},
    "executions": {"type": "integer"},
    "duration_s": {"type": ["number", "null"]},
    "took_s": {"type": "number"},
}
_PROBLEM_REF: Final = {"$ref": "#/components/schemas/Problem"}
_LINE: Final = {
    "type": "object",
    "properties": {"index": {"type": "integer"}, "value": {}, "problem": _PROBLEM_REF, **_ABOUT},
    "description": "A value or a problem. Of a batch one a line, in order of finishing, each "
    "with the index of its input.",
}
_OUTCOME: Final = {
    "type": "object",
    "properties": {"value": {}, "members": {"type": "array", "items": _LINE}, **_ABOUT},
    "description": "The value of a rollout, or the members of a group, in order.",
}
_ENDED: Final = {
    "type": "object",
    "properties": {
        "known": {"type": "boolean", "description": "Whether there was anything under the key."},
        "started": {
            "type": "boolean",
            "description": "False: it had never been started, and never will be.",
        },
    },
}
_PENDING: Final = {
    "type": "object",
    "properties": {"status": {"const": "pending"}, "location": {"type": "string"}},
}
_RUN_ANSWER: Final = {
    "type": "object",
    "properties": {
        "response": {"type": "object"},
        "reward": {"type": ["number", "null"], "description": "Null of a row that failed."},
        "not_heeded": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Fields of the row that nobody heeded.",
        },
        "_ng_failure_class": {"type": "string", "description": "The code of a failure."},
        "_ng_failure_terminal": {"type": "boolean"},
        "mask_sample": {"type": "boolean"},
        "problem": {"type": "object", "description": "The problem of a failure."},
    },
    "required": ["response", "reward"],
    "description": "The row, and over it what the environment returned. A row that failed is one "
    "only if the door was told so.",
}
_RUNNING: Final = {
    "type": "object",
    "properties": {
        "running": {"type": "array", "items": _properties(RunningRollout)},
        "next": {"type": ["integer", "null"], "description": "Null on the last page."},
        "total": {"type": "integer", "description": "How many run in all."},
        "typical_s": {
            "type": ["number", "null"],
            "description": "The p50 of how long the last ones took.",
        },
    },
    "description": "At most 100 executions that run, the oldest first.",
}
_STATUS: Final = {"type": "object", "properties": {"status": {"type": "string"}}}

PATHS: Final[Mapping[str, Mapping[str, Operation]]] = {
    "/v1/rollouts": {
        "POST": Operation(
            "Run a rollout, or a group, and wait for its outcome.",
            ROLLOUT,
            {JSON: _OUTCOME, CBOR: _OUTCOME},
            (_KEY_HEADER, _NAMESPACE, _PREFER),
            pending=True,
        ),
    },
    KEY_PATH: {
        "GET": Operation(
            "The outcome of what was asked under a key. Starts nothing; 404 if nothing is known.",
            None,
            {JSON: _OUTCOME, CBOR: _OUTCOME},
            (_KEY, _NAMESPACE, _WAIT, _KIND),
            pending=True,
        ),
        "DELETE": Operation(
            "Cancel what runs under a key, and drop its outcome. The next ask is new work.",
            None,
            {JSON: _ENDED},
            (_KEY, _NAMESPACE),
        ),
    },
    "/v1/batches": {
        "POST": Operation(
            "Run a rollout for each input; the answer is a line for each, as they finish.",
            BATCH,
            {LINES: _LINE},
            (_KEY_HEADER, _NAMESPACE),
        ),
    },
    "/run": {
        "POST": Operation(
            "Run a row as NeMo Gym has it. The row is its own key: sent again to the letter, it "
            "starts nothing. Hanging up cancels nothing.",
            RUN,
            {JSON: _RUN_ANSWER},
            row=True,
        ),
    },
    "/v1/running": {
        "GET": Operation(
            "What runs, the oldest first: ages, notes, and where blocked loops stand.",
            None,
            {JSON: _RUNNING},
            (_SORT, _FIRST),
        ),
    },
    "/v1/stack": {
        "GET": Operation(
            "Where the code of an execution stands, for people; null if it does not run.",
            None,
            {JSON: {"type": "object", "properties": {"stack": {"type": ["string", "null"]}}}},
            (_NUMBER,),
        ),
    },
    "/v1/events": {
        "GET": Operation(
            "What the live page shows: server-sent events, one a second, each a whole view in "
            "JSON. Its fields may change with any version.",
            None,
            {"text/event-stream": {"type": "string"}},
        ),
    },
    "/": {"GET": Operation("The live page.", None, {"text/html": {"type": "string"}})},
    "/v1/openapi.json": {"GET": Operation("This document.", None, {JSON: {"type": "object"}})},
    "/metrics": {
        "GET": Operation(
            "What the server and this door count, for Prometheus. Needs the extra metrics.",
            None,
            {"text/plain": {"type": "string"}, "application/openmetrics-text": {"type": "string"}},
        )
    },
    "/livez": {"GET": Operation("Whether the process answers.", None, {JSON: _STATUS})},
    "/readyz": {"GET": Operation("Whether a worker is ready.", None, {JSON: _STATUS})},
}
"""All that there is.  What a path or method is not in here is refused."""


def document() -> dict[str, Any]:
    """The document, as OpenAPI 3.1 has it."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "trio_envserve", "version": "1"},
        "paths": {
            path: {method.lower(): _operation(found) for method, found in methods.items()}
            for path, methods in PATHS.items()
        },
        "components": {
            "schemas": {"Problem": _problem()},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(operation: Operation) -> dict[str, Any]:
    content = {media: {"schema": schema} for media, schema in operation.answers.items()}
    problem = {
        "description": "A problem.  Its status says whether anything ran; so does its verdict.",
        "content": {PROBLEM: {"schema": _PROBLEM_REF}},
    }
    found: dict[str, Any] = {
        "summary": operation.summary,
        "responses": {"200": {"description": "Done.", "content": content}, "default": problem},
    }
    if operation.parameters:
        found["parameters"] = list(operation.parameters)
    if operation.pending:
        found["responses"]["202"] = {
            "description": "There is no outcome yet. It will be at Location.",
            "headers": {"Location": {"schema": {"type": "string"}}},
            "content": {JSON: {"schema": _PENDING}},
        }
    if operation.fields is not None or operation.parameters:
        found["security"] = [{"token": []}]
    if operation.fields is not None:
        schema = {
            "type": "object",
            "properties": {
                name: {**field.schema, "description": field.meaning}
                for name, field in operation.fields.items()
            },
            "required": [name for name, field in operation.fields.items() if field.required],
            "additionalProperties": operation.row,
        }
        media = {JSON: {"schema": schema}, CBOR: {"schema": schema}}
        if operation.row:
            del media[CBOR]
        found["requestBody"] = {"required": True, "content": media}
    return found


def _problem() -> dict[str, Any]:
    codes = "; ".join(f"{code} ({kind.status}): {kind.title}" for code, kind in KINDS.items())
    return {
        "type": "object",
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "code": {"type": "string", "description": codes},
            "verdict": {"enum": [verdict.value for verdict in Verdict]},
            "ran": {"type": ["boolean", "null"], "description": "null: it may have run"},
            "advice": {"type": "string"},
            "worker": {"type": "string"},
            "executions": {"type": "integer"},
            "duration_s": {"type": "number"},
            "retry_after_s": {
                "type": "number",
                "description": "When what the environment needs may be there "
                "again, where it says so; Retry-After has it, too, in whole seconds.",
            },
            "exception": {"type": "string"},
            "traceback": {"type": "string"},
        },
        "required": ["type", "title", "status", "detail", "code", "verdict", "ran", "advice"],
    }
