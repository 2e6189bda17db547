"""The verbs ``key list``, ``attach``, ``cancel`` and ``forget``: the keys that a server knows."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import trio

from ..client import Client, KeyEnded, Outcome
from ..core.errors import CallError, ConfigError, NoAnswer, RanAndFailed, UnknownKey, WorkerLost
from ..core.status import KeyPage, KnownKey
from ..json_values import jsonable
from ..options import argument, option
from ..pages.tables import records_table
from .at_server import OfKeys, reached, tell_health
from .common import (
    NO_OUTCOME,
    NO_SERVER,
    NOT_STARTED,
    OK,
    ROLLOUT_ERRORS,
    CommandError,
    Result,
    StopRequest,
)
from .render import put, say
from .verbs import verb

ANSWER_S = 30.0
"""Longest time for the server's answer about one key, in seconds."""
_COLUMNS = "namespace", "state", "waiters", "lost", "age_s", "left_s", "size_bytes", "key"
"""The key is the last one: a long one makes no other row longer."""
_NOT_DONE = {NOT_STARTED: NO_SERVER, ROLLOUT_ERRORS: "the server did not do it; the line says why"}


def _key(value: str) -> str:
    if value.startswith(("tcp://", "ipc://")):
        raise ConfigError(f"{value} is an address, and no key: give it with --address")
    return value


def _keys(flag: str, texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(map(_key, texts))


# -- list -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListKeys(OfKeys):
    """The options of ``key list``."""

    prefix: str = argument("The beginning of the keys.", "", metavar="[PREFIX]", make=_key)
    everywhere: bool = option(False, "Show the keys of all namespaces.", flag="--all", common=True)
    most: int = option(1000, "Show at most N keys.", least=1, common=True)
    first: int = option(
        0, "Begin with this generation: the `next` of the list before.", metavar="NUMBER", least=0
    )


@verb(ListKeys, {NOT_STARTED: NO_SERVER}, name="list")
async def list_keys(asked: ListKeys, stop: StopRequest) -> Result:
    """Show the keys that a server knows, or those that begin with PREFIX.

    Examples:
      trio-envserve key list
      trio-envserve key list run-8/step-12/ --namespace nightly
      trio-envserve key list --all --json | jq -r '.keys[] | select(.state == "running").key'

    The state of a key is
      held       an execution of earlier work under it has not ended
      waiting    it waits for a worker
      running    it runs
      completed  its outcome is there, and retained
      closed     it was cancelled or forgotten, and its execution has not ended

    The keys come in the order in which they were first asked for. The age counts from
    then; `left` is the time until the key is given up or forgotten, while nobody
    waits for it.

    With --json the object has the same fields in full, and `next`, which is null
    unless there are more keys than --most.
    """
    async with reached(asked, "keys") as client:
        shown = None if asked.everywhere else asked.namespace
        known, page = await _list(client, shown, asked.prefix, asked.first, asked.most)
    records = [dataclasses.asdict(each) for each in known]
    found = {
        "address": asked.address, "namespace": shown, "prefix": asked.prefix, "keys": records,
        "next": page.next, "generations": page.generations, "size_bytes": page.size_bytes,
    }  # fmt: skip
    where = "all namespaces" if shown is None else f"namespace {shown}"
    if not (records or asked.as_json) and shown is not None:
        say("--all shows those of other namespaces")
    if page.next is not None and not asked.as_json:
        say(f"there are more: go on with --first {page.next}")
    if records:
        columns = _COLUMNS[shown is not None :]
        title = f"{len(known)} of {page.generations} keys in {where}"
        left = [name for name in ("key", "state", "namespace") if name in columns]
        return Result(OK, found, [records_table(title, records, columns, left=left)])
    nothing = f"no keys are known in {where}"
    if asked.prefix and page.generations:
        nothing = f"no key of the {page.generations} in {where} begins with {asked.prefix}"
    return Result(OK, found, [nothing])


async def _list(
    client: Client, namespace: str | None, prefix: str, first: int, most: int
) -> tuple[list[KnownKey], KeyPage]:
    """Keys of a server, and the last page with where the next list begins."""
    known: list[KnownKey] = []
    while True:
        page = await client.list_keys(namespace, first=first)
        fitting = [each for each in page.keys if each.key.startswith(prefix)]
        known += fitting
        if len(known) > most:
            following = known[most].generation
            return known[:most], dataclasses.replace(page, next=following)
        if page.next is None:
            return known, page
        first = page.next


# -- attach -----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attach(OfKeys):
    """The options of ``key attach``."""

    key: str = argument("The key.", make=_key)
    timeout: float | None = option(
        None, "Give up after this long. The work goes on.", metavar="SECONDS", above=0, common=True
    )


@verb(
    Attach,
    {
        NOT_STARTED: NO_SERVER,
        ROLLOUT_ERRORS: "the outcome is an error, or nothing is known under KEY",
        NO_OUTCOME: "no outcome within --timeout",
    },
)
async def attach(asked: Attach, stop: StopRequest) -> Result:
    """Wait for the outcome of what was asked under KEY, and print it.

    Examples:
      trio-envserve key attach run-8/step-12/7
      trio-envserve key attach run-8/step-12/7 --timeout 60 --json

    It sends no input and starts nothing. Ctrl-C, --timeout and the end of this
    command leave the work alone: only callers that sent the input count.

    The value is printed as JSON. With --json the object has `ok`, `value` or `error`
    (with `code` and `verdict`), `worker`, `executions` and `duration_s`.
    """
    key, namespace, timeout_s = asked.key, asked.namespace, asked.timeout

    def left() -> Result:
        say("not waiting any more; the work goes on")
        return Result(stop.interrupted_code, {"key": key, "namespace": namespace})

    stop.so_far = left
    async with reached(asked, "attach") as client:
        outcome = await _wait(client, key, namespace, timeout_s)
    record = {"key": key, "namespace": namespace, **record_of(outcome)}
    if outcome.error is not None:
        _tell(outcome.error, asked.address, namespace)
        late = isinstance(outcome.error, NoAnswer) and timeout_s is not None
        return Result(NO_OUTCOME if late else ROLLOUT_ERRORS, record)
    text = json.dumps(record["value"], indent=2, ensure_ascii=False, allow_nan=False)
    return Result(OK, record, [text])


async def _wait(client: Client, key: str, namespace: str, timeout_s: float | None) -> Outcome:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tell_health, client, math.inf if timeout_s is None else timeout_s)
        outcome = await client.attach(key, namespace=namespace, timeout_s=timeout_s)
        nursery.cancel_scope.cancel()
    return outcome


