"""The framing of requests: a head that two readers could understand differently is refused.

Theory of operation
-------------------
A proxy in front of the door and the door itself must agree where each request ends, or
the rest of one is taken for the next, which carries another caller's rights (request
smuggling).  h11 refuses most of what is in doubt; the rest is refused here, with 400 and
the end of the connection (RFC 9112, 2.2, 5.2, 6.1 and 6.3).
"""

from __future__ import annotations

import re
from typing import Any, Final, final

import h11

_BARE: Final = re.compile(rb"(?<!\r)\n|\r(?!\n)")
_FOLDED: Final = re.compile(rb"\n[ \t]")
_LENGTH: Final = re.compile(rb"\ncontent-length:([^\r]*)", re.IGNORECASE)
_CODING: Final = re.compile(rb"\ntransfer-encoding:", re.IGNORECASE)


def fault_of(head: bytes, http_version: bytes) -> str:
    """The reason why the end of a request is in doubt, or "".  ``head`` has all lines as
    they came, up to the empty one."""
    if _BARE.search(head):
        return "a line of the head ends with CR or LF alone"
    if _FOLDED.search(head):
        return "a field is folded over several lines"
    lengths = _LENGTH.findall(head)
    if len(lengths) > 1 or b"," in b"".join(lengths):
        return "Content-Length stands more than once"
    if _CODING.search(head):
        if lengths:
            return "Content-Length and Transfer-Encoding exclude each other"
        if http_version < b"1.1":
            return "HTTP/1.0 has no Transfer-Encoding"
    return ""


@final
class StrictConnection(h11.Connection):
    """h11's connection of a server, without h11's leniency about heads."""

    def next_event(self) -> Any:
        """See :meth:`h11.Connection.next_event`; a head in doubt is a RemoteProtocolError."""
        if self.their_state is not h11.IDLE:
            return super().next_event()
        waiting = self.trailing_data[0]
        event = super().next_event()
        if isinstance(event, h11.Request):
            head = waiting[: len(waiting) - len(self.trailing_data[0])]
            if fault := fault_of(head, event.http_version):
                raise h11.RemoteProtocolError(fault, error_status_hint=400)
        return event
