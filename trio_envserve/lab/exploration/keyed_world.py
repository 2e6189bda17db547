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
from hashlib import blake2b
from typing import Any

from ...core.key_records import KeyAct, Tag
from ...core.limits import ANNOUNCE_BYTES, ClientLimits, ServerLimits, WireLimits
from .canonical import Newest, digest, lower, renamings
from .configurations import KEY_BOUNDED, KeyConfiguration
from .disk_step import DiskStep
from .forms import form
from .keyed_judge import KeyPast
from .keyed_state import INPUT, OTHER, CallerPart, KeyState, session_of
from .keyed_step import KeyStep
from .mail import Mail
from .servers import Routers
from .state import DEAD
from .step import Action
from .workers import Workers


class KeyWorld:
    """A configuration with keys, with everything that was ever found out about it."""

    def __init__(self, configuration: KeyConfiguration) -> None:
        self.configuration = configuration
        limits = (
            ServerLimits(worker_capacity=2, session_share=1.0), ClientLimits(), WireLimits(),
        )  # fmt: skip
        self.mail = Mail()
        journaled = configuration.falls > 0
        self.routers = Routers(self.mail, limits, 1, 2, journaled=journaled)
        self.workers = Workers(self.mail, limits, False, ANNOUNCE_BYTES)
        self._renamings = renamings(configuration.callers, 1)
        self._digests: dict[Any, bytes] = {}

    def sizes(self) -> dict[str, int]:
        """How many local states there are of each kind."""
        return {
            "router": len(self.routers), "worker": len(self.workers),
            "messages": len(self.mail.frames),
        }  # fmt: skip

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

    def move(self, state: KeyState, action: Action) -> tuple[KeyState, list[str]]:
        """The state after an action, and what it violates."""
        step = self.step(state)
        step.take(action)
        return step.state(), step.judge.violations

    def step(self, state: KeyState) -> KeyStep:
        """What takes one action from this state."""
        return DiskStep(self, state) if self.configuration.falls else KeyStep(self, state)

    def canonical(self, state: KeyState) -> bytes:
        """8 bytes that are the same for the same states, and for no others."""
        least = b"\xff" * 8
        worker, number = state.worker, None
        if worker is not None and worker.core != DEAD:
            number = self.workers.info[worker.core].beat
        newest = Newest({} if number is None else {("beat", 0): number}, {"beat": 1 << 30})
        rest = bytes(state.left)
        for r, renaming in enumerate(self._renamings):
            parts = (
                (state.router, worker, number), (state.callers, state.commands), state.past,
                (state.disk, state.life),
            )  # fmt: skip
            found = []
            for at, part in enumerate(parts):
                known = self._digests.get((r, at, part))
                if known is None:
                    made = self._form(state, at, r)
                    known = self._digests[r, at, part] = digest(lower(made, renaming, newest))
                found.append(known)
            least = min(least, blake2b(rest + b"".join(found), digest_size=8).digest())
        return least

    def _form(self, state: KeyState, at: int, r: int) -> Any:
        if at == 0:
            worker = state.worker
            if worker is None:
                return self.routers.form[state.router]
            core = None if worker.core == DEAD else self.workers.form[worker.core]
            return self.routers.form[state.router], core, form(worker._replace(core=0))
        if at == 1:
            order = sorted(range(len(state.callers)), key=lambda c: self._renamings[r].clients[c])
            return tuple(self._caller(state.callers[c]) for c in order), form(state.commands)
        return form(state.past) if at == 2 else form((state.disk, state.life))

    def _caller(self, caller: CallerPart) -> Any:
        said = tuple((s.sequence, self.mail.form[s.message], form(s.told)) for s in caller.said)
        return form(caller._replace(said=())), said

    # -- what can happen ----------------------------------------------------------

    def certain(self, state: KeyState) -> list[Action]:
        """What happens by itself, sooner or later, in no certain order."""
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
        """What may happen as well, as often as its bound allows."""
        left = dict(zip(KEY_BOUNDED, state.left, strict=True))
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

    # Nothing is on its way here, so there is nothing to repair.

    def is_quiet(self, state: KeyState, certain: list[Action]) -> bool:
        """Whether nothing more happens by itself."""
        return not certain

    def run_to_rest(self, state: KeyState) -> tuple[list[str], list[Action]]:
        """What a server at rest should not hold any more."""
        return [f"G8: {what}" for what in self.routers.info[state.router].left], []

    def at_rest(self, state: KeyState) -> bool:
        """It is, where nothing happens by itself."""
        return True

    def timers(self, state: KeyState) -> list[Action]:
        """None: see above."""
        return []
