"""Cases as data: a table of scripts, and the engine that plays them.

Theory of operation
-------------------
A table is a text of blocks.  ``== Requests`` names a section of the protocol document.  Each
other block is a case: its guarantee and its name, what it needs behind that; then the sentence
that says what is right; then, indented, its steps::

    == Requests

    G3 an-error-is-replayed-like-a-result needs=fail
    An error is an outcome: kept, replayed byte for byte, and not tried again.
        fail 0; error 0; again 0; error 0

A step is a word and what it is about.  A word is a method of the stage on which a script is
played, that of a server or that of a worker.  Numbers may be many: ``0-3``, ``1,3``, or every
second one, ``0-8/2``; a word whose first argument is ``n`` is done for one after the other.
``name=value`` gives the method an option.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from .findings import Case, CaseFailed

_NUMBERS = re.compile(r"\d[\d,/-]*")
_CONSTANTS: dict[str, Any] = {"true": True, "false": False, "none": None}


class Step(NamedTuple):
    """One step of a script."""

    text: str
    word: str
    about: list[Any]
    options: dict[str, Any]


def numbers(text: str) -> list[int]:
    """The numbers that a text names."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        span, _, every = part.partition("/")
        first, _, last = span.partition("-")
        found += range(int(first), int(last or first) + 1, int(every or 1))
    return found


def steps_of(text: str) -> list[Step]:
    """The steps of a script."""
    found = []
    for step in filter(None, map(str.strip, text.split(";"))):
        word, *rest = step.split()
        options = dict(each.split("=", 1) for each in rest if "=" in each)
        about = [numbers(each) if _NUMBERS.fullmatch(each) else each
                 for each in rest if "=" not in each]  # fmt: skip
        values = {name: _value(each) for name, each in options.items()}
        found.append(Step(step, word.replace("-", "_"), about, values))
    return found


def _value(text: str) -> Any:
    """An option: a number if it is one."""
    if re.fullmatch(r"\d+\.\d+", text):
        return float(text)
    return int(text) if text.isdecimal() else _CONSTANTS.get(text, text)


async def play(stage: Any, steps: Sequence[Step]) -> None:
    """Do all steps; the failure of one names it."""
    for number, step in enumerate(steps, 1):
        method = getattr(stage, step.word)
        first, *_ = [*inspect.signature(method).parameters.values(), None]
        calls = [step.about]
        if first is not None and first.name == "n":
            calls = [[n, *step.about[1:]] for n in step.about[0]]
        elif first is not None and first.kind is first.VAR_POSITIONAL:
            calls = [step.about[0]]
        try:
            for about in calls:
                done = method(*about, **step.options)
                if inspect.isawaitable(done):
                    await done
        except CaseFailed as failed:
            expected = f"{failed.expected} (step {number}, {step.text})"
            raise type(failed)(expected, failed.seen) from None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Script:
    """The main function of a case that is a script."""

    steps: Sequence[Step]

    async def __call__(self, stage: Any) -> None:
        """Do all steps."""
        await play(stage, self.steps)


def cases_of(table: str) -> Iterator[Case]:
    """The cases of a table."""
    section = ""
    for block in filter(None, map(str.strip, table.split("\n\n"))):
        if block.startswith("== "):
            section = block.removeprefix("== ")
            continue
        head, *lines = block.splitlines()
        guarantee, name, *more = head.split()
        options = dict(each.partition("=")[::2] for each in more)
        needs = tuple(filter(None, options.get("needs", "").split(",")))
        prose = " ".join(line for line in lines if not line.startswith(" "))
        steps = steps_of(";".join(line for line in lines if line.startswith(" ")))
        clients = max([1, *(n for each in steps if each.word == "client" for n in each.about[0])])
        faults = "faults" in options
        yield Case(name, prose, section, guarantee, needs, faults, Script(steps), clients)
