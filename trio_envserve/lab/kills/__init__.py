"""Hundreds of kill -9 under keyed rollouts with a journal, judged from logs on disk."""
