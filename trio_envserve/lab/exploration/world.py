"""A small system: its states, what can happen in each, and which are the same."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from hashlib import blake2b
from typing import Any, TypeVar

from ...core.limits import WireLimits
from . import names
from .actions import Action
from .canonical import Newest, digest, lower
from .clients import Clients
from .configurations import Configuration
from .explored import Explored
from .forms import form
from .judge import CallPast, Past
from .leaves import Counted
from .mail import Mail
from .moves import Move
from .servers import Routers
from .state import DEAD, ClientPart, SystemState, WorkerPart
from .workers import Workers

T = TypeVar("T")


class World(Explored[SystemState]):
    """A configuration of clients, a server and its workers.

    ``merge``: see :attr:`Catalogue.merge`."""

    def __init__(self, configuration: Configuration, *, merge: bool = True) -> None:
        self.configuration = configuration
        limits = (configuration.server_limits(), configuration.client_limits(), WireLimits())
        self.mail = Mail()
        self.routers = Routers(self.mail, limits, configuration.workers, configuration.capacity)
        self.clients = Clients(self.mail, limits, self._options)
        self.workers = Workers(self.mail, limits, configuration.declared, configuration.announce)
        machines = {"router": self.routers, "client": self.clients, "worker": self.workers}
        super().__init__(machines, configuration.clients, configuration.workers)
        for catalogue in machines.values():
            catalogue.merge = merge
        self._keys = [
            names.request_key(client, call)
            for client in range(configuration.clients)
            for call in range(configuration.requests)
        ]
        # A call that was last sent so long before the newest probe is named missing by no
        # answer on its way: probes are numbered anew only when the last one is answered.
        in_order = not (configuration.late or configuration.strays)
        far = 1 << 30
        self._most = {"sent": 2 if in_order else far, "probe": far, "connection": far, "beat": far}
        self._of_router = cache(self._digest_of_router)
        self._of_client = cache(self._digest_of_client)
        self._of_worker = cache(self._digest_of_worker)
        self._of_past = cache(self._digest_of_past)
        self._parts: dict[Any, Any] = {}

    def once(self, part: T) -> T:
        """The one that is kept of all equal parts of states: they have much in common."""
        known: T = self._parts.setdefault(part, part)
        return known

    def _options(self) -> dict[str, Any]:
        asked = self.configuration
        return {"rerun": asked.consent, "limit_s": 60.0 if asked.limited else None}

    # -- states -----------------------------------------------------------------

    def blank(self) -> SystemState:
        """Before anything: a server that has started nothing, clients not connected."""
        asked = self.configuration
        return SystemState(
            life=0,
            router=self.routers.new(0),
            clients=tuple(ClientPart(self.clients.new(n)) for n in range(asked.clients)),
            workers=(),
            left=tuple(asked.bounds.values()),
            past=Past(tuple(map(CallPast, self._keys))),
        )

    def opening(self) -> Iterator[Action]:
        """The way from a blank state to the first: all are connected and ready,
        nothing was asked.  Yields actions; the caller takes them."""
        yield ("open",)
        for slot in range(self.configuration.workers):
            yield ("start", slot)
            yield ("wup", slot)
            yield ("wdown", slot)
        for client in range(self.configuration.clients):
            yield ("connect", client)
            yield ("up", client)
            yield ("down", client)

    def step(self, state: SystemState) -> Move:
        """The move that takes one action from this state."""
        return Move(self, state)

    # -- what can happen ----------------------------------------------------------

    def certain(self, state: SystemState) -> list[Action]:
        """The actions that happen by themselves, sooner or later, in no certain order."""
        actions: list[Action] = []
        requests = self.configuration.requests
        infos = self.clients.info
        for c, client in enumerate(state.clients):
            info = infos[client.core]
            if client.up:
                actions.append(("up", c))
            if client.down:
                actions.append(("down", c))
            if client.late:
                actions.append(("late", c))
            if not info.connected:
                actions.append(("connect", c))
            if client.asked < requests and not info.closed:
                actions.append(("ask", c))
            actions += [("take", c, call) for call in info.answered]
            if info.unflushed:
                actions.append(("flush", c))
            if info.held:
                actions.append(("scan", c))
        for w, worker in enumerate(state.workers):
            self._certain_of_worker(state, w, worker, actions)
        router = self.routers.info[state.router]
        actions += [("settle", worker) for worker in router.unsettled]
        actions += [("start", slot) for slot in router.empty_slots]
        after, effects = self.routers.step(state.router, ("tick",))
        forms = self.routers.form
        if effects or (after != state.router and forms[after] != forms[state.router]):
            actions.append(("tick",))
        if router.closed and not any(w.core != DEAD and w.life < state.life for w in state.workers):
            actions.append(("open",))
        return actions

    def _certain_of_worker(
        self, state: SystemState, w: int, worker: WorkerPart, actions: list[Action]
    ) -> None:
        if worker.up:
            actions.append(("wup", w))
        if worker.late:
            actions.append(("wlate", w))
        if worker.core == DEAD:
            if worker.life == state.life and not worker.reaped:
                actions.append(("reap", w))
            return
        if worker.down:
            actions.append(("wdown", w))
        for run in worker.runs:
            actions.append(("end", w, run.number, True))
            if run.cancelled:
                actions.append(("end", w, run.number, False))
        if worker.doomed or worker.life < state.life:
            actions.append(("die", w, True))
            if worker.up:
                actions.append(("die", w, False))

    def timers(self, state: SystemState) -> list[Action]:
        """The timers that a second of silence makes due: they repair what was lost.  Free, since
        they only come where nothing else does; what they send is no news."""
        actions: list[Action] = []
        for c, client in enumerate(state.clients):
            info = self.clients.info[client.core]
            actions += [("again", c, call) for call in info.asking]
            actions.append(("idle_ping", c))
        known = {s for c in state.clients for s in self.clients.info[c.core].sessions}
        sessions = self.routers.info[state.router].sessions
        actions += [("idle_lease", session) for session in sessions if session not in known]
        workers = enumerate(state.workers)
        actions += [("idle_beat", w) for w, part in workers if part.core != DEAD]
        return actions

    def trouble(self, state: SystemState) -> list[Action]:
        """The faults that may happen as well, as often as their bounds allow."""
        left = dict(zip(self.configuration.BOUNDED, state.left, strict=True))
        actions: list[Action] = []
        for c, client in enumerate(state.clients):
            self._trouble_of_client(c, client, left, actions)
        for w, worker in enumerate(state.workers):
            if worker.core != DEAD and worker.life == state.life:
                self._trouble_of_worker(w, worker, left, actions)
            elif worker.core != DEAD and left["beats"]:
                actions.append(("beat", w))
        router = self.routers.info[state.router]
        if left["kills"]:
            living = {w.id for w in state.workers if w.core != DEAD and w.life == state.life}
            actions += [("silence", worker) for worker in router.watched if worker in living]
            actions += [("stop", worker) for worker in router.ignored if worker in living]
        if left["leases"]:
            actions += [("lease", session) for session in router.sessions]
        if left["limits"]:
            actions += [("deadline", *request) for request in router.deadlines]
        if left["restarts"]:
            actions.append(("restart",))
        if left["forgeries"]:
            actions += [("forge", *request) for request in router.requests]
        return actions

    def _trouble_of_client(
        self, c: int, client: ClientPart, left: dict[str, int], actions: list[Action]
    ) -> None:
        info = self.clients.info[client.core]
        if info.connected:
            if left["pings"]:
                actions.append(("ping", c))
            if left["cuts"]:
                actions.append(("cut", c, False))
                if self.configuration.late and client.up:
                    actions.append(("cut", c, True))
            ways = [way for way in ("up", "down") if getattr(client, way)]
            if left["losses"]:
                actions += [("lose", c, way) for way in ways]
            if left["strays"]:
                actions += [("stray", c, way, copy) for way in ways for copy in (True, False)]
        if left["cancels"]:
            actions += [("cancel", c, call) for call in info.calls]
        if left["limits"]:
            actions += [("limit", c, call) for call in info.limited]
        if left["despairs"]:
            actions += [("despair", c, session) for session in info.lost]
        if left["closes"] and not info.closed:
            actions.append(("close", c))

    def _trouble_of_worker(
        self, w: int, worker: WorkerPart, left: dict[str, int], actions: list[Action]
    ) -> None:
        if left["beats"]:
            actions.append(("beat", w))
        if left["crashes"]:
            actions.append(("crash", w, True))
            if worker.up:
                actions.append(("crash", w, False))
        if left["worker_cuts"]:
            actions.append(("wcut", w))
        ways = [way for way in ("up", "down") if getattr(worker, way)]
        if left["losses"]:
            actions += [("wlose", w, way) for way in ways]
        if left["strays"]:
            actions += [("wstray", w, way, copy) for way in ways for copy in (True, False)]

    # -- rest ---------------------------------------------------------------------

    def is_unwanted(self, state: SystemState, action: Action) -> bool:
        """Whether environment code would end by itself that nobody wants: it may as well
        go on for ever, unless it is told to stop (G7)."""
        if action[0] != "end":
            return False
        _, w, number, result = action
        worker = state.workers[w]
        run, _ = worker.ended(number)
        told = next(call.told for call in state.past.calls if call.key == run.key)
        sessions = self.routers.info[state.router].sessions
        orphaned = worker.life == state.life and run.session not in sessions
        return bool(result and (told or orphaned))

    def left(self, state: SystemState) -> list[str]:
        """Calls that wait, executions that run, and what the router holds."""
        left: list[str] = []
        for c, client in enumerate(state.clients):
            info = self.clients.info[client.core]
            if not info.closed:
                left += [f"G9: call {call} of client {c} waits for ever" for call in info.calls]
        for worker in state.workers:
            left += [f"G7: {run.key.decode()} runs for ever" for run in worker.runs]
        return left + [f"G8: {what}" for what in self.routers.info[state.router].left]

    # -- which states are the same ------------------------------------------------

    def _digest(self, state: SystemState, r: int) -> bytes:
        infos = [self.clients.info[client.core] for client in state.clients]
        counted = tuple([(info.probe, info.connections) for info in infos])
        clients: list[bytes] = [b""] * len(state.clients)
        for c, part in enumerate(state.clients):
            clients[self._renamings[r].clients[c]] = self._of_client(r, c, part)
        workers = sorted([self._of_worker(r, worker) for worker in state.workers])
        whole = b"".join(
            (
                bytes(state.left), bytes((state.life,)), self._of_router(r, state.router, counted),
                self._of_past(r, state.past), *clients, *workers,
            )
        )  # fmt: skip
        return blake2b(whole, digest_size=8).digest()

    def _newest(self, counted: dict[int, tuple[int, int]]) -> Newest:
        """Of some clients: the last probe, and the last connection."""
        numbers: dict[tuple[str, int], int] = {}
        for c, (probe, connections) in counted.items():
            numbers["probe", c] = numbers["sent", c] = probe
            numbers["connection", c] = connections
        return Newest(numbers, self._most)

    def _digest_of_router(self, r: int, router: int, counted: tuple[tuple[int, int], ...]) -> bytes:
        newest = self._newest(dict(enumerate(counted)))
        return self._lowered(self.routers.form[router], r, newest)

    def _digest_of_client(self, r: int, c: int, part: ClientPart) -> bytes:
        info = self.clients.info[part.core]
        late = tuple(
            (way, Counted("connection", c, connection), self.mail.form[number])
            for way, connection, number in part.late
        )
        whole = (
            self.clients.form[part.core], part.asked, self._letters(part.up),
            self._letters(part.down), late,
        )  # fmt: skip
        return self._lowered(whole, r, self._newest({c: (info.probe, info.connections)}))

    def _letters(self, numbers: tuple[int, ...]) -> Any:
        return tuple(self.mail.form[number] for number in numbers)

    def _digest_of_worker(self, r: int, part: WorkerPart) -> bytes:
        core = None
        numbers: dict[tuple[str, int], int] = {}
        if part.core != DEAD:
            numbers["beat", 0] = self.workers.info[part.core].beat
            core = self.workers.form[part.core]
        whole = (
            part.id, part.life, core, form(part.runs), self._letters(part.up),
            self._letters(part.down), tuple((way, self.mail.form[n]) for way, n in part.late),
            part.doomed, part.reaped,
        )  # fmt: skip
        return self._lowered(whole, r, Newest(numbers, self._most))

    def _digest_of_past(self, r: int, past: Past) -> bytes:
        of_calls = tuple(
            (*call[:-1], None if call.sent is None else self.mail.form[call.sent])
            for call in past.calls
        )
        parts = [
            lower(part, self._renamings[r], Newest({}, self._most))
            for part in (of_calls, past.finished, past.stopped)
        ]
        return digest(tuple(sorted(part, key=repr) for part in parts))
