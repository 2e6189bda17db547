"""The verb ``journal``: shows and mends the journal of a server, without that server."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from ..client.options import DEFAULT_NAMESPACE
from ..core import error_records, messages, values
from ..core.errors import ConfigError, ProtocolError
from ..core.limits import KeyLimits, WireLimits
from ..core.terms import Body, RequestId, Status
from ..core.values import DecodingError
from ..json_values import jsonable
from ..options import argument, option
from ..server.journal import tools
from ..server.journal.reading import JournalContents, told
from ..server.journal.tools import Kept, KeptResource
from .common import AT_ONCE, NOT_STARTED, OK, Result, StopRequest
from .render import put, records_table, say
from .verbs import VerbOptions, verb

_COLUMNS = "key", "state", "executions", "bytes", "namespace"
_RESOURCE_COLUMNS = "name", "kind", "state", "age_s", "destroy", "request"
ACTIONS = "ls", "show", "export", "check", "compact", "adopt"


@dataclasses.dataclass(frozen=True, kw_only=True)
class JournalOptions(VerbOptions):
    """The options of ``journal``."""

    folder: Path = argument("The journal.", metavar="DIR", make=Path)
    action: str = argument("What to do.", choices=ACTIONS, metavar="|".join(ACTIONS))
    what: str = argument("A key, or the beginning of some.", "", metavar="[KEY]")
    namespace: str = option(
        DEFAULT_NAMESPACE, "The namespace of the keys.", metavar="NAME", common=True
    )
    everywhere: bool = option(False, "Show the keys of all namespaces.", flag="--all", common=True)
    repair: bool = option(
        False, "With check: keep what can be proven. The rest is put aside, and what is lost is "
        "said.", common=True,
    )  # fmt: skip

    def found(self) -> tuple[JournalContents, list[Kept]]:
        """The journal's contents, of the namespace."""
        found = tools.look(self.folder)
        if found.problems:
            say(f"damaged: {told(found.problems)}")
        mine = self.namespace.encode()
        return found, [
            each for each in tools.kept(found) if self.everywhere or each.opened.namespace == mine
        ]


@verb(
    JournalOptions,
    {
        AT_ONCE: "show: nothing is known under KEY; check: not all is as it was saved",
        NOT_STARTED: "the journal is in use, damaged, or from elsewhere; the line says which",
    },
)
async def journal(asked: JournalOptions, stop: StopRequest) -> Result:
    """Show or repair the journal in DIR (of serve --journal).

    Examples:
      trio-envserve journal runs ls run-8/
      trio-envserve journal runs show run-8/step-12/7
      trio-envserve journal runs export --all > runs.jsonl
      trio-envserve journal runs check --repair

    ls [PREFIX]  the keys, or those that begin with PREFIX; without PREFIX, also the
                 resources that are not gone, of all rollouts
    show KEY     one key, with its input and its outcome
    export       the same of all keys, one object a line
    check        whether all is as it was saved; exit code 1 if not
    compact      give back the room of what was forgotten
    adopt        take over a journal that was copied here, or comes from another machine.
                 Only you can know that nothing else uses it, and that what it had started
                 has ended

    ls, show and export may be used beside the server; the others refuse a journal that
    is in use.
    """
    if asked.repair and asked.action != "check":
        raise ConfigError("--repair belongs to check")
    if asked.what and asked.action not in ("ls", "show"):
        raise ConfigError(f"{asked.action} takes no KEY")
    if asked.action == "show" and not asked.what:
        raise ConfigError("show needs a KEY")
    do = _ACTIONS[asked.action]
    return await trio.to_thread.run_sync(do, asked, abandon_on_cancel=True)


def _list(asked: JournalOptions) -> Result:
    found, keys = asked.found()
    rows = [each for each in map(_row, keys) if each["key"].startswith(asked.what)]
    title = f"{len(rows)} key{'s' * (len(rows) != 1)} in {asked.folder}"
    tables = [records_table(title, rows, _COLUMNS, left=["key", "state", "namespace"])]
    resources = [] if asked.what else list(map(_resource_row, tools.kept_resources(found)))
    if resources:
        title = f"{len(resources)} resource{'s' * (len(resources) != 1)}"
        left = [name for name in _RESOURCE_COLUMNS if name != "age_s"]
        tables.append(records_table(title, resources, _RESOURCE_COLUMNS, left=left))
    summary = {
        "folder": str(asked.folder), "keys": rows, "resources": resources,
        "problems": found.problems,
    }  # fmt: skip
    return Result(OK, summary, tables)


def _show(asked: JournalOptions) -> Result:
    found, keys = asked.found()
    for each in keys:
        if each.opened.key == asked.what.encode():
            record = _row(each) | _bodies(each)
            text = json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False)
            return Result(OK, record, [text])
    say(f"error: no key {asked.what!r} in namespace {asked.namespace!r}")
    return Result(AT_ONCE, {"key": asked.what, "problems": found.problems})


