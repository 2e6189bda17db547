"""The history of a run with real processes, read from logs on disk.

Theory of operation
-------------------
Nothing here imports anything of the package, and no server is asked: what happened is
what three logs say.

``environment.jsonl``
    written by the environment in the worker processes: a ``start`` and an ``end`` line
    for each run, with ``key``, ``process`` (a name that, unlike a pid, is never given
    away again) and ``predecessor``: what the kernel said, before this start, of the
    process that had begun this key before (``none``, ``dead``, ``alive``).
``callers.jsonl``
    written by the callers: an ``ask`` line before each call and an ``answer`` line after
    it; and what their sockets sent and received, where somebody writes that down.
``killer.jsonl``
    written by whoever makes the faults: what it did, and ``dead`` for a worker process
    that was seen to have ended (``alive_s`` is the last time it was seen not to have).

Lines of the environment's log are in the order of their ``write`` calls, whichever
process wrote them.  ``monotonic`` is one clock for the machine.

A *further start* of a key is proven to come after the death of the process that began it
before.  That is judged four times: ``predecessor`` must be ``dead``; the two processes must
differ; no line of the earlier process may come after this start; and that process must have
been seen dead, and not seen alive later than this start.  None of these can accuse an
innocent: each is a fact of the kernel or of the order of the log, and no comparison asks
*when* a death happened, which nobody can know exactly.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ENVIRONMENT, CALLERS, KILLER = "environment.jsonl", "callers.jsonl", "killer.jsonl"

Line = dict[str, Any]
Figures = dict[str, Any]


class FurtherStart(NamedTuple):
    """A key was begun once more."""

    key: str
    line: Line
    consented: bool
    """Whether its caller had consented to that."""
    proven: bool
    """Whether the process that began it before is proven to have been dead."""


@dataclasses.dataclass(slots=True)
class History:
    """The three logs, and what is looked up in them."""

    environment: list[Line]
    callers: list[Line]
    killer: list[Line]
    starts: dict[str, list[tuple[int, Line]]] = dataclasses.field(default_factory=dict)
    """By key: (number of the line, line), in the order of the log."""
    results: dict[str, list[Line]] = dataclasses.field(default_factory=dict)
    """By key: its runs that came to a result."""
    last_line: dict[str, int] = dataclasses.field(default_factory=dict)
    """By process: the number of its last line."""
    living: dict[str, set[str]] = dataclasses.field(default_factory=dict)
    """By process: keys that it began and never ended."""
    keyless: list[Line] = dataclasses.field(default_factory=list)
    """Starts of what was asked for without a key."""
    asks: dict[str, Line] = dataclasses.field(default_factory=dict)
    """By key: the first time that it was asked for."""
    answers: dict[str, Line] = dataclasses.field(default_factory=dict)
    deaths: dict[str, Line] = dataclasses.field(default_factory=dict)
    began_s: dict[str, float] = dataclasses.field(default_factory=dict)
    """By process: when it wrote its first line."""

    @classmethod
    def read(cls, directory: Path, *names: str) -> History:
        """Read a directory; of the logs only these, all if none is named.  Raises OSError,
        and ValueError for a bad line."""
        return cls.of(*(
            list(read_lines(directory / name)) if name in (names or LOGS) else [] for name in LOGS
        ))  # fmt: skip

    @classmethod
    def of(cls, environment: list[Line], callers: list[Line], killer: list[Line]) -> History:
        """From the lines themselves."""
        history = cls(environment, callers, killer)
        for number, line in enumerate(environment):
            history._environment_line(number, line)
        for line in callers:
            if line["event"] == "ask":
                history.asks.setdefault(line["key"], line)
        history.answers = {line["key"]: line for line in callers if line["event"] == "answer"}
        history.deaths = {line["process"]: line for line in killer if line["event"] == "dead"}
        return history

    def _environment_line(self, number: int, line: Line) -> None:
        first = line["event"] == "start" and line["attempt"] == 1
        if "key" not in line:  # nothing is said of the process that runs it
            if first:
                self.keyless.append(line)
            return
        key, process = line["key"], line["process"]
        self.last_line[process] = number
        self.began_s.setdefault(process, line["monotonic"])
        if line["event"] == "start":
            if first:  # a further attempt is within one execution
                self.starts.setdefault(key, []).append((number, line))
            self.living.setdefault(process, set()).add(key)
        else:
            self.living.get(process, set()).discard(key)
            if line["how"] == "result":
                self.results.setdefault(key, []).append(line)

    def faults(self, event: str, **wanted: Any) -> list[Line]:
        """The killer's lines of this kind."""
        return [
            line for line in self.killer
            if line["event"] == event and wanted.items() <= line.items()
        ]  # fmt: skip

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end."""
        return bool(self.faults("end"))

    @property
    def seconds(self) -> float:
        """From the first line of callers and killer to the last one."""
        times = [line["monotonic"] for line in (*self.killer, *self.callers)]
        return round(max(times) - min(times), 3) if times else 0.0

    def further_starts(self) -> Iterator[FurtherStart]:
        """All starts of keys that had been started before."""
        for key, starts in self.starts.items():
            consented = key in self.asks and self.asks[key]["rerun"] is True
            for (_, before), (number, again) in itertools.pairwise(starts):
                proven = self._died_before(before, number, again)
                yield FurtherStart(key, again, consented, proven)

    def _died_before(self, before: Line, number: int, again: Line) -> bool:
        process = before["process"]
        death = self.deaths.get(process)
        return (
            again["predecessor"] == "dead"
            and again["process"] != process
            and self.last_line[process] < number
            and death is not None
            and not death["alive_s"] > again["monotonic"]
        )


LOGS = (ENVIRONMENT, CALLERS, KILLER)


def at_most_once(history: History) -> Figures:
    """G1 and G2: how often each key was run, and with what right.

    A further start is a *rerun by consent* if its caller consented, the process before is
    proven dead, and the caller had no answer yet.  Any other one *ran twice*.
    """
    reruns = twice = early = 0
    for again in history.further_starts():
        answer = history.answers.get(again.key)
        useless = answer is not None and answer["monotonic"] < again.line["monotonic"]
        early += again.consented and not again.proven
        if again.consented and again.proven and not useless:
            reruns += 1
        else:
            twice += 1
    return {
        "started": len(history.starts),
        "started_twice": twice,
        "started_unasked": len(history.starts.keys() - history.asks.keys()),
        "rerun_with_consent": reruns,
        "rerun_too_early": early,
    }


RUN_WRONGLY: Mapping[str, str] = {
    "started_twice": "starts were a second run of a rollout",
    "rerun_too_early": "reruns began before their predecessor's process was proven dead",
    "started_unasked": "rollouts ran that nobody had asked for",
}
"""The problem if one of these figures is not 0, in words."""


def judged(figures: Callable[[], Figures], problems: Callable[[Figures], Iterable[str]]) -> Figures:
    """The figures, and what is wrong with them: ``problems`` says it in words, ``ok`` is true
    if there is nothing."""
    try:
        found = figures()
    except (OSError, ValueError, KeyError) as error:
        return {"ok": False, "problems": [f"the logs cannot be read: {error!r}"]}
    wrong = list(problems(found))
    return {**found, "ok": not wrong, "problems": wrong}


def counted(figures: Figures, texts: Mapping[str, str]) -> Iterator[str]:
    """The problem in words, for each of these figures that is not 0."""
    for name, text in texts.items():
        if figures[name]:
            yield f"{figures[name]} {text}"


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of one log.  Raises OSError, and ValueError for a bad one."""
    with path.open() as file:
        for number, text in enumerate(file, 1):
            try:
                yield json.loads(text)
            except ValueError:
                raise ValueError(f"{path.name}, line {number}, is not JSON") from None


def judge_named(judge: Callable[[str], Figures], module: str) -> int:
    """Judge the directory named on the command line; returns the exit code."""
    if len(sys.argv) != 2:
        print(f"usage: python -m trio_envserve.lab.{module} DIR", file=sys.stderr)
        return 2
    figures = judge(sys.argv[1])
    print(json.dumps(figures))
    return 0 if figures["ok"] else 1
