"""The attributes of slime's ``Sample`` and of its arguments, as far as they are read."""

from __future__ import annotations

import argparse
import dataclasses
import enum
from typing import Any


@dataclasses.dataclass
class Sample:
    """As in slime and miles at the commits that ``forms.SLIME`` names."""

    class Status(enum.Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    group_index: Any = None
    index: Any = None
    rollout_id: Any = None
    prompt: Any = ""
    tokens: list[int] = dataclasses.field(default_factory=list)
    response: str = ""
    response_length: int = 0
    label: Any = None
    reward: Any = None
    loss_mask: Any = None
    weight_versions: list[str] = dataclasses.field(default_factory=list)
    rollout_log_probs: Any = None
    rollout_top_p_token_ids: Any = None
    multimodal_inputs: Any = None
    adapter: Any = None
    remove_sample: bool = False
    status: Status = Status.PENDING
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)

    def get_reward_value(self, args: Any) -> Any:
        return self.reward


def arguments(**more: Any) -> argparse.Namespace:
    return argparse.Namespace(
        **{
            "advantage_estimator": "grpo",
            "rewards_normalization": True,
            "grpo_std_normalization": True,
            "rollout_top_p": 1.0,
            "use_rollout_routing_replay": False,
            "apply_chat_template": False,
            "apply_chat_template_kwargs": {},
            "reward_key": None,
        }
        | more
    )
