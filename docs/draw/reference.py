"""The reference: public names with their parameters, types, defaults and docstrings.

Theory of operation
-------------------
Everything is read from the code.  A parameter's sentence stands in the section ``Args:`` of
its function's docstring (ruff sees to it that none is missing there), that of a field in the
string below it.  Names are looked up by :data:`SECTIONS`; one without a sentence is an error.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import importlib
import inspect
import itertools
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from trio_envserve.evals.records import FIELDS, RolloutResult
from trio_envserve.options import options_of

SECTIONS: Mapping[str, str] = {
    "serve": """
        open_server serve logs.LogSetup otlp.OtlpSetup Server ServerOptions ServerCurve
        ClientRight open_host JoinedHost ServerStats CacheStats HostStats PastHost PermitStats
        ResourceStats WorkerDeath WorkerRange WorkerStats""",
    "ask": """
        open_client Client open_client_asyncio AsyncioClient PlainClient ClientCurve KeyPair
        keep_freed_memory CallOptions Outcome Outcomes AsyncioOutcomes PlainOutcomes KeyEnded
        KeyPage RunningPage RunningRollout KnownKey ClientCounters Arrays ServerHealth Health
        ServerStatus StatusRecord ClosingRecord ClosingStage""",
    "environments": """
        Environment Rollout RolloutNotes Note Late SavedTurn SaveRefused Permit
        ProcessBlock RolloutProcess BlockingProcess CompletedProcess ProcessError
        ProcessNotStarted ProcessFailed ProcessTimeout Resource ResourceError
        EnvironmentUnavailable RolloutCancelled apart ApartError ApartTimeout ApartOutOfMemory
        ApartDied Sandboxed Sandbox SandboxBlock SandboxUnavailable SandboxDied
        Model Completion ToolCall ModelUsage Message Messages image_part TokenIds
        Logprobs ModelError ModelAborted BrokenNumbers ContextFull
        NoReference""",
    "errors": """
        EnvServeError CallError ErrorInfo Verdict Ending Fault DidNotRun NotEncodable TooLarge
        Conflict KeyConflict RequestRefused NeverStarted ServerUnreachable RanAndFailed
        RolloutFailed DeadlineExceeded ExecutionLimit OutcomeNotEncodable OutcomeNotDecodable
        OutcomeTooLarge MayHaveRun WorkerLost InterpreterHeld ServerLost UnknownKey
        NotDurable NoAnswer Abandoned ExecutionCancelled ConfigError EnvironmentBroken
        ServerStartError ServerNotReady ServerNotClosed ProtocolError EncodingError
        DecodingError""",
    "limits": "ServerLimits ClientLimits WireLimits KeyLimits Network Transport",
    "responses": "envs.responses.response_of",
    "verifiers": """
        doors.verifiers.open_verifiers_door doors.verifiers.VerifiersDoor
        doors.verifiers.VerifiersLimits""",
    "http": """
        doors.http.open_http_door doors.http.HttpDoor doors.opening.OpenDoor
        doors.http.HttpLimits""",
    "retrylab": """
        retrylab.Actor retrylab.Choice retrylab.Ask retrylab.System
        retrylab.Bounds retrylab.Rule retrylab.Counted retrylab.Bag
        retrylab.Fault retrylab.Event retrylab.Judge
        retrylab.AtMostOnce retrylab.OneTrueAnswer retrylab.OneHolder
        retrylab.NoLostAcknowledgement retrylab.judge_log retrylab.read_log
        retrylab.Violation retrylab.run retrylab.Run retrylab.target.BaseRun
        retrylab.Plan retrylab.sweep retrylab.explore retrylab.Explored
        retrylab.search retrylab.check retrylab.Failure retrylab.save_failure retrylab.load_failure
        retrylab.replay retrylab.BrokenSystem""",
}
"""Names in each section, below ``trio_envserve``."""

PACKAGE = "trio_envserve"
LIMITS = re.compile(r"(Server|Client|Wire|Key|Http|Verifiers)Limits")
"""Classes whose fields have a page of their own."""
SAME_AS: Mapping[str, str] = {
    "PlainClient": "open_client",
    "PlainClient.run_many": "Client.run_many",
    "open_client_asyncio": "open_client",
}
"""Names that repeat the parameters of another, and that other, which has the sentences."""
INTERNAL = (
    "ServerStats.of", "StatusRecord.of", "KeyPage.of", "RunningPage.of", "Outcome.failed",
    "Outcome.members", "RolloutNotes.add", "ModelUsage.answered", "ModelUsage.refused",
    "Plan.without", "Plan.with_rates", "Plan.to_data", "Plan.from_data", "Plan.calm",
    "Run.describe", "BaseRun.describe", "Explored.to_data", "Failure.to_data",
    "AtMostOnce.see", "OneTrueAnswer.see", "OneHolder.see",
    "NoLostAcknowledgement.see", "OneTrueAnswer.rest", "NoLostAcknowledgement.rest",
    "JoinedHost.check_hopeless", "KeyPair.secret_bytes",
    "ClientCurve.server_bytes",
)  # fmt: skip
"""Members that are for other modules of the package only."""


COLUMNS = ("type", "default", "meaning")
"""Columns of a table, after the name."""


class _Part(NamedTuple):
    """A parameter or a field."""

    name: str
    type: str
    default: str
    """Default as code; empty if there is none."""
    meaning: str
    """A paragraph of markdown."""


def names(section: str) -> list[str]:
    """Names in a section, below the package."""
    return SECTIONS[section].split()


def drawn(section: str) -> str:
    """One section of the reference."""
    return "\n\n".join(_entry(name, section) for name in names(section))


def _look_up(name: str) -> Any:
    owner, _, attribute = f"{PACKAGE}.{name}".rpartition(".")
    return getattr(importlib.import_module(owner), attribute)


def _entry(name: str, section: str) -> str:
    found = _look_up(name)
    short = name.rpartition(".")[2]
    if inspect.isfunction(found):
        usage = f"`{_call(found, f'{PACKAGE}.{name}', typed=False)}`"
        table = _table("parameter", _parameters(found, short), section)
        return _joined(f"### `{short}`", usage, _doc(found, section), table)
    if not inspect.isclass(found):
        value, doc = _alias(short, found)
        return _joined(f"### `{short}`", f"`{value}`", _markdown(doc, section))
    bases = [base.__name__ for base in found.__bases__ if _is_public(base)]
    derived = f"Derives from {_linked(bases[0], section)}." if bases else ""
    made = ""
    if "__init__" in vars(found) and (short in SAME_AS or _arguments(found)):
        made = f"`{short}({_signature(found.__init__)})`"
        made = _joined(
            made, _table("parameter", _parameters(found.__init__, short, found), section)
        )
    table = _fields_table(found, short, section)
    members = _members(found, short, section)
    return _joined(f"### `{short}`", _doc(found, section), derived, made, table, *members)


def _is_public(cls: type) -> bool:
    return cls.__module__.startswith(PACKAGE) and not cls.__name__.startswith("_")


def _joined(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


# -- functions ------------------------------------------------------------------


def _call(function: Any, name: str, *, typed: bool) -> str:
    """Call as a program writes it, and the type of its result."""
    plain = inspect.unwrap(function)
    signature = inspect.signature(function)
    gives = str(signature.return_annotation)
    before = ""
    if plain is not function and (
        inspect.isasyncgenfunction(plain) or inspect.isgeneratorfunction(plain)
    ):
        before = "async with " if inspect.isasyncgenfunction(plain) else "with "
        inner = re.fullmatch(r"\w+\[(.*?)(?:, None(?:, None)?)?\]", gives)
        gives = inner[1] if inner else gives
    elif inspect.iscoroutinefunction(plain):
        before = "await "
    arrow = "" if gives in ("None", "<class 'inspect._empty'>") else f" -> {gives}"
    return f"{before}{name}({_signature(function, typed=typed)}){arrow}"


def _signature(function: Any, *, typed: bool = False) -> str:
    shown, star = [], False
    for each in inspect.signature(function).parameters.values():
        if each.name == "self":
            continue
        if each.kind is each.KEYWORD_ONLY and not star:
            shown.append("*")
            star = True
        star = star or each.kind is each.VAR_POSITIONAL
        text = _stars(each)
        if typed:
            text += f": {each.annotation}" if each.annotation is not each.empty else ""
            text += f" = {each.default!r}" if each.default is not each.empty else ""
        shown.append(text)
    return ", ".join(shown)


def _stars(each: inspect.Parameter) -> str:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return next((text for kind, text in stars.items() if kind is each.kind), "") + each.name


def _parameters(function: Any, of: str, documented: Any = None) -> list[_Part]:
    meanings = _meanings(of) if of in SAME_AS else _arguments(documented or function)
    parts = []
    for each in inspect.signature(function).parameters.values():
        if each.name == "self":
            continue
        default = "" if each.default is each.empty else _value(each.default)
        annotation = "" if each.annotation is each.empty else str(each.annotation)
        name = _stars(each)
        parts.append(_Part(name, annotation, default, _meaning(meanings, name, of)))
    return parts


def _meaning(meanings: Mapping[str, str], name: str, of: str) -> str:
    if not meanings.get(name):
        raise LookupError(f"the docstring of {of} has no sentence for {name}")
    return " ".join(meanings[name].split())


def _meanings(of: str) -> dict[str, str]:
    """The sentences for something that repeats the parameters of something else."""
    name, _, method = SAME_AS[of].partition(".")
    found = _look_up(name)
    return _arguments(getattr(found, method) if method else found)


def _value(default: Any) -> str:
    return getattr(default, "__name__", None) or repr(default)


def _arguments(documented: Any) -> dict[str, str]:
    """The sentences of the parameters, by name."""
    record = vars(documented).get("record", documented)
    options = options_of(record) if dataclasses.is_dataclass(record) else {}
    helps = {name: each.help for name, each in options.items()}
    found = re.search(
        r"^Args:\n((?:    .*\n?|\n)*)", inspect.getdoc(documented) or "", re.MULTILINE
    )
    if found is None:
        return helps
    entries = re.findall(
        r"^(\*{0,2}\w+): (.*(?:\n(?: +.*|$))*)", textwrap.dedent(found[1]), re.MULTILINE
    )
    return {name: " ".join(text.split()) for name, text in entries} | helps


# -- classes ----------------------------------------------------------------------


def _fields_table(cls: type, short: str, section: str) -> str:
    if LIMITS.fullmatch(short):
        page = {"HttpLimits": "http", "VerifiersLimits": "verifiers-door"}.get(short)
        where = f"{page}.md#bounds" if page else "limits.md"
        return f"Its fields are [in a table of their own]({where})."
    if issubclass(cls, BaseException):
        return _error_fields(cls, short, section)
    if dataclasses.is_dataclass(cls) and options_of(cls):
        return ""  # its fields are the parameters of a function: the docstring says of which
    words = _attribute_docs(cls)
    if issubclass(cls, dict) and not words:
        return ""  # a repetition of parameters: the docstring says of what
    if issubclass(cls, enum.Enum):
        members = [
            _Part(f"{short}.{each.name}", "", repr(each.value), words.get(each.name, ""))
            for each in cls
        ]
        head = ("value", "meaning") if any(part.meaning for part in members) else ("value",)
        return _table("member", members, section, head)
    parts = [
        _Part(name, kind, default, _meaning(words, name, short))
        for name, (kind, default) in _fields(cls).items()
    ]
    return _table("field", parts, section)


def result_fields() -> str:
    """The fields of the record of a rollout, for the page on evaluations."""
    words = _attribute_docs(RolloutResult)
    parts = [_Part(name, "", "", _meaning(words, kept, name)) for name, (kept, _) in FIELDS.items()]
    parts.append(_Part("input", "", "", "The input that was asked."))
    parts.append(_Part("value", "", "", "The value that the environment returned."))
    return _table("field", parts, "ask", ("meaning",))


def _error_fields(cls: type[BaseException], short: str, section: str) -> str:
    """Code of an error, and the fields that it does not have from its base."""
    code = getattr(cls, "code", "")
    words = _strings_below(_body(cls))
    parts = [
        _Part(name, kind, default, _meaning(words, name, short))
        for name, (kind, default) in _fields(cls).items()
        if name in words and name != "code"
    ]
    said = f"Its `code` is `{code}`." if code else ""
    return _joined(said, _table("field", parts, section))


def _fields(cls: type) -> dict[str, tuple[str, str]]:
    """Type and default of each public field."""
    found: dict[str, tuple[str, str]] = {}
    for base in reversed(cls.__mro__):
        if not base.__module__.startswith(PACKAGE):
            continue
        for node in _body(base):
            match node:
                case ast.AnnAssign(target=ast.Name(id=name), annotation=kind, value=value):
                    shown = "" if value is None else ast.unparse(value)
                    found[name] = (ast.unparse(kind).strip("'\""), shown)
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=constant)):
                    found[name] = (type(constant).__name__, repr(constant))
    for field in dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ():
        type_, shown = found[field.name]
        if not shown.startswith("dataclasses.") and "stat" not in field.metadata:
            continue
        if field.default_factory is not dataclasses.MISSING:
            shown = f"{_value(field.default_factory)}()"
        else:
            shown = "" if field.default is dataclasses.MISSING else _value(field.default)
        found[field.name] = (type_, shown)
    return {
        name: (type_, "" if default.startswith("_") else default)
        for name, (type_, default) in found.items()
        if not name.startswith("_") and not type_.startswith(("ClassVar", "Final"))
    }


def _members(cls: type, short: str, section: str) -> Iterator[str]:
    """Methods and properties, with their parameters."""
    for name, found in vars(cls).items():
        path = f"{short}.{name}"
        if (name.startswith("_") and name != "__call__") or path in INTERNAL:
            continue
        if isinstance(found, property):
            if found.__doc__:
                gives = inspect.signature(found.fget or len).return_annotation
                yield _item(f"{name}: {gives}", _doc(found, section))
            continue
        member = getattr(found, "__func__", found)
        if not inspect.isfunction(member) or not member.__doc__ or name in _annotated(cls):
            continue
        of_class = member is not found
        bound = found.__get__(None, cls) if of_class else member
        shown = _call(bound, f"{short}.{name}" if of_class else name, typed=True)
        told = ""
        if not re.match(r"See (:\w+:)?`|Like ``", member.__doc__):
            parts = _parameters(bound, path)
            told = "\n".join(f"- `{part.name}`: {_roles(part.meaning, section)}" for part in parts)
        yield _item(shown, _joined(_doc(member, section), told))


def _annotated(cls: type) -> dict[str, Any]:
    found: dict[str, Any] = vars(cls).get("__annotations__", {})
    return found


def _item(shown: str, text: str) -> str:
    return f"- `{shown}`\n\n{textwrap.indent(text, '  ')}"


# -- sources ----------------------------------------------------------------------


def _body(cls: type) -> list[ast.stmt]:
    """The statements of a class."""
    return _statements(f"{cls.__module__}.{cls.__qualname__}")


@functools.cache
def _statements(path: str) -> list[ast.stmt]:
    module, _, name = path.rpartition(".")
    body = ast.parse(inspect.getsource(importlib.import_module(module))).body
    return next(node.body for node in body if isinstance(node, ast.ClassDef) and node.name == name)


def _strings_below(body: list[ast.stmt]) -> dict[str, str]:
    """The strings below assignments, by name."""
    found = {}
    for node, below in itertools.pairwise(body):
        target = getattr(node, "target", None) or (getattr(node, "targets", None) or [None])[0]
        match target, below:
            case ast.Name(id=name), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = inspect.cleandoc(text)
    return found


def _attribute_docs(cls: type) -> dict[str, str]:
    """The sentences of a class's attributes, inherited ones included."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith(PACKAGE):
            found |= _strings_below(_body(base))
    for field in dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ():
        if "stat" in field.metadata:
            found[field.name] = field.metadata["stat"].meaning
    return found


