"""The host: the part that owns the worker processes of a machine until they are reaped."""
