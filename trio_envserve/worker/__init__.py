"""The worker: a process that hosts one environment."""
