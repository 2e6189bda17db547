"""Classes with tools whose rewards are computed apart."""

from __future__ import annotations

import os
import threading
import time

from trio_envserve import apart


class Marked:
    def reset(self, do: str = "") -> str:
        self.do, self.pid = do, os.getpid()
        if do == "keep a lock":
            self.lock = threading.Lock()
        return "Go."

    def oracle(self) -> list[str]:
        return ["Done."]

    @apart(timeout_s=10)
    def get_reward(self) -> dict[str, float]:
        if self.do == "hang":
            time.sleep(600)
        if self.do == "raise":
            raise ValueError("no such answer")
        if self.do == "leave":
            os._exit(1)
        here, self.pid = self.pid, os.getpid()
        return {"reward": 1.0, "apart": float(here != self.pid)}

    def rollout_state(self) -> dict[str, int]:
        return {"pid": self.pid}


class OnAsyncio(Marked):
    backend = "asyncio"


class InMainThread(Marked):
    main_thread = True


class Static:
    async def reset(self) -> str:
        return "Go."

    async def oracle(self) -> list[str]:
        return ["Done."]

    @staticmethod
    @apart
    def get_reward() -> float:
        return float(os.getpid())


class Judging(Marked):
    """Has its rollout, which no other process can have."""

    rollout = None


class Sandboxed(Marked):
    """Has a sandbox, which no other process can have."""

    sandbox = "bubblewrap"
