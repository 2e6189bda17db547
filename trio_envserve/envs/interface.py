"""The interface for authors of environments.

Theory of operation
-------------------
An environment is an object with ``run_rollout(rollout)``, which returns any
encodable value.  It may be written in three ways, the *backends*:

``trio``
    ``async def run_rollout``, run as a trio task.  The default for a coroutine
    function.  Cancelling raises ``trio.Cancelled`` in it.
``asyncio``
    ``async def run_rollout`` and the attribute ``backend = "asyncio"`` (the two
    kinds of coroutine look alike).  All rollouts of a worker share one asyncio
    loop in a thread.  Cancelling is ``task.cancel()``, once; the execution has
    ended when the coroutine has, clean-up included.  Tasks that a rollout
    starts must be ended by it.
``thread``
    a plain function, run in a thread.  The default for any other function.
    A thread cannot be stopped from outside: the execution has ended
    only when the function has returned.  Calls of the model raise
    :class:`RolloutCancelled`; between them, check ``rollout.cancelled()``.

(A plain function that declares ``backend = "trio"`` or ``"asyncio"`` is called
on that loop; what it returns is awaited if it can be.)

Optional members, run on the same backend: ``setup()`` and ``teardown()`` (plain
or coroutine functions), ``run_group(rollouts)`` (returns one value for each
rollout, in order; an exception *instance* in the list says that this member
failed), ``rescore(rollout, value)`` (returns the reward of a stored result, see
:mod:`.rescoring`), ``inputs(n, seed)`` (returns ``n`` inputs for a caller that has none).
Optional attributes: ``name``; ``rerun = True`` consents to a further execution of
any rollout after its worker was proven dead; ``capacity = 8`` says how many run at once on
one worker, where the server's own option does not; ``model_roles = ["judge"]`` says in which roles
it asks further models, so that a request without a model for one is refused before it runs.

By convention a result is a mapping with ``reward`` (float), ``completion``, and
``state``, a mapping of which only the state columns that the request names are
sent back: see :func:`trim_state`.  ``usage`` tells what the model calls came to, and
``prompt`` the messages of the first one: both are added to a result that is a dict, unless the
environment has put them there itself.  So is ``answered_by``, if another model than was asked
has answered; and ``stop: "deadline"``, if the rollout was late.
"""

from __future__ import annotations

import dataclasses
import operator
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from .. import foreign
from ..commands import CompletedProcess, run_of
from ..core.errors import ConfigError
from ..core.values import DecodingError
from ..models.interface import Asking, BlockingModel, Completion, Messages, Model, ModelError
from ..models.usage import ModelUsage
from ..sandboxes.sandbox import SandboxBlock, Sandboxed
from ..tracing import NO_TRACE, Trace
from .apart import TIMEOUT_S, ApartCall, call_of, checked, value_of
from .late import Late
from .made import MOST_BYTES, ProcessBlock, command_of
from .notes import RolloutNotes
from .permits import Claimed, Permit, claimed_limit, claimed_rate
from .resources import Resource, wanted_resource
from .saves import SavedTurn
from .services import WorkerServices

Backend: TypeAlias = Literal["trio", "thread", "asyncio"]
"""The way in which the code of an environment is run."""


MOST_NAMES = 16
"""Most names of other models that a rollout keeps."""


class RolloutCancelled(BaseException):
    """Raised by a call of the model in a thread whose rollout was cancelled.

    Like ``trio.Cancelled`` it is not an ``Exception``, so ``except Exception`` around
    a model call does not keep a cancelled rollout alive.
    """


def _never() -> bool:
    return False


def _no_roles(role: str) -> Model:
    raise ConfigError(f"no model has the role {role!r:.200}: this rollout has no further models")


def _nobody(piece: bytes) -> None:
    pass


