"""Whole systems of the shipped pure machines on a virtual clock and network."""
