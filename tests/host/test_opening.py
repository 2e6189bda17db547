"""The lock of a host's name."""

from __future__ import annotations

from pathlib import Path

import trio

from trio_envserve.host.opening import _open_lock, _take


async def test_what_is_damaged_in_the_file_of_a_lock_proves_nothing(
    tmp_path: Path, monkeypatch
) -> None:
    """The host ended with a traceback, and so did each later one of its name."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    first = _open_lock("a")
    with trio.fail_after(60):
        assert await _take(first, "a") == []
        first.append(f"{b'1' * 16!r}\n{'zz' * 16}\n{'11' * 15}\n{'11' * 16}\n")
        first.close()
        second = _open_lock("a")
        assert await _take(second, "a") == [b"\x11" * 16]
        second.close()
