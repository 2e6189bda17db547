"""Failures kept in files, which a test suite replays.

A file holds the whole shrunk schedule, not just its seed: it shows the same thing
when seeds draw other plans.  What ships must run it clean; a file that was made
with a mutant is broken by that mutant.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..simulation.simulator import Run, run
from .failure import Failure

FORMAT = 1


def save(failure: Failure, folder: Path, made_by: dict[str, Any]) -> Path:
    """Write a failure down; the file is named after what went wrong, and replaced
    if it is there.  ``made_by``: the version and commit that show it."""
    folder.mkdir(parents=True, exist_ok=True)
    mode = "-harsh" if failure.harsh else ""
    of = f"-{failure.mutant}" if failure.mutant else ""
    path = folder / f"{failure.guarantee.lower()}-seed-{failure.seed}{mode}{of}.json"
    data = {"format": FORMAT, "made_by": made_by, **failure.to_data()}
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return path


def load(path: Path) -> Failure:
    """A failure from its file.  ValueError if it is none of this version."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        known = data.pop("format")
        if known != FORMAT:
            raise ValueError(f"format {known}, not {FORMAT}")
        data.pop("made_by", None)
        return Failure.from_data(data)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"{path.name} is no saved failure: {error}") from error


def replay(failure: Failure, *, trace: bool = False) -> Run:
    """Run its schedule again.  Its mutant, if it is to be there, is applied by the caller."""
    return run(failure.luck, harsh=failure.harsh, plan=failure.plan, trace=trace)
