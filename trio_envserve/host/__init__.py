"""The host: what owns worker processes on a machine, from their start until they are reaped."""
