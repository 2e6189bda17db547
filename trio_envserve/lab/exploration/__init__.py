"""Exhaustive exploration of small whole systems of the shipped pure machines.

:mod:`.configurations` says what is explored; :mod:`.calls` (without keys), :mod:`.keyed` and
:mod:`.hosted` have actors, judge and bounds of each.
:mod:`.rules` and :mod:`.wire` say which states are the same, :mod:`.search` walks through all.
"""
