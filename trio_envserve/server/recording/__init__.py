"""The flight recorder: every input of the router, written down.

Theory of operation
-------------------
The router is pure, so its inputs are its history: whoever has them has every
state that it ever was in.  A :class:`Tape` stands where the shell hands its
inputs over (:class:`Inputs`); it notes each one as a record (:mod:`.records`),
with what the router took besides (ids, the shell's own statistics), folds the
effects into a hash, and hands the input on.  :mod:`.files` writes what it has
noted from a thread.  :mod:`trio_envserve.lab.recording` reads and replays it.

Nothing of this exists in a server that is not recorded: there the shell hands
its inputs to the router itself.
"""

from .files import Recorder, open_recorder
from .tape import Inputs, Tape

__all__ = ["Inputs", "Recorder", "Tape", "open_recorder"]
