"""The checks of ``validate``: they try an environment in a process of its own.

Theory of operation
-------------------
The parent gives a :class:`Wanted` as JSON on standard input, and gets a line of JSON on standard
output for each check that begins and for each finding.  The environment's own output goes to
standard error.  Nothing here has a time limit of its own but the cancel: the parent sees which
check does not end, and ends the process, which ends by itself if the parent was killed.

The environment runs as in a worker, on a :class:`~.runners.Runner`.  All inputs run twice.  Tasks,
threads, children and descriptors that exist after the second time and not after the first count as
left behind; so those that an environment opens once, at its first rollout, do not count.  The
inputs run a third time, eight at once, and must earn the rewards that they earned one after the
other.

Code that sets a handler of signals in a thread is refused by Python, and where an ``except``
hides that, a right answer earns nothing.  So each such attempt is noted.
"""

from __future__ import annotations

import asyncio
import dataclasses
import faulthandler
import gc
import inspect
import json
import logging
import os
import select
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias, final

import trio

from .. import foreign
from ..core import values
from ..core.errors import ConfigError
from ..core.limits import WireLimits
from ..envs.classes import ClassEnvironment
from ..envs.interface import Rollout
from ..envs.loading import LoadedEnvironment, load
from ..envs.request import RolloutRequest
from ..envs.rewards import number_of, reward_in
from ..models.endpoints import hide_secrets
from ..models.interface import Completion, Messages
from ..models.registry import BUILT_IN, Models
from ..redaction import redacted
from .failures import EnvironmentFailure, describe_exception, described_cause
from .reaper import end_process_group
from .runners import Runner, open_runner
from .stacks import tasks_below
from .tracebacks import is_ours

HELD_S = 0.2
"""A loop that is held for longer is worth a warning."""

SETTLE_S = 2.0
"""Time that leftovers of a rollout may take to go, in seconds."""

AT_ONCE = 8
"""Rollouts that run at once, to be compared with one after the other."""

_NEVER = "never"


Level: TypeAlias = Literal["ok", "warning", "failed", "skipped"]


