"""The verb ``attach``: waits for the outcome of a key."""

from __future__ import annotations

import json
import math
from typing import Any

import click
import trio

from ..client import Client, Outcome
from ..core.errors import NoAnswer, RanAndFailed, UnknownKey, WorkerLost
from ..json_values import jsonable
from ..net import Transport
from .at_server import AtServer, namespace_option, reached, server_options
from .common import (
    NO_OUTCOME,
    NO_SERVER,
    NOT_STARTED,
    OK,
    ROLLOUT_ERRORS,
    Result,
    Stop,
    epilog,
    put,
    run_verb,
    say,
)
from .options import json_option
from .waiting import tell_health


@click.command(
    cls=AtServer,
    epilog=epilog(
        {
            NOT_STARTED: NO_SERVER,
            ROLLOUT_ERRORS: "the outcome is an error, or nothing is known under KEY",
            NO_OUTCOME: "no outcome within --timeout",
        }
    ),
)
@click.argument("key")
@namespace_option
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
    help="Give up after this long. The work goes on.",
)  # fmt: skip
@server_options
@json_option
def attach(
    key: str, namespace: str, timeout_s: float | None, address: str, wait_s: float,
    transport: Transport, as_json: bool,
) -> int:  # fmt: skip
    """Wait for the outcome of what was asked under KEY, and print it.

    \b
    Examples:
      trio-envserve attach run-8/step-12/7
      trio-envserve attach run-8/step-12/7 --namespace nightly --timeout 60 --json

    It sends no input and starts nothing. Ctrl-C, --timeout and the end of this
    command leave the work alone: only callers that sent the input count.

    The value is printed as JSON. With --json the object has `ok`, `value` or `error`
    (with `code` and `verdict`), `worker`, `executions` and `duration_s`.
    """  # noqa: D301  # click wants the character itself

    async def main(stop: Stop) -> Result:
        outcome: Outcome | None = None
        with trio.CancelScope() as work:
            stop.on_first = work.cancel
            async with reached(address, transport, wait_s, "attach") as client:
                outcome = await _wait(client, key, namespace, timeout_s)
        if outcome is None:
            say("not waiting any more; the work goes on")
            return Result(stop.interrupted_code, {"key": key, "namespace": namespace})
        record = {"key": key, "namespace": namespace, **record_of(outcome)}
        if outcome.error is not None:
            _tell(outcome.error, address, namespace)
            late = isinstance(outcome.error, NoAnswer) and timeout_s is not None
            return Result(NO_OUTCOME if late else ROLLOUT_ERRORS, record)
        if not as_json:
            put(json.dumps(record["value"], indent=2, ensure_ascii=False, allow_nan=False))
        return Result(OK, record)

    return run_verb(main, as_json=as_json)


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
            f"`trio-envserve keys --all --address {address}` shows what is known there. Keys end "
            "with their server, and outcomes with their retention; asking again runs it anew"
        )
    elif isinstance(error, NoAnswer):
        say("attach again to wait longer; `trio-envserve keys` shows how far it is")
    elif isinstance(error, (RanAndFailed, WorkerLost)):
        say(
            "asking again under the key gives the same error while it is retained; "
            "`trio-envserve forget` drops it"
        )
