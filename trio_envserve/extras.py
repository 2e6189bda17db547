"""The extras of this package: what is said where one is missing.  Pure."""

from __future__ import annotations


def needs_extra(what: str, extra: str) -> str:
    """The message about something whose extra is not installed."""
    return f"{what} needs the extra {extra}: pip install 'trio-envserve[{extra}]'"