@dataclasses.dataclass(frozen=True, slots=True)
class Rollout:
    """The rollout that an environment is asked to run."""

    input: Any
    """The input of the request, decoded; the environment's own."""
    model: Model
    """The model to ask; :meth:`ask` and :meth:`ask_sync` are shorter."""
    model_name: str
    """The model's name at its endpoint."""
    sampling_args: Mapping[str, Any]
    """Passed to the model as they are."""
    state_columns: tuple[str, ...]
    """The keys of ``state`` that the caller wants back."""
    attempt: int
    """1 for the first attempt of this execution, 2 after one failure, ..."""
    request: str
    """The request id, for logs: the same for all attempts and group members."""
    member: int = 0
    """Position in its group; 0 for a request of a single rollout."""
    cancelled: Callable[[], bool] = _never
    """True once the rollout has been cancelled.  May be called in any thread for
    the thread and asyncio backends; in trio only on the trio loop."""

    endpoint: str = ""
    """The endpoint of the model, as the request names it."""
    usage: ModelUsage = dataclasses.field(default_factory=ModelUsage)
    """Counts what :meth:`ask` and :meth:`ask_sync` did in this attempt, and in an earlier one until
    its last save."""
    delta: Callable[[bytes], None] = _nobody
    """Says one piece of the result that is to come, to a caller that follows the rollout.  May be
    called in any thread.  It never waits, and a piece may be lost: the result has all of them.
    Deltas of a group's members are dropped."""
    note: RolloutNotes = dataclasses.field(default_factory=RolloutNotes)
    """Says how far the rollout is: ``rollout.note(turn=3, text="reads the tests")``."""
    late: Late = dataclasses.field(default_factory=Late)
    """Whether the limit of the call has passed and its grace (``grace_s``) has begun: give what
    there is.  ``rollout.late.is_set()`` and ``rollout.late.left_s()`` may be called in any
    thread, ``await rollout.late.wait()`` on trio and asyncio."""
    saved: SavedTurn | None = None
    """The newest state that an earlier execution, or an earlier attempt, has saved; None: there is
    none."""
    _in_role: Callable[[str], Model] = _no_roles
    """The model in a role."""
    _trace: Trace = NO_TRACE
    """Trace of its execution."""
    _services: WorkerServices | None = None
    """What its worker does for it; None if no worker runs it."""
    _asked: list[Any] = dataclasses.field(default_factory=list)
    """Messages of the first call of the model, as they were then."""
    _answered_by: dict[str, None] = dataclasses.field(default_factory=dict)
    """The names of models that answered in the place of the one that was asked."""

    async def ask(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        reference: str | None = None,
        endpoint: str | None = None,
    ) -> Completion:
        """The model's answer (trio and asyncio).  Raises ``ModelError``.

        Args:
            messages: The conversation, oldest message first.
            tools: Tools that the model may call, as OpenAI's chat completions have them: ``{"type":
                "function", "function": {"name", "description", "parameters"}}``.
            reference: The environment's right answer: the offline models use it, and a model that
                is measured never sees it.
            endpoint: The role of another model to ask, such as ``"judge"``: the one that the
                request names for it, or else the endpoint of that name in the file of endpoints.
                Nothing of it is a part of the result but ``usage``, under ``roles``.
        """
        call = self._begin(messages, endpoint)
        try:
            completion = await call.model.complete(messages, **self._how(call, tools, reference))
        except ModelError as error:
            call.usage.refused(error, time.monotonic() - call.began_s)
            raise
        return self._answered(call, completion)

    def ask_sync(
        self, messages: Messages, *, tools: Sequence[Mapping[str, Any]] = (),
        reference: str | None = None, endpoint: str | None = None,
    ) -> Completion:  # fmt: skip
        """Like ``ask``, for environments that run in a thread: in any thread that they start.
        Raises :class:`RolloutCancelled`, too, and ``TypeError`` outside of a thread.
        """
        call = self._begin(messages, endpoint)
        if not isinstance(call.model, BlockingModel):
            raise TypeError("ask_sync() is for environments that run in a thread: await ask()")
        try:
            completion = call.model.complete_sync(messages, **self._how(call, tools, reference))
        except ModelError as error:
            call.usage.refused(error, time.monotonic() - call.began_s)
            raise
        return self._answered(call, completion)

    async def apart(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        timeout_s: float = TIMEOUT_S,
        memory_bytes: int | None = None,
    ) -> Any:
        """The value of ``function(*args)``, called in another process (trio and asyncio)::

            reward = await rollout.apart(score, answer, timeout_s=5)

        That holds up nobody, whatever it does, and is killed at its limits, or when the rollout is
        cancelled.  Raises what the function raises, ``ApartTimeout``, ``ApartOutOfMemory``,
        ``ApartDied``, and ``TypeError`` for what cannot be pickled and for a value that is no
        data.  Needs the extra ``apart``.

        Args:
            function: A plain function at the top of a module.
            *args: Its arguments, which are pickled, as its value is.
            timeout_s: Time that the call may take, in seconds, before its process is ended. It
                counts from the begin of the call there.
            memory_bytes: Memory that the call may take beside what its process has; None: no
                limit. On Linux only.
        """
        return await self._apart(call_of(function, args, checked(timeout_s, memory_bytes)))

    def apart_sync(
        self, function: Callable[..., Any], /, *args: Any, timeout_s: float = TIMEOUT_S,
        memory_bytes: int | None = None,
    ) -> Any:  # fmt: skip
        """Like ``apart``, for environments that run in a thread: in any thread that they start.
        Raises :class:`RolloutCancelled`, too.
        """
        call = call_of(function, args, checked(timeout_s, memory_bytes))
        services = self._served()
        with self._trace.span(f"apart {call.name}", {}):
            reply = services.carrier.call_sync(partial(services.apart, call))
        return value_of(call.name, reply)

    async def save(self, state: Any, *, doing: str | None = None) -> None:
        """Save a state, which replaces the one before; a further execution finds it in
        :attr:`saved` (trio and asyncio).  Returns once it is safe.

        Raises ``SaveRefused`` if nothing of it is kept, and ``EncodingError`` for what has no
        encoding; then the state before it stays.

        Args:
            state: Any value that can be encoded.
            doing: What the code does next, in words, if it must not be done twice: a further
                execution is told that it is in doubt.
        """
        record, services = self._to_save(state, doing), self._services
        if services is not None:
            await services.carrier.call(partial(services.save, record))

    def save_sync(self, state: Any, *, doing: str | None = None) -> None:
        """Like ``save``, for environments that run in a thread: in any thread that they start.
        Raises :class:`RolloutCancelled`, too.
        """
        record, services = self._to_save(state, doing), self._services
        if services is not None:
            services.carrier.call_sync(partial(services.save, record))

    @contextmanager
    def span(self, name: str, **attributes: str | bool | int | float) -> Iterator[None]:
        """A span for this block in the trace of the rollout, if that is kept::

            with rollout.span("compile", files=3):
                ...

        May be used in any thread.  Of an exception of the block only the type is noted.

        Args:
            name: Name of the span.
            **attributes: Its attributes.
        """
        with self._trace.span(name, attributes):
            yield

    def _to_save(self, state: Any, doing: str | None) -> dict[str, Any]:
        """The record of a save: the state, and what the result says of the model calls so far."""
        if doing is not None and not isinstance(doing, str):
            raise TypeError(f"doing must be text, not {type(doing).__name__}")
        return {
            "state": state,
            "doing": doing,
            "usage": self.usage.to_record(),
            "asked": self._asked if all(map(_is_plain, self._asked)) else [],
            "answered_by": [*self._answered_by],
        }

    def limit(self, name: str, most: int) -> Permit:
        """A permit for this block, of which at most ``most`` are held at once by all rollouts, over
        all workers and hosts::

            async with rollout.limit("sandboxes", 10):
                ...

        In a thread it is ``with``.  The block waits until a permit is free; the oldest claim of a
        name comes first.  A permit comes back when its block ends, at the latest with the
        execution, also if its worker dies.  Where rollouts state different limits for one name, the
        smallest of those that hold a permit, or wait for one, counts.  Raises TypeError or
        ValueError.

        Args:
            name: Name of the limit: printable text of at most 128 bytes.
            most: Most permits that are held at once.
        """
        return self._permit(claimed_limit(name, most))

    def rate(self, name: str, per_s: float) -> Permit:
        """Lets this block begin when the rate of all rollouts allows it, over all workers and
        hosts::

            async with rollout.rate("creates", per_s=5):
                ...

        Beginnings are ``1 / per_s`` seconds apart.  All else is as for :meth:`limit`.

        Args:
            name: Name of the rate: printable text of at most 128 bytes.
            per_s: Most blocks that begin in a second, from 1/3600 on.
        """
        return self._permit(claimed_rate(name, per_s))

    @property
    def folder(self) -> Path:
        """A folder for this attempt alone, made when it is first asked for.  It is removed with all
        that is in it when the attempt is over, whatever ended it.

        May be used in any thread.  Raises RuntimeError after that, and OSError if it cannot be
        made.
        """
        return self._served().made.folder()

    def process(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        stdin: Literal["pipe", "null"] = "pipe",
        stdout: Literal["pipe", "null"] = "pipe",
        stderr: Literal["pipe", "stdout", "null"] = "pipe",
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str | None] | None = None,
    ) -> ProcessBlock:
        """A process for this block::

            async with rollout.process(["sort", "-u"]) as process:
                await process.send(text)
                await process.end_input()
                first = await process.receive_line()

        In a thread it is ``with``, and without ``await``.  When the block ends, at the latest with
        the attempt, whatever ended it, the process and all that descends from it have been killed,
        in whatever session they are.  Raises ``ProcessNotStarted``, and TypeError or ValueError.

        Args:
            command: The program, which is looked for on the ``PATH`` of the process, and its
                arguments.
            stdin: ``"pipe"``, or ``"null"``: there is nothing to read.
            stdout: ``"pipe"``, or ``"null"``: it is dropped.
            stderr: ``"pipe"``: the last 64 KiB are kept; ``"stdout"``: it goes there, too;
                ``"null"``: it is dropped.
            cwd: Directory in which it runs; :attr:`folder` by default.
            env: Variables that it has beside those of the worker; None in the place of a value
                takes one away.  Secrets that are hidden (``--secret-env``, ``key_env``) are not
                passed on, unless they are named here.
        """
        services = self._served()
        words = command_of(command, stdin=stdin, stdout=stdout, stderr=stderr, cwd=cwd, env=env)
        return ProcessBlock(services.carrier, services.made, words)

    async def run(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        input: bytes | str = b"",
        timeout_s: float | None = None,
        most_bytes: int = MOST_BYTES,
        check: bool = False,
        stderr: Literal["pipe", "stdout", "null"] = "pipe",
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str | None] | None = None,
    ) -> CompletedProcess:
        """Run a process to its end (trio and asyncio); all that descends from it is dead then::

            completed = await rollout.run(["pytest", "-q"], cwd=repository, timeout_s=60)

        Raises ``ProcessNotStarted``, ``ProcessTimeout``, ``ProcessFailed``, and TypeError or
        ValueError.

        Args:
            command: The program and its arguments, as for :meth:`process`.
            input: Its standard input; text as UTF-8.
            timeout_s: Time after which it is killed, in seconds; None: no limit.
            most_bytes: Most bytes that are kept of each output: its beginning and its end.
            check: Raise ``ProcessFailed`` if its return code is not 0.
            stderr: As for :meth:`process`.
            cwd: As for :meth:`process`.
            env: As for :meth:`process`.
        """
        services, how = self._served(), run_of(input, timeout_s, most_bytes, check)
        words = command_of(command, stderr=stderr, cwd=cwd, env=env)
        work = partial(services.made.run, words, how)
        with self._trace.span(f"process {words.name}", {}):
            completed: CompletedProcess = await services.carrier.call(work)
        return completed

    def run_sync(
        self, command: Sequence[str | os.PathLike[str]], *, input: bytes | str = b"",
        timeout_s: float | None = None, most_bytes: int = MOST_BYTES, check: bool = False,
        stderr: Literal["pipe", "stdout", "null"] = "pipe",
        cwd: str | os.PathLike[str] | None = None, env: Mapping[str, str | None] | None = None,
    ) -> CompletedProcess:  # fmt: skip
        """Like ``run``, for environments that run in a thread: in any thread that they start.
        Raises :class:`RolloutCancelled`, too.
        """
        services, how = self._served(), run_of(input, timeout_s, most_bytes, check)
        words = command_of(command, stderr=stderr, cwd=cwd, env=env)
        work = partial(services.made.run, words, how)
        with self._trace.span(f"process {words.name}", {}):
            completed: CompletedProcess = services.carrier.call_sync(work)
        return completed

    def resource(
        self, kind: str, create: Callable[[str], Any], destroy: Callable[[str, Any], Any], *,
        here: bool = False,
    ) -> Resource:  # fmt: skip
        """A resource for this block, such as a sandbox, that lives outside of the process and is
        destroyed when the rollout is over, whatever ends it::

            async with rollout.resource("sandbox", create, destroy) as handle:
                ...

        In a thread it is ``with``.  The server writes the resource down before it is created and
        after.  Where the rollout cannot destroy it (its worker dies, or ``destroy`` raises), a
        worker does later.  Both functions are called where the block is, and may be coroutine
        functions on trio and asyncio; a plain one is called in a thread there.  Entering the block
        raises ``ResourceError`` if nothing may be created.  Raises TypeError or ValueError.

        Args:
            kind: Kind of the resource, for people: printable text of at most 64 bytes.
            create: Called with the *name* of the resource, a text that is unique for ever; returns
                a small value, the handle.  Label with the name what is created.
            destroy: Called with the name and the handle, or None for that if nobody knows whether
                anything was created; then the name finds it.  A function at the top of a module;
                it may be called again for what is gone.
            here: Whether it is of this machine, as a folder is: then only a worker of the same
                host destroys it. By default a worker of any host may.
        """
        wanted = wanted_resource(kind, create, destroy, here)
        return Resource(self._served().resources(), wanted)

    def sandbox(self, provider: str | Sandboxed, **spec: Any) -> SandboxBlock:
        """A sandbox for this block, in which the code of a model can run::

            async with rollout.sandbox("bubblewrap", memory_bytes=512 << 20) as sandbox:
                done = await sandbox.exec(["python3", "-c", code], timeout_s=10)

        In a thread it is ``with``, and ``exec_sync``.  It is a resource (:meth:`resource`): gone
        when the rollout is over, however that ends.  Raises :class:`ConfigError` for what the
        provider cannot make, and ``SandboxUnavailable``.

        Args:
            provider: Name of the provider: ``bubblewrap``, ``docker``, ``podman``, or another's; or
                all of it as a ``Sandboxed``.
            **spec: Its properties: ``image``, ``memory_bytes``, ``processes``, ``cpu_s``,
                ``disk_bytes``, ``network``, ``files``, ``env``, ``readable``.
        """
        made = Sandboxed(provider, **spec) if isinstance(provider, str) else provider
        if not isinstance(made, Sandboxed) or (made is provider and spec):
            raise TypeError("a sandbox is the name of its provider and properties, or a Sandboxed")
        return SandboxBlock(self.resource, self._served().carrier, made)

    def _permit(self, claimed: Claimed) -> Permit:
        services, is_rate = self._services, claimed.per_s is not None
        if services is None:
            return Permit(None, is_rate=is_rate)
        return Permit((services.carrier, partial(services.claim, claimed)), is_rate=is_rate)

    async def _apart(self, call: ApartCall) -> Any:
        services = self._served()
        with self._trace.span(f"apart {call.name}", {}):
            reply = await services.carrier.call(partial(services.apart, call))
        return value_of(call.name, reply)

    def _served(self) -> WorkerServices:
        """The services of its worker.  Raises ``RuntimeError`` if no worker runs it."""
        if self._services is None:
            raise RuntimeError(
                "no worker runs this rollout, so it has no folder, process, resource, sandbox or "
                "call apart"
            )
        return self._services

    def _begin(self, messages: Messages, role: str | None) -> _Call:
        if isinstance(messages, (str, Mapping)):  # which have members, too: letters, names
            raise TypeError(
                'messages are a list, such as [{"role": "user", "content": "..."}], '
                f"not {type(messages).__name__}"
            )
        if role is not None:
            if not isinstance(role, str) or not role:
                raise TypeError(f'endpoint is a role, such as "judge", not {role!r:.80}')
            return _Call(self._in_role(role), self.usage.of_role(role), time.monotonic())
        if not self._asked and type(messages) is list:
            self._asked.extend(map(_copied, messages))
        return _Call(self.model, self.usage, time.monotonic())

    def _answered(self, call: _Call, completion: Completion) -> Completion:
        usage = self.usage
        call.usage.answered(completion, time.monotonic() - call.began_s)
        if call.usage is not usage:
            return completion
        if completion.answered_by and len(self._answered_by) < MOST_NAMES:
            self._answered_by[completion.answered_by] = None
        self.note.add(turn=usage.calls, tokens=usage.prompt_tokens + usage.completion_tokens)
        return completion

    def _how(
        self, call: _Call, tools: Sequence[Mapping[str, Any]], reference: str | None
    ) -> Asking:
        own = call.usage is self.usage
        name, sampling = (self.model_name, self.sampling_args) if own else ("", {})
        sampling = {**sampling, "tools": list(tools)} if tools else sampling
        return {"name": name, "sampling_args": sampling, "reference": reference}