@final
class Findings:
    """Tells the parent which check begins, and what each found."""

    def __init__(self, tell: Callable[[dict[str, Any]], None]) -> None:
        self._tell = tell

    def begin(self, check: str) -> None:
        """Report that a check begins; a parent that waits too long names it."""
        self._tell({"began": check})

    def say(self, check: str, level: Level, text: str, traceback: str = "") -> None:
        """A finding of this check."""
        # Names of threads and processes may be anything: what is told can be printed.
        text = redacted(text).encode("utf-8", "backslashreplace").decode()
        self._tell({"check": check, "finding": level, "text": text, "traceback": traceback})

    def raised(self, check: str, text: str, error: BaseException) -> None:
        """The check failed, because the environment raised ``error``."""
        about = describe_exception(error)
        self.say(check, "failed", f"{text} {about.type}: {about.message}", about.traceback)

    def end(self) -> NoReturn:
        """There are no more.  The process ends, whatever still runs in it."""
        self._tell({"ended": True})
        os._exit(0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The environment to validate, and how."""

    environment: str
    args: dict[str, Any]
    n: int
    seed: int
    model: str
    model_name: str = ""
    roles: dict[str, str] = dataclasses.field(default_factory=dict)
    inputs: list[Any] | None = None
    """Inputs to use instead of the environment's own."""
    cancel_s: float = 5.0
    path: list[str]
    keep_path: bool = False
    """Whether ``path`` goes before this interpreter's own path, since the parent has another
    interpreter."""


@final
class NeverModel:
    """Does not answer until it is cancelled; says when it is asked."""

    def __init__(self) -> None:
        self.asked = trio.Event()

    async def complete(
        self, messages: Messages, *, name: str, sampling_args: Mapping[str, Any],
        reference: str | None = None,
    ) -> Completion:  # fmt: skip
        """Sleeps."""
        self.asked.set()
        await trio.sleep_forever()

    async def aclose(self) -> None:
        """Nothing to give back."""
        await trio.lowlevel.checkpoint()


@final
class SignalWatch:
    """Notes where handlers of signals are set in a thread, which Python refuses."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._set = signal.signal

    def begin(self) -> None:
        """Watch from now on, in the whole process."""
        signal.signal = self._signal  # type: ignore[assignment]  # for code that is loaded later

    def _signal(self, number: Any, handler: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            frames = [each for each in traceback.extract_stack()[:-1] if not is_ours(each.filename)]
            last = frames[-1] if frames else None
            self.lines.append(f"{last.filename}:{last.lineno}, in {last.name}" if last else "?")
        return self._set(number, handler)


@final
class Validation:
    """One environment under validation."""

    def __init__(
        self, wanted: Wanted, findings: Findings, signals: SignalWatch | None = None
    ) -> None:
        self._signals = signals or SignalWatch()
        self._wanted = wanted
        self._findings = findings
        self._say = findings.say
        self._model = wanted.model
        self._never = NeverModel()
        self._longest_s = 0.0
        """The longest rollout."""
        self._held_s = 0.0
        """Longest time for which the loop was held, in seconds."""
        self._values: list[Any] = []
        self._twice: list[tuple[Any, Any]] = []
        """For each input, what its two rollouts returned that ran alone."""
        self._asyncio_tasks: Counter[str] = Counter()
        """The leftovers on the environment's asyncio loop after the last rollout."""

    async def run(self) -> None:
        """All checks, as far as they can be made."""
        self._findings.begin("load")
        try:
            environment = load(self._wanted.environment, self._wanted.args)
        except ConfigError as error:
            self._say("load", "failed", str(error), described_cause(error))
            return
        kind = {"trio": "a coroutine function on trio", "asyncio": "on asyncio"}
        how = kind.get(environment.backend, "a plain function, in threads")
        if isinstance(environment.environment, ClassEnvironment):
            how = _about_class(environment.environment)
        self._say("load", "ok", f"{environment.name} is found and made; it runs as {how}")
        inputs = self._inputs(environment)
        if inputs is not None:
            await self._with(environment, inputs)

    def _inputs(self, environment: LoadedEnvironment) -> list[Any] | None:
        """The inputs to run; None if there are none."""
        wanted = self._wanted
        self._findings.begin("inputs")
        if wanted.inputs is not None:
            self._say("inputs", "ok", f"{len(wanted.inputs)} are given")
            return wanted.inputs
        return check_inputs(self._findings, environment, wanted.n, wanted.seed)

    def _watched(self, environment: LoadedEnvironment) -> LoadedEnvironment:
        """The environment, whose rollouts tell what they leave on an asyncio loop."""
        if environment.backend != "asyncio":
            return environment

        async def run_rollout(rollout: Rollout) -> Any:
            try:
                value = environment.run_rollout(rollout)
                return await value if inspect.isawaitable(value) else value
            finally:
                for _ in range(5):  # what was cancelled ends in the next steps of asyncio
                    await asyncio.sleep(0)  # noqa: ASYNC102
                own = asyncio.current_task()
                others = [task for task in asyncio.all_tasks() if task is not own]
                self._asyncio_tasks = Counter(map(_name_of, others))

        return dataclasses.replace(environment, run_rollout=run_rollout)

    async def _with(self, environment: LoadedEnvironment, inputs: list[Any]) -> None:
        """The checks that need the environment set up."""
        self._findings.begin("setup")
        factories = {**BUILT_IN, _NEVER: lambda _: self._never}
        models = Models(factories)
        warned = _Warnings()
        ready = False
        logging.getLogger("trio_envserve.worker").addHandler(warned)
        try:
            watched = self._watched(environment)
            async with open_runner(watched, threads=64, models=models) as runner:
                ready = True
                if environment.setup is not None:
                    self._say("setup", "ok", "setup() ran")
                if await self._rollouts(runner, inputs):
                    check_results(self._findings, self._values)
                    most = getattr(environment.environment, "max_reward", 1.0)
                    asked = bool(runner.usage.calls)
                    check_rewards(self._findings, self._values, self._model, most, asked)
                    await self._at_once(runner, inputs)
                    self._check_signals(environment)
                    await self._cancel(runner, inputs[0])
                self._findings.begin("teardown")
        except (ConfigError, EnvironmentFailure) as error:
            if ready:
                raise
            if isinstance(error, ConfigError):
                self._say("setup", "failed", str(error), described_cause(error))
            else:
                self._findings.raised("setup", "setup() raised", error.exception)
            return
        if warned.warnings:
            self._say("teardown", "warning", warned.warnings[0])
        elif environment.teardown is not None:
            self._say("teardown", "ok", "teardown() ran")

    async def _rollouts(self, runner: Runner, inputs: list[Any]) -> bool:
        self._findings.begin("rollouts")
        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            await nursery.start(self._watch_loop)
            worked = await self._batch(runner, inputs)
            nursery.cancel_scope.cancel()
        if not worked:
            return False
        took_s = trio.current_time() - began_s
        text = f"{len(inputs)} ran, one after the other, in {took_s:.2f} s (model {self._model})"
        self._say("rollouts", "ok", text)
        if self._held_s > HELD_S:
            self._say(
                "event loop", "warning",
                f"it was held for {self._held_s:.2f} s: other rollouts of the worker stand still "
                "meanwhile; use a plain function (it runs in threads), or trio.to_thread.run_sync",
            )  # fmt: skip
        else:
            self._say("event loop", "ok", f"never held for more than {self._held_s * 1e3:.0f} ms")
        self._findings.begin("left behind")
        before, first = await self._settled(None), self._values
        worked = await self._batch(runner, inputs)
        if worked:
            self._twice = list(zip(first, self._values, strict=True))
            after = await self._settled(before)
            self._left(before, after, len(inputs), f"{len(inputs)} rollouts")
        return worked

    async def _at_once(self, runner: Runner, inputs: list[Any]) -> None:
        """Run the inputs eight at once, and compare with what they earned before."""
        self._findings.begin("at once")
        alone = [(reward_in(first)[0], reward_in(second)[0]) for first, second in self._twice]
        numbers = [number % len(inputs) for number in range(max(len(inputs), AT_ONCE))]
        failed: list[tuple[int, BaseException]] = []
        other: list[str] = []
        free = trio.CapacityLimiter(AT_ONCE)

        async def run(number: int) -> None:
            async with free:
                try:
                    request = self._request(inputs[number])
                    value = await runner.run(request, request_id=f"validate-at-once-{number}")
                except (EnvironmentFailure, ConfigError) as error:
                    failed.append((number, error))
                    return
            before, again = alone[number]
            earned, _ = reward_in(value)
            if before == again != earned:
                other.append(f"input {number} earns {before} alone and {earned} so")

        async with trio.open_nursery() as nursery:
            for number in numbers:
                nursery.start_soon(run, number)
        if failed:
            number, error = failed[0]
            about = describe_exception(error)
            text = f"{len(failed)} of {len(numbers)} rollouts failed with {AT_ONCE} at once, and"
            text += f" none alone: input {number}: {about.type}: {about.message}"
            self._say("at once", "failed", f"{text} ({self._why(about.message)})", about.traceback)
        elif other:
            text = f"{len(other)} of {len(numbers)} rollouts earn another reward"
            text = f"{text} with {AT_ONCE} at once: {other[0]} ({self._why('')})"
            self._say("at once", "failed", text)
        elif any(first != second for first, second in alone):
            text = "rewards differ from run to run: nothing to compare"
            self._say("at once", "ok", f"{AT_ONCE} ran at once, and none failed; {text}")
        else:
            text = f"with {AT_ONCE} at once they earn what they earn alone"
            self._say("at once", "ok", text)

    def _why(self, message: str) -> str:
        """The likely reason for a difference between alone and at once."""
        if self._signals.lines or "signal" in message:
            return "signals work in the main thread only"
        if "thread" in message:
            return "it is used in another thread than it was made in"
        return "they share something: the environment, a global, a file, a port"

    def _check_signals(self, environment: LoadedEnvironment) -> None:
        if not self._signals.lines:
            return
        advice = "an async def run_rollout runs in the main thread"
        if isinstance(environment.environment, ClassEnvironment):
            advice = "say main_thread = True on the class"
        self._say(
            "signals", "failed",
            f"a handler of signals was set in a thread, which Python refuses; an except may hide "
            f"it, and a right answer then earns nothing: {advice} ({self._signals.lines[0]})",
        )  # fmt: skip

    async def _batch(self, runner: Runner, inputs: list[Any]) -> bool:
        """Run all inputs, one after the other; False, said, if one fails."""
        self._values = []
        for number, given in enumerate(inputs):
            began_s = trio.current_time()
            try:
                value = await runner.run(self._request(given), request_id=f"validate-{number}")
            except (EnvironmentFailure, ConfigError) as error:
                about = describe_exception(error)
                if "this task has none" in about.message and self._model == "oracle":
                    self._model = "random"
                    text = "the environment gives the model no reference: the oracle cannot answer"
                    self._say("rollouts", "skipped", f"{text}, and `random` does in its place")
                    return await self._batch(runner, inputs)
                text = f"input {number} failed: {about.type}: {about.message}"
                self._say("rollouts", "failed", text, about.traceback)
                return False
            self._longest_s = max(self._longest_s, trio.current_time() - began_s)
            self._values.append(value)
        return True

    def _request(self, given: Any, model: str = "") -> RolloutRequest:
        return RolloutRequest(
            kind="rollout", input=given, endpoint=model or self._model,
            model_name=self._wanted.model_name, roles=self._wanted.roles,
        )  # fmt: skip

    async def _watch_loop(self, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        while True:
            asked_s = trio.current_time()
            try:
                await trio.sleep(0.005)
            finally:  # also when the last rollout, which held it, has ended
                self._held_s = max(self._held_s, trio.current_time() - asked_s - 0.005)

    async def _cancel(self, runner: Runner, given: Any) -> None:
        """A rollout whose model does not answer is cancelled."""
        self._findings.begin("cancelling")
        before = await self._settled(None)
        ended, scope = trio.Event(), trio.CancelScope()

        async def rollout() -> None:
            with scope:
                try:
                    await runner.run(self._request(given, _NEVER), request_id="validate-cancel")
                except EnvironmentFailure:
                    pass  # what it raises while it is cancelled is its own affair
            ended.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(rollout)
            with trio.move_on_after(max(self._longest_s / 2, 0.05)):
                await self._never.asked.wait()
            by_itself = ended.is_set()
            began_s = trio.current_time()
            scope.cancel()
            with trio.move_on_after(self._wanted.cancel_s):
                await ended.wait()
            took_s = trio.current_time() - began_s
            if not ended.is_set():
                self._say(
                    "cancelling", "failed",
                    f"a cancelled rollout did not end in {self._wanted.cancel_s:g} s: await "
                    "something, ask rollout.cancelled(), and let cancellations through",
                )  # fmt: skip
                self._findings.end()  # the rollout would hold it up
        if by_itself:
            self._say("cancelling", "skipped", "a rollout ended before it could be cancelled")
            return
        self._say("cancelling", "ok", f"a cancelled rollout ended in {took_s * 1e3:.0f} ms")
        self._left(before, await self._settled(before), 1, "the cancelled rollout")

    async def _settled(self, before: Snapshot | None) -> Snapshot:
        """A snapshot, after a time for things to end by themselves."""
        until_s = trio.current_time() + (0.1 if before is None else SETTLE_S)
        while True:
            gc.collect()
            await trio.sleep(0.02)
            now = snapshot()
            now.tasks.update(self._asyncio_tasks)
            if trio.current_time() >= until_s or (before is not None and not now.more_than(before)):
                return now

    def _left(self, before: Snapshot, after: Snapshot, count: int, who: str) -> None:
        found = after.more_than(before)
        for kind, names in found.items():
            shown = ", ".join(f"{times} x {name}" for name, times in names.most_common(3))
            text = f"{sum(names.values())} {kind} after {who}: {shown}"
            level: Level = "failed" if sum(names.values()) >= count else "warning"
            self._say("left behind", level, text)
        if not found:
            text = f"no tasks, threads, children or descriptors after {who}"
            self._say("left behind", "ok", text)


@final
class _Warnings(logging.Handler):
    """Keeps the warnings of the worker's log: what it says of a teardown that failed."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.warnings: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.warnings.append(record.getMessage())


def _about_class(environment: ClassEnvironment) -> str:
    """The threads and loops on which the objects of a class run, and the tools that the model can
    call, in words."""
    tools = ", ".join(environment.tools) or "none"
    where = "the main thread, one rollout at a time" if environment.main_thread else "threads"
    loop = "asyncio" if environment.backend == "asyncio" else "trio"
    return f"a class: its plain methods in {where}, its coroutines on {loop} (tools: {tools})"


def _name_of(task: asyncio.Task[Any]) -> str:
    return getattr(task.get_coro(), "__qualname__", "") or task.get_name()


# -- values: inputs, results, rewards -------------------------------------------------


def check_inputs(
    findings: Findings, environment: LoadedEnvironment, n: int, seed: int
) -> list[Any] | None:
    """The environment's own inputs; None if there are none that can be sent."""
    made = foreign.call(environment.inputs, n, seed)
    if isinstance(made.error, ConfigError):
        findings.say("inputs", "failed", f"{made.error}; validate needs some: --inputs FILE")
        return None
    if made.error is not None:
        findings.raised("inputs", f"inputs({n}, {seed}) raised", made.error)
        return None
    inputs: list[Any] = made.value
    if not inputs:
        findings.say("inputs", "failed", f"inputs({n}, {seed}) returned none")
        return None
    problems = [*_input_problems(environment, inputs, n, seed)]
    for problem in problems:
        findings.say("inputs", "warning", problem)
    for number, each in enumerate(inputs):
        encoded = foreign.call(values.encode, each, root=f"inputs()[{number}]")
        if encoded.error is not None:
            findings.say("inputs", "failed", f"cannot be sent: {foreign.text(encoded.error)}")
            return None
    if not problems and inputs == [{}] * n:
        findings.say("inputs", "ok", "a rollout needs no input, and has no seed")
    elif not problems:
        findings.say("inputs", "ok", f"inputs(n, seed) gives n, and follows from the seed ({n})")
    return inputs[:n]


def _input_problems(
    environment: LoadedEnvironment, inputs: list[Any], n: int, seed: int
) -> Iterator[str]:
    if len(inputs) > n:
        yield f"inputs({n}, {seed}) gives {len(inputs)}: it ignores n"
    elif len(inputs) < n:
        yield f"inputs({n}, {seed}) gives {len(inputs)}, fewer than n"
    again = foreign.call(environment.inputs, n, seed).value
    other = foreign.call(environment.inputs, n, seed + 1).value
    texts = [foreign.call(repr, each).value for each in (inputs, again, other)]
    if texts[0] != texts[1]:
        yield f"inputs({n}, {seed}) gives others the second time: it does not follow its seed"
    elif texts[0] == texts[2] and n > 1 and inputs != [{}] * n:
        yield (
            f"inputs({n}, {seed}) and inputs({n}, {seed + 1}) are the same: it may ignore its seed"
        )


def check_results(findings: Findings, results: Sequence[Any]) -> None:
    """Whether what the rollouts returned can be sent."""
    findings.begin("results")
    most_bytes, largest = WireLimits().message_bytes, 0
    for number, value in enumerate(results):
        encoded = foreign.call(values.encode, value, root="result")
        if encoded.error is not None:
            text = foreign.text(encoded.error) or type(encoded.error).__name__
            findings.say("results", "failed", f"of input {number} cannot be encoded: {text}")
            return
        largest = max(largest, len(encoded.value))
    if largest > most_bytes:
        text = f"the largest has {largest} bytes, and {most_bytes} are allowed"
        findings.say("results", "failed", text)
    else:
        findings.say("results", "ok", f"all can be encoded; the largest has {largest} bytes")


def check_rewards(
    findings: Findings, results: Sequence[Any], model: str, most: object, asked: bool
) -> None:
    """Whether each result has a reward that an evaluation counts, and whether right answers
    earn ``most``, the attribute ``max_reward`` of the environment (None: nobody knows).
    ``asked``: whether any rollout asked a model."""
    findings.begin("rewards")
    numbers: list[float] = []
    problems: Counter[str] = Counter()
    for value in results:
        number, problem = reward_in(value)
        if number is None:
            problems[problem] += 1
        else:
            numbers.append(number)
    for problem, times in problems.items():
        findings.say("rewards", "warning", f"{problem} ({times} of {len(results)})")
    if numbers and not problems:
        mean = sum(numbers) / len(numbers)
        text = f"all are numbers, from {min(numbers):g} to {max(numbers):g}, mean {mean:.3g}"
        findings.say("rewards", "ok", text)
    if model == "oracle" and numbers and most is not None:
        if asked:
            _check_oracle(findings, numbers, most)
        else:
            text = "no rollout asked a model, so the rewards are not those of its right answers"
            findings.say("oracle", "skipped", text)


def _check_oracle(findings: Findings, numbers: Sequence[float], most: object) -> None:
    full = number_of(most)
    if full is None:
        text = f"max_reward must be a number, or None, not {most!r}"
        findings.say("oracle", "failed", text)
        return
    short = [number for number in numbers if not number >= full - 1e-9]
    if short:
        findings.say(
            "oracle", "failed",
            f"{len(short)} of {len(numbers)} right answers (the model oracle) earn less than "
            f"{full:g}, the least {min(short):g}: mend the oracle or the reward, or say in the "
            "environment what a right answer earns (max_reward = 0.5; None: not checked)",
        )  # fmt: skip
    else:
        findings.say("oracle", "ok", f"right answers (the model oracle) earn {full:g} or more")


# -- leftovers of code in this process -----------------------------------------------


_TRIO_THREAD = "Trio thread"


class Snapshot(NamedTuple):
    """The present tasks, threads, children and descriptors: names, as often as they are there."""

    tasks: Counter[str]
    threads: Counter[str]
    children: Counter[str]
    descriptors: Counter[str]

    def more_than(self, before: Snapshot) -> dict[str, Counter[str]]:
        """The things that are here and were not there, by kind."""
        kinds = zip(self._fields, self, before, strict=True)
        found = {kind: now - then for kind, now, then in kinds}
        return {kind: names for kind, names in found.items() if names}


def snapshot() -> Snapshot:
    """The things that this process has now.  Call it on the trio loop.

    Threads that trio keeps for the next use are not counted.  Children and descriptors are read
    from ``/proc``, and are not known elsewhere."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    return Snapshot(
        Counter(task.name for task in tasks_below(root)),
        Counter(
            each.name for each in threading.enumerate() if not each.name.startswith(_TRIO_THREAD)
        ),
        Counter(_children()),
        Counter(_descriptors()),
    )


def _children() -> Iterator[str]:
    own = str(os.getpid())
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            # The name, in brackets, may hold anything.
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if parent == own:
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                yield words.decode(errors="replace").strip()[:80] or f"a zombie ({state})"
        except (OSError, ValueError):
            continue  # it has ended meanwhile


def _descriptors() -> Iterator[str]:
    try:
        numbers = os.listdir("/proc/self/fd")
    except OSError:
        return
    for number in numbers:
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue  # the one of the folder itself
        # A socket's or a pipe's number says nothing.
        yield target if target.startswith("/") else target.partition(":")[0]


# -- the process ---------------------------------------------------------------------


@contextmanager
def _told() -> Iterator[Findings]:
    """Findings on standard output, which the environment's prints do not reach."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as lines:
        os.set_inheritable(lines.fileno(), False)
        os.dup2(2, 1)

        threading.Thread(target=_end_with_reader, args=(lines.fileno(),), daemon=True).start()

        def tell(record: dict[str, Any]) -> None:
            lines.write(json.dumps(record) + "\n")
            lines.flush()

        yield Findings(tell)


def _end_with_reader(told: int) -> NoReturn:
    """End this process group once nobody reads the findings: the command was killed.  (The kernel's
    signal for that would come with the end of the thread that has started this process.)"""
    poll = select.poll()
    poll.register(told, 0)  # an error is reported without being asked for
    poll.poll()
    end_process_group()


def main() -> NoReturn:
    """Validate what standard input asks for."""
    wanted = Wanted(**json.load(sys.stdin))
    sys.path[:] = [*wanted.path, *sys.path] if wanted.keep_path else wanted.path
    hide_secrets()
    faulthandler.enable()
    signals = SignalWatch()
    signals.begin()
    with _told() as findings:
        trio.run(Validation(wanted, findings, signals).run)
        findings.end()  # threads that were left behind do not hold it up
