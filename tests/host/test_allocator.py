"""Settings of the allocator."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

import trio_envserve
from trio_envserve.core.limits import MIB
from trio_envserve.host.allocator import ENVIRON


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What ``mallopt`` was called with."""
    calls: list[tuple[int, int]] = []
    library = SimpleNamespace(mallopt=lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    for name in ENVIRON:
        monkeypatch.delenv(name, raising=False)
    return calls


def test_a_program_may_have_the_settings_of_the_server_but_where_the_environment_sets_them(
    called, monkeypatch
):
    trio_envserve.keep_freed_memory()
    assert called == [(-1, 64 * MIB), (-3, 32 * MIB)]
    assert set(ENVIRON.values()) == {str(size) for _, size in called}
    called.clear()
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000")
    trio_envserve.keep_freed_memory()
    assert called == [(-3, 32 * MIB)]


@pytest.mark.parametrize("found", [SimpleNamespace(), OSError("there is no library")])
def test_a_system_without_these_settings_is_left_alone(monkeypatch, found):
    def library(name: None) -> object:
        if isinstance(found, OSError):
            raise found
        return found

    monkeypatch.setattr(ctypes, "CDLL", library)
    trio_envserve.keep_freed_memory()
