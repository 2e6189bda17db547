"""The pure core: everything that decides, and nothing that does.

Modules in this package import no trio, no zmq, no clock and no random source
(a lint rule keeps it so).  Time, ids and randomness are arguments.  A message
or a tick goes in, effects come out, nothing awaits.  The shells around it
move bytes, start processes and keep time; the simulator puts other shells
around the very same code.
"""