class _Call(NamedTuple):
    """A call of a model that begins."""

    model: Model
    usage: ModelUsage
    """The counts that it belongs to."""
    began_s: float


def resumed(rollout: Rollout, saved: Mapping[str, Any]) -> Rollout:
    """A rollout that has made no call yet, with what an earlier one has saved.  Raises
    ``DecodingError`` for a record that is none."""
    match saved:
        case {
            "state": state, "doing": None | str() as doing, "usage": dict() as usage,
            "asked": list() as asked, "answered_by": list() as names,
        } if usage.keys() - {"roles"} == rollout.usage.to_record().keys():  # fmt: skip
            rollout.usage._resume(usage)
            rollout._asked.extend(asked)
            rollout._answered_by.update(dict.fromkeys(names))
            # Who begins anew has saved None.
            turn = None if state is None and doing is None else SavedTurn(state, doing)
            return dataclasses.replace(rollout, saved=turn)
        case _:
            raise DecodingError("saved: it is not what a rollout saves")


def recorded(value: Any, rollout: Rollout) -> Any:
    """A result with ``prompt`` and ``usage``, if its rollout has asked the model and its code
    has not put them there itself; and with ``answered_by``, the models that answered, where one
    of them is another than was asked.  A late rollout's has ``stop: "deadline"``, if its code
    does not say another.  Only a plain dict gets them, and is not changed; a ``completion`` that
    begins with the prompt has it already."""
    usage = rollout.usage
    if type(value) is not dict:
        return value
    if rollout.late.is_set():
        value = {"stop": "deadline", **value}
    if not usage.is_used:
        return value
    made: dict[str, Any] = {}
    asked, completion = rollout._asked, value.get("completion")
    # Values of others may not be comparable, as arrays are not.
    begins = type(completion) is list and foreign.call(operator.eq, completion[: len(asked)], asked)
    told = begins and begins.value
    if asked and not told and all(map(_is_plain, asked)):
        made["prompt"] = asked
    if rollout._answered_by:
        made["answered_by"] = [*rollout._answered_by]
    return {**made, "usage": usage.to_record(), **value}


