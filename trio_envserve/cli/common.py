"""Shared parts of all verbs: exit codes, signals, errors, JSON.

Theory of operation
-------------------
A verb is an async function that gets a :class:`StopRequest` and returns its exit code, its final
object, and what people are shown instead.  :func:`run_verb` runs it, and its :class:`StopRequest`
hears the signals: the first one cancels the verb, or asks it to stop if it says how
(:attr:`StopRequest.on_first`); the second one kills the workers and ends the verb.  An expected
error becomes one line on standard error and an exit code; anything else is a bug and keeps its
traceback.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, TypeVar, final

import click
import trio

from .. import foreign
from ..core.errors import (
    ConfigError,
    EnvServeError,
    ServerNotClosed,
    ServerNotReady,
    ServerStartError,
)
from ..envs.loading import check_spec
from ..envs.specs import SCHEMES
from ..evals.files import NotWritten
from ..logs import finish
from ..net import unwrap_single
from ..pages.tables import Table
from ..redaction import redacted
from .interrupts import Interrupts
from .render import emit, say, show

T = TypeVar("T")

OK, AT_ONCE, USAGE, NOT_STARTED, ROLLOUT_ERRORS, UNWRITTEN, NO_OUTCOME = 0, 1, 2, 3, 4, 5, 6
"""Exit codes; each verb says what its own mean (:func:`epilog`).  After a signal the verbs that
ask a server end with 128 plus its number, as a shell does."""

NO_SERVER = "no server answered within --wait-s"
WRONG_USAGE = "wrong usage: an option, an address, a name, a missing extra"
NOT_PRINTED = "standard output could not be written (the disk is full)"


def epilog(
    codes: Mapping[int, str] = MappingProxyType({}), *,
    interrupted: str = "interrupted (Ctrl-C, SIGTERM)",
) -> str:  # fmt: skip
    """The exit codes at the end of a verb's help.  ``codes``: those beside 0, 2 and 5, or
    other words for these; ``interrupted``: when it ends with 130 or 143."""
    texts = {OK: "done", USAGE: WRONG_USAGE, UNWRITTEN: NOT_PRINTED, **codes}
    lines = [f"  {code}  {texts[code]}" for code in sorted(texts)]
    lines.append(f"  130, 143  {interrupted}")
    return "\n".join(["\b", "Exit codes:", *lines, ""])


SERVICE = {
    OK: "stopped as asked",
    AT_ONCE: "stopped at once (a second signal, parent gone), or something did not end",
}
"""Exit codes of a verb that goes on until it is asked to stop."""
NOT_BEGUN = "interrupted while it was loading, before it had begun anything"
"""When such a verb, of which a signal is the normal end, ends as others do."""


LAST_RESORT_S = 3.0
"""Time that the orderly end may take after a second signal, in seconds; then the process ends
itself."""


class CommandError(EnvServeError):
    """An expected failure of a verb, with its exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Result(NamedTuple):
    """The result of a verb."""

    exit_code: int
    summary: dict[str, Any]
    """The object for ``--json``; ``exit`` is added to it."""
    shown: Sequence[Table | str] = ()
    """The result for people, without ``--json``."""


def nothing() -> None:
    """Do nothing: what a signal does beside asking a verb that waits for
    :attr:`StopRequest.asked`."""


@final
class StopRequest:
    """The request to end a verb.  One for each run."""

    def __init__(self, parent: int) -> None:
        self.asked = trio.Event()
        """Set by the first signal (or by the verb itself)."""
        self.number: int | None = None
        """The first signal."""
        self.parent = parent
        """The process that started this one."""
        self.at_once = False
        """A second signal came, or the parent has ended."""
        self.on_first: Callable[[], object] = nothing
        """A further action of the first signal.  It cancels the verb, if that sets no other."""
        self.so_far: Callable[[], Result] = lambda: Result(self.interrupted_code, {})
        """The result of a verb that was cancelled so."""
        self.hurry = trio.CancelScope()
        """Around all waiting that a second signal must end."""
        self.left_behind = False
        """A thread still runs environment code, and nobody waits for it."""
        self.kill: Callable[[], object] = lambda: None
        """Kills this command's own workers, once it has some."""
        self.not_closed: ServerNotClosed | None = None
        """Error by which this command's own server did not close; the process ends without it."""

    @property
    def why(self) -> str:
        """The first signal's name, or the empty string."""
        return "" if self.number is None else signal.Signals(self.number).name

    def ask(self, number: int | None = None) -> None:
        """Ask for an orderly end."""
        if not self.asked.is_set():
            self.number = number
            self.asked.set()
            self.on_first()

    def hear(self, number: int, nursery: trio.Nursery) -> None:
        """Take a signal: the first one asks for an orderly end, the second one ends at once."""
        if not self.asked.is_set():
            self.ask(number)
        elif not self.at_once:
            say("stopping at once")
            nursery.start_soon(self.end_at_once)

    async def end_at_once(self) -> None:
        """Kill the workers and end; does not return if that takes too long."""
        self.at_once = True
        self.ask()
        self.hurry.cancel()
        self.kill()
        await trio.sleep(LAST_RESORT_S)
        os._exit(AT_ONCE)

    async def leave_behind(self, do: Callable[..., T], *given: Any) -> T:
        """Call what may take long, such as an import of an environment, in a thread; after a
        signal nobody waits for it."""
        try:
            return await trio.to_thread.run_sync(do, *given, abandon_on_cancel=True)
        except trio.Cancelled:
            self.left_behind = True
            raise

    @property
    def interrupted_code(self) -> int:
        """The exit code of a verb that was interrupted in its work."""
        return AT_ONCE if self.at_once else 128 + (self.number or signal.SIGTERM)