def _alias(name: str, found: Any) -> tuple[str, str]:
    """A type alias as its module writes it, and the string below it."""
    for module in list(sys.modules.values()):
        if module.__name__.startswith(PACKAGE) and vars(module).get(name) is found:
            body = ast.parse(inspect.getsource(module)).body
            for node in body:
                match node:
                    case (
                        ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value)
                        | ast.Assign(targets=[ast.Name(id=target)], value=value)
                    ) if target == name:
                        return ast.unparse(value).strip("'\""), _strings_below(body).get(name, "")
    raise LookupError(name)


# -- markdown ---------------------------------------------------------------------


def _doc(documented: Any, section: str) -> str:
    """A docstring without its arguments."""
    doc = inspect.cleandoc(documented.__doc__ or "")
    doc = re.sub(r"^Args:\n(?:    .*\n?|\n)*", "", doc, flags=re.MULTILINE)
    return _markdown(doc, section)


def _markdown(doc: str, section: str) -> str:
    """A docstring as markdown: paragraphs, lists and blocks of code."""
    parts, code = [], False
    for block in re.split(r"\n{2,}", doc.strip()):
        if code and block.startswith(" "):
            parts.append(f"```text\n{textwrap.dedent(block)}\n```")
            continue
        code = block.endswith("::")
        items = re.split(r"\n(?=- )", block.removesuffix(":") if code else block)
        parts.append("\n".join(" ".join(item.split()) for item in items))
    return _roles("\n\n".join(parts), section)


