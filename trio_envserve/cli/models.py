"""The options by which commands name models.

Theory of operation
-------------------
``--endpoints FILE`` sets an environment variable of this process for as long as the
command runs: the workers inherit it and read the file themselves.  So the file's content,
and the keys that it names, go nowhere.
"""

from __future__ import annotations

import os
from typing import Any

import click

from ..core.errors import ConfigError
from ..models.endpoints import FILE_VARIABLE, read_endpoints
from ..models.registry import check_endpoint, open_models
from .common import NOT_STARTED, CommandError

_GIVEN = "trio_envserve.endpoints"


def _use_file(context: click.Context, option: click.Parameter, path: str | None) -> None:
    if path is None:
        return
    path = os.path.abspath(path)
    try:
        read_endpoints(path)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None
    before = os.environ.get(FILE_VARIABLE)
    os.environ[FILE_VARIABLE] = path
    context.meta[_GIVEN] = path

    def restore() -> None:
        if before is None:
            os.environ.pop(FILE_VARIABLE, None)
        else:
            os.environ[FILE_VARIABLE] = before

    context.call_on_close(restore)


endpoints_option = click.option(
    "--endpoints",
    metavar="FILE",
    expose_value=False,
    callback=_use_file,
    help="A TOML file of named model endpoints. Default: endpoints.toml in the working "
    "directory, if it is there.",
)


def model_options(function: Any) -> Any:
    """``--model``, ``--model-name`` and ``--endpoints``."""
    for option in (
        endpoints_option,
        click.option(
            "--model-name",
            default="",
            help="The model's name at its endpoint. Default: what the file of endpoints says.",
        ),
        click.option(
            "--model",
            default="oracle",
            show_default=True,
            help="The model's endpoint: oracle (always right), random (always wrong), "
            "http://HOST:PORT/v1, or a name in the file of endpoints.",
        ),
    ):
        function = option(function)
    return function


def check_model(model: str, address: str) -> None:
    """Raise :class:`ConfigError` if the workers cannot know the model.

    With an address the workers are another server's, which has a file of its own.
    """
    if not address:
        check_endpoint(model)
    elif _GIVEN in click.get_current_context().meta:
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
