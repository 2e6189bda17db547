"""Two callers, one key, and the server between them, in every order.

Theory of operation
-------------------
The server and its worker are the machines that ship.  Callers are played, since a client
adds nothing that could not arrive from another: a request may come at any moment, again,
in another session, or never.  Nothing is on its way: what is said is dealt with at once,
and that something comes late is that it is said late.  So there are few states, all of
them the server's.  :mod:`.keyed_judge` says for each step what must come of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from hashlib import blake2b
from typing import Any

from ...core.key_records import KeyAct, Tag
from ...core.limits import ANNOUNCE_BYTES, ClientLimits, ServerLimits, WireLimits
from ...retrylab.values import form
from . import names
from .actions import Action
from .canonical import Newest
from .configurations import KeyConfiguration
from .disk_step import DiskStep
from .explored import Explored
from .keyed_judge import KeyPast
from .keyed_state import INPUT, OTHER, CallerPart, DiskPart, KeyState, session_of
from .keyed_step import KeyStep
from .mail import Mail
from .rules import FORMS
from .servers import Routers
from .state import DEAD, WorkerPart
from .workers import Workers


class KeyWorld(Explored[KeyState]):
    """A configuration with keys."""

    def __init__(self, configuration: KeyConfiguration) -> None:
        self.configuration = configuration
        limits = (
            ServerLimits(worker_capacity=2, session_share=1.0), ClientLimits(), WireLimits(),
        )  # fmt: skip
        self.mail = Mail()
        journaled = configuration.falls > 0
        self.routers = Routers(self.mail, limits, 1, 2, journaled=journaled)
        self.workers = Workers(self.mail, limits, False, ANNOUNCE_BYTES)
        super().__init__({"router": self.routers, "worker": self.workers}, configuration.callers, 1)
        self._of_machines = cache(self._digest_of_machines)
        self._of_callers = cache(self._digest_of_callers)
        self._of_past = cache(self._digest_of_past)

    # -- states -------------------------------------------------------------------

    def blank(self) -> KeyState:
        """A server that has started nothing, and no callers."""
        asked = self.configuration
        return KeyState(
            self.routers.new(0), None, (CallerPart(),) * asked.callers, (),
            tuple(asked.bounds.values()), KeyPast(),
        )  # fmt: skip

    def opening(self) -> Iterator[Action]:
        """To the first state: a worker is ready, the callers have sessions."""
        yield ("open",)
        yield ("start", 0)
        for caller in range(self.configuration.callers):
            yield ("back", caller)

    def step(self, state: KeyState) -> KeyStep:
        """The step that takes one action from this state."""
        return DiskStep(self, state) if self.configuration.falls else KeyStep(self, state)

    # -- what can happen ----------------------------------------------------------

    def certain(self, state: KeyState) -> list[Action]:
        """The actions that happen by themselves, sooner or later, in no certain order."""
        actions: list[Action] = []
        for c, caller in enumerate(state.callers):
            actions += [("lease", c, session) for session in caller.left]
            if not caller.here:
                actions.append(("back", c))
                continue
            if caller.asked < self.configuration.asks:
                actions.append(("ask", c, INPUT))
            if caller.lost and self._may_ask_again(state):
                actions += [("again", c, True), ("again", c, False), ("withdraw", c)]
            actions += [("take", c, s.sequence) for s in caller.said if s.told is not None]
        worker, router = state.worker, self.routers.info[state.router]
        if worker is not None and worker.core != DEAD:
            for run in worker.runs:
                actions.append(("end", run.number, True))
                if run.cancelled:
                    actions.append(("end", run.number, False))
            if worker.doomed:
                actions.append(("die",))
        elif worker is not None and not worker.reaped:
            actions.append(("reap",))
        actions += [("settle", who) for who in router.unsettled]
        if worker is None:
            actions += [("start", slot) for slot in router.empty_slots]
        if router.unwanted:
            actions.append(("unwanted",))
        if state.past.said:
            actions.append(("expire",))
        if state.life and router.closed:
            actions.append(("open",))
        if state.disk.written:
            actions += [("sync", groups) for groups in {1, len(state.disk.written)}]
        return actions

    def _may_ask_again(self, state: KeyState) -> bool:
        """Before a worker has said what its environment consents to, who issues a request
        again is refused for now, unless its key is known."""
        known = self.routers.info[state.router].environment
        return known or state.past.open is not None

    def trouble(self, state: KeyState) -> list[Action]:
        """The faults that may happen as well, as often as their bounds allow."""
        left = dict(zip(self.configuration.BOUNDED, state.left, strict=True))
        actions: list[Action] = []
        if left["commands"]:
            for act in (KeyAct.CANCEL, KeyAct.FORGET):
                tags: list[Tag] = [b"t%d" % len(state.commands), *range(state.past.opened)]
                actions += [("command", int(act), tag) for tag in tags]
        if left["copies"]:
            actions += [("copy", *command) for command in state.commands]
        for c, caller in enumerate(state.callers):
            if caller.here:
                self._trouble_of(c, caller, left, state.life, actions)
        worker = state.worker
        if worker is not None and worker.core != DEAD and left["crashes"]:
            actions.append(("crash",))
        if left["limits"]:
            actions += [("limit", *each) for each in self.routers.info[state.router].deadlines]
        if left["falls"]:
            actions += [("fall", kept) for kept in range(len(state.disk.written) + 1)]
        if left["closes"]:
            actions += [("close", stage) for stage in ("DRAINING", "CANCELLING")]
        return actions

    def _trouble_of(
        self, c: int, caller: CallerPart, left: dict[str, int], life: int, actions: list[Action]
    ) -> None:
        if left["others"]:
            actions.append(("ask", c, OTHER))
        if left["attaches"]:
            actions.append(("attach", c))
        if left["cancels"]:
            actions += [("cancel", c, said.sequence) for said in caller.said]
        if left["repeats"]:
            actions += [("repeat", c, said.sequence) for said in caller.said]
        if left["leases"]:
            actions.append(("lease", c, session_of(c, caller, life)))
        if left["deaths"]:
            actions.append(("gone", c))
        if left["goodbyes"]:
            actions.append(("goodbye", c))

    # -- rest: nothing is on its way here, so there is nothing to repair ------------

    def left(self, state: KeyState) -> list[str]:
        """The contents of the router."""
        return [f"G8: {what}" for what in self.routers.info[state.router].left]

    # -- which states are the same --------------------------------------------------

    def _digest(self, state: KeyState, r: int) -> bytes:
        whole = b"".join(
            (
                bytes(state.left), self._of_machines(r, state.router, state.worker),
                self._of_callers(r, state.callers, state.commands),
                self._of_past(r, state.past, state.disk, state.life),
            )
        )  # fmt: skip
        return blake2b(whole, digest_size=8).digest()

    def _digest_of_machines(self, r: int, router: int, worker: WorkerPart | None) -> bytes:
        numbers: dict[tuple[str, Any], int] = {}
        parts: tuple[Any, ...] = (self.routers.form[router],)
        if worker is not None:
            core = None
            if worker.core != DEAD:
                core = self.workers.form[worker.core]
                beat = self.workers.info[worker.core].beat
                for life in range(8):
                    numbers["beat", names.incarnation(life, worker.id)] = beat
            parts = *parts, core, form(worker._replace(core=0), FORMS)
        return self._lowered(parts, r, Newest(numbers, {"beat": 1 << 30}))

    def _digest_of_callers(
        self, r: int, callers: tuple[CallerPart, ...], commands: tuple[tuple[int, bytes], ...]
    ) -> bytes:
        order = sorted(range(len(callers)), key=lambda c: self._renamings[r].clients[c])
        whole = tuple(self._caller(callers[c]) for c in order), form(commands, FORMS)
        return self._lowered(whole, r, Newest({}, {}))

    def _caller(self, caller: CallerPart) -> Any:
        said = tuple(
            (s.sequence, self.mail.form[s.message], form(s.told, FORMS)) for s in caller.said
        )
        return form(caller._replace(said=()), FORMS), said

    def _digest_of_past(self, r: int, past: KeyPast, disk: DiskPart, life: int) -> bytes:
        return self._lowered(form((past, disk, life), FORMS), r, Newest({}, {}))
