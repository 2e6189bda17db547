"""The file that an evaluation writes, what it has from before, and what is still to be asked for.

Theory of operation
-------------------
A file of results of the same evaluation is continued: each rollout that it has is counted, and not
asked for.  It is the same by the digest of what is asked (``run``) and by the inputs.  A table is
written as lines beside it, which become the table at the end.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import final

import trio

from ..core.errors import ConfigError
from .files import (
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
    replace_file,
    standard_output,
    take_up,
    write_table,
)
from .records import Name, RolloutResult
from .run import EvaluationPlan, StoredPlan, is_told
from .tally import ResultsTally


@final
class Output:
    """The file of results, if there is one, and what it has already."""

    def __init__(self, path: str = "", run: str = "") -> None:
        self.file: ResultsFile | None = None
        self.run = run
        """The digest of what this evaluation asks, which may hold what nobody wants in a file."""
        self.problem: NotWritten | None = None
        """Error by which the file could not be finished."""
        self.outdated = 0
        """Number of its results that were made from other stored results than there are now."""
        self.lines = ""
        """The file of lines that becomes a table at the end, until it does."""
        self._path = path
        self._found = Found([], set(), {})

    def open(self) -> None:
        """Open it, and read what it has.  Raises ConfigError if that is not of this evaluation."""
        path = self._path
        if path in ("", "-"):
            self.file = standard_output() if path else None
            return
        if is_table(path):
            arrow()
            self.lines = lines_of(path)
            if os.path.exists(path) and not os.path.exists(self.lines):
                _to_lines(path, self.lines)
        self.file = open_results(self.lines or path)
        self._found = take_up(self.file)
        for run, environment, model in self._found.runs:
            if run != self.run:
                raise ConfigError(
                    f"{path} exists, with results of another evaluation ({environment or '?'}, "
                    f"model {model or '?'}, or another argument or option); move it away or "
                    "name another file"
                )

    def close(self) -> None:
        """Close it, however the evaluation has ended."""
        try:
            if self.file is not None:
                self.file.close()
        except NotWritten as problem:
            self.problem = problem

    @property
    def kept(self) -> str:
        """The file that has the results so far; empty without one."""
        return self.lines or ("" if self._path == "-" or self.file is None else self._path)

    def told(self) -> Counter[Name]:
        """Number of times that the file was told an outcome of each rollout."""
        found: Counter[Name] = Counter()
        for one in self._found.results:
            found[one.name] = max(found[one.name], one.again) + is_told(one)
        return found

    def missing(
        self,
        plan: EvaluationPlan | StoredPlan,
        tally: ResultsTally,
        *,
        retry_errors: bool,
        ask_again: bool = False,
    ) -> list[Name]:
        """The rollouts that are still to be asked for; what is there is counted.
        ``ask_again``: also those of which the server did not say what became, since it knows.
        Raises ConfigError if the file has results of other inputs, or of rollouts that a file
        to be scored anew does not have."""
        for index in plan.indexes():
            known = self._found.inputs.get(index)
            if known is not None and known != plan.digest(index):
                raise ConfigError(
                    f"{self._path} exists, with another input number {index}; move it away or "
                    "name another file"
                )
        counted = {one.name: one for one in self._found.results}
        if isinstance(plan, StoredPlan) and (others := counted.keys() - set(plan.names())):
            raise ConfigError(
                f"{self._path} exists, with {len(others)} rollouts that the file that is read does "
                "not have; move it away or name another file"
            )
        current = {name: one for name, one in counted.items() if plan.is_current(one)}
        self.outdated = len(counted) - len(current)
        names = [
            name
            for name in plan.names()
            if _to_run(current.get(name), retry_errors and plan.may_run(name), ask_again)
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
        write_table(path, last_records(lines))
    os.unlink(lines)


def _to_lines(path: str, lines: str) -> None:
    def write(beside: str) -> None:
        with open(beside, "wb") as file:
            file.writelines(line_of(record) for _, record, _ in records(path))

    replace_file(lines, write)
