"""An environment that grows, and tells what it finds around it."""

from __future__ import annotations

import os
from typing import Any

from tests.real.environments import Actor, Stage, Steps

MIB = 1 << 20


class GrowingSteps(Steps):
    """The steps of the others, and one that costs memory for good."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._held: list[bytes] = []

    def grow(self, mib: int) -> None:
        """Hold so much more memory, every page of it written to."""
        self._held.append(b"x" * (mib * MIB))


class Growing(Actor):
    """``value={"environ": NAME}`` asks for an environment variable."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self.steps = GrowingSteps(self.stage)

    async def _value(self, asked: dict[str, Any]) -> Any:
        match asked.get("value"):
            case {"environ": str(name)}:
                return {"key": asked["key"], "value": os.environ.get(name)}
        return await super()._value(asked)
