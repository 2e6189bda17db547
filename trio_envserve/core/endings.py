"""Ends of calls without a result: one table of all codes, for programs that act on them.

Theory of operation
-------------------
A trainer that is handed a failure asks four questions: did it run (:class:`~.terms.Verdict`),
whose fault is it (:class:`Fault`), does it stay out of the gradient (``mask``), and can asking
again help (``again``).  Each code has its answers in :data:`ENDINGS`, and nowhere else:
exceptions, problems of the HTTP door, rows of ``POST /run``, errors of the verifiers door,
evaluations, metrics and the documentation read them here.

A code that this version does not know gets what its verdict allows to say (:func:`ending_of`).

A rollout that raised has the code of what it raised: exceptions of this package carry one of
:data:`RAISED` as their class attribute ``code``; any other exception is ``rollout-failed``.

Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple

from .terms import Verdict


class Fault(enum.Enum):
    """The party that a failure is put down to."""

    POLICY = "policy"
    """The model's own behaviour: part of what is learnt from."""
    ENVIRONMENT = "environment"
    """The environment's code, its scorer, or a limit of its rollouts."""
    ENGINE = "engine"
    """The endpoint of the model."""
    INFRASTRUCTURE = "infrastructure"
    """Workers, servers, networks, and services that an environment needs."""
    CALLER = "caller"
    """The request, its limit, or a cancel."""


class Ending(NamedTuple):
    """The row of a code."""

    code: str
    """The code of the error."""
    verdict: Verdict
    """Whether it ran."""
    fault: Fault
    """Party that it is put down to."""
    mask: bool
    """Whether to leave the rollout out of the gradient."""
    again: bool
    """Whether asking again can end otherwise."""
    meaning: str
    """Description for people."""
    raised: bool = False
    """Whether rollouts end so by raising: the error is a ``RolloutFailed`` with this code."""


