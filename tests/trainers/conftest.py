"""A server of the cases that a trainer's adapter may meet, and the modules of the example."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.faces import TrioThread
from tests.trainers import made
from trio_envserve import open_server


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with TrioThread() as thread:
        with thread.opened(open_server(made.Cases(), workers=0)) as server:
            yield server.address


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports a module of the example by its name."""
    pytest.importorskip("transformers")
    folder = Path(__file__).resolve().parent.parent.parent / "examples" / "training"
    monkeypatch.syspath_prepend(str(folder))
    yield importlib.import_module
    for path in folder.glob("*.py"):
        sys.modules.pop(path.stem, None)
