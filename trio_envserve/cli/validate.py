"""``trio-envserve validate``: an environment looked over before it is used.

Theory of operation
-------------------
The checks are made in a process of their own (:mod:`~trio_envserve.worker.validation`),
under the interpreter of the workers.  It says which check begins and what it found, a
line of JSON each; this verb reads the lines, ends a check that takes too long, and says
where it stood.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from typing import Any, final

import trio

from ..commands import describe_exit
from ..core.errors import ConfigError
from ..envs.loading import check_spec
from ..evals.inputs import read_inputs
from ..host.interpreters import check_interpreter, helper
from ..options import argument, option
from ..pages.tables import Table
from ..worker.validation import Wanted
from .common import AT_ONCE, NOT_STARTED, OK, Result, StopRequest
from .options import role_option
from .render import say
from .verbs import VerbOptions, server_options, verb

_STACKS_S = 2.0
"""A process that is told to show its stacks has so long for it."""

_SHOWN = {"ok": "ok", "warning": "WARNING", "failed": "FAILED", "skipped": "-"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Validate(VerbOptions):
    """The options of ``validate``."""

    environment: str = argument("The environment.", metavar="ENV")
    n: int = option(8, "Rollouts.", flag="-n", least=1, common=True)
    seed: int = option(0, "Seed of the inputs.", common=True)
    inputs: str = option(
        "", "A file of inputs, as for `eval`, in the place of ENV's own.", metavar="FILE",
        common=True,
    )  # fmt: skip
    model: str = option(
        "oracle", "The model: oracle (right), random (wrong), or an endpoint as for `eval`.",
        metavar="MODEL", common=True,
    )  # fmt: skip
    model_name: str = option("", "The model at the endpoint.", metavar="NAME")
    roles: Mapping[str, str] | None = role_option()
    timeout_s: float = option(120.0, "How long one check may take.", least=0.1, common=True)
    cancel_s: float = option(5.0, "How long a cancelled rollout may take to end.", least=0.1)
    strict: bool = option(False, "A warning is a failure.", common=True)
    server: Mapping[str, Any] = server_options("args", "worker_python")


@verb(
    Validate,
    {
        OK: "nothing failed, and with --strict nothing was warned of",
        AT_ONCE: "something failed, or with --strict was warned of",
        NOT_STARTED: "ENV cannot be loaded or set up",
    },
)
async def validate(asked: Validate, stop: StopRequest) -> Result:
    """Look over ENV: run it, cancel it, and find what it gets wrong silently.

    Examples:
      trio-envserve validate my_envs.py:Maze
      trio-envserve validate my_envs:Maze --arg level=3 -n 20 --strict
      trio-envserve validate my_envs:Maze --worker-python /opt/framework/bin/python

    The checks:
      load, setup      it is found, made and set up; your traceback if not
      inputs           inputs(n, seed) gives n, follows from its seed, can be sent
      rollouts         N rollouts end; with the model `oracle` their answers are right
      event loop       no rollout holds it, so that others can run
      results          they can be encoded, and are not too large
      rewards          they are numbers: not text, not NaN
      oracle           right answers earn max_reward, an attribute of ENV (1)
      at once          with eight at once they earn what they earn alone
      signals          no handler of signals is set in a thread
      cancelling       a rollout that is cancelled while it asks its model ends soon
      left behind      rollouts leave no tasks, threads, children or descriptors
      teardown         it raises nothing

    With --json, the last line of standard output has ok, failed, warnings (how many), and
    checks: a list of check, finding (ok, warning, failed, skipped), text, traceback.
    """
    args, python = asked.server.get("args", {}), asked.server.get("worker_python")
    words, path = helper(python, "trio_envserve.worker.validation")
    if python is not None:
        await check_interpreter(words[0])
    else:
        check_spec(asked.environment, args)
    wanted = Wanted(
        environment=asked.environment, args=args, n=asked.n, seed=asked.seed, model=asked.model,
        model_name=asked.model_name, roles=dict(asked.roles or {}),
        inputs=_read(asked.inputs) if asked.inputs else None,
        cancel_s=asked.cancel_s, path=path, keep_path=python is not None,
    )  # fmt: skip
    found = _Found()
    stop.so_far = lambda: _judged(asked, found, stop)
    await _run(words, wanted, asked.timeout_s, found)
    return _judged(asked, found, stop)


def _read(file: str) -> list[Any]:
    inputs = read_inputs(file)
    try:
        json.dumps(inputs)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"--inputs {file} has what JSON has not: {error}") from None
    return inputs


def _judged(asked: Validate, found: _Found, stop: StopRequest) -> Result:
    """The result of the checks so far."""
    checks = found.checks
    counts = {finding: sum(each["finding"] == finding for each in checks) for finding in _SHOWN}
    bad = counts["failed"] + (counts["warning"] if asked.strict else 0)
    summary = {
        "environment": asked.environment, "ok": not bad and not stop.asked.is_set(),
        "failed": counts["failed"], "warnings": counts["warning"], "checks": checks,
    }  # fmt: skip
    rows = [[each["check"], _SHOWN[each["finding"]], each["text"]] for each in checks]
    shown = [each["traceback"].rstrip() for each in checks if each["traceback"]]
    table = Table(asked.environment, (), rows, left=(0, 1, 2))
    code = AT_ONCE if bad else OK
    if any(each["finding"] == "failed" and each["check"] in ("load", "setup") for each in checks):
        code = NOT_STARTED
    if stop.asked.is_set():
        say(f"interrupted by {stop.why}, while it looked at: {found.began}")
        code = stop.interrupted_code
    elif bad and not asked.as_json:
        say(f"{summary['failed']} failed, {summary['warnings']} warnings")
    return Result(code, summary, [*shown, table])


async def _run(words: list[str], wanted: Wanted, timeout_s: float, found: _Found) -> None:
    """Start the process, and read what it says; it is dead at the end."""
    process = await trio.lowlevel.open_process(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(trio.BrokenResourceError):  # it has ended, which is told below
            await process.stdin.send_all(json.dumps(dataclasses.asdict(wanted)).encode())
            await process.stdin.aclose()
        buffer = b""
        while not found.ended:
            with trio.move_on_after(timeout_s) as waiting:
                data = await process.stdout.receive_some(64 * 1024)
            if waiting.cancelled_caught:
                await _show_stacks(process)
                found.fail(f"it did not end in {timeout_s:g} s (--timeout-s)")
                return
            if not data:
                await process.wait()
                found.fail(f"its process ended: {describe_exit(process.returncode or 0)}")
                return
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                found.take(json.loads(line))
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with trio.CancelScope(shield=True):
            await process.wait()
            if process.stdout is not None:
                await process.stdout.aclose()


async def _show_stacks(process: trio.Process) -> None:
    """Let it write where its threads stand, which ends it."""
    say("a check takes too long; the stacks of its process:")
    process.send_signal(signal.SIGABRT)
    with trio.move_on_after(_STACKS_S):
        await process.wait()


@final
class _Found:
    """The findings so far."""

    def __init__(self) -> None:
        self.checks: list[dict[str, Any]] = []
        self.began = "load"
        """The check that is being made."""
        self.ended = False

    def take(self, record: dict[str, Any]) -> None:
        """A line of the process."""
        if "check" in record:
            self.checks.append(record)
        self.began = record.get("began", self.began)
        self.ended = bool(record.get("ended"))

    def fail(self, text: str) -> None:
        """The check that is being made has failed, from outside."""
        self.checks.append(
            {"check": self.began, "finding": "failed", "text": text, "traceback": ""}
        )
