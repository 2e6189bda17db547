"""The reaper of a process: whatever descends from it ends."""

from __future__ import annotations

import os
import signal

from trio_envserve.worker import reaper


def test_group_that_may_not_be_signalled_is_passed_over(monkeypatch):
    """macOS answers so if all processes of the group have ended."""
    sent = []

    def refuse(pid, number):
        sent.append((pid, number))
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "kill", refuse)
    monkeypatch.setattr(os, "killpg", refuse)
    reaper.kill_group(17)
    assert sent == [(17, signal.SIGKILL)] * 2
