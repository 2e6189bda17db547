"""The main job shown: a thousand rollouts under faults, judged from three logs on disk."""
