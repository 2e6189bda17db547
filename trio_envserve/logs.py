"""Logging for programs that serve: the command and its worker processes.

Library code here only ever logs to ``trio_envserve.*``; whoever embeds it
configures logging as they like.  This module is for processes that are ours.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
import time
from pathlib import Path


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogSetup:
    """How a process of ours logs.

    ``directory``: files ``server.log`` and ``worker-SLOT.log`` (appended, one
    for each slot, so names are predictable); empty: standard error.
    """

    level: str = "INFO"
    json: bool = False
    directory: str = ""


class _JsonFormatter(logging.Formatter):
    """One object a line; the traceback whole, in a field of its own."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_file(setup: LogSetup, who: str) -> Path:
    """Where ``who`` (``server``, or a worker id such as ``w0-3``) logs to."""
    slot = who.partition("-")[0]
    name = f"worker-{slot[1:]}.log" if slot != who else f"{who}.log"
    return Path(setup.directory) / name


def configure(setup: LogSetup, who: str) -> None:
    """Configure the root logger of this process, which must be ours.

    Raises OSError if there can be no such file.
    """
    handler: logging.Handler
    if setup.directory:
        file = log_file(setup, who)
        file.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(file, delay=False)
    else:
        handler = logging.StreamHandler(sys.stderr)
    text = f"%(asctime)s %(levelname)-7s {who} %(name)s: %(message)s"
    handler.setFormatter(_JsonFormatter() if setup.json else logging.Formatter(text))
    root = logging.getLogger()
    root.setLevel(setup.level)
    root.addHandler(handler)


def set_title(title: str) -> None:
    """Name this process in lists of processes, if the extra for it is there."""
    try:
        import setproctitle
    except ImportError:
        return  # a title is a courtesy
    setproctitle.setproctitle(title)
