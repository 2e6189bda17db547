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

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import (
        Arrays,
        CallOptions,
        Client,
        KeyEnded,
        Outcome,
        Outcomes,
        PlainClient,
        PlainOutcomes,
        open_client,
    )
    from .client.aio import AsyncioClient, AsyncioOutcomes, open_client_asyncio
    from .commands import CompletedProcess
    from .core.closing import ClosingStage
    from .core.endings import Ending, Fault
    from .core.errors import (
        Abandoned,
        CallError,
        ConfigError,
        Conflict,
        DeadlineExceeded,
        DidNotRun,
        EnvironmentBroken,
        EnvironmentUnavailable,
        EnvServeError,
        ErrorInfo,
        ExecutionCancelled,
        ExecutionLimit,
        InterpreterHeld,
        KeyConflict,
        MayHaveRun,
        NeverStarted,
        NoAnswer,
        NotDurable,
        NotEncodable,
        OutcomeNotDecodable,
        OutcomeNotEncodable,
        OutcomeTooLarge,
        ProtocolError,
        RanAndFailed,
        RequestRefused,
        RolloutFailed,
        ServerLost,
        ServerNotClosed,
        ServerNotReady,
        ServerStartError,
        ServerUnreachable,
        TooLarge,
        UnknownKey,
        WorkerLost,
    )
    from .core.health import Health, ServerHealth, ServerStatus
    from .core.limits import ClientLimits, KeyLimits, ServerLimits, WireLimits
    from .core.notes import Note
    from .core.status import (
        CacheStats,
        ClientCounters,
        ClosingRecord,
        HostStats,
        KeyPage,
        KnownKey,
        PastHost,
        PermitStats,
        ResourceStats,
        RunningPage,
        RunningRollout,
        ServerStats,
        StatusRecord,
        WorkerDeath,
        WorkerStats,
    )
    from .core.terms import Verdict
    from .core.values import DecodingError, EncodingError
    from .core.worker_range import WorkerRange
    from .envs.apart import ApartDied, ApartError, ApartOutOfMemory, ApartTimeout, apart
    from .envs.interface import Environment, Rollout, RolloutCancelled
    from .envs.late import Late
    from .envs.made import (
        BlockingProcess,
        ProcessBlock,
        ProcessError,
        ProcessFailed,
        ProcessNotStarted,
        ProcessTimeout,
        RolloutProcess,
    )
    from .envs.notes import RolloutNotes
    from .envs.permits import Permit
    from .envs.resources import Resource, ResourceError
    from .envs.saves import SavedTurn, SaveRefused
    from .host.allocator import keep_freed_memory
    from .host.joined import JoinedHost
    from .host.opening import open_host
    from .models.interface import (
        BrokenNumbers,
        Completion,
        ContextFull,
        Logprobs,
        Message,
        Messages,
        Model,
        ModelAborted,
        ModelError,
        NoReference,
        TokenIds,
        ToolCall,
        image_part,
    )
    from .models.usage import ModelUsage
    from .net import Network, Transport
    from .net.keypairs import ClientCurve, KeyPair
    from .sandboxes.interface import SandboxDied, SandboxUnavailable
    from .sandboxes.sandbox import Sandbox, SandboxBlock, Sandboxed
    from .server import Server, ServerOptions, open_server, serve
    from .server.curve import ClientRight, ServerCurve

__version__ = "0.1.0"

__all__ = [
    "Abandoned", "ApartDied", "ApartError", "ApartOutOfMemory", "ApartTimeout", "Arrays",
    "AsyncioClient", "AsyncioOutcomes", "BlockingProcess", "BrokenNumbers", "CacheStats",
    "CallError", "CallOptions", "Client", "ClientCounters", "ClientCurve", "ClientLimits",
    "ClientRight", "ClosingRecord", "ClosingStage", "CompletedProcess", "Completion", "ConfigError",
    "Conflict", "ContextFull", "DeadlineExceeded", "DecodingError", "DidNotRun", "EncodingError",
    "Ending", "EnvServeError", "Environment", "EnvironmentBroken", "EnvironmentUnavailable",
    "ErrorInfo", "ExecutionCancelled", "ExecutionLimit", "Fault", "Health", "HostStats",
    "InterpreterHeld", "JoinedHost", "KeyConflict", "KeyEnded", "KeyLimits", "KeyPage", "KeyPair",
    "KnownKey", "Late", "Logprobs", "MayHaveRun", "Message", "Messages", "Model", "ModelAborted",
    "ModelError", "ModelUsage", "Network", "NeverStarted", "NoAnswer", "NoReference", "NotDurable",
    "NotEncodable", "Note", "Outcome", "OutcomeNotDecodable", "OutcomeNotEncodable",
    "OutcomeTooLarge", "Outcomes", "PastHost", "Permit", "PermitStats", "PlainClient",
    "PlainOutcomes", "ProcessBlock", "ProcessError", "ProcessFailed", "ProcessNotStarted",
    "ProcessTimeout", "ProtocolError", "RanAndFailed", "RequestRefused", "Resource",
    "ResourceError", "ResourceStats", "Rollout", "RolloutCancelled", "RolloutFailed",
    "RolloutNotes", "RolloutProcess", "RunningPage", "RunningRollout", "Sandbox", "SandboxBlock",
    "SandboxDied", "SandboxUnavailable", "Sandboxed", "SaveRefused", "SavedTurn", "Server",
    "ServerCurve", "ServerHealth", "ServerLimits", "ServerLost", "ServerNotClosed",
    "ServerNotReady", "ServerOptions", "ServerStartError", "ServerStats", "ServerStatus",
    "ServerUnreachable", "StatusRecord", "TokenIds", "TooLarge", "ToolCall", "Transport",
    "UnknownKey", "Verdict", "WireLimits", "WorkerDeath", "WorkerLost", "WorkerRange",
    "WorkerStats", "apart", "image_part", "keep_freed_memory", "open_client", "open_client_asyncio",
    "open_host", "open_server", "serve",
]  # fmt: skip

# The cheapest first: importing stops where the name is found.
_HOMES = (
    "core.terms", "core.endings", "core.errors", "core.limits", "core.health", "core.status",
    "core.worker_range", "models.interface", "models.usage", "commands",
    "sandboxes.interface", "sandboxes.sandbox", "envs.apart", "envs.late", "envs.interface",
    "envs.made", "envs.saves", "envs.resources", "core.values", "net", "net.keypairs", "client",
    "client.aio", "host.allocator", "host.joined", "host.opening", "server", "server.curve",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used.

    The command handles Ctrl-C from its first instruction on, and that is only
    soon if importing this package, which comes before, takes no time.
    """
    if name in __all__:
        for home in _HOMES:
            found = getattr(import_module(f".{home}", __name__), name, None)
            if found is not None:
                globals()[name] = found
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
