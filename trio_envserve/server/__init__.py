"""The server: a router, its worker pool, and their shell."""

from .options import ServerOptions
from .shell import Server, open_server, serve

__all__ = ["Server", "ServerOptions", "open_server", "serve"]
