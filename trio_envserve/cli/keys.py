"""The verb ``keys``: shows which keys a server knows."""

from __future__ import annotations

import dataclasses
from typing import Any

import click
import trio

from ..client import Client
from ..core.pages import KeyPage, KnownKey
from ..net import Transport
from .at_server import AtServer, namespace_option, reached, server_options
from .common import NO_SERVER, NOT_STARTED, OK, Result, Stop, epilog, put, run_verb, say
from .options import json_option
from .render import Table, show_tables

MOST = 1000
_COLUMNS = "key", "state", "waiters", "age", "left", "bytes", "namespace"


@click.command(cls=AtServer, epilog=epilog({NOT_STARTED: NO_SERVER}))
@click.argument("prefix", default="")
@namespace_option
@click.option("--all", "everywhere", is_flag=True, help="Show the keys of all namespaces.")
@click.option(
    "--most", type=click.IntRange(min=1), default=MOST, show_default=True, metavar="N",
    help="Show at most N keys.",
)  # fmt: skip
@click.option(
    "--first", type=click.IntRange(min=0), default=0, metavar="NUMBER",
    help="Begin with this generation: the `next` of the list before.",
)  # fmt: skip
@server_options
@json_option
def keys(
    prefix: str, namespace: str, everywhere: bool, most: int, first: int, address: str,
    wait_s: float, transport: Transport, as_json: bool,
) -> int:  # fmt: skip
    """Show the keys that a server knows, or those that begin with PREFIX.

    \b
    Examples:
      trio-envserve keys
      trio-envserve keys run-8/step-12/ --namespace nightly
      trio-envserve keys --all --json | jq -r '.keys[] | select(.state == "running").key'

    \b
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
    """  # noqa: D301  # click wants the character itself

    async def main(stop: Stop) -> Result:
        found: dict[str, Any] = {}
        with trio.CancelScope() as work:
            stop.on_first = work.cancel
            async with reached(address, transport, wait_s, "keys") as client:
                shown = None if everywhere else namespace
                known, page = await _list(client, shown, prefix, first, most)
                found = {
                    "address": address, "namespace": shown, "prefix": prefix,
                    "keys": [dataclasses.asdict(each) for each in known],
                    "next": page.next, "generations": page.generations,
                    "size_bytes": page.size_bytes,
                }  # fmt: skip
                if not as_json:
                    _show(known, page, shown, prefix)
        return Result(stop.interrupted_code if stop.asked.is_set() else OK, found)

    return run_verb(main, as_json=as_json)


async def _list(
    client: Client, namespace: str | None, prefix: str, first: int, most: int
) -> tuple[list[KnownKey], KeyPage]:
    """So many keys, and the last page with where the next list begins."""
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


def _show(known: list[KnownKey], page: KeyPage, namespace: str | None, prefix: str) -> None:
    """The keys for people."""
    where = "all namespaces" if namespace is None else f"namespace {namespace}"
    if known:
        width = len(_COLUMNS) - (namespace is not None)
        columns = _COLUMNS[:width]
        rows = [_row(each)[:width] for each in known]
        title = f"{len(known)} of {page.generations} keys in {where}"
        show_tables([Table(title, columns, rows, left=(0, 1, 6))], put)
    elif prefix and page.generations:
        put(f"no key of the {page.generations} in {where} begins with {prefix}")
    else:
        put(f"no keys are known in {where}")
        if namespace is not None:
            say("--all shows those of other namespaces")
    if page.next is not None:
        say(f"there are more: go on with --first {page.next}")


def _row(known: KnownKey) -> tuple[str, ...]:
    waiters = str(known.waiters)
    if known.lost:
        waiters = f"{waiters} and {known.lost} lost"
    left = "-" if known.left_s is None else duration(known.left_s)
    return (
        known.key, known.state, waiters, duration(known.age_s), left, str(known.size_bytes),
        known.namespace,
    )  # fmt: skip


def duration(seconds: float) -> str:
    """A time for people: ``7 s``, ``12 min`` or ``3.5 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
