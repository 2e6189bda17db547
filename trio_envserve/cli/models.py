"""The model that ``eval`` is given: whether the workers can know it, and it can be reached."""

from __future__ import annotations

from ..core.errors import ConfigError
from ..models.endpoints import read_endpoints
from ..models.registry import check_endpoint, open_models
from .common import NOT_STARTED, CommandError


def check_model(model: str, address: str, endpoints: str) -> None:
    """Raise :class:`ConfigError` if the workers cannot know the model.

    With an address the workers are another server's, which has a file of its own.
    """
    if not address:
        check_endpoint(model)
    elif endpoints:
        raise ConfigError(
            "--endpoints is for eval's own server; with --address give it to `serve` there"
        )


async def check_reached(model: str) -> None:
    """Raise :class:`CommandError` if nothing is there to answer for the model, from here."""
    if not model.startswith(("http://", "https://")) and model not in read_endpoints():
        return
    from ..models.http import HttpModel

    async with open_models() as models:
        client = models.get(model)
        why = await client.unreachable() if isinstance(client, HttpModel) else ""
    if why:
        raise CommandError(
            f"{why}; nothing was asked for. Start the model, or give its address by --model",
            NOT_STARTED,
        )
