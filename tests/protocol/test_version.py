"""The version of the wire changes with the wire."""

from __future__ import annotations

import hashlib
from typing import Any

from trio_envserve.core import host_messages, messages
from trio_envserve.core.limits import PROTOCOL_VERSION

WIRE = {1: "421498b4291384ba", 2: "4c2da531a7b47156"}
"""For each version of the wire the digest of its messages."""

HOW = """
The messages are not those of version {version} any more: their digest is
    {digest}
Was that version released, or is there anybody whose clients, workers or hosts speak it?  Then
raise PROTOCOL_VERSION (core/limits.py), and add a line to WIRE: who speaks the old one is
refused in words.  If this version was not released yet, put the digest into its line.
"""


def declared(module: Any) -> list[str]:
    """The messages of a module as they are on the wire."""
    lines = []
    for cls, kind in module.KINDS.items():
        fields = [
            f"{name}: {field.cddl}{' optional' if field.optional else ''}"
            for name, field in module.FIELDS[cls]
        ]
        batched = " batched" if cls in messages.BATCHED else ""
        lines.append(f"{kind} {cls.__name__}{batched} ({', '.join(fields)})")
    return sorted(lines)


def test_a_message_was_changed_and_the_version_was_not():
    """Clients of the version before repeated what the server refuses, without end."""
    lines = declared(messages) + declared(host_messages)
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    said = HOW.format(version=PROTOCOL_VERSION, digest=digest)
    assert WIRE.get(PROTOCOL_VERSION) == digest, said
