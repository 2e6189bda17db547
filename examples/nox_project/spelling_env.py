"""An environment: spell a word, letter by letter."""

from __future__ import annotations

from typing import Any

from trio_envserve import Rollout

WORDS = ("retry", "once", "fence", "lease", "outcome")


class Spelling:
    """Asks for a word of ``WORDS``; the reward is 1 for the right letters."""

    name = "spelling"
    rerun = True  # a rollout may be run again after its worker was proven dead

    def __init__(self, separator: str = "-") -> None:
        self.separator = separator

    async def run_rollout(self, rollout: Rollout) -> dict[str, Any]:
        """Ask once, and compare."""
        word = rollout.input["word"]
        right = self.separator.join(word)
        question = {"role": "user", "content": f"Spell {word!r} with {self.separator!r}."}
        answer = await rollout.ask([question], reference=right)
        return {"reward": float(answer.text == right), "state": {"right": right}}

    def inputs(self, n: int, seed: int) -> list[dict[str, str]]:
        """The words, over and over, beginning with the one that ``seed`` names."""
        return [{"word": WORDS[(seed + i) % len(WORDS)]} for i in range(n)]
