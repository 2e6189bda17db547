"""Hosts that are cut off, in one direction or in both, and asleep: real processes, judged by
what their environments wrote to disk."""
