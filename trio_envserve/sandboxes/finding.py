"""From the name of a provider to the provider.

Built-in names work without installation metadata, and count before entry points of the group
``trio_envserve.sandboxes``.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, cast

from ..core.errors import ConfigError
from ..near import did_you_mean
from .interface import Provider

GROUP: Final = "trio_envserve.sandboxes"
"""Entry points that are providers."""

BUILT_IN: Final[Mapping[str, str]] = MappingProxyType(
    {
        "bubblewrap": "trio_envserve.sandboxes.bubblewrap",
        "docker": "trio_envserve.sandboxes.containers:DOCKER",
        "podman": "trio_envserve.sandboxes.containers:PODMAN",
    }
)
"""Built-in names, and where their providers are."""

_MEMBERS = ("check", "create", "open", "destroy")


def find_provider(name: str) -> Provider:
    """The provider of a name.  Raises :class:`ConfigError`."""
    if not isinstance(name, str):
        raise ConfigError(f'a provider of sandboxes is a name, such as "bubblewrap", not {name!r}')
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        found: Any = import_module(module)
        return cast(Provider, getattr(found, attribute) if attribute else found)
    from importlib.metadata import entry_points  # costs more than the rest of an environment

    others = entry_points(group=GROUP)
    if name not in others.names:
        known = sorted({*BUILT_IN, *others.names})
        raise ConfigError(
            f"no provider of sandboxes is called {name!r:.80}{did_you_mean(name, known, 1)} "
            f"(known: {', '.join(known)}; others come by an entry point of {GROUP})"
        )
    try:
        found = others[name].load()
    except Exception as error:  # importing it is code of others
        raise ConfigError(
            f"the provider {name!r} of sandboxes cannot be loaded: {error}"
        ) from error
    missing = [each for each in _MEMBERS if not callable(getattr(found, each, None))]
    if missing:
        raise ConfigError(f"the provider {name!r} of sandboxes has no {', '.join(missing)}()")
    return cast(Provider, found)


def is_of_machine(provider: Provider) -> bool:
    """Whether only a worker of the machine that made a sandbox can destroy it, as the provider says
    by a true ``here``."""
    return bool(getattr(provider, "here", False))
