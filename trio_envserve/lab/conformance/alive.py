"""Whether the server is alive some seconds after each case.

Theory of operation
-------------------
What a case did may end its server only later: with a timer, or with the bytes that
a connection left behind.  So each case that has passed is followed by a look, a
moment after its end (``after_s``), while the next cases go on; all together take
that moment longer.  A look is a question on a connection of its own.  Once one is not
answered, the server counts as gone, and each case whose look is still to come has
failed: those that had ended in that moment.
"""

from __future__ import annotations

import dataclasses
from typing import final

import trio

from ...net import Network
from .findings import CaseFailed, Finding, Mark
from .peer import open_peer


@final
class Watch:
    """The server's life, as far as it is known."""

    def __init__(
        self, network: Network, address: str, *, after_s: float, patience_s: float
    ) -> None:
        self.gone = ""
        """Why nothing can be asked any more; empty while the server answers."""
        self.restarting = trio.Lock()
        """Held while the server is restarted, which no look must see."""
        self._network = network
        self._address = address
        self._after_s = after_s
        self._patience_s = patience_s

    async def judged_later(self, finding: Finding) -> Finding:
        """The finding about a case that has ended now, once a while has passed."""
        await trio.sleep(self._after_s)
        if finding.mark is not Mark.PASSED:
            return finding
        name = finding.case.name
        if not self.gone and not await self._answers():
            self.gone = self.gone or f"no answer any more {self._after_s:g} s after {name}"
        if not self.gone:
            return finding
        expected = f"a server that is alive {self._after_s:g} s after the case"
        return dataclasses.replace(finding, mark=Mark.FAILED, expected=expected, seen=self.gone)

    async def _answers(self) -> bool:
        async with self.restarting:
            try:
                opened = open_peer(self._network, self._address, patience_s=self._patience_s)
                async with opened as peer:
                    await peer.barrier()
            except CaseFailed:
                return False
        return True
