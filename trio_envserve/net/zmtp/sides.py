"""The two sides of CURVE as a socket opens them: keys, randomness, and who may come in."""

from __future__ import annotations

import dataclasses
import os
from typing import final

from ...core.limits import WireLimits
from ..keypairs import ClientCurve, KeyPair
from . import boxes
from .curve import Admit, CurveClient, CurveServer
from .sealed import SEALED_FRAME_BYTES


@final
@dataclasses.dataclass(frozen=True, slots=True)
class RouterCurve:
    """A router that speaks CURVE."""

    keys: KeyPair
    admit: Admit
    """Is asked for each client's public key: see :data:`~.curve.Admit`."""

    def mechanism(self) -> CurveServer:
        """This side of one handshake."""
        return CurveServer(
            b"ROUTER", secret=self.keys.secret_bytes, admit=self.admit, random=os.urandom
        )


def client_mechanism(curve: ClientCurve) -> CurveClient:
    """A dealer's side of one handshake."""
    return CurveClient(
        b"DEALER", secret=curve.keys.secret_bytes, server=curve.server_bytes, random=os.urandom
    )


def sealed_wire(wire: WireLimits) -> WireLimits:
    """The same limits for sealed connections: of the sizes that can be sealed in one step."""
    boxes.check_installed()
    return dataclasses.replace(wire, message_bytes=min(wire.message_bytes, SEALED_FRAME_BYTES))
