"""The verb ``stack``: shows where the code of a rollout stands."""

from __future__ import annotations

from typing import Any

import click
import trio

from ..client import Client
from ..client.places import WAITS
from ..core.errors import ServerNotReady
from ..core.pages import RunningRollout
from ..evals.plain import plain_line
from ..net import Transport
from .at_server import AtServer, namespace_option, reached, server_options
from .common import (
    NO_SERVER,
    NOT_STARTED,
    OK,
    ROLLOUT_ERRORS,
    CommandError,
    Result,
    Stop,
    epilog,
    put,
    run_verb,
)
from .options import json_option

ANSWER_S = 10.0
"""How long the worker may take."""


@click.command(
    cls=AtServer,
    epilog=epilog(
        {NOT_STARTED: NO_SERVER, ROLLOUT_ERRORS: "nothing runs under KEY, or its worker is silent"}
    ),
)
@click.argument("key", metavar="KEY")
@namespace_option
@server_options
@json_option
def stack(
    key: str, namespace: str, address: str, wait_s: float, transport: Transport, as_json: bool
) -> int:
    """Show where the code of the rollout under KEY stands, at the server at ADDRESS.

    KEY may also be the id of a request, as `status --slow` shows it for what has no
    key. The text has the rollout's tasks of trio, its thread or its tasks of asyncio, and
    the place where the worker's event loop stands, if that is late. Nothing is disturbed,
    and the worker answers while its loop is blocked.

    \b
    Examples:
      trio-envserve status tcp://127.0.0.1:5555 --slow 5
      trio-envserve stack run-8/step-12/7 tcp://127.0.0.1:5555
    """  # noqa: D301  # click wants the character itself

    async def main(stop: Stop) -> Result:
        with trio.CancelScope() as work:
            stop.on_first = work.cancel
            async with reached(address, transport, wait_s, "stack") as client:
                row = await _find(client, key, namespace)
                text = None if row is None else await _ask(client, row)
                if row is None or text is None:
                    raise CommandError(
                        f"nothing runs under {key} in namespace {namespace}; `trio-envserve status "
                        f"{address} --slow 20` shows what runs",
                        ROLLOUT_ERRORS,
                    )
                if not as_json:
                    put(f"{key} has run on worker {row.worker} for {row.age_s:.1f} s")
                    if row.note.get(WAITS):
                        put(plain_line(f"it waits {row.note[WAITS]}"))
                    put("\n".join(plain_line(line) for line in text.splitlines()))
                about: dict[str, Any] = {
                    "key": row.key, "namespace": row.namespace, "request": row.request,
                    "worker": row.worker, "age_s": row.age_s, "note": dict(row.note),
                    "stack": text,
                }  # fmt: skip
                return Result(OK, about)
        return Result(stop.interrupted_code, {})

    return run_verb(main, as_json=as_json)


async def _find(client: Client, key: str, namespace: str) -> RunningRollout | None:
    """The rollout that runs under the key, or as this request."""
    first: int | None = 0
    while first is not None:
        page = await client.list_running(first=first)
        for row in page.running:
            if (row.namespace, row.key) == (namespace, key):
                return row
            if row.key is None and row.request == key:
                return row
        first = page.next
    return None


async def _ask(client: Client, row: RunningRollout) -> str | None:
    try:
        return await client.stack(row.number, timeout_s=ANSWER_S)
    except ServerNotReady as error:
        raise CommandError(
            f"worker {row.worker} does not say where it stands: it is stopped, or is no worker "
            f"of this package ({error})", ROLLOUT_ERRORS,
        ) from None  # fmt: skip
