"""Resources: things that a rollout creates outside of its process, and has destroyed.

Theory of operation
-------------------
``create`` runs where the block is, and never travels.  ``destroy`` may have to run elsewhere: in
another worker, or at the next server.  So it is a function at the top of a module, and travels as a
*reference*: its name, its module, and the file of a module that was loaded from one.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, Protocol, final

from ..core.errors import EnvServeError
from ..core.limits import RESOURCE_KIND_BYTES, RESOURCE_REFERENCE_BYTES
from ..file_modules import module_of_file

_LOADING = threading.Lock()
"""Held while a module is loaded from its file: ``exec_module`` has no lock of its own."""

_TOP = "write it as a function at the top of a module, where another worker can find it"


class ResourceError(EnvServeError):
    """Raised by ``rollout.resource`` if nothing may be created, or nothing that was created can be
    kept: a bound is reached, the server's journal has failed, or the handle has no encoding."""

    code = "resource"


class WantedResource(NamedTuple):
    """A resource that the code of a rollout is about to create."""

    kind: str
    create: Callable[[str], Any]
    destroy: Callable[[str, Any], Any]
    reference: str
    """Reference to ``destroy``."""
    here: bool
    """Whether only workers of this machine can destroy it."""

    @property
    def stated(self) -> tuple[str, str, bool]:
        """Kind, reference and ``here``: the part that the server keeps."""
        return self.kind, self.reference, self.here


class ResourceOpener(Protocol):
    """Creates and destroys the resources of a rollout, as objects of its own with an attribute
    ``handle``, the value of ``create``."""

    async def open(self, wanted: WantedResource) -> Any:
        """Create a resource (trio and asyncio).  Raises ``TypeError`` in a thread."""
        ...

    async def close(self, made: Any) -> None:
        """Destroy a resource, whether or not the task is cancelled."""
        ...

    def open_sync(self, wanted: WantedResource) -> Any:
        """Create a resource in a thread.  Raises ``TypeError`` on a loop."""
        ...

    def close_sync(self, made: Any) -> None:
        """Destroy a resource in a thread."""
        ...


@final
class Resource:
    """A resource for a block of code, made by :meth:`~.interface.Rollout.resource`.  Entering the
    block returns the handle.  It may be entered again once its block is over; another block
    meanwhile raises RuntimeError."""

    def __init__(self, opener: ResourceOpener, wanted: WantedResource) -> None:
        self._opener = opener
        self._wanted = wanted
        self._made: Any = None
        self._entered = threading.Lock()
        """Held by the block that has it, in any thread."""

    async def __aenter__(self) -> Any:
        with self._entering():
            self._made = await self._opener.open(self._wanted)
        return self._made.handle

    async def __aexit__(self, *error: object) -> None:
        try:
            await self._opener.close(self._made)  # noqa: ASYNC102  # shields itself, with limits
        finally:
            self._entered.release()

    def __enter__(self) -> Any:
        with self._entering():
            self._made = self._opener.open_sync(self._wanted)
        return self._made.handle

    def __exit__(self, *error: object) -> None:
        try:
            self._opener.close_sync(self._made)
        finally:
            self._entered.release()

    @contextmanager
    def _entering(self) -> Iterator[None]:
        if not self._entered.acquire(blocking=False):
            raise RuntimeError(
                f"another block has this resource {self._wanted.kind}: call rollout.resource() "
                "for each block"
            )
        try:
            yield
        except BaseException:
            self._entered.release()
            raise


def wanted_resource(kind: Any, create: Any, destroy: Any, here: Any = False) -> WantedResource:
    """The resource of ``rollout.resource``.  Raises TypeError or ValueError."""
    if not isinstance(kind, str):
        raise TypeError(f"the kind of a resource is text, not {type(kind).__name__}")
    if not kind.isprintable() or not 0 < len(kind.encode()) <= RESOURCE_KIND_BYTES:
        raise ValueError(
            f"the kind of a resource is printable text of 1 to {RESOURCE_KIND_BYTES} bytes, not "
            f"{kind!r:.80}"
        )
    if not callable(create):
        given = type(create).__name__
        text = f"create of the resource {kind} is a function, not {given}"
        if inspect.iscoroutine(create):
            create.close()  # it never runs, and without this the interpreter warns of that
            text += ": write its name without a call"
        raise TypeError(text)
    _check_call(f"create of the resource {kind}", create, "name")
    reference = _reference(kind, destroy)
    _check_call(f"destroy of the resource {kind}", destroy, "name", "handle")
    if inspect.isgeneratorfunction(destroy) or inspect.isasyncgenfunction(destroy):
        text = "is a generator function (it has a yield): called, it would destroy nothing"
        raise TypeError(f"destroy of the resource {kind} {text}")
    if type(here) is not bool:
        raise TypeError(f"here of the resource {kind} is True or False, not {here!r:.80}")
    return WantedResource(str.__str__(kind), create, destroy, reference, here)


def _reference(kind: str, destroy: Any) -> str:
    if not inspect.isfunction(destroy):
        what = type(destroy).__name__
        raise TypeError(f"destroy of the resource {kind} is a function, not {what}: {_TOP}")
    module, name = destroy.__module__ or "", destroy.__qualname__
    loaded = sys.modules.get(module)
    if loaded is None or getattr(loaded, name, None) is not destroy:
        raise TypeError(f"destroy of the resource {kind} is {_described(destroy)}: {_TOP}")
    file = getattr(loaded, "__file__", "") if "@" in module else ""
    reference = "|".join((name, module, file)) if file else f"{name}|{module}"
    if not reference.isprintable() or len(reference.encode()) > RESOURCE_REFERENCE_BYTES:
        raise ValueError(
            f"the names of {name:.80} and its module take more than "
            f"{RESOURCE_REFERENCE_BYTES} bytes"
        )
    return reference


def _described(destroy: FunctionType) -> str:
    """Description of a function that cannot be found by its name."""
    if destroy.__name__ == "<lambda>":
        return "a lambda"
    if "<locals>" in destroy.__qualname__:
        return f"{destroy.__name__}, a function within another one"
    return f"{destroy.__qualname__}, which the module {destroy.__module__} does not have"


def _check_call(what: str, function: Callable[..., Any], *args: str) -> None:
    """Raise TypeError if a function does not take these arguments.  Without this check a wrong
    ``destroy`` would show only when it is called, with the resource already there."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function in C that does not say what it takes
        return
    try:
        signature.bind(*args)
    except TypeError as error:
        text = f"{what} is called with ({', '.join(args)}), which it does not take: {error}"
        raise TypeError(text) from None


def find_destroy(reference: str) -> Callable[[str, Any], Any]:
    """The function of a reference.  Raises what importing its module raises, and LookupError."""
    name, _, rest = reference.partition("|")
    module, _, file = rest.partition("|")
    # Not from sys.modules, which has a module from the begin of its import on.
    loaded = _load(module, file) if file else importlib.import_module(module)
    found = getattr(loaded, name, None)
    if not inspect.isfunction(found):
        raise LookupError(f"the module {module} has no function {name} any more")
    return found


def _load(name: str, file: str) -> ModuleType:
    """Load a module from a file, under the name that it had in the earlier worker."""
    with _LOADING:
        return sys.modules[name] if name in sys.modules else module_of_file(name, file)
