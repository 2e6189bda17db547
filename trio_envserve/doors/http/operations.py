"""Everything that may be asked of the door, in one table: it is read by this, refused by this, and
documented by this (``GET /v1/openapi.json``)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

from ...client.options import DEFAULT_NAMESPACE
from ...core.status import RunningRollout
from ...core.terms import Verdict
from ...near import did_you_mean
from .bodies import CBOR, JSON, LINES, PROBLEM
from .problems import KINDS, Problem

Schema = Mapping[str, Any]

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_WHOLE: Final = re.compile(r"[0-9]{1,18}")
SECONDS: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_MOST_QUERY: Final = 8


class BodyField(NamedTuple):
    """One field of a body."""

    schema: Schema
    meaning: str
    required: bool = False


class Parameter(NamedTuple):
    """One parameter of a query, of a path, or a header."""

    name: str
    where: str
    meaning: str
    schema: Schema


class Operation(NamedTuple):
    """One method of a path."""

    summary: str
    answers: Mapping[str, Schema]
    """The forms of its answer, by media type."""
    fields: Mapping[str, BodyField] | None = None
    """Fields of its body; None: it has none."""
    parameters: tuple[Parameter, ...] = ()
    pending: bool = False
    """Whether 202 may be the answer."""
    row: bool = False
    """Whether the body may have other fields; it is JSON then."""

    def read_query(self, query: bytes) -> dict[str, Any]:
        """The parameters of a query, with the defaults of those that are not there.  Problem for
        one that nobody knows: a namespace that is spelt wrongly would be another one."""
        if self.fields is None and not self.parameters:
            return {}  # probes and pages: whoever asks may say more
        known = {each.name: each for each in self.parameters if each.where == "query"}
        try:
            pairs = parse_qsl(
                query.decode("ascii"), keep_blank_values=True, strict_parsing=bool(query),
                errors="strict", max_num_fields=_MOST_QUERY,
            )  # fmt: skip
        except ValueError:
            raise Problem("bad-request", "the query of the URL cannot be read") from None
        given = dict(pairs)
        if len(given) < len(pairs):
            raise Problem("bad-request", "a parameter of the query is there twice")
        for name in given:
            if name not in known:
                hint = _hint(name, known)
                raise Problem("bad-request", f"unknown parameter {name[:64]!r}{hint}")
        return {
            name: _value(name, given[name], each.schema) if name in given else _default(each)
            for name, each in known.items()
        }


def _default(parameter: Parameter) -> Any:
    if "default" not in parameter.schema:
        raise Problem("bad-request", f"the parameter {parameter.name!r} is missing")
    return parameter.schema["default"]


def _value(name: str, text: str, schema: Schema) -> Any:
    """The value of a parameter.  Problem if it is none."""
    if "enum" in schema:
        if text not in schema["enum"]:
            raise Problem("bad-request", f"{name} is {' or '.join(schema['enum'])}")
        return text
    if schema["type"] == "integer":
        if not _WHOLE.fullmatch(text):
            raise Problem("bad-request", f"{name} is a whole number")
        return int(text)
    if schema["type"] == "number":
        if not SECONDS.fullmatch(text):
            raise Problem("bad-request", f"{name} is a number of seconds, as in: ?{name}=30")
        return float(text)
    return checked_text(name, text)


def checked_text(what: str, text: str) -> str:
    """A key, or another text that stands in a URL.  Problem if it is none."""
    if not text:
        raise Problem("bad-request", f"the {what} is empty")
    if _CONTROL.search(text):
        raise Problem("bad-request", f"a {what} has no control characters")
    return text


# -- bodies --------------------------------------------------------------------

_OPTIONS: Final[Mapping[str, BodyField]] = {
    "model": BodyField(
        {"type": "string", "default": "oracle"},
        "oracle, random, or an endpoint that the server knows.",
    ),
    "model_name": BodyField({"type": "string", "default": ""}, "The name of the model there."),
    "sampling_args": BodyField({"type": ["object", "null"]}, "What the model is asked with."),
    "roles": BodyField(
        {"type": ["object", "null"], "additionalProperties": {"type": "string"}},
        "Endpoints of further models, by the roles in which the environment asks them.",
    ),
    "max_retries": BodyField(
        {"type": "integer", "minimum": 0, "default": 0},
        "How often the worker repeats a rollout that failed, inside the one execution.",
    ),
    "state_columns": BodyField(
        {"type": "array", "items": {"type": "string"}},
        "Which columns of the state to send back.",
    ),
    "rerun": BodyField(
        {"type": ["boolean", "null"]},
        "Consent to a further execution after the worker's proven death; null: as the "
        "environment declares.",
    ),
    "max_executions": BodyField(
        {"type": ["integer", "null"], "minimum": 1}, "The most executions, whatever happens."
    ),
    "timeout_s": BodyField(
        {"type": ["number", "null"], "exclusiveMinimum": 0},
        "How long the answer may take, and how long the server may run it; null: as long as "
        "the caller stays.",
    ),
    "execution_s": BodyField(
        {"type": ["number", "null"], "exclusiveMinimum": 0},
        "How long one execution may last, from its dispatch; null: as long as the server lets "
        "any.",
    ),
    "grace_s": BodyField(
        {"type": ["number", "null"], "exclusiveMinimum": 0},
        "How long after timeout_s or execution_s a rollout that is late may still give what it "
        "has; null: its limits end it.",
    ),
    "working_s": BodyField(
        {"type": ["number", "null"], "exclusiveMinimum": 0},
        "How long one execution may last, less its waiting for the model's endpoint; null: there "
        "is no such limit.",
    ),
}  # fmt: skip

ROLLOUT: Final[Mapping[str, BodyField]] = {
    "input": BodyField({}, "What the environment wants: any value.", required=True),
    "kind": BodyField(
        {"enum": ["rollout", "group", "rescore"], "default": "rollout"},
        "group: the input is a list, whose items are scored together. rescore: it is {input, "
        "value}, those of an earlier rollout, and the value is scored anew.",
    ),
    **_OPTIONS,
}
"""The body of ``POST /v1/rollouts``."""

BATCH: Final[Mapping[str, BodyField]] = {
    "inputs": BodyField({"type": "array"}, "One rollout is run for each.", required=True),
    "in_flight": BodyField(
        {"type": "integer", "minimum": 1, "default": 64}, "The most that are under way at once."
    ),
    **_OPTIONS,
}
"""The body of ``POST /v1/batches``."""


RUN: Final[Mapping[str, BodyField]] = {
    "responses_create_params": BodyField(
        {"type": "object"}, "What the model is asked, as OpenAI's Responses API has it: its "
        "tools, tool_choice, temperature, top_p, max_output_tokens and reasoning.effort go to "
        "the model, its input and instructions to environments that are classes.",
    ),
    "_ng_rollout_id": BodyField(
        {"type": ["string", "null"], "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]*$"},
        "Names the rollout for good.",
    ),
    "_ng_task_index": BodyField({}, "The number of the task."),
    "_ng_rollout_index": BodyField({}, "The number of the rollout among those of its task."),
    "_ng_attempt_index": BodyField({}, "Counts the attempts: another one is another rollout."),
    "_rowidx": BodyField({}, "The number of the row in its step, as NeMo RL has it."),
}  # fmt: skip
"""The body of ``POST /run``, which may have any others."""


def check_fields(body: object, fields: Mapping[str, BodyField]) -> dict[str, Any]:
    """The body, if it has these fields only; else Problem, which names the field."""
    if not isinstance(body, dict):
        raise Problem("bad-request", f"the body is a mapping of fields, not {_name_of(body)}")
    for name in body:
        if name not in fields:
            hint = _hint(str(name), fields)
            raise Problem("bad-request", f"unknown field {str(name)[:64]!r}{hint}")
    for name, field in fields.items():
        if field.required and name not in body:
            raise Problem("bad-request", f"the field {name!r} is missing")
    return body


_ELSEWHERE: Final[Mapping[str, str]] = {
    "key": 'a key is the header Idempotency-Key: "KEY", or stands in the path',
    "namespace": "a namespace stands in the URL: ?namespace=NAME",
    "inputs": "many inputs go to POST /v1/batches",
    "input": "one input goes to POST /v1/rollouts",
}
"""Fields and parameters that stand elsewhere, for whoever asks for them."""


def _hint(name: str, known: Mapping[str, object]) -> str:
    """The next step after a name that is not known, as the end of a sentence."""
    if name in _ELSEWHERE:
        return f": {_ELSEWHERE[name]}"
    return did_you_mean(name, known) or f" (known: {', '.join(known)})"


def _name_of(value: object) -> str:
    names = {list: "a list", str: "text", int: "a number", float: "a number", type(None): "null"}
    return names.get(type(value), "another value")


# -- parameters -----------------------------------------------------------------

_TEXT: Final = {"type": "string"}
_WHOLE_NUMBER: Final = {"type": "integer"}
_KEY_HEADER: Final = Parameter(
    "Idempotency-Key", "header", "The key, in double quotes. Asking again under it runs nothing "
    "a second time; the outcome is retained for an hour (the server's retention_s) after the "
    "last one that waited has it. Keys are kept in memory: they end with the server.",
    {**_TEXT, "pattern": '^"([ !#-\\[\\]-~]|\\\\["\\\\])+"$'},
)  # fmt: skip
_NAMESPACE: Final = Parameter(
    "namespace", "query", "Whose keys they are.", {**_TEXT, "default": DEFAULT_NAMESPACE}
)
_PREFER: Final = Parameter(
    "Prefer", "header", "respond-async: with a key, answer 202 at once, or, with wait=SECONDS, "
    "after so long, if there is no outcome yet.", _TEXT,
)  # fmt: skip
_KEY: Final = Parameter("key", "path", "The key, percent-encoded.", _TEXT)
_WAIT: Final = Parameter(
    "wait", "query", "How many seconds to wait for an outcome.",
    {"type": "number", "minimum": 0, "default": 0},
)  # fmt: skip
_KIND: Final = Parameter(
    "kind", "query", "As what to show it.",
    {**_TEXT, "enum": ["rollout", "group"], "default": "rollout"},
)  # fmt: skip
_SORT: Final = Parameter(
    "sort", "query", "The oldest first.", {**_TEXT, "enum": ["age"], "default": "age"}
)
_FIRST: Final = Parameter(
    "first", "query", "From the execution with this number on: next of the page before.",
    {**_WHOLE_NUMBER, "minimum": 0, "default": 0},
)  # fmt: skip
_NUMBER: Final = Parameter(
    "number", "query", "Of the execution, as in GET /v1/running.", {**_WHOLE_NUMBER, "minimum": 0}
)

# -- answers --------------------------------------------------------------------

_PROBLEM_REF: Final = {"$ref": "#/components/schemas/Problem"}
_TRUTH: Final = {"type": "boolean"}
_MAYBE_NUMBER: Final = {"type": ["number", "null"]}


def _object(description: str = "", /, **properties: Schema) -> Schema:
    found: Schema = {"type": "object", "properties": properties}
    return {**found, "description": description} if description else found


def _of(schema: Schema, description: str) -> Schema:
    return {**schema, "description": description}


_ABOUT: Final[Mapping[str, Schema]] = {
    "worker": _TEXT, "executions": _WHOLE_NUMBER, "duration_s": _MAYBE_NUMBER,
    "took_s": {"type": "number"},
}  # fmt: skip
_LINE: Final = _object(
    "A value or a problem. Of a batch one a line, in order of finishing, each with the index of "
    "its input.", index=_WHOLE_NUMBER, value={}, problem=_PROBLEM_REF, **_ABOUT,
)  # fmt: skip
_OUTCOME: Final = _object(
    "The value of a rollout, or the members of a group, in order.",
    value={}, members={"type": "array", "items": _LINE}, **_ABOUT,
)  # fmt: skip
_ENDED: Final = _object(
    known=_of(_TRUTH, "Whether there was anything under the key."),
    started=_of(_TRUTH, "False: it had never been started, and never will be."),
)
_PENDING: Final = _object(status={"const": "pending"}, location=_TEXT)
_RUN_ANSWER: Final = {
    **_object(
        "The row, and over it what the environment returned. A row that failed is one only if the "
        "door was told so.",
        response={"type": "object"},
        reward=_of(_MAYBE_NUMBER, "Null of a row that failed."),
        not_heeded=_of(
            {"type": "array", "items": _TEXT}, "Fields of the row that nobody heeded."
        ),
        _ng_failure_class=_of(_TEXT, "The code of a failure."),
        _ng_failure_terminal=_TRUTH, mask_sample=_TRUTH,
        problem=_of({"type": "object"}, "The problem of a failure."),
    ),
    "required": ["response", "reward"],
}  # fmt: skip
_TYPES: Final[Mapping[Any, Any]] = {
    "int": "integer", "float": "number", "str": "string", "str | None": ["string", "null"],
    "int | None": ["integer", "null"], "Mapping[str, Plain]": "object", "Note": "object",
}  # fmt: skip
"""JSON's types of the annotations of a record's fields, as they are written."""
_ROLLOUT: Final = _object(
    **{each.name: {"type": _TYPES[each.type]} for each in dataclasses.fields(RunningRollout)}
)
_RUNNING: Final = _object(
    "At most 100 executions that run, the oldest first.",
    running={"type": "array", "items": _ROLLOUT},
    next={"type": ["integer", "null"], "description": "Null on the last page."},
    total=_of(_WHOLE_NUMBER, "How many run in all."),
    typical_s=_of(_MAYBE_NUMBER, "The p50 of how long the last ones took."),
)
_STATUS: Final = _object(status=_TEXT)

# -- paths ----------------------------------------------------------------------

KEY_PATH: Final = "/v1/rollouts/{key}"

PATHS: Final[Mapping[str, Mapping[str, Operation]]] = {
    "/v1/rollouts": {"POST": Operation(
        "Run a rollout, or a group, and wait for its outcome.", {JSON: _OUTCOME, CBOR: _OUTCOME},
        ROLLOUT, (_KEY_HEADER, _NAMESPACE, _PREFER), pending=True,
    )},
    KEY_PATH: {
        "GET": Operation(
            "The outcome of what was asked under a key. Starts nothing; 404 if nothing is known.",
            {JSON: _OUTCOME, CBOR: _OUTCOME}, None, (_KEY, _NAMESPACE, _WAIT, _KIND),
            pending=True,
        ),
        "DELETE": Operation(
            "Cancel what runs under a key, and drop its outcome. The next ask is new work.",
            {JSON: _ENDED}, None, (_KEY, _NAMESPACE),
        ),
    },
    "/v1/batches": {"POST": Operation(
        "Run a rollout for each input; the answer is a line for each, as they finish.",
        {LINES: _LINE}, BATCH, (_KEY_HEADER, _NAMESPACE),
    )},
    "/run": {"POST": Operation(
        "Run a row as NeMo Gym has it. The row is its own key: sent again to the letter, it "
        "starts nothing. Hanging up cancels nothing.", {JSON: _RUN_ANSWER}, RUN, row=True,
    )},
    "/v1/running": {"GET": Operation(
        "What runs, the oldest first: ages, notes, and where blocked loops stand.",
        {JSON: _RUNNING}, None, (_SORT, _FIRST),
    )},
    "/v1/stack": {"GET": Operation(
        "Where the code of an execution stands, for people; null if it does not run.",
        {JSON: _object(stack={"type": ["string", "null"]})}, None, (_NUMBER,),
    )},
    "/v1/events": {"GET": Operation(
        "What the live page shows: server-sent events, one a second, each a whole view in "
        "JSON. Its fields may change with any version.", {"text/event-stream": _TEXT},
    )},
    "/": {"GET": Operation("The live page.", {"text/html": _TEXT})},
    "/v1/openapi.json": {"GET": Operation("This document.", {JSON: {"type": "object"}})},
    "/metrics": {"GET": Operation(
        "What the server and this door count, for Prometheus. Needs the extra metrics.",
        {"text/plain": _TEXT, "application/openmetrics-text": _TEXT},
    )},
    "/livez": {"GET": Operation("Whether the process answers.", {JSON: _STATUS})},
    "/readyz": {"GET": Operation("Whether a worker is ready.", {JSON: _STATUS})},
}  # fmt: skip
"""All that there is.  What a path or method is not in here is refused."""


# -- the document ---------------------------------------------------------------


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
        found["parameters"] = [
            {
                "name": each.name, "in": each.where,
                "required": each.where != "header" and "default" not in each.schema,
                "description": each.meaning, "schema": each.schema,
            }
            for each in operation.parameters
        ]  # fmt: skip
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


def _problem() -> Schema:
    codes = "; ".join(f"{code} ({kind.status}): {kind.title}" for code, kind in KINDS.items())
    return {
        **_object(
            type=_TEXT, title=_TEXT, status=_WHOLE_NUMBER, detail=_TEXT, code=_of(_TEXT, codes),
            verdict={"enum": [verdict.value for verdict in Verdict]},
            ran=_of({"type": ["boolean", "null"]}, "null: it may have run"),
            fault=_TEXT, mask=_TRUTH, again=_TRUTH, advice=_TEXT, worker=_TEXT,
            executions=_WHOLE_NUMBER, duration_s={"type": "number"},
            retry_after_s=_of(
                {"type": "number"}, "When what the environment needs may be there again, where it "
                "says so; Retry-After has it, too, in whole seconds.",
            ),
            exception=_TEXT, traceback=_TEXT,
        ),
        "required": ["type", "title", "status", "detail", "code", "verdict", "ran", "advice"],
    }  # fmt: skip
