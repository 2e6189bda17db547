"""Exhaustive exploration of small whole systems of the shipped pure machines.

:mod:`.configurations` says what is explored, :mod:`.world` what a state is and what
can happen in it, :mod:`.canonical` which states are the same, :mod:`.judge` what must
never happen, :mod:`.search` walks through all of it.
"""
