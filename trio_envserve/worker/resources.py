"""The resources of a worker's executions, and the cleanings that the router gives to the worker.

Theory of operation
-------------------
A block first waits on the trio loop for a name
(:class:`~trio_envserve.core.worker.ResourceWanted`), then calls ``create`` where it is, and states
the handle.  At the end of the block ``destroy`` is called there too, shielded from cancels, and its
result is stated without waiting: the outcome of the execution waits for the answer, in the core.

Once there is a name, there is a destroy: also if ``create`` raises, is cancelled, or returns
something that cannot be kept (then the handle is None).  ``destroy`` is called once for a resource,
by the caller that has taken the *right* to it.  A failed destroy leaves the resource to the router.
If the code has left its block open, ``destroy`` is called when the execution ends; if the block is
about to call it, that call is waited for.

A cancelled coroutine ends, a thread does not.  So a plain function runs in a thread of its own,
which is waited for, and its failure is stated only once it has ended.

Without a router (when an environment is only validated) names are made here.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import itertools
import logging
import math
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeAlias, final

import trio

from .. import foreign
from ..carrier import WorkCarrier
from ..core import values
from ..core.limits import ServerLimits, WireLimits
from ..core.messages import Clean
from ..core.scope import HANDLE_BYTES, ResourceState, Stated
from ..core.worker import Cleaned, ResourceTold, ResourceWanted
from ..envs.methods import Methods, ObjectThread, Then, TookTooLong, TrioMethods, same
from ..envs.methods_asyncio import AsyncioMethods
from ..envs.resources import ResourceError, WantedResource, find_destroy
from .backends import plain_value
from .failures import describe_exception, log

_I = ResourceState
Take: TypeAlias = Callable[["ResourceWanted | ResourceTold | Cleaned"], object]
_ENDED = "the rollout has ended"
WHY_CHARS = 300
"""Most characters of a failure's reason."""


class CallsCode(Protocol):
    """Calls a coroutine function of the environment on the environment's backend."""

    async def __call__(self, function: Callable[[], Any]) -> foreign.CodeResult:
        """The result of the call; a cancel reaches the code."""
        ...


@dataclasses.dataclass(slots=True, eq=False)
class OpenResource:
    """A resource of an execution, from its request for a name on."""

    serial: int
    wanted: WantedResource
    request: str
    name: str = ""
    refused: str = ""
    handle: Any = None
    is_wanted: bool = True
    """Whether code waits for the name, or has it."""
    answered: trio.Event = dataclasses.field(default_factory=trio.Event)
    """Set when the router has answered the last statement."""
    over: trio.Event = dataclasses.field(default_factory=trio.Event)
    """Set when the end of the resource was stated."""
    right: list[None] = dataclasses.field(default_factory=lambda: [None])
    """The right to destroy the resource; popped in any thread, and during ``create``."""

    @property
    def text(self) -> str:
        """Description of the resource, for people."""
        return f"resource {self.name} ({self.wanted.kind}) of request {self.request}"

    def take_right(self) -> bool:
        """Take the right to destroy the resource; False if somebody else has it."""
        try:
            self.right.pop()
        except IndexError:
            return False
        return True

    def begin(self) -> None:
        """Take the right to destroy the resource for the time of ``create``.  Raises
        :class:`ResourceError`."""
        if not self.take_right():  # the rollout has ended since the name came
            raise ResourceError(f"no {self.wanted.kind} is created: {_ENDED}")

    def keep(self, handle: Any) -> None:
        """Keep the value of ``create``."""
        self.handle = handle

    def created(self) -> None:
        """Note that ``create`` has ended, in whatever way."""
        self.right.append(None)


