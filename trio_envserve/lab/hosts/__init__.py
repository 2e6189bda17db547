"""Host leases on drifting clocks: what ships, in a small world that does it harm.

The machines of :mod:`...core.lease` run here with hosts, guards, machines that sleep and
routers that are replaced.  The judge sees true time, which none of them does.
"""
