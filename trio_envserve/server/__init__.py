"""The server: a router, its worker pool, and their shell."""

from .shell import Server, open_server, serve

__all__ = ["Server", "open_server", "serve"]
