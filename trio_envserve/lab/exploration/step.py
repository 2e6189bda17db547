"""One step of a whole system: machines take an input, their effects go where they belong.

Theory of operation
-------------------
A step begins with a state and ends with the next.  Machines are stepped by their
catalogues; what they send goes into links, what they tell a caller and what
environment code does is shown to the judge, which also sees what the wires carry.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from ...core import messages
from . import names
from .actions import BaseStep
from .judge import Judge, Request, Run
from .state import DEAD, ClientPart, Running, SystemState, WorkerPart

if TYPE_CHECKING:
    from .world import World

Part = TypeVar("Part", ClientPart, WorkerPart)


def without_first(part: Part, way: str) -> Part:
    """The part after the first message that goes this way has left its link."""
    if way == "up":
        return part._replace(up=part.up[1:])
    return part._replace(down=part.down[1:])


class Step(BaseStep[SystemState]):
    """The machines of a system.  Actions are added by :mod:`.moves`."""

    judge: Judge

    def __init__(self, world: World, state: SystemState) -> None:
        super().__init__(world.configuration, state.left)
        self.world = world
        self.life = state.life
        self.router = state.router
        self.clients = list(state.clients)
        self.workers = list(state.workers)
        self._repairing = False
        asked = world.configuration
        self.judge = Judge(state.past, asked.most, asked.requests)

    def state(self) -> SystemState:
        """The state after it."""
        workers = tuple([w for w in self.workers if not self._is_gone(w)])
        once = self.world.once
        return SystemState(
            self.life,
            self.router,
            once(tuple(self.clients)),
            once(workers),
            once(self.left),
            once(self.judge.past()),
        )

    def _is_gone(self, worker: WorkerPart) -> bool:
        """An earlier server's worker of which nothing is left."""
        old = worker.core == DEAD and worker.life < self.life
        return old and not (worker.up or worker.late)

    def _client(self, c: int, *given: Any) -> None:
        """A client's machine steps."""
        part = self.clients[c]
        catalogue = self.world.clients
        before = catalogue.info[part.core].requests
        core, effects = catalogue.step(part.core, given)
        self.clients[c] = part = part._replace(core=core)
        if core != part.core or before != catalogue.info[core].requests:
            self._issued_again(c, before, catalogue.info[core].requests)
        up: list[int] = []
        for effect in effects:
            match effect:
                case ("server", message):
                    up.append(message)
                case ("answer", call, status, body):
                    self.judge.answered(names.request_key(c, call), status, body)
                case ("fail", call, _, verdict):
                    self.judge.failed(names.request_key(c, call), verdict)
                case ("crash", text):
                    self.judge.violation("CRASH", text)
        if up:
            self.clients[c] = part._replace(up=(*part.up, *up))

    def _issued_again(self, c: int, before: Any, after: Any) -> None:
        ids = {call: (session, sequence) for session, sequence, call in before}
        again = [
            names.request_key(c, call)
            for session, sequence, call in after
            if ids.get(call, (session, sequence)) != (session, sequence)
        ]
        self.judge.issued_again(again)

    def _server(self, *given: Any) -> list[int]:
        """The router's machine steps; what it says to clients."""
        catalogue = self.world.routers
        self.router, effects = catalogue.step(self.router, given)
        self._repairing = given[0] == "worker"
        for effect in effects:
            match effect:
                case ("client", route, message):
                    self._to_client(route, message)
                case ("worker", worker, message):
                    self._to_worker(worker, message)
                case ("spawn", worker, incarnation):
                    self._spawn(worker, incarnation)
                case ("kill", worker):
                    w = self._worker_at(worker)
                    self.workers[w] = self.workers[w]._replace(doomed=True)
                case ("lost", worker):
                    w = self._worker_at(worker)
                    alive = self.workers[w].core != DEAD
                    self.judge.lost(worker.decode(), alive=alive)
                    if not alive:
                        del self.workers[w]
                case ("crash", text):
                    self.judge.violation("CRASH", text)
        for wrong in catalogue.info[self.router].wrong:
            self.judge.violation("G8", wrong)
        return [effect[2] for effect in effects if effect[0] == "client"]

    def _worker_at(self, worker: bytes) -> int:
        for w, part in enumerate(self.workers):
            if part.id == worker and part.life == self.life:
                return w
        raise KeyError(worker)

    def _to_client(self, route: bytes, message: int) -> None:
        c = names.owner(route)
        part = self.clients[c]
        info = self.world.clients.info[part.core]
        header = self.world.mail.message[message]
        self.judge.told_client(self._key_of, message, header, self._live())
        if info.connected and names.connection_of(route) == info.connections:
            self.clients[c] = part._replace(down=(*part.down, message))

    def _key_of(self, request: Request) -> bytes | None:
        """The call that has this request id, if its caller still wants it."""
        c = names.owner(request[0])
        info = self.world.clients.info[self.clients[c].core]
        for session, sequence, call in info.requests:
            if (session, sequence) == request:
                return names.request_key(c, call)
        return None

    def _live(self) -> Iterator[tuple[bytes, bytes]]:
        """Session and call of everything that runs."""
        for part in self.workers:
            for run in part.runs:
                yield run.session, run.key

    def _to_worker(self, worker: bytes, message: int) -> None:
        w = self._worker_at(worker)
        part = self.workers[w]
        header = self.world.mail.message[message]
        self.judge.told_worker(header)
        if isinstance(header, messages.Dispatch) and not self._repairing:
            retired = any(
                isinstance(self.world.mail.message[m], messages.Retire) for m in part.down
            )
            if part.doomed or part.reaped or retired:
                self.judge.violation(
                    "G2", f"an execution is spent on {worker.decode()}, which ends"
                )
        if part.core != DEAD:
            self.workers[w] = part._replace(down=(*part.down, message))

    def _spawn(self, worker: bytes, incarnation: bytes) -> None:
        part = WorkerPart(worker, self.life, self.world.workers.new(incarnation))
        self.workers.append(part)
        self._worker(len(self.workers) - 1, "hello")

    def _worker(self, w: int, *given: Any) -> None:
        """A worker's machine steps."""
        part = self.workers[w]
        core, effects = self.world.workers.step(part.core, given)
        self.workers[w] = part._replace(core=core)
        for effect in effects:
            part = self.workers[w]
            match effect:
                case ("router", message):
                    self.workers[w] = part._replace(up=(*part.up, message))
                case ("run", number, request, key):
                    self._begin(w, number, request, key)
                case ("cancel", number):
                    self.workers[w] = part.told_to_stop(number)
                case ("exit",):
                    self.workers[w] = part._replace(doomed=True)
                case ("crash", text):
                    self.judge.violation("CRASH", text)

    def _begin(self, w: int, number: int, request: Request, key: bytes) -> None:
        part = self.workers[w]
        if len(part.runs) >= self.world.configuration.capacity:
            self.judge.violation("G8", f"{part.id.decode()} runs more than it can take")
        session_life = int(request[0][1:2])
        run = (part.life, part.id, number)
        live = [each for _, each in self._live()]
        self.judge.started(key, run, request, session_life, live, self._alive)
        runs = (*part.runs, Running(number, key, request[0], cancelled=False))
        self.workers[w] = part._replace(runs=runs)

    def _alive(self, run: Run) -> bool:
        return any((p.life, p.id) == run[:2] and p.core != DEAD for p in self.workers)

    def _server_hears(self, route: bytes, message: int) -> None:
        sessions = self.world.routers.info[self.router].sessions
        header = self.world.mail.message[message]
        finished = self.judge.server_heard(header, sessions)
        if isinstance(header, messages.Finish):
            self._check_taken(finished)
        self._server("client", route, message)

    def _check_taken(self, finished: list[Request]) -> None:
        """G4: an outcome is not acknowledged before its caller has it."""
        for request in finished:
            c = names.owner(request[0])
            info = self.world.clients.info[self.clients[c].core]
            for session, sequence, call in info.requests:
                if (session, sequence) == request and call in info.answered:
                    key = names.request_key(c, call).decode()
                    self.judge.violation("G4", f"{key} is acknowledged, and its caller has nothing")

    def _excuse_client(self, c: int) -> None:
        requests = range(self.world.configuration.requests)
        self.judge.excuse(names.request_key(c, call) for call in requests)

    def _disconnect(self, c: int, *, late: bool) -> None:
        part = self.clients[c]
        connection = self.world.clients.info[part.core].connections
        kept = tuple(("up", connection, message) for message in part.up) if late else ()
        self.clients[c] = part._replace(up=(), down=(), late=(*part.late, *kept))
        self._client(c, "cut")

    def _die(self, w: int, keep: bool) -> None:
        """The process is dead; what it has sent still arrives, or not."""
        part = self.workers[w]
        self.judge.worker_gone(part.life, part.id)
        self.workers[w] = part._replace(
            core=DEAD, runs=(), down=(), up=part.up if keep else (), doomed=False
        )