def _roles(text: str, section: str) -> str:
    """Roles of Sphinx as links and code."""
    text = re.sub(r"the page on (?:the )?(\w+)", _page_link, text)
    text = re.sub(r":\w+:`(~?)\.?([\w.]+)`", lambda found: _linked(found[2], section), text)
    return re.sub(r"``(.+?)``", r"`\1`", text)


def _page_link(found: re.Match[str]) -> str:
    return f"[{found[0]}]({found[1]}.md)"


def _linked(name: str, section: str) -> str:
    """A name as code, and a link if the page has it."""
    name = re.sub(rf"^{PACKAGE}\.(?:[a-z_]\w*\.)*(?=\w)", "", name)
    first = name.partition(".")[0]
    here = ("retrylab",) if section == "retrylab" else tuple(SECTIONS)
    known = {each.rpartition(".")[2] for one in here for each in names(one)}
    return f"[`{name}`](#{first.lower()})" if first in known else f"`{name.rpartition('.')[2]}`"


def _table(what: str, parts: list[_Part], section: str, head: tuple[str, ...] = COLUMNS) -> str:
    if not parts:
        return ""
    lines = [f"| {' | '.join((what, *head))} |", "|---" * (len(head) + 1) + "|"]
    for part in parts:
        cells = {
            "type": _code(part.type), "default": _code(part.default), "value": _code(part.default),
            "meaning": _roles(part.meaning, section),
        }  # fmt: skip
        row = [_code(part.name), *(cells[column] for column in head)]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |")
    return "\n".join(lines)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""
