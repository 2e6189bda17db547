"""The judges of real runs: they accept what is right, and find each thing that is not.

Each row says what is found in the log of a run in which all is well, but for these edits; the
empty string: nothing is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.rig.written import HELD, Log, do
from trio_envserve.lab.guarantees import judge

HOST_KILLED = (
    do.killed(8.1, "worker", "p90", since_s=8.05), do.call("may", "worker-lost"),
    do.killed(8.0, "host", "remote"),
)  # fmt: skip
WITHDRAWN = do.asked(8.0, "key"), do.add(9.0, "withdrawn", "c0", "key", call="c0#key")
AGAIN = {"request": "again"}
ROWS: dict[str, tuple[Any, ...]] = {
    "all is well": ("",),
    # Nothing lost.
    "no answer": ("gone has no answer", do.asked(8.0, "gone")),
    "no answer to a client that was killed": ("", do.asked(8.0, "gone", "c1")),
    "no answer to a call that was withdrawn": (
        "", do.asked(8.0, "gone"), do.add(9.0, "withdrawn", "c0", "gone", call="c0#gone"),
    ),
    "an answer is dropped": ("fine has no answer", do.without("told", request="fine")),
    "an answer is doubled": ("a call that had its end", do.told(2.2, "fine")),
    "an answer before the ask": ("had its end", do.move(0.5, "told", request="fine")),
    # One true outcome.
    "a wrong result": ("of no execution", do.change("told", {"right": False}, request="fine")),
    "a result of another execution": (
        "of no execution", do.change("told", {"execution": "x9"}, request="fine"),
    ),
    "a result before its execution was over": (
        "of no execution", do.move(2.2, "ended", request="fine"),
    ),
    "a result of an execution that never began": (
        "of no execution", do.without("began", request="fine"),
    ),
    "a result of what failed": (
        "of no execution", do.change("ended", {"how": "Cancelled"}, request="fine"),
    ),
    "told twice, in one way": (
        "", do.asked(8.0, "again", "c2", keyed=True, rerun=True),
        do.told(9.0, "again", execution="x2", call="c2#again"),
    ),
    "told twice, in two ways": (
        "again was told in two ways", do.asked(8.0, "again", "c2", keyed=True, rerun=True),
        do.told(9.0, "again", execution="x2", call="c2#again", said="other"),
    ),
    "unknown after it was told": (
        "unknown after it had been told", do.asked(8.0, "again", "c2", keyed=True, rerun=True),
        do.told(9.0, "again", "unknown-key", call="c2#again"),
    ),
    "unknown to whoever asked before it was told": (
        "", do.asked(6.5, "again", "c2", keyed=True, rerun=True),
        do.told(9.0, "again", "unknown-key", call="c2#again"),
    ),
    "it begins after it was told": (
        "again began after its outcome was told", do.died(7.9, "p11"),
        do.harmed(7.8, "worker", "kill", "p11", pid=11),
        do.began(8.0, "again", "p12", "x3", "dead"), do.ended(8.1, "again", "p12", "x3"),
    ),
    # Once, and further by consent and proof.
    "no consent": ("again without consent", do.change("asked", {"rerun": False}, **AGAIN)),
    "no consent is given by default": (
        "again without consent", do.change("asked", {"rerun": None}, **AGAIN),
    ),
    "an allowance of one": (
        "again without consent", do.change("asked", {"max_executions": 1}, **AGAIN),
    ),
    "more often than allowed": (
        "more often than the 2 times", do.change("asked", {"max_executions": 2}, **AGAIN),
        do.killed(6.2, "worker", "p11"), do.died(6.3, "p11"), do.without("ended", "p11"),
        do.began(6.4, "again", "p12", "x3", "dead"), do.ended(6.5, "again", "p12", "x3"),
        do.change("told", {"execution": "x3"}, **AGAIN),
    ),
    "its predecessor lives": (
        "proven dead", do.change("began", {"predecessor": "alive"}, execution="x2"),
    ),
    "its predecessor is not known": (
        "proven dead", do.change("began", {"predecessor": "none"}, execution="x2"),
    ),
    "its predecessor writes on": (
        "proven dead", do.asked(8.0, "on"), do.began(8.1, "on", "p10"), do.ended(8.2, "on", "p10"),
        do.told(8.3, "on"),
    ),
    "its predecessor is seen alive later": ("proven dead", do.change("died", {"alive_s": 6.5})),
    "its predecessor is seen dead later, and alive later": (
        "proven dead", do.move(6.9, "died"), do.change("died", {"alive_s": 6.5}),
    ),
    "its predecessor is seen dead later": ("", do.move(6.9, "died")),
    "its predecessor is never seen dead": ("never seen dead", do.without("died")),
    "the same process begins it again": (
        "proven dead", do.without("began", execution="x2"), do.without("ended", execution="x2"),
        do.began(3.5, "again", "p10", "x2", "dead"), do.ended(3.6, "again", "p10", "x2"),
    ),
    "it begins again after its caller had an answer": (
        "after its caller had its answer", do.asked(3.0, "late", rerun=True, timeout_s=1.0),
        do.began(3.1, "late", "p10"), do.told(4.0, "late", "no-answer"),
        do.began(6.0, "late", "p11", "x2", "dead"), do.ended(6.1, "late", "p11", "x2"),
    ),
    "nobody had asked": (
        "who ran, and nobody had asked", do.began(8.0, "who", "p11"), do.ended(8.1, "who", "p11"),
    ),
    "it is asked for after its begin": ("nobody had asked", do.move(1.5, "asked", request="fine")),
    "a request of the measurement": ("", do.began(90.0, "#1", "p11", unasked=True)),
    "a request of the measurement runs twice": (
        "#1 began again without consent", do.began(90.0, "#1", "p11", unasked=True),
        do.began(90.0, "#1", "p11", unasked=True),
    ),
    # Errors tell the truth.
    "did not run, with a limit": (
        "", do.call("key", "never-started", "DID_NOT_RUN", timeout_s=1.0),
    ),
    "did not run, without a limit": (
        "it had no limit", do.call("key", "never-started", "DID_NOT_RUN"),
    ),
    "did not run, and ran": (
        "told that it did not run, and it ran",
        do.call("key", "never-started", "DID_NOT_RUN", timeout_s=1.0), do.began(11.0, "key", "p11"),
        do.ended(11.1, "key", "p11", how="Cancelled"),
    ),
    "did not run, and runs later": (
        "key began", do.call("key", "never-started", "DID_NOT_RUN", timeout_s=1.0),
        do.began(21.0, "key", "p11"), do.ended(21.1, "key", "p11", how="Cancelled"),
    ),
    "ran and failed, and had not begun": (
        "had not begun", do.call("key", "deadline", "RAN_AND_FAILED", timeout_s=1.0),
    ),
    "ran and failed by its limit": (
        "", do.call("key", "deadline", "RAN_AND_FAILED", timeout_s=1.0),
        do.began(11.0, "key", "p11"), do.ended(11.1, "key", "p11", how="Cancelled"),
    ),
    "ran and failed without a limit": (
        "nothing fails in this environment", do.call("key", "rollout-failed", "RAN_AND_FAILED"),
        do.began(11.0, "key", "p11"), do.ended(11.1, "key", "p11", how="Cancelled"),
    ),
    "a worker was killed long before": (
        "nothing was harmed", do.call("key", "worker-lost"), do.killed(8.5, "worker", "p90"),
    ),
    "a worker was killed just before": (
        "", do.call("key", "worker-lost"), do.killed(9.5, "worker", "p90"),
    ),
    "a worker was killed after it": (
        "nothing was harmed", do.call("key", "worker-lost"), do.killed(20.1, "worker", "p90"),
    ),
    "a kill whose event comes after what was told of it": (
        "", do.call("key", "worker-lost"), do.killed(20.1, "worker", "p90", since_s=19.9),
    ),
    "a frozen worker that was not killed yet": (
        "nothing was harmed", do.call("key", "worker-lost"),
        do.harmed(7.0, "worker", "freeze", pid=90),
    ),
    "a frozen worker that was killed by its server": (
        "", do.call("key", "worker-lost"), do.harmed(7.0, "worker", "freeze", pid=90),
        do.harmed(13.0, "worker", "ended", pid=90, since_s=7.0),
    ),
    "a server that stood still knows late": (
        "", do.call("key", "worker-lost"), do.killed(8.0, "worker", "p90"),
        do.harmed(7.5, "server", "stop", lasts_s=2.0),
    ),
    "a server hears of a death when the next host has joined": (
        "", *HOST_KILLED, do.add(9.5, "serving", "remote", of="host"),
    ),
    "a server hears of a death long before": (
        "nothing was harmed", *HOST_KILLED, do.add(8.2, "serving", "remote", of="host"),
    ),
    "a host that was lost is named": (
        "", do.asked(10.0, "key"), do.told(20.0, "key", "worker-lost", message="on w0-1@cut"),
        do.harmed(30.0, "host", "lost", "cut"),
    ),
    "a host that was not lost is named": (
        "nothing was harmed", do.asked(10.0, "key"),
        do.told(20.0, "key", "worker-lost", message="on w0-1@right"),
        do.harmed(30.0, "host", "lost", "cut"),
    ),
    "a keyed call survives its server, but not its worker": (
        "", do.lose("worker-lost", 0, 1, keyed=True),
    ),
    "a keyed call that consents survives two kills": (
        "nothing was harmed", do.lose("worker-lost", 1, 1, keyed=True, rerun=True),
        do.began(10.5, "may", "p11"), do.ended(10.6, "may", "p11", how="Cancelled"),
    ),
    "a keyed call that consents does not survive three kills": (
        "", do.lose("worker-lost", 2, 1, keyed=True, rerun=True),
    ),
    "a dispatch to a worker that was dead counts, if it never began": (
        "", do.move(9.0, "harmed", of="server"),
        do.lose("worker-lost", 2, 0, keyed=True, rerun=True),
    ),
    "a keyed call whose server was lost before it had begun has less left": (
        "", do.lose("worker-lost", 0, 1, keyed=True, rerun=True),
        do.began(12.0, "may", "p90"), do.killed(13.0, "worker", "p90"), do.died(13.1, "p90"),
    ),
    "what a keyed call has left survives no kill, but one": (
        "nothing was harmed", do.lose("worker-lost", 0, 1, keyed=True, rerun=True),
        do.began(12.0, "may", "p11"), do.ended(12.1, "may", "p11", how="Cancelled"),
    ),
    "what is not known is told under a key": ("", do.call("key", "server-lost", keyed=True)),
    # Nothing goes on.
    "it still runs at rest": (
        "key still ran at rest", *WITHDRAWN, do.began(8.1, "key", "p13"),
    ),
    "it still runs at rest in a process that is dead": (
        "", *WITHDRAWN,
        do.began(8.1, "key", "p13"), do.killed(70.0, "worker", "p13"), do.died(70.1, "p13"),
    ),
    "it begins at rest": (
        "key began at rest", *WITHDRAWN, do.began(81.0, "key", "p13"),
    ),
    # No process ends by itself.
    "a worker dies by itself": ("nobody had harmed it", do.died(50.0, "p11")),
    "a worker dies with its server": ("", do.died(60.1, "p11")),
    "a worker dies with its host": ("", do.killed(50.0, "host", "remote"), do.died(50.1, "p11")),
    "a worker dies after it was stopped": (
        "", do.harmed(49.0, "worker", "stop", pid=11, lasts_s=1.0), do.died(50.0, "p11"),
    ),
    "a worker dies when all is closed": ("", do.died(101.0, "p11")),
    "a worker that begins while all is closed dies": (
        "", do.began(100.1, "#1", "p15", unasked=True), do.died(100.5, "p15"),
    ),
    "a worker of a server that is new dies": (
        "nobody had harmed it", do.asked(62.0, "key"), do.began(62.1, "key", "p14"),
        do.ended(62.2, "key", "p14"), do.told(62.3, "key"), do.died(63.0, "p14"),
    ),
    "a worker that is frozen lives on": (
        "stopped for good", do.harmed(70.0, "worker", "survived", pid=30),
    ),
    "a client ends by itself": (
        "client c0 ended by", do.harmed(70.0, "client", "ended by itself", "client c0"),
    ),
    "a phase hangs": ("the calm did not", do.add(70.0, "phase", "hung", phase="calm")),
    "the journal is damaged": (
        "a row is", do.add(102.0, "phase", "journal", problems=["a row is missing"]),
    ),
    # Something is shown.
    "a fault never happened": ("0 server kill", do.without("harmed", "server")),
    "a key has no outcome": (
        "3 told, and 4 are wanted", do.change("phase", {"wants": {"told": 4}}),
    ),
    "it was not finished": ("from its begin to its end", do.without("phase", "end")),
    "the log of two runs": ("no run from", do.add(0.1, "phase", "begin", wants={})),
    "the log has no begin": ("no run from its begin", do.without("phase", "begin")),
    # All is given back.
    "a descriptor": (
        "server: 40 descriptors at the begin, and 41 at the end",
        do.sampled(81.5, "end", server={**HELD, "descriptors": 41}),
    ),
    "a thread": ("server: 5 threads", do.sampled(81.5, "end", server={**HELD, "threads": 6})),
    "fewer descriptors and more memory": (
        "", do.sampled(81.5, "end", server={**HELD, "descriptors": 39, "rss_kib": 90000}),
    ),
    "one process too many": (
        "server: 1 processes", do.sampled(81.5, "end", server={**HELD, "processes": 2}),
    ),
    "a process that is gone": ("server: 1 processes", do.sampled(81.5, "end")),
    "a lock file": ("", do.change("sampled", {"locks": 1}, sockets=0)),
    "another lock file": (
        "2 locks at the begin, and 3 at the end",
        do.add(81.5, "sampled", "end", kinds={"server": HELD}, sockets=0, locks=3),
    ),
    "a process is left over": (
        "left over: guard", do.sampled(102.0, "closed", rig=HELD, guard=HELD),
    ),
    "a socket is left over": (
        "1 socket files are left over",
        do.add(102.0, "sampled", "closed", kinds={}, sockets=1, locks=2),
    ),
    "no sample of the begin": ("are missing", do.without("sampled", "begin")),
    "no samples at all, where there is no /proc": ("", do.without("sampled")),
    "a wrong answer in the measurement": (
        "1 of 10000 requests",
        do.change("sampled", {"right": 9_999}, rss_kib={"router": 40_000, "client": 34_000}),
    ),
    "the router grows": (
        "the router grew by 1250 KiB",
        do.add(
            86.0, "sampled", "steady", requests=10_000, right=10_000,
            rss_kib={"router": 45_000, "client": 34_000},
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_judges_find_what_is_wrong_in_a_log_and_nothing_else(name: str, tmp_path: Path) -> None:
    text, *edits = ROWS[name]
    judged = Log(edits).judged(tmp_path / "events.jsonl")
    if not text:
        assert judged["problems"] == []
    assert any(text in problem for problem in judged["problems"]) is bool(text)
    assert judged["ok"] is not bool(text)


@pytest.mark.parametrize(
    ("code", "asked", "workers", "servers", "true"),
    [
        ("worker-lost", {}, 0, 0, False),
        ("worker-lost", {}, 1, 0, True),
        ("worker-lost", {"rerun": True}, 1, 0, False),  # it had another execution
        ("worker-lost", {"rerun": True}, 2, 0, False),
        ("worker-lost", {"rerun": True}, 3, 0, True),
        ("worker-lost", {"rerun": True, "max_executions": 1}, 1, 0, True),
        ("worker-lost", {"rerun": True, "max_executions": 10}, 2, 0, False),
        ("worker-lost", {"rerun": True, "max_executions": 10}, 1, 1, True),
        ("worker-lost", {"rerun": True, "max_executions": 10, "timeout_s": 1.0}, 1, 0, True),
        ("server-lost", {}, 0, 0, False),
        ("server-lost", {}, 1, 0, False),
        ("server-lost", {}, 0, 1, True),
        ("server-lost", {"rerun": True}, 0, 1, False),  # it could be issued again
        ("server-lost", {"rerun": True}, 0, 2, True),
        ("server-lost", {"rerun": True, "max_executions": 10}, 0, 2, False),
        ("server-lost", {"rerun": True, "max_executions": 10}, 0, 3, True),
        ("server-lost", {"rerun": True, "max_executions": 1}, 0, 1, True),
        ("server-lost", {"rerun": True, "timeout_s": 1.0}, 0, 1, True),
        ("no-answer", {}, 1, 1, False),
        ("no-answer", {"timeout_s": 1.0}, 0, 0, True),
        ("abandoned", {"timeout_s": 1.0}, 1, 1, False),
    ],
)  # fmt: skip
def test_call_may_have_run_only_if_what_it_allowed_is_used_up(
    code: str, asked: dict[str, Any], workers: int, servers: int, true: bool, tmp_path: Path
) -> None:
    log = Log()
    log.lose(code, workers, servers, **asked)
    assert log.judged(tmp_path / "log")["ok"] is true


@pytest.mark.parametrize(
    ("linked_s", "true"),
    [([], True), ([1.0], True), ([62.5], False), ([1.0, 62.5], False), ([1.0, 64.0], True)],
)
def test_client_may_know_of_its_servers_death_late_but_not_after_it_has_noticed(
    linked_s: list[float], true: bool, tmp_path: Path
) -> None:
    log = Log()
    log.call("key", "server-lost", begin_s=63.0, end_s=70.0)
    for at_s in linked_s:
        log.add(at_s, "linked", "c0", how="disconnected")
    log.add(62.9, "linked", "c1", how="connected")
    assert log.judged(tmp_path / "log")["ok"] is true


def test_log_that_cannot_be_read_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("{")
    for path in (tmp_path / "log", tmp_path / "none"):
        (problem,) = judge(path)["problems"]
        assert "cannot be read" in problem


def test_figures_say_how_often_what_happened(tmp_path: Path) -> None:
    judged = Log().judged(tmp_path / "log")
    counts = {"asked": 3, "result": 2, "worker-lost": 1, "told": 3, "began again": 1, "kills": 3}
    assert counts.items() <= judged.items()
    assert judged["growth_kib_per_10000"] == {"client": 0.0, "router": 100.0}
    assert judged["seconds"] == 101.0