def _rows() -> tuple[Ending, ...]:
    not_run, failed, may = Verdict.DID_NOT_RUN, Verdict.RAN_AND_FAILED, Verdict.MAY_HAVE_RUN
    policy, environment, engine = Fault.POLICY, Fault.ENVIRONMENT, Fault.ENGINE
    infrastructure, caller = Fault.INFRASTRUCTURE, Fault.CALLER
    row = Ending
    return (
        # it did not run
        row("not-encodable", not_run, caller, True, False, "the input has no encoding"),
        row("too-large", not_run, caller, True, False, "the input is too large for the server"),
        row("conflict", not_run, caller, True, False, "the id was used for another request"),
        row("key-conflict", not_run, caller, True, False, "the key was used for another input"),
        row("key-deleted", not_run, caller, True, True, "the key was deleted before it started"),
        row("refused", not_run, caller, True, False, "the server refuses the request for good"),
        row("malformed", not_run, caller, True, False,
            "the server refuses it as malformed: client and server speak different wires"),
        row("foreign-version", not_run, caller, True, False,
            "client and server speak different versions of the protocol"),
        row("never-started", not_run, infrastructure, True, True,
            "its limit passed, or its key was cancelled, before it was dispatched"),
        row("server-unreachable", not_run, infrastructure, True, True, "no server was found"),
        row("stopping", not_run, infrastructure, True, True, "the server stops"),
        row("busy", not_run, infrastructure, True, True, "the door has no room for now"),
        row("not-ready", not_run, infrastructure, True, True, "no worker is ready yet"),
        row("environment-broken", not_run, environment, True, False,
            "the environment cannot be set up"),
        # it ran and failed: what the rollout raised
        row("rollout-failed", failed, environment, True, True, "the environment raised", True),
        row("scorer-failed", failed, environment, True, True,
            "the environment raised while it computed the reward", True),
        row("apart-timeout", failed, environment, True, True,
            "a call apart did not end within its timeout_s, and its process was ended", True),
        row("apart-memory", failed, environment, True, True,
            "a call apart needed more memory than its memory_bytes", True),
        row("apart-died", failed, environment, True, True,
            "the process of a call apart died", True),
        row("process-not-started", failed, environment, True, True,
            "a process of the rollout could not be started", True),
        row("process-failed", failed, environment, True, True,
            "a process of the rollout ended with another status than 0", True),
        row("process-timeout", failed, environment, True, True,
            "a process of the rollout did not end within its timeout_s, and was killed", True),
        row("context-full", failed, policy, False, False,
            "the conversation is longer than the model's context", True),
        row("model-unavailable", failed, engine, True, True, "the model could not be asked", True),
        row("model-aborted", failed, engine, True, True,
            "the engine cut its answer off, or refused to give one", True),
        row("model-broken-numbers", failed, engine, True, True,
            "the engine gave log-probabilities that are no finite numbers", True),
        row("environment-unavailable", failed, infrastructure, True, True,
            "something that the environment needs is down", True),
        row("resource", failed, infrastructure, True, True,
            "a resource was refused, by a bound or for the journal's failure, or has a handle that "
            "cannot be kept", True),
        row("sandbox-died", failed, infrastructure, True, True,
            "the sandbox of the rollout is gone: it was killed, or its daemon has ended", True),
        # it ran and failed otherwise
        row("deadline", failed, caller, True, True, "it was stopped at the caller's limit"),
        row("execution-limit", failed, environment, True, True,
            "its execution lasted for longer than execution_s, of the call or of the server, or "
            "worked for longer than working_s"),
        row("outcome-not-encodable", failed, environment, True, False,
            "the environment's result has no encoding"),
        row("outcome-not-decodable", failed, environment, True, False,
            "the outcome arrived and could not be decoded"),
        row("outcome-too-large", failed, environment, True, False, "the outcome is too large"),
        row("no-reward", failed, environment, True, False,
            "the environment's result has no reward that is a number"),
        # it may have run
        row("worker-lost", may, infrastructure, True, True, "the worker died while it ran it"),
        row("interpreter-held", may, environment, True, False,
            "its code held the interpreter of its worker until that was killed"),
        row("server-lost", may, infrastructure, True, True,
            "the server, or its memory of the session, is gone"),
        row("server-stopped", may, infrastructure, True, True, "the server stopped while it ran"),
        row("not-durable", may, infrastructure, True, True, "the server's journal has failed"),
        row("unknown-key", may, caller, True, True, "nothing is known under the key"),
        row("no-answer", may, infrastructure, True, True,
            "its limit passed, and the server did not say what happened"),
        row("abandoned", may, caller, True, True, "the client was closed while it ran"),
        row("cancelled", may, caller, True, True, "it was cancelled on the server's side"),
        row("unreadable", may, infrastructure, True, True,
            "the record of the error could not be read"),
        row("internal", may, infrastructure, True, True, "the door made a mistake"),
    )  # fmt: skip


ENDINGS: Final[Mapping[str, Ending]] = {each.code: each for each in _rows()}
"""By code.  The order is that of the documentation."""

OTHER_CODE: Final = "other"
"""Stands in counts for the codes that are not in :data:`ENDINGS`, which workers may make up."""

RAISED: Final = tuple(each.code for each in ENDINGS.values() if each.raised)
"""Codes that exceptions of rollouts may carry."""

_UNKNOWN: Final[Mapping[Verdict, Ending]] = {
    Verdict.DID_NOT_RUN: Ending(
        "", Verdict.DID_NOT_RUN, Fault.CALLER, True, True, "it did not run"
    ),
    Verdict.RAN_AND_FAILED: Ending(
        "", Verdict.RAN_AND_FAILED, Fault.ENVIRONMENT, True, True, "it ran and failed"
    ),
    Verdict.MAY_HAVE_RUN: Ending(
        "", Verdict.MAY_HAVE_RUN, Fault.INFRASTRUCTURE, True, True, "it may have run"
    ),
}


def ending_of(code: str, verdict: Verdict) -> Ending:
    """The row of a code.  A code that is not known, or is known with another verdict, has
    what its verdict says."""
    found = ENDINGS.get(code)
    if found is not None and found.verdict is verdict:
        return found
    return _UNKNOWN[verdict]._replace(code=code)
