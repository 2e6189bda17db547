"""The findings of a validation, which its parent reads as lines of JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NoReturn, TypeAlias, final

from .failures import describe_exception

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
        text = text.encode("utf-8", "backslashreplace").decode()
        self._tell({"check": check, "finding": level, "text": text, "traceback": traceback})

    def raised(self, check: str, text: str, error: BaseException) -> None:
        """The check failed, because the environment raised ``error``."""
        about = describe_exception(error)
        self.say(check, "failed", f"{text} {about.type}: {about.message}", about.traceback)

    def end(self) -> NoReturn:
        """There are no more.  The process ends, whatever still runs in it."""
        self._tell({"ended": True})
        os._exit(0)


@contextmanager
def told() -> Iterator[Findings]:
    """Findings on standard output, which the environment's prints do not reach."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as lines:
        os.set_inheritable(lines.fileno(), False)
        os.dup2(2, 1)

        def tell(record: dict[str, Any]) -> None:
            lines.write(json.dumps(record) + "\n")
            lines.flush()

        yield Findings(tell)
