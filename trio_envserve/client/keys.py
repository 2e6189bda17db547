"""Requests about a key, without an input: its outcome, a cancel, a forget.

The functions are those of the trio client; the other clients run them in its thread.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..core.client_inputs import CallKey
from ..core.key_records import KeyAct
from ..core.terms import ID_BYTES
from .options import DEFAULT_NAMESPACE, Encoded, Terms, key_name, seconds
from .outcome import Outcome

if TYPE_CHECKING:
    from .shell import Client


@dataclasses.dataclass(frozen=True, slots=True)
class KeyEnded:
    """The effect of a cancel or a forget by key."""

    known: bool
    """Whether there was work, or its outcome, under the key."""
    started: bool
    """False: it had never been started, and now never will be.  True: it may have run."""
    finished: bool = False
    """Whether the key had its outcome before the cancel, and keeps it: ``attach`` gets it."""


async def attach(
    client: Client, key: str, *, namespace: str = DEFAULT_NAMESPACE,
    timeout_s: float | None = None, submitted: Callable[[], object] | None = None,
) -> Outcome:  # fmt: skip
    """Wait for the outcome of the work under a key, without its input.

    It starts nothing, and keeps no work going.  The error is UnknownKey if the server knows
    nothing of the key: an earlier request may have run."""
    return await _call(client, KeyAct.ATTACH, key, namespace, timeout_s, submitted)


async def end(
    client: Client, act: KeyAct, key: str, namespace: str, timeout_s: float | None
) -> KeyEnded:
    """Cancel or forget the work of a key, whoever waits for it.  Raises what
    :meth:`.Client.run_rollout` raises."""
    tag = os.urandom(ID_BYTES)
    return _ended(await _call(client, act, key, namespace, timeout_s, tag=tag))


async def release(
    client: Client, key: str, *, namespace: str = DEFAULT_NAMESPACE, timeout_s: float | None = None
) -> KeyEnded:
    """Like :meth:`.Client.forget`, for doors, which release a key for every call that they make:
    the server has nothing to remember of it.  If the server is lost meanwhile, it is not asked
    again, and the error is UnknownKey: what is there may have been forgotten, or not."""
    return _ended(await _call(client, KeyAct.FORGET, key, namespace, timeout_s))


def _ended(outcome: Outcome) -> KeyEnded:
    record = outcome.unwrap()
    finished = record.get("finished", False)
    return KeyEnded(record["generation"] is not None or finished, record["started"], finished)


async def _call(
    client: Client, act: KeyAct, key: str, namespace: str, timeout_s: float | None,
    submitted: Callable[[], object] | None = None, tag: bytes | None = None,
) -> Outcome:  # fmt: skip
    asks = CallKey(act, key_name(key, namespace), tag=tag)
    terms = Terms(limit_s=seconds(timeout_s), key=asks)
    return await client._run_encoded(Encoded(b"", terms), submitted)
