"""The verbs ``cancel`` and ``forget``: end what is known under keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import click
import trio

from ..client import Client, KeyEnded, Outcome
from ..core.errors import CallError
from ..net import Transport
from .at_server import AtServer, namespace_option, reached, refused, server_options
from .attach import record_of
from .common import NO_SERVER, NOT_STARTED, OK, ROLLOUT_ERRORS, Result, Stop, epilog, put, run_verb
from .options import json_option

NOT_DONE = "the server did not carry it out; the line says why"
ANSWER_S = 30.0
"""How long the server may take for one key."""


class _At(NamedTuple):
    """The keys to end, and their server."""

    keys: Sequence[str]
    namespace: str
    address: str
    wait_s: float
    transport: Transport


@click.command(cls=AtServer, epilog=epilog({NOT_STARTED: NO_SERVER, ROLLOUT_ERRORS: NOT_DONE}))
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@namespace_option
@server_options
@json_option
def cancel(
    keys: tuple[str, ...], namespace: str, address: str, wait_s: float, transport: Transport,
    as_json: bool,
) -> int:  # fmt: skip
    """Cancel the work of each KEY, whoever waits for it.

    Callers that wait are told that it was cancelled. What has its outcome keeps it, which is
    told; forget drops it. If nothing is known under a key, the next request for it is
    cancelled, since it may be on its way.

    \b
    Example:
      trio-envserve cancel run-8/step-12/7
    """  # noqa: D301  # click wants the character itself

    async def end(client: Client, key: str) -> KeyEnded:
        return await client.cancel_key(key, namespace=namespace, timeout_s=ANSWER_S)

    unknown = "nothing is known under it; the next request for it is cancelled"
    return _each(
        end, ("cancelled", unknown), _At(keys, namespace, address, wait_s, transport), as_json
    )


@click.command(cls=AtServer, epilog=epilog({NOT_STARTED: NO_SERVER, ROLLOUT_ERRORS: NOT_DONE}))
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@namespace_option
@server_options
@json_option
def forget(
    keys: tuple[str, ...], namespace: str, address: str, wait_s: float, transport: Transport,
    as_json: bool,
) -> int:  # fmt: skip
    """Drop each KEY and its outcome; what runs is cancelled first.

    The next request for the key starts new work.

    \b
    Example:
      trio-envserve forget run-8/step-12/7 run-8/step-12/8
    """  # noqa: D301  # click wants the character itself

    async def end(client: Client, key: str) -> KeyEnded:
        return await client.forget(key, namespace=namespace, timeout_s=ANSWER_S)

    return _each(
        end, ("forgotten", "nothing was known under it"),
        _At(keys, namespace, address, wait_s, transport), as_json,
    )  # fmt: skip


def _each(
    end: Callable[[Client, str], Awaitable[KeyEnded]], words: tuple[str, str], at: _At,
    as_json: bool,
) -> int:  # fmt: skip
    async def main(stop: Stop) -> Result:
        ended: list[dict[str, Any]] = []
        with trio.CancelScope() as work:
            stop.on_first = work.cancel
            async with reached(at.address, at.transport, at.wait_s, "end keys") as client:
                for key in at.keys:
                    try:
                        done = await end(client, key)
                    except CallError as error:
                        raise refused(error) from None
                    ended.append({"key": key, **dataclasses.asdict(done)})
                    outcome = None
                    if done.finished:
                        outcome = await client.attach(
                            key, namespace=at.namespace, timeout_s=ANSWER_S
                        )
                        ended[-1]["outcome"] = record_of(outcome)
                    if not as_json:
                        put(f"{key}: {_what(done, outcome, *words)}")
        code = stop.interrupted_code if stop.asked.is_set() else OK
        return Result(code, {"namespace": at.namespace, "keys": ended})

    return run_verb(main, as_json=as_json)


def _what(ended: KeyEnded, outcome: Outcome | None, done: str, unknown: str) -> str:
    if outcome is not None:
        what = "a result" if outcome.error is None else f"an error: {outcome.error}"
        return f"had finished before, and keeps its outcome, {what}"
    if not ended.known:
        return unknown
    return f"{done}; it may have run" if ended.started else f"{done}; it never ran"
