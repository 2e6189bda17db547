"""Many simulated runs, and what to show of one that fails.

Seeds are run by processes (:mod:`.process`) that a parent looks after
(:mod:`.campaign`), and added up (:mod:`.tally`).  A failing run is made small
(:mod:`.shrink`), drawn (:mod:`.diagram`), told (:mod:`.failure`) and may be kept in
a file (:mod:`.saved`).  ``trio-envserve fuzz`` is the command around it.
"""
