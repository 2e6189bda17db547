"""Shared parts of simulating, shrinking and drawing, whatever the protocol.

Virtual time (:mod:`.events`), processes (:mod:`.process`), connections
(:mod:`.network`), and the run around them (:mod:`.world`); a failing schedule made
small (:mod:`.shrink`) and drawn (:mod:`.diagram`); seeds searched by several
processes (:mod:`.campaign`, :mod:`.jobs`) and added up (:mod:`.tally`).  It knows
no message and no role, and imports nothing of this package.

Two simulations stand on it: :mod:`..simulation`, of the protocol that ships, and
:mod:`..protocols`, of anybody's.
"""
