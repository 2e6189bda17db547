"""The judges of real runs: they accept what is right, and find each thing that is not.

Each row changes the log of a run in which all is well, and says what is found; the empty string:
nothing is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.rig.samples import Samples
from trio_envserve.lab.guarantees import judge

Change = Callable[["Log"], object]
HELD = {"processes": 1, "descriptors": 40, "threads": 5, "rss_kib": 40_000}


class Log:
    """The events of a run of 100 s: a call, a keyed call that was begun again by consent, a call
    whose worker was lost, some faults; and then all is given back."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        wants = {"result": 1, "worker kill": 1, "server kill": 1, "began again": 1, "told": 3}
        self.add(0.0, "phase", "begin", wants=wants)
        self.asked(1.0, "fine")
        self.began(1.1, "fine", "p10")
        self.ended(2.0, "fine", "p10")
        self.told(2.1, "fine")
        self.asked(3.0, "again", keyed=True, rerun=True)
        self.began(3.1, "again", "p10")
        self.asked(4.0, "lost")
        self.began(4.1, "lost", "p10")
        self.killed(5.0, "worker", "p10")
        self.died(5.1, "p10")
        self.told(5.5, "lost", "worker-lost")
        self.began(6.0, "again", "p11", "x2", "dead")
        self.ended(7.0, "again", "p11", "x2")
        self.told(7.1, "again", execution="x2")
        self.killed(60.0, "server")
        self.killed(61.0, "client", "c1")
        self.add(80.0, "phase", "rest")
        for phase, at_s in (("begin", 0.5), ("end", 81.0)):
            self.sampled(at_s, phase, server=HELD)
        self.sampled(101.0, "closed", rig=HELD)
        for number in range(4):
            held = {"router": 40_000 + 100 * number, "client": 34_000}
            self.add(
                82.0 + number, "sampled", "steady", requests=10_000, right=10_000, rss_kib=held
            )
        self.add(99.0, "phase", "end")
        self.add(100.0, "phase", "closing")

    def add(self, at_s: float, kind: str, actor: str, request: str = "", **what: Any) -> None:
        self.events.append(
            {"at_s": at_s, "kind": kind, "actor": actor, "request": request, "what": what}
        )

    def asked(self, at_s: float, request: str, client: str = "c0", **what: Any) -> None:
        self.add(at_s, "asked", client, request, **{"call": f"{client}#{request}", **what})

    def told(self, at_s: float, request: str, code: str | None = None, **what: Any) -> None:
        verdict = "MAY_HAVE_RUN" if code else None
        about = {
            "call": f"c0#{request}", "ok": not code, "right": not code, "code": code,
            "verdict": verdict, "message": code, "execution": "x1", "said": f"{code}",
        }  # fmt: skip
        self.add(at_s, "told", "c0", request, **about | what)

    def call(self, request: str, code: str | None = None, verdict: str = "MAY_HAVE_RUN",
             begin_s: float = 10.0, end_s: float = 20.0, **asked: Any) -> None:  # fmt: skip
        """A call and its answer."""
        self.asked(begin_s, request, **asked)
        self.told(end_s, request, code, verdict=verdict)

    def began(self, at_s: float, request: str, process: str, execution: str = "x1",
              predecessor: str = "none", **what: Any) -> None:  # fmt: skip
        about = {"execution": execution, "predecessor": predecessor, "pid": int(process[1:])}
        self.add(at_s, "began", process, request, **about | what)

    def ended(self, at_s: float, request: str, process: str, execution: str = "x1",
              how: str = "result") -> None:  # fmt: skip
        self.add(at_s, "ended", process, request, execution=execution, how=how)

    def died(self, at_s: float, process: str, alive_s: float | None = None) -> None:
        self.add(at_s, "died", process, pid=int(process[1:]), alive_s=alive_s or at_s - 0.05)

    def harmed(self, at_s: float, of: str, how: str, name: str = "", **what: Any) -> None:
        self.add(at_s, "harmed", name or of, of=of, how=how, **{"since_s": at_s, **what})

    def killed(self, at_s: float, of: str, name: str = "", **what: Any) -> None:
        pid = int(name[1:]) if of == "worker" else 1
        self.harmed(at_s + 0.01, of, "kill", name, pid=pid, **{"since_s": at_s, **what})

    def sampled(self, at_s: float, phase: str, **kinds: dict[str, int]) -> None:
        self.add(at_s, "sampled", phase, kinds=kinds, sockets=0, locks=2)

    def of(self, kind: str, actor: str = "", **what: Any) -> list[dict[str, Any]]:
        """The events of a kind."""
        return [
            event for event in self.events
            if event["kind"] == kind and (not actor or event["actor"] == actor)
            and what.items() <= {**event["what"], "request": event["request"]}.items()
        ]  # fmt: skip

    def without(self, kind: str, actor: str = "", **what: Any) -> None:
        """Leave events out."""
        left_out = self.of(kind, actor, **what)
        self.events = [event for event in self.events if event not in left_out]

    def change(self, kind: str, change: dict[str, Any], **what: Any) -> None:
        """Change what events say."""
        for event in self.of(kind, **what):
            event["what"] |= change

    def move(self, at_s: float, kind: str, **what: Any) -> None:
        """Let an event have come at another time."""
        for event in self.of(kind, **what):
            event["at_s"] = at_s

    def lose(self, code: str, workers: int, servers: int, **asked: Any) -> None:
        """A call that may have run, and what was killed during it."""
        self.call("may", code, **asked)
        for number in range(workers):
            self.killed(11.0 + number, "worker", f"p{90 + number}")
        for number in range(servers):
            self.killed(11.5 + number, "server")

    def judged(self, path: Path) -> dict[str, Any]:
        lines = sorted(self.events, key=lambda event: event["at_s"])
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return judge(path, Samples())


