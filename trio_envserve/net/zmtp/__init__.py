"""ZMTP 3.1 spoken by trio itself: sockets without libzmq.

:mod:`.engine` is the protocol without a network, with :mod:`.curve` for security; above it
:mod:`.hub` is all connections of a socket, :mod:`.sockets` router, dealer and network.
"""
