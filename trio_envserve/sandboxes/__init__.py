"""Sandboxes: places in which a rollout runs what it does not trust."""
