"""The verbs ``journal list``, ``show``, ``export``, ``check``, ``compact`` and ``adopt``: a
server's journal, without that server."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from ..client import Outcome
from ..client.options import DEFAULT_NAMESPACE
from ..core import error_records, messages, values
from ..core.errors import ProtocolError, error_from_info
from ..core.limits import KeyLimits, WireLimits
from ..core.terms import Body, RequestId, Status
from ..core.values import DecodingError
from ..json_values import jsonable
from ..options import argument, option
from ..pages.tables import records_table
from ..server.journal import tools
from ..server.journal.reading import JournalContents, told
from ..server.journal.tools import Kept, KeptResource
from .common import AT_ONCE, NOT_STARTED, OK, Result
from .key import record_of
from .render import put, say
from .verbs import VerbOptions, verb

_COLUMNS = "namespace", "state", "executions", "bytes", "key"
"""The key is the last one: a long one makes no other row longer."""
_RESOURCE_COLUMNS = "name", "kind", "state", "age_s", "destroy", "request"
_REFUSED = {NOT_STARTED: "the journal is in use, damaged, or from elsewhere; the line says which"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfJournal(VerbOptions):
    """The options of verbs about a journal."""

    folder: Path = argument("The journal.", metavar="DIR", make=Path)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfKeptKeys(OfJournal):
    """The options of verbs about the keys in a journal."""

    namespace: str = option(
        DEFAULT_NAMESPACE, "The namespace of the keys.", metavar="NAME", common=True
    )

    def found(self, *, everywhere: bool = False) -> tuple[JournalContents, list[Kept]]:
        """The journal's contents, and its keys of the namespace, or all."""
        found = tools.look(self.folder)
        if found.problems:
            say(f"damaged: {told(found.problems)}")
        mine = self.namespace.encode()
        return found, [
            each for each in tools.kept(found) if everywhere or each.left.opened.namespace == mine
        ]


# -- looking, also beside the server ----------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportKeys(OfKeptKeys):
    """The options of ``journal export``."""

    everywhere: bool = option(False, "Show the keys of all namespaces.", flag="--all", common=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListKept(ExportKeys):
    """The options of ``journal list``."""

    prefix: str = argument("The beginning of the keys.", "", metavar="[PREFIX]")


@verb(ListKept, _REFUSED, name="list")
def list_kept(asked: ListKept) -> Result:
    """Show the keys in the journal DIR, or those that begin with PREFIX.

    Without PREFIX it shows the resources that are not gone, of all rollouts, too. It may be used
    beside the server.

    Example:
      trio-envserve journal list runs run-8/
    """
    found, keys = asked.found(everywhere=asked.everywhere)
    rows = [each for each in map(_row, keys) if each["key"].startswith(asked.prefix)]
    title = f"{len(rows)} key{'s' * (len(rows) != 1)} in {asked.folder}"
    tables = [records_table(title, rows, _COLUMNS, left=["key", "state", "namespace"])]
    resources = [] if asked.prefix else list(map(_resource_row, tools.kept_resources(found)))
    if resources:
        title = f"{len(resources)} resource{'s' * (len(resources) != 1)}"
        left = [name for name in _RESOURCE_COLUMNS if name != "age_s"]
        tables.append(records_table(title, resources, _RESOURCE_COLUMNS, left=left))
    summary = {
        "folder": str(asked.folder), "keys": rows, "resources": resources,
        "problems": found.problems,
    }  # fmt: skip
    return Result(OK, summary, tables)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShowKey(OfKeptKeys):
    """The options of ``journal show``."""

    key: str = argument("The key.")


@verb(ShowKey, {**_REFUSED, AT_ONCE: "nothing is known under KEY"})
def show(asked: ShowKey) -> Result:
    """Show a key in the journal DIR, with its input and its outcome.

    It may be used beside the server.

    Example:
      trio-envserve journal show runs run-8/step-12/7
    """
    found, keys = asked.found()
    for each in keys:
        if each.left.opened.key == asked.key.encode():
            record = _whole(each)
            text = json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False)
            return Result(OK, record, [text])
    say(f"error: no key {asked.key!r} in namespace {asked.namespace!r}")
    return Result(AT_ONCE, {"key": asked.key, "problems": found.problems})