@final
class WorkerResources:
    """All resources of one worker.  ``take`` gives the core an input."""

    def __init__(self, take: Take, wire: WireLimits, destroy_s: float, calls: CallsCode) -> None:
        self.take = take
        self.wire = wire
        self.destroy_s = destroy_s
        self.call_code = calls
        self.then = "the server gives it to a worker"
        """The next step for a resource that is left, for people."""
        self.numbers = itertools.count()
        self.open: dict[int, OpenResource] = {}
        """Resources by number, until their end is stated."""

    def stated(self, news: Stated) -> None:
        """Take in an answer of the router."""
        resource = self.open.get(news.resource)
        if resource is None:
            return
        if not resource.name:
            resource.name, resource.refused = news.name, news.refused
            if resource.refused:
                del self.open[news.resource]
            elif not resource.is_wanted:
                self.end(resource, "")
        resource.answered.set()

    def end(self, resource: OpenResource, why: str) -> None:
        """State that a resource is gone, or (``why``) left."""
        del self.open[resource.serial]
        resource.over.set()
        self.take(ResourceTold(resource.serial, _I.LEFT if why else _I.GONE, b"", why))

    async def clean(self, clean: Clean) -> None:
        """Destroy a resource for the router, and state the result once that is certain."""
        why = await self._clean(clean)
        about = f"resource {clean.name} ({clean.kind})"
        if why:
            text = "%s: it could not be destroyed: %s; the server tries again, or gives up"
            log(logging.WARNING, text, about, why)
        else:
            log(logging.INFO, "%s: it was destroyed here, in the place of its rollout", about)
        self.take(Cleaned(clean.name, clean.turn, why))

    async def _clean(self, clean: Clean) -> str:
        within_s = self.destroy_s if clean.within_s is None else clean.within_s
        found = await foreign.acall(trio.to_thread.run_sync, find_destroy, clean.destroy)
        if found.error is not None:
            return f"{clean.destroy.replace('|', ', ')}: {_why(found.error)}"
        handle: Any = None
        if clean.handle is not None:
            try:
                handle = values.decode(clean.handle, root="handle", limits=self.wire)
            except values.DecodingError as error:
                return str(error)
        return await self.destroyed(found.value, clean.name, handle, within_s)

    async def destroy(self, resource: OpenResource) -> str:
        """Destroy a resource of an execution here, cancelled or not; see :meth:`destroyed`."""
        destroy, name, handle = resource.wanted.destroy, resource.name, resource.handle
        with trio.CancelScope(shield=True):
            why = await self.destroyed(destroy, name, handle, self.destroy_s)
        return why

    async def destroyed(
        self, destroy: Callable[[str, Any], Any], name: str, handle: Any, within_s: float
    ) -> str:
        """Destroy a resource from the trio loop.  Returns why that failed; empty if it did not."""
        with trio.move_on_after(within_s) as scope:
            if inspect.iscoroutinefunction(destroy):
                ended = await self.call_code(partial(destroy, name, handle))
            else:
                ended = await foreign.acall(_in_thread, _in_list, destroy, name, handle)
                if ended.error is None and inspect.isawaitable(ended.value[0]):
                    ended = await self.call_code(ended.value.pop)
        return _failure(ended, within_s, late=scope.cancelled_caught or scope.cancel_called)


async def _in_thread(function: Callable[..., Any], *args: Any) -> Any:
    # A limiter of its own: what hangs in one thread holds up no other.
    return await trio.to_thread.run_sync(function, *args, limiter=trio.CapacityLimiter(1))


def _in_list(function: Callable[..., Any], *args: Any) -> list[Any]:
    # A thread of trio's hands on no coroutine by itself.
    return [function(*args)]


def _why(error: BaseException) -> str:
    told = describe_exception(error)
    return f"{told.type}: {told.message}"[:WHY_CHARS]


def _failure(ended: foreign.CodeResult, within_s: float, *, late: bool) -> str:
    if ended.error is None:
        return ""
    return f"it took longer than {within_s:g} s (destroy_s)" if late else _why(ended.error)


@final
class ExecutionResources:
    """The resources of one execution, on the trio loop."""

    def __init__(self, worker: WorkerResources, number: int, request: str) -> None:
        self.worker = worker
        self._number = number
        self._request = request
        self._mine: dict[OpenResource, None] = {}
        self._closed = False

    async def intend(self, wanted: WantedResource) -> OpenResource:
        """Wait until a resource may be created.  Raises :class:`ResourceError`."""
        if self._closed:
            raise ResourceError(f"no {wanted.kind} is created: {_ENDED}")
        worker = self.worker
        resource = OpenResource(next(worker.numbers), wanted, self._request)
        worker.open[resource.serial] = resource
        self._mine[resource] = None
        try:
            worker.take(ResourceWanted(self._number, resource.serial, *wanted.stated))
            await resource.answered.wait()
        except trio.Cancelled:
            del self._mine[resource]
            resource.is_wanted = False
            if resource.name:
                worker.end(resource, "")
            raise
        if resource.refused:
            del self._mine[resource]
            raise ResourceError(f"no {wanted.kind} is created: {resource.refused}")
        if not resource.is_wanted:
            raise ResourceError(f"no {wanted.kind} is created: {_ENDED}")
        return resource

    async def created(self, resource: OpenResource, handle: bytes) -> None:
        """State that a resource was created, and wait until that is safe."""
        resource.answered = trio.Event()
        self.worker.take(ResourceTold(resource.serial, _I.CREATED, handle))
        await resource.answered.wait()

    def finish(self, resource: OpenResource, why: str) -> None:
        """State that a resource is gone, or (``why``) left to the router."""
        if resource.serial in self.worker.open:
            self._mine.pop(resource, None)
            if why:
                text = "%s: its rollout could not destroy it: %s; %s"
                log(logging.WARNING, text, resource.text, why, self.worker.then)
            self.worker.end(resource, why)

    async def close(self) -> None:
        """Destroy the resources that the code of the execution has left open."""
        self._closed = True
        worker = self.worker
        for resource in list(self._mine):
            if not resource.name:
                resource.is_wanted = False
                continue
            if resource.take_right():
                why = await worker.destroy(resource)
            else:
                with trio.move_on_after(worker.destroy_s, shield=True):  # a thread is about to
                    await resource.over.wait()
                why = "code that its rollout has left behind goes on"
            self.finish(resource, why)


