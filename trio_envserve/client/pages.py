"""The lists of a server, read a page at a time.

The functions are those of the trio client; the other clients run them in its thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from ..core import messages, values
from ..core.errors import ProtocolError, ServerNotReady
from ..core.pages import KeyPage, RunningPage
from .options import key_name, natural

if TYPE_CHECKING:
    from .shell import Client

BUSY_S = 0.05
"""A server that is asked for many pages at once answers with none; ask again after this."""

P = TypeVar("P", KeyPage, RunningPage)


async def keys(client: Client, namespace: str | None, first: int, limit_s: float) -> KeyPage:
    """A page of keys, from the generation with this number on."""
    first = natural("first", first)
    name = b"" if namespace is None else key_name("any", namespace).namespace
    question = partial(messages.AskKeys, namespace=name, first=first)
    return await _page(client, question, KeyPage.of, first, limit_s)


async def running(client: Client, first: int, limit_s: float) -> RunningPage:
    """A page of what runs, from the execution with this number on."""
    first = natural("first", first)
    question = partial(messages.AskRunning, first=first)
    return await _page(client, question, RunningPage.of, first, limit_s)


async def stack(client: Client, number: int, limit_s: float) -> str | None:
    """The stack of the execution with this number; None if it does not run."""
    question = partial(messages.AskStack, number=natural("number", number))
    with trio.move_on_after(limit_s):
        while True:
            record = await client._driver.ask(question, limit_s)
            told = values.decode(record, limits=client._wire)
            match told:
                case {"state": "told", "text": str(text)}:
                    return text
                case {"state": "over"}:
                    return None
                case {"state": "busy"}:
                    await trio.sleep(BUSY_S)
                case _:
                    raise ProtocolError("the server's answer is no stack")
    raise ServerNotReady(f"no stack after {limit_s:g} s: the server is asked for too many")


async def _page(
    client: Client, question: Callable[[int], messages.Message], read: Callable[[Any], P],
    first: int, limit_s: float,
) -> P:  # fmt: skip
    with trio.move_on_after(limit_s):
        while True:
            record = await client._driver.ask(question, limit_s)
            page = read(values.decode(record, limits=client._wire))
            if page.next is None or page.next > first:
                return page
            await trio.sleep(BUSY_S)
    raise ServerNotReady(f"no page after {limit_s:g} s: the server is asked for too many")