@verb(ExportKeys, _REFUSED)
def export(asked: ExportKeys) -> Result:
    """Print what `journal show` has of all keys in the journal DIR, one object a line.

    It may be used beside the server.

    Example:
      trio-envserve journal export runs --all > runs.jsonl
    """
    found, keys = asked.found(everywhere=asked.everywhere)
    for each in keys:
        if not put(json.dumps(_whole(each), allow_nan=False)):
            break
    return Result(OK, {"exported": len(keys), "problems": found.problems})


# -- mending, without the server --------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckJournal(OfJournal):
    """The options of ``journal check``."""

    repair: bool = option(
        False, "Keep what can be proven. The rest is put aside, and what is lost is said.",
        common=True,
    )  # fmt: skip


@verb(CheckJournal, {**_REFUSED, AT_ONCE: "not all is as it was saved"})
def check(asked: CheckJournal) -> Result:
    """Say whether all in the journal DIR is as it was saved; with --repair mend it.

    Example:
      trio-envserve journal check runs --repair
    """
    problems = tools.check(asked.folder)
    summary: dict[str, Any] = {"folder": str(asked.folder), "problems": problems}
    if not problems:
        return Result(OK, summary, [f"{asked.folder} is whole"])
    lines = list(problems)
    if not asked.repair:
        say(f"keep what can be proven with: trio-envserve journal check {asked.folder} --repair")
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


@verb(OfJournal, _REFUSED)
def compact(asked: OfJournal) -> Result:
    """Give back the room of what was forgotten in the journal DIR.

    Example:
      trio-envserve journal compact runs
    """
    before, after = tools.compact(asked.folder, KeyLimits().command_s)
    summary = {"folder": str(asked.folder), "before_bytes": before, "after_bytes": after}
    return Result(OK, summary, [f"{before} bytes before, {after} after"])


@verb(OfJournal, _REFUSED)
def adopt(asked: OfJournal) -> Result:
    """Take over the journal DIR, which was copied here or comes from another machine.

    Only you can know that nothing else uses it, and that what it had started has ended.

    Example:
      trio-envserve journal adopt runs
    """
    times = tools.adopt(asked.folder)
    line = f"{asked.folder} belongs to this machine and folder now"
    return Result(OK, {"folder": str(asked.folder), "adopted": times}, [line])


# -- records ----------------------------------------------------------------------------


def _row(each: Kept) -> dict[str, Any]:
    opened = each.left.opened
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


def _whole(each: Kept) -> dict[str, Any]:
    """A key with its input and its outcome, as far as they can be read."""
    made = _row(each) | {"input": _value(each.left.opened.body)}
    if each.left.frames is not None:
        header, payload = each.left.frames
        made["outcome"] = _outcome(header, payload, each.executions)
    return made


def _outcome(header: Body, payload: Body, executions: int) -> dict[str, Any]:
    try:
        outcome = messages.decode(bytes(header), most_bytes=WireLimits().header_bytes)
        assert isinstance(outcome, messages.Outcome)
        about: dict[str, Any] = {
            "worker": outcome.worker, "duration_s": outcome.duration_s, "executions": executions
        }  # fmt: skip
        if outcome.status == Status.RESULT:
            return record_of(Outcome(value=values.decode(bytes(payload)), **about))
        error = error_from_info(error_records.decode(bytes(payload)))
        return record_of(Outcome(error=error, **about))
    except (ProtocolError, DecodingError, AssertionError) as error:
        return {"ok": None, "unreadable": str(error)}


def _value(body: Body) -> Any:
    try:
        return jsonable(values.decode(bytes(body)))
    except DecodingError as error:
        return {"unreadable": str(error)}


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