@final
class CarriedResources:
    """The resources of a rollout for its code, on a loop or in a thread
    (:class:`~..envs.resources.ResourceOpener`)."""

    def __init__(self, resources: ExecutionResources, carrier: WorkCarrier) -> None:
        self._resources = resources
        self._carrier = carrier

    async def open(self, wanted: WantedResource) -> OpenResource:
        """Create a resource on a loop."""
        made: OpenResource = await self._carrier.call(
            partial(self._resources.intend, wanted), self._never_created
        )
        made.begin()
        try:
            try:
                # Its handle has to be destroyed, also if the task is cancelled meanwhile.
                (await _called(partial(wanted.create, made.name), made.keep)).unwrap()
            finally:
                made.created()
            state = partial(self._resources.created, made, self._encoded(made))
            await self._carrier.call(state)
        except BaseException:
            await self.close(made)  # noqa: ASYNC102  # shields itself, and has limits
            raise
        return made

    def _never_created(self, made: OpenResource) -> None:
        self._carrier.soon(partial(self._resources.finish, made, ""))

    def _encoded(self, made: OpenResource) -> bytes:
        """The encoded handle.  Raises :class:`ResourceError`; then nobody gets the handle."""
        worker, handle, kind = self._resources.worker, made.handle, made.wanted.kind
        encoded = foreign.call(values.encode, handle, root="handle", limits=worker.wire)
        if encoded.error is None and len(encoded.value) <= HANDLE_BYTES:
            return bytes(encoded.value)
        why = f"it takes more than {HANDLE_BYTES} bytes"
        if encoded.error is not None:
            why = describe_exception(encoded.error).message[:WHY_CHARS]
        raise ResourceError(
            f"create of the resource {kind} returned a handle that cannot be kept: {why}. Return "
            "a small value that another process can use, such as the id of what was created"
        )

    async def close(self, made: OpenResource) -> None:
        """Destroy a resource on a loop."""
        if not made.take_right():
            return
        destroy, destroy_s = made.wanted.destroy, self._resources.worker.destroy_s

        async def destroyed() -> None:
            most_s = destroy_s if inspect.iscoroutinefunction(destroy) else math.inf
            ended = await _called(partial(destroy, made.name, made.handle), timeout_s=most_s)
            why = _failure(ended, destroy_s, late=isinstance(ended.error, TookTooLong))
            self._carrier.soon(partial(self._resources.finish, made, why))

        await _methods().uncancelled(destroyed)

    def open_sync(self, wanted: WantedResource) -> OpenResource:
        """Create a resource in a thread."""
        for function in (wanted.create, wanted.destroy):
            if inspect.iscoroutinefunction(function):
                raise TypeError(
                    f"{function.__qualname__} is a coroutine function, which with cannot call: "
                    "write async with, or, in a thread, make it a plain function"
                )
        made: OpenResource = self._carrier.call_sync(partial(self._resources.intend, wanted))
        made.begin()
        try:
            try:
                made.handle = plain_value(wanted.create, made.name)
            finally:
                made.created()
            self._carrier.call_sync(partial(self._resources.created, made, self._encoded(made)))
        except BaseException:
            self.close_sync(made)
            raise
        return made

    def close_sync(self, made: OpenResource) -> None:
        """Destroy a resource in a thread."""
        if made.take_right():
            ended = foreign.call(plain_value, made.wanted.destroy, made.name, made.handle)
            why = _failure(ended, 0.0, late=False)
            self._carrier.soon(partial(self._resources.finish, made, why))


def _methods() -> Methods:
    """Calls functions from here: coroutine functions on this loop, plain ones in a thread."""
    kind = TrioMethods if asyncio._get_running_loop() is None else AsyncioMethods
    return kind(ObjectThread(""))


async def _called(
    function: Callable[[], Any], then: Then = same, timeout_s: float = math.inf
) -> foreign.CodeResult:
    """Call a function to its end: a thread is waited for, since nothing ends it."""
    methods = _methods()
    try:
        return await methods.call(function, then=then, timeout_s=timeout_s)
    finally:
        await methods.end(lambda: None)  # noqa: ASYNC102  # shields itself


def resources_here(calls: CallsCode) -> WorkerResources:
    """The resources of a process without a router."""
    prefix = f"local-{secrets.token_hex(8)}"

    def take(given: ResourceWanted | ResourceTold | Cleaned) -> None:
        if isinstance(given, ResourceWanted):
            resources.stated(Stated(given.resource, f"{prefix}-{given.resource}", ""))
        elif isinstance(given, ResourceTold):
            resources.stated(Stated(given.resource, "", ""))

    resources = WorkerResources(take, WireLimits(), ServerLimits().destroy_s, calls)
    resources.then = "nobody else tries: destroy it by hand"
    return resources
