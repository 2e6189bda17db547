"""The task: after each number say the one that comes next, and nothing else."""

from __future__ import annotations

import os

from trio_envserve import Rollout
from trio_envserve.envs.recorder import RunLog
from trio_envserve.models.tokens import token_records


class Successor:
    """Two turns; each is worth half a point, and half of that if more was said."""

    rerun = True  # after a worker's proven death it may run again

    def __init__(self) -> None:
        self._log = RunLog(os.environ["TRAINING_LOG"])

    async def run_rollout(self, rollout: Rollout) -> dict[str, object]:
        """The input has ``numbers``, and ``rollout``, which names it."""
        name = rollout.input["rollout"]
        with self._log.record(rollout, name=name):
            messages, answers, reward = [], [], 0.0
            for number in rollout.input["numbers"]:
                messages.append({"role": "user", "name": name, "content": str(number)})
                answers.append(await rollout.ask(messages))
                messages.append({"role": "assistant", "content": answers[-1].text})
                said, wanted = answers[-1].text.split(), str((number + 1) % 10)
                if said[:1] == [wanted]:
                    reward += 0.5 if len(said) == 1 else 0.25
        return {"reward": reward, "segments": token_records(answers, reward)}
