"""The actions of a worker, its link, and the environment code on it."""

from __future__ import annotations

from ...core import error_records, messages
from ...core.errors import ErrorInfo
from ...core.terms import Status, Verdict
from . import names
from .state import DEAD, WorkerPart
from .step import Step, without_first


class WorkerMoves(Step):
    """One method for each action; ``w`` is the worker's index."""

    def _wup(self, w: int) -> None:
        part = self.workers[w]
        self.workers[w] = part._replace(up=part.up[1:])
        self._server_hears_worker(part, part.up[0])

    def _wlate(self, w: int) -> None:
        """What was left behind arrives at whoever has that worker's name by now."""
        part = self.workers[w]
        way, message = part.late[0]
        self.workers[w] = part._replace(late=part.late[1:])
        if way == "up":
            self._server_hears_worker(part, message)
            return
        for other, each in reversed(list(enumerate(self.workers))):
            if each.id == part.id and each.core != DEAD:
                self._worker_hears(other, message)
                return

    def _server_hears_worker(self, part: WorkerPart, number: int) -> None:
        message = self.world.mail.message[number]
        if isinstance(message, messages.WorkerOutcome) and part.life == self.life:
            result = message.status == Status.RESULT
            if result:
                payload = self.world.mail.frames[number][3]
                self.judge.reported((part.life, part.id, message.number), payload)
        self._server("worker", part.id, number)

    def _wdown(self, w: int) -> None:
        part = self.workers[w]
        self.workers[w] = part._replace(down=part.down[1:])
        self._worker_hears(w, part.down[0])

    def _worker_hears(self, w: int, number: int) -> None:
        part = self.workers[w]
        self._worker(w, "message", number)
        if self.world.mail.frames[number][0] == names.incarnation(part.life, part.id):
            begun = self.world.workers.info[self.workers[w].core].begun
            message = self.world.mail.message[number]
            self.judge.worker_heard(part.life, part.id, message, begun)

    def _end(self, w: int, number: int, result: bool) -> None:
        """Environment code ends: with a result, or, if it was told to, without."""
        part = self.workers[w]
        run = next(r for r in part.runs if r.number == number)
        self.workers[w] = part._replace(runs=tuple(r for r in part.runs if r is not run))
        status = Status.RESULT if result else Status.CANCELLED
        payload = b"%b@e%d-%b-%d" % (run.key, part.life, part.id, number)
        if not result:
            info = ErrorInfo("cancelled", Verdict.RAN_AND_FAILED, payload.decode())
            payload = error_records.encode(info)
        self._worker(w, "ended", number, int(status), payload)

    def _beat(self, w: int) -> None:
        self._spend("beats")
        self._worker(w, "beat")

    def _idle_beat(self, w: int) -> None:
        self._worker(w, "beat")

    def _wcut(self, w: int) -> None:
        """Its connection is made anew at once, under the same id."""
        self._spend("worker_cuts")
        self.workers[w] = self.workers[w]._replace(up=(), down=())

    def _wstray(self, w: int, way: str, copy: bool) -> None:
        self._spend("strays")
        part = self.workers[w]
        message = (part.up if way == "up" else part.down)[0]
        part = part._replace(late=(*part.late, (way, message)))
        self.workers[w] = part if copy else without_first(part, way)

    def _wlose(self, w: int, way: str) -> None:
        self._spend("losses")
        self.workers[w] = without_first(self.workers[w], way)

    def _crash(self, w: int, keep: bool) -> None:
        self._spend("crashes")
        self._die(w, keep)

    def _reap(self, w: int) -> None:
        part = self.workers[w]
        self.workers[w] = part._replace(reaped=True)
        self._server("exited", part.id)
