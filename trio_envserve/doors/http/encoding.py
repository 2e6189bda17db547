"""A request of HTTP as the server gets it."""

from __future__ import annotations

from typing import Any

from ...client import Client
from ...client.options import Encoded, checked
from ...client.shell import encode
from ...core.errors import ConfigError, NotEncodable
from .answers import problem_for
from .problems import Problem


async def encoded(client: Client, input: Any, **options: Any) -> Encoded:
    """An input with the options of a call.  Problem if they are wrong."""
    try:
        return await encode(client, checked(input, **options))
    except ConfigError as error:
        raise Problem("bad-request", str(error)) from None
    except NotEncodable as error:
        raise problem_for(error) from None
