"""ZMTP 3.1 spoken by trio itself: sockets without libzmq.

:mod:`.engine` is the protocol without a network; above it :mod:`.connection` is one
stream, :mod:`.hub` all streams of a socket, :mod:`.sockets` router and dealer.
"""
