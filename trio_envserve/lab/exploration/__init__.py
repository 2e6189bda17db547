"""Exhaustive exploration of small whole systems of the shipped pure machines.

:mod:`.configurations` says what is explored, :mod:`.world` has the actors, :mod:`.judges`
the judges; :mod:`.rules` and :mod:`.wire` say which states are the same, :mod:`.systems` joins all
that, and :mod:`.search` walks through it.
"""
