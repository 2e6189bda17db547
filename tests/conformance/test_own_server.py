"""This project's own server is judged, and passes; and what cannot be judged is told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.conformance import processes
from trio_envserve import Server, ServerLimits, WireLimits, open_server
from trio_envserve.core import messages
from trio_envserve.lab.conformance.cases import select
from trio_envserve.lab.conformance.findings import CaseResult
from trio_envserve.lab.conformance.run import ConformanceReport, NotServed, Options, conform
from trio_envserve.net import RouterSocket, open_zmq_network

pytestmark = pytest.mark.real

ABOUT_LIMITS = (
    "a-connection-opens-so-many-sessions", "past-all-sessions-a-hello-is-told-so",
    "the-work-of-a-silent-client-ends-with-its-lease",
    "an-idle-session-makes-room", "a-full-queue-refuses-for-now",
)  # fmt: skip
RESTART = "a-restarted-server-has-a-new-epoch"
EACH_COMMIT = (
    "many-transmissions-at-once-*", "a-duplicate-of-*", "another-request-with-the-id-of-*",
    "without-consent-*", "outcomes-are-replayed-on-a-new-connection", "what-stays-pending-*",
    "what-a-sync-leaves-out-*", "a-cancel-may-overtake-its-request", "a-full-window-*",
    "a-malformed-header-*", "the-wrong-number-of-frames-*", "malformed-messages-*",
    "a-foreign-version-*",
)  # fmt: skip
"""The guarantees 2, 3, 4, 6 and 7 over real sockets, by a client that does as it likes."""

SMALL: dict[str, Any] = {
    "queue": 16, "sessions": 12, "connection_sessions": 5, "lease_s": 4.0,
}  # fmt: skip

ENVIRONMENT = "trio_envserve.lab.conformance.environment:Conformance"
TCP = "tcp://127.0.0.1:0"
PATIENCE_S = 60.0
"""For a right server on a busy machine."""


@asynccontextmanager
async def served(
    folder: Path, bind: str = TCP, *, workers: int = 0, **limits: Any
) -> AsyncIterator[Server]:
    args = {"directory": str(folder / "runs"), "die": workers > 0}
    async with open_server(
        ENVIRONMENT, args=args, bind=bind, workers=workers,
        limits=ServerLimits(restart_pause_s=0.02, restart_pause_max_s=0.1, **limits),
        wire=WireLimits(message_bytes=1 << 20),
    ) as server:  # fmt: skip
        yield server


async def judged(
    address: str, *patterns: str, patience_s: float = PATIENCE_S, alive_s: float = 0.0,
    **options: Any,
) -> ConformanceReport:  # fmt: skip
    return await conform(
        Options(
            address,
            select(patterns),
            wait_s=PATIENCE_S,
            patience_s=patience_s,
            alive_s=alive_s,
            **options,
        )
    )


def failures(report: ConformanceReport) -> list[tuple[str, str, str]]:
    return [(each.case.name, each.expected, each.seen) for each in report.failed]


@pytest.mark.slow
async def test_the_projects_own_server_passes_every_case(tmp_path: Path):
    with trio.fail_after(300):
        async with served(tmp_path, workers=1, window=256) as server:
            report = await judged(server.address, alive_s=5.0)
    assert failures(report) == []
    assert {each.case.name for each in report.of(CaseResult.SKIPPED)} == {*ABOUT_LIMITS, RESTART}
    assert report.ok


async def test_it_passes_what_each_commit_is_judged_by(tmp_path: Path):
    with trio.fail_after(120):
        async with served(tmp_path, workers=1, window=64) as server:
            report = await judged(server.address, *EACH_COMMIT)
    assert failures(report) == []
    assert len(report.of(CaseResult.PASSED)) == len(report.findings) == 16


async def test_it_passes_what_needs_to_know_its_limits(tmp_path: Path):
    with trio.fail_after(120):
        async with served(tmp_path, workers=1, window=64, worker_capacity=4, **SMALL) as server:
            report = await judged(server.address, *ABOUT_LIMITS, limits=SMALL)
    assert failures(report) == []
    assert report.of(CaseResult.SKIPPED) == []


async def test_cases_whose_steps_no_stage_could_do_are_passed(tmp_path: Path):
    broken = ("each-nonce-*", "what-may-have-run-without-*", "a-foreign-version-*")
    with trio.fail_after(120):
        async with served(tmp_path) as server:
            report = await judged(server.address, *broken)
    assert failures(report) == []
    assert len(report.of(CaseResult.PASSED)) == len(broken)


async def test_it_passes_what_needs_to_restart_it(tmp_path: Path):
    limits = {"restart_pause_s": 0.02, "restart_pause_max_s": 0.1}
    with trio.fail_after(120):
        report = await judged_and_restarted(tmp_path, limits)
    assert failures(report) == []
    assert report.of(CaseResult.SKIPPED) == []


async def judged_and_restarted(tmp_path: Path, limits: dict[str, Any]) -> ConformanceReport:
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(processes.served(tmp_path, limits=limits))

        async def restart() -> None:
            await stack.aclose()
            again = processes.served(tmp_path, limits=limits, bind=address)
            await stack.enter_async_context(again)

        return await judged(address, RESTART, restart=restart)


async def test_a_server_without_worker_processes_is_not_killed(tmp_path: Path):
    with trio.fail_after(120):
        async with served(tmp_path) as server:
            report = await judged(server.address, "*death*", "*allowance-caps*", "a-hello-*")
    assert failures(report) == []
    skipped = {each.seen for each in report.of(CaseResult.SKIPPED)}
    assert skipped == {"the environment does not offer die"}
    assert len(report.of(CaseResult.PASSED)) == 2


async def test_over_ipc_all_is_judged_but_what_needs_the_proxy(tmp_path: Path, folder: str):
    with trio.fail_after(120):
        async with served(tmp_path, f"ipc://{folder}/s") as server:
            report = await judged(server.address, "*half*", "*cancel*")
    assert failures(report) == []
    assert {each.seen for each in report.of(CaseResult.SKIPPED)} == {
        "the fault proxy is for tcp addresses"
    }


async def test_another_environment_is_no_finding_about_its_server():
    with trio.fail_after(120):
        async with open_server("arithmetic", bind=TCP, workers=0) as server:
            with pytest.raises(NotServed, match="serves 'arithmetic'"):
                await judged(server.address)


async def test_nobody_there_is_no_finding(folder: str):
    with trio.fail_after(120):
        with pytest.raises(NotServed, match="no server to judge"):
            await conform(Options(f"ipc://{folder}/nobody", wait_s=0.1))


# -- servers that are none ------------------------------------------------------


async def answer(router: RouterSocket, how: Any) -> None:
    while True:
        for route, *frames in await router.receive():
            for reply in how([bytes(frame) for frame in frames]):
                router.send_nowait(bytes(route), reply)


def welcome(hello: messages.Hello) -> bytes:
    status = {"status": "ready", "environment": "odd"}
    return messages.encode(
        messages.Welcome(2, hello.nonce, b"s" * 16, b"e" * 16, 10, 1 << 20, status)
    )


async def judged_as(
    how: Any, *patterns: str, patience_s: float = PATIENCE_S, alive_s: float = 0.0
) -> ConformanceReport:
    """The findings about a server that answers each message as ``how`` says."""
    patterns = patterns or ("a-hello-*", "statistics-*")
    async with (
        open_zmq_network() as network,
        network.open_router(TCP, limits=WireLimits()) as router,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(answer, router, how)
        report = await judged(router.address, *patterns, patience_s=patience_s, alive_s=alive_s)
        nursery.cancel_scope.cancel()
    return report


def about(frames: list[bytes]) -> list[list[bytes]]:
    """What any server has to answer before it is judged."""
    message = messages.decode(frames[0], most_bytes=1 << 20)
    if isinstance(message, messages.Hello):
        return [[welcome(message)]]
    if isinstance(message, messages.Request):
        from trio_envserve.core.values import encode

        head = messages.Outcome(message.session, message.sequence, 0, "", 0.0, 1)
        body = encode({"conformance": 1, "operations": []})
        return [[messages.encode(head), body]]
    if isinstance(message, messages.Query):
        return [[messages.encode(messages.QueryAnswer(message.probe)), b"\xa0"]]
    return []


def right_until_judged(then: list[list[bytes]]) -> Any:
    """Answers rightly up to the statistics that are asked for before the first case."""
    before = True

    def answers(frames: list[bytes]) -> list[list[bytes]]:
        nonlocal before
        if not before:
            return then
        before = not isinstance(messages.decode(frames[0], most_bytes=1 << 20), messages.Query)
        return about(frames)

    return answers


async def test_a_server_that_answers_with_nonsense_fails():
    with trio.fail_after(120):
        report = await judged_as(right_until_judged([[b"\xff nonsense"]]))
    assert not report.ok
    assert "a message of this document" in {each.expected for each in report.failed}


async def test_a_server_that_falls_silent_is_told_once():
    with trio.fail_after(120):
        report = await judged_as(right_until_judged([]), patience_s=3.0)
    assert len(report.failed) == 1
    assert report.failed[0].expected == "a server that answers"
    assert all("no answer any more" in each.seen for each in report.of(CaseResult.SKIPPED))
    assert not report.ok


async def test_a_server_that_dies_seconds_after_a_case_is_told_of_that_case():
    asked = 0

    def mortal(frames: list[bytes]) -> list[list[bytes]]:
        nonlocal asked
        message = messages.decode(frames[0], most_bytes=1 << 20)
        asked += isinstance(message, messages.Query)
        return about(frames) if asked <= 3 else []  # before the case, in it, and at its end

    with trio.fail_after(120):
        report = await judged_as(mortal, "statistics-*", patience_s=3.0, alive_s=0.2)
    assert [each.case.name for each in report.failed] == ["statistics-need-no-session"]
    (told,) = report.failed
    assert told.expected == "a server that is alive 0.2 s after the case"
    assert told.seen == "no answer any more 0.2 s after statistics-need-no-session"
    assert not report.ok
