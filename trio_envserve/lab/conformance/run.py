"""Runs of cases against a server, and their findings."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, final

import trio

from ...core.errors import EnvServeError
from ...net import Network, open_zmq_network, parse_peer_address, unwrap_single
from .bench import open_bench
from .cases import CASES, CaseStage
from .environment import CONTRACT
from .findings import Case, CaseFailed, CaseResult, CaseSkipped, Finding, Unreachable
from .peer import open_peer, value_of

CASE_S = 60.0
"""Limit of one case; each wait inside of it has a limit of its own."""


@dataclasses.dataclass(frozen=True, slots=True)
class ConformanceReport:
    """All findings about one server, or one worker."""

    judged: str
    """The server's address, or the worker's command."""
    findings: tuple[Finding, ...]
    seconds: float

    def of(self, mark: CaseResult) -> list[Finding]:
        """Those with this mark, in order."""
        return [finding for finding in self.findings if finding.mark is mark]

    @property
    def failed(self) -> list[Finding]:
        """The failures."""
        return self.of(CaseResult.FAILED)

    @property
    def ok(self) -> bool:
        """Whether nothing failed, and something passed."""
        return not self.failed and bool(self.of(CaseResult.PASSED))

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "judged": self.judged, "ok": self.ok,
            **{mark.value: len(self.of(mark)) for mark in CaseResult},
            "seconds": round(self.seconds, 3),
            "cases": [finding.to_json() for finding in self.findings],
        }  # fmt: skip


async def judge_case(case: Case, run: Callable[[Case], Awaitable[None]], reason: str) -> Finding:
    """Run one case, unless there is a reason to skip it.  Raises :class:`Unreachable`."""
    if reason:
        return Finding(case, CaseResult.SKIPPED, seen=reason)
    began_s = trio.current_time()
    mark, expected, seen = CaseResult.PASSED, "", ""
    with trio.move_on_after(CASE_S) as limit:
        try:
            with unwrap_single():
                await run(case)
        except Unreachable:
            raise
        except CaseSkipped as skipped:
            mark, seen = CaseResult.SKIPPED, str(skipped)
        except CaseFailed as failed:
            mark, expected, seen = CaseResult.FAILED, failed.expected, failed.seen
        except Exception as error:
            # Whatever a strange peer made a case stumble over: the other cases
            # are to be heard, too.
            mark, expected = CaseResult.FAILED, "a case that ends"
            seen = f"{type(error).__name__}: {error}"
    if limit.cancelled_caught:
        mark, expected, seen = CaseResult.FAILED, f"an end within {CASE_S:g} s", "none"
    return Finding(case, mark, expected, seen, trio.current_time() - began_s)


# == Whether the server is alive some seconds after each case
#
# Theory of operation
# -------------------
# What a case did may end its server only later: with a timer, or with the bytes that
# a connection left behind.  So each case that has passed is followed by a look, a
# moment after its end (``after_s``), while the next cases go on; all together take
# that moment longer.  A look is a question on a connection of its own.  Once one is not
# answered, the server counts as gone, and each case whose look is still to come has
# failed: those that had ended in that moment.


@final
class ServerWatch:
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
        if finding.mark is not CaseResult.PASSED:
            return finding
        name = finding.case.name
        if not self.gone and not await self._answers():
            self.gone = self.gone or f"no answer any more {self._after_s:g} s after {name}"
        if not self.gone:
            return finding
        expected = f"a server that is alive {self._after_s:g} s after the case"
        return dataclasses.replace(
            finding, mark=CaseResult.FAILED, expected=expected, seen=self.gone
        )

    async def _answers(self) -> bool:
        async with self.restarting:
            try:
                opened = open_peer(self._network, self._address, patience_s=self._patience_s)
                async with opened as peer:
                    await peer.barrier()
            except CaseFailed:
                return False
        return True


# == Runs cases against a server, one after the other, and collects their findings
#
# ::
#
#     from trio_envserve.lab.conformance.cases import select
#     from trio_envserve.lab.conformance.run import Options, conform
#
#     report = trio.run(conform, Options("tcp://127.0.0.1:5555"))
#     assert report.ok, report.failed
#
# Theory of operation
# -------------------
# First the server must be ready and serve the environment of the cases; whatever
# is wrong with that is a :class:`NotServed`, and no finding.  Then each case gets
# a bench and a limit of time; what it raises is its finding.  A case also fails
# if the server does not answer after it, at once or some seconds later (:class:`ServerWatch`),
# so that a server that a case has killed is counted against that case.  No two cases
# run at once: what one does is not seen by another.


class NotServed(EnvServeError):
    """There is no server, or none that could be judged."""


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """The cases to judge, and how patiently."""

    address: str
    cases: Sequence[Case] = CASES
    wait_s: float = 10.0
    """How long to wait for a server that is ready."""
    patience_s: float = 5.0
    """How long to wait for anything that a case expects."""
    settle_s: float = 0.05
    """How much later it is looked once more whether something ran a second time."""
    alive_s: float = 5.0
    """How long after each case the server is asked whether it is still alive."""
    limits: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """The known limits of the server, by their names: the cases about a limit
    are skipped without it, or if it is too large to be reached."""
    restart: Callable[[], Awaitable[object]] | None = None
    """Kills the server and starts it anew at the same address; cases that need that are
    skipped without it."""
    told: Callable[[Finding], object] = lambda finding: None
    """Called with each finding as it falls, and once more with another one about the same
    case if the server is not alive ``alive_s`` later."""


async def conform(options: Options) -> ConformanceReport:
    """Judge a server.  Raises ConfigError for the address, and :class:`NotServed`."""
    is_tcp = parse_peer_address(options.address).scheme == "tcp"
    findings: list[Finding] = []
    began_s = trio.current_time()
    async with open_zmq_network() as network:
        operations = await _operations(network, options)
        watch = ServerWatch(
            network, options.address, after_s=options.alive_s, patience_s=options.patience_s
        )

        async def look(index: int) -> None:
            later = await watch.judged_later(findings[index])
            if later is not findings[index]:
                findings[index] = later
                options.told(later)

        run = functools.partial(_run, network, options, watch)
        async with trio.open_nursery() as nursery:
            for index, case in enumerate(options.cases):
                reason = watch.gone or _reason_to_skip(case, operations, is_tcp=is_tcp)
                try:
                    finding = await judge_case(case, run, reason)
                except Unreachable as error:
                    # It is told of those before, if they are to blame.
                    watch.gone = watch.gone or f"no answer any more after {_last(findings)}"
                    mark = (
                        CaseResult.SKIPPED if any(map(_was_judged, findings)) else CaseResult.FAILED
                    )
                    finding = Finding(case, mark, error.expected, watch.gone)
                findings.append(finding)
                options.told(finding)
                nursery.start_soon(look, index)
    if watch.gone and not any(each.mark is CaseResult.FAILED for each in findings):
        # It answered the looks and no bench: then the case that found none has failed.
        index = next(i for i, each in enumerate(findings) if each.seen == watch.gone)
        findings[index] = dataclasses.replace(findings[index], mark=CaseResult.FAILED)
    return ConformanceReport(options.address, tuple(findings), trio.current_time() - began_s)


def _last(findings: Sequence[Finding]) -> str:
    return findings[-1].case.name if findings else "the start"


def _was_judged(finding: Finding) -> bool:
    return finding.mark is not CaseResult.SKIPPED


async def _operations(network: Network, options: Options) -> list[str]:
    """Wait for a server that is ready; what its environment offers."""
    try:
        async with open_peer(network, options.address, patience_s=options.wait_s) as peer:
            await peer.hello()
            with trio.move_on_after(options.wait_s):
                while peer.server.get("status") != "ready":
                    await trio.sleep(0.05)
                    await peer.sync(0, [])
            if peer.server.get("status") != "ready":
                raise NotServed(f"the server at {options.address} is not ready: {peer.server}")
            peer.transmit(0, {"op": "about"})
            outcome = await peer.outcome(0)
            value = value_of(outcome)
            peer.goodbye()
            await peer.barrier()
    except CaseFailed as error:
        raise NotServed(f"no server to judge at {options.address}: {error}") from None
    if outcome.message.status != 0 or not isinstance(value, dict):
        value = {}
    if value.get("conformance") != CONTRACT:
        name = peer.server.get("environment")
        raise NotServed(
            f"the server at {options.address} serves {name!r}; it can be judged when it serves "
            "trio_envserve.lab.conformance.environment:Conformance, or an environment "
            "that does the same (docs/conformance.md)"
        )
    return [str(each) for each in value.get("operations", [])]


def _reason_to_skip(case: Case, operations: Sequence[str], *, is_tcp: bool) -> str:
    """Why this server cannot be judged by a case; empty if it can."""
    lacking = [each for each in case.needs if each not in operations]
    if lacking:
        return f"the environment does not offer {', '.join(lacking)}"
    if case.faults and not is_tcp:
        return "the fault proxy is for tcp addresses"
    return ""


async def _run(network: Network, options: Options, watch: ServerWatch, case: Case) -> None:
    """The case on a bench, and what it leaves behind cleared; the first failure counts."""
    async with open_bench(
        network, options.address, patience_s=options.patience_s, settle_s=options.settle_s,
        limits=options.limits, restart=options.restart, restarting=watch.restarting,
    ) as bench:  # fmt: skip
        failure: EnvServeError | None = None
        try:
            with unwrap_single():
                async with AsyncExitStack() as stack:
                    opened = [bench.client() for _ in range(case.clients)]
                    peers = [await stack.enter_async_context(each) for each in opened]
                    await case.main(CaseStage(bench, peers, stack))
                    await bench.check_runs()
        except (CaseFailed, CaseSkipped) as error:
            failure = error
        try:
            await bench.clear()
        except CaseFailed as error:
            failure = failure or error
    if failure is not None:
        raise failure
