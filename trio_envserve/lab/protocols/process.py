"""The process of an actor: calls its handlers, and does what they ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import foreign
from ..kit.process import Process
from .interface import Actor, Disk, Entry, unknown
from .plain import plain, short
from .tracebacks import raised

if TYPE_CHECKING:
    from .world import ActorWorld

HEARS_S = 0.001
"""How soon an actor hears that a connection is gone."""


class _Killed(BaseException):
    """Ends a handler whose process is dead; no ``except Exception`` stops it."""


class ActorProcess(Process):
    """One life of an actor."""

    def __init__(self, world: ActorWorld, name: str, life: int) -> None:
        super().__init__(world.events, name, world.luck_of(f"{name}/{life}"))
        self.world = world
        self.disk = Disk(world.disks[name], self._before_write)
        self._actor: Actor | None = None
        self._timers: dict[str, int] = {}
        self._timers_started = 0
        self._act = 0
        """How often this handler has sent or written."""
        self._dies_before = 0
        """It is killed before this act of a handler; 0: it is not to be."""
        self._pause_s = 0.0

    # -- its life ---------------------------------------------------------------

    def start(self) -> None:
        """Make the actor."""
        self.events.note(self.name, "starts")
        ended = foreign.call(self.world.protocol.actors[self.name])
        if ended.error is not None:
            self.world.crashed(f"{self.name} could not be made", raised(ended.error))
        elif not isinstance(ended.value, Actor):
            self.world.crashed(f"{self.name} is made as {ended.value!r}, which is not an Actor")
        elif ended.value._process is not None:
            self.world.crashed(f"{self.name} is made as an object that was an actor before")
        else:
            self._actor = ended.value
            self._actor._process = self
            self.call("on_start")

    def call(self, handler: str, *args: Any) -> None:
        """Call a handler."""
        self._act = 0
        method = getattr(self._actor, handler)
        self.world.calls[getattr(method, "__func__", method)] += 1
        ended = foreign.call(method, *args)
        where = f"{self.name}.{handler}({', '.join(map(repr, args))})"
        if not self.alive:
            return  # whatever a dead process does on its way out of its code, nobody sees
        if ended.error is not None:
            self.world.crashed(f"{where} raised", raised(ended.error))
        elif ended.value is not None:
            if hasattr(ended.value, "close"):
                ended.value.close()  # a coroutine would complain that nobody awaits it
            what = type(ended.value).__name__
            self.world.crashed(f"{where} returned a {what}; a handler is a function of no result")

    def kill(self, act: int, pause_s: float) -> None:
        """SIGKILL: now, or before this act of a handler."""
        self._pause_s = pause_s
        if act:
            self._dies_before = act
        else:
            self.die("killed")

    def spare(self) -> None:
        """It is not to be killed any more."""
        self._dies_before = 0

    def die(self, how: str) -> None:
        """The process is dead, and all who wait in it; another is started after a pause."""
        if self.alive:
            super().die(how)
            self.world.died(self, self._pause_s)

    # -- what happens to it -------------------------------------------------------

    def take_in(self, sender: str, message: Any) -> None:
        """A message has arrived."""
        self.post(self.call, "on_message", sender, message)

    def ask(self, request: str, what: Any) -> None:
        """A caller asks."""
        self.events.note(self.name, f"asks {request}: {short(what)}")
        self.world.write(Entry(self.events.now_s, "asked", self.name, request, what))
        self.post(self.call, "on_ask", request, what)

    def cut_off(self, peer: str) -> None:
        """A connection is gone."""
        self.events.after(HEARS_S, self.post, self.call, "on_cut", peer)

    def _run_off(self, timer: str, number: int) -> None:
        if self._timers.get(timer) == number:
            del self._timers[timer]
            self.events.note(self.name, f"timer {timer}")
            self.call("on_timer", timer)

    # -- what it does ---------------------------------------------------------------

    def _before_act(self, what: str) -> None:
        """Something is about to be done that outlives the process: unless it is killed
        first."""
        self._act += 1
        if self._act == self._dies_before:
            self.die(f"killed before it {what}")
        if not self.alive:
            raise _Killed

    def _before_write(self, what: str) -> None:
        self._before_act(what)
        self.events.note(self.name, what)

    def send(self, to: str, message: Any) -> None:
        """See :meth:`.Actor.send`."""
        if to not in self.world.protocol.actors:
            raise ValueError(unknown(to, self.world.protocol.actors))
        if to == self.name:
            raise ValueError(f"{to} sends to itself")
        plain(message)
        self._before_act(f"sends to {to}")
        self.world.network.transmit(self, to, message)

    def start_timer(self, timer: str, delay_s: float) -> None:
        """See :meth:`.Actor.start_timer`."""
        if not delay_s >= 0.0:
            raise ValueError(f"a timer of {delay_s!r} s")
        self._timers_started += 1
        self._timers[timer] = self._timers_started
        self.events.after(delay_s, self.post, self._run_off, timer, self._timers_started)

    def stop_timer(self, timer: str) -> None:
        """See :meth:`.Actor.stop_timer`."""
        self._timers.pop(timer, None)

    def did(self, request: str, what: Any) -> None:
        """See :meth:`.Actor.did`."""
        self._write(Entry(self.events.now_s, "did", self.name, request, what))

    def tell(self, request: str, answer: Any) -> None:
        """See :meth:`.Actor.tell`."""
        self._write(Entry(self.events.now_s, "told", self.name, request, answer))

    def _write(self, entry: Entry) -> None:
        if entry.request not in self.world.asked:
            raise ValueError(f"nobody has asked for {entry.request!r}")
        plain(entry.what)
        if not self.alive:
            raise _Killed
        verb = "is told" if entry.kind == "told" else "does"
        self.events.note(self.name, f"{verb} {entry.request}: {short(entry.what)}")
        self.world.write(entry)