_PLAIN = (str, int, float, bool, type(None))


def _copied(message: Any) -> Any:
    """A copy of plain containers, and text that can be encoded."""
    if type(message) is str:
        return message.encode("utf-8", "backslashreplace").decode()
    if type(message) is dict:
        return {_copied(key): _copied(item) for key, item in message.items()}
    return [_copied(item) for item in message] if type(message) is list else message


def _is_plain(message: Any) -> bool:
    if type(message) is dict:
        return all(type(key) is str and _is_plain(item) for key, item in message.items())
    return all(map(_is_plain, message)) if type(message) is list else type(message) in _PLAIN


class Environment(Protocol):
    """The members that an environment must have; the module's docstring has the optional ones."""

    def run_rollout(self, rollout: Rollout) -> Any:
        """Run one rollout; a plain or a coroutine function.

        Args:
            rollout: The input, and the model to ask.
        """
        ...


_MAPPING = (dict, Mapping)
"""Types of mappings; dict is tested first, because Mapping takes long to test."""


def trim_state(value: Any, columns: tuple[str, ...]) -> Any:
    """``value`` with only the wanted columns of its ``state``.

    A value that is not a mapping is returned as it is.  Without columns the result
    has no ``state`` key.  A column that is missing in the state becomes None, so
    every row has the same columns.  Raises ``TypeError`` if ``state`` is
    neither a mapping nor None.  Does not change the given mapping.
    """
    if not isinstance(value, _MAPPING):
        return value
    if not columns and "state" not in value:
        return value
    state = value.get("state")
    if state is not None and not isinstance(state, Mapping):
        raise TypeError(f"the result's 'state' must be a mapping, not {type(state).__name__}")
    trimmed = {key: item for key, item in value.items() if key != "state"}
    if columns:
        trimmed["state"] = {column: (state or {}).get(column) for column in columns}
    return trimmed
