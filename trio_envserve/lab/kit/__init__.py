"""What simulating, shrinking and drawing need, whatever the protocol.

Virtual time (:mod:`.events`), processes (:mod:`.process`), connections
(:mod:`.network`), and the run around them (:mod:`.world`); a failing schedule made
small (:mod:`.shrink`) and drawn (:mod:`.diagram`).  It knows no message and no role,
and imports nothing of this package.
"""
