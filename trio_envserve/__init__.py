"""trio_envserve: an environment server in which a retry is never a second run.

::

    async with open_server("arithmetic", workers=2) as server:
        async with open_client(server.address) as client:
            result = await client.run_rollout({"index": 0})

A request is transmitted as often as the network needs it and runs at most
once; its outcome is kept until the caller has it; and every call ends with the
outcome or an error that says which is true: it did not run
(:class:`DidNotRun`), it ran and failed (:class:`RanAndFailed`), it may have
run (:class:`MayHaveRun`).
"""

from .client import Client, Outcome, open_client
from .core.errors import (
    Abandoned,
    CallError,
    Cancelled,
    ConfigError,
    Conflict,
    DeadlineExceeded,
    DidNotRun,
    EnvServeError,
    ErrorInfo,
    MayHaveRun,
    NeverStarted,
    NoAnswer,
    NotEncodable,
    OutcomeNotDecodable,
    OutcomeNotEncodable,
    OutcomeTooLarge,
    ProtocolError,
    RanAndFailed,
    Refused,
    RolloutFailed,
    ServerLost,
    ServerNotReady,
    ServerStartError,
    ServerUnreachable,
    TooLarge,
    WorkerLost,
)
from .core.health import Health
from .core.limits import ClientLimits, ServerLimits, WireLimits
from .core.terms import Verdict
from .envs.interface import Environment, Rollout
from .server import Server, open_server, serve

__version__ = "0.1.0"

__all__ = [
    "Abandoned",
    "CallError",
    "Cancelled",
    "Client",
    "ClientLimits",
    "ConfigError",
    "Conflict",
    "DeadlineExceeded",
    "DidNotRun",
    "EnvServeError",
    "Environment",
    "ErrorInfo",
    "Health",
    "MayHaveRun",
    "NeverStarted",
    "NoAnswer",
    "NotEncodable",
    "Outcome",
    "OutcomeNotDecodable",
    "OutcomeNotEncodable",
    "OutcomeTooLarge",
    "ProtocolError",
    "RanAndFailed",
    "Refused",
    "Rollout",
    "RolloutFailed",
    "Server",
    "ServerLimits",
    "ServerLost",
    "ServerNotReady",
    "ServerStartError",
    "ServerUnreachable",
    "TooLarge",
    "Verdict",
    "WireLimits",
    "WorkerLost",
    "open_client",
    "open_server",
    "serve",
]
