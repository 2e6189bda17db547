"""The demonstration: it passes, and with a broken dedup cache it fails."""

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.cli.commands import Finished, check_nothing_left, forked
from trio_envserve.core.messages import Outcome, Synced, encode, in_batches
from trio_envserve.lab.demo.judge import EVENTS, RECEIVED_AFTER_CUT, REPLAYED, wants
from trio_envserve.lab.demo.run import outcomes_in, schedule
from trio_envserve.lab.demo.wiretap import id_of
from trio_envserve.lab.processes import program

LIMIT_S = 240
"""For a busy machine; a run takes some fifteen seconds on an idle one."""


WITH_SERVER = """
import functools, sys
from trio_envserve.cli import demo, main
demo.DemoOptions = functools.partial(demo.DemoOptions, server_command={})
sys.exit(main())
"""
"""The command, whose demonstration is of another server."""


async def run_demo(folder: Path, *arguments: str, server: Sequence[str] = ()) -> Finished:
    (folder / "with_server.py").write_text(WITH_SERVER.format(list(server)))
    module = "with_server" if server else "trio_envserve"
    async with forked(folder, "demo", "--json", *arguments, module=module) as running:
        return await running.wait()


def without_one(kind: str) -> Callable[[list[str]], list[str]]:
    """Leaves the last event of a kind out of a log."""

    def change(lines: list[str]) -> list[str]:
        last = max(i for i, line in enumerate(lines) if f'"kind": "{kind}"' in line)
        return lines[:last] + lines[last + 1 :]

    return change


def without(kind: str) -> Callable[[list[str]], list[str]]:
    """Leaves the events of a kind out of a log."""
    return lambda lines: [line for line in lines if f'"kind": "{kind}"' not in line]


def doubled(kind: str) -> Callable[[list[str]], list[str]]:
    """Doubles the first event of a kind."""

    def change(lines: list[str]) -> list[str]:
        first = next(i for i, line in enumerate(lines) if f'"kind": "{kind}"' in line)
        return [*lines[: first + 1], *lines[first:]]

    return change


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("host", [(), ("--remote-host",)], ids=["here", "on a host"])
async def test_a_thousand_rollouts_run_once_each(tmp_path: Path, host: tuple[str, ...]):
    done = await run_demo(tmp_path, *host, "--keep", "logs", "--seconds-limit", str(LIMIT_S))
    figures = done.last
    assert done.code == 0, done.err
    done.check_no_traceback()
    assert (figures["ok"], figures["problems"]) == (True, [])
    assert figures["asked"] == figures["result"] == 1000
    assert figures.get("host kill") == (1 if host else None)
    assert min(figures[name] for name in (REPLAYED, RECEIVED_AFTER_CUT, "began again")) > 0
    await check_nothing_left(tmp_path)

    # The judge is a program of its own, and comes to the same.
    async def judged() -> Finished:
        async with forked(tmp_path, "logs", module="trio_envserve.lab.demo.judge") as judge:
            return await judge.wait()

    again = await judged()
    assert (again.code, json.loads(again.out).items() <= figures.items()) == (0, True)

    # And sees it if a line of the log is gone, or one is there too many.
    log = tmp_path / "logs" / EVENTS
    lines = log.read_text().splitlines()
    for change in (without_one("told"), doubled("began"), doubled("told"), without("died")):
        log.write_text("\n".join(change(lines)) + "\n")
        assert (await judged()).code == 1


@pytest.mark.real
@pytest.mark.slow
async def test_without_the_answer_to_a_duplicate_it_fails(tmp_path: Path):
    broken = program("tests.rig.broken_server", "duplicate")
    given = ("--rollouts", "500", "--seconds-limit", "60")
    done = await run_demo(tmp_path, *given, server=broken)
    assert (done.code, done.last["ok"]) == (1, False)
    # It was found for what it is, and nothing else had to go wrong for it.
    assert done.last["began"] > 0
    assert sum("before was proven dead" in problem for problem in done.last["problems"]) > 10


@pytest.mark.real
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
async def test_interrupted_it_leaves_no_process(number: int, code: int, tmp_path: Path):
    async with forked(tmp_path, "demo", "--json") as running:
        await running.said("/1000: ")  # the first fault: everything runs
        running.signal(number)
        done = await running.wait()
    assert done.code == code
    done.check_no_traceback()
    await check_nothing_left(tmp_path)
    if number is not signal.SIGKILL:
        assert "interrupted after" in done.err
        assert done.last["ok"] is False
        assert not any(name.startswith("trio-envserve-demo-") for name in os.listdir(tmp_path))


@pytest.mark.real
async def test_a_server_that_does_not_start_is_told_with_its_words(tmp_path: Path):
    server = [sys.executable, "-c", "raise SystemExit('the disk is on fire')"]
    done = await run_demo(tmp_path, server=server)
    assert done.code == 3
    assert "the disk is on fire" in done.err
    assert "the disk is on fire" in done.last["error"]["message"]
    done.check_no_traceback()


@pytest.mark.parametrize("seed", range(20))
def test_each_schedule_has_every_fault_in_good_time(seed):
    due = schedule(seed, 1000)
    assert due == schedule(seed, 1000) == sorted(due)
    assert due[0].at > 0
    assert due[-1].at <= 600
    kinds = Counter(f"{act.of} {act.how}" for act in due)
    assert kinds.pop("worker kill") == 3
    assert kinds.items() <= wants(1000).items()


def test_outcomes_are_found_in_what_a_server_sent():
    one, two = bytes(range(16)), bytes(16)
    heads = [encode(Outcome(session, n, 0, "w", 0.1, 1)) for session, n in ((one, 7), (two, 1000))]
    failed = encode(Outcome(one, 8, 1, "w", 0.1, 1)) + b"\x00\x05error"
    other = encode(Synced(one, 1, [], {}))
    body = b"\x00\x20...execution..."
    data = b"tail execution" + heads[0] + body + failed + other + heads[1] + body
    assert outcomes_in(data) == [id_of(one, 7), id_of(two, 1000)]
    batch = in_batches([(Outcome(one, n, 0, "w", 0.1, 1), body) for n in (3, 4, 70_000)])
    assert outcomes_in(data + b"".join(next(batch)))[2:] == [
        id_of(one, number) for number in (3, 4, 70_000)
    ]
    assert outcomes_in(heads[0]) == []
    assert outcomes_in(b"") == []
