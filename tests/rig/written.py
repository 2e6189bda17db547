"""The log of a run in which all is well, to be edited: for tests of judges."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.rig.samples import Samples
from trio_envserve.lab.guarantees import judge

Edit = tuple[str, tuple[Any, ...], dict[str, Any]]
HELD = {"processes": 1, "descriptors": 40, "threads": 5, "rss_kib": 40_000}


class Log:
    """The events of a run of 100 s: a call, a keyed call that was begun again by consent, a call
    whose worker was lost, some faults; and then all is given back."""

    def __init__(self, edits: Iterable[Edit] = ()) -> None:
        self.events: list[dict[str, Any]] = []
        self.run()
        for method, args, options in edits:
            getattr(self, method)(*args, **options)

    def run(self) -> None:
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
        return [
            event for event in self.events
            if event["kind"] == kind and (not actor or event["actor"] == actor)
            and what.items() <= {**event["what"], "request": event["request"]}.items()
        ]  # fmt: skip

    def without(self, kind: str, actor: str = "", **what: Any) -> None:
        left_out = self.of(kind, actor, **what)
        self.events = [event for event in self.events if event not in left_out]

    def change(self, kind: str, change: dict[str, Any], **what: Any) -> None:
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

    def written(self, path: Path) -> Path:
        lines = sorted(self.events, key=lambda event: event["at_s"])
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    def judged(self, path: Path) -> dict[str, Any]:
        return judge(self.written(path), Samples())


class Edits:
    def __getattr__(self, name: str) -> Callable[..., Edit]:
        return lambda *args, **options: (name, args, options)


do = Edits()
