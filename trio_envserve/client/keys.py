"""What can be asked of a key without an input: its outcome, a cancel, a forget.

The functions are those of the trio client; the other clients run them in its thread.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import trio

from ..core import messages, values
from ..core.client_inputs import CallKey
from ..core.errors import ServerNotReady
from ..core.key_records import KeyAct
from ..core.status import KeyPage
from ..core.terms import ID_BYTES
from .options import DEFAULT_NAMESPACE, Asked, Terms, key_name, seconds
from .outcome import Outcome

if TYPE_CHECKING:
    from .shell import Client

BUSY_S = 0.05
"""A server that is asked for many pages at once answers with none; ask again after this."""


@dataclasses.dataclass(frozen=True, slots=True)
class KeyEnded:
    """What a cancel or a forget by key has done."""

    known: bool
    """Whether there was work, or its outcome, under the key."""
    started: bool
    """False: it had never been started, and now never will be.  True: it may have run."""


async def ask(client: Client, asked: Asked, submitted: Callable[[], object]) -> Outcome:
    """Make a call, and call ``submitted`` when it has its place among all that this client
    asks: what is asked after that comes to the server after it."""
    return await client._run(asked, submitted)


async def attach(
    client: Client, key: str, *, namespace: str = DEFAULT_NAMESPACE,
    timeout_s: float | None = None, submitted: Callable[[], object] | None = None,
) -> Outcome:  # fmt: skip
    """Wait for the outcome of what was asked under a key, by whomever, without its input.

    Nothing is started for it, and the work does not go on for its sake.  The error is
    UnknownKey if the server knows nothing of the key: what was asked earlier may have run."""
    return await _call(client, KeyAct.ATTACH, key, namespace, timeout_s, submitted)


async def end(
    client: Client, act: KeyAct, key: str, namespace: str, timeout_s: float | None
) -> KeyEnded:
    """Cancel or forget the work of a key, whoever waits for it.  Raises what
    :meth:`.Client.run_rollout` raises."""
    record = (await _call(client, act, key, namespace, timeout_s)).unwrap()
    return KeyEnded(record["generation"] is not None, record["started"])


async def page(client: Client, namespace: str | None, first: int, limit_s: float) -> KeyPage:
    """A page of keys, from the generation with this number on."""
    name = b"" if namespace is None else key_name("any", namespace).namespace
    question = partial(messages.AskKeys, namespace=name, first=first)
    with trio.move_on_after(limit_s):
        while True:
            record = await client._driver.ask(question, limit_s)
            found = KeyPage.of(values.decode(record, limits=client._wire))
            if found.keys or found.next is None or found.next > first:
                return found
            await trio.sleep(BUSY_S)
    raise ServerNotReady(f"no page of keys after {limit_s:g} s: the server is asked for too many")


async def _call(
    client: Client, act: KeyAct, key: str, namespace: str, timeout_s: float | None,
    submitted: Callable[[], object] | None = None,
) -> Outcome:  # fmt: skip
    asks = CallKey(act, key_name(key, namespace), tag=os.urandom(ID_BYTES))
    terms = Terms(limit_s=seconds(timeout_s), key=asks)
    began_s = trio.current_time()
    ended = await client._call(b"", began_s, terms, submitted)
    return await client._outcome(ended, began_s, trio.current_time())