def all_of(*changes: Change) -> Change:
    def change(log: Log) -> None:
        for each in changes:
            each(log)

    return change


def hosted(joined_s: float) -> Change:
    """A host is killed just before a worker-lost, and the next one joins then."""

    def change(log: Log) -> None:
        log.killed(8.1, "worker", "p90", since_s=8.05)
        log.call("may", "worker-lost", begin_s=10.0)
        log.killed(8.0, "host", "remote")
        log.add(joined_s, "serving", "remote", of="host")

    return change


AGAIN = {"request": "again"}
ROWS: dict[str, tuple[Change, str]] = {
    "all is well": (lambda log: None, ""),
    # Nothing lost.
    "no answer": (lambda log: log.asked(8.0, "gone"), "gone has no answer"),
    "no answer to a client that was killed": (lambda log: log.asked(8.0, "gone", "c1"), ""),
    "no answer to a call that was withdrawn": (
        all_of(
            lambda log: log.asked(8.0, "gone"),
            lambda log: log.add(9.0, "withdrawn", "c0", "gone", call="c0#gone"),
        ),
        "",
    ),
    "an answer is dropped": (lambda log: log.without("told", request="fine"), "fine has no answer"),
    "an answer is doubled": (lambda log: log.told(2.2, "fine"), "a call that had its end"),
    "an answer before the ask": (lambda log: log.move(0.5, "told", request="fine"), "had its end"),
    # One true outcome.
    "a wrong result": (
        lambda log: log.change("told", {"right": False}, request="fine"), "of no execution"
    ),
    "a result of another execution": (
        lambda log: log.change("told", {"execution": "x9"}, request="fine"), "of no execution"
    ),
    "a result before its execution was over": (
        lambda log: log.move(2.2, "ended", request="fine"), "of no execution"
    ),
    "a result of an execution that never began": (
        lambda log: log.without("began", request="fine"), "of no execution"
    ),
    "a result of what failed": (
        lambda log: log.change("ended", {"how": "Cancelled"}, request="fine"), "of no execution"
    ),
    "told twice, in one way": (
        all_of(
            lambda log: log.asked(8.0, "again", "c2", keyed=True, rerun=True),
            lambda log: log.told(9.0, "again", execution="x2", call="c2#again"),
        ),
        "",
    ),
    "told twice, in two ways": (
        all_of(
            lambda log: log.asked(8.0, "again", "c2", keyed=True, rerun=True),
            lambda log: log.told(9.0, "again", execution="x2", call="c2#again", said="other"),
        ),
        "again was told in two ways",
    ),
    "unknown after it was told": (
        all_of(
            lambda log: log.asked(8.0, "again", "c2", keyed=True, rerun=True),
            lambda log: log.told(9.0, "again", "unknown-key", call="c2#again"),
        ),
        "unknown after it had been told",
    ),
    "unknown to whoever asked before it was told": (
        all_of(
            lambda log: log.asked(6.5, "again", "c2", keyed=True, rerun=True),
            lambda log: log.told(9.0, "again", "unknown-key", call="c2#again"),
        ),
        "",
    ),
    "it begins after it was told": (
        all_of(
            lambda log: log.died(7.9, "p11"),
            lambda log: log.harmed(7.8, "worker", "kill", "p11", pid=11),
            lambda log: log.began(8.0, "again", "p12", "x3", "dead"),
            lambda log: log.ended(8.1, "again", "p12", "x3"),
        ),
        "again began after its outcome was told",
    ),
    # Once, and further by consent and proof.
    "no consent": (
        lambda log: log.change("asked", {"rerun": False}, **AGAIN), "again without consent"
    ),
    "no consent is given by default": (
        lambda log: log.change("asked", {"rerun": None}, **AGAIN), "again without consent"
    ),
    "an allowance of one": (
        lambda log: log.change("asked", {"max_executions": 1}, **AGAIN), "again without consent"
    ),
    "more often than allowed": (
        all_of(
            lambda log: log.change("asked", {"max_executions": 2}, **AGAIN),
            lambda log: log.killed(6.2, "worker", "p11"),
            lambda log: log.died(6.3, "p11"),
            lambda log: log.without("ended", "p11"),
            lambda log: log.began(6.4, "again", "p12", "x3", "dead"),
            lambda log: log.ended(6.5, "again", "p12", "x3"),
            lambda log: log.change("told", {"execution": "x3"}, **AGAIN),
        ),
        "more often than the 2 times",
    ),
    "its predecessor lives": (
        lambda log: log.change("began", {"predecessor": "alive"}, execution="x2"), "proven dead"
    ),
    "its predecessor is not known": (
        lambda log: log.change("began", {"predecessor": "none"}, execution="x2"), "proven dead"
    ),
    "its predecessor writes on": (
        all_of(lambda log: log.asked(8.0, "on"), lambda log: log.began(8.1, "on", "p10"),
               lambda log: log.ended(8.2, "on", "p10"), lambda log: log.told(8.3, "on")),
        "proven dead",
    ),
    "its predecessor is seen alive later": (
        lambda log: log.change("died", {"alive_s": 6.5}), "proven dead"
    ),
    "its predecessor is seen dead later, and alive later": (
        all_of(lambda log: log.move(6.9, "died"), lambda log: log.change("died", {"alive_s": 6.5})),
        "proven dead",
    ),
    "its predecessor is seen dead later": (lambda log: log.move(6.9, "died"), ""),
    "its predecessor is never seen dead": (lambda log: log.without("died"), "never seen dead"),
    "the same process begins it again": (
        all_of(
            lambda log: log.without("began", execution="x2"),
            lambda log: log.without("ended", execution="x2"),
            lambda log: log.began(3.5, "again", "p10", "x2", "dead"),
            lambda log: log.ended(3.6, "again", "p10", "x2"),
        ),
        "proven dead",
    ),
    "it begins again after its caller had an answer": (
        all_of(
            lambda log: log.asked(3.0, "late", rerun=True, timeout_s=1.0),
            lambda log: log.began(3.1, "late", "p10"),
            lambda log: log.told(4.0, "late", "no-answer"),
            lambda log: log.began(6.0, "late", "p11", "x2", "dead"),
            lambda log: log.ended(6.1, "late", "p11", "x2"),
        ),
        "after its caller had its answer",
    ),
    "nobody had asked": (
        all_of(lambda log: log.began(8.0, "who", "p11"), lambda log: log.ended(8.1, "who", "p11")),
        "who ran, and nobody had asked",
    ),
    "it is asked for after its begin": (
        lambda log: log.move(1.5, "asked", request="fine"), "nobody had asked"
    ),
    "a request of the measurement": (
        lambda log: log.began(90.0, "#1", "p11", unasked=True), ""
    ),
    "a request of the measurement runs twice": (
        all_of(*2 * [lambda log: log.began(90.0, "#1", "p11", unasked=True)]),
        "#1 began again without consent",
    ),
    # Errors tell the truth.
    "did not run, with a limit": (
        lambda log: log.call("key", "never-started", "DID_NOT_RUN", timeout_s=1.0), ""
    ),
    "did not run, without a limit": (
        lambda log: log.call("key", "never-started", "DID_NOT_RUN"), "it had no limit"
    ),
    "did not run, and ran": (
        all_of(
            lambda log: log.call("key", "never-started", "DID_NOT_RUN", timeout_s=1.0),
            lambda log: log.began(11.0, "key", "p11"),
            lambda log: log.ended(11.1, "key", "p11", how="Cancelled"),
        ),
        "told that it did not run, and it ran",
    ),
    "did not run, and runs later": (
        all_of(
            lambda log: log.call("key", "never-started", "DID_NOT_RUN", timeout_s=1.0),
            lambda log: log.began(21.0, "key", "p11"),
            lambda log: log.ended(21.1, "key", "p11", how="Cancelled"),
        ),
        "key began",
    ),
    "ran and failed, and had not begun": (
        lambda log: log.call("key", "deadline", "RAN_AND_FAILED", timeout_s=1.0), "had not begun"
    ),
    "ran and failed by its limit": (
        all_of(
            lambda log: log.call("key", "deadline", "RAN_AND_FAILED", timeout_s=1.0),
            lambda log: log.began(11.0, "key", "p11"),
            lambda log: log.ended(11.1, "key", "p11", how="Cancelled"),
        ),
        "",
    ),
    "ran and failed without a limit": (
        all_of(
            lambda log: log.call("key", "rollout-failed", "RAN_AND_FAILED"),
            lambda log: log.began(11.0, "key", "p11"),
            lambda log: log.ended(11.1, "key", "p11", how="Cancelled"),
        ),
        "nothing fails in this environment",
    ),
    "a worker was killed long before": (
        all_of(lambda log: log.call("key", "worker-lost"),
               lambda log: log.killed(8.5, "worker", "p90")),
        "nothing was harmed",
    ),
    "a worker was killed just before": (
        all_of(lambda log: log.call("key", "worker-lost"),
               lambda log: log.killed(9.5, "worker", "p90")),
        "",
    ),
    "a worker was killed after it": (
        all_of(lambda log: log.call("key", "worker-lost"),
               lambda log: log.killed(20.1, "worker", "p90")),
        "nothing was harmed",
    ),
    "a kill whose event comes after what was told of it": (
        all_of(lambda log: log.call("key", "worker-lost"),
               lambda log: log.killed(20.1, "worker", "p90", since_s=19.9)),
        "",
    ),
    "a frozen worker that was not killed yet": (
        all_of(lambda log: log.call("key", "worker-lost"),
               lambda log: log.harmed(7.0, "worker", "freeze", pid=90)),
        "nothing was harmed",
    ),
    "a frozen worker that was killed by its server": (
        all_of(lambda log: log.call("key", "worker-lost"),
               lambda log: log.harmed(7.0, "worker", "freeze", pid=90),
               lambda log: log.harmed(13.0, "worker", "ended", pid=90, since_s=7.0)),
        "",
    ),
    "a server that stood still knows late": (
        all_of(lambda log: log.call("key", "worker-lost"),
               lambda log: log.killed(8.0, "worker", "p90"),
               lambda log: log.harmed(7.5, "server", "stop", lasts_s=2.0)),
        "",
    ),
    "a server hears of a death when the next host has joined": (hosted(9.5), ""),
    "a server hears of a death long before": (hosted(8.2), "nothing was harmed"),
    "a host that was lost is named": (
        all_of(
            lambda log: log.asked(10.0, "key"),
            lambda log: log.told(20.0, "key", "worker-lost", message="on w0-1@cut"),
            lambda log: log.harmed(30.0, "host", "lost", "cut"),
        ),
        "",
    ),
    "a host that was not lost is named": (
        all_of(
            lambda log: log.asked(10.0, "key"),
            lambda log: log.told(20.0, "key", "worker-lost", message="on w0-1@right"),
            lambda log: log.harmed(30.0, "host", "lost", "cut"),
        ),
        "nothing was harmed",
    ),
    "a keyed call survives its server, but not its worker": (
        lambda log: log.lose("worker-lost", 0, 1, keyed=True), ""
    ),
    "a keyed call that consents survives two kills": (
        all_of(lambda log: log.lose("worker-lost", 1, 1, keyed=True, rerun=True),
               lambda log: log.began(10.5, "may", "p11"),
               lambda log: log.ended(10.6, "may", "p11", how="Cancelled")),
        "nothing was harmed",
    ),
    "a keyed call that consents does not survive three kills": (
        lambda log: log.lose("worker-lost", 2, 1, keyed=True, rerun=True), ""
    ),
    "a dispatch to a worker that was dead counts, if it never began": (
        all_of(lambda log: log.move(9.0, "harmed", of="server"),
               lambda log: log.lose("worker-lost", 2, 0, keyed=True, rerun=True)),
        "",
    ),
    "what is not known is told under a key": (
        lambda log: log.call("key", "server-lost", keyed=True), ""
    ),
    # Nothing goes on.
    "it still runs at rest": (
        all_of(lambda log: log.asked(8.0, "key"),
               lambda log: log.add(9.0, "withdrawn", "c0", "key", call="c0#key"),
               lambda log: log.began(8.1, "key", "p13")),
        "key still ran at rest",
    ),
    "it still runs at rest in a process that is dead": (
        all_of(lambda log: log.asked(8.0, "key"),
               lambda log: log.add(9.0, "withdrawn", "c0", "key", call="c0#key"),
               lambda log: log.began(8.1, "key", "p13"),
               lambda log: log.killed(70.0, "worker", "p13"), lambda log: log.died(70.1, "p13")),
        "",
    ),
    "it begins at rest": (
        all_of(lambda log: log.asked(8.0, "key"),
               lambda log: log.add(9.0, "withdrawn", "c0", "key", call="c0#key"),
               lambda log: log.began(81.0, "key", "p13")),
        "key began at rest",
    ),
    # No process ends by itself.
    "a worker dies by itself": (lambda log: log.died(50.0, "p11"), "nobody had harmed it"),
    "a worker dies with its server": (lambda log: log.died(60.1, "p11"), ""),
    "a worker dies with its host": (
        all_of(lambda log: log.killed(50.0, "host", "remote"), lambda log: log.died(50.1, "p11")),
        "",
    ),
    "a worker dies after it was stopped": (
        all_of(lambda log: log.harmed(49.0, "worker", "stop", pid=11, lasts_s=1.0),
               lambda log: log.died(50.0, "p11")),
        "",
    ),
    "a worker dies when all is closed": (lambda log: log.died(101.0, "p11"), ""),
    "a worker of a server that is new dies": (
        all_of(lambda log: log.asked(62.0, "key"), lambda log: log.began(62.1, "key", "p14"),
               lambda log: log.ended(62.2, "key", "p14"), lambda log: log.told(62.3, "key"),
               lambda log: log.died(63.0, "p14")),
        "nobody had harmed it",
    ),
    "a worker that is frozen lives on": (
        lambda log: log.harmed(70.0, "worker", "survived", pid=30), "stopped for good"
    ),
    "a client ends by itself": (
        lambda log: log.harmed(70.0, "client", "ended by itself", "client c0"), "client c0 ended by"
    ),
    "a phase hangs": (lambda log: log.add(70.0, "phase", "hung", phase="calm"), "the calm did not"),
    "the journal is damaged": (
        lambda log: log.add(102.0, "phase", "journal", problems=["a row is missing"]), "a row is"
    ),
    # Something is shown.
    "a fault never happened": (lambda log: log.without("harmed", "server"), "0 server kill"),
    "a key has no outcome": (
        lambda log: log.change("phase", {"wants": {"told": 4}}), "3 told, and 4 are wanted"
    ),
    "it was not finished": (lambda log: log.without("phase", "end"), "from its begin to its end"),
    "the log of two runs": (lambda log: log.add(0.1, "phase", "begin", wants={}), "no run from"),
    "the log has no begin": (lambda log: log.without("phase", "begin"), "no run from its begin"),
    # All is given back.
    "a descriptor": (
        lambda log: log.sampled(81.5, "end", server={**HELD, "descriptors": 41}),
        "server: 40 descriptors at the begin, and 41 at the end",
    ),
    "a thread": (
        lambda log: log.sampled(81.5, "end", server={**HELD, "threads": 6}), "server: 5 threads"
    ),
    "fewer descriptors and more memory": (
        lambda log: log.sampled(81.5, "end", server={**HELD, "descriptors": 39, "rss_kib": 90_000}),
        "",
    ),
    "one process too many": (
        lambda log: log.sampled(81.5, "end", server={**HELD, "processes": 2}), "server: 1 processes"
    ),
    "a process that is gone": (lambda log: log.sampled(81.5, "end"), "server: 1 processes"),
    "a lock file": (
        lambda log: log.change("sampled", {"locks": 1}, sockets=0), ""
    ),
    "another lock file": (
        lambda log: log.add(81.5, "sampled", "end", kinds={"server": HELD}, sockets=0, locks=3),
        "2 locks at the begin, and 3 at the end",
    ),
    "a process is left over": (
        lambda log: log.sampled(102.0, "closed", rig=HELD, guard=HELD), "left over: guard"
    ),
    "a socket is left over": (
        lambda log: log.add(102.0, "sampled", "closed", kinds={}, sockets=1, locks=2),
        "1 socket files are left over",
    ),
    "no sample of the begin": (lambda log: log.without("sampled", "begin"), "are missing"),
    "no samples at all, where there is no /proc": (lambda log: log.without("sampled"), ""),
    "a wrong answer in the measurement": (
        lambda log: log.of("sampled", "steady")[0]["what"].update(right=9_999),
        "1 of 10000 requests",
    ),
    "the router grows": (
        lambda log: log.add(86.0, "sampled", "steady", requests=10_000, right=10_000,
                            rss_kib={"router": 45_000, "client": 34_000}),
        "the router grew by 1250 KiB",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_judges_find_what_is_wrong_in_a_log_and_nothing_else(name: str, tmp_path: Path) -> None:
    change, text = ROWS[name]
    log = Log()
    change(log)
    judged = log.judged(tmp_path / "events.jsonl")
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
