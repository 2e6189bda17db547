"""Evaluations: what is asked, what came of it, and what it says about a model.

Theory of operation
-------------------
An evaluation runs each of its *inputs* once or, with repeats, several times.  The result of one
rollout is a :class:`~.records.RolloutResult`: made of an outcome as it comes, or of a line of a
file of results (:mod:`.files`), so that an evaluation that goes on, and the verbs ``show`` and
``compare``, count the same things in the same way.  :mod:`.statistics` and :mod:`.tally` turn
results into figures.

Only :mod:`.run` has tasks.  The rest is synchronous: what takes long is called in a thread, and
asks between its steps whether to go on.
"""