VerbMain: TypeAlias = Callable[[StopRequest], Awaitable[Result]]


def run_verb(main: VerbMain, *, as_json: bool) -> int:
    """Run a verb and return its exit code; prints its final object, and expected errors."""
    interrupts = click.get_current_context().obj or Interrupts()
    return trio.run(_run, main, interrupts, StopRequest(interrupts.parent), as_json)


async def _run(main: VerbMain, interrupts: Interrupts, stop: StopRequest, as_json: bool) -> int:
    soon = trio.lowlevel.current_trio_token().run_sync_soon
    with unwrap_single():
        async with trio.open_nursery() as nursery:
            with interrupts.listening(lambda number: soon(stop.hear, number, nursery)):
                try:
                    result = await _cancellable(main, stop)
                    error: EnvServeError | None = stop.not_closed
                except BaseException as raised:  # noqa: ASYNC103  # no cancel of ours comes so far
                    if (error := _expected(raised)) is None:
                        raise
                    result = _failed(error)
            nursery.cancel_scope.cancel()
            if error is not None:
                say(f"error: {redacted(str(error))}")
            code = result.exit_code
            try:
                if as_json:
                    emit({**result.summary, "exit": code})
                else:
                    show(*result.shown)
            except NotWritten as problem:
                say(f"error: {problem}")
                code = code or UNWRITTEN
            if stop.left_behind or isinstance(error, ServerNotClosed):
                # trio would wait for the code that was left behind, or the interpreter.
                finish()
                os._exit(code)
    return code


async def _cancellable(main: VerbMain, stop: StopRequest) -> Result:
    with trio.CancelScope() as work:
        stop.on_first = work.cancel
        return await main(stop)
    return stop.so_far()


_CODES: Mapping[type[EnvServeError], int] = {
    ConfigError: USAGE, ServerNotClosed: AT_ONCE, NotWritten: UNWRITTEN,
    ServerStartError: NOT_STARTED, ServerNotReady: NOT_STARTED,
}  # fmt: skip
"""The exit codes of expected errors, beside those that say theirs."""


def _expected(raised: BaseException) -> EnvServeError | None:
    """The error to report, if everything that was raised is an expected error."""
    leaves = list(foreign.leaves(raised))
    told: tuple[type[EnvServeError], ...] = (CommandError, *_CODES)
    expected = [leaf for leaf in leaves if isinstance(leaf, told)]
    return expected[0] if expected and len(expected) == len(leaves) else None


def _failed(error: EnvServeError) -> Result:
    if isinstance(error, CommandError):
        code = error.exit_code
    else:
        code = next(code for kind, code in _CODES.items() if isinstance(error, kind))
    message = redacted(str(error))
    return Result(code, {"error": {"type": type(error).__name__, "message": message}})


# -- the author of an environment -------------------------------------------------------


def check_named(environment: str, args: Mapping[str, Any] | None) -> None:
    """Raise ConfigError for an environment that cannot be there; or CommandError, which tells as a
    server does where the author's code is wrong.  Of one that a library makes the error is
    enough."""
    try:
        check_spec(environment, args)
    except ConfigError as error:
        # Imported here: no verb that goes well needs it.
        from ..worker.failures import described_cause

        if environment.partition(":")[0] in SCHEMES or not (where := described_cause(error)):
            raise
        text = f"{environment}: {error}\n{where.rstrip()}"
        raise CommandError(text, NOT_STARTED) from None
