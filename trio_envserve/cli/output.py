"""The file that ``eval`` writes: opened, continued, and made a table at the end."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, final

import trio

from ..core.errors import ConfigError
from ..evals.files import (
    Found,
    NotWritten,
    ResultsFile,
    arrow,
    is_table,
    last_records,
    line_of,
    lines_of,
    open_results,
    records,
    standard_output,
    take_up,
    write_table,
)
from ..evals.records import Name, RolloutResult, digest, run_digest
from ..evals.run import Plan, check, is_told
from ..evals.tally import Tally


@final
class Output:
    """The file of results, if there is one, and what it has already."""

    def __init__(self) -> None:
        self.file: ResultsFile | None = None
        self.run = ""
        """The digest of what this evaluation asks."""
        self.problem: NotWritten | None = None
        """Error by which the file could not be finished."""
        self.lines = ""
        """The file of lines that becomes a table at the end, until it does."""
        self._path = ""
        self._found = Found([], set(), {})

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, path: str, *, run: Mapping[str, Any], must_exist: bool = False
    ) -> AsyncIterator[Output]:
        """Open a file, and read what it has.  Raises ConfigError if that is not of this
        evaluation."""
        output = cls()
        output.run = run_digest(**run)
        output._path = path
        try:
            if path:
                await trio.to_thread.run_sync(output._open, must_exist)
            yield output
        finally:
            try:
                if output.file is not None:
                    output.file.close()
            except NotWritten as problem:
                output.problem = problem

    def _open(self, must_exist: bool) -> None:
        path = self._path
        if path == "-":
            self.file = standard_output()
            return
        if is_table(path):
            arrow()
            self.lines = lines_of(path)
            if os.path.exists(path) and not os.path.exists(self.lines):
                _to_lines(path, self.lines)
            must_exist = must_exist and os.path.exists(path)
        self.file = open_results(self.lines or path, must_exist=must_exist)
        self._found = take_up(self.file, check)
        for run, environment, model in self._found.runs:
            if run != self.run:
                raise ConfigError(
                    f"{path} exists, with results of another evaluation ({environment or '?'}, "
                    f"model {model or '?'}, or another argument or option); move it away or "
                    "name another file"
                )

    @property
    def kept(self) -> str:
        """The file that has the results so far; empty without one."""
        return self.lines or ("" if self._path == "-" or self.file is None else self._path)

    def told(self) -> Counter[Name]:
        """Number of times that the file was told an outcome of each rollout."""
        return Counter(one.name for one in self._found.results if is_told(one))

    def missing(
        self, plan: Plan, tally: Tally, *, retry_errors: bool, ask_again: bool = False
    ) -> list[Name]:
        """The rollouts that are still to be asked for; what is there is counted.
        ``ask_again``: also those of which the server did not say what became, since it knows.
        Raises ConfigError if the file has results of other inputs."""
        for index in range(plan.first, plan.first + len(plan.inputs)):
            known = self._found.inputs.get(index)
            if known is not None and known != digest(plan.input((index, 0))):
                raise ConfigError(
                    f"{self._path} exists, with another input number {index}; move it away or "
                    "name another file"
                )
        counted = {one.name: one for one in self._found.results}
        names = [
            name for name in plan.names() if _to_run(counted.get(name), retry_errors, ask_again)
        ]
        if plan.grouped:
            indexes = {index for index, _ in names}
            names = [name for name in plan.names() if name[0] in indexes]
        again = set(names)
        for name in plan.names():
            if name not in again:
                tally.add(counted[name])
        return names

    async def finish(self) -> None:
        """Make the table, if there is to be one."""
        if not self.lines or self.problem:
            return
        try:
            await trio.to_thread.run_sync(_to_table, self.lines, self._path)
        except NotWritten as problem:
            self.problem = problem
        else:
            self.lines = ""


def _to_run(found: RolloutResult | None, retry_errors: bool, ask_again: bool) -> bool:
    if found is None or found.did_not_run or (ask_again and not is_told(found)):
        return True
    return retry_errors and found.failure is not None


def _to_table(lines: str, path: str) -> None:
    if os.path.getsize(lines):
        write_table(path, last_records(lines, check), check)
    os.unlink(lines)


def _to_lines(path: str, lines: str) -> None:
    beside = f"{lines}.new"
    with open(beside, "wb") as file:
        file.writelines(line_of(record) for _, record, _ in records(path, check))
    os.replace(beside, lines)