def _export(asked: JournalOptions) -> Result:
    found, keys = asked.found()
    for each in keys:
        if not put(json.dumps(_row(each) | _bodies(each), allow_nan=False)):
            break
    return Result(OK, {"exported": len(keys), "problems": found.problems})


def _check(asked: JournalOptions) -> Result:
    problems = tools.check(asked.folder)
    summary: dict[str, Any] = {"folder": str(asked.folder), "problems": problems}
    if not problems:
        return Result(OK, summary, [f"{asked.folder} is whole"])
    lines = list(problems)
    if not asked.repair:
        say(f"keep what can be proven with: trio-envserve journal {asked.folder} check --repair")
        return Result(AT_ONCE, summary, ["\n".join(lines)])
    mended = tools.mend(asked.folder)
    lines += [f"{name}: it may have run; it is never run again" for name in mended.may_have_run]
    if mended.unknown:
        lines.append(f"{mended.unknown} keys have lost their names: an ask under them runs")
    lines += [f"resource {name}: it is destroyed, perhaps once more" for name in mended.resources]
    if mended.unknown_resources:
        lines.append(
            f"{mended.unknown_resources} resources have lost their names: nobody destroys them"
        )
    if mended.may_miss_keys:
        lines.append("there may be keys of which nothing is left: an ask under them runs")
        lines.append("there may be resources of which nothing is left: nobody destroys them")
    lines.append(f"{mended.kept} keys are whole; what was there is in {mended.aside}")
    summary["repaired"] = {
        "kept": mended.kept, "may_have_run": mended.may_have_run, "unknown": mended.unknown,
        "resources": mended.resources, "unknown_resources": mended.unknown_resources,
        "may_miss_keys": mended.may_miss_keys, "aside": mended.aside,
    }  # fmt: skip
    return Result(OK, summary, ["\n".join(lines)])


def _compact(asked: JournalOptions) -> Result:
    before, after = tools.compact(asked.folder, KeyLimits().command_s)
    summary = {"folder": str(asked.folder), "before_bytes": before, "after_bytes": after}
    return Result(OK, summary, [f"{before} bytes before, {after} after"])


def _adopt(asked: JournalOptions) -> Result:
    times = tools.adopt(asked.folder)
    line = f"{asked.folder} belongs to this machine and folder now"
    return Result(OK, {"folder": str(asked.folder), "adopted": times}, [line])


_ACTIONS: dict[str, Callable[[JournalOptions], Result]] = dict(
    zip(ACTIONS, (_list, _show, _export, _check, _compact, _adopt), strict=True)
)


def _row(each: Kept) -> dict[str, Any]:
    opened = each.opened
    return {
        "key": _text(opened.key), "namespace": _text(opened.namespace),
        "generation": opened.number, "state": each.state, "executions": each.executions,
        "allowance": opened.allowance + opened.earlier, "bytes": each.size_bytes,
        "opened_s": round(each.opened_s, 3), "body_is_lost": each.body_is_lost,
    }  # fmt: skip


def _resource_row(each: KeptResource) -> dict[str, Any]:
    opened = each.left.opened
    return {
        "name": opened.name, "kind": opened.kind, "state": each.state,
        "age_s": round(each.age_s, 3), "destroy": opened.destroy.replace("|", ", "),
        "request": str(RequestId(opened.account, opened.sequence)),
    }  # fmt: skip


def _bodies(each: Kept) -> dict[str, Any]:
    """The input and the outcome, as far as they can be read."""
    made: dict[str, Any] = {"input": _value(each.opened.body)}
    if each.completed is not None:
        made["outcome"] = _outcome(*each.completed.frames)
    return made


def _outcome(header: Body, payload: Body) -> dict[str, Any]:
    try:
        said = messages.decode(bytes(header), most_bytes=WireLimits().header_bytes)
        assert isinstance(said, messages.Outcome)
        known = {"worker": said.worker, "duration_s": said.duration_s}
        if said.status == Status.RESULT:
            return {"ok": True, "value": _value(payload), **known}
        error = error_records.decode(bytes(payload))
        about = {
            "code": error.code, "verdict": error.verdict.value, "message": error.message,
            "exception": error.type, "traceback": error.traceback,
        }  # fmt: skip
        return {"ok": False, "error": about, **known}
    except (ProtocolError, AssertionError) as error:
        return {"ok": None, "unreadable": str(error)}


def _value(body: Body) -> Any:
    try:
        return jsonable(values.decode(bytes(body)))
    except DecodingError as error:
        return {"unreadable": str(error)}


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
