"""Fixtures for models over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from trio_envserve.models import patience


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses as in life, a hundred times as short."""
    pause_s = patience.pause_s

    def shorter(*args: Any) -> float:
        return pause_s(*args) / 100

    monkeypatch.setattr(patience, "pause_s", shorter)
