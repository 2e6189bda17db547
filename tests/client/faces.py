"""The three clients behind one set of plain methods, for tests that hold for each."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

import trio

from trio_envserve import Client, PlainClient, Server, open_client, open_client_asyncio, open_server


class TrioThread:
    """A trio loop in a thread of its own."""

    def __init__(self) -> None:
        self._started = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._main,), daemon=True)

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._end = trio.Event()
        async with trio.open_nursery() as self._nursery:
            self._started.set()
            await self._end.wait()

    def __enter__(self) -> TrioThread:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *args: object) -> None:
        self._token.run_sync_soon(self._end.set)
        self._thread.join()

    def run(self, act: Callable[..., Any], *args: Any) -> Any:
        return trio.from_thread.run(act, *args, trio_token=self._token)

    @contextmanager
    def opened(self, manager: AbstractAsyncContextManager[Any]) -> Iterator[Any]:
        """Inside of an async block of that loop."""
        leave, left = trio.Event(), threading.Event()
        errors: list[Exception] = []

        async def hold(task_status: trio.TaskStatus[Any]) -> None:
            began = False
            try:
                async with manager as value:
                    began = True
                    task_status.started(value)
                    await leave.wait()
            except Exception as error:  # whatever the block raises, the test is to see
                if not began:
                    raise
                errors.append(error)
            finally:
                left.set()

        value = self.run(self._nursery.start, hold)
        try:
            yield value
        finally:
            self._token.run_sync_soon(leave.set)
            left.wait()
        if errors:
            raise errors[0]


class Face:
    """A client of some kind; its methods block."""

    def __init__(self, client: Any, run: Callable[..., Any]) -> None:
        self.client = client
        self._run = run

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **options: self._run(getattr(self.client, name), args, options)

    def run_many(
        self, inputs: Any, *, most: int = 10**9, arrived: list[tuple[int, Any]] | None = None,
        **options: Any,
    ) -> list[tuple[int, Any]]:  # fmt: skip
        """The outcomes, or the first so many; then the block is left.  With ``arrived`` it is left
        once there is another outcome, and ``arrived`` gets that."""

        def take() -> list[tuple[int, Any]]:
            taken: list[tuple[int, Any]] = []
            with self.client.run_many(inputs, **options) as outcomes:
                for each in outcomes:
                    taken.append(each)
                    if len(taken) >= most:
                        break
                while arrived is not None and outcomes._ready.empty():
                    time.sleep(0.01)
            if arrived is not None:
                arrived.extend(outcomes.arrived())
            return taken

        async def atake() -> list[tuple[int, Any]]:
            taken: list[tuple[int, Any]] = []
            async with self.client.run_many(inputs, **options) as outcomes:
                async for each in outcomes:
                    taken.append(each)
                    if len(taken) >= most:
                        break
                loop: Any = trio if isinstance(self.client, Client) else asyncio
                while arrived is not None and not (
                    outcomes._ready or (loop is trio and outcomes._ended)
                ):
                    await loop.sleep(0.01)
            if arrived is not None:
                arrived.extend(outcomes.arrived())
            return taken

        taken: list[tuple[int, Any]] = self._run(
            take if isinstance(self.client, PlainClient) else atake, (), {}
        )
        return taken


def _call(act: Callable[..., Any], args: Any, options: Any) -> Any:
    return act(*args, **options)


async def _acall(act: Callable[..., Any], args: Any, options: Any) -> Any:
    result = act(*args, **options)
    return await result if hasattr(result, "__await__") else result


@contextmanager
def open_face(kind: str, address: str, **options: Any) -> Iterator[Face]:
    """A client of this kind: ``trio``, ``asyncio`` or ``plain``."""
    if kind == "plain":
        with PlainClient(address, **options) as client:
            yield Face(client, _call)
    elif kind == "trio":
        with TrioThread() as thread, thread.opened(open_client(address, **options)) as client:
            yield Face(client, lambda *call: thread.run(_acall, *call))
    else:
        with open_asyncio(address, **options) as (client, loop):
            yield Face(
                client, lambda *call: asyncio.run_coroutine_threadsafe(_acall(*call), loop).result()
            )


@contextmanager
def open_asyncio(address: str, **options: Any) -> Iterator[tuple[Any, asyncio.AbstractEventLoop]]:
    """A client for asyncio, and its event loop, which runs in a thread."""
    box: list[Any] = []
    opened = threading.Event()

    async def main() -> None:
        leave = asyncio.Event()
        loop = asyncio.get_running_loop()
        try:
            async with open_client_asyncio(address, **options) as client:
                box.append((client, loop, leave))
                opened.set()
                await leave.wait()
        except BaseException as error:
            box.append(error)
            opened.set()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    opened.wait()
    try:
        if isinstance(box[0], BaseException):
            raise box[0]
        yield box[0][:2]
    finally:
        if not isinstance(box[0], BaseException):
            box[0][1].call_soon_threadsafe(box[0][2].set)
        thread.join()
    if len(box) > 1:
        raise box[1]


@contextmanager
def serving(environment: Any, **options: Any) -> Iterator[Server]:
    """A server in a thread, which runs the environment itself."""
    with TrioThread() as thread:
        with thread.opened(open_server(environment, workers=0, **options)) as server:
            thread.run(server.wait_ready)
            yield server
