"""A provider of resources, for tests: what exists, and what was done, by any backend."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import Any

import trio

LOCK = threading.Lock()
SHOPS: dict[str, Shop] = {}
"""The shop of each test: functions at the top of a module find theirs by the kind of handle."""


IMPORTS: dict[str, tuple[threading.Event, threading.Event]] = {}
"""For modules that tests write: set when the import of each has begun, and once it may end."""


class Shop:
    """What one test has created."""

    def __init__(self) -> None:
        self.there: dict[str, Any] = {}
        self.calls: Counter[str] = Counter()
        self.destroying: Counter[str] = Counter()
        self.overlapped = False
        self.handles: list[Any] = []
        """Handles with which something was destroyed."""
        self.fails = 0
        """Number of destroys that fail from now on."""
        self.hangs = 0
        self.says_handle: Any = "handle"
        self.creates_slowly = False
        self.opens = threading.Event()
        """Plain destroys that hang end once it is set."""

    def make(self, name: str) -> Any:
        self.there[name] = True
        self.calls["create"] += 1
        return self.says_handle

    def begin(self, name: str, handle: Any) -> None:
        with LOCK:
            self.overlapped |= self.destroying[name] > 0
            self.destroying[name] += 1
            self.handles.append(handle)
            self.calls["destroy"] += 1

    def end(self, name: str) -> None:
        with LOCK:
            self.destroying[name] -= 1
            if self.fails:
                self.fails -= 1
                raise OSError("the provider is down")
            self.there.pop(name, None)


def shop() -> Shop:
    return SHOPS["shop"]


def create(name: str) -> Any:
    handle = shop().make(name)
    while shop().creates_slowly:
        time.sleep(0.01)
    return handle


def destroy(name: str, handle: Any) -> None:
    shop().begin(name, handle)
    if shop().hangs:
        shop().hangs -= 1
        shop().opens.wait()
    shop().end(name)


async def acreate(name: str) -> Any:
    handle = shop().make(name)
    while shop().creates_slowly:  # noqa: ASYNC110  # it is set in any thread
        await _sleep(0.01)
    return handle


async def adestroy(name: str, handle: Any) -> None:
    shop().begin(name, handle)
    try:
        if shop().hangs:
            shop().hangs -= 1
            await _sleep(3600)
        await _sleep(0.01)
    except BaseException:
        shop().destroying[name] -= 1
        raise
    shop().end(name)


def destroy_by_a_coroutine(name: str, handle: Any) -> Any:
    return adestroy(name, handle)


async def _sleep(seconds: float) -> None:
    on_asyncio = asyncio._get_running_loop() is not None
    await (asyncio if on_asyncio else trio).sleep(seconds)