def record_of(outcome: Outcome) -> dict[str, Any]:
    """The outcome of a key, as it is printed."""
    known: dict[str, Any] = {"ok": outcome.ok}
    if outcome.error is None:
        known["value"] = jsonable(outcome.value)
    else:
        error = outcome.error
        known["error"] = {
            "type": type(error).__name__,
            "code": error.code or (error.info.code if error.info else ""),
            "message": str(error), "verdict": error.verdict.value,
            "exception": error.info.type if error.info else "",
            "traceback": error.info.traceback if error.info else "",
        }  # fmt: skip
    return known | {
        "worker": outcome.worker, "executions": outcome.executions,
        "duration_s": outcome.duration_s,
    }  # fmt: skip


def _tell(error: Exception, address: str, namespace: str) -> None:
    """Tell the user the error, and the next step."""
    say(f"error: {error}")
    if isinstance(error, UnknownKey):
        say(
            f"`trio-envserve key list --all --address {address}` shows what is known there. Keys "
            "end with their server, and outcomes with their retention; asking again runs it anew"
        )
    elif isinstance(error, NoAnswer):
        say("attach again to wait longer; `trio-envserve key list` shows how far it is")
    elif isinstance(error, (RanAndFailed, WorkerLost)):
        say(
            "asking again under the key gives the same error while it is retained; "
            "`trio-envserve key forget` drops it"
        )


# -- cancel and forget ------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class EndKeys(OfKeys):
    """The options of ``key cancel`` and ``key forget``."""

    keys: tuple[str, ...] = argument("The keys.", metavar="KEY...", parse=_keys)


@verb(EndKeys, _NOT_DONE)
async def cancel(asked: EndKeys, stop: StopRequest) -> Result:
    """Cancel the work of each KEY, whoever waits for it.

    Callers that wait are told that it was cancelled. What has its outcome keeps it, which is
    told; forget drops it. If nothing is known under a key, nothing is cancelled.

    Example:
      trio-envserve key cancel run-8/step-12/7
    """

    async def end(client: Client, key: str) -> KeyEnded:
        return await client.cancel_key(key, namespace=asked.namespace, timeout_s=ANSWER_S)

    unknown = "nothing is known under it"
    return await _each(end, asked, stop, "cancelled; it may have run", "cancelled", unknown)


@verb(EndKeys, _NOT_DONE)
async def forget(asked: EndKeys, stop: StopRequest) -> Result:
    """Drop each KEY and its outcome; what runs is cancelled first.

    The next request for the key starts new work.

    Example:
      trio-envserve key forget run-8/step-12/7 run-8/step-12/8
    """

    async def end(client: Client, key: str) -> KeyEnded:
        return await client.forget(key, namespace=asked.namespace, timeout_s=ANSWER_S)

    started = "forgotten; it had been started"  # whether it had ended is forgotten, too
    return await _each(end, asked, stop, started, "forgotten", "nothing was known under it")


async def _each(
    end: Callable[[Client, str], Awaitable[KeyEnded]],
    asked: EndKeys,
    stop: StopRequest,
    *words: str,
) -> Result:
    ended: list[dict[str, Any]] = []
    found = {"namespace": asked.namespace, "keys": ended}
    stop.so_far = lambda: Result(stop.interrupted_code, found)
    async with reached(asked, "end keys") as client:
        for key in asked.keys:
            try:
                done = await end(client, key)
            except CallError as error:
                raise CommandError(str(error), ROLLOUT_ERRORS) from None
            ended.append({"key": key, **dataclasses.asdict(done)})
            outcome = None
            if done.finished:
                outcome = await client.attach(key, namespace=asked.namespace, timeout_s=ANSWER_S)
                ended[-1]["outcome"] = record_of(outcome)
            if not asked.as_json:
                put(f"{key}: {_what(done, outcome, *words)}")
    return Result(OK, found)


def _what(
    ended: KeyEnded, outcome: Outcome | None, started: str, done: str, unknown: str
) -> str:  # fmt: skip
    if outcome is not None:
        what = "a result" if outcome.error is None else f"an error: {outcome.error}"
        return f"had finished before, and keeps its outcome, {what}"
    if not ended.known:
        return unknown
    return started if ended.started else f"{done}; it never ran"
